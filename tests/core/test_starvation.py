"""Properties of holds and preemption in random worlds: no ask starves, and no task is stopped without need.

1. a large gang starts in time under an endless stream of small tasks, and would not without holds
2. an ask starts for every stopped task, and a job is not stopped for a job that was stopped for it
3. the number of held nodes stays within its bound
4. starving gangs do not block each other: in the end all have run
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from fairlead.core import cycle
from fairlead.core.changes import Placed, Promised, Regrouped, Released, Stopped
from fairlead.core.model import Allocation, Promise
from fairlead.core.ranges import count
from fairlead.core.state import Partition
from fairlead.core.why.reasons import NeverFits
from fairlead.testing import World

# -- a stream of small tasks -------------------------------------------------------------------------------------

NODES, CPU = 10, 4
STARVING, LIMIT = 60, 20
"""Seconds: when a gang starves, and for how long a small task runs at most."""


class Stream:
    """A full machine with more small tasks than it can take, drawn from a seed, and one gang among them."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.random = Random(seed)
        self.w = World({"starving_after": STARVING, "hold_for": "1h", "backfill": "off", **config})
        self.w.nodes(NODES, cpu=CPU)
        self.waiting: list[str] = []
        self.number = 0
        self._refill()
        self.w.cycle()

    def _refill(self) -> None:
        """Submit small tasks, so that some always wait."""
        known = self.w.partition().jobs
        self.waiting = [name for name in self.waiting if name not in known or known[name].state == "pending"]
        while len(self.waiting) < 20:
            self.number += 1
            runs = self.random.randint(5, LIMIT)
            cpu = self.random.choice([1, 1, 1, 2])
            stage = {"name": "w", "resources": {"cpu": cpu}, "duration": runs, "time_limit": LIMIT + 1}
            self.waiting.append(self.w.submit(name=f"s{self.number}", stages=[stage]))

    def run(self, seconds: int) -> Iterator[int]:
        for second in range(seconds):
            self.w.advance(1)
            self._refill()
            yield second

    def started(self, gang: dict[str, Any], within: int) -> int | None:
        """Return the seconds until the gang starts; None if it does not."""
        for _ in self.run(2 * LIMIT):  # until the machine is full and nothing ends at the same time any more
            pass
        self.w.submit(name="gang", stages=[{"name": "w", **gang}])
        for second in self.run(within):
            if self.w.placements("gang"):
                return second
        return None


GANGS = {
    "40 %": ({"count": 4, "resources": {"cpu": CPU}}, {}),
    "100 %": ({"count": 10, "resources": {"cpu": CPU}}, {"hold_large": True}),
}
BOUND = STARVING + LIMIT + 2


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("gang", [*GANGS])
def test_a_large_gang_starts_in_time(gang: str, seed: int) -> None:
    document, config = GANGS[gang]
    after = Stream(seed, **config).started(document, BOUND)
    assert after is not None and after > STARVING - 1


@pytest.mark.parametrize("gang", [*GANGS])
def test_without_holds_it_would_wait(gang: str) -> None:
    document, config = GANGS[gang]
    assert Stream(1, **{**config, "hold_for": 0}).started(document, 2 * BOUND) is None


def test_a_gang_of_all_nodes_waits_without_its_own_permission() -> None:
    assert Stream(1, hold_large=False).started(GANGS["100 %"][0], 2 * BOUND) is None


# -- whatever is drawn -------------------------------------------------------------------------------------------


