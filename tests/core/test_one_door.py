"""Starts, orders and loans that once broke a rule, as small worlds that the checkers of starts and loans judge.

Each path to a start had missed some rules: nodes that arrive, held nodes, chains, orders of nodes.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.testing import World
from tests import planted
from tests.chaos.rebalance_checker import LoanChecker
from tests.chaos.start_checker import DoorChecker

HALVES = {"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}}


def watched(**settings: Any) -> World:
    return World(settings, observers=[DoorChecker(), LoanChecker()])


def one(cpu: float = 1, **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "w", "resources": {"cpu": cpu}, **rest}]


# -- (a) only what may start ---------------------------------------------------------------------------------------


def test_no_nodes_are_ordered_beyond_a_limit_that_a_claim_will_fill() -> None:
    """`low` stops for `high`. What is promised to `high` counts under the limit, so `other` may not start."""
    w = watched(queues={"root": {"a": {"limit": {"cpu": 3}}}})
    w.nodes(1, cpu=2)
    w.submit(name="low", queue="root.a", stages=one(2))
    w.advance(1)
    w.silence("n0")
    w.submit(name="high", queue="root.a", priority=1, stages=one(2))
    w.cycle()
    assert w.promises() == {("high", "w", "new"): [("n0", 1)]}
    w.pool("p", node={"cpu": 4}, max=3)
    w.submit(name="other", queue="root.a", stages=one())
    w.advance(0)
    assert w.pools()["p"]["ordered"] == 0


def test_a_chain_does_not_keep_a_share_that_is_spent() -> None:
    """Half of the nodes leave. The tasks cannot be stopped, so the queue shrinks to its share as they end."""
    w = watched(chain="5s", **HALVES)
    w.nodes(2, cpu=4)
    w.submit(name="firm", queue="root.a", preemptible=False, stages=one(count=400, min=1, duration=1))
    w.advance(4)
    w.remove_node("n1")
    w.advance(60)
    assert w.usage("root.a") == {"cpu": 2}


# -- (b) nothing is placed and stopped in one cycle ------------------------------------------------------------------


def test_a_node_that_arrives_does_not_start_work_that_is_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.count_only(monkeypatch, planted.STOP)
    w = watched()
    w.pool("p", node={"cpu": 2}, max=1)
    w.submit(name="low", stages=one(2))
    w.cycle()
    w.submit(name="high", priority=1, stages=one(2))
    w.cycle()
    w.arrive("p")
    w.cycle()
    assert w.placements("high") and not w.placements("low")


# -- (c) in turn -----------------------------------------------------------------------------------------------------


def test_a_node_that_arrives_goes_by_the_order_of_the_queue() -> None:
    w = watched()
    w.pool("p", node={"cpu": 1}, max=1)
    w.submit(name="low", stages=one())
    w.cycle()
    w.submit(name="high", priority=1, stages=one(0.5))
    w.cycle()
    w.arrive("p")
    w.cycle()
    assert w.placements("high") and not w.placements("low")


def test_a_node_that_arrives_goes_by_shares() -> None:
    """`small` of the queue on loan was asked for first; `mine` is of a queue that has nothing."""
    w = watched(**HALVES)
    w.nodes(1, cpu=4)
    w.submit(name="fill", queue="root.a", stages=one(count=4, min=1))
    w.advance(1)
    w.pool("p", node={"cpu": 1}, max=1)
    w.submit(name="small", queue="root.a", stages=one(0.75))
    w.cycle()
    w.submit(name="mine", queue="root.b", stages=one(0.5))
    w.cycle()
    w.arrive("p")
    w.cycle()
    assert w.placements("mine") and not w.placements("small")


def half_full_beside_a_hold(w: World, late: dict[str, Any]) -> None:
    """`large` holds one of two nodes, the other becomes free, and both `large` and `late` would fit there."""
    w.nodes(2, cpu=4)
    w.submit(name="fill", queue="root.a", priority=2, stages=one(count=8, min=1))
    w.advance(1)
    w.submit(name="large", queue="root.a", stages=one(4))
    w.advance(10)
    (held,) = w.holds()
    w.submit(name="late", stages=one(3), **late)
    w.cycle()
    for (_, index), node in w.placements("fill").items():
        if node != held:
            w.finish("fill", "w", index)
    w.cycle()
    assert w.placements("late") and not w.placements("large")


def test_a_hold_gives_no_turn_in_its_queue() -> None:
    half_full_beside_a_hold(watched(starving_after="5s", **HALVES), {"queue": "root.a", "priority": 1})


def test_a_hold_gives_no_turn_to_a_queue_on_loan() -> None:
    half_full_beside_a_hold(watched(starving_after="5s", **HALVES), {"queue": "root.b"})


# -- (d) loans come back ---------------------------------------------------------------------------------------------


def test_a_hold_does_not_keep_its_owner_from_what_is_lent() -> None:
    w = watched(starving_after="5s", rebalance_threshold=10, rebalance_after="20s", **HALVES)
    w.nodes(2, cpu=4)
    w.submit(name="fill", queue="root.a", stages=one(count=8, min=1))
    w.advance(1)
    w.submit(name="mine", queue="root.b", stages=one(4))
    w.advance(120)
    assert w.placements("mine")


def test_tasks_that_cannot_help_do_not_keep_a_loan() -> None:
    """Only the stop of `large` helps: on the other nodes there is one task more than may be stopped."""
    queues = {"root": {"a": {"share": 80}, "b": {"share": 20}}}
    w = watched(rebalance_threshold=10, rebalance_after="60s", queues=queues)
    for at in range(5):
        w.node(f"n{at}", cpu=4, labels={"node": f"n{at}"})
    tasks = [(f"middle{at}", at, 3) for at in range(1, 5)] + [("large", 0, 4)]
    for name, at, cpu in [*tasks, *((f"small{at}", at, 1) for at in range(1, 5))]:
        w.submit(name=name, queue="root.a", stages=one(cpu, selectors={"node": f"n{at}"}))
        w.advance(1)
    w.submit(name="want", queue="root.b", stages=one(4))
    w.advance(300)
    assert w.placements("want") and not w.placements("large")


@pytest.mark.parametrize("backfill", ["easy", "shortest", "conservative"])
def test_a_start_that_is_only_tried_does_not_hide_the_wait_of_another_stage(backfill: str) -> None:
    """Under `fair`, a start moves all asks of its job. The gang must still claim what its queue is entitled to."""
    queues = {"root": {"a": {"share": 50}, "b": {"share": 50, "order": "fair"}}}
    w = watched(rebalance_threshold=10, rebalance_after="20s", backfill=backfill, queues=queues)
    w.node("n1", cpu=8)
    w.submit(name="endless", queue="root.a", stages=one(count=4, min=1))
    w.submit(name="lent", queue="root.a", stages=one(count=2, min=1, estimate="1h"))
    w.advance(1)
    gang = {"name": "gang", "count": 4, "resources": {"cpu": 1}, "estimate": "60s"}
    late = {"name": "late", "resources": {"cpu": 2}}  # it fits, and would delay the gang
    w.submit(name="mine", queue="root.b", stages=[gang, late])
    w.advance(1)
    assert not w.placements("mine")
    w.advance(60)
    assert {stage for stage, _ in w.placements("mine")} == {"gang"}


# -- capacity that match released is used at once ------------------------------------------------------------------


def test_a_node_that_arrived_for_an_ask_over_its_limit_is_used_at_once() -> None:
    """The node is closed to `other` until `mine` has had its turn; the next cycle follows at once."""
    w = watched(queues={"root": {"a": {"users": {"ann": {"limit": {"cpu": 2}}}}, "b": {}}})
    w.pool("p", node={"cpu": 2}, max=1)
    w.submit(name="mine", queue="root.a", user="ann", stages=one(2))
    w.cycle()
    w.submit(name="other", queue="root.b", stages=one(2))
    w.cycle()
    w.queue("root.a", users={"ann": {"limit": {"cpu": 1}}})
    w.arrive("p")
    w.advance(0)
    assert w.placements("other") and not w.placements("mine")


def test_a_held_node_that_a_claim_replaces_is_used_at_once() -> None:
    """`large` holds n0. When `low` may be stopped for it on n1, n0 is open to `small` again."""
    w = watched(starving_after="5s", held_nodes_percent=100, queues={"root": {"a": {}, "b": {}}})
    w.nodes(2, cpu=4)
    w.submit(name="firm", queue="root.a", preemptible=False, stages=one(2.5))
    w.cycle()
    w.submit(name="low", queue="root.a", priority=5, stages=one(4))
    w.cycle()
    w.submit(name="large", queue="root.a", priority=5, stages=one(4))
    w.advance(10)
    w.submit(name="small", queue="root.b", stages=one(1.5))
    w.advance(1)
    assert w.holds() == {"n0": [("large", "w", 1)]} and not w.placements("small")
    w.ignore_stops("low")
    w.set_priority("low", 0)
    w.advance(0)
    assert w.promises() == {("large", "w", "new"): [("n1", 1)]}
    assert w.placements("small") == {("w", 0): "n0"}


def test_a_promise_waits_for_a_turn_that_another_cycle_gives() -> None:
    """A cycle that placed all that it may ends before the turn of `high`, whose victim is gone."""
    w = watched(max_placed=1, queues={"root": {"a": {}, "b": {"share": 99}}})
    w.nodes(2, cpu=4)
    w.submit(name="low", queue="root.a", stages=one(4))
    w.cycle()
    w.submit(name="firm", queue="root.b", preemptible=False, stages=one(4))
    w.advance(1)
    w.ignore_stops("low")
    w.submit(name="high", queue="root.a", priority=1, stages=one(4))
    w.cycle()
    w.submit(name="many", queue="root.b", stages=one(count=3, min=1))
    w.cycle()
    w.finish("firm", "w", 0)
    w.finish("low", "w", 0)
    w.cycle()
    assert w.promises() == {("high", "w", "new"): [("n0", 1)]} and w.placements("many")
    w.advance(0)
    assert w.placements("high") == {("w", 0): "n0"}


def test_halves_on_two_gpus_do_not_take_the_whole_one_that_another_hold_has() -> None:
    """Both holds are on one node. The halves that are free would leave the other job no whole GPU, so they wait."""
    queues = {"a": {"share": 50, "order": "fifo"}, "b": {"share": 50}}
    config = {"starving_after": 5, "held_nodes_percent": 100, "recall_after": 0, "rebalance_after": 0, "preempt": "off"}
    w = World({**config, "queues": {"root": queues}}, observers=[DoorChecker()])
    w.node("n", cpu=8, gpu=2)
    old = w.submit(name="old", queue="root.a", stages=[{"array": 4, "resources": {"cpu": 2, "gpu": 0.5}}])
    w.cycle()
    w.submit(name="halves", queue="root.b", stages=[{"count": 2, "resources": {"cpu": 1, "gpu": 0.5}}])
    w.submit(name="gpu", queue="root.a", stages=[{"resources": {"cpu": 1, "gpu": 1}}])
    w.submit(name="plain", queue="root.a", stages=[{"resources": {"cpu": 2}}])
    w.advance(6)
    assert {job for job, _, _ in w.holds()["n"]} == {"halves", "gpu", "plain"}
    w.finish(old, "main", 0)
    w.finish(old, "main", 2)
    w.cycle()
    assert [job for job in ("halves", "gpu", "plain") if w.placements(job)] == ["plain"]
