"""Backfill: schedules of small logs, job by job, against a simulation of identical processors that knows only numbers;
then what the same rule means on nodes, across lanes and for jobs of several shapes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from fairlead.core import cycle
from fairlead.core.changes import Placed, SinglesPlaced
from fairlead.core.resources import SECOND
from fairlead.core.why.reasons import NoCapacity, WouldDelay
from fairlead.journal.in_memory import MemoryJournal
from fairlead.testing import World
from fairlead.writer.writer import Writer
from tests.sim import oracle


class Entry(NamedTuple):
    """A job of a log: its arrival, processors, run time and estimate."""

    submit: int
    processors: int
    run: int
    estimate: int


# -- the simulation ----------------------------------------------------------------------------------------------


def reference(log: list[Entry], processors: int, mode: oracle.Mode) -> dict[int, int]:
    """Return the start of each job."""
    order = sorted(range(len(log)), key=lambda at: log[at].submit)
    jobs = [(log[at].submit, log[at].run, log[at].processors, log[at].estimate) for at in order]
    return dict(zip(order, oracle.schedule(jobs, processors, mode), strict=True))


class Starts:
    """An observer that records when jobs start, and when each was first planned to start."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}
        self.planned: dict[str, int] = {}

    def began(self, partition: object) -> None:
        pass

    def stopped(self, partition: object, why: str) -> None:
        pass

    def cycle(self, decided: cycle.Cycle, seconds: object) -> None:
        if decided.plan.planned is not None and decided.plan.planned[2] is not None:
            self.planned.setdefault(decided.plan.planned[0], decided.plan.planned[2] // SECOND)
        for change in decided.changes:
            names = [change.job] if isinstance(change, Placed) else []
            if isinstance(change, SinglesPlaced):
                names = [name for name, _ in change.tasks]
            for name in names:
                self.at.setdefault(name, decided.plan.now // SECOND)


def schedule(log: list[Entry], nodes: list[int], mode: str) -> dict[int, int]:
    """Return the start of each job. No head starts later than first planned."""
    starts = Starts()
    queues = {"root": {"default": {"order": "fifo"}}}
    w = World(config={"backfill": mode, "queues": queues, "hold_for": 0}, observers=[starts])
    for at, cpu in enumerate(nodes):
        w.node(f"n{at}", cpu=cpu)
    w.cycle()
    for when in sorted({entry.submit for entry in log}):
        w.advance(when - w.now / SECOND - 0.000001)
        w.now = when * SECOND
        for at, entry in enumerate(log):
            if entry.submit == when:
                task = {"name": "w", "count": entry.processors, "resources": {"cpu": 1}}
                w.submit(name=f"j{at}", stages=[{**task, "estimate": entry.estimate, "duration": entry.run}])
        w.cycle()
    w.advance(100_000)
    late = [job for job, planned in starts.planned.items() if starts.at[job] > planned]
    assert not late, f"{late} started later than first planned"
    return {int(job[1:]): when for job, when in starts.at.items()}


PROCESSORS = 8
entries = st.tuples(st.integers(1, 40), st.integers(1, PROCESSORS), st.integers(1, 30), st.integers(0, 20))
logs = st.lists(entries.map(lambda drawn: Entry(drawn[0], drawn[1], drawn[2], drawn[2] + drawn[3])), max_size=14)
machines = st.sampled_from([[8], [1] * 8, [3, 5], [2, 2, 2, 2]])


@pytest.mark.parametrize("mode", ["off", "easy", "shortest"])
@given(log=logs, nodes=machines)
@settings(max_examples=80, deadline=None)
def test_schedules_are_those_of_the_simulation(mode: oracle.Mode, log: list[Entry], nodes: list[int]) -> None:
    assert schedule(log, nodes, mode) == reference(log, PROCESSORS, mode)


@given(log=logs)
@settings(max_examples=80, deadline=None)
def test_conservative_schedules_are_those_of_the_simulation(log: list[Entry]) -> None:
    assert schedule(log, [PROCESSORS], "conservative") == reference(log, PROCESSORS, "conservative")


@given(log=logs, nodes=machines)
@settings(max_examples=80, deadline=None)
def test_conservative_delays_no_head_on_several_nodes(log: list[Entry], nodes: list[int]) -> None:
    assert len(schedule(log, nodes, "conservative")) == len(log)


# Logs for 8 processors, each with the starts of its jobs without and with backfill.
LOGS: list[tuple[str, list[Entry], list[int], list[int]]] = [
    ("a short one goes before", [Entry(1, 6, 10, 10), Entry(2, 8, 5, 5), Entry(3, 2, 8, 8)], [1, 11, 16], [1, 11, 3]),
    (
        "one that ends too late does not",
        [Entry(1, 6, 10, 10), Entry(2, 8, 5, 5), Entry(3, 2, 9, 9)],
        [1, 11, 16],
        [1, 11, 16],
    ),
    ("unless it is to spare", [Entry(1, 6, 10, 10), Entry(2, 6, 5, 5), Entry(3, 2, 50, 50)], [1, 11, 11], [1, 11, 3]),
    (
        "what is to spare is spent once",
        [Entry(1, 5, 10, 10), Entry(2, 6, 5, 5), Entry(3, 2, 50, 50), Entry(3, 1, 50, 50)],
        [1, 11, 11, 16],
        [1, 11, 3, 16],
    ),
    (
        "all that ends by the planned time is to spare",
        [Entry(1, 4, 10, 10), Entry(1, 3, 10, 10), Entry(2, 5, 9, 9), Entry(3, 1, 99, 99)],
        [1, 1, 11, 11],
        [1, 1, 11, 3],
    ),
    (
        "an end that comes early moves the plan",
        [Entry(1, 6, 4, 10), Entry(2, 8, 5, 5), Entry(6, 1, 6, 6)],
        [1, 5, 10],
        [1, 5, 10],
    ),
]


@pytest.mark.parametrize(("log", "plain", "easy"), [row[1:] for row in LOGS], ids=[row[0] for row in LOGS])
def test_small_logs(log: list[Entry], plain: list[int], easy: list[int]) -> None:
    modes: list[tuple[list[int], oracle.Mode]] = [(plain, "off"), (easy, "easy")]
    for expected, mode in modes:
        assert reference(log, PROCESSORS, mode) == dict(enumerate(expected))
        assert schedule(log, [8], mode) == dict(enumerate(expected))


# -- on nodes ----------------------------------------------------------------------------------------------------


def stage(count: int = 1, name: str = "w", **rest: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "resources": {"cpu": 1}, **rest}


def world(**config: Any) -> World:
    return World(config={"backfill": "easy", **config})


def test_across_lanes_and_queues() -> None:
    """The head without room is in another queue, and its lane has been asleep for a long time."""
    w = world(queues={"root": {"a": {"share": 99}, "b": {"share": 1}}})
    w.nodes(4, cpu=2, memory="1Gi")
    w.submit(name="now", queue="root.a", stages=[stage(6, estimate=100)])
    w.submit(name="lent", queue="root.b", stages=[{**stage(estimate=100), "resources": {"cpu": "500m"}}])
    w.advance(0)
    w.submit(name="head", queue="root.a", stages=[stage(8)])
    w.advance(50)
    small = {"resources": {"cpu": "500m", "memory": "1Mi"}}
    w.submit(name="late", queue="root.b", stages=[stage(**small, estimate=51)])
    w.submit(name="unknown", queue="root.b", stages=[{**stage(), "resources": {"cpu": "500m"}}])
    w.submit(name="short", queue="root.b", stages=[{**stage(estimate=50), "resources": {"cpu": 1, "memory": "2Mi"}}])
    w.cycle()
    assert w.job("short").state == "running"
    assert w.job("late").state == w.job("unknown").state == "pending"
    reason = w.explain("late")[0].reason
    assert reason == WouldDelay("head", 100 * SECOND)
    assert str(reason) == "it would delay job head, which is planned to start at 100 s"
    assert isinstance(w.explain("head")[0].reason, NoCapacity)


def test_other_shapes_may_use_what_the_head_does_not_need() -> None:
    w = world()
    w.node("n0", cpu=4, memory="8Gi")
    w.node("n1", cpu=4, memory="8Gi")
    w.submit(name="now", stages=[stage(7, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[{**stage(2), "resources": {"cpu": 4, "memory": "1Gi"}}])
    w.submit(name="memory", stages=[{**stage(), "resources": {"memory": "7Gi"}}])
    w.submit(name="more", stages=[{**stage(), "resources": {"memory": "7.5Gi"}}])
    w.cycle()
    assert w.job("memory").state == "running" and w.job("more").state == "pending"


def test_no_task_passes_a_head_that_waits_for_tasks_without_a_known_end() -> None:
    """Otherwise a flood of small tasks could pass it for ever. Other lanes go on, as without backfill."""
    w = world()
    w.node("n0", cpu=5, memory="8Gi")
    w.submit(name="endless", stages=[stage(3)])
    w.submit(name="known", stages=[stage(estimate=10)])
    w.advance(0)
    w.submit(name="head", stages=[stage(5)])
    w.submit(name="next", stages=[stage(estimate=1)])
    w.submit(name="other", stages=[{"resources": {"cpu": 1, "memory": "1Gi"}, "estimate": 1}])
    w.cycle()
    assert [w.job(name).state for name in ("head", "next", "other")] == ["pending", "pending", "running"]


def test_tasks_pass_a_head_that_waits_for_a_node_if_all_ends_are_known() -> None:
    w = world()
    w.node("n0", cpu=4)
    w.node("n1", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.disable("n1")
    w.cycle()
    w.submit(name="head", stages=[stage(8, estimate=100)])
    w.submit(name="next", stages=[stage(estimate="2h")])
    w.cycle()
    assert (w.job("head").state, w.job("next").state) == ("pending", "running")


def test_the_first_ask_whose_start_is_known_is_planned() -> None:
    """A head waits for a node with an endless task; behind it, in another lane, one is planned and not delayed."""
    w = world()
    w.node("gpus", cpu=1, gpu=1)
    w.node("n0", cpu=4)
    w.submit(name="endless", stages=[{"resources": {"cpu": 1, "gpu": 1}}])
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.cycle()
    w.submit(name="gpu", stages=[{"resources": {"gpu": 1}}])
    w.submit(name="head", stages=[stage(4)])
    w.submit(name="long", stages=[stage(estimate=101)])
    w.cycle()
    assert w.explain("long")[0].reason == WouldDelay("head", 100 * SECOND)
    w.submit(name="short", stages=[stage(estimate=100)])
    w.cycle()
    assert (w.job("long").state, w.job("short").state) == ("pending", "running")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 6), st.booleans()), max_size=25))
def test_without_known_ends_it_decides_as_without_backfill(drawn: list[tuple[int, int, int, bool]]) -> None:
    def run(mode: str) -> list[dict[str, str]]:
        w = World(config={"backfill": mode, "starving_after": 20})
        w.node("n0", cpu=8)
        w.node("n1", cpu=6)
        states = []
        for number, (wait, tasks, runs, gang) in enumerate(drawn):
            spec = {"count": tasks, "duration": runs, "resources": {"cpu": 1 + number % 2}}
            w.submit(name=f"j{number}", user=f"u{number % 3}", stages=[spec if gang else {**spec, "min": 1}])
            w.advance(wait)
            states.append({job.id: job.state for job in w.partition().jobs.values()})
        return states

    assert run("off") == run("easy")


def test_a_time_limit_will_do_for_an_estimate() -> None:
    w = world()
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, time_limit=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(4)])
    w.submit(name="long", stages=[stage(time_limit=101)])
    w.submit(name="short", stages=[stage(time_limit=100)])
    w.cycle()
    assert (w.job("long").state, w.job("short").state) == ("pending", "running")


