"""Nothing expires while the server is away or the partition is not ready: holds, promises, orders and pauses."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.cycle import due
from fairlead.core.resources import SECOND
from fairlead.testing import World


def stage(count: int = 1, cpu: float = 1, **rest: Any) -> dict[str, Any]:
    return {"name": "w", "count": count, "resources": {"cpu": cpu}, **rest}


def come_back(w: World, away: float, unready: float = 20) -> None:
    """Keep the server away for `away` seconds and not ready for `unready` more; then it is ready."""
    kept = w.holds(), w.promises()
    w.restart(ready=False, away=away)
    w.cycle()
    w.advance(unready)
    assert not w.partition().readiness.ready and (w.holds(), w.promises()) == kept
    w.mark_ready()
    w.cycle()


UNHEARD: dict[str, Any] = {"ready_after": "1h", "lease": "10h"}


def gang_with_two_of_three() -> World:
    w = World({**UNHEARD, "promise_for": "1min"})
    w.pool("p", node={"cpu": 2}, max=3)
    w.submit(name="gang", stages=[stage(3, cpu=2)])
    w.cycle()
    w.arrive("p", 2)
    w.cycle()
    assert w.promises()["gang", "w", "new"] == [("p-1-0", 1), ("p-1-1", 1), ("p-1-2", 1)]
    return w


@pytest.mark.parametrize("times", [1, 3])
def test_nodes_that_came_are_kept_and_the_others_are_still_expected(times: int) -> None:
    w = gang_with_two_of_three()
    for _ in range(times):
        w.advance(50)
        come_back(w, 3600)
    w.submit(name="small", stages=[stage()])
    w.advance(59)
    assert w.partition().order_of and not w.placements("small")
    w.arrive("p")
    w.advance(0)
    assert len(w.placements("gang")) == 3


def test_the_time_of_ordered_nodes_begins_at_ready() -> None:
    w = gang_with_two_of_three()
    come_back(w, 3600)
    w.submit(name="small", stages=[stage()])
    w.cycle()
    w.pause_pool("p")
    w.advance(61)
    assert not w.partition().orders and not w.partition().promises
    assert w.placements("small") and not w.placements("gang")


def hung(promise_for: str = "1min") -> World:
    """A world in which two tasks must stop for a gang of higher priority, and their nodes are silent."""
    w = World({**UNHEARD, "promise_for": promise_for, "preempt_grace": "10s"})
    w.nodes(2, cpu=1)
    w.node("silent", cpu=1, taints=["no"])
    w.submit(name="low", stages=[stage(2)])
    w.advance(1)
    w.silence("n0")
    w.silence("n1")
    w.silence("silent")
    w.submit(name="high", priority=1, stages=[stage(2)])
    w.cycle()
    assert len(w.promises()) == 1
    return w


def test_what_stops_for_a_claim_stays_promised() -> None:
    w = hung()
    before = w.promises()
    come_back(w, 3600)
    w.advance(39)
    assert w.promises() == before
    w.advance(1)
    assert not w.promises(), "the tasks did not stop in time"


def test_a_promise_whose_tasks_have_stopped_serves_its_claimant_at_ready() -> None:
    """Both nodes report that the tasks are gone before the partition is ready. Nothing can start yet."""
    w = hung()
    before = w.promises()
    w.restart(ready=False, away=60)
    w.cycle()
    w.return_node("n0")
    w.return_node("n1")
    w.submit(name="other", stages=[stage(cpu=0.5)])
    w.advance(5)
    assert not w.partition().readiness.ready and not w.partition().allocations
    assert w.promises() == before
    w.mark_ready()
    w.advance(0)
    assert len(w.placements("high")) == 2 and not w.placements("other")


def test_a_hold_keeps_its_time() -> None:
    w = World({**UNHEARD, "starving_after": "10s", "hold_for": "100s", "held_nodes_percent": 100})
    w.nodes(2, cpu=1)
    for _ in range(2):
        w.submit(name="busy", stages=[stage()])
    w.cycle()
    w.submit(name="gang", stages=[stage(2)])
    w.advance(11)
    assert len(w.holds()) == 2
    come_back(w, 3600)
    w.advance(98)
    w.submit(name="other", stages=[stage(cpu=0.5)])
    w.advance(1)
    assert len(w.holds()) == 2
    assert [f"until {w.now / 1e6 + 1:g} s" in str(explanation) for explanation in w.explain("other")] == [True]
    w.advance(1.1)
    assert not w.holds()


def test_the_pause_after_a_hold_goes_on_where_it_was() -> None:
    w = World({**UNHEARD, "starving_after": "60s", "hold_for": "10s", "held_nodes_percent": 100})
    w.nodes(2, cpu=1)
    for _ in range(2):
        w.submit(name="busy", stages=[stage()])
    w.cycle()
    w.submit(name="gang", stages=[stage(2)])
    w.advance(61)
    assert len(w.holds()) == 2
    w.advance(10.1)
    assert not w.holds()
    w.advance(40)
    w.submit(name="later", queue="root.default", stages=[stage()])  # the time until here is in the journal
    w.cycle()
    come_back(w, 3600)
    w.advance(18)
    assert not w.holds()
    w.advance(2)
    assert len(w.holds()) == 2
    come_back(w, 3600)
    assert len(w.holds()) == 2, "a pause that is over stays over"


def test_the_pause_after_a_claim_goes_on_where_it_was() -> None:
    w = hung("20s")
    w.advance(31)
    assert not w.promises()
    w.advance(4)
    w.submit(name="later", stages=[stage()])  # the time until here is in the journal
    w.cycle()
    come_back(w, 3600)
    w.advance(14)
    assert due(w.partition()) == w.now + SECOND


def test_the_pause_of_a_pool_goes_on_where_it_was() -> None:
    w = World({**UNHEARD, "pool_pause": "1min"})
    w.node("known", cpu=1, taints=["no"])
    w.pool("p", node={"cpu": 4}, max=10)
    w.submit(name="job", stages=[stage()])
    w.cycle()
    w.fail_order("p")
    w.cycle()
    w.advance(20)
    w.submit(name="more", stages=[stage()])
    w.cycle()
    come_back(w, 3600)
    w.advance(39)
    assert not w.partition().orders
    w.advance(2)
    assert len(w.partition().orders) == 1


@pytest.mark.parametrize("make", [gang_with_two_of_three, hung])
def test_nothing_falls_due_in_the_past(make: Any) -> None:
    w = make()
    w.restart(ready=False, away=3600)
    w.cycle()
    for _ in range(400):
        when = due(w.partition())
        if when is None:
            break
        assert when > w.now or w.cluster.writers["default"].more
        w.now = max(when, w.now)
        w.cycle()
        w.cycle()
    else:
        pytest.fail("there is no end of it")