class Eyes:
    """An observer of preemption: which job was stopped for which, whether that was needed, and what started."""

    def __init__(self) -> None:
        self.edges: set[tuple[str, str]] = set()
        self.ended: list[str] = []
        self.placed: list[str] = []

    def began(self, partition: object) -> None:
        pass

    def stopped(self, partition: object, why: str) -> None:
        pass

    def cycle(self, decided: cycle.Cycle, seconds: object) -> None:
        partition = decided.plan.partition
        units: dict[tuple[Any, ...], list[Allocation]] = {}
        gangs: set[tuple[str, int]] = set()
        claims: list[tuple[Promised, dict[tuple[Any, ...], list[Allocation]]]] = []
        for change, before in decided.plan.done:
            if isinstance(change, Regrouped):
                gangs.add((change.job, 0 if partition.jobs[change.job].whole else change.stage))
            elif isinstance(change, Stopped) and change.cause == "preempt":
                stage = before.allocation.stage
                gang = (stage.job.id, 0 if stage.job.whole else stage.position)
                unit = gang if gang in gangs else (change.into or change.allocation,)
                units.setdefault(unit, []).append(partition.allocations[change.into or change.allocation])
            elif isinstance(change, Promised):
                claims.append((change, units))
                units, gangs = {}, set()
            elif isinstance(change, Released) and isinstance(before.earmark, Promise):
                self.ended.append(change.why)
            elif isinstance(change, Placed):
                self.placed.append(change.job)
        assert not units, "tasks were stopped and promised to no ask"
        for number, (promised, victims) in enumerate(claims):
            self._look_at(partition, promised, victims, claims[number:])

    def _look_at(
        self, partition: Partition, promised: Promised, victims: dict[Any, list[Allocation]], later: Any
    ) -> None:
        """Check that every victim had less right to the room than the claimant, and that none could be spared."""
        claimant = partition.jobs[promised.job]
        for each in (each for unit in victims.values() for each in unit):
            self.edges.add((claimant.id, each.stage.job.id))
            lower = each.stage.job.priority < claimant.priority
            other = each.stage.job.queue is not claimant.queue and each.stage.job.priority <= claimant.priority
            assert lower or (other and promised.cause == "guarantee"), "a task was stopped for a lower priority"
        own = claimant.stages[promised.stage]
        for stage in claimant.stages if claimant.whole and not own.started else (own,):
            over = sum(len(ranges) for ranges in (stage.ended or {}).values())
            needed = 1 if stage.started else min(stage.terms.min or stage.count, stage.count - over)
            promises = sum(tasks for _, at, tasks in promised.places if at == stage.position)
            assert promises == needed, "the promise does not cover all tasks that must start together"
        # Free capacity when all tasks that stopped before are gone, on nodes not earmarked for other asks.
        others = {id(each) for _, units in later for unit in units.values() for each in unit}
        theirs = {
            node_id for kept in [*partition.holds.values(), *partition.promises.values()] for node_id in kept.nodes
        }
        theirs -= {node_id for change, _ in later for node_id, _, _ in change.places}
        free = {
            node_id: partition.nodes.free(row).get("cpu", 0)
            for node_id, row in partition.nodes.rows.items()
            if node_id not in theirs
        }
        for each in partition.allocations.values():
            if each.node in free and each.state == "stopping" and id(each) not in others:
                free[each.node] += _cpu(each)
        wanted = sorted(
            (dict(claimant.stages[at].shape.amounts)["cpu"] for _, at, tasks in promised.places for _ in range(tasks)),
            reverse=True,
        )
        assert _fits(wanted, _with(free, [each for unit in victims.values() for each in unit])), (
            "the claimant cannot start"
        )
        for spared in victims:
            rest = [each for name, unit in victims.items() if name != spared for each in unit]
            assert not _fits(wanted, _with(free, rest)), f"{spared} need not have been stopped"


def _cpu(allocation: Allocation) -> int:
    return dict(allocation.stage.shape.amounts)["cpu"] * count(allocation.indices)


def _with(free: dict[int, int], gone: list[Allocation]) -> dict[int, int]:
    free = dict(free)
    for each in gone:
        if each.node in free:
            free[each.node] += _cpu(each)
    return free


def _fits(wanted: list[int], free: dict[int, int]) -> bool:
    """True if the tasks fit, largest first. With one large size and tasks of one CPU that order is optimal."""
    for cpu in wanted:
        node_id = next((node_id for node_id, left in free.items() if left >= cpu), None)
        if node_id is None:
            return False
        free[node_id] -= cpu
    return True


jobs = st.fixed_dictionaries(
    {
        "count": st.integers(1, 4),
        "cpu": st.integers(1, 4),
        "queue": st.sampled_from(["root.a", "root.b", "root.c"]),
        "priority": st.integers(0, 2),
        "duration": st.integers(1, 30),
    },
    optional={"min": st.just(1), "gang": st.just("job"), "preemptible": st.just(False)},
)
steps = st.lists(st.tuples(jobs, st.integers(0, 6)), min_size=1, max_size=14)
trees = st.fixed_dictionaries(
    {
        name: st.fixed_dictionaries({}, optional={"guarantee": st.fixed_dictionaries({"cpu": st.integers(1, 4)})})
        for name in "abc"
    }
)


def play(w: World, drawn: list[tuple[dict[str, Any], int]]) -> list[str]:
    w.most_cycles = 100
    names: list[str] = []
    for document, wait in drawn:
        terms = {key: document[key] for key in ("min", "duration") if key in document}
        stage = {"count": document["count"], "resources": {"cpu": document["cpu"]}, **terms}
        stages = [{"name": "w", **stage}]
        if "gang" in document:
            stages.append({"name": "v", "resources": {"cpu": 1}, "duration": document["duration"]})
        rest = {key: document[key] for key in ("queue", "priority", "gang", "preemptible") if key in document}
        names.append(w.submit(name=f"j{len(names)}", stages=stages, **rest))
        w.advance(wait)
    return names


A = {"count": 1, "cpu": 4, "queue": "root.a", "priority": 0, "duration": 30}
NEEDLESS = [({**A, "cpu": cpu, "priority": priority}, 1) for cpu, priority in [(4, 1), (4, 0), (2, 0), (4, 2)]]
"""The newest of low priority has too small a node, and must not be stopped with the one whose node will do."""
IN_VAIN = [({**A, "preemptible": False}, 1), (A, 1), ({**A, "count": 2, "priority": 1}, 1)]
"""One of two nodes cannot be freed, and a gang that needs both must not get the other."""