def test_an_estimate_that_was_overrun_doubles() -> None:
    w = world()
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(4)])
    w.advance(101)
    w.submit(name="long", stages=[stage(estimate=100)])
    w.submit(name="short", stages=[stage(estimate=99)])
    w.cycle()
    assert (w.job("long").state, w.job("short").state) == ("pending", "running")


def test_a_head_of_several_shapes() -> None:
    w = world()
    w.nodes(3, cpu=4)
    w.submit(name="one", stages=[{**stage(estimate=50), "resources": {"cpu": 4}}])
    w.submit(name="two", stages=[{**stage(estimate=100), "resources": {"cpu": 3}}])
    w.advance(0)
    big, little = {**stage(name="big"), "resources": {"cpu": 4}}, {**stage(4, name="little"), "resources": {"cpu": 1}}
    w.submit(name="head", gang="job", stages=[{**big, "count": 2}, little])
    w.submit(name="late", stages=[stage(estimate=101)])
    w.submit(name="short", stages=[stage(estimate=100)])
    w.cycle()
    # The head fits when both have ended; one more busy CPU would delay it.
    assert w.explain("late")[0].reason == WouldDelay("head", 100 * SECOND)
    assert w.job("short").state == "running"


def test_an_array_takes_what_is_to_spare() -> None:
    w = world()
    w.node("n0", cpu=8)
    w.submit(name="now", stages=[stage(4, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(6)])
    w.submit(name="array", stages=[stage(10, min=1, estimate=500)])
    w.cycle()
    assert len(w.placements("array")) == 2


def test_easy_by_default() -> None:
    w = World()
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(4)])
    w.submit(name="endless", stages=[stage()])
    w.submit(name="short", stages=[stage(estimate=1)])
    w.cycle()
    assert (w.job("endless").state, w.job("short").state) == ("pending", "running")


