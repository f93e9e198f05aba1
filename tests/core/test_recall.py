"""Recall: nodes are set aside for an owner while queues above their entitlement renew their loans. Default settings."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from fairlead.testing import World

SHARES = {"research": {"share": 60}, "prod": {"share": 30}, "batch": {"share": 10}}


def world(nodes: int = 3, settings: dict[str, Any] | None = None, **resources: Any) -> World:
    w = World({"queues": {"root": SHARES}, **(settings or {})})
    w.nodes(nodes, **(resources or {"cpu": 4}))
    return w


def flood(w: World, seconds: float, jobs: int = 400, **stage: Any) -> list[str]:
    """Fill all nodes with single tasks of `root.batch` that end at different times."""
    random = Random(7)
    names = [
        w.submit(
            queue="root.batch",
            stages=[{"resources": {"cpu": 1}, "duration": round(seconds * random.uniform(0.6, 1.4), 3), **stage}],
        )
        for _ in range(jobs)
    ]
    w.cycle()
    w.advance(2 * seconds if seconds < 100 else 30)
    return names


def ask(w: World, queue: str = "root.research", **stage: Any) -> str:
    job = w.submit(queue=queue, stages=[{"duration": 600, **stage}])
    w.cycle()
    return job


def seconds_until_placed(w: World, job: str, most: int) -> int:
    waited = 0
    while not w.placements(job) and waited < most:
        w.advance(1)
        waited += 1
    return waited


def stopped(w: World) -> int:
    """Count tasks of jobs that were stopped for others: they have a second attempt or wait for one."""
    partition = w.partition()
    return sum(stage.floor > 0 or bool(stage.history) for job in partition.jobs.values() for stage in job.stages)


GANG = {"count": 3, "resources": {"cpu": 2}}
LARGE = {"resources": {"cpu": 4}}


@pytest.mark.parametrize("stage", [GANG, LARGE], ids=["gang", "single"])
@pytest.mark.parametrize(("seconds", "most"), [(3, 8), (30, 45)])
def test_short_loans_drain_in_the_time_they_take_and_nothing_is_stopped(
    stage: dict[str, Any], seconds: float, most: int
) -> None:
    w = world()
    flood(w, seconds)
    assert seconds_until_placed(w, ask(w, **stage), most + 1) <= most
    assert stopped(w) == 0


@pytest.mark.parametrize("stage", [GANG, LARGE], ids=["gang", "single"])
def test_long_loans_are_stopped_after_a_minute(stage: dict[str, Any]) -> None:
    w = world()
    flood(w, 3600, 60)
    assert 60 <= seconds_until_placed(w, ask(w, **stage), 101) <= 100


def test_without_recall_and_rebalance_the_owner_waits() -> None:
    w = world(settings={"recall_after": "0s", "rebalance_after": "0s"})
    flood(w, 3)
    assert seconds_until_placed(w, ask(w, **LARGE), 60) == 60


def test_an_array_of_large_tasks_gets_nodes_for_all_that_its_queue_is_entitled_to() -> None:
    w = world(nodes=5)
    flood(w, 3, 1_000)
    array = ask(w, count=10, min=1, **LARGE)
    w.advance(10)
    assert len(w.placements(array)) == 3  # 12 of 20 CPUs
    assert stopped(w) == 0 and not w.holds()


def test_nothing_is_set_aside_where_every_freed_slot_serves_the_owner() -> None:
    w = world()
    flood(w, 3)
    array = ask(w, count=50, min=1, resources={"cpu": 1})
    for _ in range(20):
        w.advance(0.5)
        assert not w.holds()
    assert len(w.placements(array)) >= 8  # 7.2 CPUs are its own


def test_an_ask_beyond_the_entitlement_gets_nothing_set_aside() -> None:
    w = world()
    flood(w, 3)
    ask(w, count=2, resources={"cpu": 4})  # 8 of 7.2 CPUs
    w.advance(20)
    assert not w.holds()


def test_a_queue_on_loan_itself_gets_nothing_set_aside() -> None:
    w = world()
    flood(w, 3)
    ask(w, queue="root.batch", **LARGE)
    w.advance(20)
    assert not w.holds()


def test_tasks_that_end_before_the_owner_can_start_run_on_its_nodes() -> None:
    w = world(nodes=1)
    long = w.submit(queue="root.batch", stages=[{"count": 3, "min": 1, "resources": {"cpu": 1}, "estimate": "50s"}])
    w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}, "estimate": "2s", "duration": 2}])
    w.cycle()
    ask(w, resources={"cpu": 2})
    # The one that is submitted next renews the loan, and nodes are set aside.
    w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}, "estimate": "2s", "duration": 2}])
    w.advance(3)
    assert w.holds()
    short = w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}, "estimate": "20s", "duration": 20}])
    later = w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}, "estimate": "5min", "duration": 300}])
    unknown = w.submit(queue="root.batch", stages=[{"resources": {"cpu": 1}}])
    w.advance(3)
    assert w.placements(short) and not w.placements(later) and not w.placements(unknown)
    assert w.holds() and w.placements(long)


def test_an_owner_that_is_killed_leaves_its_nodes_to_the_others() -> None:
    w = world()
    flood(w, 30)
    owner = ask(w, **LARGE)
    while not w.holds():
        w.advance(1)
    w.kill(owner)
    w.advance(45)
    assert not w.holds()
    assert sum(w.partition().nodes.used["cpu"][row] for row in w.partition().nodes.rows.values()) == 12_000


def test_nodes_with_tasks_that_are_not_on_loan_are_not_chosen() -> None:
    """`root.prod` is within its entitlement on n0: only what runs on the other nodes comes back."""
    w = World({"queues": {"root": SHARES}})
    for name in ("n0", "n1", "n2"):
        w.node(name, cpu=4, labels={"name": name})
    stage = {"count": 3, "min": 1, "resources": {"cpu": 1}, "selectors": {"name": "n0"}}
    w.submit(queue="root.prod", stages=[stage])
    w.cycle()
    flood(w, 30)
    owner = ask(w, **LARGE)
    assert seconds_until_placed(w, owner, 60) <= 45
    assert set(w.placements(owner).values()) <= {"n1", "n2"}


def test_half_a_gpu_each_on_two_devices_returns_as_a_whole_one() -> None:
    w = world(nodes=2, cpu=8, gpu=2)
    flood(w, 10, resources={"cpu": 1, "gpu": 0.5})
    owner = ask(w, resources={"cpu": 1, "gpu": 2})
    assert seconds_until_placed(w, owner, 40) <= 20
    assert stopped(w) == 0


def test_a_rack_is_set_aside_for_a_gang_that_wants_one() -> None:
    w = World({"queues": {"root": SHARES}})
    for at in range(6):
        w.node(f"n{at}", cpu=4, labels={"rack": f"r{at % 3}"})
    flood(w, 10, 1_000)
    owner = ask(w, count=2, near="rack", **LARGE)
    assert seconds_until_placed(w, owner, 40) <= 20
    racks = {int(node[1:]) % 3 for node in w.placements(owner).values()}
    assert len(racks) == 1


@pytest.mark.parametrize("backfill", ["easy", "shortest", "conservative"])
def test_recall_works_beside_backfill(backfill: str) -> None:
    w = world(settings={"backfill": backfill})
    flood(w, 3)
    assert seconds_until_placed(w, ask(w, **GANG), 10) <= 9


def test_nodes_set_aside_survive_a_restart() -> None:
    w = world()
    flood(w, 30)
    owner = ask(w, **LARGE)
    while not w.holds():
        w.advance(1)
    held = w.holds()
    w.restart()
    assert w.holds() == held
    assert seconds_until_placed(w, owner, 60) <= 45


def test_nodes_set_aside_count_when_they_are_held_for_a_starving_ask() -> None:
    """One of two nodes may be held. n1 is set aside for the owner, and n0 is held for `first`."""
    settings = {"starving_after": "10s", "held_nodes_percent": 50, "hold_large": False, "rebalance_after": 0}
    w = World({"queues": {"root": {"research": {"share": 60}, "batch": {"share": 40}}}, **settings})
    for name in ("n0", "n1"):
        w.node(name, cpu=4, labels={"node": name})
    w.submit(queue="root.batch", stages=[{"array": 8, "resources": {"cpu": 1}}])
    w.cycle()
    for name, queue, node in (("owner", "research", "n1"), ("first", "batch", "n0"), ("second", "batch", "n1")):
        w.submit(name=name, queue=f"root.{queue}", stages=[{"resources": {"cpu": 2}, "selectors": {"node": node}}])
        w.advance(5)
    w.advance(60)
    assert w.holds() == {"n0": [("first", "main", 1)], "n1": [("owner", "main", 1)]}


def later_small_jobs(w: World) -> tuple[str, list[str], str]:
    """Fill two nodes with loans; when one is set aside for a job of half the cluster, ask for small ones.

    Then two loans end on the other node. Returns the large job, the small ones, and the node.
    """
    w.nodes(2, cpu=4)
    loans = [w.submit(queue="root.lender", stages=[{"resources": {"cpu": 1}}]) for _ in range(16)]
    w.cycle()
    w.advance(10)
    large = ask(w, "root.owner", resources={"cpu": 4})
    w.advance(2)
    (node,) = w.holds()
    small = [ask(w, "root.owner", resources={"cpu": 1}) for _ in range(4)]
    w.advance(2)
    for loan in [loan for loan in loans if set(w.placements(loan).values()) - {node}][:2]:
        w.finish(loan)
        w.advance(2)
    return large, small, node


QUEUES = {"root": {"owner": {"share": 50}, "lender": {"share": 50}}}


def test_later_jobs_of_the_queue_do_not_use_up_the_share_that_is_set_aside() -> None:
    w = World({"queues": QUEUES, "rebalance_after": "0s"})
    large, small, node = later_small_jobs(w)
    assert not any(w.placements(job) for job in small)
    for allocation in list(w.partition().allocations.values()):
        if w.partition().nodes.find(node) == allocation.node:
            w.finish(allocation.stage.job.id)
    w.advance(1)
    assert w.placements(large)


def test_loans_stop_for_the_job_that_waited_first() -> None:
    w = World({"queues": QUEUES})
    large, small, _ = later_small_jobs(w)
    w.advance(100)
    assert w.placements(large) and not any(w.placements(job) for job in small)


def test_idle_capacity_goes_to_later_jobs_of_the_queue_all_the_same() -> None:
    w = World({"queues": QUEUES, "rebalance_after": "0s"})
    w.nodes(2, cpu=4)
    w.submit(queue="root.lender", stages=[{"count": 7, "min": 1, "resources": {"cpu": 1}, "duration": 600}])
    w.cycle()
    w.advance(10)
    large = ask(w, "root.owner", resources={"cpu": 4})
    w.advance(2)
    (node,) = w.holds()
    small = ask(w, "root.owner", resources={"cpu": 0.5})
    w.advance(2)
    assert w.placements(small) and not w.placements(large)
    assert list(w.holds()) == [node]  # the right was settled when the node was set aside


def test_a_node_that_is_lent_for_longer_takes_tasks_that_did_not_end_in_time_before() -> None:
    """When the queue of the owner uses its share, loans are not stopped for it, and its node is lent until they end."""
    w = World({"queues": {"root": {"owner": {"share": 25}, "lender": {"share": 75}}}})
    w.node("n0", cpu=3, labels={"on": "n0"})
    w.node("n1", cpu=9, labels={"on": "n1"})

    def task(cpu: int, node: str, **rest: Any) -> list[dict[str, Any]]:
        return [{"name": "s", "resources": {"cpu": cpu}, "selectors": {"on": node}, **rest}]

    w.submit(queue="root.lender", stages=task(1, "n0", count=2, min=1, duration=200, estimate=200))
    others = w.submit(queue="root.lender", stages=task(1, "n1", count=9, min=1))
    w.advance(1)
    large = w.submit(queue="root.owner", stages=task(3, "n0"))
    w.advance(10)
    assert list(w.holds()) == ["n0"]
    short = w.submit(queue="root.lender", stages=task(1, "n0", duration=80, estimate=80))
    w.advance(1)
    assert not w.placements(short)
    for index in range(3):
        w.finish(others, "s", index)
    small = w.submit(queue="root.owner", stages=task(1, "n1", count=3, min=1))
    w.advance(1)
    assert len(w.placements(small)) == 3 and not w.placements(large)
    assert w.placements(short)
