"""Preemption: which tasks are stopped for which ask, that they are few, and what becomes of them and their room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from fairlead.core.expiry import due
from fairlead.core.holds.earmarks import is_stuck
from fairlead.core.why.reasons import NoCapacity, OverLimit, ShareSpent
from fairlead.testing import World

TREE: dict[str, Any] = {"root": {"a": {}, "b": {}}}


def stage(count: int = 1, cpu: float = 1, name: str = "w", **rest: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "resources": {"cpu": cpu}, **rest}


def stopping(w: World, job: str) -> list[int]:
    live = w._job(job).stages[0].live or {}
    return sorted(index for index, each in live.items() if each.state == "stopping")


# -- within a queue ----------------------------------------------------------------------------------------------


def test_a_higher_priority_takes_the_place_of_a_lower_one() -> None:
    w = World()
    w.nodes(2, cpu=1)
    low = [w.submit(name=f"low{at}", stages=[stage(tries=3)]) for at in range(2)]
    w.advance(1)
    w.submit(name="high", stages=[stage()], priority=1)
    w.cycle()
    assert stopping(w, low[1]) == [0] and not stopping(w, low[0])  # the newest
    assert w.promises() == {("high", "w", "new"): [("n1", 1)]}
    assert w.task("low1", "w", 0).note == "stops for job high"
    reason = w.explain("high")[0].reason
    assert isinstance(reason, NoCapacity) and reason.coming == 1
    assert list(map(str, w.explain("high")[0].comes)) == ["1 task stops for it on n1"]
    # No other ask gets the room, not even the head of the lane.
    w.submit(name="other", stages=[stage()], priority=1)
    w.advance(0)
    assert w.placements("high") == {("w", 0): "n1"}
    assert not w.promises()
    assert w.job("low1").state == "pending"
    victim = w.task("low1", "w", 0)
    assert (victim.state, victim.tries_used, victim.reason) == ("pending", 0, "preempted for job high")


def test_equal_priority_stops_no_task() -> None:
    w = World()
    w.node("n0", cpu=1)
    w.submit(name="low", stages=[stage()])
    w.advance(0)
    w.submit(name="same", stages=[stage()])
    w.advance(5)
    assert w.job("low").state == "running" and not w.promises()


def test_another_queue_is_not_touched_for_a_priority() -> None:
    w = World(config={"queues": TREE})
    w.node("n0", cpu=1)
    w.submit(name="low", queue="root.a", stages=[stage()])
    w.advance(0)
    w.submit(name="high", queue="root.b", stages=[stage()], priority=9)
    w.advance(5)
    assert w.job("low").state == "running"


def test_no_task_is_stopped_for_a_gang_that_still_could_not_start() -> None:
    w = World()
    w.nodes(2, cpu=1)
    w.submit(name="low", stages=[stage()])
    w.submit(name="high", stages=[stage()], priority=2)
    w.advance(0)
    w.submit(name="gang", stages=[stage(2)], priority=1)  # it would need the place of the higher one, too
    w.advance(5)
    assert w.job("low").state == "running" and not w.promises()


def test_tasks_beyond_the_minimum_go_first() -> None:
    w = World()
    w.nodes(5, cpu=1)
    w.submit(name="array", stages=[stage(3, min=1)])
    w.submit(name="gang", stages=[stage(2)])
    w.advance(1)
    w.submit(name="two", stages=[stage(2)], priority=2)
    w.cycle()
    assert stopping(w, "array") == [1, 2] and not stopping(w, "gang")
    w.advance(0)
    assert len(w.placements("two")) == 2 and len(w.placements("array")) == 1
    assert [(each.kind, each.count) for (each,) in w.lanes().values()] == [("new", 2)]


def test_a_gang_goes_whole() -> None:
    """One CPU would do, but a gang does not run in part."""
    w = World()
    w.nodes(3, cpu=1)
    w.submit(name="gang", stages=[stage(3)])
    w.advance(1)
    w.submit(name="one", stages=[stage()], priority=2)
    w.cycle()
    assert stopping(w, "gang") == [0, 1, 2]
    w.advance(0)
    assert w.placements("one") and not w.placements("gang")
    assert [(each.job, each.kind, each.count) for (each,) in w.lanes().values()] == [("gang", "new", 3)]
    w.finish("one")
    w.advance(0)
    assert len(w.placements("gang")) == 3


def test_the_fewest_that_let_it_start() -> None:
    """One large victim instead of the two small and newer ones that are not enough by themselves."""
    w = World()
    w.node("n0", cpu=4)
    w.node("n1", cpu=2)
    w.submit(name="large", stages=[stage(cpu=4)])
    w.advance(0)
    small = [w.submit(name=f"small{at}", stages=[stage()]) for at in range(2)]
    w.advance(1)
    w.submit(name="high", stages=[stage(cpu=3)], priority=1)
    w.cycle()
    assert stopping(w, "large") == [0] and not any(stopping(w, job) for job in small)


def test_a_whole_job_is_taken_back_whole() -> None:
    w = World()
    w.nodes(3, cpu=1)
    w.submit(name="pair", gang="job", stages=[stage(name="a"), stage(name="b")])
    w.submit(name="low", stages=[stage()], priority=1)
    w.advance(1)
    w.submit(name="high", stages=[stage(2)], priority=2)
    w.cycle()
    w.advance(0)
    assert len(w.placements("high")) == 2
    assert not w.placements("pair") and w.job("low").state == "running"
    w.finish("high")
    w.advance(0)
    assert len(w.placements("pair")) == 2


@pytest.mark.parametrize("where", ["job", "queue"])
def test_a_job_that_is_not_preemptible_is_not_stopped(where: str) -> None:
    w = World(config={"queues": {"root": {"default": {"preemptible": where != "queue"}}}})
    w.nodes(2, cpu=1)
    w.submit(name="keep", stages=[stage(2)], preemptible=where != "job")
    w.advance(0)
    w.submit(name="high", stages=[stage()], priority=1)
    w.advance(5)
    assert w.job("keep").state == "running" and len(w.placements("keep")) == 2


def test_room_that_is_coming_is_waited_for() -> None:
    w = World()
    w.nodes(2, cpu=1)
    for name in ("low0", "low1"):
        w.submit(name=name, stages=[stage()])
    w.advance(0)
    w.kill("low0")
    w.submit(name="high", stages=[stage()], priority=1)
    w.cycle()
    assert w.job("low1").state == "running" and not w.promises()
    w.advance(0)
    assert w.job("high").state == "running"


def test_nodes_that_take_no_work_are_of_no_use() -> None:
    w = World()
    w.nodes(2, cpu=1)
    w.submit(name="low", stages=[stage()])
    w.advance(0)
    w.drain("n0")
    w.submit(name="other", stages=[stage()], priority=1)
    w.advance(0)
    w.submit(name="high", stages=[stage()], priority=1)
    w.advance(5)
    assert w.job("low").state == w.job("other").state == "running"


# -- limits ------------------------------------------------------------------------------------------------------


def test_a_queue_at_its_limit_stops_only_its_own() -> None:
    tree = {"root": {"a": {"limit": {"cpu": 2}, "x": {}, "y": {}}, "b": {}}}
    w = World(config={"queues": tree})
    w.nodes(8, cpu=1)
    w.submit(name="b", queue="root.b", stages=[stage(2, min=1)])
    w.submit(name="x", queue="root.a.x", stages=[stage(2, min=1)])
    w.advance(1)
    w.submit(name="high", queue="root.a.x", stages=[stage()], priority=1)
    w.cycle()
    assert stopping(w, "x") == [1] and not stopping(w, "b")
    reason = w.explain("high")[0].reason
    assert isinstance(reason, OverLimit)
    # What becomes free under the limit is promised as well.
    w.submit(name="y", queue="root.a.y", stages=[stage()])
    w.advance(0)
    assert len(w.placements("high")) == 1 and w.job("y").state == "pending"


def test_a_limit_that_would_be_exceeded_anyway_stops_no_task() -> None:
    """As preempt-11."""
    w = World(config={"queues": {"root": {"default": {"limit": {"cpu": 3}}}}})
    w.node("n0", cpu=10)
    w.submit(name="low", stages=[stage(2, min=1)])
    w.advance(0)
    w.submit(name="high", stages=[stage(cpu=4)], priority=1)
    w.advance(5)
    assert len(w.placements("low")) == 2


# -- guarantees --------------------------------------------------------------------------------------------------


def test_a_guarantee_is_won_back() -> None:
    w = World(config={"queues": {"root": {"a": {"guarantee": {"cpu": 2}}, "b": {}}}})
    w.nodes(4, cpu=1)
    w.submit(name="loan", queue="root.b", stages=[stage(4, min=1)])
    w.advance(0)
    w.submit(name="own", queue="root.a", stages=[stage(3, min=1)])
    w.advance(5)
    assert len(w.placements("own")) == 2 and len(w.placements("loan")) == 2


def test_no_more_than_the_guarantee() -> None:
    w = World(config={"queues": {"root": {"a": {"guarantee": {"cpu": 2}}, "b": {}}}})
    w.nodes(4, cpu=1)
    w.submit(name="loan", queue="root.b", stages=[stage(4, min=1)])
    w.advance(0)
    w.submit(name="gang", queue="root.a", stages=[stage(3)])
    w.advance(5)
    assert len(w.placements("loan")) == 4


def test_the_victims_queue_keeps_its_guarantee() -> None:
    w = World(config={"queues": {"root": {"a": {"guarantee": {"cpu": 3}}, "b": {"guarantee": {"cpu": 2}}, "c": {}}}})
    w.nodes(5, cpu=1)
    w.submit(name="b", queue="root.b", stages=[stage(3, min=1)])
    w.submit(name="c", queue="root.c", stages=[stage(2, min=1)])
    w.advance(0)
    w.submit(name="gang", queue="root.a", stages=[stage(3)])
    w.advance(5)
    assert len(w.placements("gang")) == 3
    assert (len(w.placements("b")), len(w.placements("c"))) == (2, 0)


def test_a_higher_priority_is_spared_across_queues() -> None:
    """As preempt-04 of the other cases."""
    tree = {"root": {"p": {"limit": {"cpu": 18}, "c1": {}, "c2": {"guarantee": {"cpu": 15}}, "c3": {}}}}
    w = World(config={"queues": tree})
    w.nodes(2, cpu=30)
    for name in ("alloc1", "alloc2"):
        w.submit(name=name, queue="root.p.c1", stages=[stage(cpu=5)])
    w.submit(name="alloc4", queue="root.p.c3", stages=[stage(cpu=5)], priority=1000)
    w.advance(0)
    w.submit(name="alloc3", queue="root.p.c2", stages=[stage(cpu=10)])
    w.advance(1)
    assert w.job("alloc3").state == w.job("alloc4").state == "running"
    assert w.job("alloc1").state == w.job("alloc2").state == "pending"


def test_a_stopped_queue_claims_nothing() -> None:
    """As reclaim-06."""
    w = World(config={"queues": {"root": {"a": {"guarantee": {"cpu": 1}}, "b": {}}}})
    w.node("n0", cpu=1)
    w.submit(name="b", queue="root.b", stages=[stage()])
    w.advance(0)
    w.submit(name="a", queue="root.a", stages=[stage()])
    w.stop_queue("root.a")
    w.advance(5)
    assert w.job("b").state == "running"


# -- promises ----------------------------------------------------------------------------------------------------


def claimed(**settings: Any) -> World:
    w = World(config=settings)
    w.nodes(2, cpu=1)
    w.submit(name="low", stages=[stage(2)])
    w.advance(1)
    for node in ("n0", "n1"):
        w.hold_acks(node)
    w.silence("n0")
    w.submit(name="high", stages=[stage(2)], priority=1)
    w.cycle()
    assert len(w.promises()) == 1
    return w


def test_a_promise_survives_a_restart() -> None:
    w = claimed()
    before = w.promises(), w.dump()
    w.restart()
    assert (w.promises(), w.dump()) == before


def test_a_promise_waits_for_the_turn_of_its_claimant() -> None:
    """The cycle in which its victim ends places as much as it may before the claimant has its turn."""
    w = World({"max_placed": 2, "queues": {"root": {"a": {}, "b": {}}}})
    w.node("n0", cpu=1)
    w.submit(name="low", queue="root.b", stages=[stage()])
    w.advance(1)
    w.submit(name="high", queue="root.b", priority=1, stages=[stage()])
    w.cycle()
    before = w.promises()
    assert before
    w.nodes(2, prefix="m", cpu=0.5)
    w.submit(name="others", queue="root.a", stages=[stage(2, cpu=0.5)])
    w.cycle()
    assert len(w.placements("others")) == 2 and not w.placements("high") and w.promises() == before
    w.advance(0)
    assert w.placements("high")


def test_a_promise_ends_with_its_claimant() -> None:
    w = claimed()
    w.kill("high")
    w.cycle()
    assert not w.promises()


def test_a_promise_that_takes_too_long_ends_and_there_is_none_for_a_while() -> None:
    w = claimed(lease="1h", promise_for="10s", preempt_grace="10s")
    w.advance(19)
    assert w.promises()
    w.advance(1)
    assert not w.promises()


def test_when_a_node_of_a_claim_goes_the_others_stay_promised() -> None:
    """One of two nodes on which tasks stop is lost. What stops on the other one is still for the claimant, and another
    task is stopped for the rest."""
    w = World(config={"preempt_grace": "10s", "lease": "1h"})
    w.nodes(3, cpu=1)
    w.submit(name="low", stages=[stage(3, min=1)])
    w.advance(1)
    for node in ("n0", "n1", "n2"):
        w.silence(node)
    w.submit(name="high", stages=[stage(2)], priority=1)
    w.cycle()
    ((key, before),) = w.promises().items()
    first, second = [name for name, _ in before]
    w.fail_node(first)
    w.submit(name="other", stages=[stage(cpu=0.5)])
    w.cycle()
    assert w.promises()[key] == [(second, 1)]
    w.return_node(second)
    w.advance(1)
    assert not w.placements("other")
    (rest,) = {"n0", "n1", "n2"} - {first, second}
    assert {name for name, _ in w.promises()[key]} == {second, rest}
    w.return_node(rest)
    w.advance(1)
    assert len(w.placements("high")) == 2


# -- stops that do not end ---------------------------------------------------------------------------------------


def hanging(**settings: Any) -> World:
    """Two tasks of low priority, of which the newer one ignores that it has to stop for `high`."""
    w = World(config={"preempt_grace": "10s", **settings})
    w.nodes(2, cpu=1)
    for name in ("low", "hangs"):
        w.submit(name=name, stages=[stage()])
        w.advance(1)
    w.ignore_stops("hangs")
    w.submit(name="high", stages=[stage()], priority=1)
    w.cycle()
    assert w.promises() == {("high", "w", "new"): [("n1", 1)]}
    return w


def test_another_victim_is_chosen_when_one_does_not_stop() -> None:
    w = hanging()
    w.advance(39)
    assert not w.placements("high") and not stopping(w, "low")
    w.advance(1)
    assert w.placements("high") == {("w", 0): "n0"}
    w.submit(name="next", stages=[stage()], priority=2)
    w.cycle()
    reason = w.explain("next")[0].reason
    assert isinstance(reason, NoCapacity) and [each.job for each in reason.stuck] == ["hangs"]
    assert str(reason).endswith("; 1 task of job hangs, stage w on n1, told to stop at 2 s, did not stop")
    w.advance(1)
    assert w.placements("next") == {("w", 0): "n0"}


def test_a_promise_does_not_count_on_what_is_overdue_when_it_is_made() -> None:
    w = World()
    w.node("n0", cpu=2)
    for name in ("hangs", "low"):
        w.submit(name=name, stages=[stage()])
        w.ignore_stops(name)
    w.advance(0)
    w.kill("hangs")
    w.cycle()
    w.submit(name="high", priority=1, stages=[stage()])
    w.advance(60)
    (promise,) = w.partition().promises.values()
    assert [each.stage.job.id for each in w.partition().derived.overdue.values()] == ["hangs"]
    assert promise.since == w.now and not is_stuck(w.partition(), promise)


def test_a_stop_is_not_overdue_while_its_agent_is_silent() -> None:
    w = hanging(ready_after="1h")
    w.advance(20)
    w.now += 600 * 1_000_000
    w.restart(ready=False)
    w.cycle()
    assert not w.partition().derived.overdue and not stopping(w, "low")
    w.mark_ready()
    w.advance(39)
    assert not w.partition().derived.overdue
    w.advance(2)
    assert len(w.partition().derived.overdue) == 1
    w.advance(200)
    assert w.placements("high")


def test_an_overdue_stop_is_known_after_a_restart_and_ends_when_it_is_confirmed() -> None:
    w = hanging()
    w.advance(41)
    w.restart()
    partition = w.partition()
    assert [each.stage.job.id for each in partition.derived.overdue.values()] == ["hangs"]
    w.report("hangs", "w", 0, 1, "stopped", "n1")
    w.advance(0)
    assert not w.partition().derived.overdue and w.placements("low") == {("w", 0): "n1"}


def test_a_stop_that_hangs_does_not_keep_pools_from_growing() -> None:
    pool = {"node": {"cpu": 1}, "max": 3, "provider": {"local": {}}}
    w = World(config={"preempt_grace": "10s", "preempt": "off", "pools": {"p": pool}})
    w.node("n0", cpu=1)
    w.submit(name="hangs", stages=[stage()])
    w.advance(1)
    w.ignore_stops("hangs")
    w.kill("hangs")
    w.submit(name="next", stages=[stage()])
    w.advance(10)
    assert not w.partition().orders
    w.advance(60)
    assert w.partition().orders


def test_holders_are_not_disturbed() -> None:
    w = World(config={"starving_after": "10s", "queues": TREE})
    w.nodes(2, cpu=1)
    w.submit(name="low", queue="root.a", stages=[stage(2, min=1)])
    w.advance(0)
    w.submit(name="starving", queue="root.b", stages=[stage()])
    w.advance(11)
    assert list(w.holds()) == ["n0"]
    w.submit(name="high", queue="root.a", stages=[stage(2)], priority=1)
    w.advance(1)
    assert len(w.placements("low")) == 2  # one node is not enough, and the other is held


@pytest.mark.parametrize("gang", ["stage", "job"])
def test_no_task_is_stopped_for_an_ask_beyond_its_share(gang: str) -> None:
    """Lower priorities of its queue may be on loan; a job that is not preemptible gets no loan."""
    w = World(config={"queues": {"root": {"a": {"share": 50, "limit": {"cpu": 3}}, "b": {"share": 50}}}})
    w.node("n", cpu=4)
    w.submit(name="low", queue="root.a", stages=[stage(3, min=1)])
    w.advance(0)
    stages = [stage(), stage(name="v")]
    w.submit(name="firm", queue="root.a", stages=stages, gang=gang, priority=1, preemptible=False)
    w.advance(0)
    assert len(w.placements("low")) == 3 and not stopping(w, "low")
    assert isinstance(w.explain("firm")[0].reason, ShareSpent)


def test_what_stops_already_makes_room_under_a_limit() -> None:
    w = World(config={"queues": {"root": {"a": {"limit": {"cpu": 2}}}}, "lease": "1h"})
    w.node("n", cpu=4)
    for name in ("one", "two"):
        w.submit(name=name, queue="root.a", stages=[stage()])
    w.advance(0)
    w.silence("n")
    w.kill("one")
    w.submit(name="high", queue="root.a", stages=[stage()], priority=1)
    w.advance(1)
    assert isinstance(w.explain("high")[0].reason, OverLimit)
    assert stopping(w, "one") == [0] and not stopping(w, "two")


def test_no_other_job_takes_the_place_of_a_claimant_under_max_jobs() -> None:
    w = World(config={"queues": {"root": {"a": {"max_jobs": 2}}}, "lease": "1h"})
    w.node("n", cpu=1, labels={"kind": "n"})
    w.submit(name="low", queue="root.a", stages=[stage(selectors={"kind": "n"})])
    w.advance(1)
    w.silence("n")
    w.submit(name="high", queue="root.a", stages=[stage(selectors={"kind": "n"})], priority=1)
    w.cycle()
    assert w.promises() == {("high", "w", "new"): [("n", 1)]}
    w.node("m", cpu=1)
    w.submit(name="other", queue="root.a", stages=[stage()])
    w.advance(1)
    assert w.promises() and not w.placements("other")
    w.report("low", "w", 0, 1, "stopped")
    w.return_node("n")
    w.advance(1)
    assert w.placements("high") == {("w", 0): "n"}


# -- what a stopped task waits for -------------------------------------------------------------------------------


def test_a_stopped_gang_begins_a_new_wait_at_its_old_place() -> None:
    """Time spent running is not waiting time: a gang that ran for days does not starve, and stays before newer jobs."""
    w = World({"starving_after": "1h"})
    w.nodes(2, cpu=1)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(3 * 24 * 3600)
    w.submit(name="younger", stages=[stage(2)])
    w.submit(name="high", priority=1, stages=[stage(2)])
    w.advance(1)
    stopped = w.job("gang").waiting_since
    assert stopped is not None and stopped >= 3 * 24 * 3600
    assert [[ask.job for ask in lane] for lane in w.lanes().values()] == [["gang", "younger"]]
    w.advance(10)
    assert not w.holds()
    w.restart()
    w.finish("high")
    w.advance(0)
    assert len(w.placements("gang")) == 2 and not w.placements("younger")


def test_a_gang_that_is_stopped_while_more_of_it_waits_begins_a_new_wait() -> None:
    """The tasks beyond `min` have waited since the start; the gang has not."""
    w = World({"starving_after": "1h"})
    w.nodes(2, cpu=1)
    w.submit(name="gang", stages=[stage(4, min=2)])
    w.advance(2 * 3600)
    w.submit(name="high", priority=1, stages=[stage(2)])
    w.advance(1)
    (lane,) = w.lanes().values()
    assert [(ask.job, ask.asked, ask.waiting_since) for ask in lane] == [("gang", 0, 2 * 3600)]
    assert not w.holds()


def test_a_launch_that_fails_after_a_stop_does_not_bring_the_old_age_back() -> None:
    w = World({"starving_after": "1h", "launch_timeout": "10s"})
    w.node("n0", cpu=1)
    w.submit(name="low", stages=[stage()])
    w.advance(2 * 3600)
    w.submit(name="high", priority=1, stages=[stage(duration=10)])
    w.advance(5)
    w.hold_acks("n0")
    w.advance(15.5)
    assert w.task("low", "w", 0).state == "pending"
    assert w.job("low").waiting_since == 2 * 3600 and not w.holds()


def test_a_stopped_task_keeps_the_place_that_it_was_asked_for_at() -> None:
    """That is when the job before it had ended, and not when it was submitted."""
    w = World()
    w.node("n0", cpu=1)
    w.submit(name="before", stages=[stage(duration=100)])
    w.submit(name="after", after=["before"], stages=[stage()])
    w.advance(150)
    assert w.placements("after")
    w.submit(name="high", stages=[stage()], priority=5)
    w.advance(1)
    (lane,) = w.lanes().values()
    assert [(ask.job, ask.asked, ask.waiting_since) for ask in lane] == [("after", 100, 150)]


# -- which sets of tasks -----------------------------------------------------------------------------------------


def filled(*nodes: tuple[str, list[tuple[str, float, int]]], **settings: Any) -> World:
    """Nodes of 4 CPUs with tasks of a name, a size and a priority each, from the oldest to the newest."""
    w = World(config=settings)
    for node, tasks in nodes:
        w.node(node, cpu=4, labels={"node": node})
        for name, cpu, priority in tasks:
            queue = {"queue": f"root.{name.split('-')[0]}"} if "queues" in settings else {}
            w.submit(name=name, priority=priority, stages=[stage(cpu=cpu, selectors={"node": node})], **queue)
            w.advance(1)
    return w


def all_stopping(w: World) -> list[str]:
    return sorted(
        allocation.stage.job.id for allocation in w.partition().allocations.values() if allocation.state == "stopping"
    )


@pytest.mark.parametrize("turned", [False, True])
def test_one_task_is_stopped_rather_than_four(turned: bool) -> None:
    large = ("n0", [("large", 4, 0)])
    small = ("n1", [(f"small{at}", 1, 0) for at in range(4)])
    w = filled(*((small, large) if turned else (large, small)))
    w.submit(name="high", priority=1, stages=[stage(cpu=4)])
    w.cycle()
    assert all_stopping(w) == ["large"]


def test_a_lower_priority_goes_before_fewer_tasks() -> None:
    w = filled(("n0", [("large", 4, 1)]), ("n1", [(f"small{at}", 1, 0) for at in range(4)]))
    w.submit(name="high", priority=2, stages=[stage(cpu=4)])
    w.cycle()
    assert all_stopping(w) == ["small0", "small1", "small2", "small3"]


def test_of_sets_of_one_size_the_newest_goes() -> None:
    w = filled(("n0", [("old", 4, 0)]), ("n1", [("new", 4, 0)]))
    w.submit(name="high", priority=1, stages=[stage(cpu=4)])
    w.cycle()
    assert all_stopping(w) == ["new"]


@pytest.mark.parametrize(("least", "tasks", "stopped"), [(2, 2, ["one", "two"]), (1, 1, ["two"])])
def test_jobs_of_one_task_are_no_gangs_that_break(least: int, tasks: int, stopped: list[str]) -> None:
    """Of sets of one size the newest tasks go, before a gang of two, and before an older array's task beyond `min`."""
    w = World()
    w.nodes(4, cpu=1)
    w.submit(name="older", stages=[stage(2, min=least)])
    for name in ("one", "two"):
        w.advance(1)
        w.submit(name=name, stages=[stage()])
    w.advance(1)
    w.submit(name="high", priority=1, stages=[stage(tasks)])
    w.cycle()
    assert all_stopping(w) == stopped


