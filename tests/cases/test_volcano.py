"""Worked cases of Volcano's gangs and allocation on our stages: what starts together, and what starts at all.

A role of a job is a stage here, a minimum is `min`, a queue's capability is its limit, and binding is placing. Amounts
are in the units people write. Rows with an id are published cases; the others follow from the same rules. `NOT_OURS`
names the published cases that Fairlead decides differently.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.why.reasons import NeverFits, NoCapacity, OverLimit
from fairlead.testing import World
from tests.cases import test_starvation as starvation

PUBLISHED = """
allocate-01 allocate-03 allocate-05 preempt-01 preempt-03 preempt-05 preempt-07 preempt-09 preempt-11 preempt-13
reclaim-02 reclaim-04 reclaim-06 reclaim-08 reserve-01 reserve-03 reserve-seedscore-01 reserve-seedscore-03 score-01
score-03 score-05 score-07 starving-02 starving-04 gang-01 gang-03 gang-05 gang-releasing-02 gang-releasing-04
gang-victims-01 gang-victims-03 elect-02 share-01 share-03 share-05 queue-check-02 queue-check-04 timeline-01
""".split()

NEVER = "queues and priorities decide which jobs may stop others; no job is excluded from that"
SHARES = "queues take turns by use over share (core/test_turns.py)"
NOT_OURS = {
    "allocate-05": SHARES,
    "gang-05": "`min` is 1 at least; a stage scaled to no tasks is complete (`test_nothing_to_start_is_complete`)",
    "gang-releasing-04": "a task withdrawn before it was placed is over at once, so it has no reason to wait",
    "score-01": "nodes are scored by free against requested amounts, not by use",
    **dict.fromkeys(["reclaim-04", "reclaim-08"], NEVER),
    **dict.fromkeys(["share-01", "share-03", "share-05"], SHARES),
}


def stage(count: int, cpu: float = 1, **rest: Any) -> dict[str, Any]:
    return {"name": "w", "count": count, "resources": {"cpu": cpu}, **rest}


def states(w: World, job: str, count: int) -> list[str]:
    return [w.task(job, "w", index).state for index in range(count)]


# -- gangs -------------------------------------------------------------------------------------------------------

# Tasks, the minimum, free CPUs, CPUs of tasks that are stopping; the number of tasks that start.
GANGS: list[tuple[str, int, int | None, int, int, int]] = [
    ("gang-01", 3, 3, 3, 0, 3),
    ("gang-03", 3, 3, 1, 1, 0),
    ("room that is coming is not room", 3, 3, 2, 1, 0),
    ("min is count unless said otherwise", 3, None, 2, 0, 0),
    ("a minimum, and no more room", 5, 3, 3, 0, 3),
    ("a minimum, and some of the rest", 5, 3, 4, 0, 4),
    ("below the minimum", 5, 3, 2, 2, 0),
    ("an array", 5, 1, 2, 0, 2),
    ("an array without room", 5, 1, 0, 2, 0),
]


@pytest.mark.parametrize(
    ("count", "least", "free", "stopping", "starts"), [row[1:] for row in GANGS], ids=[row[0] for row in GANGS]
)
def test_what_starts_together(count: int, least: int | None, free: int, stopping: int, starts: int) -> None:
    w = World()
    w.nodes(count, cpu=1)
    fillers = [w.submit(name="filler", stages=[stage(1)]) for _ in range(count - min(free, count))]
    w.advance(0)
    job = w.submit(stages=[stage(count, **({} if least is None else {"min": least}))])
    for filler in fillers[:stopping]:
        w.kill(filler)
    w.cycle()
    assert len(w.placements(job)) == starts
    if not starts:
        reason = w.explain(job)[0].reason
        assert isinstance(reason, NoCapacity) and (reason.wanted, reason.fitting) == (least or count, free)
    assert (w.job(job).state == "running") == (starts > 0)
    # As soon as the others have stopped there is room for one task a CPU, if that is enough.
    w.advance(0)
    assert len(w.placements(job)) == (free + stopping if free + stopping >= (least or count) else 0)


def test_a_gang_that_asks_for_nothing_needs_no_room() -> None:
    """A task without a request is always counted as there."""
    w = World()
    w.node("n1", cpu=1)
    full = w.submit(stages=[stage(1)])
    gang = w.submit(stages=[stage(3, cpu=0)])
    w.cycle()
    assert (len(w.placements(full)), len(w.placements(gang))) == (1, 3)


def test_nothing_to_start_is_complete() -> None:
    """As gang-05."""
    w = World()
    w.node("n1", cpu=1)
    full, job = w.submit(stages=[stage(1)]), w.submit(stages=[stage(2, min=1)])
    w.cycle()
    w.scale(job, "w", 0)
    w.cycle()
    assert (w.job(full).state, w.job(job).state, w.lanes()) == ("running", "succeeded", {})


def test_what_waits_beside_one_that_stops_says_why() -> None:
    """gang-releasing-02: of three tasks, at least two, one runs, one stops, and one waits with a reason."""
    w = World()
    w.nodes(2, cpu=1)
    job = w.submit(stages=[stage(3, min=2)])
    w.advance(0)
    w.scale(job, "w", 1)
    w.scale(job, "w", 3)
    w.cycle()
    assert states(w, job, 3) == ["running", "stopping", "pending"]
    (waiting,) = w.explain(job)
    assert isinstance(waiting.reason, NoCapacity) and waiting.count == 1


@pytest.mark.parametrize(("on_loss", "first"), [("replace", "succeeded"), ("restart", "running")])
def test_members_that_succeeded_count_for_the_minimum(on_loss: str, first: str) -> None:
    """Ready is allocated, running and succeeded: what is left of a gang starts again without them.

    With `restart`, all tasks run again, as with Volcano's RestartJob.
    """
    w = World({"replace_within": "10s"})
    w.nodes(3, cpu=1)
    job = w.submit(stages=[stage(3, on_loss=on_loss)])
    w.advance(0)
    w.finish(job, "w", 0)
    w.fail_node("n1")
    w.advance(1)
    w.fail_node("n2")
    w.advance(30)
    for node in ("n1", "n2"):
        w.return_node(node)
    w.advance(1)
    assert states(w, job, 3) == [first, "running", "running"]


def test_growth_is_a_gang_too_unless_it_is_partial() -> None:
    for terms, starts in (({}, [4, 4, 7]), ({"scaling": "partial"}, [4, 6, 7]), ({"min": 2}, [4, 6, 7])):
        w = World()
        w.node("n1", cpu=4)
        job = w.submit(stages=[stage(4, **terms)])
        w.cycle()
        placed = [len(w.placements(job))]
        w.scale(job, "w", 7)
        for name, cpu in (("n2", 2), ("n3", 1)):
            w.node(name, cpu=cpu)
            w.cycle()
            placed.append(len(w.placements(job)))
        assert placed == starts, terms


# -- allocate ----------------------------------------------------------------------------------------------------

GB = 10**9


def role(name: str, count: int, **rest: Any) -> dict[str, Any]:
    return {
        "name": name,
        "count": count,
        "resources": {"cpu": 1, "memory": GB},
        "selectors": {"nodeRole": name},
        **rest,
    }


def node(cpu: int, memory: str, name: str) -> dict[str, Any]:
    return {"cpu": cpu, "memory": memory, "labels": {"nodeRole": name}}


TWO_ROLES = {"n1": node(1, "2Gi", "master"), "n2": node(2, "2Gi", "worker")}
MASTERS = {"n1": node(2, "2Gi", "master"), "n2": node(2, "2Gi", "worker")}

ALLOCATE: list[tuple[str, dict[str, Any], list[dict[str, Any]], dict[tuple[str, int], str]]] = [
    ("allocate-01", {"n1": node(2, "4Gi", "worker")}, [role("master", 1), role("worker", 1)], {("worker", 0): "n1"}),
    ("allocate-03", TWO_ROLES, [role("master", 2), role("worker", 2, min=1)], {}),
    (
        "as allocate-03: each stage is a gang of its own",
        TWO_ROLES,
        [role("master", 2), role("worker", 2, min=1)],
        {("worker", 0): "n2", ("worker", 1): "n2"},
    ),
    (
        "as allocate-03 with room for the masters",
        MASTERS,
        [role("master", 2), role("worker", 2)],
        {("master", 0): "n1", ("master", 1): "n1", ("worker", 0): "n2", ("worker", 1): "n2"},
    ),
    (
        "what a role cannot have does not keep the next from its minimum",
        TWO_ROLES,
        [role("master", 2, min=1), role("worker", 3, min=2)],
        {("master", 0): "n1", ("worker", 0): "n2", ("worker", 1): "n2"},
    ),
    (
        "memory is short, not cpu",
        {"n1": node(8, "1Gi", "worker")},
        [role("worker", 2, min=2)],
        {},
    ),
    (
        "one of several values of a label",
        TWO_ROLES,
        [role("any", 3, selectors={"nodeRole": ["master", "worker"]})],
        {("any", 0): "n1", ("any", 1): "n2", ("any", 2): "n2"},
    ),
]


WHOLE = {"allocate-03"}
"""Where all roles of a job start together: the published minima are the job's there."""