SHARE_SPENT: list[tuple[dict[str, Any], int]] = [
    ({**A, "count": 2, "cpu": 3, "duration": 6}, 0),
    ({**A, "cpu": 2, "queue": "root.b", "duration": 7, "gang": "job"}, 0),
    ({**A, "count": 4, "duration": 3, "min": 1, "preemptible": False}, 0),
    ({**A, "cpu": 2, "queue": "root.b", "duration": 1}, 0),
    ({**A, "count": 3, "cpu": 2, "duration": 1}, 0),
    ({**A, "cpu": 1, "duration": 1, "preemptible": False}, 0),
]
"""A holder of the same queue starts just before the last job, which is not preemptible and stops other tasks."""


BESIDE_A_HOLDER: list[tuple[dict[str, Any], int]] = [
    ({"count": 3, "cpu": 2, "gang": "job", "queue": "root.c", "min": 1, "duration": 29, "preemptible": False}, 1),
    ({"count": 4, "cpu": 2, "queue": "root.a", "min": 1, "duration": 19}, 3),
    ({"count": 1, "cpu": 3, "gang": "job", "queue": "root.b", "duration": 4}, 2),
    (
        {
            "count": 2,
            "cpu": 4,
            "gang": "job",
            "queue": "root.b",
            "min": 1,
            "duration": 26,
            "preemptible": False,
            "priority": 2,
        },
        2,
    ),
    (
        {
            "count": 2,
            "cpu": 4,
            "gang": "job",
            "queue": "root.a",
            "min": 1,
            "duration": 22,
            "preemptible": False,
            "priority": 2,
        },
        0,
    ),
    ({"count": 2, "cpu": 4, "gang": "job", "queue": "root.c", "min": 1, "duration": 12}, 6),
    ({"count": 3, "cpu": 1, "gang": "job", "queue": "root.b", "min": 1, "duration": 28}, 4),
]
"""A gang starts from its hold after the turn of an ask with a guarantee, and leaves capacity for it."""


@given(steps, trees, st.sampled_from([0, 3]))
@example(BESIDE_A_HOLDER, {"a": {}, "b": {"guarantee": {"cpu": 2}}, "c": {"guarantee": {"cpu": 4}}}, 3)
@example(NEEDLESS, {"a": {}}, 0)
@example(IN_VAIN, {"a": {}}, 0)
@example(SHARE_SPENT, {"a": {"guarantee": {"cpu": 1}}, "b": {}, "c": {}}, 3)
@settings(max_examples=150, deadline=None)
def test_every_stop_lets_an_ask_start(drawn: Any, tree: Any, holds: int) -> None:
    eyes = Eyes()
    w = World({"queues": {"root": tree}, "starving_after": 5, "hold_for": holds * 10}, observers=[eyes])
    w.nodes(2, cpu=4)
    w.node("n2", cpu=2)
    play(w, drawn)
    w.advance(300)
    assert set(eyes.ended) <= {"it has started"}
    assert not [pair for pair in eyes.edges if pair[::-1] in eyes.edges]
    assert {claimant for claimant, _ in eyes.edges} <= set(eyes.placed)
    assert not w.promises()


class Bound:
    """An observer that checks the bound on held nodes; only a large gang that holds alone may exceed it."""

    def __init__(self, most: int) -> None:
        self.most = most

    def began(self, partition: object) -> None:
        pass

    def stopped(self, partition: object, why: str) -> None:
        pass

    def cycle(self, decided: cycle.Cycle, seconds: object) -> None:
        holds = decided.plan.partition.holds.values()
        held = {node_id for hold in holds for node_id in hold.nodes}
        assert len(held) <= self.most or (len(holds) == 1 and all(hold.large for hold in holds)), "too many are held"


TWO_STARVE = [({**A, "count": 4, "min": 1}, 1), (A, 0), ({**A, "queue": "root.b"}, 0)]
"""Only one node may be held, and two heads want one each."""


@given(steps, st.sampled_from([0, 25, 50, 100]), st.booleans())
@example(TWO_STARVE, 25, False)
@settings(max_examples=100, deadline=None)
def test_starving_gangs_do_not_block_each_other(drawn: Any, percent: int, large: bool) -> None:
    """Every job that can ever fit has run in the end, and the number of held nodes stayed within its bound."""
    config = {"starving_after": 5, "hold_for": 200, "held_nodes_percent": percent, "hold_large": large}
    bound = Bound(-(-percent * 4 // 100))
    w = World({"queues": {"root": {"a": {}, "b": {}, "c": {}}}, **config}, observers=[bound])
    w.nodes(4, cpu=4)
    names = play(w, drawn)
    w.advance(800)
    for name in names:
        state = w.job(name).state
        assert state == "succeeded" or isinstance(w.explain(name)[0].reason, NeverFits), (name, state)
