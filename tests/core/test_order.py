"""Order `priority`: replacements that a started gang needs to reach `min`, then priority, kind and time of asking."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.changes import Ended, Part, Placed, StageScaled
from fairlead.core.dump import dump, load
from fairlead.core.invariants import check_all
from fairlead.core.model import KINDS, REPLACE
from fairlead.core.plan import Plan
from fairlead.core.state import Partition
from fairlead.testing import World


def stage(count: int = 1, **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "w", "count": count, "resources": {"cpu": 1}, "on_loss": "replace", **rest}]


def places(partition: Partition) -> list[tuple[str, str, int]]:
    (lane,) = partition.lanes.values()
    return [(ask.stage.job.id, KINDS[ask.kind], ask.count) for ask in lane]


def order(w: World) -> list[tuple[str, str, int]]:
    """The lane in its order, which a fresh copy has too."""
    found = places(w.partition())
    assert places(load(w.dump())) == found
    return found


def waiting(lost: int, count: int = 6, least: int | None = 4, priority: int = 0) -> World:
    """A gang lost some of its tasks, and a job of a higher priority waits behind it; there is no room."""
    w = World()
    w.nodes(count, cpu=1)
    w.submit(
        name="gang", preemptible=False, priority=priority, stages=stage(count, **({"min": least} if least else {}))
    )
    w.advance(0)
    w.submit(name="high", priority=9, stages=stage(2, min=1))
    for at in range(lost):
        w.fail_node(f"n{at}")
    w.advance(1)
    return w


@pytest.mark.parametrize(
    ("lost", "least", "first"), [(2, 4, "high"), (3, 4, "gang"), (1, None, "gang"), (6, 1, "gang"), (5, 1, "high")]
)
def test_what_a_gang_needs_comes_before_priority_and_what_it_can_do_without_after(
    lost: int, least: int | None, first: str
) -> None:
    w = waiting(lost, least=least)
    kinds = {"gang": ("gang", "replace", lost), "high": ("high", "new", 2)}
    assert order(w) == [kinds.pop(first), *kinds.values()]


def test_tasks_that_a_gang_needs_come_first_and_the_rest_later() -> None:
    w = waiting(5)  # one of six runs, four have to
    seen = []
    for at in range(7):
        w.node(f"more{at}", cpu=1)
        w.cycle()
        (gang, high) = (len(w.placements(job)) for job in ("gang", "high"))
        seen.append((gang, high))
    assert seen == [(2, 0), (3, 0), (4, 0), (4, 1), (4, 2), (5, 2), (6, 2)]


def test_tasks_that_a_gang_needs_come_first_also_when_there_is_room_for_more() -> None:
    w = waiting(5)
    w.node("large", cpu=4)
    w.cycle()
    assert (len(w.placements("gang")), len(w.placements("high"))) == (4, 1)


def test_among_those_that_are_needed_priority_decides() -> None:
    w = World()
    w.nodes(4, cpu=1)
    for name, priority in (("low", 1), ("middle", 2)):
        w.submit(name=name, priority=priority, preemptible=False, stages=stage(2))
    w.advance(0)
    w.submit(name="high", priority=3, stages=stage())
    for at in (1, 2):
        w.fail_node(f"n{at}")
    w.advance(1)
    assert [job for job, _, _ in order(w)] == ["middle", "low", "high"]


def test_a_priority_that_is_set_moves_what_waits() -> None:
    w = waiting(2)
    w.set_priority("gang", 10)
    w.cycle()
    assert [job for job, _, _ in order(w)] == ["gang", "high"]
    w.set_priority("gang", 8)
    w.cycle()
    assert [job for job, _, _ in order(w)] == ["high", "gang"]


def test_a_stage_that_is_scaled_down_needs_fewer() -> None:
    """Two of five are lost and four have to run. Of two, none is missing while three still stop; then both are."""
    w = waiting(2, count=5, least=4)
    assert order(w) == [("gang", "replace", 2), ("high", "new", 2)]
    w.scale("gang", "w", 2)
    w.cycle()
    assert order(w) == [("high", "new", 2), ("gang", "replace", 2)]
    w.advance(0)
    assert (len(w.placements("gang")), len(w.placements("high"))) == (2, 1)


def test_growth_is_not_missing() -> None:
    """A strict gang of three grows to five. The growth is not a loss, so nothing is needed to reach `min`."""
    w = World()
    w.nodes(3, cpu=1)
    w.submit(name="gang", preemptible=False, stages=stage(3))
    w.advance(0)
    w.submit(name="high", priority=9, stages=stage())
    w.scale("gang", "w", 5)
    w.cycle()
    assert order(w) == [("high", "new", 1), ("gang", "scale", 2)]
    w.fail_node("n0")
    w.cycle()
    assert order(w) == [("gang", "replace", 1), ("high", "new", 1), ("gang", "scale", 2)]


def test_a_lane_finds_its_order_again_when_changes_are_taken_back() -> None:
    w = waiting(3)  # three of six run, four have to
    partition = w.partition()
    gang = partition.jobs["gang"].stages[0]
    before = (order(w), dump(partition))
    plan = Plan(partition, w.now)

    def agree() -> list[tuple[str, str, int]]:
        check_all(partition)
        return places(partition)

    alive = sorted(partition.allocations)
    # One more ends: two are missing. Then the stage needs fewer: none is.
    plan.do(Ended(alive[0], partition.allocations[alive[0]].indices, "lost", again=REPLACE))
    assert agree()[0][0] == "gang" and gang.missing() == 2
    plan.do(StageScaled("gang", 0, 2))
    assert gang.missing() == 0
    agree()
    plan.rollback(1)
    assert agree()[0][0] == "gang" and gang.missing() == 2
    plan.abandon()
    assert (agree(), dump(partition)) == before


def test_placing_and_taking_back_moves_an_ask_there_and_back() -> None:
    w = waiting(3)
    partition = w.partition()
    gang = partition.jobs["gang"].stages[0]
    before = (order(w), dump(partition))
    free = next(node_id for node_id, row in partition.nodes.rows.items() if partition.nodes.state[row] == "up")
    plan = Plan(partition, w.now)
    for _ in range(3):
        mark = plan.mark()
        index = gang.wanted(REPLACE).first(1)
        attempt = gang.next_attempt(index)
        plan.do(Placed("gang", 0, REPLACE, attempt, partition.counters.allocation, (Part(free, index),)))
        assert [job for job, _, _ in places(partition)] == ["high", "gang"] and not gang.below_min
        plan.rollback(mark)
        assert [job for job, _, _ in places(partition)] == ["gang", "high"] and gang.below_min
    plan.abandon()
    assert (order(w), dump(partition)) == before


def test_a_flood_goes_on_behind_replacements_that_are_not_needed() -> None:
    """Batches take many small jobs; an ask that moves back among them is served after them, and once."""
    w = World()
    w.nodes(3, cpu=4)
    w.submit(name="gang", preemptible=False, stages=stage(8, min=7))
    w.advance(0)
    for _ in range(4):
        w.submit(name="filler", preemptible=False, stages=stage())
    w.advance(0)
    gone = next(iter(set(w.placements("gang").values())))
    lost = sum(node == gone for node in w.placements("gang").values())
    high = [w.submit(name="high", priority=9, stages=stage()) for _ in range(20)]
    low = [w.submit(name="low", priority=-9, stages=stage()) for _ in range(20)]
    w.fail_node(gone)
    w.advance(1)
    assert lost == 4
    w.node("large", cpu=23)
    w.cycle()
    assert len(w.placements("gang")) == 7 and sum(len(w.placements(job)) for job in high) == 20
    w.node("small", cpu=4)
    w.cycle()
    assert len(w.placements("gang")) == 8 and sum(len(w.placements(job)) for job in low) == 3


@pytest.mark.parametrize("how", ["fifo", "jobs"])
def test_other_orders_go_by_kind_first(how: str) -> None:
    w = World({"queues": {"root": {"q": {"order": how}}}})
    w.nodes(3, cpu=1)
    w.submit(name="gang", queue="root.q", preemptible=False, stages=stage(3, min=1))
    w.advance(0)
    w.submit(name="high", queue="root.q", priority=9, stages=stage())
    w.fail_node("n0")
    w.advance(1)
    assert order(w) == [("gang", "replace", 1), ("high", "new", 1)]


def test_a_stage_that_lost_its_last_worker_is_below_min_while_it_grows() -> None:
    """`min` is 1, and three tasks are to be added. The lost one comes first, before an older ask of that priority."""
    w = World({"replace_within": "1min"})
    w.node("n0", cpu=1)
    w.submit(name="grows", stages=[{"name": "w", "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="older", stages=[{"name": "w", "resources": {"cpu": 1}}])
    w.cycle()
    w.scale("grows", "w", 4)
    w.advance(1)
    w.fail_node("n0")
    w.advance(1)
    assert w.partition().jobs["grows"].stages[0].missing() == 1
    w.node("n1", cpu=1)
    w.advance(1)
    assert w.placements("grows") == {("w", 0): "n1"} and not w.placements("older")
