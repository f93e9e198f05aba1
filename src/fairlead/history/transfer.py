"""Copies a history into an empty one, also between SQLite and PostgreSQL, while a server writes to the original.

The copy has the rows of each partition up to a given time. At the end, it is compared with the rows that were read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

from fairlead.core.model import Micros
from fairlead.history.databases import Session, tables_at
from fairlead.history.store import ATTEMPT_COLUMNS, JOB_COLUMNS, PROMISE_COLUMNS
from fairlead.journal.journal import JournalError

AT_ONCE = 5_000
_OF_ATTEMPT = """EXISTS (SELECT 1 FROM attempts WHERE attempts.partition = {0}.partition
    AND attempts.number = {0}.number AND attempts.stage = {0}.stage AND attempts.attempt = {0}.attempt
    AND attempts.ended <= :until)"""

TABLES = {
    "jobs": (f"{JOB_COLUMNS}, told", "number", "ended <= :until"),
    "attempts": (f"{ATTEMPT_COLUMNS}, first, last, tasks", "min(rowid)", "ended <= :until"),
    "used": (
        "partition, number, stage, place, attempt, signal, ran, cpu, memory",
        "number, stage, place, attempt",
        _OF_ATTEMPT.format("used"),
    ),
    "copied": (
        "partition, number, stage, attempt, indices, node",
        "number, stage, attempt, indices",
        _OF_ATTEMPT.format("copied"),
    ),
    "results": (
        "partition, number, stage, place, attempt, files, warning",
        "number, stage, place, attempt",
        _OF_ATTEMPT.format("results"),
    ),
    "promised": (f"{PROMISE_COLUMNS}, what, decided", "number, last", "decided <= :until"),
}
"""Table → its columns, the columns that order its rows, and the condition for rows up to a time."""


def copy_history(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    part_done: Callable[[str, int], None],
    until: Mapping[str, Micros],
    others: Micros,
    records: Mapping[str, int],
) -> None:
    """Copy the rows of each partition up to its time in `until`; those of removed partitions up to the time `others`.

    `records` has the last record of each partition in the copy of the journal.

    `part_done` is called with the name of each table and the number of its copied rows.
    """
    before, after = tables_at(source), tables_at(target)
    before.create()
    after.create()
    with before.session() as old, after.session() as new:
        if any(list(new.run(f"SELECT 1 FROM {table} LIMIT 1")) for table in TABLES):
            raise JournalError(f"{after.where}: there is a history already; name an empty place")
        digests = {table: _Digest() for table in TABLES}
        with new.writing():
            for partition, seq in list(old.run("SELECT partition, seq FROM reached")):
                new.run("INSERT INTO reached VALUES (?, ?)", (partition, min(seq, records.get(partition, seq))))
            for table in TABLES:
                for (partition,) in list(old.run(f"SELECT DISTINCT partition FROM {table}")):
                    values = {"partition": partition, "until": until.get(partition, others)}
                    _copy(old, new, table, values, digests[table])
        for table, (columns, _, _) in TABLES.items():
            copied = _Digest()
            for _ in copied.over(new.scan(f"SELECT {columns} FROM {table}")):
                pass
            if copied.value != digests[table].value:
                raise JournalError(f"{after.where}: table {table} is not equal to its original; remove the copy")
            part_done(table, copied.count)


def _copy(old: Session, new: Session, table: str, values: dict[str, Any], digest: _Digest) -> None:
    columns, order, condition = TABLES[table]
    marks = ", ".join("?" * (columns.count(",") + 1))
    # GROUP BY removes duplicates: on SQLite an attempt may be stored twice.
    rows = old.scan(
        f"SELECT {columns} FROM {table} WHERE partition = :partition AND {condition} GROUP BY {columns} "
        f"ORDER BY {order}",
        values,
    )
    while batch := list(islice(digest.over(rows), AT_ONCE)):
        new.run_many(f"INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING", batch)


class _Digest:
    """The number of rows, and the sum of their digests. The sum does not depend on the order of the rows."""

    def __init__(self) -> None:
        self.count = 0
        self._total = 0

    @property
    def value(self) -> tuple[int, int]:
        return self.count, self._total % 2**128

    def over(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Yield rows, and add them to the number and the sum."""
        for row in rows:
            self.count += 1
            digest = blake2b(repr(tuple(row)).encode(errors="surrogatepass"), digest_size=16).digest()
            self._total += int.from_bytes(digest)
            yield row
