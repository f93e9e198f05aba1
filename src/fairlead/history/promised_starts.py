"""The ledger of promised starts: each start that a server foretold, with its interval, scored when the job starts.

The first and the last promise of each job are kept in the history. Of a job that was changed, held or ended before it
started, they are not scored. The scores of the last first promises say how wide intervals have to be (conformal
prediction): if 9 of 10 starts were within 1.4 times the simulated interval, the next intervals are 1.4 times as wide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import ceil, exp, log
from statistics import median
from threading import Lock
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter

from fairlead.core.changes import JobNews, News
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.history.store import History, PromiseEnd, PromiseRow

Result = Literal["kept", "earlier", "later", "changed", "ended"]
"""`earlier` and `later`: the job started outside of the interval. `changed`, `ended`: before it started."""
NEWEST_SCORES = 200
FEWEST = 20
"""Intervals are corrected from this number of scores on."""
COVERED = 0.9
TOLERANCE: Micros = SECOND
"""Starts are shown in seconds."""
AGAIN: Micros = 60 * SECOND
"""A later promise for the same job is written if this time has passed, because the page asks every few seconds."""
MOST = 100_000
"""At most this number of jobs with open promises."""
NEAR: Micros = 30 * SECOND
"""Waits are compared by their ratio, after this is added, so that the ratio of short ones says little."""
LEAST_WIDTH = 0.02
NARROWEST, WIDEST = 0.2, 20.0


class Promise(msgspec.Struct, frozen=True):
    """A start that was foretold at the time `made`. The interval has no end if `latest` is None."""

    made: Micros
    likely: Micros
    earliest: Micros
    latest: Micros | None
    stretch: float = 1.0
    """How much wider the interval is than the simulated one."""

    def result(self, start: Micros) -> Result:
        if start < self.earliest - TOLERANCE:
            return "earlier"
        return "kept" if self.latest is None or start <= self.latest + TOLERANCE else "later"

    def score(self, start: Micros) -> float | None:
        """Return how much wider the simulated interval had to be to contain a start; None if it has no end.

        Below 1 it could be narrower.
        """
        if self.latest is None:
            return None
        off = self._ratio(start, self.likely)
        width = self._ratio(self.latest, self.likely) if off > 0 else self._ratio(self.likely, self.earliest)
        return abs(off) * self.stretch / max(LEAST_WIDTH, width)

    def stretched(self, factor: float) -> Promise:
        """Return the promise with an interval that is wider or narrower by a factor."""
        early = self._moved(-factor * self._ratio(self.likely, self.earliest))
        late = None if self.latest is None else self._moved(factor * self._ratio(self.latest, self.likely))
        return replace(self, earliest=max(self.made, early), latest=late, stretch=factor * self.stretch)

    def _ratio(self, one: Micros, other: Micros) -> float:
        return log((max(0, one - self.made) + NEAR) / (max(0, other - self.made) + NEAR))

    def _moved(self, by: float) -> Micros:
        return self.made - NEAR + round((max(0, self.likely - self.made) + NEAR) * exp(by))


def stretch_of(scores: Iterable[float]) -> float:
    """Return the factor for the next intervals: the smallest for which 9 of 10 promises with these scores were kept."""
    ordered = sorted(scores)
    if len(ordered) < FEWEST:
        return 1.0
    at = ceil((len(ordered) + 1) * COVERED) - 1
    return min(WIDEST, max(NARROWEST, ordered[min(at, len(ordered) - 1)]))


class Figures(msgspec.Struct, frozen=True):
    """How promises of a period ended."""

    results: dict[Result, int]
    median_error: Micros | None
    """The median distance between the likely and the real start."""

    @property
    def scored(self) -> int:
        return sum(self.results.get(result, 0) for result in ("kept", "earlier", "later"))


class Open(msgspec.Struct):
    """A job whose start is being foretold, or was."""

    first: Promise | None = None
    noted: Micros = 0
    ended: PromiseEnd | None = None
    """Set if the job started or ended while the answer was computed."""


class PromisedStarts:
    """Keeps promises; an observer of writers. It stands before the recorder of the history, whose mark of the records
    that are stored holds for its rows too."""

    def __init__(self, history: History, registry: CollectorRegistry | None = None) -> None:
        """Count the results of first promises in `registry`."""
        self._history = history
        self._counted = Counter(
            "fairlead_promised_starts_total",
            "Jobs whose start was foretold, by what came of the first promise: kept, earlier or later than its "
            "interval; changed or ended before the start.",
            ["partition", "result"],
            registry=registry or CollectorRegistry(),
        )
        self._lock = Lock()
        """Held while the threads of writers and of the API change what is open."""
        self._open: dict[tuple[str, int], Open] = {}
        self._scores: dict[str, deque[float]] = {}

    # -- promises

    def expect(self, partition: Partition, jobs: Iterable[str]) -> dict[str, int]:
        """Note jobs whose start will be foretold. Return the numbers of those that wait."""
        found = {name: partition.jobs[name] for name in jobs if name in partition.jobs}
        numbers = {name: job.number for name, job in found.items() if not job.live and not job.over}
        for number in numbers.values():
            if len(self._open) < MOST:
                self._open.setdefault((partition.name, number), Open())
        return numbers

    def stretch(self, partition: str) -> float:
        return stretch_of(self._scores.get(partition, ()))

    def note(self, partition: str, expected: Iterable[int], promises: Mapping[int, Promise]) -> None:
        """Keep the promises for jobs that were expected, by job number."""
        rows: list[PromiseRow | PromiseEnd] = []
        with self._lock:
            for number in expected:
                entry, promise = self._open.get((partition, number)), promises.get(number)
                if entry is None:
                    continue
                fresh = promise is not None and entry.first is None
                if promise is not None and fresh:
                    entry.first = promise
                    rows.append(_row(partition, number, promise, 0))
                    if entry.ended is not None:
                        self._settle(entry, entry.ended)
                        rows.append(entry.ended)
                if promise is not None and (fresh or promise.made >= entry.noted + AGAIN):
                    entry.noted = promise.made
                    rows.append(_row(partition, number, promise, 1))
                if entry.ended is not None or entry.first is None:
                    del self._open[partition, number]
        if rows:
            self._history.put_promises(rows)

    def figures(self, partition: str, since: Micros, last: bool = False) -> Figures:
        """Return how the first promises of jobs that were decided since a time ended; with `last`, the last ones."""
        results: dict[Result, int] = {}
        errors = []
        for row, end in self._history.promises(partition, since, last, MOST):
            promise = _promise(row)
            result: Result = promise.result(end.at) if end.what == "started" else end.what
            results[result] = results.get(result, 0) + 1
            if end.what == "started":
                errors.append(abs(promise.likely - end.at))
        return Figures(results, round(median(errors)) if errors else None)

    @property
    def open(self) -> int:
        """Return the number of jobs with promises that are not decided yet."""
        return sum(entry.first is not None for entry in list(self._open.values()))

    # -- an observer

    def reached(self, partition: str, last: int) -> int:
        reached = self._history.reached(partition, last)
        rows = self._history.open_promises(partition)
        scored = self._history.promises(partition, 0, False, NEWEST_SCORES)
        self._open |= {(partition, row.number): Open(_promise(row), row.made) for row in rows}
        scores = [_promise(row).score(end.at) for row, end in reversed(scored) if end.what == "started"]
        self._scores[partition] = deque([score for score in scores if score is not None], NEWEST_SCORES)
        for result in get_args(Result):
            self._counted.labels(partition, result)
        return last if reached is None else reached

    def replayed(self, partition: Partition, seq: int, news: Iterable[News]) -> None:
        self._see(partition, news)

    def began(self, partition: Partition) -> None:
        pass

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        if self._open and decided.changes:
            self._see(decided.plan.partition, decided.plan.news())

    def stopped(self, partition: Partition, why: str) -> None:
        pass

    def _see(self, partition: Partition, news: Iterable[News]) -> None:
        with self._lock:
            ends = self._ends(partition, news) if self._open else []
        if ends:
            self._history.put_promises(ends)

    def _ends(self, partition: Partition, news: Iterable[News]) -> list[PromiseEnd]:
        """Return what has become of open promises."""
        ends: list[PromiseEnd] = []
        for item in news:
            job = getattr(item, "job", None) or getattr(getattr(item, "stage", None), "job", None)
            entry = None if job is None else self._open.get((partition.name, job.number))
            if job is None or entry is None or entry.ended is not None:
                continue
            what: Literal["started", "changed", "ended"] | None = "started" if job.live else None
            if what is None and job.over:
                what = "ended"
            elif isinstance(item, JobNews) and item.what in ("held", "released", "updated"):
                what = what or "changed"
            if what is not None:
                entry.ended = PromiseEnd(partition.name, job.number, what, partition.now)
                if entry.first is not None:
                    self._settle(entry, entry.ended)
                    ends.append(entry.ended)
                    del self._open[partition.name, job.number]
        return ends

    def _settle(self, entry: Open, end: PromiseEnd) -> None:
        assert entry.first is not None
        result: Result = entry.first.result(end.at) if end.what == "started" else end.what
        self._counted.labels(end.partition, result).inc()
        score = entry.first.score(end.at) if end.what == "started" else None
        if score is not None:
            self._scores.setdefault(end.partition, deque(maxlen=NEWEST_SCORES)).append(score)


def _row(partition: str, number: int, promise: Promise, last: int) -> PromiseRow:
    return PromiseRow(partition, number, last, *msgspec.structs.astuple(promise))


def _promise(row: PromiseRow) -> Promise:
    return Promise(row.made, row.likely, row.earliest, row.latest, row.stretch)
