"""Start times of waiting jobs, from several futures of a partition, each in its own process.

A forked process has a copy of the whole state at once, and throws it away at its end. The largest and the smallest of
19 drawn start times enclose the real one in 18 of 20 cases, if it is drawn like them: an interval of 90 %.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random
from select import select
from time import monotonic
from typing import Any

import msgspec

from fairlead.core.commands import AnyCommand, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.resources import DAY
from fairlead.core.state import Partition
from fairlead.forecast.future import Future
from fairlead.forecast.recorded import Past
from fairlead.forecast.runtimes import Runtimes

SAMPLES = 19
LEAST = 5
"""The minimum number of futures, however long they take."""
SPREAD = 0.004
"""How much the interval is widened with fewer samples, times the square of the missing number."""
PREPARING = 0.1
"""The part of the time in which tables of run times are prepared for all futures. A future makes missing ones
itself."""
COLLECTED_AFTER = 100_000
"""A process of one future collects garbage only after this number of new objects, because it ends soon."""
HORIZON: Micros = 60 * DAY
"""Futures end here."""


class Sample(msgspec.Struct, array_like=True):
    """The result of one future."""

    began: Micros
    starts: dict[str, Micros]
    until: Micros
    """The time that it reached: jobs without a start begin later."""
    whole: bool
    """False if it ended early for lack of time."""
    unknown_running: int = 0
    """Running tasks whose end cannot be estimated."""
    unknown_ahead: int = 0
    """Tasks that wait now, have started in this future, and whose end cannot be estimated."""
    known: bool = True
    """True if the ends of all tasks can be estimated, including those of drawn arrivals."""
    stuck: bool = False
    """True if it ended because nothing more can happen in it."""
    refused: dict[str, str] = {}
    """The id of a submission, or the position of another command → why it was refused."""
    used: list[tuple[Micros, int]] = []
    """On request: the amount of the main resource in use from a time on."""


class Eta(msgspec.Struct):
    """Start times of a job in several futures. A time is None if it is later than the futures reached."""

    likely: Micros | None
    """The middle of the half of the start times that are closest together."""
    median: Micros | None
    earliest: Micros | None
    latest: Micros | None
    not_before: Micros | None
    """If the median is unknown: the time that all futures reached without a start. None if the job is stuck, or if
    tasks without a known end may have kept it from starting."""
    stuck: bool
    """True if the job starts in no future, and nothing more can happen in them."""
    unknown_ahead: int
    """Tasks without a known end that started before the job, in futures where the job did not start."""


def draw_futures(
    partition: Partition,
    now: Micros,
    runtimes: Runtimes,
    past: Past,
    wanted: Sequence[str],
    seconds: float,
    samples: int = SAMPLES,
    workers: int = 2,
    seed: int = 0,
    first: Sequence[AnyCommand] = (),
    resource: str = "",
) -> list[Sample]:
    """Run futures until the wanted jobs have started, up to `samples` of them that start within `seconds`.

    `first` are commands that are carried out at once. With a `resource`, its use is recorded.
    """
    last = monotonic() + seconds
    longest = seconds * workers / LEAST
    _prepare(partition, runtimes, monotonic() + seconds * PREPARING)

    def one(number: int) -> Sample:
        deadline = monotonic() + longest
        rng = Random(seed * 1_000 + number)
        use = Use(resource)
        future = Future(partition, now, runtimes, past.arrivals(now, rng), rng, first, [use] if resource else [])
        whole = future.run(wanted, now + HORIZON, deadline)
        starts = {job: future.starts[job] for job in wanted if job in future.starts}
        refused = {
            getattr(command, "id", "") or str(at): str(answer)
            for at, (command, answer) in enumerate(zip(first, future.answers, strict=True))
            if isinstance(answer, Rejected)
        }
        return Sample(
            now,
            starts,
            future.now,
            whole or monotonic() < deadline,
            future.unknown_running(),
            future.unknown_ahead(),
            future.is_known(),
            future.stuck,
            refused,
            use.series,
        )

    gc.freeze()
    try:
        return in_processes(one, range(samples), Sample, workers, last)
    finally:
        gc.unfreeze()


def _prepare(partition: Partition, runtimes: Runtimes, deadline: float) -> None:
    """Prepare the tables of run times that the futures draw from, until a deadline (`monotonic`)."""
    for job in partition.jobs.values():
        if monotonic() > deadline:
            return
        if not job.over:
            for stage in job.stages:
                runtimes.table(stage)


def sum_up(job: str, samples: Sequence[Sample]) -> Eta:
    """Return the likely start, the median and the interval of a job's start times; `samples` must not be empty."""
    times = sorted([sample.starts.get(job, HORIZON * 1_000) for sample in samples])
    known = [time if time < HORIZON * 1_000 else None for time in times]
    without = [sample for sample in samples if job not in sample.starts]
    low, middle, high = known[0], known[len(known) // 2], known[-1]
    if len(times) < SAMPLES and low is not None and middle is not None:
        # The extremes of fewer samples are closer together, so move them apart as for a normal distribution.
        stretch = 1 + SPREAD * (SAMPLES - len(times)) ** 2
        low = max(samples[0].began, middle - round((middle - low) * stretch))
        high = None if high is None else middle + round((high - middle) * stretch)
    not_before = None
    stuck = all(sample.known and sample.stuck and job not in sample.starts for sample in samples)
    if middle is None and not stuck and all(sample.known for sample in without):
        not_before = min(sample.until for sample in without)
    likely = None if middle is None else _densest(times)
    return Eta(
        likely, middle, low, high, not_before, stuck, max([sample.unknown_ahead for sample in without], default=0)
    )


def _densest(times: Sequence[Micros]) -> Micros:
    """Return the middle of the densest half of sorted times; of several such halves, the earliest.

    This keeps the median error small, as the median of the times keeps the mean error small.
    """
    half = (len(times) + 1) // 2
    first = min(range(len(times) - half + 1), key=lambda at: times[at + half - 1] - times[at])
    return times[first + half // 2]


class Use:
    """An observer that records how much of a resource is in use."""

    def __init__(self, resource: str) -> None:
        self.series: list[tuple[Micros, int]] = []
        self._resource = resource

    def began(self, partition: Partition) -> None:
        pass

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        used = partition.root.account.used.get(self._resource, 0)
        if not self.series or self.series[-1][1] != used:
            self.series.append((partition.now, used))

    def stopped(self, partition: Partition, why: str) -> None:
        pass


def in_processes(
    work: Callable[[int], Any], numbers: Sequence[int], kind: type[Any], workers: int, last: float = inf
) -> list[Any]:
    """Return the results of `work` for each number, each computed in a forked process, `workers` at a time.

    After the time `last` only the first few are still started.
    """
    waiting, results = list(numbers), []
    running: dict[int, tuple[int, list[bytes]]] = {}
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode
    try:
        while waiting or running:
            if monotonic() > last and len(numbers) - len(waiting) >= LEAST:
                waiting.clear()
            while waiting and len(running) < workers:
                number = waiting.pop(0)
                read, write = os.pipe()
                pid = os.fork()
                if not pid:
                    _answer(lambda number=number: encode(work(number)), write)  # type: ignore[misc]
                os.close(write)
                running[read] = (pid, [])
            for pipe in select(list(running), [], [])[0]:
                part = os.read(pipe, 1 << 16)
                pid, parts = running[pipe]
                if part:
                    parts.append(part)
                    continue
                del running[pipe]
                os.close(pipe)
                _, status = os.waitpid(pid, 0)
                if status:
                    raise RuntimeError(f"a future ended with status {status}")
                results.append(decode(b"".join(parts)))
    finally:
        for pipe, (pid, _) in running.items():
            os.close(pipe)
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return results


def _answer(work: Callable[[], bytes], pipe: int) -> None:
    """Write the result of a forked process and exit, without running code of its parent."""
    status = 1
    gc.set_threshold(COLLECTED_AFTER)
    try:
        data = memoryview(work())
        while data:
            data = data[os.write(pipe, data) :]
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)
