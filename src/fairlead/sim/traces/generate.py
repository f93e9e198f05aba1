"""Generated jobs, drawn from a seed: the same settings give the same jobs.

Sizes are often 1 and mostly powers of two. Most run times are short, a few are long. Estimates are round figures,
mostly too high. Most jobs arrive by day and on weekdays. The arrival rate follows from the load: the work of all jobs
divided by the capacity of the nodes between the first and the last arrival.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from random import Random

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.errors import Refused
from fairlead.core.model import Amounts, JobSpec, Micros, StageSpec
from fairlead.core.reader import Reader
from fairlead.core.resources import CPU, HOUR, MILLI, MINUTE, SECOND, parse_request
from fairlead.sim.traces.trace import Arrival, Overrun, settle_overrun

ROUND = [minutes * MINUTE for minutes in (1, 5, 10, 15, 30, 60, 120, 240, 480, 720, 1080, 1440, 2880, 7200, 14400)]
"""Typical estimates of users."""

DAY_RHYTHM = (2, 2, 1, 1, 1, 1, 2, 4, 8, 12, 14, 14, 12, 13, 14, 13, 11, 9, 6, 5, 4, 4, 3, 3)
"""Relative arrival rate by hour of the day. The clock starts on a Monday at midnight."""
WEEKEND = 4
"""On Saturdays and Sundays the arrival rate is divided by this number."""


class Workload(msgspec.Struct, frozen=True):
    jobs: int = 1000
    seed: int = 1
    load: int = 80
    """The work of all jobs in percent of the capacity of the nodes between the first and the last arrival."""
    users: int = 20
    largest: int | None = None
    """The most tasks of a job; None for half of the tasks that fit on all nodes."""
    singles: int = 25
    """The percentage of jobs with one task."""
    shortest: Micros = 10 * SECOND
    longest: Micros = 18 * HOUR
    rhythm: bool = True
    """True if fewer jobs arrive at night and at weekends."""
    task: Amounts = ((CPU, MILLI),)
    """The resources of a task."""


def parse_workload(document: object, field: str) -> Workload:
    read = Reader(document, field, "a workload")
    default = Workload()
    task = read.get("task")
    workload = Workload(
        jobs=read.count("jobs", default.jobs, 1),
        seed=read.count("seed", default.seed),
        load=read.count("load", default.load, 1, 1_000),
        users=read.count("users", default.users, 1, 100_000),
        largest=read.optional_count("largest", 1),
        singles=read.count("singles", default.singles, 0, 100),
        shortest=read.duration("shortest", default.shortest),
        longest=read.duration("longest", default.longest),
        rhythm=read.flag("rhythm", default.rhythm),
        task=default.task if task is None else tuple(sorted(parse_request(task, read.at("task")).items())),
    )
    read.close()
    if not 0 < workload.shortest <= workload.longest:
        raise Refused(read.at("shortest"), "it is 0 or above longest; write a time between them")
    return workload


def generate(workload: Workload, nodes: list[tuple[str, NodeSpec]], overrun: Overrun) -> list[Arrival]:
    slots = sum(_slots(spec, workload.task) for _, spec in nodes)
    if not slots:
        raise Refused("nodes", "none could run a generated task; give nodes that have what the task asks for")
    rng = Random(workload.seed)
    largest = workload.largest or max(1, slots // 2)
    jobs = [(_size(rng, workload, largest), _run(rng, workload)) for _ in range(workload.jobs)]
    work = sum(size * run for size, run in jobs)
    times = _times(rng, workload, max(1, work * 100 // (slots * workload.load)))
    weights = list(accumulate(1 / (1 + user) for user in range(workload.users)))
    arrivals: list[Arrival] = []
    for number, (at, (size, run)) in enumerate(zip(times, jobs, strict=True), 1):
        user = bisect_left(weights, rng.random() * weights[-1]) + 1
        stage = StageSpec("main", size, 0, workload.task, estimate=_estimate(rng, run))
        stage, settled = settle_overrun(stage, run, overrun)
        arrivals.append(Arrival(at, f"g{number}", JobSpec(f"jg{number}", f"u{user}", "", (stage,)), (settled,)))
    return arrivals


def _slots(spec: NodeSpec, task: Amounts) -> int:
    capacity = dict(spec.capacity)
    return min((capacity.get(name, 0) // amount for name, amount in task if amount), default=0)


def _size(rng: Random, workload: Workload, largest: int) -> int:
    if largest == 1 or rng.randrange(100) < workload.singles:
        return 1
    size: float = largest ** rng.random()
    if rng.random() < 0.75:
        size = 1 << round(_log2(size))
    return max(1, min(largest, round(size)))


def _log2(value: float) -> float:
    whole = int(value).bit_length() - 1
    return whole + value / (1 << whole) - 1  # linear between powers of two: close enough, and the same on all platforms


def _run(rng: Random, workload: Workload) -> Micros:
    """Draw a run time on a logarithmic scale. Three of five are from its lower half."""
    scale = rng.random()
    if rng.random() < 0.6:
        scale /= 2
    run: float = workload.shortest * (workload.longest / workload.shortest) ** scale
    return max(SECOND, round(run / SECOND) * SECOND)


def _estimate(rng: Random, run: Micros) -> Micros:
    """Draw an estimate: 15 % are exact, 2 % are too low, the rest are padded and rounded up to a round figure."""
    kind = rng.random()
    if kind < 0.15:
        return run
    if kind < 0.17:
        return max(SECOND, run // 2 // SECOND * SECOND)
    padded = run * (1 + 2 * rng.random())
    at = bisect_left(ROUND, padded)
    return ROUND[at] if at < len(ROUND) else run


def _times(rng: Random, workload: Workload, span: Micros) -> list[Micros]:
    """Draw arrival times within a span, in whole seconds: uniform, or following days and weeks."""
    draws = sorted(rng.random() for _ in range(workload.jobs))
    if not workload.rhythm:
        return [round(draw * span / SECOND) * SECOND for draw in draws]
    hours = -(-span // HOUR)
    ends = list(accumulate(_rate(hour) * (min(span, (hour + 1) * HOUR) - hour * HOUR) for hour in range(hours)))
    times: list[Micros] = []
    for draw in draws:
        wanted = draw * ends[-1]
        hour = bisect_left(ends, wanted)
        before = ends[hour - 1] if hour else 0
        times.append(round((hour * HOUR + (wanted - before) / _rate(hour)) / SECOND) * SECOND)
    return times


def _rate(hour: int) -> float:
    day, hour = divmod(hour, 24)
    return DAY_RHYTHM[hour] / (WEEKEND if day % 7 >= 5 else 1)
