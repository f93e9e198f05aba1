"""Distributions of run times: from earlier runs of the same stage name, of the same user, and of all users.

Runs with the same estimate are the most specific kind. Other runs count by the fraction of their estimate that they
used. The fewer runs of a kind are recorded, the more runs of less specific kinds count.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Container
from itertools import accumulate
from math import exp
from random import Random

import msgspec

from fairlead.core.ahead.expected_ends import guess
from fairlead.core.model import Micros, Stage
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition

NAMED_RUNS, USER_RUNS, ALL_RUNS = 20, 40, 400
"""The number of runs that are remembered for each stage name, for each user, and for all users together."""
FADE = 0.85
"""The weight of a run relative to the next, newer one."""
ENOUGH = 5
"""A task without an estimate has a distribution only if at least this number of tasks of its user have ended."""
BEYOND = 2.0
"""The weight of all less specific runs together. The newest run of a kind has weight 1."""
EXACT, LIMIT = 0.6, 0.1
"""Without recorded runs, the probability that a task runs as long as its estimate, or else as its time limit."""
PARTS = 9
"""The other run times in that case: this number of equally likely, evenly spaced shorter ones."""
NEAR = 0.1
"""The standard deviation by which a drawn run time differs from the recorded one, on a logarithmic scale."""

ANY: Micros = -1
"""Stands for any estimate."""
LATEST = 0.95
"""The highest quantile for tasks that run longer than all recorded ones: they end within 20 times their run time."""
Kind = tuple[str | None, str | None, str | None, Micros | None]
"""User, job name, stage name and given estimate of runs; None stands for all."""


def kinds(user: str, name: str, stage: str, given: Micros | None) -> list[tuple[Kind, int, float]]:
    """Return the kinds of a run, the most specific first, each with the number of runs to remember and the fade."""
    return [
        kind
        for estimate in (given, ANY)
        for kind in (
            ((user, name, stage, estimate), NAMED_RUNS, FADE),
            ((user, None, None, estimate), USER_RUNS, FADE),
            ((None, None, None, estimate), ALL_RUNS, 1.0),
        )
    ]


class Run(msgspec.Struct, frozen=True, gc=False):
    ran: Micros
    given: Micros | None
    """The submitted estimate or time limit."""

    def scaled(self, given: Micros | None) -> Micros:
        """Return the run time of a task with another estimate, which it uses up to the same fraction as this run."""
        if given is None:
            return self.ran
        if self.given is None:
            return min(self.ran, given)
        return self.ran if given == self.given else self.ran * given // max(1, self.given)


class Runtimes:
    def __init__(self) -> None:
        self._runs: dict[Kind, list[Run]] = {}
        self._tasks: dict[str, int] = {}
        """User → tasks that have ended."""
        self._tables: dict[tuple[Kind, float], Table | None] = {}

    def note(self, user: str, name: str, stage: str, ran: Micros, given: Micros | None, tasks: int = 1) -> None:
        """Add a run that has ended, or the mean of the runs of several tasks of one job."""
        run = Run(ran, given)
        for kind, most, _ in kinds(user, name, stage, given):
            runs = self._runs.setdefault(kind, [])
            runs.append(run)
            if len(runs) > most:
                del runs[0]
        self._tasks[user] = self._tasks.get(user, 0) + tasks
        self._tables.clear()

    def note_learned(self, partition: Partition, recorded: Container[tuple[str, str, str]]) -> None:
        """Add the runs that the scheduler has learned, except for (user, job name, stage name) with recorded runs.

        Call this before `note`, because learned runs are older than recorded ones.
        """
        for (user, name, stage), runs in sorted(partition.runs.items()):
            if name and (user, name, stage) not in recorded:
                for ran in (runs.before, runs.last):
                    if ran is not None:
                        self.note(user, name, stage, ran, None)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def has_run(self, user: str, name: str, stage: str) -> bool:
        """True if the run time of such a stage is on record."""
        return (user, name, stage, ANY) in self._runs

    def table(self, stage: Stage) -> Table | None:
        """Return the run times of the tasks of a stage; None if too few runs are known."""
        exact = LIMIT if stage.terms.estimate is None else EXACT
        return self.table_of(*stage.job.owner, stage.name, guess(stage.terms), exact)

    def table_of(self, user: str, name: str, stage: str, given: Micros | None, exact: float = EXACT) -> Table | None:
        """Return the distribution of run times for a user, job name, stage name and estimate.

        `exact` is the probability, without recorded runs, that a task runs as long as estimated.
        """
        key = (user, name, stage, given)
        if (key, exact) not in self._tables:
            self._tables[key, exact] = self._table(*key, exact)
        return self._tables[key, exact]

    def _table(self, user: str, name: str, stage: str, given: Micros | None, exact: float) -> Table | None:
        if given is None and self._tasks.get(user, 0) < ENOUGH:
            return None
        values: list[tuple[Micros, float]] = []
        left = 1.0
        for kind, _, fade in kinds(user, name, stage, given):
            runs = self._runs.get(kind, ())
            weights = [fade**age for age in range(len(runs))]
            total = sum(weights) + BEYOND
            for run, weight in zip(reversed(runs), weights, strict=True):
                values.append((max(1, run.scaled(given)), left * weight / total))
            left *= BEYOND / total
        if given is not None:
            values.append((max(1, given), left * exact))
            earlier = left * (1 - exact) / PARTS
            values += [(max(1, given * part // (PARTS + 1)), earlier) for part in range(1, PARTS + 1)]
        return Table(values, given)


class Table:
    """Run times with weights, sorted."""

    def __init__(self, values: list[tuple[Micros, float]], given: Micros | None) -> None:
        values.sort()
        self._values = [value for value, _ in values]
        self._sums = [0.0, *accumulate(weight for _, weight in values)]
        self._given = given

    def draw(self, rng: Random, elapsed: Micros = 0, part: float | None = None) -> Micros | None:
        """Return a run time above `elapsed`, near the recorded one at quantile `part`, which is random by default.

        Return None if the task has no estimate and has run twice as long as all recorded ones.
        """
        value = self.at(rng.random() if part is None else part, elapsed)
        if value is None:
            return None
        near = round(value * exp(rng.gauss(0, NEAR)))
        if self._given is not None:  # many tasks run exactly as long as they may
            near = value if value >= self._given else min(near, self._given)
        return near if near > elapsed else value

    def is_outlasted(self, elapsed: Micros) -> bool:
        """True if a task has run for longer than its estimate and all recorded runs."""
        return elapsed >= self._values[-1]

    def at(self, part: float, elapsed: Micros = 0) -> Micros | None:
        """Return the run time at a quantile, from 0 to 1, of the distribution above `elapsed`."""
        if self.is_outlasted(elapsed):
            if self._given is None and elapsed >= 2 * self._values[-1]:
                return None
            # The longer it has run, the longer it will: in half of the cases twice as long as now.
            return max(elapsed + SECOND, round(elapsed / (1 - min(part, LATEST))))
        first = bisect(self._values, elapsed)
        low, high = self._sums[first], self._sums[-1]
        at = bisect(self._sums, low + part * (high - low), first + 1, len(self._values))
        return self._values[at - 1]
