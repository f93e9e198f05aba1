"""No task is stopped for another within the moment of its start, and `min_runtime` protects it for longer."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.expiry import due
from fairlead.testing import World
from tests.chaos.start_checker import DoorChecker


def world(**config: Any) -> World:
    return World(config, observers=[DoorChecker()])


def stage(cpu: float, **rest: Any) -> dict[str, Any]:
    return {"name": "s", "resources": {"cpu": cpu}, **rest}


def tell(w: World, job: str) -> list[str]:
    return [str(each) for each in w.explain(job)[0].comes]


@pytest.mark.parametrize("order", ["fifo", "jobs"])
def test_an_earlier_turn_runs_before_a_higher_priority_stops_it(order: str) -> None:
    w = world(queues={"root": {"q": {"order": order}}})
    w.node("n", cpu=2)
    w.submit(name="low", queue="root.q", stages=[stage(2)])
    w.submit(name="high", queue="root.q", priority=5, stages=[stage(2)])
    w.advance(0)
    assert w.task("low", "s", 0).state == "running" and due(w.partition()) == w.now + 1
    w.advance(1)
    assert w.placements("high")


def test_a_gang_that_starts_from_its_hold_is_not_stopped_in_that_moment() -> None:
    w = world(starving_after="5s", queues={"root": {"a": {}, "b": {"guarantee": {"cpu": 4}}}})
    w.nodes(2, cpu=4)
    w.submit(name="f", queue="root.a", preemptible=False, stages=[stage(4, count=2, min=1, duration=30)])
    w.cycle()
    w.submit(name="gang", queue="root.a", stages=[stage(4, count=2)])
    w.advance(10)
    w.submit(name="c", queue="root.b", stages=[stage(4)])
    w.advance(20)
    assert len(w.placements("gang")) == 2
    w.advance(1)
    assert w.placements("c")


def test_a_start_from_a_promise_is_not_stopped_in_that_moment() -> None:
    w = world()
    w.node("n", cpu=4)
    w.submit(name="f", stages=[stage(4)])
    w.advance(1)
    w.ignore_stops("f")
    w.submit(name="mid", priority=3, stages=[stage(4)])
    w.cycle()
    w.advance(2)
    w.submit(name="high", priority=7, stages=[stage(4)])
    w.cycle()
    w.report("f", "s", 0, 1, "stopped")
    w.advance(0)
    assert w.task("mid", "s", 0).state == "running"
    w.advance(1)
    assert w.placements("high")


def test_what_arrives_in_the_same_moment_waits_for_the_next() -> None:
    w = world()
    w.nodes(3, cpu=4)
    w.submit(name="low", stages=[stage(1, count=12, min=1)])
    w.cycle()
    w.submit(name="high", priority=3, stages=[stage(4)])
    w.advance(0)
    assert not w.placements("high") and len(w.placements("low")) == 12
    w.advance(1)
    assert w.placements("high") and len(w.placements("low")) == 8


@pytest.mark.parametrize("right", ["priority", "guarantee"])
def test_min_runtime_protects_a_task_until_the_other_has_waited_as_long(right: str) -> None:
    w = world(min_runtime="1min", queues={"root": {"a": {}, "b": {"guarantee": {"cpu": 2}}}})
    w.node("n", cpu=2)
    w.submit(name="old", queue="root.a", stages=[stage(1)])
    w.advance(50)
    w.submit(name="new", queue="root.a", stages=[stage(1)])
    w.advance(5)
    claim = {"queue": "root.a", "priority": 1} if right == "priority" else {"queue": "root.b"}
    w.submit(name="one", stages=[stage(1)], **claim)
    w.advance(0)
    assert tell(w, "one")[0] == "running tasks may stop for it in 5s: until then min_runtime or hold_for protects them"
    w.advance(4)
    assert w.placements("old") and not w.placements("one")
    w.advance(2)  # `old` has run for a minute
    assert w.placements("one") and w.placements("new")


def test_a_claimant_waits_no_longer_than_min_runtime_for_tasks_that_follow_each_other() -> None:
    w = world(min_runtime="1min")
    w.node("n", cpu=2)
    for number in range(20):
        w.submit(name=f"low{number}", stages=[stage(1, duration=10 + number % 2)])
    w.advance(5)
    w.submit(name="high", priority=1, stages=[stage(2)])
    w.advance(59)
    assert not w.placements("high")
    w.advance(2)
    assert w.placements("high")


def test_a_claim_that_uses_the_last_of_max_jobs_opens_the_lane_behind_a_job_that_may_not_start_any_more() -> None:
    own = {"share": 50, "order": "fifo", "max_jobs": 1, "guarantee": {"cpu": 2}}
    w = world(queues={"root": {"lender": {"share": 50}, "own": own}})
    w.node("plain", cpu=2)
    w.node("gpu", cpu=2, gpu=1)
    w.submit(name="first", queue="root.own", stages=[stage(2)])
    w.advance(1)
    w.submit(name="loan", queue="root.lender", stages=[stage(2)])
    w.advance(1)
    w.submit(name="large", queue="root.own", stages=[stage(1, count=3)])
    stages = [stage(1, count=2), {**stage(1), "name": "g", "resources": {"cpu": 1, "gpu": 1}}]
    w.submit(name="claims", queue="root.own", stages=stages)
    w.submit(name="more", queue="root.lender", stages=[stage(2)])
    w.advance(1)
    w.finish("first")
    w.advance(1)
    assert len(w.placements("claims")) == 3 and not w.placements("more")