def on_one_each(nodes: int, **settings: Any) -> World:
    w = World({"preempt_grace": "5s", **settings})
    for at in range(nodes):
        w.node(f"n{at}", cpu=1, labels={"n": str(at)})
    return w


@pytest.mark.parametrize("node", range(4))
@pytest.mark.parametrize("least", [1, 2, 3])
def test_any_task_of_a_stage_above_its_minimum_stops_alone(node: int, least: int) -> None:
    w = on_one_each(4)
    w.submit(name="elastic", stages=[stage(4, min=least)])
    w.advance(1)
    w.submit(name="high", priority=1, stages=[stage(selectors={"n": str(node)})])
    w.cycle()
    assert stopping(w, "elastic") == [node]


@pytest.mark.parametrize("many", [4, 100])
def test_both_tasks_of_the_newer_array_stop(many: int) -> None:
    """Also the last task of an array can stop alone: it is no gang that breaks."""
    w = on_one_each(many)
    w.submit(name="old", stages=[{"name": "w", "array": many - 2, "resources": {"cpu": 1}}])
    w.advance(1)
    w.submit(name="new", stages=[{"name": "w", "array": 2, "resources": {"cpu": 1}}])
    w.advance(1)
    w.submit(name="high", priority=1, stages=[stage(2)])
    w.cycle()
    assert all_stopping(w) == ["new", "new"]
    w.advance(0)
    assert len(w.placements("high")) == 2 and w.job("new").state == "pending"


