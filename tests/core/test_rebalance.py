"""Rebalance: loans are taken back when queues have been too far from their shares for too long."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.preempt import victims
from fairlead.core.resources import Vector
from fairlead.core.shape import Shape
from fairlead.testing import World

SETTINGS = {"unit": "slots", "rebalance_threshold": 20, "rebalance_after": "4min", "preempt_grace": "30s"}


def world(nodes: int = 10, shares: tuple[int, ...] = (50, 50), **settings: Any) -> World:
    w = World({**SETTINGS, **settings})
    for name, share in zip("abc", shares, strict=False):
        w.queue(f"root.{name}", share=share)
    w.nodes(nodes, cpu=1)
    return w


def array(w: World, queue: str, count: int, name: str = "", **stage: Any) -> str:
    stages = [{"name": "s", "count": count, "min": 1, "resources": {"cpu": 1}, **stage}]
    return w.submit(name=name or f"{queue}-array", queue=f"root.{queue}", stages=stages)


def running(w: World, *queues: str) -> list[int]:
    """Tasks that run, less those that stop."""
    partition = w.partition()
    stopping = [
        allocation.stage.job.queue.name
        for allocation in partition.allocations.values()
        if allocation.state == "stopping"
    ]
    return [partition.queues[f"root.{queue}"].account.tasks - stopping.count(queue) for queue in queues]


def lend_all(w: World) -> None:
    """Lend all slots to `a`, one task after the other; then `b` has work again."""
    array(w, "a", 10)
    w.advance(1)
    array(w, "b", 20)
    w.cycle()
    assert running(w, "a", "b") == [10, 0]


def test_loans_are_taken_back_after_a_while_and_no_sooner() -> None:
    w = world()
    lend_all(w)
    w.advance(240)
    assert running(w, "a", "b") == [10, 0]
    w.advance(0.1)
    w.advance(31)
    assert running(w, "a", "b") == [5, 5]
    w.advance(1_000)
    assert running(w, "a", "b") == [5, 5]  # and that is all


def test_a_threshold_of_0_turns_it_off() -> None:
    w = world(rebalance_threshold=0)
    lend_all(w)
    w.advance(10_000)
    assert running(w, "a", "b") == [10, 0]


@pytest.mark.parametrize(("threshold", "stops"), [(99, True), (100, False)])
def test_the_spread_must_be_over_the_threshold(threshold: int, stops: bool) -> None:
    """Ten of ten slots and none of them: 50 percent above and 50 below."""
    w = world(rebalance_threshold=threshold)
    lend_all(w)
    w.advance(300)
    assert (running(w, "a") == [5]) is stops


def test_a_dip_restarts_the_clock() -> None:
    w = world()
    array(w, "a", 10)
    w.advance(1)
    first = array(w, "b", 2, "first")
    w.advance(200)
    w.kill(first)  # no task waits, so the spread is 0
    w.advance(10)
    array(w, "b", 20)
    w.advance(230)
    assert running(w, "a", "b") == [10, 0]
    w.advance(11)
    assert running(w, "a", "b")[0] == 5


def test_the_newest_go_first_and_come_back_with_their_tries() -> None:
    w = world(rebalance_after="1min")
    for at in range(10):
        array(w, "a", 1, f"a{at}", tries=1)
        w.advance(1)
    array(w, "b", 3)
    w.advance(62)
    stopped = [at for at in range(10) if w.task(f"a{at}", "s", 0).state != "running"]
    assert stopped == [7, 8, 9]
    w.advance(31)
    assert [w.task(f"a{at}", "s", 0).state for at in stopped] == ["pending"] * 3
    assert [w.task(f"a{at}", "s", 0).tries_used for at in stopped] == [0] * 3
    w.kill("b-array")
    w.advance(1)
    assert [w.task(f"a{at}", "s", 0).state for at in stopped] == ["running"] * 3


def test_no_more_are_stopped_than_will_be_started() -> None:
    w = world()
    array(w, "a", 10)
    w.advance(1)
    array(w, "b", 2)
    w.advance(300)
    assert running(w, "a", "b") == [8, 2]


@pytest.mark.parametrize(
    ("bound", "each"),
    [
        ({"limit": {"cpu": 1}}, 4),
        ({"users": {"*": {"limit": {"cpu": 1}}}}, 4),
        ({"users": {"*": {"limit": {"cpu": 1}}}}, 1),
        ({"max_jobs": 1}, 1),
    ],
)
def test_no_task_is_stopped_for_asks_over_a_limit(bound: dict[str, Any], each: int) -> None:
    """Four tasks wait, and may not start beside each other: one victim is enough."""
    w = world(8)
    w.queue("root.b", share=50, **bound)
    array(w, "a", 8)
    w.advance(1)
    for at in range(4 // each):
        array(w, "b", each, f"b{at}")
    w.advance(600)
    assert running(w, "a", "b") == [7, 1]
    assert sum(w.task("a-array", "s", index).attempt for index in range(8)) == 8


def test_no_task_is_stopped_for_asks_of_other_shapes_over_a_limit() -> None:
    w = world(8)
    w.queue("root.b", share=50, users={"*": {"limit": {"cpu": 2}}})
    array(w, "a", 8)
    w.advance(1)
    array(w, "b", 2, "gang", min=2)
    array(w, "b", 2, "smaller", min=2, resources={"cpu": 0.9})
    w.advance(600)
    assert running(w, "a", "b") == [6, 2]
    assert sum(w.task("a-array", "s", index).attempt for index in range(8)) == 8


def test_no_task_is_stopped_for_tasks_behind_a_gang() -> None:
    """The gang is entitled to more than may be stopped, so the tasks behind it cannot start."""
    w = world(8)
    array(w, "b", 1, "own")
    array(w, "a", 7)
    w.advance(1)
    array(w, "b", 1, "first")
    array(w, "b", 2, "gang", min=2)
    array(w, "b", 1, "behind")
    w.queue("root.a", share=50, guarantee={"cpu": 6})
    w.advance(600)
    assert len(w.placements("first")) == 1 and not w.placements("gang") and not w.placements("behind")
    assert running(w, "a", "b") == [6, 2]
    assert sum(w.task("a-array", "s", index).attempt for index in range(7)) == 7


def test_no_queue_goes_below_its_share() -> None:
    w = world(shares=(50, 30, 20))
    array(w, "a", 7)
    array(w, "c", 3)
    w.advance(1)
    array(w, "b", 20)
    w.advance(300)
    assert running(w, "a", "b", "c") == [5, 3, 2]


@pytest.mark.parametrize(("old", "waiting", "ran"), [(6, 20, [6, 4]), (4, 1, [4, 1]), (4, 20, [4, 6])])
def test_a_gang_goes_whole(old: int, waiting: int, ran: list[int]) -> None:
    """A gang of four leaves `a` above its share; one of six is on loan in part and goes whole, too, and stays away."""
    w = world()
    stages = [{"name": "s", "count": old, "resources": {"cpu": 1}}]
    w.submit(name="old", queue="root.a", preemptible=False, stages=stages)
    w.advance(1)
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 10 - old, "resources": {"cpu": 1}}])
    w.advance(1)
    array(w, "b", waiting)
    w.advance(300)
    assert running(w, "a", "b") == ran
    w.advance(3_000)
    assert running(w, "a", "b") == ran


def test_a_gang_that_exceeds_the_share_goes_only_if_nothing_else_lets_the_owner_start() -> None:
    """Either of the two single tasks on loan is enough, though the gang is newer."""
    w = world()
    array(w, "a", 2, "singles")
    w.advance(1)
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 8, "resources": {"cpu": 1}}])
    w.advance(1)
    array(w, "b", 1)
    w.advance(300)
    assert len(w.placements("gang")) == 8 and len(w.placements("singles")) == 1 and w.placements("b-array")


def test_a_guarantee_outlasts_the_right_of_an_owner() -> None:
    """Without the gang `a` would have less than its guarantee, and would claim it at once."""
    w = world()
    w.queue("root.a", share=50, guarantee={"cpu": 6})
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 10, "resources": {"cpu": 1}}])
    w.advance(1)
    array(w, "b", 1)
    w.advance(1_000)
    assert running(w, "a", "b") == [10, 0]


def test_single_tasks_are_stopped_before_a_gang_is_broken() -> None:
    """Five tasks have to go either way: of the old array, or a newer gang of four and one more."""
    w = world()
    array(w, "a", 6, "old")
    w.advance(1)
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 4, "resources": {"cpu": 1}}])
    w.advance(1)
    array(w, "b", 20)
    w.advance(300)
    assert len(w.placements("gang")) == 4 and running(w, "a", "b") == [5, 5]


def test_a_loan_is_taken_back_where_that_helps() -> None:
    """The newest tasks on loan share their nodes with larger ones: to stop them gives `b` nothing."""
    w = World({"rebalance_threshold": 10, "rebalance_after": "1min"})
    w.queue("root.a", share=75)
    w.queue("root.b", share=25)
    for name, cpus in (("n0", [4]), ("n1", [3, 1]), ("n2", [3, 1]), ("n3", [3, 1])):
        w.node(name, cpu=4, labels={"name": name})
        for cpu in cpus:
            stages = [{"name": "s", "resources": {"cpu": cpu}, "selectors": {"name": name}}]
            w.submit(name=f"{name}-{cpu}", queue="root.a", stages=stages)
            w.advance(1)
    w.submit(name="want", queue="root.b", stages=[{"name": "s", "resources": {"cpu": 4}}])
    w.advance(120)
    assert w.placements("want") == {("s", 0): "n0"}
    assert w.usage("root.a") == {"cpu": 12}


def test_a_held_node_does_not_switch_rebalance_off() -> None:
    """The first of the lane has a node held for it; it has a right to what is on loan all the same."""
    w = world(starving_after="10s", rebalance_after="1min")
    lend_all(w)
    w.advance(30)
    assert len(w.holds()) == 1
    w.advance(120)
    assert running(w, "a", "b") == [5, 5] and not w.holds()


def test_a_gang_that_nodes_are_held_for_takes_loans_back() -> None:
    """What becomes free is promised to it, also on the nodes that were held, which the promise replaces."""
    w = world(starving_after="10s", rebalance_after="1min", held_nodes_percent=100)
    array(w, "a", 10)
    w.advance(1)
    w.submit(name="gang", queue="root.b", stages=[{"name": "s", "count": 5, "resources": {"cpu": 1}}])
    w.advance(30)
    assert len(w.holds()) == 5
    for node in range(10):
        w.silence(f"n{node}")
    w.advance(31)
    ((_, places),) = w.promises().items()
    assert not w.holds() and len(places) == 5


def test_what_has_just_been_placed_is_taken_back_a_second_later() -> None:
    """Rebalance is due in a cycle that lends once more, and only the new loan and an older one together help."""
    config = {"rebalance_threshold": 20, "rebalance_after": "1min", "min_runtime": "0s", "place": "spread"}
    w = World({**config, "recall_after": "0s"})
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    one = [{"name": "s", "resources": {"cpu": 1}}]
    for name in ("n0", "n1"):
        w.node(name, cpu=2, labels={"name": name})
    for name, node in (("keep0", "n0"), ("keep1", "n0"), ("old", "n1")):
        stages = [{**one[0], "selectors": {"name": node}}]
        w.submit(name=name, queue="root.a", preemptible=name == "old", stages=stages)
    w.advance(0)
    w.submit(name="large", queue="root.b", stages=[{"name": "s", "resources": {"cpu": 2}}])
    w.advance(60)
    w.submit(name="new", queue="root.a", stages=one)
    w.now += 1_000_000
    w.cycle()
    assert w.placements("new") and running(w, "a") == [4]
    w.advance(0)
    assert running(w, "a") == [4]
    w.now += 1_000_000
    w.cycle()
    assert running(w, "a") == [2]
    w.advance(1)
    assert w.placements("large") == {("s", 0): "n1"}


def test_a_gang_keeps_what_it_needs() -> None:
    w = world()
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 10, "min": 8, "resources": {"cpu": 1}}])
    w.advance(1)
    array(w, "b", 20)
    w.advance(300)
    assert len(w.placements("gang")) == 8 and running(w, "b") == [2]


def test_what_may_not_be_preempted_stays() -> None:
    w = world()
    stages = [{"name": "s", "count": 10, "resources": {"cpu": 1}}]
    w.submit(name="firm", queue="root.a", preemptible=False, stages=stages)  # a gang may go beyond the share at once
    w.advance(1)
    array(w, "b", 20)
    w.advance(300)
    assert running(w, "a", "b") == [10, 0]


def test_no_task_is_stopped_where_the_waiting_work_does_not_fit() -> None:
    w = World(SETTINGS | {"unit": "dominant"})
    for name in "ab":
        w.queue(f"root.{name}", share=50)
    w.nodes(4, cpu=2)
    w.node("big", cpu=8, labels={"size": "big"})
    array(w, "a", 16)
    w.advance(1)
    array(w, "b", 1, resources={"cpu": 4})
    w.advance(300)
    assert w.placements("b-array") == {("s", 0): "big"}
    assert running(w, "a") == [12]


def test_a_waiting_gang_gets_its_room_together() -> None:
    w = world()
    array(w, "a", 10)
    w.advance(1)
    w.submit(name="gang", queue="root.b", stages=[{"name": "s", "count": 5, "resources": {"cpu": 1}}])
    w.advance(300)
    assert len(w.placements("gang")) == 5 and running(w, "a") == [5]


def test_a_gang_that_would_not_start_stops_no_task() -> None:
    w = world()
    array(w, "a", 10)
    w.advance(1)
    w.submit(name="gang", queue="root.b", stages=[{"name": "s", "count": 6, "resources": {"cpu": 1}}])
    w.advance(3_000)
    assert running(w, "a", "b") == [10, 0]


def test_a_restart_does_not_restart_the_clock() -> None:
    w = world()
    lend_all(w)
    w.advance(200)
    w.restart()
    w.advance(41)
    assert running(w, "a")[0] == 5


def test_what_stops_already_is_not_counted_as_what_a_queue_keeps() -> None:
    queues = {"a": {"share": 75}, "b": {"share": 25}}
    w = World({"queues": {"root": queues}, "rebalance_threshold": 10, "rebalance_after": "5s", "lease": "1h"})
    w.node("n", cpu=2, labels={"kind": "n"})
    w.node("m", cpu=2, labels={"kind": "m"})
    for kind in ("n", "m"):
        stage = {"name": "s", "count": 2, "min": 1, "resources": {"cpu": 1}, "selectors": {"kind": kind}}
        w.submit(name=f"b-{kind}", queue="root.b", stages=[stage])
    w.advance(0)
    w.silence("m")
    w.kill("b-m")
    stage = {"name": "s", "count": 2, "min": 1, "resources": {"cpu": 1}, "selectors": {"kind": "n"}}
    w.submit(name="a", queue="root.a", stages=[stage])
    w.advance(20)
    assert len(w.placements("a")) == 1 and len(w.placements("b-n")) == 1


def test_what_is_promised_to_a_queue_counts_as_its_own() -> None:
    """Victims take longer to stop than `rebalance_after`: the second look must not stop tasks for the same share."""
    w = world(nodes=12, shares=(33, 33, 33), rebalance_after="10s", preempt_grace="60s", starving_after="1h")
    lent = array(w, "a", 12)
    w.advance(1)
    w.ignore_stops(lent)
    for cpu in (1, 0.9):
        w.submit(queue="root.b", stages=[{"name": "w", "count": 2, "resources": {"cpu": cpu}}])
    w.advance(12)
    assert len(w.promises()) == 2
    for cpu in (0.8, 0.7):
        w.submit(queue="root.b", stages=[{"name": "w", "count": 2, "resources": {"cpu": cpu}}])
    w.advance(12)
    assert len(w.promises()) == 2


def test_the_rest_of_a_gang_does_not_wait_for_another_rebalance() -> None:
    """Two of four have to start together. When they have, the other two are entitled to their room as well."""
    queues = {"root": {"a": {"share": 50}, "b": {"share": 50}}}
    w = World({"queues": queues, "rebalance_threshold": 10, "rebalance_after": "60s"})
    w.nodes(8, cpu=1)
    w.submit(name="lent", queue="root.a", stages=[{"name": "w", "count": 8, "min": 1, "resources": {"cpu": 1}}])
    w.advance(1)
    w.submit(name="back", queue="root.b", stages=[{"name": "w", "count": 4, "min": 2, "resources": {"cpu": 1}}])
    w.advance(65)
    assert len(w.placements("back")) == 4 and len(w.placements("lent")) == 4


def test_a_gang_is_let_in_by_the_fewest_stops_also_beside_cheaper_tasks_that_give_less() -> None:
    """Queue b has 9 of 10 CPUs, 4 of them on loan. Stopping two tasks of 2 CPUs makes room for a gang of 4. Stopping
    `low` as well would cost b a CPU of its own share.
    """
    w = World({**SETTINGS, "unit": "dominant"})
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    w.nodes(1, cpu=10)
    w.submit(name="own", queue="root.a", stages=[{"count": 1, "resources": {"cpu": 1}}])
    w.submit(name="low", queue="root.b", stages=[{"count": 1, "resources": {"cpu": 1}}])
    w.submit(name="high", queue="root.b", priority=1, stages=[{"count": 4, "min": 1, "resources": {"cpu": 2}}])
    w.cycle()
    w.submit(name="gang", queue="root.a", stages=[{"count": 4, "min": 4, "resources": {"cpu": 1}}])
    w.advance(241)
    w.advance(31)
    assert len(w.placements("gang")) == 4 and len(w.placements("high")) == 2 and w.placements("low")


def test_a_large_gang_makes_way_though_a_small_one_is_cheaper_and_would_be_all_that_its_queue_can_lose() -> None:
    """Without `pair` queue b would have no GPU, and could lose no more. Without `large` it keeps its share of them."""
    w = World({**SETTINGS, "unit": "dominant"})
    w.queue("root.a", share=62)
    w.queue("root.b", share=38)
    w.node("g", cpu=2, gpu=2)
    for name, cpu in (("n1", 2), ("n2", 4), ("n3", 4)):
        w.node(name, cpu=cpu)
    w.submit(name="pair", queue="root.b", stages=[{"count": 2, "resources": {"cpu": 1, "gpu": 0.5}}])
    w.submit(name="large", queue="root.b", stages=[{"count": 8, "resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="gang", queue="root.a", stages=[{"count": 6, "resources": {"cpu": 1}}])
    w.advance(241)
    w.advance(31)
    assert len(w.placements("gang")) == 6 and len(w.placements("pair")) == 2


def test_what_a_gang_does_not_ask_for_is_spared() -> None:
    """Without its GPUs the lender could lose three CPUs only; with them it loses the five that are missing."""
    w = world(nodes=0, shares=(20, 50), unit="dominant", rebalance_after="20s", preempt_grace="1s")
    w.node("n0", cpu=8)
    w.node("n1", cpu=8, gpu=2)
    array(w, "b", 12)
    w.cycle()
    w.advance(30)
    gpus = array(w, "b", 3, "gpus", resources={"cpu": 1, "gpu": 0.5})
    w.advance(30)
    gang = array(w, "a", 6, "gang", min=6)
    w.advance(60)
    assert len(w.placements(gang)) == 6
    assert len(w.placements(gpus)) == 3


@pytest.mark.parametrize("backfill", ["off", "easy", "shortest", "conservative"])
def test_an_ask_over_a_limit_does_not_hide_one_that_lacks_capacity(backfill: str) -> None:
    """Four CPUs are on loan to `a`. In `b` wait a head that loans cannot help, an ask over a limit, and a short one."""
    w = world(nodes=4, shares=(20, 80), backfill=backfill, preempt="off", unit="dominant")
    w.queue("root.b", share=80, limit={"cpu": 4})
    w.node("large", cpu=2)
    w.submit(name="own", queue="root.b", stages=[{"name": "s", "resources": {"cpu": 2}}])
    array(w, "a", 4)
    w.advance(1)
    w.submit(name="head", queue="root.b", priority=2, stages=[{"name": "s", "resources": {"cpu": 2}}])
    array(w, "b", 3, "limited", min=3)
    array(w, "b", 2, "short", min=2, estimate=30)
    w.cycle()
    assert "limit" in str(w.explain("limited")[0].reason) and "limit" not in str(w.explain("short")[0].reason)
    w.advance(300)
    assert (w.job("limited").state, w.job("short").state) == ("pending", "running")


def test_it_is_on_by_default_where_queues_have_shares() -> None:
    w = World({"unit": "slots"})
    for name in ("a", "b"):
        w.queue(f"root.{name}", share=50)
    w.nodes(10, cpu=1)
    lend_all(w)
    w.advance(60)
    assert running(w, "a", "b") == [10, 0]
    w.advance(31)
    assert running(w, "a", "b") == [5, 5]


def test_it_is_off_by_default_where_no_queue_has_a_share() -> None:
    w = World({"unit": "slots", "queues": {"root": {"a": {}, "b": {}}}})
    w.nodes(10, cpu=1)
    lend_all(w)
    w.advance(10_000)
    assert running(w, "a", "b") == [10, 0]


def test_a_loan_runs_for_a_minimum_time() -> None:
    """The owner has waited long enough, but the only loan has just begun: it is stopped once `min_runtime` is over."""
    w = World({"rebalance_after": "10s", "min_runtime": "45s", "recall_after": "0s"})
    for name in ("a", "b"):
        w.queue(f"root.{name}", share=50)
    w.nodes(1, cpu=2)
    w.submit(queue="root.a", stages=[{"count": 2, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    owner = w.submit(queue="root.b", stages=[{"resources": {"cpu": 1}}])
    w.advance(44)
    assert not w.placements(owner)
    w.advance(3)
    assert w.placements(owner)


@pytest.mark.parametrize("node", range(4))
def test_an_owner_gets_the_node_that_it_needs_from_an_array(node: int) -> None:
    """With default settings, and whichever task of the array is there."""
    w = World({"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}})
    for at in range(4):
        w.node(f"n{at}", cpu=1, labels={"n": str(at)})
    w.submit(name="array", queue="root.b", stages=[{"name": "w", "array": 4, "resources": {"cpu": 1}}])
    w.advance(10)
    w.submit(
        name="want",
        queue="root.a",
        stages=[{"name": "w", "resources": {"cpu": 1}, "selectors": {"n": str(node)}}],
    )
    w.advance(91)
    assert w.placements("want") == {("w", 0): f"n{node}"} and len(w.placements("array")) == 3


def test_the_oldest_task_of_an_array_returns_a_loan_if_the_newest_is_on_a_held_node() -> None:
    w = World({"unit": "slots", "starving_after": "30s"})
    w.queue("root.a", share=34, order="fair")
    w.queue("root.b", share=66)
    w.nodes(3, cpu=1)
    w.submit(name="array", user="ann", queue="root.a", stages=[{"array": 9, "resources": {"cpu": 1}}])
    w.advance(100)
    w.submit(name="b", user="ann", queue="root.b", stages=[{"array": 3, "resources": {"cpu": 1}}])
    w.advance(1)
    w.submit(name="other", user="bob", queue="root.a", stages=[{"array": 9, "resources": {"cpu": 1}}])
    w.advance(600)
    assert running(w, "a", "b") == [1, 2]


def test_loans_stop_for_the_oldest_ask_of_a_queue_first() -> None:
    """The lanes of a queue are served by priority and age, not by the names of their shapes."""
    w = World({"queues": {"root": {"owner": {"share": 50}, "lender": {"share": 50}}}, "recall_after": "0s"})
    for rack in ("a", "b"):
        w.node(rack, cpu=4, labels={"rack": rack})
    w.submit(queue="root.lender", stages=[{"count": 8, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    large = w.submit(queue="root.owner", stages=[{"resources": {"cpu": 4}, "selectors": {"rack": "a"}}])
    w.advance(10)
    stage = {"count": 4, "min": 1, "resources": {"cpu": 1}, "selectors": {"rack": "b"}}
    small = w.submit(queue="root.owner", stages=[stage])
    w.advance(120)
    assert w.placements(large) and not w.placements(small)


def test_a_task_that_takes_two_slots_gets_both() -> None:
    """Tasks on loan stop one after the other; the first slot is not lent again before the second is free."""
    queues = {"owner": {"share": 50}, "flood": {"share": 50}}
    w = World({"recall_after": 0, "rebalance_after": 5, "min_runtime": 1, "queues": {"root": queues}})
    w.node("n0", cpu=2)
    w.node("n1", cpu=2)
    for number in range(8):
        w.submit(name=f"f{number}", queue="root.flood", stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    for number in range(4):
        w.ignore_stops(f"f{number}")
    w.submit(name="owner", queue="root.owner", stages=[{"resources": {"cpu": 2}}])
    w.advance(7)
    stopping = [a.stage.job.id for a in w.partition().allocations.values() if a.state == "stopping"]
    assert len(stopping) == 2
    w.finish(stopping[0])
    w.advance(1)
    w.finish(stopping[1])
    w.advance(1)
    assert w.job("owner").state == "running"


def test_equal_tasks_on_equal_nodes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, the search for a gang tries more than a hundred sets of tasks on each node."""
    tried: list[int] = []
    fitting = victims.fitting_in

    def counted(free: Vector, used: list[int], shape: Shape, most: int) -> tuple[int, tuple[int, ...]]:
        tried.append(most)
        return fitting(free, used, shape, most)

    monkeypatch.setattr(victims, "fitting_in", counted)
    w = World({"queues": {"root": {"own": {"share": 60}, "b": {"share": 20}, "c": {"share": 20}}}})
    w.nodes(100, cpu=8)
    for queue in ("b", "c"):
        w.submit(queue=f"root.{queue}", stages=[{"array": 400, "resources": {"cpu": 1}}])
    w.cycle()
    w.advance(100)
    owner = w.submit(queue="root.own", stages=[{"count": 40, "resources": {"cpu": 4}}])
    w.advance(70)
    assert len(w.placements(owner)) == 40
    assert len(tried) < 3 * 100


