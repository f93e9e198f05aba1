"""Usage reports: resources multiplied by the time for which tasks had them, waiting times of jobs, and preemptions.

All sums are integers: amounts in the units of the core, multiplied by microseconds. Ended attempts come from the
history, running ones from the state. Both are read as of the same cycle of a partition, so that no attempt is counted
twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Literal, NamedTuple

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import FAR, Amounts, Micros, Stage
from fairlead.core.ranges import count
from fairlead.core.resources import CPU, MEMORY, MILLI, SECOND, format_quantity
from fairlead.core.state import Partition
from fairlead.history.databases import Session

Group = Literal["user", "queue", "partition", "job"]
GROUPS: tuple[Group, ...] = ("user", "queue", "partition", "job")
ROOM = 1.25
"""What is enough for a task is what it uses, times this."""
MIB, GIB = 2**20, 2**30
MOST_ROWS = 10_000
"""Maximum number of rows of one report."""


LEAST_RAN = 10 * SECOND
"""Tasks that ran for less time together are not judged."""
WASTEFUL = 20
"""A report names at most this number of jobs that asked for much more than they used."""


def waste_of(amounts: Mapping[str, int], cpu: int, ran: int, memory: int) -> str:
    """Return a hint if tasks ask for much more than they use, with amounts that would be enough; empty if they do not.

    `cpu` and `ran` are the CPU time and the run time of all tasks, `memory` is the highest use of one.
    """
    if ran < LEAST_RAN:
        return ""
    parts = []
    asked, used = amounts.get(CPU, 0) / MILLI, cpu / ran
    enough = max(1, ceil(used * ROOM))
    if asked >= 2 and used < asked / 2 and enough < asked:
        parts.append(
            f"it asks for {asked:g} CPUs a task and uses {used:.1f} on average; --cpu {enough} would be enough"
        )
    limit = amounts.get(MEMORY, 0)
    enough = ceil(memory * ROOM / GIB)
    if limit >= 2 * GIB and memory < limit / 4 and enough * GIB < limit:
        asked_for, most = (format_quantity(MEMORY, amount) for amount in (limit, -(-memory // MIB) * MIB))
        parts.append(
            f"it asks for {asked_for} memory a task and uses {most} at most; --memory {enough}Gi would be enough"
        )
    return "; ".join(parts)


class Running(NamedTuple):
    """Running tasks, for a report."""

    stage: Stage
    indices: tuple[int, ...]
    started: Micros


class Owner(NamedTuple):
    """A job that used resources, with the fields by which a report can group."""

    partition: str
    number: int
    job: str
    user: str
    queue: str
    submitted: Micros


class Taken(NamedTuple):
    """The running tasks of a partition at one instant."""

    partition: str
    cycle: Micros
    """The time of the last cycle. Attempts that end later count as running."""
    now: Micros
    tasks: list[Running]


def running(partition: Partition, now: Micros) -> Taken:
    """Return the running tasks of a partition. This is quick even if many tasks run."""
    tasks = [
        Running(allocation.stage, allocation.indices, allocation.started)
        for allocation in partition.allocations.values()
        if allocation.started is not None
    ]
    return Taken(partition.name, partition.now, max(now, partition.now), tasks)


class Use:
    """One row of a report: the use of resources by some jobs."""

    def __init__(self) -> None:
        self.jobs = 0
        """The number of jobs with a task that ran."""
        self.attempts = 0
        """The number of attempts of tasks that ran."""
        self.preempted = 0
        self.amounts: dict[str, int] = {}
        """Resource → the sum of amount times microseconds."""
        self.cpu_used = self.cpu_had = 0.0
        """The measured CPU time in microseconds, and the CPU time that these attempts had."""
        self._waits = array("q")

    def add_work(self, tasks: int, preempted: int, micros: int, amounts: Amounts) -> None:
        """Add attempts that ran for `micros` in total. Each task was allocated `amounts`."""
        self.attempts += tasks
        self.preempted += preempted
        for name, amount in amounts:
            self.amounts[name] = self.amounts.get(name, 0) + amount * micros

    def add_job(self, wait: Micros | None) -> None:
        """Add a job. `wait` is None if its first task started before the period of the report."""
        self.jobs += 1
        if wait is not None:
            self._waits.append(wait)

    def mean_wait(self) -> float | None:
        return sum(self._waits) / len(self._waits) if self._waits else None

    def waits_of(self, *percents: int) -> list[Micros | None]:
        """Return percentiles of the waits. A percentile is the wait that this percentage of jobs did not exceed."""
        waits = sorted(self._waits)
        if not waits:
            return [None] * len(percents)
        return [waits[max(0, (len(waits) * percent + 99) // 100 - 1)] for percent in percents]


class Waste(NamedTuple):
    """A job that asked for much more than it used."""

    unused: float
    """CPU time in microseconds."""
    owner: Owner
    text: str


class UsageReport:
    """The use of resources in a period, in rows and in total."""

    def __init__(
        self,
        by: tuple[Group, ...] = (),
        since: Micros = 0,
        until: Micros = FAR,
        user: str = "",
        partition: str = "",
        measured: bool = False,
    ) -> None:
        """Begin an empty report. A `user` or a `partition` restricts it to their work.

        `measured` adds what tasks used of what they had.
        """
        self.measured = measured
        self.wasteful: list[Waste] = []
        """The jobs with the most unused CPU time, the worst first."""
        self.by = by
        self.since, self.until = since, until
        self.user, self.partition = user, partition
        self.rows: dict[tuple[str, ...], Use] = {}
        self.total = Use()
        self.cycles: dict[str, Micros] = {}
        """Partition → the time of the last cycle before its running tasks were read."""
        self.unfinished: dict[tuple[str, int], tuple[Owner, Micros]] = {}
        """(Partition, job number) of a job with running tasks → the job, and the first start of these tasks."""

    def add_running(self, taken: Taken) -> None:
        """Add the running tasks of a partition. Must be called before `add_ended`."""
        name = taken.partition
        self.cycles[name] = taken.cycle
        until = min(self.until, taken.now)
        for stage, indices, started in taken.tasks:
            job = stage.job
            user = job.user
            if started >= self.until or taken.now < self.since or (self.user and user != self.user):
                continue
            owner = Owner(name, job.number, job.id, user, job.queue.path, job.submitted)
            _, first = self.unfinished.get((name, job.number), (owner, FAR))
            self.unfinished[name, job.number] = (owner, min(first, started))
            tasks = count(indices)
            for use in self.of(owner):
                use.add_work(tasks, 0, tasks * max(0, until - max(started, self.since)), stage.shape.amounts)

    def of(self, owner: Owner) -> tuple[Use, Use]:
        """Return the row of a job, and the row of the total."""
        key = tuple(str(getattr(owner, name)) for name in self.by)
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= MOST_ROWS:
                problem = f"the report has more than {MOST_ROWS} rows; choose a shorter time or group by less"
                raise Refused("by", problem)
            row = self.rows[key] = Use()
        return row, self.total

    def add_job(self, owner: Owner, began: Micros) -> None:
        """Add a job that ran in the period of the report. Its first task started at `began`."""
        wait = began - owner.submitted if began >= self.since else None
        for use in self.of(owner):
            use.add_job(wait)


# -- the attempts that have ended ----------------------------------------------------------------------------------

PIECES = """
SELECT partition, number, job, "user", queue, submitted, amounts, outcome, tasks, started AS began,
    CASE WHEN ran > 0 AND started + ran < ended THEN started + ran ELSE ended END AS ended