@pytest.mark.parametrize(("case", "nodes", "stages", "expected"), ALLOCATE, ids=[row[0] for row in ALLOCATE])
def test_allocate(
    case: str, nodes: dict[str, Any], stages: list[dict[str, Any]], expected: dict[tuple[str, int], str]
) -> None:
    w = World()
    for name, properties in nodes.items():
        w.node(name, **properties)
    job = w.submit(stages=stages, gang="job" if case in WHOLE else "stage")
    w.cycle()
    assert w.placements(job) == expected
    # A job that did not start has a reason: its stage is larger than all nodes of its kind.
    placed = {name for name, _ in expected}
    assert all(
        isinstance(explanation.reason, NeverFits) for explanation in w.explain(job) if explanation.stage not in placed
    )


# Limits of two queues and what runs there; then a job of one task with what it asks for, and where it goes.
LIMITS = {"q1": {"cpu": 2, "memory": 2 * GB}, "q2": {"cpu": 3, "memory": 3 * GB}}
RUNNING = {"q1": ("n1", {"cpu": 1, "memory": 2 * GB}), "q2": ("n2", {"cpu": 2, "memory": GB})}
QUEUE_CHECKS: list[tuple[str, dict[str, Any], str, dict[str, Any], str | None]] = [
    ("queue-check-02", LIMITS, "q2", {"cpu": 0, "memory": GB}, "n2"),
    ("queue-check-04", LIMITS, "q1", {"cpu": 1, "memory": GB}, None),
    ("full in cpu, which is not asked for", {**LIMITS, "q2": {"cpu": 2, "memory": 3 * GB}}, "q2", {"memory": GB}, "n2"),
    ("full in memory, which is not asked for", LIMITS, "q1", {"cpu": 1}, "n1"),
    ("over in one of two", {**LIMITS, "q2": {"cpu": 2, "memory": 3 * GB}}, "q2", {"cpu": 1, "memory": GB}, None),
]


