"""Start times of waiting jobs, from several futures of a partition, each in its own process.

A forked process has a copy of the whole state at once, and drops it when it ends. If the real start time has the same
distribution as 19 drawn ones, it lies between the earliest and the latest of them with a probability of 90 %.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from select import select
from time import monotonic
from typing import Any

import msgspec

from fairlead.core.commands import Command, Rejected
from fairlead.core.model import Micros
from fairlead.core.resources import DAY
from fairlead.core.state import Partition
from fairlead.forecast.future import Future
from fairlead.forecast.recorded import Past
from fairlead.forecast.runtimes import Runtimes
from fairlead.wire.preview import Eta

SAMPLES = 19
LEAST = 5
"""At least this number of futures is run, however long they take."""
SPREAD = 0.004
"""With N futures fewer than `SAMPLES`, the interval is widened by this number times the square of N."""
PREPARING = 0.1
"""The part of the time that goes into tables of run times for all futures. Each future makes missing tables itself."""
COLLECTED_AFTER = 100_000
"""A process of one future collects garbage only after this number of new objects, because it ends soon."""
HORIZON: Micros = 60 * DAY
"""No future runs longer than this."""


class Sample(msgspec.Struct, array_like=True):
    """The result of one future."""

    began: Micros
    starts: dict[str, Micros]
    until: Micros
    """The time that the future reached: jobs without a start begin later."""
    whole: bool
    """False if the future ended early because the time for the answer was over."""
    unknown_running: int = 0
    """The number of tasks that ran at the beginning and whose end cannot be estimated."""
    unknown_ahead: int = 0
    """The number of tasks that waited at the beginning, started in this future, and have no known end."""
    known: bool = True
    """True if the ends of all tasks can be estimated, also of tasks that arrived in this future."""
    stuck: bool = False
    """True if nothing more can happen in the future."""
    refused: dict[str, str] = {}
    """The id of a submission, or the position of another command → why it was refused."""
    used: list[tuple[Micros, int]] = []
    """The times at which the use of the requested resource changed, and the amount in use from then on."""


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
    first: Sequence[Command] = (),
    resource: str = "",
) -> list[Sample]:
    """Run up to `samples` futures, each until the wanted jobs have started. After `seconds` no new future begins.

    `first` are commands that are carried out at once. With a `resource`, its use is recorded.
    """
    last = monotonic() + seconds
    longest = seconds * workers / LEAST
    _prepare(partition, runtimes, monotonic() + seconds * PREPARING)

    def one(number: int) -> Sample:
        deadline = monotonic() + longest
        rng = Random(seed * 1_000 + number)
        future = Future(partition, now, runtimes, past.arrivals(now, rng), rng, first, resource)
        whole = future.run(wanted, now + HORIZON, deadline)
        refused = {
            getattr(command, "id", "") or str(at): str(answer)
            for at, (command, answer) in enumerate(zip(first, future.answers, strict=True))
            if isinstance(answer, Rejected)
        }
        return Sample(
            began=now,
            starts={job: future.starts[job] for job in wanted if job in future.starts},
            until=future.now,
            whole=whole or monotonic() < deadline,
            unknown_running=future.unknown_running(),
            unknown_ahead=future.unknown_ahead(),
            known=future.is_known(),
            stuck=future.stuck,
            refused=refused,
            used=future.used,
        )

    gc.freeze()
    try:
        return in_processes(one, range(samples), Sample, workers, last)
    finally:
        gc.unfreeze()


def _prepare(partition: Partition, runtimes: Runtimes, deadline: float) -> None:
    """Make the tables of run times that the futures draw from, until a deadline (`monotonic`)."""
    for job in partition.jobs.values():
        if monotonic() > deadline:
            return
        if not job.over:
            for stage in job.stages:
                runtimes.table(stage)


def sum_up(job: str, samples: Sequence[Sample]) -> Eta:
    """Return the likely start, the median and the interval of a job's start times; `samples` must not be empty."""
    without = [sample for sample in samples if job not in sample.starts]
    starts = sorted([sample.starts[job] for sample in samples if job in sample.starts])
    times: list[Micros | None] = [*starts, *[None] * len(without)]
    low, middle, high = times[0], times[len(times) // 2], times[-1]
    # The extremes of fewer samples are closer together, so move them apart as for a normal distribution.
    stretch = 1 + SPREAD * max(0, SAMPLES - len(times)) ** 2
    if low is not None and middle is not None:
        low = max(samples[0].began, middle - round((middle - low) * stretch))
    if high is not None and middle is not None:
        high = middle + round((high - middle) * stretch)
    known = all(sample.known for sample in without)
    stuck = not starts and known and all(sample.stuck for sample in without)
    return Eta(
        likely=None if middle is None else _densest([*starts, *[HORIZON * 1_000] * len(without)]),
        median=middle,
        earliest=low,
        latest=high,
        not_before=min(sample.until for sample in without) if middle is None and known and not stuck else None,
        stuck=stuck,
        unknown_ahead=max([sample.unknown_ahead for sample in without], default=0),
        cut=not all(sample.whole for sample in without),
    )


def _densest(times: Sequence[Micros]) -> Micros:
    """Return the middle of the densest half of sorted times; of several such halves, the earliest.

    This keeps the median error small, as the median of the times keeps the mean error small.
    """
    half = (len(times) + 1) // 2
    first = min(range(len(times) - half + 1), key=lambda at: times[at + half - 1] - times[at])
    return times[first + half // 2]


def in_processes(
    work: Callable[[int], Any], numbers: Sequence[int], kind: type[Any], workers: int, last: float = inf
) -> list[Any]:
    """Return the results of `work` for each number, each computed in a forked process, `workers` at a time.

    After the time `last` (`monotonic`), no process is started, except for the first `LEAST` numbers.
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
    """Write the result of a forked process to a pipe, and exit without running code of its parent."""
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