FROM attempts WHERE tasks > 0 AND started IS NOT NULL AND {where}
UNION ALL
SELECT partition, number, job, "user", queue, submitted, amounts, outcome, tasks,
    CASE WHEN submitted > ended - ran THEN submitted ELSE ended - ran END, ended
FROM attempts WHERE tasks > 0 AND started IS NULL AND ran > 0 AND {where}
UNION ALL
SELECT a.partition, a.number, a.job, a."user", a.queue, a.submitted, a.amounts, a.outcome, 1,
    CASE WHEN a.submitted > a.ended - used.ran THEN a.submitted ELSE a.ended - used.ran END, a.ended
FROM attempts AS a JOIN used USING (partition, number, stage, attempt)
WHERE a.tasks > 0 AND a.started IS NULL AND a.ran = 0 AND used.ran >= 0 AND place BETWEEN a.first AND a.last
    AND (a.last - a.first < a.tasks OR holds(a.indices, place)) AND {where}
"""
"""Attempts with a known start. They end when they have run for the time that their node measured, because the server
may hear of the end much later, after a change of leader. A quick task may end before its start is reported. Then its
start is its end minus its run time, which earlier versions wrote only to `used`."""
LOW_BITS = 20
"""Times are summed as high and low bits, because a sum of whole times may not fit into 64 bits."""


def add_ended(report: UsageReport, db: Session) -> None:
    """Add the ended attempts of a history, then the jobs of all attempts."""
    for partition, number, job, user, queue, submitted, amounts, tasks, preempted, high, low in _work(report, db):
        owner = Owner(partition, number, job, user, queue, submitted)
        for use in report.of(owner):
            use.add_work(
                int(tasks),
                int(preempted),
                (int(high) << LOW_BITS) + int(low),
                msgspec.json.decode(amounts, type=Amounts),
            )
    for *fields, began, last in _jobs(report, db):
        owner = Owner(*fields)
        _, started = report.unfinished.pop((owner.partition, owner.number), (owner, FAR))
        if last >= report.since or started != FAR:
            report.add_job(owner, min(began, started))
    for owner, began in report.unfinished.values():
        report.add_job(owner, began)


def add_measured(report: UsageReport, db: Session) -> None:
    """Add the measured use of attempts that ended in the period, and find the jobs with the most unused CPU time."""
    where, values = _where(report, "a.ended >= :since", "a.ended < :until", table="a.")
    sql = f"""
    SELECT a.partition, a.number, a.job, a."user", a.queue, a.submitted, a.amounts,
        sum(1.0 * used.cpu), sum(1.0 * used.ran), max(used.memory)
    FROM attempts AS a JOIN used USING (partition, number, stage, attempt)
    WHERE used.ran > 0 AND place BETWEEN a.first AND a.last AND (a.last - a.first < a.tasks OR holds(a.indices, place))
        AND {where}
    GROUP BY 1, 2, 3, 4, 5, 6, 7
    """
    for *fields, packed, cpu, ran, memory in db.run(sql, values):
        owner = Owner(*fields)
        amounts = dict(msgspec.json.decode(packed, type=Amounts))
        had = amounts.get(CPU, 0) / MILLI * float(ran)
        for use in report.of(owner):
            use.cpu_used += float(cpu)
            use.cpu_had += had
        text = waste_of(amounts, int(cpu), int(ran), int(memory))
        if text:
            report.wasteful.append(Waste(max(0.0, had - float(cpu)), owner, text))
    report.wasteful = sorted(report.wasteful, key=lambda waste: -waste.unused)[:WASTEFUL]


def _work(report: UsageReport, db: Session) -> Iterator[Any]:
    """Yield sums of work: by job if the report is by job, else by user, queue and partition."""
    where, values = _where(report, "ended >= :since")
    columns = {name: f'"{name}"' if name in ("partition", *report.by) else "''" for name in ("job", "user", "queue")}
    number = "number" if "job" in report.by else "0"
    until = "CASE WHEN ended < :until THEN ended ELSE :until END"
    since = "CASE WHEN began > :since THEN began ELSE :since END"
    sql = f"""
    SELECT partition, number, job, "user", queue, 0, amounts, sum(tasks), sum(preempted),
        sum(tasks * (span >> {LOW_BITS})), sum(tasks * (span & {(1 << LOW_BITS) - 1}))
    FROM (
        SELECT partition, {number} AS number, {columns["job"]} AS job, {columns["user"]} AS "user",
            {columns["queue"]} AS queue, amounts, tasks,
            CASE WHEN outcome = 'preempted' AND ended < :until THEN tasks ELSE 0 END AS preempted,
            CASE WHEN {until} > {since} THEN {until} - {since} ELSE 0 END AS span
        FROM ({PIECES.format(where=where)}) AS pieces WHERE began < :until
    ) AS work GROUP BY partition, number, job, "user", queue, amounts
    """
    return iter(db.run(sql, values))


def _jobs(report: UsageReport, db: Session) -> Iterator[Any]:
    """Yield the jobs that started before the end of the period, with their first start and their last end."""
    where, values = _where(report)
    sql = f"""
    SELECT partition, number, job, "user", queue, submitted, min(began), max(ended)
    FROM ({PIECES.format(where=where)}) AS pieces WHERE began < :until GROUP BY 1, 2, 3, 4, 5, 6
    """
    return iter(db.run(sql, values))


def _where(report: UsageReport, *more: str, table: str = "") -> tuple[str, dict[str, Any]]:
    """Return the SQL condition that selects the attempts of a report, and the values of its parameters.

    `table` is the name of the attempts with a dot, if the query has other tables.
    """
    conditions = list(more)
    values: dict[str, Any] = {"since": report.since, "until": report.until}
    for name, chosen in (("user", report.user), ("partition", report.partition)):
        if chosen:
            conditions.append(f'{table}"{name}" = :{name}')
            values[name] = chosen
    for at, (partition, cycle) in enumerate(sorted(report.cycles.items())):
        conditions.append(f"({table}partition != :partition{at} OR {table}ended <= :cycle{at})")
        values[f"partition{at}"], values[f"cycle{at}"] = partition, cycle
    return " AND ".join(conditions) or "1 = 1", values