@pytest.mark.parametrize("others", [0, 20])
def test_a_stage_loses_no_more_tasks_than_it_can_spare(others: int) -> None:
    """For a third task it would stop whole, which is more than two tasks of it and an older job. Also among many."""
    w = on_one_each(others + 6)
    for at in range(others):
        w.submit(name=f"other{at}", stages=[stage(selectors={"n": str(at)})], priority=1)
    w.submit(name="older", stages=[stage()])
    w.advance(1)
    w.submit(name="elastic", stages=[stage(5, min=3)])
    w.advance(1)
    w.submit(name="high", priority=2, stages=[stage(3)])
    w.cycle()
    assert all_stopping(w) == ["elastic", "elastic", "older"] and stopping(w, "elastic") == [3, 4]


def test_an_elastic_gang_stops_whole_if_more_is_needed_than_it_can_spare() -> None:
    w = on_one_each(4)
    w.submit(name="elastic", stages=[stage(4, min=2)])
    w.advance(1)
    w.submit(name="high", priority=1, stages=[stage(3)])
    w.cycle()
    assert stopping(w, "elastic") == [0, 1, 2, 3]
    w.advance(0)
    assert len(w.placements("high")) == 3 and not w.placements("elastic")


@given(
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=3),
    wanted=st.integers(1, 3),
    node=st.none() | st.integers(0, 4),
)
@example(jobs=[(3, 2, 0), (2, 2, 0)], wanted=3, node=None)
def test_the_best_set_of_all(jobs: list[tuple[int, int, int]], wanted: int, node: int | None) -> None:
    """Small worlds, in which all sets of tasks can be compared."""
    w = on_one_each(5)
    free = 5
    for number, (many, least, priority) in enumerate(jobs):
        if many <= free:
            w.submit(name=f"j{number}", priority=priority, stages=[stage(many, min=min(least, many))])
            free -= many
            w.advance(1)
    jobs = jobs[: len(w.partition().jobs)]
    live = [
        (name, index, w.task(name, "w", index).node)
        for name in w.partition().jobs
        for index in range(len(w.placements(name)))
    ]
    open_nodes = {f"n{at}" for at in range(5)} - {where for _, _, where in live}
    usable = {f"n{at}" for at in range(5) if node is None or at == node}
    wanted = 1 if node is not None else wanted

    def cost(stopped: Sequence[tuple[str, int, str | None]]) -> tuple[Any, ...] | None:
        if len((open_nodes | {where for _, _, where in stopped}) & usable) < wanted:
            return None
        broken, ages = 0, []
        for name in {name for name, _, _ in stopped}:
            spec, rest = w._job(name).stages[0], [task for task in live if task[0] == name and task not in stopped]
            if 0 < len(rest) < spec.min:
                return None
            broken += not rest and spec.min > 1
            ages += [-int(name[1:])] * (spec.count - len(rest))
        highest = max((w._job(name).priority for name, _, _ in stopped), default=-1)
        return highest, len(stopped), broken, sorted(ages, reverse=True)

    choices = [choice for size in range(len(live) + 1) for choice in combinations(live, size)]
    costs = [worth for choice in choices if (worth := cost(choice)) is not None]
    selectors = {"selectors": {"n": str(node)}} if node is not None else {}
    w.submit(name="high", priority=2, stages=[stage(wanted, **selectors)])
    w.cycle()
    chosen = [task for task in live if task[1] in stopping(w, task[0])]
    assert cost(chosen) == min(costs)