def test_without_backfill_no_ask_passes_the_head_of_its_lane() -> None:
    w = World({"backfill": "off"})
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(4)])
    w.submit(name="short", stages=[stage(estimate=1)])
    w.cycle()
    assert w.job("short").state == "pending"


def test_what_is_expected_is_known_after_a_restart_and_when_it_is_turned_on() -> None:
    w = World()
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(4)])
    w.cycle()
    w.configure({"backfill": "easy"})
    w.cycle()
    w.restart()
    w.submit(name="long", stages=[stage(estimate=101)])
    w.submit(name="short", stages=[stage(estimate=100)])
    w.cycle()
    assert (w.job("long").state, w.job("short").state) == ("pending", "running")


@pytest.mark.parametrize(
    ("backfill", "estimate", "runs"),
    [(mode, estimate, estimate == 80) for mode in ("easy", "shortest", "conservative") for estimate in (80, 90)]
    + [("off", 80, False)],
)
def test_held_nodes_are_lent_to_tasks_that_end_in_time(backfill: str, estimate: int, runs: bool) -> None:
    w = World(config={"backfill": backfill, "starving_after": "10s"})
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="holder", stages=[{**stage(), "resources": {"cpu": 4}}])
    w.advance(20)
    assert list(w.holds()) == ["n0"]
    w.submit(name="other", stages=[stage(estimate=estimate)])
    w.cycle()
    assert (w.job("other").state == "running") == runs
    assert list(w.holds()) == ["n0"]


