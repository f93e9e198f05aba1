"""One admission: a check that is added to the list is obeyed by everything that starts work or orders nodes for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.core import cycle
from fairlead.core.admission import CHECKS, Admission, Check
from fairlead.core.asks import Needs
from fairlead.core.changes import SinglesPlaced
from fairlead.core.effects import ForPool
from fairlead.core.match import single_tasks
from fairlead.core.model import Ask
from fairlead.core.state import Partition
from fairlead.core.why.reasons import NotActive, Reason
from fairlead.testing import World
from tests.chaos.start_checker import DoorChecker

SUSPENDED: set[str] = set()
OBEYS = {"checks": ["user_suspended"]}


def user_suspended(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    user = ask.stage.job.spec.user
    return NotActive(f"of {user}") if user in SUSPENDED else None


@pytest.fixture(autouse=True)
def _with_check(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add a check to admission, as a new check of the core is added: one function, one line."""
    monkeypatch.setitem(CHECKS, "user_suspended", Check(user_suspended))
    monkeypatch.setattr(single_tasks, "FEW", 2)
    SUSPENDED.clear()
    SUSPENDED.add("eve")
    yield
    SUSPENDED.clear()


def stage(count: int = 1, cpu: Any = 1, **rest: Any) -> dict[str, Any]:
    return {"name": "w", "count": count, "resources": {"cpu": cpu}, **rest}


def ordered(w: World) -> int:
    return sum(len(order.names) for effect in w.effects() if isinstance(effect, ForPool) for order in effect.orders)


@pytest.mark.parametrize(
    "settings", [{}, {"backfill": "easy"}, {"place": "spread"}], ids=["pack", "backfill", "spread"]
)
@pytest.mark.parametrize(
    "stages",
    [[stage()], [stage(3)], [stage(3, min=1)], [stage(1, near="rack")], [stage(2), {**stage(2), "name": "x"}]],
    ids=["single", "gang", "array", "near", "stages"],
)
@pytest.mark.parametrize("gang", ["stage", "job"])
def test_no_start_of_any_kind(settings: dict[str, Any], stages: list[dict[str, Any]], gang: str) -> None:
    w = World({**settings, **OBEYS})
    w.nodes(4, cpu=8)
    w.cycle()
    refused = [w.submit(name=f"e{at}", user="eve", gang=gang, stages=stages) for at in range(5)]
    allowed = [w.submit(name=f"a{at}", user="ann", gang=gang, stages=stages) for at in range(3)]
    w.advance(1)
    assert not any(w.placements(job) for job in refused)
    assert all(w.placements(job) for job in allowed)
    assert isinstance(w.explain(refused[0])[0].reason, NotActive)
    SUSPENDED.clear()
    w.node("more", cpu=1)  # something has to wake the lanes
    w.advance(1)
    assert all(w.placements(job) for job in refused)


@pytest.mark.parametrize("counts_use", [True, False])
def test_a_flood_of_single_tasks_obeys(counts_use: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that does not count use leaves batches as large as they are without it."""
    monkeypatch.setitem(CHECKS, "user_suspended", Check(user_suspended, counts_use=counts_use))
    batches = Batches()
    w = World(OBEYS, observers=[batches, DoorChecker()])
    w.nodes(4, cpu=4)
    w.cycle()
    for at in range(40):
        w.submit(name=f"j{at}", user="eve" if at % 2 else "ann", stages=[stage()])
    w.cycle()
    assert {w.job(job.id).user for job in w.partition().jobs.values() if job.allocations} == {"ann"}
    assert batches.sizes == ([1] * 16 if counts_use else [4] * 4)


class Batches:
    """Observes how many single tasks are booked by one change."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def began(self, partition: Partition) -> None:
        pass

    def cycle(self, decided: cycle.Cycle, seconds: object) -> None:
        self.sizes += [len(change.tasks) for change in decided.changes if isinstance(change, SinglesPlaced)]

    def stopped(self, partition: Partition, why: str) -> None:
        pass


def test_a_check_follows_the_settings_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which checks apply is cached; a new setting empties the cache, whichever it is."""
    applies = Check(user_suspended, lambda partition, job: partition.settings.backfills)
    monkeypatch.setitem(CHECKS, "user_suspended", applies)
    w = World({**OBEYS, "backfill": "off"})
    w.nodes(4, cpu=4)
    first = w.submit(name="first", user="eve", stages=[stage()])
    w.cycle()
    assert w.placements(first)
    w.configure({**OBEYS, "backfill": "easy"})
    later = w.submit(name="later", user="eve", stages=[stage()])
    w.cycle()
    assert not w.placements(later)


def test_the_judge_of_starts_does_not_expect_what_a_check_refuses() -> None:
    w = World(OBEYS, observers=[DoorChecker()])
    w.nodes(1, cpu=4)
    w.submit(name="e", user="eve", stages=[stage(2)])
    w.advance(1)
    allowed = w.submit(name="a", user="ann", stages=[stage(2)])
    w.advance(1)
    assert w.placements(allowed)


@pytest.mark.parametrize("count", [1, 3])
def test_no_order(count: int) -> None:
    w = World(OBEYS)
    w.pool("p", node={"cpu": 1}, max=10)
    w.submit(name="e", user="eve", stages=[stage(count)])
    w.advance(5)
    assert ordered(w) == 0
    w.submit(name="a", user="ann", stages=[stage(count)])
    w.advance(5)
    assert ordered(w) == count


@pytest.mark.parametrize("count", [1, 3])
def test_nodes_that_arrive_start_no_ask_that_was_suspended_meanwhile(count: int) -> None:
    w = World(OBEYS)
    w.pool("p", node={"cpu": 1}, max=10)
    job = w.submit(name="b", user="bob", stages=[stage(count)])
    w.cycle()
    assert ordered(w) == count
    SUSPENDED.add("bob")
    w.arrive("p", n=count)
    w.advance(1)
    assert not w.placements(job)


def test_no_start_from_a_hold() -> None:
    w = World({"starving_after": "10s", **OBEYS})
    w.nodes(2, cpu=2)
    w.submit(name="busy", stages=[stage(4, min=1)])
    w.advance(0)
    gang = w.submit(name="gang", user="bob", stages=[stage(2, cpu=2)])
    w.advance(11)
    assert w.holds()
    SUSPENDED.add("bob")
    for index in range(4):
        w.finish("busy", "w", index)
    w.advance(1)
    assert not w.placements(gang) and not w.holds()


def test_nothing_is_stopped_for_it() -> None:
    w = World(OBEYS)
    w.nodes(2, cpu=1)
    low = w.submit(name="low", stages=[stage(2, min=1)])
    w.advance(0)
    w.submit(name="high", user="eve", priority=10, stages=[stage(2)])
    w.advance(60)
    assert len(w.placements(low)) == 2


def test_no_chain() -> None:
    w = World({"chain": "10s", **OBEYS})
    w.node("n", cpu=1)
    w.submit(name="quick", user="bob", stages=[stage(20, min=1, duration=1)])
    w.advance(1.5)
    assert w.partition().derived.chains
    SUSPENDED.add("bob")
    known = {index for allocation in w.partition().allocations.values() for index in range(*allocation.indices[:2])}
    w.advance(60)
    ended = [index for index in range(20) if w.task("quick", "w", index).state == "succeeded"]
    assert set(ended) <= known | {0}, "only tasks that were sent before"
