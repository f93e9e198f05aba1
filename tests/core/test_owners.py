"""Owners come first, with default settings: work within the share of its queue starts within the documented bound."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.changes import Stopped
from fairlead.core.cycle import Cycle
from fairlead.testing import World
from fairlead.writer.writer import Observer

TWO = {"a": {"share": 60}, "b": {"share": 40}}
BOUND = 120
"""Seconds: `rebalance_after`, and `preempt_grace` twice. Stopped tasks end at once in these worlds."""


class Stops(Observer):
    """Counts the tasks that were stopped for others, with their times in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        changes = [change for change, _ in decided.plan.done if isinstance(change, Stopped)]
        self.times += [decided.plan.now / 1e6 for change in changes if change.cause == "preempt"]


def world(queues: dict[str, Any] = TWO, **config: Any) -> tuple[World, Stops]:
    stops = Stops()
    return World({"queues": {"root": queues}, **config}, observers=[stops]), stops


def submit(w: World, queue: str, name: str = "job", **stage: Any) -> str:
    return w.submit(name=name, queue=f"root.{queue}", stages=[{"resources": {"cpu": 1}, **stage}])


def flood(w: World, jobs: int = 600) -> None:
    """Fill all nodes with single tasks of `b` that run for two to three seconds."""
    for at in range(jobs):
        submit(w, "b", duration=2 + (at * 7 % 11) / 10)
    w.cycle()
    w.advance(10)


def wait(w: World, job: str, most: int = 600) -> int:
    waited = 0
    w.cycle()
    while not w.placements(job) and waited < most:
        w.advance(1)
        waited += 1
    return waited


def test_short_loans_on_nodes_set_aside_end_before_loans_are_stopped() -> None:
    """By the estimates of the long tasks the owner starts in an hour, and short tasks could follow each other."""
    w, stops = world()
    for node in ("n0", "n1"):
        w.node(node, cpu=4, labels={"name": node})
        submit(w, "b", selectors={"name": node}, duration=3600, estimate=3600)
    w.cycle()
    for at in range(300):
        submit(w, "b", duration=40, estimate=40)
        if at < 6:
            w.advance(7)
    w.advance(60)
    assert wait(w, submit(w, "a", resources={"cpu": 4})) <= 65
    assert len(stops.times) <= 4


@pytest.mark.parametrize("estimates", [True, False])
@pytest.mark.parametrize("long", [70, 130, 3600])
@pytest.mark.parametrize("pre", [5, 35, 65, 95])
def test_loans_of_different_lengths_come_back_in_time(estimates: bool, long: int, pre: int) -> None:
    w, _ = world({"a": {"share": 60}, "b": {"share": 30}, "c": {"share": 10}})
    w.nodes(3, cpu=4)
    for at in range(300):
        seconds = (20, long)[at % 2]
        submit(w, "c", duration=seconds, **({"estimate": seconds} if estimates else {}))
    w.cycle()
    w.advance(pre)
    assert wait(w, submit(w, "a", resources={"cpu": 4})) <= 95


INDIVISIBLE = [{"count": 2, "resources": {"cpu": 5}}, {"count": 10, "min": 9}, {"count": 10}]


@pytest.mark.parametrize("stage", INDIVISIBLE)
def test_an_indivisible_loan_comes_back_and_is_not_taken_again(stage: dict[str, Any]) -> None:
    """Without the gang its queue is below its share. It exceeds the share, so the owner keeps what it got."""
    w, stops = world()
    w.nodes(2, cpu=5)
    submit(w, "b", "gang", **stage)
    w.cycle()
    w.advance(100)
    owner = submit(w, "a", count=2, min=1)
    assert wait(w, owner) <= 65
    w.advance(3_000)
    assert len(w.placements(owner)) == 2 and max(stops.times) < 300


@pytest.mark.parametrize("cpu", [1, 2])
def test_tasks_that_end_within_the_grace_are_not_stopped(cpu: int) -> None:
    """The loans end five seconds after the time at which they would be stopped."""
    w, stops = world()
    w.nodes(1, cpu=4)
    for _ in range(4):
        submit(w, "b", estimate=165, duration=165)
    w.cycle()
    w.advance(100)
    assert wait(w, submit(w, "a", resources={"cpu": cpu})) == 65
    assert not stops.times


def test_a_loan_that_outlasts_its_estimate_is_stopped() -> None:
    w, stops = world()
    w.nodes(1, cpu=4)
    submit(w, "b", count=4, min=1, estimate=165, duration=3600)
    w.cycle()
    w.advance(100)
    assert 65 < wait(w, submit(w, "a", resources={"cpu": 2})) <= BOUND
    assert stops.times


def test_owners_get_nodes_where_holds_are_off() -> None:
    w, stops = world(hold_for="0s")
    w.nodes(3, cpu=4)
    flood(w)
    assert wait(w, submit(w, "a", resources={"cpu": 4})) <= 10
    assert not stops.times


@pytest.mark.parametrize("stage", [{"resources": {"cpu": 4}}, {"count": 4}])
def test_an_ask_beyond_the_entitlement_hides_none_within_it(stage: dict[str, Any]) -> None:
    w, _ = world()
    w.nodes(3, cpu=4)
    flood(w)
    submit(w, "a", "big", **{**stage, "count": 2 * stage.get("count", 1)})  # 8 of 7.2 CPUs
    w.cycle()
    assert wait(w, submit(w, "a", **stage)) <= 10
    assert not w.placements("big")


