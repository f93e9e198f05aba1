"""Run times to draw from: earlier runs of the same stage, of the same user, and of all users.

A run counts as a fraction of its given estimate, so that it says something about tasks with another estimate too.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from itertools import accumulate
from random import Random

import msgspec

from fairlead.core.forecast import guess
from fairlead.core.model import Micros, Stage
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition

NAMED_RUNS, USER_RUNS, ALL_RUNS = 20, 40, 400
"""Runs that are kept of each stage name, of each user, and of all users."""
FADE = 0.85
"""A run counts this much of the one after it."""
BEYOND = 0.5
"""The weight of all less specific runs together, where a run of the most specific kind that is fresh has 1."""

Key = tuple[str, str, str]
"""User, job name and stage name; the last two are empty for all runs of a user, all three for all runs."""
EVERYONE: Key = ("", "", "")


class Run(msgspec.Struct, frozen=True, gc=False):
    ran: Micros
    given: Micros | None
    """The estimate or time limit that was submitted."""

    def scaled(self, given: Micros | None) -> Micros:
        """Return the run time of a task with another estimate that uses the same fraction of it."""
        if given is None:
            return self.ran
        if self.given is None:
            return min(self.ran, given)
        return self.ran if given == self.given else self.ran * given // max(1, self.given)


class Runtimes:
    def __init__(self) -> None:
        self._runs: dict[Key, deque[Run]] = {}
        self._tables: dict[tuple[Key, Micros | None], Table | None] = {}

    def note(self, user: str, name: str, stage: str, ran: Micros, given: Micros | None) -> None:
        """Add a run that has ended."""
        run = Run(ran, given)
        for key, most in (((user, name, stage), NAMED_RUNS), ((user, "", ""), USER_RUNS), (EVERYONE, ALL_RUNS)):
            runs = self._runs.get(key)
            if runs is None:
                runs = self._runs[key] = deque(maxlen=most)
            runs.append(run)
        self._tables.clear()

    def note_learned(self, partition: Partition) -> None:
        """Add the runs that the scheduler has learned, of users without other runs."""
        for (user, name, stage), runs in sorted(partition.runs.items()):
            if name and (user, name, stage) not in self._runs:
                for ran in (runs.before, runs.last):
                    if ran is not None:
                        self.note(user, name, stage, ran, None)

    def table(self, stage: Stage) -> Table | None:
        """Return the run times of the tasks of a stage; None if there is nothing to tell them from."""
        user, name = stage.job.owner
        given = guess(stage.terms)
        key = (user, name, stage.name), given
        if key not in self._tables:
            self._tables[key] = self._table(*key)
        return self._tables[key]

    def _table(self, key: Key, given: Micros | None) -> Table | None:
        user = key[0]
        if given is None and (user, "", "") not in self._runs:
            return None
        values: list[tuple[Micros, float]] = []
        weight = 1.0
        for level in (key, (user, "", "")):
            runs = self._runs.get(level, ())
            fade = weight
            total = 0.0
            for run in reversed(runs):
                values.append((max(1, run.scaled(given)), fade))
                total += fade
                fade *= FADE
            if runs:
                weight *= BEYOND / (1 + total) * 2
        everyone = self._runs.get(EVERYONE, ()) if given is not None else ()
        if everyone:  # of all users, all runs count the same
            each = weight / len(everyone)
            values += [(max(1, run.scaled(given)), each) for run in everyone]
            weight *= BEYOND / (1 + weight * len(everyone)) * 2
        if given is not None:
            values.append((max(1, given), weight * 0.1))
        return Table(values, given)


class Table:
    """Run times with weights, sorted."""

    def __init__(self, values: list[tuple[Micros, float]], given: Micros | None) -> None:
        values.sort()
        self._values = [value for value, _ in values]
        self._sums = [0.0, *accumulate(weight for _, weight in values)]
        self._given = given

    def draw(self, rng: Random, elapsed: Micros = 0) -> Micros:
        """Return a run time above `elapsed`."""
        return self.at(rng.random(), elapsed)

    def at(self, part: float, elapsed: Micros = 0) -> Micros:
        """Return the run time at a part, from 0 to 1, of those above `elapsed`."""
        first = bisect(self._values, elapsed)
        low, high = self._sums[first], self._sums[-1]
        if high <= low:
            # Longer than all runs and the estimate: it may take as long again.
            return elapsed + max(SECOND, round(part * elapsed))
        at = bisect(self._sums, low + part * (high - low), first + 1, len(self._values))
        return self._values[at - 1]
