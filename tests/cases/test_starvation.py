"""Worked cases of Volcano's reserve, preempt and reclaim and of YuniKorn's asks and preemption, on holds and
promises.

A reserved task is one that a node is held for. Tasks that upstream would allocate at once are held here too, since no
task of a gang starts before all can. Evicted means told to stop. A task role is a stage, a queue's capability its
limit, and what a queue deserves by its weight a guarantee. Jobs are preemptible whole or not at all, so a job with
both kinds of tasks becomes two jobs here.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.policy.victim_sets import surplus
from fairlead.testing import World

GB = 10**9


def task(cpu: float, memory: int = GB, count: int = 1, **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "w", "count": count, "resources": {"cpu": cpu, "memory": memory}, **rest}]


def fill(w: World, node: str, cpu: float, memory: int) -> str:
    """Submit a job that uses these amounts of a node."""
    stage = {"name": "w", "resources": {"cpu": cpu, "memory": memory}, "selectors": {"name": node}}
    return w.submit(name=f"on-{node}", stages=[stage], preemptible=False)


def stopping(w: World) -> dict[str, int]:
    """Return the number of stopping tasks of each job."""
    found: dict[str, int] = {}
    for job in w.partition().jobs.values():
        tasks = [1 for stage in job.stages for each in (stage.live or {}).values() if each.state == "stopping"]
        if tasks:
            found[job.id] = len(tasks)
    return found


# -- reserve -----------------------------------------------------------------------------------------------------

# Nodes with CPU and what is used of it and of memory; the stages of the starving job; the nodes held for how many.
RESERVE: list[
    tuple[str, dict[str, tuple[float, float, int]], list[dict[str, Any]], dict[str, list[tuple[str, int]]]]
] = [
    (
        "reserve-01",
        {"n1": (3, 1, GB)},
        [
            {"name": "p2", "resources": {"cpu": 2, "memory": GB}},
            {"name": "p3", "resources": {"cpu": 1, "memory": GB}},
        ],
        {"n1": [("p2", 1), ("p3", 1)]},
    ),
    (
        "reserve-03",
        {"n1": (3, 1, 3 * GB // 2), "n2": (3, 1.5, 3 * GB // 2), "n3": (3, 2, 3 * GB // 2)},
        [{"name": "p", "count": 2, "resources": {"cpu": 3, "memory": GB}}],
        {"n1": [("p", 1)], "n2": [("p", 1)]},
    ),
    (
        "not enough nodes within the percentage",
        {"n1": (3, 1, GB), "n2": (3, 1, GB), "n3": (3, 1, GB)},
        [{"name": "p", "count": 3, "resources": {"cpu": 3, "memory": GB}}],
        {},
    ),
]


@pytest.mark.parametrize(("nodes", "stages", "held"), [row[1:] for row in RESERVE], ids=[row[0] for row in RESERVE])
def test_reserve(nodes: dict[str, Any], stages: list[dict[str, Any]], held: dict[str, Any]) -> None:
    w = World({"starving_after": "1s", "held_nodes_percent": 50, "hold_large": False})
    for name, (cpu, _, _) in nodes.items():
        w.node(name, cpu=cpu, memory=4 * GB, labels={"name": name})
    for name, (_, cpu, memory) in nodes.items():
        fill(w, name, cpu, memory)
    w.advance(0)
    w.submit(name="pg2", gang="job", stages=stages)
    w.advance(60)
    assert w.holds() == {node: [("pg2", *each) for each in tasks] for node, tasks in held.items()}
    assert not w.placements("pg2")


# The age of a job and the threshold, in seconds, and whether it starves.
STARVING: list[tuple[str, float, float, bool]] = [
    ("starving-02", 600, 600, False),
    ("older", 600.1, 600, True),
    ("reserve-07", 1.9, 2, False),
    ("reserve-09", 2.1, 2, True),
]


@pytest.mark.parametrize(
    ("age", "threshold", "starves"), [row[1:] for row in STARVING], ids=[row[0] for row in STARVING]
)
def test_starving(age: float, threshold: float, starves: bool) -> None:
    w = World({"starving_after": threshold})
    w.nodes(2, cpu=1, memory=GB)
    w.submit(name="full", stages=task(1, count=2))
    w.advance(0)
    w.submit(name="gang", stages=task(0.5, count=2))
    w.advance(age)
    assert bool(w.holds()) == starves


def test_a_gang_with_enough_held_nodes_gets_no_more() -> None:
    """starving-04: one of two tasks has room now, the other a held node. No more nodes are held, however old it is."""
    w = World({"starving_after": "600s", "hold_for": "100d"})
    w.nodes(3, cpu=1, memory=GB)
    w.submit(name="full", stages=task(1, count=2))
    w.advance(0)
    w.submit(name="gang", stages=task(1, memory=1, count=2))
    w.advance(601)
    before = w.holds()
    assert len(before) == 2
    w.advance(1_000_000)
    assert w.holds() == before


def test_of_equal_priority_the_longest_wait_comes_first() -> None:
    """elect-02."""
    w = World({"starving_after": "550s", "held_nodes_percent": 50, "hold_large": False})
    w.nodes(2, cpu=2, memory=4 * GB)
    w.submit(name="full", stages=task(2, count=2))
    w.advance(0)
    for at in (1, 2, 3):
        w.submit(name=f"job-{at}", stages=task(2, memory=at))
        w.advance(100 if at == 1 else 0)
    w.now += 600_000_000  # now all of them have waited for too long
    w.cycle()
    assert w.holds() == {"n0": [("job-1", "w", 1)]}


# -- preempt -----------------------------------------------------------------------------------------------------

LOW, MIDDLE, HIGH = 10, 500, 1000
Job = tuple[str, str, int, dict[str, Any]]
"""Name, queue, priority, and the rest of its document; its stage has tasks of one CPU and a gigabyte."""


def job(name: str, queue: str, priority: int, cpu: float = 1, count: int = 1, **rest: Any) -> Job:
    terms = {key: rest.pop(key) for key in ("min",) if key in rest}
    return name, queue, priority, {"stages": task(cpu, round(cpu * GB), count, **terms), **rest}


# CPUs of the node; queues; running jobs in the order of their starts; the claimant; job → number of stopped tasks.
PREEMPT: list[tuple[str, int, dict[str, Any], list[Job], Job, dict[str, int]]] = [
    ("preempt-01", 10, {"q1": {}}, [job("running", "q1", LOW, count=2)], job("claimant", "q1", HIGH), {}),
    (
        "preempt-03",
        2,
        {"q1": {}},
        [job("one", "q1", LOW), job("two", "q1", LOW, preemptible=False)],
        job("claimant", "q1", HIGH, count=2, min=1),
        {"one": 1},
    ),
    (
        "preempt-05",
        12,
        {"q1": {"limit": {"cpu": 4, "memory": 4 * GB}}},
        [job("one", "q1", LOW, cpu=3)],
        job("claimant", "q1", HIGH, cpu=3),
        {"one": 1},
    ),
    (
        "preempt-07",
        12,
        {"q1": {"limit": {"cpu": 3, "memory": 3 * GB}}},
        [job("one", "q1", LOW, preemptible=False), job("two", "q1", LOW), job("three", "q1", HIGH)],
        job("claimant", "q1", HIGH),
        {"two": 1},
    ),
    (
        "preempt-11",
        10,
        {"q1": {"limit": {"cpu": 3, "memory": 3 * GB}}},
        [job("one", "q1", LOW, count=2, min=1)],
        job("claimant", "q1", HIGH, cpu=4),
        {},
    ),
    (
        "preempt-13",
        2,
        {"q1": {}, "q2": {"limit": {"cpu": 4, "memory": 4 * GB}}},
        [job("runner", "q1", LOW), job("one", "q2", LOW)],
        job("claimant", "q2", HIGH),
        {"one": 1},
    ),
    (
        "reclaim-02",
        4,
        {name: {"guarantee": {"cpu": 1}} for name in ("q1", "q2", "q3")},
        [job("one", "q1", MIDDLE, count=2, min=1), job("two", "q2", LOW, count=2, min=1)],
        job("claimant", "q3", HIGH),
        {"two": 1},
    ),
    (
        "reclaim-06",
        3,
        {"q1": {}, "q2": {"guarantee": {"cpu": 1}}},
        [job("one", "q1", LOW, count=3, min=1)],
        job("claimant", "q2", LOW, stopped=True),
        {},
    ),
    (
        "a queue without a guarantee reclaims nothing",
        3,
        {"q1": {}, "q2": {}},
        [job("one", "q1", LOW, count=3, min=1)],
        job("claimant", "q2", HIGH),
        {},
    ),
    (
        "a guarantee that is met already gives no right",
        3,
        {"q1": {}, "q2": {"guarantee": {"cpu": 1}}},
        [job("one", "q1", LOW, count=2, min=1), job("two", "q2", HIGH)],
        job("claimant", "q2", HIGH),
        {},
    ),
    (
        "preempt-04 of YuniKorn",
        60,
        {"p": {"limit": {"cpu": 18}, "c1": {}, "c2": {"guarantee": {"cpu": 15}}, "c3": {}}},
        [job("one", "p.c1", 0, cpu=5), job("two", "p.c1", 0, cpu=5), job("four", "p.c3", 1000, cpu=5)],
        job("three", "p.c2", 0, cpu=10),
        {"one": 1, "two": 1},
    ),
]


@pytest.mark.parametrize(
    ("cpu", "queues", "running", "claimant", "evicted"), [row[1:] for row in PREEMPT], ids=[row[0] for row in PREEMPT]
)
def test_preempt(cpu: int, queues: dict[str, Any], running: list[Job], claimant: Job, evicted: dict[str, int]) -> None:
    w = World({"queues": {"root": queues}})
    w.node("n1", cpu=cpu, memory=cpu * GB)
    w.cycle()
    for name, queue, priority, rest in running:
        w.submit(name=name, queue=f"root.{queue}", priority=priority, **rest)
        w.advance(1)
    name, queue, priority, rest = claimant
    stopped = rest.pop("stopped", False)
    w.submit(name=name, queue=f"root.{queue}", priority=priority, **rest)
    if stopped:
        w.stop_queue(f"root.{queue}")
    w.cycle()
    assert stopping(w) == evicted
    assert bool(w.promises()) == bool(evicted)
    w.advance(0)
    # The claimant has started, if tasks were stopped for it.
    if evicted:
        assert w.job(name).state == "running"


def test_a_task_that_asks_only_for_a_place() -> None:
    """preempt-09: a node has one place for tasks that ask for nothing else."""
    w = World()
    w.node("n1", cpu=12, pods=1)
    w.cycle()
    place = [{"name": "w", "resources": {"pods": 1}}]
    w.submit(name="one", stages=place)
    w.advance(1)
    w.submit(name="claimant", stages=place, priority=HIGH)
    w.cycle()
    assert stopping(w) == {"one": 1}
    w.advance(0)
    assert w.job("claimant").state == "running"


def test_any_node_will_do_when_only_the_queue_is_full() -> None:
    """preempt-02 of YuniKorn: the newer of the two goes, and its node is promised."""
    tree = {"parent": {"limit": {"cpu": 10}, "child1": {"guarantee": {"cpu": 5}}, "child2": {"guarantee": {"cpu": 5}}}}
    w = World({"queues": {"root": tree}, "place": "spread"})
    w.nodes(2, cpu=10, pods=2)
    for name in ("alloc1", "alloc2"):
        stage = {"name": "w", "resources": {"cpu": 5, "pods": 1}}
        w.submit(name=name, queue="root.parent.child1", stages=[stage])
        w.advance(60)
    where = w.placements("alloc2")["w", 0]
    w.submit(name="alloc3", queue="root.parent.child2", stages=[{"name": "w", "resources": {"cpu": 5, "pods": 1}}])
    w.cycle()
    assert stopping(w) == {"alloc2": 1}
    assert w.promises() == {("alloc3", "w", "new"): [(where, 1)]}


# Running tasks of a gang, the tasks it has to keep, and the tasks it can lose.
GANG_VICTIMS = [("gang-victims-01", 3, 1, 2), ("gang-victims-03", 2, 0, 2), ("a gang that has just enough", 2, 2, 0)]


@pytest.mark.parametrize(
    ("running", "least", "lost"), [row[1:] for row in GANG_VICTIMS], ids=[row[0] for row in GANG_VICTIMS]
)
def test_a_gang_loses_only_what_it_can_do_without(running: int, least: int, lost: int) -> None:
    assert surplus(running, least) == lost


# -- YuniKorn's asks -------------------------------------------------------------------------------------


def test_a_holder_is_served_before_other_asks() -> None:
    """reserve-01 of YuniKorn."""
    w = World({"starving_after": "2s", "queues": {"root": {"leaf": {"order": "fifo"}}}})
    w.node("node-1", cpu=10)
    w.submit(name="full", stages=[{"resources": {"cpu": 10}}])
    w.advance(0)
    w.submit(name="alloc-2", stages=[{"resources": {"cpu": 1}}])
    w.advance(3)
    assert list(w.holds()) == ["node-1"]
    w.submit(name="alloc-1", stages=[{"resources": {"cpu": 1}}])
    w.prioritise("alloc-1", "main")
    w.cycle()
    w.finish("full")
    w.cycle()
    assert w.job("alloc-2").state == w.job("alloc-1").state == "running"
    numbers = {name: next(iter((w._stage(name, "main").live or {}).values())).id for name in ("alloc-1", "alloc-2")}
    assert numbers["alloc-2"] < numbers["alloc-1"]


def test_a_held_node_is_passed_by_others_and_its_holder_may_go_elsewhere() -> None:
    """reserve-03 of YuniKorn."""
    w = World({"starving_after": "2s"})
    w.node("node-2", cpu=10)
    w.submit(name="full", stages=[{"resources": {"cpu": 6}}])
    w.advance(0)
    w.submit(name="alloc-1", stages=[{"resources": {"cpu": 5}}])
    w.advance(3)
    assert list(w.holds()) == ["node-2"]
    w.submit(name="alloc-2", stages=[{"resources": {"cpu": 4}}])
    w.advance(0)
    assert w.job("alloc-2").state == "pending"
    w.node("node-1", cpu=5)
    w.advance(0)
    assert w.placements("alloc-1") == {("main", 0): "node-1"}
    assert w.placements("alloc-2") == {("main", 0): "node-2"} and not w.holds()


# -- the list ----------------------------------------------------------------------------------------------------

_ROWS = {row[0] for table in (RESERVE, STARVING, PREEMPT, GANG_VICTIMS) for row in table}
VOLCANO = _ROWS - {"reserve-07", "reserve-09"} | {
    "reserve-seedscore-01",
    "reserve-seedscore-03",
    "starving-04",
    "elect-02",
    "preempt-09",
    "score-03",
    "score-05",
    "score-07",
    "timeline-01",
}
"""Published cases of Volcano that are tested here, in core/test_score.py or in core/test_holds.py."""
YUNIKORN = {"reserve-01", "reserve-03", "reserve-07", "reserve-09", "preempt-02", "preempt-04"}