@pytest.mark.parametrize(
    ("limits", "queue", "need", "expected"), [row[1:] for row in QUEUE_CHECKS], ids=[row[0] for row in QUEUE_CHECKS]
)
def test_only_what_is_asked_for_is_compared(
    limits: dict[str, Any], queue: str, need: dict[str, Any], expected: str | None
) -> None:
    w = World({"queues": {"root": {name: {"limit": limit} for name, limit in limits.items()}}})
    for name in ("n1", "n2"):
        w.node(name, cpu=2, memory=2 * GB, labels={"name": name})
    for name, (where, used) in RUNNING.items():
        w.submit(queue=f"root.{name}", stages=[{"resources": used, "selectors": {"name": where}}])
    w.cycle()
    job = w.submit(queue=f"root.{queue}", stages=[{"resources": need}])
    w.cycle()
    assert w.placements(job) == ({} if expected is None else {("main", 0): expected})
    if expected is None:
        assert isinstance(w.explain(job)[0].reason, OverLimit)


# -- the list ----------------------------------------------------------------------------------------------------

TESTED = {row[0] for table in (GANGS, ALLOCATE, QUEUE_CHECKS) for row in table} | {"gang-releasing-02"}
TESTED |= starvation.VOLCANO


def test_every_published_case_is_tested_or_named() -> None:
    assert not TESTED & set(NOT_OURS)
    assert set(PUBLISHED) == TESTED & set(PUBLISHED) | set(NOT_OURS)