@pytest.mark.parametrize("many", [2, 12])
def test_few_of_many_on_a_node(many: int) -> None:
    """Also where not all sets are compared, the large task makes way and the small ones stay."""
    small = {at: [(f"small{at}-{of}", 0.1, 0) for of in range(10)] for at in range(many)}
    nodes = [(f"n{at}", [(f"large{at}", 3, 0), *small[at]]) for at in range(many)]
    w = filled(*nodes)
    w.submit(name="high", priority=1, stages=[stage(cpu=3)])
    w.cycle()
    assert all_stopping(w) == [f"large{many - 1}"]


def test_a_gang_gets_room_for_all_of_it_by_few_tasks() -> None:
    nodes = [(f"n{at}", [(f"half{at}a", 2, 0), (f"half{at}b", 2, 0)]) for at in range(6)]
    w = filled(*nodes, ("n6", [("whole6", 4, 0)]), ("n7", [("whole7", 4, 0)]), ("n8", [("whole8", 4, 0)]))
    w.submit(name="high", priority=1, stages=[stage(3, cpu=4)])
    w.cycle()
    assert all_stopping(w) == ["whole6", "whole7", "whole8"]
    w.advance(1)
    assert len(w.placements("high")) == 3


def test_a_guarantee_is_won_back_where_that_helps() -> None:
    """The newest tasks of `a` share their nodes with larger ones: they do not count against what `a` may lose."""
    queues = {"root": {"a": {"guarantee": {"cpu": 12}}, "b": {"guarantee": {"cpu": 4}}}}
    shared = [(f"n{at}", [(f"a-middle{at}", 3, 0), (f"a-small{at}", 1, 0)]) for at in range(1, 4)]
    w = filled(("n0", [("a-large", 4, 0)]), *shared, queues=queues)
    w.submit(name="want", queue="root.b", stages=[stage(cpu=4)])
    w.cycle()
    assert all_stopping(w) == ["a-large"]


