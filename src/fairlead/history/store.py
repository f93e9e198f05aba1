"""The history: ended jobs and attempts, and the resources that tasks used. A thread writes rows in large batches.

If the history is too large, the jobs that ended first are deleted. A failed write is tried again; a row that the
database cannot store is left out. The databases are in `tables` and `pgsession`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec

from fairlead.core.model import Micros
from fairlead.core.ranges import Ranges, count, difference
from fairlead.history.databases import DROPPED_AT_ONCE, Session, mark_copied, not_copied, tables_at
from fairlead.history.filter import EVERY_JOB, JobFilter, condition
from fairlead.history.recorder import AttemptRow, JobRow, ResultRow
from fairlead.history.usage_report import UsageReport, add_ended, add_measured
from fairlead.journal.journal import JournalError
from fairlead.wire.agent_messages import Tasks

PAUSE = 0.2
"""Seconds for which rows are collected before they are written."""
RETRY = 1.0
"""Seconds between two attempts to write."""
WAITING = 500_000
"""Maximum number of rows that wait to be written. Further rows are left out."""
NOTED_EVERY = 1_000
"""Records without rows after which it is noted that the history has reached them."""


def _marks(row: type[msgspec.Struct]) -> str:
    return ", ".join("?" * len(row.__struct_fields__))


# `user` is a word of SQL in PostgreSQL.
JOB_COLUMNS = ", ".join(f'"{name}"' for name in JobRow.__struct_fields__)
ATTEMPT_COLUMNS = ", ".join(f'"{name}"' for name in AttemptRow.__struct_fields__)
INDICES, AMOUNTS = map(AttemptRow.__struct_fields__.index, ("indices", "amounts"))
# A quick task may end before its start is reported. Then its start is its end minus its run time.
BEGAN = """coalesce(started, CASE WHEN ran > 0 THEN ended - ran END, ended - (
    SELECT max(ran) FROM used WHERE used.partition = attempts.partition AND used.number = attempts.number
    AND used.stage = attempts.stage AND used.attempt = attempts.attempt AND place BETWEEN first AND last))"""
EVERY = 2**62
"""A limit for queries that is higher than the number of rows."""
SPAN = 1_000
"""A repeated report of a task is matched only with attempt rows whose indices span at most this many tasks."""
USED_VALUES = ":partition, :number, :stage, :index, :attempt, :signal, :ran, :cpu, :memory"
REPORTED = f"""INSERT INTO used VALUES ({USED_VALUES}) ON CONFLICT (partition, number, stage, place, attempt)
    DO UPDATE SET signal = excluded.signal, ran = excluded.ran, cpu = excluded.cpu, memory = excluded.memory"""
REPORTED_AGAIN = f"""INSERT INTO used SELECT {USED_VALUES}
    WHERE EXISTS (SELECT 1 FROM attempts WHERE partition = :partition AND number = :number AND stage = :stage
    AND first <= :index AND first > :index - {SPAN} AND last >= :index AND attempt = :attempt AND node = :node)
    ON CONFLICT DO NOTHING"""
PUT_JOB = (
    f"INSERT INTO jobs ({JOB_COLUMNS}) VALUES ({_marks(JobRow)}) ON CONFLICT (partition, number) DO UPDATE SET "
    + ", ".join(f'"{name}" = excluded."{name}"' for name in JobRow.__struct_fields__[2:])
    + " WHERE excluded.ended >= jobs.ended"
)
REACHED = """INSERT INTO reached VALUES (?, ?) ON CONFLICT (partition) DO UPDATE SET seq = excluded.seq
    WHERE excluded.seq > reached.seq"""
# An attempt is stored once, also if a deposed server and its successor write it: a task has an attempt once, so no two
# rows of an attempt have the same first task.
PUT_ATTEMPT = (
    f"INSERT INTO attempts ({ATTEMPT_COLUMNS}, first, last, tasks) VALUES ({_marks(AttemptRow)}, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
ADD_RESULTS = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING 1"
PUT_RESULTS = """INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (partition, number, stage, place, attempt)
    DO UPDATE SET files = excluded.files, warning = excluded.warning RETURNING 1"""
ATTEMPTS_FOUND = ", ".join(BEGAN if name == "started" else f'"{name}"' for name in AttemptRow.__struct_fields__)


class Used(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The resources that one attempt of one task used. Times are in microseconds, memory is in bytes."""

    partition: str
    number: int
    stage: str
    index: int
    attempt: int
    signal: int
    ran: int
    cpu: int
    memory: int
    node: str = ""
    """Set if the node repeats its report, as after a restart of the server. Then the row is written only if the history
    has the attempt on that node, and has no use of it yet."""


class PromiseRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A start that was foretold for a job: the first one, or, if `last` is 1, the last one."""

    partition: str
    number: int
    last: int
    made: Micros
    likely: Micros
    earliest: Micros
    latest: Micros | None
    stretch: float


class PromiseEnd(msgspec.Struct, frozen=True, gc=False):
    """What came of the promises for a job."""

    partition: str
    number: int
    what: Literal["started", "changed", "ended"]
    at: Micros


PROMISE_COLUMNS = ", ".join(PromiseRow.__struct_fields__)
PUT_PROMISE = (
    f"INSERT INTO promised ({PROMISE_COLUMNS}) VALUES ({_marks(PromiseRow)}) "
    "ON CONFLICT (partition, number, last) DO UPDATE SET made = excluded.made, likely = excluded.likely, "
    "earliest = excluded.earliest, latest = excluded.latest, stretch = excluded.stretch "
    "WHERE promised.last = 1 AND promised.what = ''"
)
DECIDED = "UPDATE promised SET what = ?, decided = ? WHERE partition = ? AND number = ? AND what = ''"

Row = JobRow | AttemptRow | Used | PromiseRow | PromiseEnd


class History:
    """Stores and finds rows. Several threads may use it. A thread of its own writes the rows."""

    def __init__(
        self, path: str | os.PathLike[str], size: int = 2**62, note: Callable[[str], None] = lambda text: None
    ) -> None:
        """Open or create the history in a file, or in the database that an address names.

        `size` is the limit of the history in bytes. `note` receives messages for the operator.
        """
        self._tables = tables_at(path)
        self._size = size
        self._note = note
        self.failure = ""
        """Why the last batch was not written; empty if it was."""
        self._rows: list[Row] = []
        """Rows that wait to be written."""
        self._left_out = 0
        """Number of rows that were left out since the last written batch."""
        self._reached: dict[str, int] = {}
        """Partition → the last record whose rows are all queued or written."""
        self._noted: dict[str, int] = {}
        """Partition → the last of these numbers that was written."""
        self._gaps: set[str] = set()
        """Partitions of which rows were left out. The next leader adds them again."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._written = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._busy = False
        self._tables.create()
        self._thread = self._started()

    @property
    def failing(self) -> bool:
        """True if rows cannot be written at present."""
        return bool(self.failure) or not self._thread.is_alive()

    # -- writing -------------------------------------------------------------------------------------------------

    def put(self, jobs: list[JobRow], attempts: list[AttemptRow], reached: tuple[str, int] | None = None) -> None:
        self._queue([*jobs, *attempts], reached)

    def reached(self, partition: str, last: int) -> int | None:
        """Return the record up to which all rows of a partition are stored; at most `last`, its last record.

        None if a version stored the rows that did not note it.
        """
        self.flush()
        with self._lock:
            self._gaps.discard(partition)
        with self._tables.session() as db, db.writing():
            found = list(db.run("SELECT seq FROM reached WHERE partition = ?", (partition,)))
            if found:
                # The stream may have been removed and begun again, or set back.
                db.run("UPDATE reached SET seq = ? WHERE partition = ? AND seq > ?", (last, partition, last))
                return min(int(found[0][0]), last)
            if list(db.run("SELECT 1 FROM attempts WHERE partition = ? LIMIT 1", (partition,))):
                return None
            db.run(REACHED, (partition, 0))
            return 0

    def put_used(self, used: list[Used]) -> None:
        self._queue(used)

    def put_promises(self, rows: Sequence[PromiseRow | PromiseEnd]) -> None:
        self._queue(rows)

    def flush(self, seconds: float = 10.0) -> None:
        """Write all queued rows now. Returns when they are written, or after `seconds`."""
        self._hurry.set()
        with self._written:
            self._written.wait_for(lambda: not (self._rows or self._busy), timeout=seconds)

    def close(self) -> None:
        self._closing.set()
        self._hurry.set()
        self._wake.set()
        self._thread.join()

    def _queue(self, rows: Sequence[Row], reached: tuple[str, int] | None = None) -> None:
        """Queue rows and wake the writing thread; start a new thread if it has ended."""
        with self._lock:
            if len(self._rows) + len(rows) <= WAITING:
                self._rows += rows
            else:
                self._left_out += len(rows)
                self._gaps.update(row.partition for row in rows)
            if reached is not None and reached[0] not in self._gaps:
                partition, seq = reached
                self._reached[partition] = max(seq, self._reached.get(partition, 0))
                if not rows and seq - self._noted.get(partition, 0) < NOTED_EVERY:
                    return
        self._wake.set()
        if not self._thread.is_alive() and not self._closing.is_set():
            self._note("the thread of the history had ended and was started again")
            self._thread = self._started()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="history", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        """Write queued rows until the history is closed. A failure is noted once; the next try uses a new session."""
        while True:
            try:
                with self._tables.session() as db:
                    return self._write_on(db)
            except Exception as problem:
                where = self._tables.where
                why = str(problem) if str(problem).startswith(where) else f"{where}: {problem}"
                if why != self.failure:
                    self.failure = why
                    self._note(f"the history is not written: {why}")
            if self._closing.wait(RETRY):
                return
            self._wake.set()

    def _write_on(self, db: Session) -> None:
        last = False
        while not last:
            self._wake.wait()
            self._hurry.wait(PAUSE)
            self._hurry.clear()
            self._wake.clear()
            last = self._closing.is_set()
            self._write(db)
            self._shrink(db)

    def _write(self, db: Session) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
            reached, self._reached = self._reached, {}
            self._busy = True
        try:
            try:
                _insert(db, rows, reached)
            except Exception as problem:
                if not self._tables.is_of_a_row(problem):
                    raise
                self._insert_singly(db, rows)
                _insert(db, [], reached)
            self._noted |= reached
        except BaseException:
            with self._lock:
                self._rows = rows + self._rows
                self._reached = reached | self._reached
            raise
        finally:
            with self._written:
                self._busy = False
                self._written.notify_all()
        left_out, self._left_out = self._left_out, 0
        if left_out:
            self._note(f"{left_out} rows of the history were left out")
        if self.failure:
            self.failure = ""
            self._note("the history is written again")

    def _insert_singly(self, db: Session, rows: list[Row]) -> None:
        """Write rows one by one, and leave out those that the database cannot store."""
        for row in rows:
            try:
                _insert(db, [row])
            except Exception as problem:
                if not self._tables.is_of_a_row(problem):
                    raise
                self._left_out += 1

    def _shrink(self, db: Session) -> None:
        """Delete the jobs that ended first, with their attempts, while the history is too large."""
        while excess := db.excess(self._size):
            if not _drop(db, EVERY, excess):
                return

    def drop_before(self, time: Micros) -> int:
        """Delete the jobs that ended before a time, with their attempts. Return their number."""
        dropped = 0
        with self._tables.session() as db:
            while found := _drop(db, time, DROPPED_AT_ONCE):
                dropped += found
        return dropped

    # -- reading -------------------------------------------------------------------------------------------------

    def counted(self, partition: str) -> dict[int, dict[str, int]]:
        rows = self._ask("SELECT number, tasks FROM jobs WHERE partition = ?", partition)
        return {number: msgspec.json.decode(tasks) for number, tasks in rows}

    def job(self, partition: str, id: str) -> JobRow | None:
        """Return a job by its id, the newest if several jobs had this id."""
        sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE partition = ? AND id = ? ORDER BY number DESC LIMIT 1"
        return next(map(job_of, self._ask(sql, partition, id)), None)

    def jobs(
        self, partition: str, wanted: JobFilter = EVERY_JOB, before: int | None = None, limit: int = 100
    ) -> list[JobRow]:
        """Return finished jobs with a number below `before`, the newest first."""
        with self._tables.session() as db:
            where, values = condition(db, wanted)
            if before is not None:
                where += f" AND number < {before:d}"
            sql = f"SELECT {JOB_COLUMNS} FROM jobs WHERE partition = :partition AND {where} ORDER BY number DESC"
            return list(map(job_of, db.run(f"{sql} LIMIT {limit:d}", {**values, "partition": partition})))

    def untold(self, partition: str, limit: int) -> list[JobRow]:
        """Return ended jobs whose notice was not sent yet: the oldest of each user, then the next one of each."""
        sql = (
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE partition = ? AND told = 0 AND notify <> '[]' "
            f'ORDER BY row_number() OVER (PARTITION BY "user" ORDER BY number), number LIMIT {limit:d}'
        )
        return list(map(job_of, self._ask(sql, partition)))

    def mark_told(self, partition: str, number: int) -> None:
        """Record that the notice of a job was sent."""
        with self._tables.session() as db, db.writing():
            db.run("UPDATE jobs SET told = 1 WHERE partition = ? AND number = ?", (partition, number))

    def open_promises(self, partition: str) -> list[PromiseRow]:
        """Return the first promise of each job whose start has neither come nor become impossible."""
        sql = f"SELECT {PROMISE_COLUMNS} FROM promised WHERE partition = ? AND last = 0 AND what = ''"
        return [PromiseRow(*row) for row in self._ask(sql, partition)]

    def promises(
        self, partition: str, since: int, last: bool, limit: int = EVERY
    ) -> list[tuple[PromiseRow, PromiseEnd]]:
        """Return the promises that were decided since a time, the last decided first."""
        sql = (
            f"SELECT what, decided, {PROMISE_COLUMNS} FROM promised WHERE partition = ? AND last = ? AND decided >= ? "
            f"AND what <> '' ORDER BY decided DESC, number DESC LIMIT {limit:d}"
        )
        rows = self._ask(sql, partition, int(last), since)
        return [(PromiseRow(*row), PromiseEnd(partition, row[1], what, at)) for what, at, *row in rows]

    def usage(self, report: UsageReport) -> None:
        """Add the ended attempts of the history to a usage report."""
        with self._tables.session() as db:
            add_ended(report, db)
            if report.measured:
                add_measured(report, db)

    def ran(self, partition: str, since: int, until: int, user: str, limit: int) -> list[tuple[AttemptRow, str]]:
        """Return the attempts that ran between two times, with the names of their jobs, the last end first.

        With `user`, only attempts of that user are returned. Only the newest `limit` attempts are read.
        """
        # Attempts are written in the order of their ends, so the newest rows are read without an index of times.
        newest = "SELECT * FROM attempts WHERE partition = ? ORDER BY rowid DESC LIMIT ?"
        sql = f"SELECT {ATTEMPTS_FOUND} FROM ({newest}) AS attempts WHERE ended >= ?"
        rows = [attempt_of(row) for row in self._ask(sql, partition, limit, since)]
        rows = [row for row in rows if row.started is not None and row.started < until and user in ("", row.user)]
        names: dict[int, str] = {}
        numbers = sorted({row.number for row in rows})
        for start in range(0, len(numbers), 500):
            part = numbers[start : start + 500]
            marks = ", ".join("?" * len(part))
            sql = f"SELECT number, name FROM jobs WHERE partition = ? AND number IN ({marks})"
            names.update({number: name for number, name in self._ask(sql, partition, *part)})
        return [(row, names.get(row.number, "")) for row in rows]

    def starts(self, partition: str, numbers: list[int]) -> dict[int, int]:
        """Return, by job number, when the first task of a job started. Jobs without a started task are left out."""
        if not numbers:
            return {}
        marks = ", ".join("?" * len(numbers))
        sql = f"SELECT number, min({BEGAN}) FROM attempts WHERE partition = ? AND number IN ({marks}) GROUP BY number"
        return {number: began for number, began in self._ask(sql, partition, *numbers) if began is not None}

    def used_by_job(self, partition: str, numbers: list[int]) -> dict[int, tuple[float, float, int]]:
        """Return, by job number, the reported CPU time, the run time and the highest memory of its tasks."""
        if not numbers:
            return {}
        marks = ", ".join("?" * len(numbers))
        sql = (
            "SELECT number, sum(1.0 * cpu), sum(CASE WHEN ran > 0 THEN 1.0 * ran ELSE 0.0 END), max(memory) FROM used "
            f"WHERE partition = ? AND number IN ({marks}) GROUP BY number"
        )
        return {number: (cpu, ran, memory) for number, cpu, ran, memory in self._ask(sql, partition, *numbers)}

    def attempts(self, partition: str, number: int, skip: int = 0, limit: int = EVERY) -> list[AttemptRow]:
        """Return the attempts of a job, in the order in which they ended."""
        sql = (
            f"SELECT {ATTEMPTS_FOUND} FROM attempts WHERE partition = ? AND number = ? "
            f"ORDER BY rowid LIMIT {limit:d} OFFSET {skip:d}"
        )
        return list(map(attempt_of, self._ask(sql, partition, number)))

    def attempts_used(
        self, partition: str, number: int, limit: int
    ) -> list[tuple[AttemptRow, float | None, int | None]]:
        """Return the first attempts of a job, each with the reported CPU time of its tasks, and the most memory."""
        use = (
            "FROM used WHERE used.partition = attempts.partition AND used.number = attempts.number "
            "AND used.stage = attempts.stage AND used.attempt = attempts.attempt AND place BETWEEN first AND last"
        )
        sql = (
            f"SELECT (SELECT sum(1.0 * cpu) {use}), (SELECT max(memory) {use}), {ATTEMPTS_FOUND} FROM attempts "
            f"WHERE partition = ? AND number = ? ORDER BY rowid LIMIT {limit:d}"
        )
        rows = self._ask(sql, partition, number)
        return [(attempt_of(row), cpu, memory) for cpu, memory, *row in rows]

    def task_attempts(self, partition: str, number: int, stage: str, index: int) -> list[AttemptRow]:
        """Return the ended attempts of a task, in the order of their numbers."""
        rows = self.attempts_between(partition, number, stage, index, index)
        return [row for row in rows if index in Ranges(row.indices)]

    def attempts_between(self, partition: str, number: int, stage: str, first: int, last: int) -> list[AttemptRow]:
        """Return the ended attempts of tasks whose indices lie between two, and maybe of others."""
        sql = (
            f"SELECT {ATTEMPTS_FOUND} FROM attempts WHERE partition = ? AND number = ? AND stage = ? "
            "AND first <= ? AND last >= ? ORDER BY attempt, rowid"
        )
        return list(map(attempt_of, self._ask(sql, partition, number, stage, last, first)))

    def used(self, partition: str, number: int) -> dict[str, tuple[int, int, int, int]]:
        """Return the reported use of resources, by stage.

        The numbers are the CPU time of all tasks, their run time, the highest memory use of one task, and the number of
        reports.
        """
        # Not `sum(cpu)`, which fails in SQLite if the result has more than 64 bits.
        sql = (
            "SELECT stage, sum(1.0 * cpu), sum(CASE WHEN ran > 0 THEN 1.0 * ran ELSE 0.0 END), max(memory), count(*) "
            "FROM used WHERE partition = ? AND number = ? GROUP BY stage"
        )
        rows = self._ask(sql, partition, number)
        return {stage: (int(cpu), int(ran), memory, reports) for stage, cpu, ran, memory, reports in rows}

    def used_by_task(self, partition: str, number: int, skip: int, limit: int) -> list[Used]:
        """Return the reported use of each attempt of a job, by stage, task and attempt."""
        columns = "partition, number, stage, place, attempt, signal, ran, cpu, memory"
        sql = (
            f"SELECT {columns} FROM used WHERE partition = ? AND number = ? ORDER BY stage, place, attempt "
            f"LIMIT {limit:d} OFFSET {skip:d}"
        )
        return [Used(*row) for row in self._ask(sql, partition, number)]

    def mark_copied(self, partition: str, node: str, tasks: Tasks) -> None:
        """Record that the logs of tasks were copied from their node, so that a restarted server does not copy them."""
        with suppress(JournalError), self._tables.session() as db, db.writing():
            mark_copied(db, partition, node, tasks)

    def not_copied(self, partition: str, nodes: list[str]) -> list[tuple[str, Tasks]]:
        """Return the ended tasks on these nodes whose logs were not copied, each with its node, the oldest first."""
        self.flush()
        with self._tables.session() as db, db.writing():
            return not_copied(db, partition, nodes)

    def ran_on(self, partition: str, node: str, tasks: Tasks) -> tuple[int, ...]:
        """Return the indices of those given tasks that ran on this node, or whose node is not known."""
        self.flush()
        sql = (
            "SELECT indices FROM attempts WHERE partition = ? AND number = ? AND stage = ? AND attempt = ? "
            "AND node IN (?, '')"
        )
        found = Ranges(tasks.indices)
        ran = Ranges()
        for (text,) in self._ask(sql, partition, tasks.number, tasks.stage, tasks.attempt, node):
            shared = found.overlap(msgspec.json.decode(text, type=tuple[int, ...]))
            ran.add(shared)
            found = Ranges(difference(found.flat(), shared))
        return ran.flat()

    def put_results(self, partition: str, number: int, rows: list[ResultRow], replace: bool = True) -> list[ResultRow]:
        """Write which result files the attempts of tasks have, durably. Returns the written rows.

        Without `replace`, rows that exist already are not written.
        """
        sql = PUT_RESULTS if replace else ADD_RESULTS

        def values(row: ResultRow) -> tuple[Any, ...]:
            return (partition, number, row.stage, row.index, row.attempt, _text(row.files), row.warning)

        try:
            with self._tables.session() as db:
                db.make_durable()
                with db.writing():
                    return [row for row in rows if list(db.run(sql, values(row)))]
        except JournalError as problem:
            raise OSError(f"the history cannot be written: {problem}") from problem

    def results(
        self,
        partition: str,
        number: int,
        stage: str = "",
        index: int | None = None,
        attempt: int | None = None,
        skip: int = 0,
        limit: int = EVERY,
    ) -> list[ResultRow]:
        """Return the result files of a job's tasks; without `attempt`, of each task's last attempt that has some."""
        of_task = "partition = :partition AND number = :number"
        of_task += " AND stage = :stage" if stage else ""
        of_task += "" if index is None else " AND place = :place"
        last = (
            "attempt = (SELECT max(attempt) FROM results AS other WHERE other.partition = results.partition "
            "AND other.number = results.number AND other.stage = results.stage AND other.place = results.place)"
        )
        where = f"{of_task} AND {last if attempt is None else 'attempt = :attempt'}"
        sql = f"SELECT stage, place, attempt, files, warning FROM results WHERE {where} ORDER BY stage, place"
        values = {"partition": partition, "number": number, "stage": stage, "place": index, "attempt": attempt}
        with self._tables.session() as db:
            rows = list(db.run(f"{sql} LIMIT {limit:d} OFFSET {skip:d}", values))
        return [
            ResultRow(stage, place, last, msgspec.json.decode(files, type=tuple[tuple[str, int], ...]), warning)
            for stage, place, last, files, warning in rows
        ]

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        with self._tables.session() as db:
            return list(db.run(sql, values))


