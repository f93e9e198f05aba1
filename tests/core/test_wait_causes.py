"""For what do jobs wait? Small worlds with one cause each, and random worlds in which bills add up."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.model import Job, Micros
from fairlead.core.resources import SECOND
from fairlead.core.why.wait_causes import WaitCause
from fairlead.testing import World
from fairlead.views.bills import Bills
from tests.chaos.bill_checker import BillChecker
from tests.core.test_truth import AT_ONCE, FEW, MANY, Scene, Unchecked


class Charged:
    """Has the bill of each job, in seconds."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, float]] = {}
        self.partly: dict[str, dict[str, float]] = {}
        self.observer = Bills(self._charge)

    def _charge(self, job: Job, cause: WaitCause, partly: bool, start: Micros, end: Micros) -> None:
        bill = (self.partly if partly else self.of).setdefault(job.spec.name, {})
        bill[str(cause)] = bill.get(str(cause), 0) + (end - start) / SECOND


class Scenario:
    def __init__(self, config: dict[str, Any] | None = None, nodes: int = 1) -> None:
        self.bills = Charged()
        self.w = World({"starving_after": "1d", **(config or {})}, observers=[self.bills.observer])
        self.w.nodes(nodes, cpu=2)

    def submit(self, name: str, seconds: int = 1, cpu: int = 2, count: int = 1, **fields: Any) -> str:
        stage = {"name": "s", "count": count, "resources": {"cpu": cpu}, "duration": seconds}
        job = self.w.submit(name=name, stages=[stage], **fields)
        self.w.cycle()
        return job

    def bill(self, name: str) -> dict[str, float]:
        return self.bills.of.get(name, {})


def test_behind_and_busy() -> None:
    s = Scenario()
    s.submit("first", 60)
    s.submit("second", 30)
    s.submit("third", 30)
    s.w.advance(200)
    assert s.bill("first") == {}
    assert s.bill("second") == {"for nodes busy with jobs of queue root.default": 60}
    behind, busy = "behind other jobs of queue root.default", "for nodes busy with jobs of queue root.default"
    assert s.bill("third") == {behind: 60, busy: 30}


def test_loans() -> None:
    s = Scenario({"queues": {"root": {"ads": {"share": 50}, "ml": {"share": 50}}}, "rebalance_after": "40s"}, nodes=2)
    for number in range(2):
        s.submit(f"ad{number}", 600, queue="root.ads", user="ann")
    s.submit("train", 10, queue="root.ml", user="bob")
    s.w.advance(100)
    bill = s.bill("train")
    assert bill["for loans of queue root.ads that were not yet returned"] == pytest.approx(40, abs=1)
    assert sum(bill.values()) == pytest.approx(40, abs=1)


def test_own_share() -> None:
    s = Scenario({"queues": {"root": {"ads": {"share": 50}, "ml": {"share": 50}}}}, nodes=2)
    s.submit("ad", 600, queue="root.ads")
    s.submit("one", 20, queue="root.ml")
    s.submit("two", 20, queue="root.ml")
    s.w.advance(50)
    assert s.bill("two") == {"because queue root.ml used its whole share": 20}


def test_broken_node() -> None:
    s = Scenario(nodes=2)
    s.w.drain("n1")
    s.submit("first", 100)
    s.submit("second", 10)
    s.w.advance(30)
    s.w.enable("n1")
    s.w.advance(100)
    assert s.bill("second") == {"for nodes that were lost, drained or disabled": 30}


def test_limit_dependency_hold_and_begin() -> None:
    s = Scenario({"queues": {"root": {"default": {}, "q": {"limit": {"cpu": 2}}}}}, nodes=3)
    first = s.submit("first", 50, queue="root.q")
    s.submit("limited", 10, queue="root.q")
    s.submit("next", 10, after=[first])
    s.submit("later", 10, begin=20)
    held = s.submit("held", 10, hold=True, user="ann")
    s.w.advance(5)
    s.w.release(held)
    s.w.advance(100)
    assert s.bill("limited") == {"at the limit of queue root.q": 50}
    assert s.bill("next") == {f"for job {first}, after which it starts": 50}
    assert s.bill("later") == {"until its time to begin": 20}
    assert list(s.bill("held").values()) == [5]


def test_held_nodes_and_gangs() -> None:
    s = Scenario({"starving_after": "10s", "hold_for": "1h"}, nodes=2)
    s.submit("long", 100)
    s.submit("gang", 10, count=2)
    s.w.advance(20)
    s.submit("small", 5, cpu=1)
    s.w.advance(300)
    assert s.bill("small") == {
        "for nodes that were held for other jobs": 80,
        "for nodes busy with jobs of queue root.default": 10,
    }
    assert s.bill("gang") == {"for nodes busy with jobs of queue root.default": 100}


def test_never_fits_and_no_node() -> None:
    s = Scenario(nodes=0)
    s.w.submit(name="early", stages=[{"name": "s", "resources": {"cpu": 2}}])
    s.w.cycle()
    s.w.advance(7)
    s.w.node("n1", cpu=1)
    s.w.advance(5)
    s.w.node("n2", cpu=4)
    s.w.advance(5)
    assert s.bill("early") == {"until nodes joined": 7, "because no node could run it": 5}


def test_the_wait_while_other_tasks_run() -> None:
    s = Scenario()
    s.submit("array", 10, count=3)
    s.w.submit(name="tasks", stages=[{"name": "s", "array": 2, "resources": {"cpu": 2}, "duration": 10}])
    s.w.advance(200)
    assert sum(s.bills.partly.get("tasks", {}).values()) == 10


class Billed(Unchecked):
    def __init__(self, config: dict[str, Any]) -> None:
        self.bills = BillChecker()
        super().__init__(config, observers=[self.bills])


def look(seeds: range) -> None:
    causes: set[str] = set()
    for seed in seeds:
        scene = Scene(seed, Billed)
        scene.world.advance(100)
        assert isinstance(scene.world, Billed)
        scene.world.bills.at_end()
        causes |= {cause.kind for cause in scene.world.bills.causes}
    assert len(causes) > 8, causes


def test_bills_add_up_in_random_worlds() -> None:
    look(range(FEW))


@pytest.mark.long
@pytest.mark.parametrize("first", range(FEW, MANY, AT_ONCE))
def test_bills_add_up_in_many_worlds(first: int) -> None:
    look(range(first, min(MANY, first + AT_ONCE)))