# -- plans that change without a start or an end -----------------------------------------------------------------


def _job(w: World, name: str, cpu: Any, estimate: int | None = None, **rest: Any) -> str:
    asked = rest.pop("resources", {"cpu": cpu})
    stage = {"name": "w", "resources": asked} | ({} if estimate is None else {"estimate": estimate})
    return w.submit(name=name, stages=[stage], **rest)


def test_an_overrun_estimate_lets_others_go_ahead_by_itself() -> None:
    w = World({"backfill": "easy"})
    w.node("n", cpu=2)
    _job(w, "runs", 1, estimate=10)
    w.cycle()
    _job(w, "head", 2)
    small = _job(w, "small", 1, estimate=15)
    w.advance(19)
    assert not w.placements(small)  # planned for 10 s, and from then on for 20 s
    w.advance(1)
    assert w.placements(small)  # planned for 40 s


def test_a_late_acknowledgement_lets_others_go_ahead() -> None:
    w = World({"backfill": "easy"})
    w.node("n", cpu=2)
    w.hold_acks("n")
    _job(w, "runs", 1, estimate=10)
    w.cycle()
    _job(w, "head", 2)
    w.advance(2)
    small = _job(w, "small", 1, estimate=9)
    w.advance(2)
    assert not w.placements(small)
    w.release_acks("n")
    w.advance(0)
    assert w.placements(small)  # planned for 14 s, and no more for 10 s