def _drop(db: Session, before: Micros, most: int) -> int:
    """Delete at most `most` jobs that ended before a time, the oldest first. Return their number."""
    query = "SELECT partition, number FROM jobs WHERE ended < ? ORDER BY ended, partition, number LIMIT ?"
    oldest = list(db.run(query, (before, most)))
    with db.writing():
        for table in ("jobs", "attempts", "used", "copied", "results", "promised"):
            db.run_many(f"DELETE FROM {table} WHERE partition = ? AND number = ?", oldest)
    return len(oldest)


def _insert(db: Session, rows: list[Row], reached: dict[str, int] | None = None) -> None:
    used = [msgspec.structs.asdict(row) for row in rows if isinstance(row, Used)]
    with db.writing():
        db.run_many(PUT_JOB, [_flat_job(row) for row in rows if isinstance(row, JobRow)])
        db.run_many(PUT_ATTEMPT, [_flat_attempt(row) for row in rows if isinstance(row, AttemptRow)])
        db.run_many(REPORTED, [values for values in used if not values["node"]])
        db.run_many(REPORTED_AGAIN, [values for values in used if values["node"]])
        db.run_many(PUT_PROMISE, [msgspec.structs.astuple(row) for row in rows if isinstance(row, PromiseRow)])
        ends = [row for row in rows if isinstance(row, PromiseEnd)]
        db.run_many(DECIDED, [(row.what, row.at, row.partition, row.number) for row in ends])
        db.run_many(REACHED, sorted((reached or {}).items()))


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _flat_job(row: JobRow) -> tuple[Any, ...]:
    plain = msgspec.structs.astuple(row)[:-4]
    return (*plain, _text(row.tasks), _text(row.labels), row.spec, _text(row.notify))


def _flat_attempt(row: AttemptRow) -> tuple[Any, ...]:
    values = list(msgspec.structs.astuple(row))
    values[INDICES], values[AMOUNTS] = _text(row.indices), _text(row.amounts)
    flat = row.indices
    return (*values, flat[0] if flat else 0, flat[-1] - 1 if flat else -1, count(flat))


def job_of(row: tuple[Any, ...]) -> JobRow:
    *plain, tasks, labels, spec, notify = row
    return msgspec.convert(
        [*plain, *map(msgspec.json.decode, (tasks, labels)), spec, msgspec.json.decode(notify)], JobRow
    )


def attempt_of(row: Sequence[Any]) -> AttemptRow:
    values = list(row)
    for at in (INDICES, AMOUNTS):
        values[at] = msgspec.json.decode(values[at])
    return msgspec.convert(values, AttemptRow)
