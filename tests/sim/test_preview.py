"""Looks into the future: drawn run times, futures, start times, what-if, and a follower of a real journal."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import msgspec
import pytest
import uvloop
from msgspec.structs import replace

from fairlead.core.commands import (
    AddNode,
    BringToFront,
    Command,
    Configure,
    HoldJob,
    Kill,
    MarkReady,
    MoveNode,
    Rejected,
    Report,
    Requeue,
    ResetLane,
    Scale,
    SetPriority,
    Submit,
)
from fairlead.core.config import parse_partition
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.dump import dump
from fairlead.core.errors import Refused
from fairlead.core.model import Micros, Runs, pack_spec, unpack_spec
from fairlead.core.resources import DAY, HOUR, MINUTE, SECOND
from fairlead.forecast import comparison, eta, preview_process
from fairlead.forecast.future import DrawingFleet, Future
from fairlead.forecast.preview_process import answer
from fairlead.forecast.previewer import Previewer
from fairlead.forecast.recorded import Past, PastJob
from fairlead.forecast.replica import Follower, _by
from fairlead.forecast.runtimes import ENOUGH, Runtimes, Table
from fairlead.history.databases import tables_at
from fairlead.history.recorder import HistoryRecorder
from fairlead.history.store import History
from fairlead.http.routes.forecast import _answer as told_by_api
from fairlead.http.routes.forecast import rounded, sentence
from fairlead.journal.codec import actors_of, encode
from fairlead.journal.sql import SqliteJournal
from fairlead.sim.fleet import Running
from fairlead.wire.preview import (
    AnyQuestion,
    Eta,
    EtaQuestion,
    Etas,
    Failure,
    Story,
    StoryQuestion,
    TraceQuestion,
    Unanswered,
    WhatIfQuestion,
)
from fairlead.writer.writer import Writer

START = 1_790_000_000 * SECOND
CONFIG = {"queues": {"root": {"all": {"order": "priority"}}}, "requestors": [{"match": "", "queue": "root.all"}]}


class Cluster:
    """A writer on a journal of files, whose tasks are reported by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = History(folder / "history")
        self.journal = SqliteJournal(folder / "journal")
        self.writer = Writer(self.journal, "default", [HistoryRecorder(self.history)])
        self.now = START
        self.do(Configure(config=parse_partition(CONFIG, ""), version=1, operator=True), MarkReady(operator=True))

    def do(self, *commands: Command) -> list[Any]:
        answers = self.writer.cycle(commands, self.now).answers
        assert not [answer for answer in answers if isinstance(answer, Rejected)], answers
        return answers

    def node(self, name: str, cpu: int) -> None:
        spec = parse_node({"name": name, "resources": {"cpu": cpu}})[1]
        self.do(AddNode(name=name, spec=spec, operator=True))

    def submit(self, name: str, cpu: int = 1, user: str = "ann", run: bool = True, **stage: Any) -> None:
        spec = parse_job({"name": name, "user": user, "stages": [{"resources": {"cpu": cpu}, **stage}]})
        self.do(Submit(spec=spec, id=name, user=user, operator=True))
        if run:
            self.report(name, "running")

    def report(self, name: str, state: Any) -> None:
        """Report the tasks of a job that are placed."""
        partition = self.writer.partition
        stage = partition.jobs[name].stages[0]
        allocations = {allocation.id: allocation for allocation in (stage.live or {}).values()}
        for allocation in allocations.values():
            node = partition.nodes.name[partition.nodes.rows[allocation.node]]
            at = {"node": node, "job": name, "stage": stage.name, "indices": allocation.indices}
            number = stage.job.number
            self.do(Report(**at, attempt=allocation.attempt, state=state, number=number, operator=True))

    def follow(self) -> Follower:
        self.history.flush()
        follower = Follower(self.folder / "journal", tables_at(self.folder / "history"), "default")
        follower.catch_up()
        return follower

    def asked(self) -> dict[str, Any]:
        return {"partition": "default", "seq": self.writer.seq, "now": self.now}


