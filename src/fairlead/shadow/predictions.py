"""Predicts when jobs of a simulation start, as a server does, and compares the answers with what came."""

from __future__ import annotations

from statistics import median
from time import monotonic
from typing import Any

import msgspec

from fairlead.core.model import Micros
from fairlead.core.resources import MINUTE, SECOND
from fairlead.forecast.eta import draw_futures, sum_up
from fairlead.forecast.observed_past import ObservedPast
from fairlead.sim.record import Record
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace

MOST = 200
EACH_S = 4.0
"""The time for one answer, as on a server."""
LEAST_ENDED = 50
"""No start is predicted before this number of tasks have ended: a new cluster knows nothing."""


class Predictions(msgspec.Struct, frozen=True):
    """How the predictions came out."""

    asked: int = 0
    unknown: int = 0
    """Jobs of which no start could be told."""
    kept: int = 0
    """Starts within the interval that was told."""
    median_error: Micros = 0

    @property
    def told(self) -> int:
        return self.asked - self.unknown

    @property
    def text(self) -> str:
        if not self.asked:
            return "No start was predicted: too few jobs waited, or too few had ended before."
        if not self.told:
            return f"Of {self.asked} jobs that waited, no start could be told."
        return (
            f"{100 * self.kept / self.told:.0f} % of {self.told} predicted starts came within the interval "
            f"that was told (90 % are promised); the median error is {self.median_error / MINUTE:.1f} min."
        )

    def document(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "unknown": self.unknown,
            "kept": self.kept,
            "median_error_s": round(self.median_error / SECOND, 1),
        }


class Predictor:
    """Asks for the start of jobs that have begun to wait, evenly over the trace, for a limited time."""

    def __init__(self, trace: Trace, seconds: float) -> None:
        self.known = ObservedPast()
        self._left = seconds
        self._every = max(1, len(trace.arrivals) // MOST)
        self._seen = 0
        """Arrivals until now."""
        self._next = 0
        """The number of arrivals from which on the next job is asked for."""
        self._told: list[tuple[str, Micros | None, Micros | None, Micros | None]] = []

    def look(self, simulation: Simulation) -> None:
        """Predict the start of the newest job if it waits and it is time for another prediction."""
        seen = simulation.record.arrived
        if seen == self._seen or seen < self._next or self._left <= 0 or len(self.known.services) < LEAST_ENDED:
            return
        self._seen = seen
        newest = simulation.trace.arrivals[seen - 1].job
        job = simulation.writer.partition.jobs.get(newest)
        if job is None or job.live or job.over:
            return
        self._next = seen + self._every
        began = monotonic()
        drawn = draw_futures(
            simulation.writer.partition,
            simulation.now,
            self.known.runtimes,
            self.known.past,
            [newest],
            EACH_S,
            seed=seen,
        )
        eta = sum_up(newest, drawn)
        self._told.append((newest, eta.likely, eta.earliest, eta.latest))
        self._left -= monotonic() - began

    def score(self, record: Record) -> Predictions:
        """Compare the predictions with the starts."""
        at = {arrival.job: number for number, arrival in enumerate(record.trace.arrivals)}
        unknown = kept = 0
        errors: list[Micros] = []
        for job, likely, earliest, latest in self._told:
            started = record.job(at[job]).started
            if likely is None or started is None:
                unknown += 1
                continue
            errors.append(abs(likely - started))
            kept += (earliest or 0) <= started and (latest is None or started <= latest)
        return Predictions(len(self._told), unknown, kept, round(median(errors)) if errors else 0)