def owned(w: World, name: str, **stage: Any) -> str:
    return w.submit(name=name, queue="root.a", stages=[{"name": "s", "resources": {"cpu": 1}, **stage}])


def test_a_task_behind_a_planned_gang_gets_the_room_that_is_freed_for_it() -> None:
    """It would delay the gang on other nodes, and loans that end before the gang would start there again and again."""
    w = World({"rebalance_after": "1min", "recall_after": 0, "preempt_grace": "10s"})
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    w.nodes(4, cpu=1)
    array(w, "b", 4, "lent", estimate=3600)
    w.advance(1)
    owned(w, "gang", count=4)
    owned(w, "single", resources={"cpu": "900m"})
    array(w, "b", 8, "short", estimate=60)
    w.advance(120)
    assert w.job("single").state == "running" and w.job("gang").state == "pending"
    assert (len(w.placements("lent")), len(w.placements("short"))) == (3, 0)


@pytest.mark.parametrize("mode", ["off", "easy", "shortest", "conservative"])
def test_free_nodes_that_a_gang_may_not_use_yet_do_not_count_for_its_queue(mode: str) -> None:
    """The pair waits behind a gang beyond the share of the queue, and a task of another size is within the share."""
    w = World({"rebalance_after": "1min", "recall_after": 0, "preempt_grace": "10s", "backfill": mode})
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    w.nodes(2, cpu=4)
    array(w, "b", 4, "known", estimate=3600)
    array(w, "b", 2, "lent")
    w.advance(1)
    owned(w, "gang", count=6)
    owned(w, "pair", count=2)
    owned(w, "single", resources={"cpu": 3})
    w.advance(120)
    assert w.job("single").state == "running" and len(w.placements("lent")) == 1