@pytest.mark.parametrize("count", [4, 12])
def test_a_limit_is_met_by_few_tasks(count: int) -> None:
    """There is room on nodes; what keeps the claimant back is the limit of its queue."""
    w = World(config={"queues": {"root": {"q": {"limit": {"cpu": count + 4}}}}})
    w.nodes(4, cpu=8)
    w.submit(name="large", queue="root.q", stages=[stage(cpu=4)])
    w.advance(1)
    for at in range(count):
        w.submit(name=f"small{at}", queue="root.q", stages=[stage()])
        w.advance(1)
    w.submit(name="high", queue="root.q", priority=1, stages=[stage(cpu=3)])
    w.cycle()
    assert all_stopping(w) == ["large"]


def test_an_ask_claims_in_its_turn() -> None:
    """Half of what `high` needs is free. A later turn must not use it, and be stopped for `high` then."""
    w = World()
    w.node("n0", cpu=2)
    w.submit(name="old", stages=[stage()])
    w.advance(1)
    w.submit(name="high", priority=1, stages=[stage(cpu=2)])
    w.submit(name="new", stages=[stage()])
    w.cycle()
    assert all_stopping(w) == ["old"] and not w.placements("new")
    w.advance(1)
    assert w.placements("high") and w.task("new", "w", 0).attempt == 0