def test_nodes_that_are_held_change_the_plan() -> None:
    w = World({"backfill": "easy", "starving_after": "5s"})
    w.node("n", cpu=2)
    w.node("m", cpu=2, labels={"kind": "m"})
    _job(w, "runs", 1, estimate=10)
    w.submit(name="forever", stages=[{"name": "w", "resources": {"cpu": 1}, "selectors": {"kind": "m"}}])
    w.cycle()
    head = _job(w, "head", 2)
    small = _job(w, "small", 1)
    w.advance(4)
    assert not w.placements(small)  # it would run on n, where the head is planned to start
    w.advance(2)
    assert w.holds() == {"n": [(head, "w", 1)]}
    assert w.placements(small) == {("w", 0): "m"}


def test_the_first_head_without_room_is_found_again_when_turns_have_moved() -> None:
    """The task that b's head waits for has no estimate. Once `a` has started a job, b's head is the first."""
    w = World({"backfill": "easy", "queues": {"root": {"a": {"share": 1}, "b": {"share": 1}, "c": {"share": 1}}}})
    w.node("n", cpu=2, memory="1Gi")
    w.node("g", gpu=1)
    _job(w, "runs", 1, estimate=10, queue="root.c")
    _job(w, "forever", 0, resources={"gpu": 1}, queue="root.c")
    w.cycle()
    _job(w, "head-a", 2, queue="root.a", priority=1)
    _job(w, "head-b", 0, resources={"gpu": 1}, queue="root.b", priority=1)
    quick = _job(w, "quick", 0, estimate=5, resources={"cpu": "500m", "memory": "1Gi"}, queue="root.a")
    slow = _job(w, "slow", "500m", estimate=20, queue="root.b")
    w.cycle()
    assert w.placements(quick) and w.placements(slow)


def test_lanes_whose_turn_did_not_come_in_a_full_cycle_have_it_in_the_next() -> None:
    w = World({"backfill": "easy", "max_placed": 1})
    w.node("n", cpu=2)
    _job(w, "runs", 1, estimate=10)
    w.cycle()
    _job(w, "head", 2)
    small = _job(w, "small", "500m", estimate=20)
    w.advance(0)
    assert not w.placements(small)
    _job(w, "first", "250m", estimate=60, priority=1)
    w.advance(0)
    assert w.placements(small)  # the head cannot start before 60 s


# -- plans that are kept from the last cycle ---------------------------------------------------------------------


MODES = {
    "easy": {"backfill": "easy"},
    "shortest": {"backfill": "shortest"},
    "conservative": {"backfill": "conservative"},
    "learned": {"backfill": "easy", "estimates": "learned"},
    "shortest learned": {"backfill": "shortest", "estimates": "learned"},
    "conservative learned": {"backfill": "conservative", "estimates": "learned"},
}


class Step(NamedTuple):
    """`after` seconds later a job is submitted, or the oldest running task ends early."""

    after: int
    tasks: int
    """0: no job is submitted; a running task ends."""
    cpu: int
    run: int
    estimate: int | None
    priority: int
    least: int | None
    apart: bool


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 1, 2, 5, 15]),
        st.sampled_from([0, 1, 1, 2, 3, 5, 8]),
        st.sampled_from([1, 1, 1, 1, 1, 2]),
        st.integers(10, 90),
        st.none() | st.integers(1, 90),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([None, None, 1]),
        st.sampled_from([False, False, False, False, False, True]),
    ),
    min_size=10,
    max_size=30,
)