@contextmanager
def opened(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.history.close()
        cluster.journal.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with opened(tmp_path) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """All futures are drawn, also on a busy machine."""
    monkeypatch.setattr(preview_process, "SECONDS", 300.0)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without earlier runs, tasks run as long as their estimates say."""
    monkeypatch.setattr("fairlead.forecast.runtimes.EXACT", 1.0)


def etas_of(cluster: Cluster, *jobs: str) -> Etas:
    found = answer(cluster.follow(), EtaQuestion(**cluster.asked(), jobs=jobs))
    assert isinstance(found, Etas)
    return found


# -- run times ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "elapsed", "drawn"),
    [
        (0.0, 0, 10),
        (0.49, 0, 10),
        (0.51, 0, 20),
        (0.99, 0, 40),
        (0.0, 10, 20),
        (0.99, 10, 40),
        (0.5, 20, 40),
        (0.5, 40, 40 + SECOND),
        (0.5, 4 * SECOND, 8 * SECOND),
        (0.99, 4 * SECOND, 80 * SECOND),
    ],
)
def test_runs_are_drawn_by_weight_above_the_elapsed_time(part: float, elapsed: int, drawn: int) -> None:
    table = Table([(20, 1.0), (40, 1.0), (10, 2.0)], 40)
    assert table.at(part, elapsed) == drawn


def test_without_an_estimate_a_run_longer_than_all_others_has_no_known_end() -> None:
    table = Table([(10, 2.0), (40, 1.0)], None)
    assert table.at(0.5, 39) == 40
    assert table.at(0.5, 60) == 60 + SECOND, "there are few runs, and the next may be a little longer"
    assert table.at(0.5, 80) is None and table.draw(Random(1), 80) is None


def test_runs_of_the_same_name_count_most(cluster: Cluster) -> None:
    cluster.node("n", 8)
    cluster.submit("train", estimate="1h")
    stage = cluster.writer.partition.jobs["train"].stages[0]
    runtimes = Runtimes()
    known = runtimes.table(stage)
    assert known is not None and known.at(0.5) == HOUR, "without runs, the estimate is all there is"
    rng = Random(1)

    def other() -> None:
        for _ in range(20):
            runtimes.note("ann", "other", "main", 75 * MINUTE, 90 * MINUTE)
            runtimes.note("ann", "train", "main", 6 * MINUTE, 2 * HOUR)

    def drawn() -> list[Micros]:
        table = runtimes.table(stage)
        assert table is not None
        return [table.draw(rng) or 0 for _ in range(1_000)]

    other()
    before = drawn()
    assert sum(ran < 5 * MINUTE for ran in before) > 800, "a twentieth of the estimate, as before"
    assert max(before) == HOUR, "the estimate is a bound"
    for _ in range(20):
        runtimes.note("ann", "train", "main", 30 * MINUTE, HOUR)
    other()
    assert sum(20 * MINUTE < ran < 40 * MINUTE for ran in drawn()) > 800, "those with the same estimate count more"


def test_without_an_estimate_nothing_is_told_from_few_runs(cluster: Cluster) -> None:
    cluster.node("n", 8)
    cluster.submit("train")
    stage = cluster.writer.partition.jobs["train"].stages[0]
    runtimes = Runtimes()
    for _ in range(50):
        runtimes.note("bob", "train", "main", MINUTE, None)
    for _ in range(ENOUGH - 1):
        runtimes.note("ann", "other", "main", MINUTE, HOUR)
    assert runtimes.table(stage) is None
    runtimes.note("ann", "train", "main", MINUTE, None)
    assert runtimes.table(stage) is not None


def test_a_run_without_an_estimate_is_bounded_by_that_of_another_task() -> None:
    runtimes = Runtimes()
    for _ in range(20):
        runtimes.note("ann", "train", "main", 3 * HOUR, None)
    table = runtimes.table_of("ann", "train", "main", HOUR)
    assert table is not None and {table.at(part / 10) for part in range(1, 10)} == {HOUR}


def test_learned_runs_count_where_none_are_recorded(cluster: Cluster) -> None:
    partition = cluster.writer.partition
    for name, ran in (("train", 5 * MINUTE), ("eval", 7 * MINUTE)):
        partition.runs["ann", name, "main"] = Runs(START, ran, ran)
    partition.runs["ann", "", ""] = Runs(START, HOUR, HOUR)
    runtimes = Runtimes()
    runtimes.note_learned(partition, {("ann", "eval", "main")})
    assert runtimes.table_of("ann", "train", "main", None) is None, "two runs are not enough"
    for _ in range(3):
        runtimes.note("ann", "eval", "main", 9 * MINUTE, None)
    table = runtimes.table_of("ann", "train", "main", None)
    assert table is not None
    drawn = [table.at(part / 100) for part in range(100)]
    assert set(drawn) == {5 * MINUTE, 9 * MINUTE}
    assert drawn.count(5 * MINUTE) > 50


def test_with_few_runs_of_a_name_those_of_all_users_count_more(cluster: Cluster) -> None:
    cluster.node("n", 8)
    cluster.submit("train", estimate="1h")
    stage = cluster.writer.partition.jobs["train"].stages[0]
    runtimes = Runtimes()
    for _ in range(100):
        runtimes.note("bob", "other", "main", HOUR, HOUR)
    shares = []
    for _ in range(5):
        runtimes.note("ann", "train", "main", 6 * MINUTE, HOUR)
        table = runtimes.table(stage)
        assert table is not None
        shares.append(sum((table.at(part / 100) or 0) < HOUR for part in range(100)))
    assert shares[0] == 57, "a third by the name, and a third of the rest by the user"
    assert shares == sorted(shares) and shares[-1] > 85


def test_a_drawn_run_is_near_a_recorded_one() -> None:
    table = Table([(100 * SECOND, 1.0)], 105 * SECOND)
    rng = Random(1)
    drawn = [table.draw(rng, 95 * SECOND) or 0 for _ in range(500)]
    assert 95 * SECOND < min(drawn) < 97 * SECOND and max(drawn) == 105 * SECOND
    assert len(set(drawn)) > 100, "not only the recorded one"
    bound = Table([(100 * SECOND, 1.0)], 100 * SECOND)
    assert {bound.draw(rng) for _ in range(50)} == {100 * SECOND}, "a task that ran until its limit will again"


def test_runs_of_a_user_are_alike(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.node("n", 1)
    for name in ("first", "second"):
        cluster.submit(name)
    runtimes = Runtimes()
    for ran in range(1, 41):
        runtimes.note("ann", "other", "main", ran * MINUTE, None)
    stages = [cluster.writer.partition.jobs[name].stages[0] for name in ("first", "second")]
    monkeypatch.setattr("fairlead.forecast.runtimes.NEAR", 0.0)

    def alike(shared: float) -> int:
        monkeypatch.setattr("fairlead.forecast.future.SHARED", shared)
        fleets = [DrawingFleet(cluster.writer.partition, runtimes, Random(seed)) for seed in range(100)]
        return sum(len({fleet._draw(stage, 0) for stage in stages}) == 1 for fleet in fleets)

    assert alike(1.0) == 100
    assert alike(0.0) < 20


def test_arrivals_are_those_of_the_same_time_of_day() -> None:
    past = Past()
    spec = parse_job({"name": "a", "user": "ann", "stages": [{"resources": {"cpu": 1}}]})
    for hour in range(72):
        past.add(PastJob(START + hour * HOUR, f"j{hour}", spec, [MINUTE]))
    now = START + 72 * HOUR
    arrivals = past.arrivals(now, Random(3))
    first = [next(arrivals) for _ in range(100)]
    assert [job.at for job in first] == [now + hour * HOUR for hour in range(100)]
    assert len({job.id for job in first}) == 100
    assert list(Past().arrivals(now, Random(3))) == []


# -- start times -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "likely", "median"),
    [
        ([1, 2, 30, 31, 32, 58, 90], 32, 31),
        ([1, 2, 3, 50, 51, 99, 99, 99, 99], 99, 51),
        ([1, 1, 1, 50, 90, 90, 90], 90, 50),
        ([0, 0, 1, 50, 99, 100, 100], 1, 50),
        ([5, 5, None, 5, None], 5, 5),
        ([5, None, None, 5, None], None, None),
        ([7], 7, 7),
    ],
)
def test_the_likely_start_is_where_most_futures_are(
    starts: list[int | None], likely: int | None, median: int | None
) -> None:
    samples = [eta.Sample(0, {} if start is None else {"a": start * MINUTE}, HOUR, True) for start in reversed(starts)]
    found = eta.sum_up("a", samples)
    assert found.likely == (None if likely is None else likely * MINUTE)
    assert found.median == (None if median is None else median * MINUTE)


def test_a_job_starts_when_the_one_before_it_ends(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10min")
    cluster.now += 4 * MINUTE
    cluster.submit("second", 4, run=False, estimate="1h")
    cluster.submit("third", 4, run=False)
    found = etas_of(cluster, "second", "third")
    assert found.unknown_running == 0 and found.futures == eta.SAMPLES
    at = START + 10 * MINUTE
    second = found.jobs["second"]
    assert second.earliest is not None and second.earliest < at, "without earlier runs, an estimate is no promise"
    assert (second.likely, second.median, second.latest) == (at, at, at)
    assert found.jobs["third"].latest == at + HOUR


def test_a_time_limit_is_no_estimate(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, time_limit="20h")
    cluster.submit("second", 4, run=False)
    second = etas_of(cluster, "second").jobs["second"]
    assert second.earliest is not None and second.likely is not None and second.latest is not None
    assert second.earliest < START + 5 * HOUR < second.likely < START + 19 * HOUR < second.latest


@pytest.mark.parametrize(
    ("span", "told"),
    [
        (0, "0s"),
        (99 * SECOND, "99s"),
        (100 * SECOND, "2min"),
        (59 * MINUTE, "59min"),
        (HOUR, "1h"),
        (146 * MINUTE, "2h25min"),
        (DAY, "1d"),
        (50 * HOUR + MINUTE, "2d2h"),
    ],
)
def test_durations_are_rounded(span: Micros, told: str) -> None:
    assert rounded(span) == told


def test_tasks_without_an_estimate_are_counted_and_run_on(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("endless", 1, array=3)
    cluster.submit("next", 4, run=False, estimate="1h")
    found = etas_of(cluster, "next")
    assert found.unknown_running == 3
    assert found.jobs["next"].median is None and found.jobs["next"].not_before is None


def test_a_task_that_outlasts_all_recorded_runs_has_an_unknown_end(cluster: Cluster) -> None:
    cluster.node("n", 4)
    for at in range(6):
        cluster.submit(f"short{at}", 4)
        cluster.now += MINUTE
        cluster.report(f"short{at}", "succeeded")
    cluster.submit("long", 4)
    cluster.submit("next", 4, run=False, estimate="1h")
    cluster.now += 30 * SECOND
    early = etas_of(cluster, "next")
    assert early.unknown_running == 0 and early.jobs["next"].median is not None
    cluster.now += 2 * MINUTE
    late = etas_of(cluster, "next")
    assert late.unknown_running == 1 and late.jobs["next"].median is None


def test_tasks_ahead_without_an_estimate_are_counted(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10min")
    cluster.submit("second", 1, run=False, array=4)
    cluster.submit("third", 4, run=False)
    found = etas_of(cluster, "second", "third")
    assert found.unknown_running == 0
    assert (found.jobs["second"].median, found.jobs["second"].unknown_ahead) == (START + 10 * MINUTE, 0)
    third = found.jobs["third"]
    assert (third.median, third.not_before, third.unknown_ahead) == (None, None, 4)
    told = told_by_api("third", "pending", None, third, found, cluster.now).text
    assert told.startswith("the start of job third cannot be predicted: 4 tasks that start before it have no known end")


def test_a_job_that_can_never_run_has_no_start(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("large", 8, run=False)
    found = etas_of(cluster, "large").jobs["large"]
    assert (found.median, found.not_before, found.stuck) == (None, None, True)


def test_the_tasks_of_an_array_that_have_ended_tell_about_the_others(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("array", 1, array=12)
    cluster.submit("next", 4, run=False, estimate="1h")
    assert etas_of(cluster, "next").unknown_running == 4
    cluster.now += MINUTE
    cluster.report("array", "succeeded")
    cluster.report("array", "running")
    assert etas_of(cluster, "next").unknown_running == 4, "four runs are too few"
    cluster.now += MINUTE
    cluster.report("array", "succeeded")
    cluster.report("array", "running")
    found = etas_of(cluster, "next")
    start = found.jobs["next"].likely
    assert found.unknown_running == 0 and start is not None
    assert abs(start - cluster.now - MINUTE) < MINUTE // 2


def test_one_array_is_enough_to_tell_run_times_from(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("array", 1, array=4)
    cluster.now += MINUTE
    cluster.report("array", "succeeded")
    cluster.submit("more", 1, array=2)
    cluster.submit("next", 4, run=False, estimate="1h")
    assert etas_of(cluster, "next").unknown_running == 2
    cluster.now += MINUTE
    cluster.report("more", "succeeded")
    cluster.submit("last", 4)
    assert etas_of(cluster, "next").unknown_running == 0, "six tasks of two jobs have ended"


def test_a_task_without_a_known_end_is_counted_once(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("array", 1, array=4)
    partition = cluster.writer.partition
    fleet = DrawingFleet(partition, Runtimes(), Random(1))
    (allocation,) = {allocation.id: allocation for allocation in partition.allocations.values()}.values()
    fleet.adopt("n", replace(allocation, indices=(0, 2)), cluster.now)
    for attempt in range(3):
        assert fleet.duration_of(Running("n", "array", "main", attempt, (1, 4))) is None
    assert (len(fleet.running_on["array", "main"]), len(fleet.started_on["array", "main"])) == (2, 2)


def test_expected_jobs_without_a_known_end_leave_no_bound(cluster: Cluster) -> None:
    """Services that are ended by hand come again, take the nodes first, and may run for any time."""
    cluster.node("n", 4)
    for at in range(11):
        spec = parse_job({"user": "bob", "priority": 9, "stages": [{"resources": {"cpu": 1}}]})
        cluster.do(Submit(spec=spec, id=f"service{at}", user="bob", operator=True))
        cluster.report(f"service{at}", "running")
        cluster.now += 6 * MINUTE
        cluster.do(Kill(job=f"service{at}", user="bob", operator=True))
        cluster.report(f"service{at}", "stopped")
    cluster.submit("first", 4, estimate="10h")
    cluster.submit("next", 4, run=False, estimate="1h")
    found = etas_of(cluster, "next")
    assert (found.recorded_jobs, found.unknown_running, found.jobs["next"].unknown_ahead) == (13, 0, 0)
    assert (found.jobs["next"].likely, found.jobs["next"].not_before) == (None, None)
    told = told_by_api("next", "pending", None, found.jobs["next"], found, cluster.now).text
    assert told == (
        "the start of job next cannot be predicted: tasks of jobs that are expected to be submitted have no known end"
    )


def test_futures_end(cluster: Cluster, exact: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10h")
    cluster.submit("next", 4, run=False, estimate="1h")
    monkeypatch.setattr(eta, "HORIZON", HOUR)
    found = etas_of(cluster, "next")
    assert (found.jobs["next"].likely, found.jobs["next"].not_before) == (None, START + HOUR)
    told = told_by_api("next", "pending", None, found.jobs["next"], found, cluster.now).text
    assert told == "job next does not start within 1h"


def test_a_future_without_time_does_not_say_that_a_job_starts_later_than_now(cluster: Cluster) -> None:
    cut = Eta(likely=None, median=None, earliest=None, latest=None, not_before=cluster.now)
    assert sentence(cut, cluster.now, cluster.now) == ""


def test_timers_alone_do_not_keep_a_future_going(cluster: Cluster) -> None:
    """Nodes are held again and again for a gang that waits for tasks without a known end."""
    starving = {**CONFIG, "starving_after": "20s", "hold_for": "10min"}
    cluster.do(Configure(config=parse_partition(starving, ""), version=2, operator=True))
    cluster.node("n", 4)
    cluster.node("m", 4)
    cluster.submit("service", 2)
    cluster.submit("service2", 4)
    cluster.submit("large", 4, run=False, count=2)
    follower = cluster.follow()
    past, runtimes = follower.past(cluster.now)
    future = Future(follower.state, cluster.now, runtimes, past.arrivals(cluster.now, Random(1)), Random(1))
    assert not future.run(["large"], cluster.now + 60 * DAY, monotonic() + 600)
    assert future.stuck and future.now < cluster.now + 60 * DAY


def test_tasks_of_a_stage_are_late_together(cluster: Cluster) -> None:
    cluster.node("n", 6)
    cluster.submit("late", 1, array=6, estimate="5s")
    cluster.submit("next", 1, run=False, estimate="20s")
    cluster.now += MINUTE
    found = etas_of(cluster, "next").jobs["next"]
    assert found.likely is not None and found.latest is not None
    assert found.likely > cluster.now + 20 * SECOND and found.latest > cluster.now + 3 * MINUTE


def test_the_likely_start_is_told(cluster: Cluster) -> None:
    now = cluster.now
    found = Eta(likely=now + HOUR, median=now + 2 * HOUR, earliest=now, latest=now + 3 * HOUR)
    etas = Etas(jobs={}, submissions=[], now=now, futures=19, unknown_running=0, recorded_jobs=1)
    told = told_by_api("a", "pending", None, found, etas, now)
    assert (told.start, told.median) == ((now + HOUR) / SECOND, (now + 2 * HOUR) / SECOND)
    assert told.text == "job a starts in about 1h (90 % sure: within 3h)"
    unknown = Eta(likely=None, median=None, earliest=None, latest=None, unknown_ahead=1)
    assert told_by_api("a", "pending", None, unknown, etas, now).text == (
        "the start of job a cannot be predicted: "
        "1 task that starts before it has no known end (--estimate or --time-limit gives one)"
    )


@pytest.mark.parametrize(
    ("earliest", "latest", "sure"),
    [(HOUR, 3 * HOUR, "in 1h to 3h"), (HOUR, None, "in 1h or later"), (0, None, "now or later")],
)
def test_the_interval_is_told(earliest: int, latest: int | None, sure: str) -> None:
    end = None if latest is None else START + latest
    found = Eta(likely=START + 2 * HOUR, median=None, earliest=START + earliest, latest=end)
    assert sentence(found, START, START) == f"starts in about 2h (90 % sure: {sure})"


def test_a_start_says_that_nothing_like_the_job_has_run(cluster: Cluster) -> None:
    cluster.node("n", 4)

    def told(job: str) -> str:
        found = etas_of(cluster, job)
        return told_by_api(job, "pending", None, found.jobs[job], found, cluster.now).note

    cluster.submit("train", 4, estimate="1min")
    cluster.submit("serve", 4, run=False, estimate="1min")
    assert told("serve") == "no job has ended yet to learn run times from"
    cluster.now += MINUTE
    cluster.report("train", "succeeded")
    cluster.report("serve", "running")
    spec = {"user": "ann", "stages": [{"resources": {"cpu": 4}, "estimate": "1min"}]}
    for name, job in (("train", "again"), ("other", "other")):
        cluster.do(Submit(spec=parse_job({"name": name, **spec}), id=job, user="ann", operator=True))
    assert told("again") == ""
    assert told("other") == "nothing like it has run before"


def test_jobs_that_are_not_submitted_have_a_start_too(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10min")
    spec = parse_job({"name": "b", "user": "bob", "stages": [{"resources": {"cpu": 4}}]})
    wrong = parse_job({"name": "b", "user": "bob", "queue": "root.none", "stages": [{"resources": {"cpu": 4}}]})
    question = EtaQuestion(**cluster.asked(), submissions=(pack_spec(spec), pack_spec(wrong)))
    found = answer(cluster.follow(), question)
    assert isinstance(found, Etas)
    good, bad = found.submissions
    assert not isinstance(good, str) and good.median == START + 10 * MINUTE
    assert isinstance(bad, str) and "root.none" in bad


def test_the_state_is_not_touched(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10min")
    cluster.submit("second", 4, run=False)
    follower = cluster.follow()
    before = dump(follower.state)
    answer(follower, EtaQuestion(**cluster.asked(), jobs=("second",)))
    assert dump(follower.state) == before == dump(cluster.writer.partition)


def test_a_follower_reads_on_and_learns_from_the_history(cluster: Cluster) -> None:
    cluster.node("n", 4)
    follower = cluster.follow()
    for at in range(12):
        cluster.submit(f"job{at}", 4)
        cluster.now += 3 * MINUTE
        cluster.report(f"job{at}", "succeeded")
    cluster.now += 1
    cluster.submit("running", 4)
    cluster.submit("waiting", 4, run=False)
    cluster.history.flush()
    follower.catch_up()
    assert dump(follower.state) == dump(cluster.writer.partition)
    past, runtimes = follower.past(cluster.now)
    assert [job.id for job in past.jobs] == [*(f"job{at}" for at in range(12)), "running", "waiting"]
    assert past.jobs[0].durations == [3 * MINUTE] and past.jobs[-1].durations == [None]
    table = runtimes.table(follower.state.jobs["waiting"].stages[0])
    assert table is not None and table.at(0.5) == 3 * MINUTE
    found = answer(follower, EtaQuestion(**cluster.asked(), jobs=("waiting",)))
    assert isinstance(found, Etas) and found.unknown_running == 0
    median = found.jobs["waiting"].median
    assert median is not None and abs(median - cluster.now - 3 * MINUTE) < MINUTE


def test_a_story_tells_by_whose_decision(cluster: Cluster) -> None:
    cluster.node("n", 4)
    spec = parse_job({"user": "ann", "stages": [{"name": "w", "array": 1, "resources": {"cpu": 1}}]})
    cluster.do(Submit(spec=spec, id="hers", user="ann"))
    cluster.do(Submit(spec=spec, id="other", user="ann"))
    cluster.report("hers", "running")
    cluster.do(Scale(job="hers", stage="w", count=2, user="ann"))
    cluster.do(SetPriority(job="hers", priority=5, user="root", operator=True))
    other = parse_partition({**CONFIG, "max_placed": 500}, "")
    cluster.do(Configure(config=other, version=2, user="eve", operator=True))
    cluster.do(Kill(job="hers", user="root", operator=True))
    cluster.report("hers", "stopped")
    cluster.do(Configure(config=parse_partition(CONFIG, ""), version=3, user="eve", operator=True))
    follower = cluster.follow()
    number = follower.state.jobs["hers"].number
    told = [(line.event, line.fields.get("by")) for line in follower.story("hers", number)]
    assert told[:2] == [("job submitted", "user ann"), ("tasks placed", "the scheduler")]
    assert ("tasks running", "the agent of its node") in told
    assert ("priority changed", "operator root") in told
    assert ("configuration applied", "operator eve") in told
    assert [by for event, by in told if "scaled" in event] == ["user ann"]
    assert [by for event, by in told if event == "job over"] == ["operator root"]
    assert [event for event, _ in told].count("configuration applied") == 1, "not before or after its time"


def test_a_story_tells_which_asks_an_operator_moved(cluster: Cluster) -> None:
    cluster.node("n", 1)
    spec = parse_job({"user": "ann", "stages": [{"name": "w", "resources": {"cpu": 1}}]})
    for name in ("runs", "first", "second"):
        cluster.do(Submit(spec=spec, id=name, user="ann"))
    cluster.do(BringToFront(job="second", stage="w", user="root", operator=True))
    queue = cluster.writer.partition.jobs["second"].queue.path
    cluster.do(ResetLane(queue=queue, job="second", user="root", operator=True))
    follower = cluster.follow()

    def told(job: str) -> list[tuple[str, str, str]]:
        lines = follower.story(job, follower.state.jobs[job].number)
        return [(line.event, line.fields["stage"], line.fields["by"]) for line in lines if "asks" in line.event]

    assert told("second") == [
        ("asks brought to front", "w", "operator root"),
        ("asks moved to tail", "w", "operator root"),
    ]
    assert told("first") == [], "its ask is where it was"


def test_a_story_tells_by_which_right_a_task_was_stopped(cluster: Cluster) -> None:
    cluster.node("n", 1)
    cluster.submit("low")
    spec = parse_job({"user": "bob", "priority": 9, "stages": [{"resources": {"cpu": 1}}]})
    cluster.do(Submit(spec=spec, id="high", user="bob", operator=True))
    cluster.now += 10 * MINUTE
    cluster.do()
    follower = cluster.follow()
    (stopped,) = [line for line in follower.story("low", follower.state.jobs["low"].number) if "stopped" in line.event]
    assert (stopped.fields["for"], stopped.fields["right"]) == ("job high", "priority")


def test_a_record_of_an_earlier_version_names_no_actor() -> None:
    assert _by(None, 0) == {}
    assert actors_of(encode(1, [], None), "here") is None
    assert actors_of(encode(1, []), "here") == []


def test_a_process_that_fails_is_reported() -> None:
    with pytest.raises(RuntimeError, match="ended with status"):
        eta.in_processes(lambda number: 1 // number, [1, 0], int, 2)
    assert sorted(eta.in_processes(lambda number: number * number, [1, 2, 3], int, 2)) == [1, 4, 9]


# -- what if, stories, traces ------------------------------------------------------------------------------------


def compared(cluster: Cluster, replay: int = 0, **changes: Any) -> dict[str, Any]:
    return comparison.compare(cluster.follow(), WhatIfQuestion(**cluster.asked(), changes=changes, replay=replay))


def queued(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10min")
    cluster.submit("second", 4, run=False, estimate="10min")
    cluster.submit("third", 4, run=False, estimate="10min")


def waits(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {row["job"]: (row["wait_before"], row["wait_after"]) for row in found["jobs"]}


def test_what_if_there_were_another_node(cluster: Cluster) -> None:
    queued(cluster)
    found = compared(cluster, add_nodes={"n": 1})
    assert (found["earlier"], found["later"], found["same"]) == (2, 0, 0)
    assert waits(found) == {"second": (600.0, 0.0), "third": (1200.0, 600.0)}
    assert (found["mean_wait_before"], found["mean_wait_after"]) == (900.0, 300.0)
    assert found["utilisation_before"] == found["utilisation_after"] == 1.0


def test_what_if_tells_the_present_use_if_no_job_waits(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 2, estimate="10min")
    found = compared(cluster, add_nodes={"n": 1})
    assert (found["utilisation_before"], found["utilisation_after"]) == (0.5, 0.25)


def test_what_if_a_job_had_another_priority(cluster: Cluster, exact: None) -> None:
    queued(cluster)
    found = compared(cluster, priorities={"third": 9})
    # For a higher priority, the first job is stopped and starts again later.
    # It stops the running task the moment after that has started.
    assert waits(found) == {"second": (600.0, 1200.000001), "third": (1200.0, 0.000001)}


def test_what_if_a_share_changed_while_a_task_is_being_launched(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4, run=False, estimate="10min")
    cluster.submit("second", 4, run=False, estimate="10min")
    found = compared(cluster, shares={"root.all": 7})
    assert (found["earlier"], found["later"]) == (0, 0)
    assert waits(found) in ({}, {"second": (600.0, 600.0)})


def test_what_if_a_node_were_gone(cluster: Cluster, exact: None) -> None:
    cluster.node("m", 4)
    queued(cluster)
    cluster.submit("fourth", 4, run=False, estimate="10min")
    found = compared(cluster, remove_nodes=["m"])
    assert waits(found) == {"fourth": (600.0, 1200.0)}, found


MOVES = ("earlier", "later", "same", "no_longer", "never", "unknown")


def moves(found: dict[str, Any]) -> dict[str, int]:
    assert sum(found[key] for key in MOVES) == found["compared"]
    return {key: found[key] for key in MOVES if found[key]}


def test_jobs_that_do_not_start_are_counted_apart(cluster: Cluster) -> None:
    queued(cluster)
    cluster.submit("held", 4, run=False, estimate="10min")
    cluster.do(HoldJob(job="held", user="ann", operator=True))
    cluster.submit("large", 6, run=False, estimate="10min")
    found = compared(cluster, shares={"root.all": 7})
    assert moves(found) == {"same": 2, "never": 2}
    assert (found["mean_wait_before"], found["mean_wait_after"]) == (900.0, 900.0)
    found = compared(cluster, remove_nodes=["n"])
    assert moves(found) == {"no_longer": 2, "never": 2}
    assert (found["mean_wait_before"], found["mean_wait_after"]) == (900.0, None)
    rows = [(row["job"], row["wait_before"], row["never_before"], row["never_after"]) for row in found["jobs"]]
    assert rows == [("second", 600.0, False, True), ("third", 1200.0, False, True)]


def test_a_start_that_cannot_be_told_is_not_one_that_never_comes(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("first", 4)
    cluster.submit("second", 4, run=False, estimate="10min")
    found = compared(cluster, shares={"root.all": 7})
    assert moves(found) == {"unknown": 1}
    found = compared(cluster, add_nodes={"n": 1})
    assert moves(found) == {"earlier": 1}
    assert (found["mean_wait_before"], found["mean_wait_after"]) == (None, 0.0)
    assert [(row["never_before"], row["never_after"]) for row in found["jobs"]] == [(False, False)]


@pytest.mark.parametrize(
    ("before", "after", "move"),
    [
        (60.0, 10.0, "earlier"),
        (60.0, 60.5, "same"),
        (60.0, 90.0, "later"),
        (60.0, "unknown", "later"),
        (60.0, "never", "no_longer"),
        ("unknown", 60.0, "earlier"),
        ("unknown", "unknown", "unknown"),
        ("unknown", "never", "no_longer"),
        ("never", 60.0, "earlier"),
        ("never", "unknown", "unknown"),
        ("never", "never", "never"),
    ],
)
def test_moves_of_a_start(before: float | str, after: float | str, move: str) -> None:
    row = {}
    for side, start in (("before", before), ("after", after)):
        row[f"wait_{side}"] = None if isinstance(start, str) else start
        row[f"never_{side}"] = start == "never"
    assert comparison._move(row) == move


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        ({}, "", "nothing is supposed"),
        ({"add_nodes": {"m": 1}}, "add_nodes.m", "there is no pool and no node"),
        ({"add_nodes": {"n": 0}}, "add_nodes.n", "0"),
        ({"remove_nodes": ["m"]}, r"remove_nodes\[0\]", "there is no node"),
        ({"remove_nodes": ["n", "n"]}, r"remove_nodes\[1\]", "n is given twice; drop one of them"),
        ({"shares": {"root.none": 1}}, "shares.root.none", "there is no queue"),
        ({"priorities": {"none": 1}}, "priorities.none", "there is no job"),
        ({"policy": "eazy"}, "policy", "did you mean easy"),
        ({"nodes": 1}, "nodes", "no such key"),
        ({"without": ["ann"]}, "without", "only jobs of the past"),
    ],
)
def test_what_is_supposed_is_checked(cluster: Cluster, changes: dict[str, Any], field: str, problem: str) -> None:
    queued(cluster)
    with pytest.raises(Refused, match=rf"(?s){field}.*{problem}"):
        compared(cluster, **changes)


def test_a_node_without_an_agent_is_not_suggested_to_have_more_of(cluster: Cluster) -> None:
    queued(cluster)
    cluster.do(MoveNode(name="n", action="lose", operator=True))
    with pytest.raises(Refused, match=r'node "n" has no agent now'):
        compared(cluster, add_nodes={"n": 1})


def test_what_if_over_the_past_and_its_trace(cluster: Cluster) -> None:
    queued(cluster)
    for name in ("first", "second", "third"):
        cluster.now += 10 * MINUTE
        cluster.report(name, "succeeded")
        if name != "third":
            cluster.report("second" if name == "first" else "third", "running")
    found = compared(cluster, replay=DAY, add_nodes={"n": 2})
    assert waits(found) == {"second": (600.0, 0.0), "third": (1200.0, 0.0)}
    busy, behind = "for nodes busy with jobs of queue root.all", "behind other jobs of queue root.all"
    assert {part["text"]: part["seconds"] for part in found["waits_before"]} == {busy: 1200.0, behind: 600.0}
    assert found["waits_after"] == []
    with pytest.raises(Refused, match=r'without\[0\].*queue "root.none"'):
        compared(cluster, replay=DAY, without=["root.none"])
    document = trace_of(cluster)
    assert [job["stages"][0]["duration"] for job in document["jobs"]] == ["600s"] * 3
    from fairlead.sim.traces.own import read_document

    trace = read_document(document, "past", "extend")
    assert len(trace.arrivals) == 3 and not trace.left_out
    assert dict(trace.nodes)["n"].capacity == (("cpu", 4000),)


def test_the_past_without_a_user(cluster: Cluster) -> None:
    cluster.node("n", 4)
    cluster.submit("flood", 4, user="bob")
    cluster.submit("small", 4, run=False)
    cluster.now += 10 * MINUTE
    cluster.report("flood", "succeeded")
    cluster.report("small", "running")
    cluster.now += MINUTE
    cluster.report("small", "succeeded")
    found = compared(cluster, replay=DAY, without=["bob"])
    assert (found["compared"], waits(found)) == (1, {"small": (600.0, 0.0)})
    assert [part["seconds"] for part in found["waits_before"]] == [600.0] and not found["waits_after"]


def exported(cluster: Cluster, since: Micros = 0) -> dict[str, Any]:
    found = answer(cluster.follow(), TraceQuestion(**cluster.asked(), since=since))
    document: dict[str, Any] = found.document  # type: ignore[attr-defined]
    return document


def trace_of(cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = exported(cluster)["trace"]
    return document


def kill(cluster: Cluster, name: str) -> None:
    cluster.do(Kill(job=name, user="ann", operator=True))
    cluster.report(name, "stopped")


def test_a_killed_job_is_load_of_the_past_and_tells_no_run_time(cluster: Cluster) -> None:
    queued(cluster)
    cluster.now += 4 * MINUTE
    kill(cluster, "first")
    kill(cluster, "third")
    cluster.report("second", "running")
    cluster.now += MINUTE
    cluster.report("second", "succeeded")
    cluster.submit("fourth", 4)
    found = exported(cluster)
    assert [(job["id"], job["stages"][0]["duration"]) for job in found["trace"]["jobs"]] == [
        ("first", "240s"),
        ("second", "60s"),
    ]
    assert (found["not_ended"], found["never_ran"]) == (1, 1)
    replayed = compared(cluster, replay=DAY, add_nodes={"n": 1})
    assert (replayed["compared"], waits(replayed)) == (2, {"second": (240.0, 0.0)})
    past, runtimes = cluster.follow().past(cluster.now)
    assert [job.durations for job in past.jobs] == [[None], [MINUTE], [None], [None]]
    assert runtimes.table_of("ann", "first", "main", None) is None, "only one run has ended by itself"


def test_jobs_wait_for_the_same_jobs_in_a_trace_and_a_replay(cluster: Cluster) -> None:
    cluster.node("n", 8)
    for name, after in (("first", []), ("second", ["first"])):
        cluster.now += MINUTE
        spec = parse_job({"user": "ann", "after": after, "stages": [{"resources": {"cpu": 4}}]})
        cluster.do(Submit(spec=spec, id=name, user="ann", operator=True))
        cluster.report("first", "running")
    for name in ("first", "second"):
        cluster.now += 9 * MINUTE
        cluster.report(name, "succeeded")
        cluster.report("second", "running")
    found = exported(cluster)
    assert [job.get("after") for job in found["trace"]["jobs"]] == [None, ["first"]] and found["after_left_out"] == 0
    late = exported(cluster, START + 2 * MINUTE)
    assert [(job["id"], job.get("after")) for job in late["trace"]["jobs"]] == [("second", None)]
    assert late["after_left_out"] == 1
    from fairlead.sim.traces.own import read_document

    assert [arrival.spec.after for arrival in read_document(found["trace"], "past", "extend").arrivals] == [
        (),
        ("jfirst",),
    ]
    replayed = compared(cluster, replay=DAY, add_nodes={"n": 1})
    assert (replayed["same"], replayed["mean_wait_before"]) == (2, 4.5 * 60), "0 and 9 minutes"
    arrivals = Past()
    for at, job in enumerate(cluster.follow().past(cluster.now)[0].jobs * 10):
        arrivals.add(replace(job, at=START + at * HOUR))
    made_up = arrivals.arrivals(START + 20 * HOUR, Random(1))
    assert {next(made_up).spec.after for _ in range(20)} == {()}, "those that they would wait for are not in the future"


def test_the_time_before_a_preemption_counts_if_the_job_did_not_run_again(cluster: Cluster) -> None:
    queued(cluster)
    cluster.now += 4 * MINUTE
    cluster.do(Requeue(job="first", user="ann", operator=True))
    cluster.report("first", "stopped")
    assert cluster.writer.partition.jobs["first"].live
    cluster.report("first", "running")
    cluster.now += MINUTE
    kill(cluster, "first")
    cluster.report("second", "running")
    cluster.now += 2 * MINUTE
    cluster.do(SetPriority(job="third", priority=9, operator=True))
    cluster.do(Requeue(job="second", user="ann", operator=True))
    cluster.report("second", "stopped")
    assert not cluster.writer.partition.jobs["second"].live
    kill(cluster, "second")
    assert [job["stages"][0]["duration"] for job in trace_of(cluster)["jobs"]] == ["60s", "120s"]


def test_the_run_time_in_a_trace_is_the_mean_of_all_tasks_that_ran(cluster: Cluster) -> None:
    cluster.node("n", 3)
    stages = [{"name": name, "array": 3, "resources": {"cpu": cpu}} for name, cpu in (("main", 1), ("other", 3))]
    cluster.do(Submit(spec=parse_job({"user": "ann", "stages": stages}), id="array", user="ann", operator=True))
    cluster.report("array", "running")
    cluster.now += MINUTE
    number = cluster.writer.partition.jobs["array"].number
    at = {"node": "n", "job": "array", "stage": "main", "attempt": 1, "number": number, "operator": True}
    cluster.do(Report(**at, indices=(0, 1), state="succeeded"))
    cluster.now += 3 * MINUTE
    kill(cluster, "array")
    (job,) = trace_of(cluster)["jobs"]
    assert [stage["duration"] for stage in job["stages"]] == ["180s", "0s"], "no task of the second stage ran"


def test_a_story_is_told_in_order(cluster: Cluster) -> None:
    queued(cluster)
    cluster.now += 10 * MINUTE
    cluster.report("first", "succeeded")
    number = cluster.writer.partition.jobs["first"].number
    told = answer(cluster.follow(), StoryQuestion(**cluster.asked(), job="first", number=number))
    assert isinstance(told, Story)
    assert [line.event for line in told.lines] == [
        "job submitted",
        "tasks placed",
        "tasks running",
        "tasks ended",
        "job over",
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_jobs_that_end_together_each_have_the_end_in_their_story(cluster: Cluster, jobs: int) -> None:
    cluster.node("n", 4)
    names = [f"job{number}" for number in range(jobs)]
    for name in names:
        cluster.submit(name)
    cluster.now += MINUTE
    numbers = {name: cluster.writer.partition.jobs[name].number for name in names}
    at = {"node": "n", "stage": "main", "indices": (0, 1), "attempt": 1, "operator": True}
    cluster.do(*[Report(**at, job=name, state="succeeded", number=numbers[name]) for name in names])
    for name in names:
        told = answer(cluster.follow(), StoryQuestion(**cluster.asked(), job=name, number=numbers[name]))
        assert isinstance(told, Story)
        assert [line.event for line in told.lines][-2:] == ["tasks ended", "job over"]
        assert told.lines[-1].fields["state"] == "succeeded"
        assert told.lines[-2].fields["by"] == told.lines[-1].fields["by"] == "the agent of its node"


@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_a_process_that_is_being_started_ends_with_its_server(cluster: Cluster, tmp_path: Path, steps: int) -> None:
    async def story() -> None:
        previewer = Previewer(tmp_path / "journal", tmp_path / "history")
        asking = asyncio.create_task(previewer.ask(EtaQuestion(**cluster.asked(), jobs=())))
        for _ in range(steps):
            await asyncio.sleep(0)
        await previewer.close()
        with pytest.raises(Unanswered):
            await asking
        assert previewer._process is None

    asyncio.run(story())


class Counted(Previewer):
    """Notes the questions that reach the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "journal", folder / "history")
        self.asked: list[AnyQuestion] = []

    async def _exchange(self, process: Process, payload: bytes) -> bytes:
        self.asked.append(msgspec.msgpack.decode(payload, type=AnyQuestion))
        return await super()._exchange(process, payload)


