"""Cheaper pools are used first, in all placements, also when many tasks start; preferences of the task come before."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.policy.placement import placement_names
from fairlead.testing import World

ONE = {"resources": {"cpu": 1}}


def two_pools(place: str = "pack", **more: Any) -> World:
    """One node of a dear pool, which joined first and is in use, and one of a cheap pool; both have room."""
    w = World({"place": place, **more})
    w.pool("dear", node={"cpu": 4}, cost=30)
    w.pool("cheap", node={"cpu": 8}, cost=2)
    w.node("d", pool="dear", cpu=4)
    w.submit(name="before", stages=[ONE])
    w.cycle()
    w.node("c", pool="cheap", cpu=8)
    return w


def nodes_of(w: World, job: str) -> list[str]:
    return [node for _, node in sorted(w.placements(job).items())]


@pytest.mark.parametrize("place", placement_names())
def test_a_task_goes_to_the_cheapest_pool_with_room(place: str) -> None:
    w = two_pools(place)
    job = w.submit(name="two", stages=[ONE])
    w.cycle()
    assert nodes_of(w, job) == ["c"]
    w.advance(1)
    why = "chosen by the cost of pools and placement `{}` from the 2 nodes that can run such a task"
    assert why.format("pack" if place == "priced" else place) in w.why(job).sentence


@pytest.mark.parametrize("place", placement_names())
@pytest.mark.parametrize("how", ["array", "gang", "jobs", "order"])
def test_many_tasks_fill_the_cheap_pool_first(place: str, how: str) -> None:
    w = two_pools(place, queues={"root": {"q": {"order": "fair" if how == "order" else "fifo"}}})
    if how in ("array", "gang"):
        jobs = [w.submit(queue="root.q", stages=[{**ONE, "count": 9, "min": 1 if how == "array" else 9}])]
    else:
        jobs = [w.submit(name=f"j{at}", user=f"u{at % 2}", queue="root.q", stages=[ONE]) for at in range(9)]
    w.cycle()
    assert [node for job in jobs for node in nodes_of(w, job)].count("c") == 8
    assert sum(len(nodes_of(w, job)) for job in jobs) == 9


@pytest.mark.parametrize("place", placement_names())
def test_nodes_without_a_pool_have_the_default_cost(place: str) -> None:
    w = two_pools(place)
    w.node("own", cpu=2)
    job = w.submit(stages=[{**ONE, "count": 11, "min": 11}])
    w.cycle()
    assert [nodes_of(w, job).count(name) for name in ("own", "c", "d")] == [2, 8, 1]


def test_a_new_cost_decides_from_the_next_cycle_on() -> None:
    w = two_pools()
    w.submit(name="one", stages=[ONE])
    w.cycle()
    w.pool("dear", node={"cpu": 4}, cost=1)
    job = w.submit(name="two", stages=[ONE])
    w.cycle()
    assert nodes_of(w, job) == ["d"]
    w.restart()
    job = w.submit(name="three", stages=[ONE])
    w.cycle()
    assert nodes_of(w, job) == ["d"]


@pytest.mark.parametrize(
    "stage", [{"prefer": {"pool = dear": 5}}, {"where": "pool = dear"}, {"selectors": {"pool": "dear"}}]
)
def test_a_task_may_name_pools_in_its_conditions(stage: dict[str, Any]) -> None:
    w = two_pools()
    job = w.submit(stages=[{**ONE, **stage}])
    w.cycle()
    assert nodes_of(w, job) == ["d"]


def test_conditions_on_pools_hold_for_nodes_to_order() -> None:
    w = World()
    w.pool("a", node={"cpu": 1}, cost=1)
    w.pool("b", node={"cpu": 1}, cost=9)
    w.submit(stages=[{**ONE, "where": "pool = b"}])
    w.cycle()
    assert [order.pool for order in w.partition().orders.values()] == ["b"]


def test_a_label_named_pool_stays_a_label() -> None:
    w = World()
    w.pool("a", node={"cpu": 1})
    w.node("n", pool="a", cpu=1, labels={"pool": "b"})
    w.node("m", pool="a", cpu=1)
    job = w.submit(stages=[{**ONE, "where": "pool = b"}])
    w.cycle()
    assert nodes_of(w, job) == ["n"]


@pytest.mark.parametrize("place", [name for name in placement_names() if name != "random"])
def test_work_without_gpus_stays_away_from_gpus_before_cost_decides(place: str) -> None:
    w = World({"place": place})
    w.pool("gpus", node={"cpu": 8, "gpu": 2}, cost=0)
    w.pool("plain", node={"cpu": 8}, cost=9)
    w.node("g", pool="gpus", cpu=8, gpu=2)
    w.node("p", pool="plain", cpu=8)
    job = w.submit(stages=[{**ONE, "count": 9, "min": 9}])
    w.cycle()
    assert nodes_of(w, job).count("p") == 8