def played(drawn: list[Step], mode: str, order: str, limit: int | None, forget: bool) -> list[tuple[int, str, int]]:
    """Return the placements: time, job, tasks. With `forget`, no cycle uses what an earlier one remembered."""
    queue = {"order": order} | ({} if limit is None else {"limit": {"cpu": limit}})
    w = World(config={**MODES[mode], "queues": {"root": {"a": queue}}, "starving_after": "1d"})
    for at, cpu in enumerate((2, 3, 4)):
        w.node(f"n{at}", cpu=cpu)
    placed: list[tuple[int, str, int]] = []
    counted: dict[str, int] = {}
    for at, step in enumerate(drawn):
        w.advance(step.after)
        if step.tasks:
            estimate = {} if step.estimate is None else {"estimate": step.estimate}
            least = {} if step.least is None else {"min": step.least}
            asked = {"count": step.tasks, "resources": {"cpu": step.cpu}, "duration": step.run, "apart": step.apart}
            w.submit(name=f"j{at}", queue="root.a", priority=step.priority, stages=[asked | estimate | least])
        else:
            running = [(job, key) for job in counted for key in w.placements(job)]
            if running:
                w.finish(running[0][0], *running[0][1])
        if forget:
            w.partition().memory.backfill = None
            w.partition().wake_all_lanes()
        w.cycle()
        for job in [f"j{number}" for number in range(at + 1) if drawn[number].tasks]:
            tasks = len(w.placements(job))
            if counted.get(job) != tasks:
                placed.append((w.now, job, tasks))
                counted[job] = tasks
    return placed


JOINS_BEFORE_THE_HEAD_OF_ITS_LANE = [
    Step(5, 8, 1, 60, None, 1, None, False),
    Step(0, 2, 2, 72, None, 1, None, False),
    Step(1, 1, 1, 56, None, 0, None, False),
    Step(5, 2, 1, 64, 32, 0, None, False),
    Step(2, 1, 1, 13, None, 1, 1, False),
    Step(5, 5, 1, 50, None, 1, 1, False),
]
"""The last job joins behind the head of the queue, but as the head of its own lane: tasks are stopped for it."""


BEHIND_ONE_THAT_NEVER_FITS = [
    Step(0, 5, 2, 10, None, 0, 1, False),
    Step(0, 5, 1, 10, None, 0, None, True),
    Step(0, 1, 1, 10, None, 0, 1, False),
    Step(0, 1, 1, 10, 45, 1, None, True),
    Step(0, 1, 1, 10, None, 0, None, False),
]
"""The second job wants five nodes of three. The fourth is behind it in its lane: tasks are stopped for it."""


@pytest.mark.parametrize("mode", MODES)
@example(drawn=BEHIND_ONE_THAT_NEVER_FITS, order="fifo", limit=None)
@example(drawn=JOINS_BEFORE_THE_HEAD_OF_ITS_LANE, order="priority", limit=None)
@settings(max_examples=60, deadline=None)
@given(drawn=steps, order=st.sampled_from(["priority", "fifo"]), limit=st.sampled_from([None, None, 6]))
def test_a_remembered_plan_gives_the_schedule_of_a_new_plan(
    mode: str, drawn: list[Step], order: str, limit: int | None
) -> None:
    assert played(drawn, mode, order, limit, forget=False) == played(drawn, mode, order, limit, forget=True)


def test_an_ask_that_joins_behind_the_head_has_a_reason() -> None:
    w = World(config={"backfill": "easy"})
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[stage(3, estimate=100)])
    w.advance(0)
    w.submit(name="head", stages=[stage(4)])
    w.cycle()
    for name, tasks, estimate in (("large", 2, 10), ("late", 1, 500)):
        w.submit(name=name, stages=[stage(tasks, estimate=estimate)])
        w.cycle()
    assert w.explain("late")[0].reason == WouldDelay("head", 100 * SECOND)
    large = w.explain("large")[0].reason
    assert isinstance(large, NoCapacity) and (large.wanted, large.fitting) == (2, 1)
    w.submit(name="short", stages=[stage(estimate=50)])
    w.cycle()
    assert w.job("short").state == "running"


