"""Pools: a burst is one order, nothing is ordered for work that fits or twice for the same, and idle nodes go."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest

from fairlead.core.commands import Accepted, Rejected, RemovePartition, ScalePool
from fairlead.core.cycle import Cycle, due, run
from fairlead.core.effects import ForPool, outstanding_orders
from fairlead.core.model import NEW
from fairlead.core.state import Partition
from fairlead.core.why.reasons import NoCapacity
from fairlead.testing import World
from fairlead.views.pool_answers import usage_answer
from tests.chaos.checkers import CheckFailed
from tests.chaos.pool_checker import PoolChecker


def ordered(w: World) -> dict[str, int]:
    """Return the nodes ordered per pool since the last call; each pool gets at most one order."""
    found: dict[str, int] = {}
    for effect in w.effects():
        if isinstance(effect, ForPool) and effect.orders:
            assert effect.pool not in found
            found[effect.pool] = sum(len(order.names) for order in effect.orders)
    return found


def given_back(w: World) -> list[str]:
    return [name for effect in w.effects() if isinstance(effect, ForPool) for name in effect.unwanted]


def singles(w: World, count: int, cpu: float = 1, **rest: Any) -> list[str]:
    return [w.submit(stages=[{"resources": {"cpu": cpu}}], **rest) for _ in range(count)]


def array(w: World, count: int, cpu: float = 1, **rest: Any) -> str:
    stage = {"name": "a", "count": count, "min": 1, "resources": {"cpu": cpu}, **rest.pop("stage", {})}
    return w.submit(stages=[stage], **rest)


def gang(w: World, count: int, cpu: float = 1, **rest: Any) -> str:
    stage = {"name": "w", "count": count, "resources": {"cpu": cpu}, **rest.pop("stage", {})}
    return w.submit(stages=[stage], **rest)


# -- growing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("each", "nodes"), [(5, 0), (3, 10), (0, 25)])
def test_a_burst_is_one_order_for_what_does_not_fit(each: int, nodes: int) -> None:
    """A hundred requests at once on twenty workers, with room for all, for sixty, for none."""
    w = World()
    w.pool("p", node={"cpu": 4}, max=100)
    if each:
        w.nodes(20, cpu=each)
    singles(w, 100)
    w.cycle()
    assert ordered(w) == ({"p": nodes} if nodes else {})
    w.cycle()
    w.advance(60)
    assert ordered(w) == {}


def test_a_pool_grows_from_no_nodes() -> None:
    w = World()
    w.pool("p", node={"cpu": 4, "memory": "8Gi"}, max=10)
    job = gang(w, 10)
    w.cycle()
    assert ordered(w) == {"p": 3}
    w.arrive("p", 3)
    w.advance(0)
    assert len(w.placements(job)) == 10
    assert w.pools()["p"] == {
        "ready": True,
        "total": 3,
        "available": 0,
        "pending": 0,
        "idle": 0,
        "ordered": 0,
        "disabled": 0,
    }


def test_what_is_coming_is_shared() -> None:
    w = World({"queues": {"root": {"default": {"order": "priority"}}}})
    w.pool("p", node={"cpu": 4}, max=10)
    first = array(w, 2)
    w.cycle()
    assert ordered(w) == {"p": 1}
    second = array(w, 2)
    w.cycle()
    assert ordered(w) == {}
    third = array(w, 1)
    w.cycle()
    assert ordered(w) == {"p": 1}
    w.arrive("p")
    w.advance(0)
    assert [len(w.placements(job)) for job in (first, second, third)] == [2, 2, 0]
    assert w.pools()["p"]["idle"] == -1


def test_a_gang_keeps_the_nodes_that_came_for_it() -> None:
    w = World()
    w.pool("p", node={"cpu": 2}, max=10)
    job = gang(w, 4, stage={"resources": {"cpu": 2}})
    w.cycle()
    assert ordered(w) == {"p": 4}
    names = w.arrive("p", 3)
    w.advance(0)
    small = singles(w, 2)
    w.advance(0)
    assert not w.placements(job)
    assert not any(w.placements(each) for each in small)
    assert w.promises()[job, "w", "new"] == [(names[0], 1), (names[1], 1), (names[2], 1), ("p-1-3", 1)]
    w.arrive("p")
    w.advance(0)
    assert len(w.placements(job)) == 4
    assert ordered(w) == {"p": 1}, "for the small ones"


def test_a_gang_that_never_gets_the_rest_gives_back_what_came() -> None:
    w = World({"promise_for": "3min"})
    w.pool("p", node={"cpu": 2}, max=4)
    job = gang(w, 4, cpu=2)
    w.cycle()
    w.arrive("p", 3)
    w.advance(0)
    small = singles(w, 2)
    w.advance(179)
    assert not any(w.placements(each) for each in small)
    w.advance(2)
    assert all(w.placements(each) for each in small)
    assert not w.placements(job)


@pytest.mark.parametrize(
    "go",
    [
        lambda w, name: w.fail_node(name),
        lambda w, name: w.drain(name),
        lambda w, name: w.disable(name),
        lambda w, name: w.remove_node(name),
        lambda w, name: w.update_node(name, cpu=1, pool="p"),
    ],
    ids="lost drained disabled removed smaller".split(),
)
def test_a_gang_keeps_the_other_nodes_when_one_goes(go: Any) -> None:
    w = World({"promise_for": "3min"})
    w.pool("p", node={"cpu": 2}, max=20)
    job = gang(w, 4, cpu=2)
    w.cycle()
    assert ordered(w) == {"p": 4}
    names = w.arrive("p", 3)
    w.advance(60)
    since = next(iter(w.partition().promises.values())).since
    go(w, names[1])
    small = array(w, 8)
    w.cycle()
    promise = next(iter(w.partition().promises.values()))
    assert [w.partition().nodes.name[w.partition().nodes.rows[node_id]] for node_id in promise.nodes] == [
        names[0],
        names[2],
    ]
    assert promise.since in (since, w.now), "as long as before, or as the new order"
    assert not set(w.placements(small).values()) & {names[0], names[2]}
    assert ordered(w)["p"] >= 1
    w.restart()
    w.arrive("p", len(w.partition().order_of))
    w.advance(0)
    assert len(w.placements(job)) == 4
    assert {names[0], names[2]} < set(w.placements(job).values())


@pytest.mark.parametrize(
    ("act", "kept", "more"),
    [
        (lambda w, job: w.scale(job, "w", 6), 3, 2),
        (lambda w, job: w.scale(job, "w", 2), 0, 0),
    ],
    ids=["larger", "smaller"],
)
def test_a_gang_that_is_scaled_keeps_the_nodes_that_came_for_it(act: Any, kept: int, more: int) -> None:
    w = World()
    w.pool("p", node={"cpu": 1}, max=10)
    job = gang(w, 4)
    w.cycle()
    w.arrive("p", n=3)
    w.advance(1)
    assert ordered(w) == {"p": 4}
    act(w, job)
    (other,) = singles(w, 1, cpu=0.5)
    w.cycle()
    assert sum(len(promise.nodes) for promise in w.partition().promises.values()) == kept
    assert bool(w.placements(other)) == (kept == 0)
    assert ordered(w).get("p", 0) <= more + 1  # one is for the other job
    w.arrive("p", n=1 + more)
    w.cycle()
    assert w.job(job).state == "running"


def test_a_gang_whose_last_node_goes_keeps_none() -> None:
    w = World()
    w.pool("p", node={"cpu": 2}, max=20)
    gang(w, 2, cpu=2)
    w.cycle()
    (name,) = w.arrive("p")
    w.cycle()
    w.fail_node(name)
    w.cycle()
    assert not w.partition().promises
    assert len(w.partition().order_of) == 2


def test_a_stopped_pool_does_not_lengthen_what_is_kept() -> None:
    """When a node goes and none is ordered for it, the others are kept no longer than they would have been."""
    w = World({"promise_for": "3min"})
    w.pool("p", node={"cpu": 2}, max=20)
    gang(w, 4, cpu=2)
    w.cycle()
    names = w.arrive("p", 3)
    w.cycle()
    w.pause_pool("p")
    w.advance(100)
    w.fail_node(names[0])
    w.advance(79)
    assert w.partition().promises
    w.advance(1)
    assert not w.partition().promises


@pytest.mark.parametrize("arrivals", list(permutations(range(3))))
def test_a_whole_job_starts_in_whatever_order_its_nodes_come(arrivals: tuple[int, ...]) -> None:
    """One of the nodes is for what follows the start. It must not count as one more of those that start."""
    w = World(config={"partitions": {"default": {"place": "spread"}}})
    w.pool("p", node={"cpu": 12}, max=3)
    stages = [
        {"name": "s0", "count": 6, "min": 1, "resources": {"cpu": 1}, "pool": "p", "apart": True},
        {"name": "s1", "count": 6, "resources": {"cpu": 1}, "pool": "p"},
        {"name": "s2", "resources": {"cpu": 12}},
    ]
    job = w.submit(gang="job", stages=stages)
    w.cycle()
    assert ordered(w) == {"p": 3}
    for at in arrivals:
        w.node(f"p-1-{at}", pool="p", cpu=12)
        w.cycle()
    assert w.job(job).state == "running"


def test_nodes_of_a_gang_are_not_let_go_when_more_comes_than_starts() -> None:
    w = World()
    w.pool("p", node={"cpu": 3}, max=3)
    job = gang(w, 7, stage={"min": 4})
    w.cycle()
    w.arrive("p")
    w.cycle()
    assert ordered(w) == {"p": 3} and w.job(job).state == "pending"
    singles(w, 2, cpu=3, priority=9)
    w.arrive("p")
    w.cycle()
    assert w.job(job).state == "running"


def test_the_cheapest_pool_first_within_its_size() -> None:
    w = World()
    w.pool("dear", node={"cpu": 4}, max=10, cost=5)
    w.pool("cheap", node={"cpu": 4}, max=2, cost=1)
    w.pool("small", node={"cpu": 1}, max=10, cost=0)
    array(w, 5, cpu=4)
    w.cycle()
    assert ordered(w) == {"cheap": 2, "dear": 3}


def test_only_pools_whose_nodes_fit() -> None:
    w = World()
    w.pool("plain", node={"cpu": 8}, max=10)
    w.pool("gpu", node={"cpu": 8, "gpu": 2}, max=10, cost=9, taints=["gpu"], labels={"kind": "a100"})
    rows = [
        ({"resources": {"gpu": 1}, "count": 3, "tolerations": ["gpu"]}, {"gpu": 2}),
        ({"resources": {"gpu": 1}}, {}),
        ({"resources": {"cpu": 9}}, {}),
        ({"resources": {"cpu": 1}, "selectors": {"kind": ["a100"]}, "tolerations": ["gpu"]}, {"gpu": 1}),
        ({"resources": {"cpu": 1}, "pool": "plain"}, {"plain": 1}),
        ({"resources": {"cpu": 1}, "count": 3, "apart": True}, {"plain": 3}),
    ]
    for stage, expected in rows:
        job = w.submit(stages=[stage])
        w.cycle()
        assert ordered(w) == expected, stage
        w.kill(job)
        while w.partition().orders:
            w.fail_order(next(iter(w.partition().orders.values())).pool)
            w.cycle()
        w.advance(10)
        w.effects()


def test_what_may_not_start_orders_nothing() -> None:
    w = World()
    w.queue("root.a", limit={"cpu": 3}, max_jobs=2)
    w.queue("root.b", share=1)
    w.pool("p", node={"cpu": 2}, max=100)
    singles(w, 9, queue="root.a")
    w.cycle()
    assert ordered(w) == {"p": 1}, "two jobs may run"
    gang(w, 4, queue="root.a")
    array(w, 3, queue="root.b")
    w.stop_queue("root.b")
    w.cycle()
    assert ordered(w) == {}
    w.start_queue("root.b")
    w.cycle()
    assert ordered(w) == {"p": 2}


def test_the_first_by_turn_get_what_a_pool_may_bring() -> None:
    """Two queues of equal share, and room for four nodes: two each, however many either asks for."""
    w = World()
    for name in ("a", "b"):
        w.queue(f"root.{name}", share=50)
    w.pool("p", node={"cpu": 1}, max=4)
    jobs = [array(w, 50, queue="root.a"), array(w, 2, queue="root.b")]
    w.cycle()
    assert ordered(w) == {"p": 4}
    w.arrive("p", 4)
    w.advance(0)
    assert [len(w.placements(job)) for job in jobs] == [2, 2]


@pytest.mark.parametrize("start", ["stage", "job"])
def test_the_rest_of_a_gang_orders_nothing_beyond_a_spent_share(start: str) -> None:
    """The tasks that start together may pass the end of a share; those after them may not."""
    w = World()
    for name in ("a", "b"):
        w.queue(f"root.{name}", share=50)
    w.pool("p", node={"cpu": 1}, max=8)
    gang(w, 8, queue="root.a", preemptible=False, gang=start, stage={"min": 3})
    w.cycle()
    assert ordered(w) == {"p": 4}


def test_held_nodes_are_not_counted_on_and_their_holder_orders_nothing() -> None:
    w = World({"starving_after": "10s", "held_nodes_percent": 100})
    w.pool("p", node={"cpu": 4}, max=0)
    w.node("n0", cpu=4)
    busy = w.submit(stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    starved = w.submit(stages=[{"resources": {"cpu": 4}}])
    w.advance(11)
    assert list(w.holds()) == ["n0"]
    w.pool("p", node={"cpu": 4}, max=10)
    w.cycle()
    assert ordered(w) == {}
    singles(w, 1)
    w.cycle()
    assert ordered(w) == {"p": 1}, "n0 looks full"
    w.finish(busy)
    w.advance(0)
    assert w.placements(starved)


def test_room_that_stops_being_used_is_counted_on() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10)
    w.node("n0", cpu=4)
    first = gang(w, 4)
    w.advance(0)
    w.hold_acks("n0")
    w.kill(first)
    second = gang(w, 4)
    w.cycle()
    assert ordered(w) == {}
    w.finish(first)
    w.advance(0)
    assert len(w.placements(second)) == 4


# -- orders that fail ----------------------------------------------------------------------------------------------


def test_a_failed_order_pauses_its_pool_and_tries_the_next() -> None:
    w = World()
    w.pool("a", node={"cpu": 4}, max=10)
    w.pool("b", node={"cpu": 4}, max=10, cost=2)
    singles(w, 4)
    w.cycle()
    assert ordered(w) == {"a": 1}
    w.fail_order("a", "no machines left")
    w.cycle()
    assert ordered(w) == {"b": 1}
    w.fail_order("b")
    w.cycle()
    assert ordered(w) == {}
    w.advance(4.9)
    assert ordered(w) == {}
    w.advance(0.2)
    assert ordered(w) == {"a": 1}


def test_after_max_orders_it_says_why() -> None:
    w = World({"max_orders": 2})
    w.pool("a", node={"cpu": 4}, max=10)
    job = singles(w, 1)[0]
    for _ in range(2):
        w.advance(6)
        assert ordered(w) == {"a": 1}
        w.fail_order("a", "quota of the cloud is used up")
        w.cycle()
    w.advance(60)
    assert ordered(w) == {}
    reason = w.explain(job)[0].reason
    assert isinstance(reason, NoCapacity) and reason.failed_orders == 2 and reason.given_up
    assert "quota of the cloud is used up" in str(reason)
    later = singles(w, 1)
    w.cycle()
    assert ordered(w) == {"a": 1}, "others may order"
    w.resume_pool("a")
    w.arrive("a")
    w.advance(0)
    assert w.placements(job) and w.placements(later[0])


@pytest.mark.parametrize("apart", [False, True], ids=["at once", "one by one"])
def test_machines_of_one_order_that_fail_are_one_failed_order(apart: bool) -> None:
    w = World({"max_orders": 2})
    w.pool("p", node={"cpu": 1}, max=20)
    job = gang(w, 6)
    w.cycle()
    assert ordered(w) == {"p": 6}
    failed = ["p-1-0", "p-1-2", "p-1-5"]
    for names in [[name] for name in failed] if apart else [failed]:
        w.fail_machines(*names)
        w.cycle()
    assert w.partition().waits(job, 0, NEW).failed_orders == 1  # type: ignore[union-attr]
    w.restart()
    w.advance(6)
    assert ordered(w) == {"p": 3}
    w.fail_machines("p-1-1")
    w.cycle()
    assert w.partition().waits(job, 0, NEW).failed_orders == 1, "also of an order that was read back"  # type: ignore[union-attr]
    w.arrive("p", 5)
    w.advance(6)
    assert ordered(w) == {"p": 1} and not w.placements(job)
    w.arrive("p")
    w.advance(0)
    assert len(w.placements(job)) == 6


def test_each_failed_order_counts_for_the_asks_it_was_for() -> None:
    """Two jobs share an order. Its machines fail one after the other: each job counts the order once, when one of its
    own fails."""
    w = World()
    w.pool("p", node={"cpu": 1}, max=20)
    one, two = singles(w, 2)
    w.cycle()

    def failed_orders() -> list[int]:
        return [
            ask.failed_orders for ask in (w.partition().waits(job, 0, NEW) for job in (one, two)) if ask is not None
        ]

    w.fail_machines("p-1-0")
    w.cycle()
    assert failed_orders() == [1, 0]
    w.fail_machines("p-1-1")
    w.cycle()
    assert failed_orders() == [1, 1]
    w.advance(6)
    w.fail_machines("p-2-0", "p-2-1")
    w.cycle()
    assert failed_orders() == [2, 2]


def given_up(*others: str) -> World:
    """A world with an ask for which pool `a` failed `max_orders` orders."""
    w = World({"max_orders": 1})
    w.pool("a", node={"cpu": 4}, max=10)
    for name in others:
        w.pool(name, node={"cpu": 4}, max=10, cost=9)
    singles(w, 1)
    w.cycle()
    assert ordered(w) == {"a": 1}
    w.fail_order("a", "no machines")
    w.advance(60)
    assert ordered(w) == {}
    return w


def test_a_pool_that_is_new_may_bring_what_others_could_not() -> None:
    w = given_up()
    w.pool("b", node={"cpu": 4}, max=10)
    w.cycle()
    assert sum(ordered(w).values()) == 1


def test_a_pool_that_left_and_came_back_is_asked_again() -> None:
    w = given_up()
    w.configure({"max_orders": 1})
    w.cycle()
    w.pool("a", node={"cpu": 4}, max=10)
    w.cycle()
    assert ordered(w) == {"a": 1}


def test_any_pool_that_is_resumed_lets_asks_order_again() -> None:
    w = given_up("b")
    w.pool("a", node={"cpu": 4}, max=9)
    w.cycle()
    assert ordered(w) == {}, "it is the same pool, configured otherwise"
    w.resume_pool("b")
    w.cycle()
    assert sum(ordered(w).values()) == 1


def test_figures_of_a_long_backlog_are_estimated_from_its_beginning() -> None:
    w = World()
    w.pool("a", node={"cpu": 4}, max=1)
    for at in range(3_000):
        w.submit(name=f"job{at}", stages=[{"name": "w", "resources": {"cpu": 2}}])
    w.cycle()
    assert w.pools()["a"]["pending"] == pytest.approx(1_500, rel=0.01)
    for at in range(2_100, 3_000):
        w.kill(f"job{at}")
    w.cycle()
    assert w.pools()["a"]["pending"] == pytest.approx(1_050, rel=0.01)


def test_it_says_which_pools_could_bring_more_and_do_not() -> None:
    w = World()
    w.pool("full", node={"cpu": 4}, max=1)
    w.pool("off", node={"cpu": 4}, max=9, cost=2)
    w.pool("small", node={"cpu": 1}, max=1)
    w.pause_pool("off")
    singles(w, 1)
    w.cycle()
    job = w.submit(name="more", stages=[{"name": "w", "resources": {"cpu": 4}}])
    w.cycle()
    reason = w.explain(job)[0].reason
    assert isinstance(reason, NoCapacity) and (reason.full, reason.paused) == (("full",), ("off",))
    assert "pool full is at its maximum size; pool off is paused" in str(reason)


def test_a_lost_node_is_reported_to_its_pool() -> None:
    """The node counts under `max` until its machine is known to be gone: it may come back."""
    w = World()
    w.pool("a", node={"cpu": 4}, max=1)
    singles(w, 1)
    w.cycle()
    (name,) = w.arrive("a")
    w.cycle()
    w.effects()
    w.fail_node(name)
    w.cycle()
    assert [effect for effect in w.effects() if isinstance(effect, ForPool)] == [ForPool("a", lost=(name,))]
    w.remove_node(name)
    w.cycle()
    assert ordered(w) == {"a": 1}


def test_a_late_order_is_given_up_and_its_node_is_welcome_all_the_same() -> None:
    w = World({"promise_for": "1min"})
    w.pool("a", node={"cpu": 4}, max=1)
    job = singles(w, 1)[0]
    w.cycle()
    w.advance(61)
    assert w.pools()["a"]["ordered"] == 0
    w.node("a-1-0", pool="a", cpu=4)
    w.advance(0)
    assert w.placements(job) == {("main", 0): "a-1-0"}


def test_a_node_that_is_not_what_its_pool_says_is_not_ordered_for_ever() -> None:
    w = World()
    w.pool("a", node={"cpu": 4}, max=100)
    singles(w, 1, cpu=4)
    for _ in range(20):
        if w.partition().orders:
            w.arrive("a", cpu=2)
        w.advance(10)
    assert w.pools()["a"]["total"] == 3, "max_orders"


def test_a_node_that_comes_twice_or_unasked_is_ordered_once() -> None:
    w = World()
    w.pool("a", node={"cpu": 4}, max=100)
    singles(w, 8)
    w.cycle()
    assert ordered(w) == {"a": 2}
    name = w.arrive("a")[0]
    w.node(name, pool="a", cpu=4)
    w.advance(0)
    w.node(name, pool="a", cpu=4)
    w.arrive("a", 3)
    w.advance(0)
    assert ordered(w) == {}
    assert w.pools()["a"]["total"] == 4


# -- spare nodes ---------------------------------------------------------------------------------------------------


def test_warm_spare_nodes() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, min=2, max=10, min_idle=1, max_idle=1, idle_for="1min")
    w.cycle()
    assert ordered(w) == {"p": 2}
    w.arrive("p", 2)
    w.advance(0)
    assert ordered(w) == {}
    array(w, 8)
    w.advance(0)
    assert ordered(w) == {"p": 1}, "one stays idle"
    w.arrive("p")
    w.advance(600)
    assert w.pools()["p"]["total"] == 3


def test_amounts_kept_free() -> None:
    w = World()
    w.pool("p", node={"cpu": 4, "memory": "8Gi"}, max=9, min_free={"cpu": 6, "memory": "4Gi"}, idle_for="1min")
    w.cycle()
    assert ordered(w) == {"p": 2}
    w.arrive("p", 2)
    jobs = array(w, 2)
    w.advance(0)
    assert ordered(w) == {}, "6 CPUs are free, on a node in use and an idle one"
    job = array(w, 1)
    w.advance(0)
    assert ordered(w) == {"p": 1}, "5 CPUs are free"
    w.arrive("p")
    w.advance(600)
    assert w.pools()["p"]["total"] == 3
    w.finish(job)
    w.cycle()
    w.advance(600)
    assert w.pools()["p"]["total"] == 2, "an idle node is given back if enough is free without it"
    w.finish(jobs)
    w.cycle()
    w.advance(600)
    assert w.pools()["p"]["total"] == 2


def test_waiting_work_does_not_use_what_is_kept_free() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=5, min_free={"cpu": 4})
    w.cycle()
    assert ordered(w) == {"p": 1}
    array(w, 7)
    w.cycle()
    assert ordered(w) == {"p": 2}, "the tasks get two of three, and one is to be free"
    w.arrive("p", 3)
    w.advance(0)
    assert ordered(w) == {}
    array(w, 9)
    w.advance(0)
    assert ordered(w) == {"p": 2}, "no more than max"


def test_free_gpus_and_held_or_disabled_nodes() -> None:
    w = World()
    w.pool("p", node={"cpu": 4, "gpu": 2}, max=9, min_free={"gpu": 2})
    w.cycle()
    assert ordered(w) == {"p": 1}
    (name,) = w.arrive("p")
    w.submit(stages=[{"resources": {"cpu": 1, "gpu": 0.5}}])
    w.advance(0)
    assert ordered(w) == {"p": 1}
    w.arrive("p")
    w.advance(0)
    assert ordered(w) == {}
    w.disable(next(node for node in w.partition().nodes.joins if node != name))
    w.advance(0)
    assert ordered(w) == {"p": 1}


def test_the_checker_finds_a_pool_that_gives_back_what_it_should_keep_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.core.pools.demand.leaves_free", lambda **_: True)
    checker = PoolChecker()

    class Judge:
        def began(self, partition: Partition) -> None:
            checker.began(partition)

        def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
            checker.decided(decided.plan.partition, decided.changes)

        def stopped(self, partition: Partition, why: str) -> None:
            pass

    w = World(observers=[Judge()])
    w.pool("p", node={"cpu": 4}, max=9, min_free={"cpu": 6}, idle_for="1min")
    w.cycle()
    w.arrive("p", 2)
    with pytest.raises(CheckFailed, match="p gives nodes back, has 0 cpu free, and should have 6000"):
        w.advance(600)


# -- nodes that refuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "gang"])
def test_a_refusal_that_is_over_in_a_second_orders_nothing(kind: str) -> None:
    w = World()
    w.pool("p", node={"cpu": 1}, max=20)
    job = array(w, 3) if kind == "array" else gang(w, 3)
    w.cycle()
    assert ordered(w) == {"p": 3}
    names = w.arrive("p", 3)
    w.refuse_launches(names[1])
    w.advance(0)
    assert len(w.partition().nodes.avoided) == 1
    w.fleets["default"].accept_launches(names[1])
    w.advance(5)
    assert len(w.placements(job)) == 3
    assert ordered(w) == {} and not w.partition().orders


def test_a_node_that_is_backed_off_for_longer_than_a_new_one_takes_is_replaced() -> None:
    w = World({"promise_for": "1s"})
    w.pool("p", node={"cpu": 1}, max=20)
    w.node("n", cpu=1)
    array(w, 1)
    w.refuse_launches("n")
    w.advance(0)
    assert ordered(w) == {}, "it is tried again in a second"
    w.advance(1)
    assert w.partition().nodes.failures == [2]
    assert ordered(w) == {"p": 1}, "in two seconds"


def test_a_node_that_refuses_again_and_again_is_replaced() -> None:
    w = World({"max_launch_tries": 20})
    w.pool("p", node={"cpu": 1}, max=20)
    w.node("n", cpu=1)
    job = array(w, 1)
    w.refuse_launches("n")
    w.advance(6)
    assert w.partition().nodes.failures == [3] and ordered(w) == {}
    w.advance(1)
    assert w.partition().nodes.failures == [4] and ordered(w) == {"p": 1}
    w.arrive("p")
    w.advance(1)
    assert list(w.placements(job).values()) == ["p-1-0"]


def test_a_node_of_a_gang_that_is_backed_off_stays_kept() -> None:
    w = World()
    w.pool("p", node={"cpu": 3}, max=20)
    job = gang(w, 3, cpu=2)
    w.cycle()
    names = w.arrive("p", 2)
    w.refuse_launches(names[0])
    small = singles(w, 1)[0]
    w.advance(0)
    assert w.partition().nodes.avoided and not w.placements(job)
    w.fleets["default"].accept_launches(names[0])
    assert [name for name, _ in w.promises()[job, "w", "new"]][:2] == names
    w.arrive("p")
    w.advance(2)
    assert len(w.placements(job)) == 3 and w.placements(small)
    assert not w.partition().orders


# -- shrinking -----------------------------------------------------------------------------------------------------


def grown(w: World, nodes: int) -> str:
    job = array(w, nodes, cpu=4)
    w.cycle()
    w.arrive("p", nodes)
    w.advance(0)
    assert len(w.placements(job)) == nodes
    w.effects()
    return job


def test_idle_nodes_go_after_a_while_but_for_some() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, min=1, max=10, max_idle=2, idle_for="1min")
    job = grown(w, 6)
    w.finish(job, "a", 0)
    w.advance(0)
    w.advance(30)
    for index in (1, 2, 3):
        w.finish(job, "a", index)
    w.advance(0)
    w.advance(59)
    assert len(given_back(w)) == 1, "four are idle, and one has been for long enough"
    w.advance(2)
    assert len(given_back(w)) == 1
    w.advance(600)
    assert given_back(w) == []
    w.finish(job)
    w.advance(700)
    assert w.pools()["p"]["total"] == 2
    w.pool("p", node={"cpu": 4}, min=1, max=10, max_idle=0, idle_for="1min")
    w.advance(700)
    assert w.pools()["p"]["total"] == 1


def test_idle_nodes_stay_while_not_ready_and_their_clock_starts_again() -> None:
    w = World({"ready_after": "1h"})
    w.pool("p", node={"cpu": 4}, max=10, idle_for="1min")
    job = grown(w, 2)
    w.finish(job)
    w.advance(30)
    w.restart(ready=False)
    w.advance(1000)
    assert given_back(w) == []
    w.mark_ready()
    w.advance(59)
    assert given_back(w) == []
    w.advance(2)
    assert len(given_back(w)) == 2


def test_a_node_that_is_needed_again_stays() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10, idle_for="1min")
    job = grown(w, 2)
    w.finish(job)
    w.advance(50)
    again = array(w, 1)
    w.advance(20)
    assert len(w.placements(again)) == 1
    assert w.pools()["p"]["total"] == 1
    w.finish(again)
    w.advance(70)
    assert w.pools()["p"]["total"] == 0


def test_nodes_that_wait_for_a_gang_are_not_given_back() -> None:
    """Two idle nodes, and a gang of three that has a third ordered: none of them goes, however late that is."""
    w = World({"promise_for": "1h"})
    w.pool("p", node={"cpu": 4}, max=10, idle_for="1min")
    w.finish(grown(w, 2))
    w.cycle()
    waiting = gang(w, 3, cpu=4)
    w.advance(600)
    assert given_back(w) == []
    assert w.pools()["p"] == {**w.pools()["p"], "available": 2, "pending": 3, "idle": -1, "ordered": 1}
    w.arrive("p")
    w.advance(0)
    assert len(w.placements(waiting)) == 3


def test_a_node_that_is_given_back_takes_no_work_and_stays_given_back() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10, idle_for="1min")
    w.finish(grown(w, 1))
    w.cycle()
    partition = w.partition()
    while not partition.unwanted:
        w.now += 10_000_000
        w.cycle()
    w.enable("p-1-0")
    job = singles(w, 1)[0]
    w.answers()
    w._queue = [each for each in w._queue if "RemoveNode" not in repr(each)]
    w.cycle()
    assert not w.placements(job)
    refused = [answer for answer in w.answers() if isinstance(answer, Rejected)]
    assert "given back" in str(refused[0])
    w.restart()
    assert outstanding_orders(w.partition())[0].unwanted == ("p-1-0",)
    w.remove_node("p-1-0")
    w.arrive("p")
    w.advance(0)
    assert w.placements(job)


@pytest.mark.parametrize("left", [{}, {"p": {"node": {"cpu": 4}, "provider": None}}])
def test_nothing_falls_due_for_pools_that_are_no_more(left: dict[str, Any]) -> None:
    """A node was about to be given back when its pool left the configuration or lost its provider."""
    w = World()
    w.pool("p", node={"cpu": 4}, max=2, idle_for="1min")
    w.cycle()
    w.scale_pool("p", 1)
    w.cycle()
    w.arrive("p")
    w.cycle()
    assert due(w.partition()) is not None
    w.configure({"partitions": {"default": {"pools": left}}})
    w.cycle()
    assert due(w.partition()) is None
    w.advance(120)


# -- by hand -------------------------------------------------------------------------------------------------------


def test_what_is_lost_or_going_counts_for_max_by_hand_too() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=3)
    w.cycle()
    w.scale_pool("p", 3)
    w.cycle()
    w.arrive("p", 3)
    w.cycle()
    w.fail_node("p-1-0")
    w.cycle()
    w.effects(), w.answers()
    w.scale_pool("p", 3)
    w.cycle()
    answer = w.answers()[0]
    assert isinstance(answer, Accepted) and answer.note.startswith("nodes ordered: 0 of 1; those that are lost")
    w.remove_node("p-1-0")
    w.scale_pool("p", 3)
    w.cycle()
    assert ordered(w) == {"p": 1}


def test_scaled_by_hand() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, min=1, max=5, idle_for="1min")
    w.cycle()
    w.arrive("p")
    w.cycle()
    w.effects(), w.answers()
    w.scale_pool("p", 4)
    w.cycle()
    assert ordered(w) == {"p": 3}
    w.arrive("p", 3)
    w.cycle()
    busy = array(w, 1, cpu=4)
    w.cycle()
    w.scale_pool("p", 1)
    w.scale_pool("p", 6)
    w.scale_pool("x", 1)
    w.answers()
    w.cycle()
    answers = w.answers()
    assert isinstance(answers[0], Accepted) and answers[0].note == "idle nodes given back: 3"
    assert "between 1 and 5" in str(answers[1])
    assert 'there is no pool "x"' in str(answers[2])
    w.cycle()
    assert w.pools()["p"]["total"] == 1
    assert w.placements(busy)


def test_a_paused_pool_neither_grows_nor_shrinks() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10, idle_for="1min")
    w.finish(grown(w, 2))
    w.pause_pool("p")
    w.cycle()
    array(w, 9, cpu=4)
    w.advance(500)
    assert ordered(w) == {}
    w.resume_pool("p")
    w.cycle()
    assert ordered(w) == {"p": 7}


# -- restarts and configuration ------------------------------------------------------------------------------------


def test_a_restart_orders_nothing_twice_and_forgets_nothing() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10)
    job = gang(w, 3, cpu=4)
    w.cycle()
    w.arrive("p")
    w.cycle()
    before = w.partition().orders[1].coming
    w.effects()
    w.restart(ready=False)
    assert w.partition().orders[1].coming == before
    assert outstanding_orders(w.partition())[0].orders[0].names == ("p-1-1", "p-1-2")
    w.advance(1)
    w.arrive("p", 2)
    w.cycle()
    assert not w.placements(job)
    assert w.pools() == {"p": {"ready": False}}
    w.mark_ready()
    w.advance(0)
    assert len(w.placements(job)) == 3
    assert ordered(w) == {}


def test_a_pool_that_leaves_the_configuration_is_not_waited_for() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10)
    singles(w, 1)
    w.cycle()
    w.configure({"pools": {"q": {"node": {"cpu": 2}, "max": 3}}})
    w.cycle()
    w.cycle()
    assert {order.pool for order in w.partition().orders.values()} == {"q"}
    w.configure({})
    w.cycle()
    assert not w.partition().orders


def test_an_order_that_ends_in_the_cycle_that_makes_it_is_not_sent() -> None:
    w = World()
    w.pool("p", node={"cpu": 4}, max=10)
    w.cycle()
    commands = [ScalePool(pool="p", nodes=2, operator=True), RemovePartition(operator=True)]
    decided = run(w.partition(), commands, w.now)
    assert not [effect for effect in decided.effects if isinstance(effect, ForPool)]


def test_nothing_is_ordered_for_the_rest_of_a_gang_that_cannot_start() -> None:
    w = World()
    w.pool("p", node={"cpu": 2}, max=10)
    stages = [{"name": "a", "resources": {"gpu": 1}}, {"name": "b", "count": 5, "min": 1, "resources": {"cpu": 2}}]
    w.node("off", gpu=1)
    w.cycle()
    w.disable("off")
    w.cycle()
    w.submit(gang="job", stages=stages)
    w.cycle()
    assert ordered(w) == {}
    w.enable("off")
    w.cycle()
    assert ordered(w) == {"p": 5}


# -- all at once ---------------------------------------------------------------------------------------------------


def test_what_came_for_a_gang_does_not_take_the_nodes_of_its_rest() -> None:
    """Four of six start together. Three nodes have come and three are coming: that is enough for all six."""
    w = World()
    w.pool("p", node={"cpu": 2}, max=20)
    job = gang(w, 6, cpu=2, stage={"min": 4})
    w.cycle()
    assert ordered(w) == {"p": 6}
    w.arrive("p", 3)
    w.advance(10)
    assert ordered(w) == {}
    w.arrive("p", 3)
    w.advance(0)
    assert len(w.placements(job)) == 6 and ordered(w) == {}


@pytest.mark.parametrize("least", [4, 6], ids=["min below count", "all of it"])
@pytest.mark.parametrize("away", [0, 600])
@pytest.mark.parametrize(("trouble", "again"), [("machine fails", 1), ("node is lost", 1), ("node refuses", 0)])
def test_a_gang_gets_its_nodes_through_trouble_and_a_restart(least: int, away: int, trouble: str, again: int) -> None:
    """Three of six nodes have come when one of them, or one that is coming, makes trouble and the server goes away."""
    w = World({"promise_for": "3min", "ready_after": "1h", "max_orders": 2})
    w.pool("p", node={"cpu": 2}, max=20)
    job = gang(w, 6, cpu=2, stage={"min": least} if least < 6 else {})
    w.cycle()
    assert ordered(w) == {"p": 6}
    names = w.arrive("p", 3)
    w.advance(100)
    assert [len(promise.nodes) for promise in w.partition().promises.values()] == [3]
    if trouble == "machine fails":
        w.fail_machines("p-1-3")
    elif trouble == "node is lost":
        w.fail_node(names[0])
    else:
        w.refuse_launches(names[0])
    w.cycle()
    asked = sum(ordered(w).values())
    w.restart(ready=False, away=away)
    w.advance(1)
    w.mark_ready()
    w.advance(6)
    asked += sum(ordered(w).values())
    assert asked == again
    w.arrive("p", len(w.partition().order_of))
    w.advance(0)
    if trouble == "node refuses":
        assert w.partition().nodes.avoided
        w.fleets["default"].accept_launches(names[0])
    w.advance(60)
    assert len(w.placements(job)) == 6 and ordered(w) == {}
    assert w.pools()["p"]["total"] == 6


@pytest.mark.parametrize("queue", ["root.a", "root.b"])
def test_the_first_node_is_ordered_for_work_that_cannot_be_taken_back(queue: str) -> None:
    """Without nodes there are no shares that it could exceed."""
    w = World({"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}})
    w.pool("p", node={"cpu": 4}, max=1)
    w.submit(
        name="firm",
        queue=queue,
        preemptible=False,
        stages=[{"name": "w", "count": 3, "min": 1, "resources": {"cpu": 2}}],
    )
    w.cycle()
    assert len(w.partition().order_of) == 1
    w.arrive("p")
    w.advance(1)
    assert len(w.placements("firm")) == 1


def test_the_use_of_nodes_without_a_pool() -> None:
    w = World()
    w.pool("p", node={"cpu": 4})
    w.node("p1", pool="p", cpu=4)
    w.nodes(3, cpu=4)
    w.disable("n2")
    w.disable("p1")
    w.submit(name="runs", stages=[{"resources": {"cpu": 1}, "selectors": {}}])
    w.cycle()
    w.submit(name="waits", stages=[{"count": 2, "resources": {"cpu": 4}}])
    w.cycle()
    use = usage_answer(w.partition()).without_pool
    assert use is not None
    assert (use.total, use.available, use.idle, use.disabled, use.ordered) == (3, 1, use.available - use.pending, 1, 0)
    assert list(w.pools()) == ["p"]