def test_what_starts_is_not_stopped_in_the_moment_of_its_start() -> None:
    """Under `fifo` the turn of `new` comes first. The claim of `high` follows at a later time."""
    w = World({"queues": {"root": {"default": {"order": "fifo"}}}})
    w.node("n0", cpu=2)
    w.submit(name="old", stages=[stage()])
    w.advance(1)
    w.submit(name="new", stages=[stage()])
    w.submit(name="high", priority=1, stages=[stage(cpu=2)])
    w.advance(0)
    assert w.placements("new") and not all_stopping(w)
    assert due(w.partition()) == w.now + 1
    w.now += 1
    w.cycle()
    assert all_stopping(w) == ["new", "old"]


# -- what tasks may be stopped for -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preempt", "stopped"), [("priority", ["a-low", "a-lower"]), ("guarantees", ["a-low"]), ("off", [])]
)
def test_what_tasks_may_be_stopped_for(preempt: str, stopped: list[str]) -> None:
    queues = {"root": {"a": {}, "b": {"guarantee": {"cpu": 4}}}}
    w = filled(("n0", [("a-lower", 4, -1)]), ("n1", [("a-low", 4, 0)]), queues=queues, preempt=preempt)
    w.submit(name="high", queue="root.a", priority=1, stages=[stage(cpu=4, selectors={"node": "n0"})])
    w.submit(name="want", queue="root.b", stages=[stage(cpu=4, selectors={"node": "n1"})])
    w.cycle()
    assert all_stopping(w) == stopped