def test_a_task_with_an_estimate_of_0_starts_no_cycles() -> None:
    """A task with an estimate of 0 that keeps running does not cause a cycle every microsecond."""
    w = World({"backfill": "easy"})
    w.node("n0", cpu=2)
    w.submit(stages=[{"resources": {"cpu": 1}, "estimate": 0}])
    w.cycle()
    w.submit(stages=[{"resources": {"cpu": 2}, "estimate": "10s"}])
    w.now += 1_000_000
    w.cycle()
    due = cycle.due(w.partition())
    assert due is None or due > w.now + 1_000


def test_a_claimant_behind_the_head_uses_what_was_stopped_for_it() -> None:
    """Under `fifo` the stopped job is the head again, planned on another node: its old node is promised."""
    w = World({"backfill": "easy", "queues": {"root": {"q": {"order": "fifo"}, "other": {}}}})
    w.nodes(2, cpu=1)
    main = {"name": "w", "resources": {"cpu": 1}}
    w.submit(name="long", queue="root.other", stages=[{**main, "estimate": 1000}])
    w.submit(name="low", queue="root.q", stages=[main])
    w.advance(1)
    w.submit(name="high", queue="root.q", priority=1, stages=[main])
    w.advance(900)
    assert w.placements("high") and not w.placements("low")
    assert w.task("low", "w", 0).attempt == 1


# -- what is kept back for a head --------------------------------------------------------------------------------


def submit(w: World, name: str, cpu: float, estimate: int, **rest: Any) -> None:
    w.submit(name=name, stages=[{"resources": {"cpu": cpu}, "estimate": estimate, "duration": estimate, **rest}])
    w.cycle()


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
@pytest.mark.parametrize("end", ["kill", "cancel", "reset"])
def test_what_was_kept_back_starts_when_the_head_is_gone(mode: str, end: str) -> None:
    w = World(config={"backfill": mode})
    w.node("n", cpu=4)
    submit(w, "soon", 1, 32)
    submit(w, "late", 1, 102)
    submit(w, "head", 3, 3)
    submit(w, "next", 1, 100)
    assert w.explain("next")[0].reason == WouldDelay("head", 32 * SECOND)
    if end == "kill":
        w.kill("head")
    elif end == "cancel":
        w.cancel("head", "main")
    else:
        w.reset_lane("root.default", "head", cancel=True)
    w.cycle()
    assert w.placements("next")


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
@pytest.mark.parametrize("end", [{"asks": [{"withdraw": True}]}, {"recover": [{"node": "x"}]}])
def test_what_was_kept_back_starts_when_a_manager_needs_the_head_no_more(mode: str, end: dict[str, Any]) -> None:
    """It withdraws the ask, or reports that the task runs elsewhere."""
    w = World(config={"backfill": mode})
    rm = w.rm("k8s")
    rm.register()
    other = {"name": "x", "resources": {"cpu": 1}, "taints": ["taken"]}
    names = ("soon", "late", "head", "next")
    rm.update(nodes=[{"name": "m", "resources": {"cpu": 4}}, other], jobs=[{"job": name} for name in names])
    w.cycle()
    for job, cpu, estimate in zip(names, (1, 1, 3, 1), (32, 102, 3, 100), strict=True):
        rm.update(asks=[{"job": job, "ask": "a", "resources": {"cpu": cpu}, "estimate": estimate}])
        w.cycle()
    assert w.explain("next")[0].reason == WouldDelay("head", 32 * SECOND)
    rm.update(**{key: [{"job": "head", "ask": "a", **entry} for entry in entries] for key, entries in end.items()})
    w.cycle()
    assert w.placements("next")


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
def test_halves_on_two_devices_leave_no_whole_device(mode: str) -> None:
    """Both devices are half used until 100, when a whole one is planned."""
    starts = Starts()
    w = World(config={"backfill": mode}, observers=[starts])
    w.node("n", cpu=9, gpu=2)
    for name, gpu, estimate in (("first", 0.5, 100), ("short", 0.5, 5), ("second", 0.5, 100)):
        submit(w, name, 1, estimate, resources={"gpu": gpu})
    assert [w.task(name, "main", 0).devices for name in ("first", "short", "second")] == [(0,), (0,), (1,)]
    w.advance(6)
    submit(w, "whole", 1, 10, resources={"gpu": 1})
    submit(w, "halves", 1, 200, resources={"gpu": 0.5}, count=2)
    assert w.explain("halves")[0].reason == WouldDelay("whole", 100 * SECOND)
    w.advance(500)
    assert starts.at["whole"] == 100


