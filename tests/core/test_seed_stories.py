"""The scenarios that the design names for the ask registry. Each test name begins with the name of its scenario.

Several asks, failed assignments, start-up not ready, restart with replay twice over, submitter's retries,
launch timeout, partial failure. More cases are in test_stories.py, and the published ones in tests/cases; the burst is
in tests/writer/test_burst.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.commands import Accepted, Configure, Rejected, Report, Submit
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job
from fairlead.core.effects import ForNode, Launch
from fairlead.core.why.reasons import NotReady
from fairlead.journal.in_memory import MemoryJournal
from fairlead.testing import World
from fairlead.writer.writer import Writer


def world(nodes: int = 2, cpu: int = 2, **config: Any) -> World:
    w = World(config)
    w.nodes(nodes, cpu=cpu)
    w.cycle()
    return w


def stage(count: int = 1, cpu: float = 1, **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "w", "count": count, "resources": {"cpu": cpu}, **rest}]


def launches(w: World) -> list[tuple[str, Launch]]:
    return [(effect.node, one) for effect in w.effects() if isinstance(effect, ForNode) for one in effect.launches]


# -- several asks ----------------------------------------------------------------------------------------


def test_several_asks_are_served_in_one_cycle_each_lane_for_itself() -> None:
    w = World()
    w.nodes(2, prefix="small", cpu=4)
    w.nodes(1, prefix="gpu", cpu=8, gpu=4)
    w.cycle()
    two_stages = w.submit(
        name="two",
        stages=[
            {"name": "a", "count": 3, "resources": {"cpu": 1}},
            {"name": "b", "count": 2, "resources": {"cpu": 1, "gpu": 1}},
        ],
    )
    large = w.submit(name="large", stages=stage(6))
    behind = w.submit(name="behind", stages=stage(1))
    beside = w.submit(name="beside", stages=[{"name": "b", "count": 2, "resources": {"cpu": 1, "gpu": 1}}])
    w.cycle()
    assert sorted(w.placements(two_stages)) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    assert len(w.placements(large)) == 6  # what is left of the small nodes, and the node with GPUs
    assert (len(w.placements(behind)), len(w.placements(beside))) == (1, 2)
    assert w.lanes() == {}


def test_several_asks_of_one_lane_are_served_in_order_and_none_in_part() -> None:
    w = world(nodes=3, cpu=2)
    names = [w.submit(name=name, stages=stage(count)) for name, count in (("a", 4), ("b", 3), ("c", 1))]
    w.cycle()
    assert [len(w.placements(name)) for name in names] == [4, 0, 0]  # c would fit, and waits behind b
    w.finish(names[0], "w", 0)
    w.cycle()
    assert [len(w.placements(name)) for name in names] == [3, 3, 0]
    w.finish(names[0], "w", 1)
    w.cycle()
    assert [len(w.placements(name)) for name in names] == [2, 3, 1]


# -- failed assignments ------------------------------------------------------------------------------------------


def test_failed_assignments_wait_at_the_tail_with_their_age_and_the_others_stay() -> None:
    w = world(nodes=2, cpu=2)
    w.refuse_launches("n1")
    w.advance(1)
    stays = w.submit(name="stays", stages=stage(1))
    gang = w.submit(name="gang", stages=stage(2))
    single = w.submit(name="single", stages=stage(1))
    w.cycle()
    assert (w.placements(gang), w.placements(single)) == ({("w", 0): "n0", ("w", 1): "n1"}, {("w", 0): "n1"})
    w.advance(0)
    assert (w.placements(stays), w.task(stays, "w", 0).state) == ({("w", 0): "n0"}, "running")
    never = w.submit(name="never", stages=stage(1))
    w.advance(0)
    (lane,) = w.lanes().values()
    # The gang is back whole, also its member on the other node; an arrival joins the round of the head.
    assert [(ask.job, ask.count, ask.waiting_since) for ask in lane] == [
        (gang, 2, 1),
        (never, 1, 1),
        (single, 1, 1),
    ]
    w.return_node("n1")
    w.finish(stays)
    w.advance(5)
    assert w.lanes() == {}
    assert [w.task(job, "w", 0).attempt for job in (gang, never, single)] == [2, 1, 2]


# -- start-up not ready ------------------------------------------------------------------------------------------


def not_ready(nodes: int = 2, **config: Any) -> tuple[World, str]:
    """A world that has just started again, with a job that would fit."""
    w = world(nodes, ready_after="1h", **config)
    w.restart(ready=False)
    job = w.submit(name="waits", stages=stage(1))
    w.advance(60)
    assert w.placements(job) == {}
    assert isinstance(w.explain(job)[0].reason, NotReady)
    return w, job


def test_start_up_not_ready_until_every_agent_has_registered() -> None:
    w, job = not_ready()
    w.node("n0", cpu=2)
    w.advance(60)
    assert w.placements(job) == {}
    w.node("n1", cpu=2)
    w.cycle()  # in this very cycle
    assert len(w.placements(job)) == 1


def test_start_up_not_ready_until_agents_have_reported_of_their_tasks() -> None:
    w = world(nodes=2, cpu=1, ready_after="1h")
    runs = w.submit(name="runs", stages=stage(2))
    w.advance(0)
    w.restart(ready=False)
    job = w.submit(name="waits", stages=stage(1))
    w.report(runs, "w", 0, 1, "running")
    w.advance(60)
    assert w.placements(job) == {}
    w.finish(runs, "w", 1)
    w.cycle()
    assert w.placements(job) == {("w", 0): "n1"}
    assert w.task(runs, "w", 0).state == "running"


@pytest.mark.parametrize("action", ["disable", "fail_node", "remove_node"])
def test_start_up_not_ready_does_not_wait_for_nodes_that_take_no_work(action: str) -> None:
    w, job = not_ready()
    w.node("n0", cpu=2)
    getattr(w, action)("n1")
    w.cycle()
    assert len(w.placements(job)) == 1


def test_start_up_not_ready_waits_for_a_node_that_drains_and_not_for_one_that_was_lost() -> None:
    w = world(nodes=3, ready_after="1h")
    w.drain("n1")
    w.fail_node("n2")
    w.cycle()
    w.restart(ready=False)
    job = w.submit(stages=stage(1))
    w.node("n0", cpu=2)
    w.node("n9", cpu=2)  # a node that joins has reported
    w.advance(60)
    assert w.placements(job) == {}
    w.node("n1", cpu=2)
    w.cycle()
    assert len(w.placements(job)) == 1


def test_start_up_not_ready_is_not_ended_by_a_report_that_is_an_alarm() -> None:
    w, job = not_ready(nodes=1)
    w._send("default", Report(node="n0", job="x", stage="w", indices=(0, 1), attempt=1, state="running", number=99))
    w.cycle()
    assert isinstance(w.answers()[-1], Rejected)
    assert w.placements(job) == {}
    w._send("default", Report(node="n0", job="x", stage="w", indices=(0, 1), attempt=1, state="failed"))  # stale
    w.cycle()
    assert len(w.placements(job)) == 1


def test_start_up_not_ready_until_a_resource_manager_has_replayed() -> None:
    w = world(nodes=1, ready_after="1h")
    rm = w.rm("k8s")
    rm.register()
    rm.update(nodes=[{"name": "m0", "resources": {"cpu": 2}}, {"name": "m1", "resources": {"cpu": 2}}])
    w.cycle()
    w.restart(ready=False)
    job = w.submit(stages=stage(1))
    w.node("n0", cpu=2)
    rm.register()  # announces that the rest will follow
    w.advance(60)
    assert w.placements(job) == {}
    rm.update()  # it vouches for its nodes
    w.cycle()
    assert len(w.placements(job)) == 1


def test_start_up_not_ready_waits_for_a_manager_that_restarts_meanwhile() -> None:
    w = world(nodes=1, ready_after="1h")
    w.rm("k8s").register()
    w.cycle()
    w.restart(ready=False)
    job = w.submit(stages=stage(1))
    w.rm("k8s").update()
    w.cycle()
    w.rm("k8s").register()
    w.rm("new").register()
    w.node("n0", cpu=2)
    w.advance(60)
    assert w.placements(job) == {}
    w.rm("new").update()
    w.rm("k8s").update()
    w.cycle()
    assert len(w.placements(job)) == 1


def test_start_up_is_ready_at_once_where_no_node_is_known() -> None:
    """A first start, and a partition that is added: nothing can run that the journal does not know of."""
    writer = Writer(MemoryJournal(), "default")
    writer.cycle([Configure(config=parse_config({"partitions": {"default": {}}})["default"], operator=True)], 1)
    assert writer.partition.readiness.ready
    w = world(nodes=1)
    w.configure({"partitions": {"default": {}, "east": {}}})
    w.node("e0", cpu=1, partition="east")
    job = w.submit(partition="east", stages=stage(1))
    w.cycle()
    assert len(w.placements(job)) == 1


def test_start_up_not_ready_lets_no_silence_expire_and_its_clocks_start_again() -> None:
    w = world(nodes=2, cpu=1, ready_after="1h", lease="20s", heartbeat="1s", launch_timeout="10s")
    w.hold_acks("n0")
    held = w.submit(name="held", stages=stage(1))
    w.cycle()
    runs = w.submit(name="runs", stages=stage(1))
    w.advance(1)
    w.silence("n1")
    w.restart(ready=False)
    w.advance(100)
    assert (w.placements(held), w.placements(runs)) == ({("w", 0): "n0"}, {("w", 0): "n1"})
    w.node("n0", cpu=1)
    w.node("n1", cpu=1)  # joins, and is silent from then on
    w.advance(9)
    assert (w.placements(held), w.placements(runs)) == ({("w", 0): "n0"}, {("w", 0): "n1"})
    w.advance(1.5)
    assert (w.task(held, "w", 0).state, w.placements(runs)) == ("pending", {("w", 0): "n1"})
    w.advance(10)
    assert (w.task(held, "w", 0).attempt, w.placements(runs)) == (2, {("w", 0): "n1"})
    w.advance(1)
    assert w.task(runs, "w", 0).state == "pending"


# -- restart with replay twice over ------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [True, False])
def test_restart_with_replay_twice_over_doubles_nothing(ready: bool) -> None:
    """Submitters, agents and a manager send everything again, two times; nothing is doubled or moved."""
    w = World({"ready_after": "1h"})
    w.nodes(2, cpu=2)
    rm = w.rm("k8s")
    rm.register()
    w.cycle()
    asks = [{"job": "app", "ask": "x", "count": 3, "min": 1, "resources": {"cpu": 1}}]

    def replay() -> None:
        for name, count in (("runs", 3), ("waits", 2), ("behind", 2)):
            w.submit(name=name, key=name, stages=stage(count))
        rm.update(
            nodes=[{"name": "m0", "resources": {"cpu": 2}}],
            jobs=[{"job": "app", "user": "ann", "queue": "root.default"}],
            recover=[
                {"job": "app", "ask": "x", "node": "m0", "index": index, "min": 1, "resources": {"cpu": 1}}
                for index in sorted(index for _, index in known)
            ],
            asks=asks,
        )

    known: dict[tuple[str, int], str] = {}
    replay()
    w.advance(0)
    known = w.placements("app")
    assert len(known) == 2
    before, lanes = w.dump(), w.lanes()
    assert [ask.job for lane in lanes.values() for ask in lane if ask.job != "app"] == ["waits", "behind"]
    w.effects()
    for _ in range(2):
        w.restart(ready=ready)
        for _ in range(2):
            w.nodes(2, cpu=2)
            rm.register()
            replay()
            w.report("runs", "w", 0, 1, "running")
            w.advance(0)  # not later: a manager's last registration has its time
        assert w.partition().readiness.ready
        assert (w.dump(), w.lanes()) == (before, lanes)
    assert all(isinstance(answer, Accepted) for answer in w.answers())
    assert launches(w) == []


# -- submitter's retries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        lambda w: None,
        lambda w: w.restart(),
        lambda w: w.break_journal("failed"),
        lambda w: w.break_journal("unknown"),
        lambda w: w.break_journal("unknown", written=True),
    ],
    ids=["none", "restart", "failed", "unknown, not written", "unknown, written"],
)
def test_submitters_retries_are_one_job_under_one_place(trouble: Callable[[World], None]) -> None:
    w = world(nodes=1, cpu=1)
    submission = Submit(spec=parse_job({"name": "job", "user": "ann", "stages": stage(1)}), user="ann", key="k")
    w.answers()
    trouble(w)
    w._send("default", submission)
    w.advance(1)
    other = w.submit(name="other", stages=stage(1))
    for _ in range(3):  # no answer came, so the submitter asks again
        w._send("default", submission)
        w.advance(1)
    first, *again = [answer for answer in w.answers() if not (isinstance(answer, Accepted) and answer.job == other)]
    assert len(set(again)) == 1 and isinstance(again[0], Accepted)
    assert first == again[0] or (isinstance(first, Rejected) and first.code == "unavailable")
    jobs = [job for job in w.partition().jobs.values() if job.spec.name == "job"]
    assert [job.id for job in jobs] == [again[0].job]
    started = [one.job for _, one in launches(w)]
    assert len(started) == len(set(started))


# -- launch timeout ----------------------------------------------------------------------------------------------


def test_launch_timeout_takes_a_gang_back_of_which_one_node_says_nothing() -> None:
    w = world(nodes=3, cpu=1, launch_timeout="10s")
    w.silence("n1")  # its lease is longer: it is not lost yet
    gang = w.submit(stages=stage(2))
    w.advance(9)
    assert [w.task(gang, "w", index).state for index in (0, 1)] == ["running", "assigned"]
    w.advance(2)
    assert w.placements(gang) == {("w", 0): "n0", ("w", 1): "n2"}
    assert [w.task(gang, "w", index).attempt for index in (0, 1)] == [2, 2]
    assert w.job(gang).state == "running"


# -- partial failure ---------------------------------------------------------------------------------------------


def test_partial_failure_returns_what_failed_and_the_gang_it_belongs_to() -> None:
    w = world(nodes=4, cpu=2)
    w.refuse_launches("n3")
    array = w.submit(name="array", stages=stage(4, min=1))
    gang = w.submit(name="gang", stages=stage(2))
    last = w.submit(name="last", stages=stage(2, min=1))
    w.cycle()
    assert set(w.placements(last).values()) == {"n3"}
    w.advance(0)
    assert [len(w.placements(job)) for job in (array, gang, last)] == [4, 2, 0]
    assert {w.task(job, "w", index).attempt for job in (array, gang) for index in (0, 1)} == {1}
    assert [w.task(last, "w", index).state for index in (0, 1)] == ["pending", "pending"]