def many_waiting(cluster: Cluster) -> list[str]:
    """Let 20 jobs wait for each other; return them."""
    cluster.node("n", 4)
    cluster.submit("first", 4, estimate="10min")
    waiting = [f"job{at}" for at in range(20)]
    for name in waiting:
        cluster.submit(name, 4, user=f"user{name}", run=False, estimate="10min")
    cluster.history.flush()
    return waiting


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_questions_about_starts_that_wait_together_are_asked_as_one(
    cluster: Cluster, tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    waiting = many_waiting(cluster)
    alone = {job: etas_of(cluster, job) for job in waiting[:2]}
    submission = pack_spec(parse_job({"user": "ann", "stages": [{"resources": {"cpu": 4}}]}))

    async def story() -> None:
        previewer = Counted(tmp_path)

        def ask(*jobs: str, **more: Any) -> asyncio.Task[Any]:
            return asyncio.create_task(previewer.ask(EtaQuestion(**{**cluster.asked(), **more}, jobs=jobs)))

        earlier = ask("job0")
        await until_asked(previewer, 1)
        tasks = {job: ask(job) for job in waiting}
        twice, none = ask("job0", "job1"), ask("gone")
        submitted = ask(submissions=(submission,))
        refused = ask(submissions=(pack_spec(replace(unpack_spec(submission), manager="m")),))
        unknown = asyncio.create_task(
            previewer.ask(EtaQuestion(partition="other", seq=0, now=cluster.now, jobs=("a",)))
        )
        await asyncio.sleep(0)
        tasks["job5"].cancel()
        found = {job: await task for job, task in tasks.items() if job != "job5"}
        assert all(list(etas.jobs) == [job] for job, etas in found.items()), "each has its own jobs and no others"
        assert {job: found[job] for job in alone} == alone, "the same as if it had been asked alone"
        assert (await twice).jobs == {job: alone[job].jobs[job] for job in alone}
        assert (await none).jobs["gone"].likely is None
        assert len((await submitted).submissions) == 1 and (await earlier) == alone["job0"]
        assert isinstance(await refused, Failure)
        assert isinstance(await unknown, Failure)
        with pytest.raises(asyncio.CancelledError):
            await tasks["job5"]
        asked = [question for question in previewer.asked if isinstance(question, EtaQuestion)]
        # Both with submissions, the first one, the one about the other partition, and one for all others.
        assert sorted(len(question.jobs) for question in asked) == [0, 0, 1, 1, 20]
        await previewer.close()

    run(story())


async def until_asked(previewer: Counted, questions: int) -> None:
    async with asyncio.timeout(60):
        while len(previewer.asked) < questions:
            await asyncio.sleep(0.01)


def test_a_question_that_is_cancelled_ends_no_other_one(cluster: Cluster, tmp_path: Path) -> None:
    many_waiting(cluster)

    async def story() -> None:
        previewer = Counted(tmp_path)

        def ask(job: str) -> asyncio.Task[Any]:
            return asyncio.create_task(previewer.ask(EtaQuestion(**cluster.asked(), jobs=(job,))))

        first, second = ask("job0"), ask("job1")
        await until_asked(previewer, 1)
        first.cancel()
        assert list((await second).jobs) == ["job1"]
        process = previewer._process
        third, fourth = ask("job2"), ask("job3")
        await until_asked(previewer, 2)
        third.cancel()
        fourth.cancel()
        await asyncio.wait([third, fourth])
        assert list((await ask("job4")).jobs) == ["job4"]
        assert previewer._process is not process, "the process is ended if nobody waits for its answer"
        await previewer.close()

    asyncio.run(story())


def test_a_large_question_is_joined_by_no_other(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = many_waiting(cluster)
    monkeypatch.setattr("fairlead.forecast.previewer.MOST_TOGETHER", 10)

    async def story() -> None:
        previewer = Counted(tmp_path)
        asking = [previewer.ask(EtaQuestion(**cluster.asked(), jobs=tuple(waiting[at : at + 5]))) for at in (0, 5, 10)]
        assert [len(etas.jobs) for etas in await asyncio.gather(*asking) if isinstance(etas, Etas)] == [5, 5, 5]
        assert [len(asked.jobs) for asked in previewer.asked if isinstance(asked, EtaQuestion)] == [10, 5]
        await previewer.close()

    asyncio.run(story())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_process_that_has_gone_is_started_again(
    cluster: Cluster, tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def story() -> None:
        previewer = Previewer(tmp_path / "journal", tmp_path / "history")
        question = EtaQuestion(**cluster.asked(), jobs=())
        assert isinstance(await previewer.ask(question), Etas)
        first = previewer._process
        assert first is not None
        first.terminate()  # as if it had been idle for too long
        await first.wait()
        await asyncio.sleep(0.1)  # its pipes are closed
        assert isinstance(await previewer.ask(question), Etas)
        assert previewer._process is not None and previewer._process.pid != first.pid
        await previewer.close()

    run(story())


def test_a_question_with_a_number_beyond_64_bits_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    previewer = Previewer(tmp_path / "journal", tmp_path / "history")
    question = WhatIfQuestion(**cluster.asked(), changes={"shares": {"root.a": 2**80}})
    answered = asyncio.run(previewer.ask(question))
    assert isinstance(answered, Failure) and "more than 64 bits" in answered.problem


def test_the_use_of_a_future_that_begins_in_the_past_is_no_less_than_0() -> None:
    """The state that a future begins with may be seconds old, while nothing happens until the next microsecond."""
    used = [(0, 4_000), (60_000_000, 4_000)]
    sample = eta.Sample(began=0, starts={}, until=60_000_001, whole=True, used=used)
    assert comparison._utilisation([sample], 60_000_000, 60_000_001, 4_000, 4_000) == 1.0
    assert comparison._utilisation([sample], 30_000_000, 60_000_000, 4_000, 8_000) == 0.5