# -- holds and claims --------------------------------------------------------------------------------------------


def starving(**rest: Any) -> World:
    """Node n0 is held for `gang`, which waits for what runs there and on n1."""
    w = World(config={"starving_after": "10s", "held_nodes_percent": 100, **rest})
    w.nodes(2, cpu=1)
    w.submit(name="old", stages=[stage()], priority=5)
    w.submit(name="busy", stages=[stage()], priority=5)
    w.advance(0)
    w.submit(name="gang", stages=[stage(2)], priority=1)
    w.advance(11)
    assert list(w.holds()) == ["n0", "n1"]
    return w


def test_a_hold_does_not_take_the_right_to_claim() -> None:
    """The claim replaces the hold, and uses the nodes that were held."""
    w = starving()
    w.set_priority("gang", 9)
    w.cycle()
    assert all_stopping(w) == ["busy", "old"] and not w.holds()
    assert w.promises() == {("gang", "w", "new"): [("n0", 1), ("n1", 1)]}
    w.advance(1)
    assert len(w.placements("gang")) == 2


def test_a_held_node_is_closed_to_a_higher_priority() -> None:
    w = starving(hold_for="1h")
    w.finish("old")
    w.submit(name="high", stages=[stage()], priority=9)
    w.cycle()
    assert not w.placements("high") and not all_stopping(w)
    reason = w.explain("high")[0].reason
    assert isinstance(reason, NoCapacity)
    assert [(each.job, each.stage, each.nodes, each.until) for each in reason.closed] == [
        ("gang", "w", 2, 3610 * 1_000_000 + 1)
    ]
    assert "2 nodes are held for job gang, stage w (until 3610 s)" in str(reason)
    w.finish("busy")
    w.advance(1)
    assert len(w.placements("gang")) == 2


def test_work_that_started_from_a_hold_is_not_stopped_for_a_priority_for_a_while() -> None:
    w = starving(hold_for="1h")
    w.submit(name="high", stages=[stage()], priority=9)
    w.finish("old")
    w.finish("busy")
    w.advance(1)
    assert len(w.placements("gang")) == 2
    w.restart()
    w.advance(3590)
    assert len(w.placements("gang")) == 2
    w.advance(30)
    assert w.placements("high") and not w.placements("gang")


@pytest.mark.parametrize("before", [False, True])
def test_a_gang_on_ordered_nodes_yields_to_a_higher_priority_unless_it_passed_it(before: bool) -> None:
    w = World({"hold_for": "1h"})
    w.pool("p", node={"cpu": 1}, max=2)
    w.submit(name="low", stages=[stage(2)])
    w.cycle()
    w.arrive("p")
    w.cycle()
    if before:
        w.submit(name="high", priority=1, stages=[stage(2)])
        w.cycle()
    w.arrive("p")
    w.advance(1)
    assert len(w.placements("low")) == 2
    if not before:
        w.submit(name="high", priority=1, stages=[stage(2)])
    w.advance(60)
    assert bool(w.placements("high")) is not before
    w.advance(3600)
    assert w.placements("high") and w.task("low", "w", 0).attempt == 1


def test_work_that_started_from_a_hold_yields_to_a_guarantee() -> None:
    queues = {"root": {"a": {}, "b": {"guarantee": {"cpu": 1}}}}
    w = World(config={"starving_after": "10s", "queues": queues})
    w.node("n0", cpu=1)
    w.submit(name="old", queue="root.a", stages=[stage(duration=20)])
    w.submit(name="held", queue="root.a", stages=[stage()])
    w.advance(25)
    assert w.placements("held") and w.partition().allocations[2].safe_until
    w.submit(name="want", queue="root.b", stages=[stage()])
    w.advance(1)
    assert w.placements("want")