def test_several_gangs_of_a_lane_get_their_loans_together() -> None:
    w, _ = world()
    w.nodes(5, cpu=4)
    submit(w, "b", count=20, min=1)
    w.cycle()
    w.advance(100)
    gangs = [submit(w, "a", count=4) for _ in range(3)]  # 12 of 12 CPUs
    w.cycle()
    w.advance(62)
    assert all(w.placements(gang) for gang in gangs)


def test_children_without_shares_below_a_queue_with_a_share_have_equal_rights() -> None:
    w, _ = world({"ml": {"share": 60, "x": {}, "y": {}}, "b": {"share": 40}})
    w.nodes(1, cpu=4)
    submit(w, "ml.y", count=4, min=1)
    w.cycle()
    w.advance(100)
    assert wait(w, submit(w, "ml.x")) <= 65


def test_nodes_that_an_operator_releases_are_set_aside_again() -> None:
    """The pause is `promise_for`, not `starving_after`."""
    w, _ = world(rebalance_after="0s", promise_for="1min")
    w.nodes(1, cpu=4)
    submit(w, "b", count=4)
    w.cycle()
    owner = submit(w, "a", resources={"cpu": 2})
    w.cycle()
    w.advance(2)
    assert w.holds()
    w.release_hold(owner)
    w.advance(59)
    assert not w.holds()
    w.advance(2)
    assert w.holds()


def test_nodes_are_set_aside_where_loans_can_be_stopped() -> None:
    """n0 has a loan that may not be stopped; on n1 loans without estimates follow each other."""
    w, _ = world()
    w.node("n0", cpu=4)
    w.submit(queue="root.b", preemptible=False, stages=[{"count": 2, "resources": {"cpu": 1}}])
    w.cycle()
    w.node("n1", cpu=4)
    flood(w)
    assert wait(w, submit(w, "a", resources={"cpu": 4})) <= 10


# -- properties ------------------------------------------------------------------------------------------------------

JOBS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 8),
        st.booleans(),
        st.sampled_from([0.5, 1, 2, 3, 4]),
        st.integers(0, 90),
    ),
    min_size=2,
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(shares=st.lists(st.integers(1, 9), min_size=3, max_size=3), nodes=st.integers(1, 4), jobs=JOBS)
def test_stops_come_to_an_end(shares: list[int], nodes: int, jobs: list[tuple[str, int, bool, float, int]]) -> None:
    """No task ends and none comes: queues do not take capacity from each other in turn."""
    w, stops = world({name: {"share": share} for name, share in zip("abc", shares, strict=True)})
    w.nodes(nodes, cpu=4)
    for queue, count, gang, cpu, pause in jobs:
        submit(w, queue, count=count, min=count if gang else 1, resources={"cpu": cpu})
        w.cycle()
        w.advance(pause)
    w.advance(600)
    before = len(stops.times)
    w.advance(3_000)
    assert len(stops.times) == before


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    loans=st.sampled_from([20, 45, 90, 3600]),
    estimates=st.booleans(),
    cpu=st.sampled_from([1, 2, 4]),
    count=st.integers(1, 3),
)
def test_an_owner_waits_at_most_the_bound(seed: int, loans: int, estimates: bool, cpu: int, count: int) -> None:
    """All loans may be stopped. The gang or task of the owner is within its entitlement."""
    random = Random(seed)
    w, _ = world({"a": {"share": 60}, "b": {"share": 30}, "c": {"share": 10}})
    w.nodes(5, cpu=4)
    for _ in range(1 + 4_000 // loans if loans < 90 else 60):
        seconds = round(loans * random.uniform(0.5, 1.5), 2)
        guess = {"estimate": round(seconds * random.uniform(0.5, 1.5), 2)} if estimates else {}
        size = random.choice([1, 1, 1, 2, 4])
        submit(w, random.choice("bc"), resources={"cpu": size}, duration=seconds, **guess)
    w.cycle()
    w.advance(random.randint(0, 100))
    assert wait(w, submit(w, "a", count=count, resources={"cpu": cpu}), BOUND + 1) <= BOUND


def test_a_gang_that_is_stopped_for_one_owner_is_not_waited_for_by_the_next() -> None:
    # The tasks on n1 end soon by their estimate, but those on n0 have passed theirs, so the gang stops as a whole.
    w = World({"queues": {"root": {"lent": {"share": 50}, "own": {"share": 50}}}})
    w.node("n0", cpu=4)
    w.node("n1", cpu=2)
    w.hold_acks("n1")
    loan = {"name": "s", "count": 6, "min": 5, "scaling": "partial", "resources": {"cpu": 1}, "estimate": "53s"}
    w.submit(name="loan", queue="root.lent", stages=[loan])
    w.advance(0.05)
    w.release_acks("n1")
    w.advance(17)
    stages = [{"name": name, "count": count, "resources": {"cpu": 1}} for name, count in (("two", 2), ("one", 1))]
    w.submit(name="owner", queue="root.own", stages=stages)
    w.advance(110)
    assert w.job("owner").state == "running"


def test_a_unit_of_which_a_part_is_on_loan_may_stop_before_those_that_are_on_loan_as_a_whole() -> None:
    # Two nodes with tasks of b have to be cleared, one with a task of 4 CPUs: b keeps 5 of its 6 CPUs.
    w, _ = world({"a": {"share": 60}, "b": {"share": 30}, "c": {"share": 10}})
    w.nodes(5, cpu=4)
    for queue, cpu, tasks in (("b", 1, 4), ("c", 1, 3), ("b", 1, 5), ("b", 4, 1), ("c", 4, 1)):
        for _ in range(tasks):
            submit(w, queue, resources={"cpu": cpu}, duration=3600)
        w.cycle()
    w.advance(60)
    assert wait(w, submit(w, "a", count=3, resources={"cpu": 4}), BOUND + 1) <= BOUND
