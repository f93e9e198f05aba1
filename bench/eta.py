"""Accuracy of predicted start times: jobs of a public log get a prediction when they begin to wait.

    python -m bench.eta LOG [--policy learned] [--every 40] [--heads 8] [--workers 2] [--jobs N]

The log runs through the simulator. At every N-th waiting job that is submitted, the simulation is forked, and the copy
predicts as the server does: it knows the jobs that have ended and were submitted, but no future run time. The same is
done when a job becomes the first one without capacity, which is when published schedulers make a reservation. Errors
are the differences to the real start in the simulation. For comparison, the same figures are given for the reservation
that the scheduler itself makes for such a job, in the same run and in one under `easy`.

Some jobs that wait, and are not backfilled, start at the moment at which they come first. A reservation made then is
their start, without an error. `with_in_turn` includes them: counted this way, the errors of `easy` are the published
ones.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from select import select
from statistics import mean, median
from time import perf_counter
from typing import Any

from fairlead.core.model import Micros
from fairlead.core.resources import MINUTE
from fairlead.core.state import Partition
from fairlead.forecast.eta import SAMPLES, draw_futures, sum_up
from fairlead.forecast.observed_past import ObservedPast
from fairlead.history.promised_starts import NEWEST_SCORES, stretch_of
from fairlead.history.promised_starts import Promise as Promised
from fairlead.sim.policy_files import NAMED, Policy
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace, read_traces

SECONDS = 600.0


class Promise:
    def __init__(self, kind: str, job: str, now: Micros, place: int) -> None:
        self.kind, self.job, self.now, self.place = kind, job, now, place
        self.eta: dict[str, Any] = {}
        self.baseline: Micros = 0
        self.planned: Micros | None = None
        """The reservation that the scheduler itself made."""


class Heads:
    """Records when each job becomes the first one without capacity, and the start that the scheduler plans for it."""

    def __init__(self, partition: Partition) -> None:
        self.planned: dict[str, Micros | None] = {}
        self._partition = partition

    def look(self) -> str:
        """Return the job that has just become the head; empty if there is none."""
        backfill = self._partition.memory.backfill
        head = getattr(backfill, "head", None)
        if head is None or head.stage.job.live or head.stage.job.id in self.planned:
            return ""
        self.planned[head.stage.job.id] = getattr(backfill, "when", None)
        return str(head.stage.job.id)


class Ledger:
    """Corrects the intervals of promises as a server does, by the scores of those whose start has come."""

    def __init__(self) -> None:
        self.scores: list[float] = []
        self.simulated: list[bool] = []
        self.corrected: list[bool] = []

    def add(self, asked: Sequence[Promise], starts: Mapping[str, Micros]) -> None:
        """Score the promises of a world in the order in which they were made."""
        known: list[tuple[int, float]] = []
        for one in sorted(asked, key=lambda one: one.now):
            eta, start = one.eta, starts[one.job]
            if eta["likely"] is None or eta["high"] is None:
                continue
            promise = Promised(one.now, eta["likely"], eta["low"], eta["high"])
            scores = [*self.scores, *(score for at, score in sorted(known) if at <= one.now)][-NEWEST_SCORES:]
            given = promise if eta["high"] == one.now else promise.stretched(stretch_of(scores))
            self.simulated.append(promise.result(start) == "kept")
            self.corrected.append(given.result(start) == "kept")
            score = given.score(start)
            assert score is not None
            known.append((start, score))
        self.scores += [score for _, score in sorted(known)]


def note(promise: Promise, simulation: Simulation) -> None:
    """Print a prediction, so that an interrupted run is not lost."""
    line = (promise.kind, promise.job, promise.now, promise.eta["all"], promise.baseline, simulation.record.over)
    print(json.dumps(line), file=sys.stderr, flush=True)


def score(
    log: Path, policy: str, every: Mapping[str, int], workers: int, jobs: int | None, samples: int, skip: int
) -> dict[str, Any]:
    """Return the figures. `every` has for each kind of prediction a number N: every N-th job gets one; 0 is never."""
    trace = read_traces([log], lambda path: None, jobs=jobs)
    began = perf_counter()
    promises, simulation, heads = predict(trace, NAMED[policy](trace), every, workers, samples, skip)
    starts = _starts(simulation)
    since = min((promise.now for promise in promises if promise.kind == "head"), default=0)
    in_turn = [job for job in _in_turn(trace, starts, heads) if starts[job] >= since][:: every["head"] or 1]
    return {
        "log": log.name,
        "policy": policy,
        "seconds": round(perf_counter() - began, 1),
        "submitted": _figures([p for p in promises if p.kind == "submitted"], starts),
        "head": _figures([p for p in promises if p.kind == "head"], starts, len(in_turn)),
        "reservations": {policy: _reservations(trace, heads, starts), "easy": reservations(trace, "easy")},
        "promises": [(p.kind, p.job, p.now, starts[p.job], p.eta["all"], p.baseline, p.planned) for p in promises],
    }


def predict(
    trace: Trace, policy: Policy, every: Mapping[str, int], workers: int, samples: int, skip: int
) -> tuple[list[Promise], Simulation, Heads]:
    """Run a trace and return the promises that were made meanwhile."""
    watcher = ObservedPast()
    simulation = Simulation(trace, policy, observers=[watcher])
    partition = simulation.writer.partition
    promises: list[Promise] = []
    running: dict[int, tuple[int, Promise, list[bytes]]] = {}
    seen = dict.fromkeys(every, 0)
    heads = Heads(partition)

    def collect(most: int) -> None:
        while len(running) > most:
            for pipe in select(list(running), [], [])[0]:
                part = os.read(pipe, 1 << 16)
                pid, promise, parts = running[pipe]
                if part:
                    parts.append(part)
                    continue
                del running[pipe]
                os.close(pipe)
                os.waitpid(pid, 0)
                promise.eta = json.loads(b"".join(parts))
                promises.append(promise)
                note(promise, simulation)

    def ask(kind: str, job: str) -> None:
        seen[kind] += 1
        if not every[kind] or seen[kind] % every[kind] or len(watcher.services) < skip:
            return
        now = simulation.now
        waiting = simulation.record.arrived - simulation.record.started
        promise = Promise(kind, job, now, waiting)
        promise.planned = heads.planned.get(job)
        recent = watcher.services[-1_000:]
        live = max(1, sum(1 for job in partition.jobs.values() if job.live))
        # The place in the queue times the mean service time, divided by the jobs that run side by side.
        promise.baseline = now + round(waiting * mean(recent) / live) if recent else now
        collect(workers - 1)
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            gc.disable()
            drawn = draw_futures(partition, now, watcher.runtimes, watcher.past, [job], SECONDS, samples, 1, seen[kind])
            eta = sum_up(job, drawn)
            line = json.dumps(
                {
                    "likely": eta.likely,
                    "low": eta.earliest,
                    "high": eta.latest,
                    "whole": all(s.whole for s in drawn),
                    "all": sorted(s.starts.get(job, 1 << 62) for s in drawn),
                }
            )
            os.write(write, line.encode())
            os._exit(0)
        os.close(write)
        running[read] = (pid, promise, [])

    def watch(_: Simulation) -> bool:
        """Check after each cycle for jobs that have begun to wait, and for a new head."""
        newest = simulation.trace.arrivals[simulation._next - 1].job if simulation._next else ""
        if newest and newest != watch.last:  # type: ignore[attr-defined]
            watch.last = newest  # type: ignore[attr-defined]
            job = partition.jobs.get(newest)
            if job is not None and not job.live and not job.over:
                ask("submitted", newest)
        if head := heads.look():
            ask("head", head)
        return False

    watch.last = ""  # type: ignore[attr-defined]
    gc.freeze()
    simulation.run(None, watch)
    collect(0)
    return promises, simulation, heads


def reservations(trace: Trace, policy: str) -> dict[str, Any]:
    """Return the errors of the reservations that a policy makes for all heads of a log."""
    simulation = Simulation(trace, NAMED[policy](trace))
    heads = Heads(simulation.writer.partition)

    def watch(_: Simulation) -> bool:
        heads.look()
        return False

    simulation.run(None, watch)
    return _reservations(trace, heads, _starts(simulation))


def _starts(simulation: Simulation) -> dict[str, Micros]:
    starts = {}
    for at, arrival in enumerate(simulation.trace.arrivals):
        started = simulation.record.job(at).started
        assert started is not None, f"job {arrival.job} has not started"
        starts[arrival.job] = started
    return starts


def _in_turn(trace: Trace, starts: Mapping[str, Micros], heads: Heads) -> list[str]:
    """Return the jobs that waited behind others and started as soon as they came first."""
    found = []
    latest = 0
    for arrival in trace.arrivals:
        start = starts[arrival.job]
        if arrival.at < start >= latest and arrival.job not in heads.planned:
            found.append(arrival.job)
        latest = max(latest, start)
    return found


def _reservations(trace: Trace, heads: Heads, starts: Mapping[str, Micros]) -> dict[str, Any]:
    errors = [abs(when - starts[job]) / MINUTE for job, when in heads.planned.items() if when is not None]
    return {
        "heads": len(errors),
        "unplanned": len(heads.planned) - len(errors),
        **_errors(errors),
        "with_in_turn": _with_in_turn(errors, len(_in_turn(trace, starts, heads))),
    }


def _errors(errors: Sequence[float]) -> dict[str, float]:
    return {"mean": round(mean(errors), 1), "median": round(median(errors), 2)} if errors else {}


def _with_in_turn(errors: Sequence[float], in_turn: int) -> dict[str, float]:
    """Return the errors as published ones are measured: of heads, and 0 for jobs that start in turn."""
    return {"jobs": len(errors) + in_turn, **_errors([*errors, *[0.0] * in_turn])}


def _figures(promises: Sequence[Promise], starts: Mapping[str, Micros], in_turn: int = 0) -> dict[str, Any]:
    """Return errors in minutes, and how often the interval contains the real start."""
    if not promises:
        return {"jobs": 0}
    errors, baseline, planned, inside, widths, waits, lower, upper, bias = [], [], [], 0, [], [], 0, 0, []
    for promise in promises:
        real = starts[promise.job]
        eta = promise.eta
        if eta["likely"] is None or eta["high"] is None:
            continue
        errors.append(abs(eta["likely"] - real) / MINUTE)
        bias.append((eta["likely"] - real) / MINUTE)
        baseline.append(abs(promise.baseline - real) / MINUTE)
        if promise.planned is not None:
            planned.append(abs(promise.planned - real) / MINUTE)
        waits.append((real - promise.now) / MINUTE)
        widths.append((eta["high"] - eta["low"]) / MINUTE)
        inside += eta["low"] <= real <= eta["high"]
        lower += real < eta["low"]
        upper += real > eta["high"]
    ledger = Ledger()
    ledger.add(promises, starts)
    return {
        "jobs": len(errors),
        "unknown": len(promises) - len(errors),
        **_errors(errors),
        **({"with_in_turn": _with_in_turn(errors, in_turn)} if in_turn else {}),
        "bias": round(mean(bias), 1),
        "covered_percent": round(100 * inside / len(errors), 1),
        "corrected_percent": round(100 * mean(ledger.corrected), 1),
        "earlier": lower,
        "later": upper,
        "width_minutes": round(median(widths), 1),
        "reservation": {"jobs": len(planned), **_errors(planned)},
        "baseline": _errors(baseline),
        "wait_mean": round(mean(waits), 1),
        "wait_median": round(median(waits), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.eta", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("log", type=Path)
    parser.add_argument("--policy", default="learned", choices=sorted(NAMED))
    parser.add_argument("--every", type=int, default=40, help="promise a start to each N-th waiting job; 0: none")
    parser.add_argument("--heads", type=int, default=8, help="promise a start to each N-th head; 0: none")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--skip", type=int, default=500, help="jobs that end before the first promise")
    parser.add_argument("--promises", type=Path, help="write all promises as JSON")
    given = parser.parse_args()
    every = {"submitted": given.every, "head": given.heads}
    result = score(given.log, given.policy, every, given.workers, given.jobs, given.samples, given.skip)
    promises = result.pop("promises")
    if given.promises:
        given.promises.write_text(json.dumps(promises))
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