def test_a_promise_stands_until_its_turn() -> None:
    """Both victims are gone, and the cycle places one task only: the other claimant has its turn in the next one."""
    w = World({"max_placed": 1})
    w.nodes(2, cpu=1)
    w.submit(name="low", stages=[stage(2, min=1)])
    w.advance(1)
    w.submit(name="first", stages=[stage()], priority=1)
    w.submit(name="second", stages=[stage(cpu=0.9)], priority=1)
    w.cycle()
    assert len(w.promises()) == 2
    w.cycle()
    assert w.placements("first") and list(w.promises()) == [("second", "w", "new")]
    w.cycle()
    assert w.placements("second") and not w.promises()


def test_a_claim_does_not_count_on_capacity_that_an_earlier_turn_took() -> None:
    """`late` stops on n2 and leaves 4 cpus there, of which `second` takes 2 in the same cycle: `third` needs n1."""
    w = World()
    for name in ("n0", "n1", "n2"):
        w.node(name, cpu=4)
    for name, rest in (("firm", {"preemptible": False}), ("low", {}), ("late", {"priority": 3})):
        w.submit(name=name, stages=[{"name": "w", "resources": {"cpu": 2 if name == "late" else 4}}], **rest)
        w.cycle()
    w.advance(1)
    w.ignore_stops("late")
    w.kill("late")
    w.cycle()
    w.submit(name="first", priority=10, stages=[{"name": "w", "resources": {"cpu": 4}, "count": 3}])
    w.submit(name="second", priority=5, stages=[{"name": "w", "resources": {"cpu": 2}}])
    w.submit(name="third", priority=4, stages=[{"name": "w", "resources": {"cpu": 3}}])
    w.cycle()
    assert w.placements("second") == {("w", 0): "n2"}
    assert w.promises() == {("third", "w", "new"): [("n1", 1)]}


def test_a_gang_with_a_part_of_its_order_still_has_its_guarantee() -> None:
    """What arrived for `gang` is its own: it does not count as a part of the guarantee that another ask has."""
    queues = {"root": {"a": {"guarantee": {"cpu": 4}}, "b": {}}}
    w = World({"queues": queues, "promise_for": "1h", "starving_after": "1h"})
    w.node("n0", cpu=2)
    w.submit(name="lent", queue="root.b", priority=1, stages=[stage(cpu=2)])
    w.advance(1)
    w.pool("p", node={"cpu": 2}, max=2)
    w.submit(name="gang", queue="root.a", stages=[stage(2, cpu=2)])
    w.cycle()
    w.arrive("p")
    w.advance(0)
    w.set_priority("lent", 0)
    w.cycle()
    assert stopping(w, "lent") == [0]
    w.advance(1)
    assert sorted(w.placements("gang").values()) == ["n0", "p-1-0"]


def test_an_ask_behind_another_one_over_a_limit_claims_when_tasks_are_not_protected_any_more() -> None:
    """`first` can stop nothing. `second`, of another user in the same lane, can when `safe` has run for `hold_for`."""
    users = {"ann": {"limit": {"cpu": 2}}, "bob": {"limit": {"cpu": 2}}}
    settings = {"starving_after": "5s", "hold_for": "100s", "held_nodes_percent": 100}
    w = World({**settings, "queues": {"root": {"a": {"users": users}}}})
    w.node("n0", cpu=2)
    w.submit(name="firm", queue="root.a", preemptible=False, stages=[stage(cpu=2)])
    w.advance(1)
    w.submit(name="safe", queue="root.a", user="bob", stages=[stage(cpu=2)])
    w.advance(10)
    w.finish("firm")
    w.cycle()
    w.node("n1", cpu=6)
    w.submit(name="kept", queue="root.a", user="ann", preemptible=False, stages=[stage(cpu=2)])
    w.advance(1)
    w.submit(name="first", queue="root.a", user="ann", priority=2, stages=[stage(cpu=2)])
    w.submit(name="second", queue="root.a", user="bob", priority=1, stages=[stage(cpu=2)])
    w.advance(90)
    assert w.placements("safe") and not w.placements("second")
    w.advance(20)
    assert not w.placements("safe") and w.placements("second")


def test_a_claim_starts_behind_an_ask_that_the_limit_refuses_because_of_it() -> None:
    """Under `fair` the stopped job goes first again. The limit refuses it: what was stopped is claimed."""
    w = World({"queues": {"root": {"q": {"order": "fair", "limit": {"cpu": 2}}}}})
    w.nodes(2, cpu=2)
    w.submit(name="low", queue="root.q", stages=[stage(4, min=1)])
    w.advance(1)
    w.submit(name="high", queue="root.q", priority=1, stages=[stage(2)])
    w.cycle()
    assert stopping(w, "low")
    w.advance(1)
    assert len(w.placements("high")) == 2
    assert [w.task("low", "w", index).attempt for index in range(2)] == [1, 1]


@pytest.mark.parametrize("gang", ["stage", "job"])
def test_a_stopped_job_keeps_its_place_among_those_of_one_instant(gang: str) -> None:
    w = World()
    w.node("n0", cpu=2)
    for name in ("first", "second", "third"):
        w.submit(name=name, gang=gang, stages=[stage(2)])
    w.advance(0)
    assert w.placements("first")
    w.submit(name="high", stages=[stage(2, duration=5)], priority=1)
    w.advance(1)
    assert w.job("high").state == "running" and w.job("first").state == "pending"
    w.restart()
    w.advance(5)
    assert w.job("high").state == "succeeded" and w.placements("first")