@pytest.mark.parametrize("long", [90, 150, 250])
def test_conservative_names_the_job_that_would_be_delayed(long: int) -> None:
    """8 of 10 CPUs are planned from 100 to 200, and 10 from then on. 2 CPUs are free until 200."""
    w = World(config={"backfill": "conservative"})
    w.node("n", cpu=10)
    submit(w, "now", 6, 100)
    submit(w, "first", 8, 100)
    submit(w, "second", 10, 50)
    submit(w, "large", 3, 120)
    assert w.explain("large")[0].reason == WouldDelay("first", 100 * SECOND)
    w.kill("large")
    submit(w, "small", 2, long)
    reasons = [entry.reason for entry in w.explain("small")]
    assert reasons == ([WouldDelay("second", 200 * SECOND)] if long > 200 else [])


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
def test_an_ask_that_is_kept_back_says_so_only_while_it_fits(mode: str) -> None:
    w = World(config={"backfill": mode})
    w.node("n", cpu=4)
    submit(w, "now", 1, 32)
    submit(w, "long", 1, 102)
    submit(w, "head", 3, 10)
    submit(w, "late", 1, 100)
    submit(w, "later", 1, 100)
    assert w.explain("later")[0].reason == WouldDelay("head", 32 * SECOND)
    submit(w, "short", 2, 10)
    for name in ("late", "later"):
        reason = w.explain(name)[0].reason
        assert isinstance(reason, NoCapacity) and (reason.fitting, reason.lacks) == (0, "cpu")
    w.advance(20)
    assert w.explain("later")[0].reason == WouldDelay("head", 32 * SECOND)


@pytest.mark.parametrize("mode", ["easy", "shortest", "conservative"])
def test_a_hold_for_an_ask_behind_the_head_leaves_the_nodes_of_its_plan(mode: str) -> None:
    """`head` is held for on n0, and planned for 100 on n1. All of n1 would be held for `large`, which is behind it."""
    starts = Starts()
    w = World(config={"backfill": mode, "starving_after": "20s", "held_nodes_percent": 100}, observers=[starts])
    for node, cpu in (("n0", 3), ("n1", 4), ("n2", 4)):
        w.node(node, cpu=cpu, labels={"node": node})
    submit(w, "long", 2, 200, selectors={"node": "n0"})
    submit(w, "short", 4, 100, selectors={"node": "n1"})
    submit(w, "other", 4, 300, selectors={"node": "n2"})
    submit(w, "head", 2, 50)
    w.advance(1)
    submit(w, "large", 4, 50)
    w.advance(40)
    assert w.holds() == {"n0": [("head", "main", 1)], "n2": [("large", "main", 1)]}
    w.advance(500)
    assert (starts.at["head"], starts.at["large"]) == (100, 150)


def test_a_partition_without_a_configuration_backfills() -> None:
    """Its settings are the defaults from the beginning; no change of settings turns backfill on."""
    writer = Writer(MemoryJournal(), "default")
    assert writer.partition.settings.backfills and writer.partition.backfills
