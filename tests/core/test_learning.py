"""Learned run times: the mean of the last two runs, bounded by what was submitted, and what heads may rely on."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from fairlead.core import cycle, last_runs, state
from fairlead.core.changes import Placed, StartPlanned
from fairlead.core.last_runs import expected_run
from fairlead.core.model import NEW
from fairlead.core.policy.run_times import learned_end, learned_run
from fairlead.core.resources import DAY, SECOND
from fairlead.testing import World


@pytest.mark.parametrize(
    ("last", "before", "given", "expected"),
    [
        (10, None, None, 10),
        (10, 20, None, 15),
        (10, 20, 12, 12),
        (10, 20, 99, 15),
        (0, None, None, 1),  # a run of no length counts as a second
        (0, None, 0, 0),
    ],
)
def test_the_mean_of_two_runs(last: int, before: int | None, given: int | None, expected: int) -> None:
    seconds = [None if each is None else each * SECOND for each in (before, given)]
    assert learned_run(last * SECOND, *seconds) == expected * SECOND


@pytest.mark.parametrize(
    ("given", "now", "end"), [(100, 9, 10), (100, 10, 100), (100, 100, 200), (None, 10, 20), (None, 45, 80)]
)
def test_a_run_that_takes_longer_than_learned(given: int | None, now: int, end: int) -> None:
    in_micros = None if given is None else given * SECOND
    assert learned_end(0, 10 * SECOND, in_micros, now * SECOND) == end * SECOND


def world(**config: Any) -> World:
    w = World(config={"backfill": "easy", "estimates": "learned", "chain": 0, **config})
    w.node("n0", cpu=4)
    return w


def stage(count: int = 1, **rest: Any) -> dict[str, Any]:
    return {"name": "w", "count": count, "resources": {"cpu": 1}, **rest}


def expected(w: World, job: str) -> float | None:
    w.cycle()
    length = expected_run(w.partition(), w.partition().jobs[job].stages[0])
    return None if length is None else length / SECOND


def run(w: World, seconds: int, **job: Any) -> None:
    """Run a job to its end."""
    w.submit(stages=[stage(duration=seconds)], **job)
    w.advance(seconds)


def test_runs_of_the_same_name_come_first_then_those_of_the_user() -> None:
    w = world()
    w.submit(name="fill", user="eve", stages=[stage(4)])
    w.kill("fill")
    run(w, 10, name="a", user="ann")
    run(w, 30, name="b", user="ann")
    run(w, 50, name="b", user="ann")
    w.submit(name="fill", user="eve", stages=[stage(4)])
    w.advance(0)
    submits = {"a": "ann", "b": "ann", "c": "ann", "d": "bob"}
    jobs = {name: w.submit(name=name, user=user, stages=[stage(estimate=60)]) for name, user in submits.items()}
    w.cycle()
    assert [expected(w, jobs[name]) for name in "abcd"] == [10, 40, 40, 60]
    w.restart()
    assert [expected(w, jobs[name]) for name in "abcd"] == [10, 40, 40, 60]


def test_what_was_submitted_is_a_bound() -> None:
    w = world()
    run(w, 50, name="a", user="ann")
    w.submit(name="fill", user="eve", stages=[stage(4)])
    w.advance(0)
    assert expected(w, w.submit(name="a", user="ann", stages=[stage(estimate=20)])) == 20
    assert expected(w, w.submit(name="a", user="ann", stages=[stage(time_limit=30)])) == 30
    assert expected(w, w.submit(name="a", user="ann", stages=[stage()])) == 50


def test_tasks_that_were_stopped_teach_nothing() -> None:
    w = world()
    job = w.submit(name="a", user="ann", stages=[stage(estimate=60)])
    w.advance(10)
    w.kill(job)
    w.advance(1)
    assert not w.partition().runs


def test_backfill_uses_what_was_learned() -> None:
    """The short job asks for 500 s; its last run took 20 s, so it ends before the head can start."""
    w = world()
    run(w, 20, name="short", user="ann")
    w.submit(name="now", user="bob", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", user="bob", stages=[stage(4, estimate=10)])
    short = w.submit(name="short", user="ann", stages=[stage(estimate=500)])
    w.cycle()
    assert w.job(short).state == "running"
    (allocation,) = [each for each in w.partition().allocations.values() if each.stage.job.id == short]
    assert allocation.expected == 20 * SECOND
    w.restart()
    (allocation,) = [each for each in w.partition().allocations.values() if each.stage.job.id == short]
    assert allocation.expected == 20 * SECOND


def test_one_that_could_hold_up_the_head_for_too_long_waits() -> None:
    """By what was learned it ends in time; by what was submitted, the head could wait for two hours more."""
    w = world(queues={"root": {"default": {"order": "priority"}}})
    run(w, 20, name="short", user="ann")
    w.submit(name="now", user="bob", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", user="bob", stages=[stage(4, estimate=10)])
    risky = w.submit(name="short", user="ann", stages=[stage(estimate="2h")])
    w.cycle()
    assert w.job(risky).state == "pending"
    assert "it would delay job head" in str(w.explain(risky)[0].reason)


def test_a_head_that_cannot_start_in_time_keeps_no_ask_back() -> None:
    """The head is planned for two nodes. One of them goes, and the head fits no more."""
    w = world()
    w.node("n1", cpu=4)
    w.submit(name="now", user="bob", stages=[stage(6, estimate=100, duration=100)])
    w.advance(0)
    head = w.submit(name="head", user="bob", stages=[stage(8, estimate=10)])
    w.cycle()
    assert w.partition().jobs[head].stages[0].asks[NEW].latest
    w.disable("n1")
    w.advance(7200)
    late = w.submit(name="late", user="bob", stages=[stage(estimate="2h")])
    w.cycle()
    assert w.job(late).state == "running"


def test_runs_are_dropped() -> None:
    w = world()
    run(w, 10, name="a", user="ann")
    w.advance(last_runs.KEEP / SECOND + 60)
    run(w, 10, name="b", user="bob")
    assert {user for user, _, _ in w.partition().runs} == {"bob"}
    w.configure({"backfill": "easy"})
    w.cycle()
    assert not w.partition().runs


def test_few_runs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_runs, "MAX_RUNS", 4)
    w = world()
    for name in "abcdef":
        run(w, 10, name=name, user="ann")
    assert [name for _, name, _ in sorted(w.partition().runs)] == ["", "d", "e", "f"]
    assert state.MAX_RUNS == 10_000


# -- heads -------------------------------------------------------------------------------------------------------


class Promises:
    """An observer that records the latest planned start of each head, and when jobs start."""

    def __init__(self) -> None:
        self.latest: dict[str, int] = {}
        self.at: dict[str, int] = {}

    def began(self, partition: object) -> None:
        pass

    def stopped(self, partition: object, why: str) -> None:
        pass

    def cycle(self, decided: cycle.Cycle, seconds: object) -> None:
        for change in decided.changes:
            if isinstance(change, StartPlanned):
                self.latest[change.job] = change.latest
            elif isinstance(change, Placed):
                self.at.setdefault(change.job, decided.plan.now)


minutes = st.sampled_from([1, 5, 20, 60, 180, 600])
jobs = st.lists(
    st.tuples(st.integers(0, 90), st.integers(1, 4), minutes, minutes, st.sampled_from(["ann", "bob"])),
    min_size=5,
    max_size=20,
)


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
@given(drawn=jobs)
@settings(max_examples=80, deadline=None)
def test_no_head_starts_later_than_its_latest_start(mode: str, drawn: list[tuple[int, int, int, int, str]]) -> None:
    promises = Promises()
    queues = {"root": {"default": {"order": "fifo"}}}
    config = {"backfill": mode, "estimates": "learned", "queues": queues, "hold_for": 0, "chain": 0}
    w = World(config=config, observers=[promises])
    w.node("n0", cpu=4)
    w.cycle()
    for after, tasks, runs, more, user in drawn:
        w.advance(after * 60)
        given = stage(tasks, duration=runs * 60, estimate=(runs + more) * 60)
        w.submit(name="any", user=user, stages=[given])
        w.cycle()
    w.advance(30 * DAY / SECOND)
    assert len(promises.at) == len(drawn)
    late = {job: promises.at[job] - latest for job, latest in promises.latest.items() if promises.at[job] > latest}
    assert not late
