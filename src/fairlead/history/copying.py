"""Copies a history into an empty one of the same or of the other kind, and compares them at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice

from fairlead.history.store import ATTEMPT_COLUMNS, JOB_COLUMNS
from fairlead.history.tables import Session, tables_at
from fairlead.journal.base import JournalError

AT_ONCE = 5_000

TABLES = {
    "jobs": (JOB_COLUMNS, "partition, number"),
    "attempts": (f"{ATTEMPT_COLUMNS}, first, last, tasks", "rowid"),
    "used": (
        "partition, number, stage, place, attempt, signal, ran, cpu, memory",
        "partition, number, stage, place, attempt",
    ),
    "copied": (
        "partition, number, stage, attempt, indices, node",
        "partition, number, stage, attempt, indices",
    ),
    "results": (
        "partition, number, stage, place, attempt, files, warning",
        "partition, number, stage, place, attempt",
    ),
}
"""Table → its columns, and those that give its rows an order."""


def copy_history(
    source: str | os.PathLike[str], target: str | os.PathLike[str], told: Callable[[str, int], None]
) -> None:
    """Copy all tables. No server may use either history. `told` is called with a table and its number of rows."""
    before, after = tables_at(source), tables_at(target)
    before.create()
    after.create()
    with before.session() as old, after.session() as new:
        if any(list(new.run(f"SELECT 1 FROM {table} LIMIT 1")) for table in TABLES):
            raise JournalError(f"{after.where}: there is a history already; name an empty place")
        with new.writing():
            for table, (columns, order) in TABLES.items():
                _copy(old, new, table, columns, order)
        for table, (columns, _) in TABLES.items():
            counted = _digest(old, table, columns)
            if counted != _digest(new, table, columns):
                raise JournalError(f"{after.where}: table {table} is not equal to its original; remove the copy")
            told(table, counted[0])


def _copy(old: Session, new: Session, table: str, columns: str, order: str) -> None:
    marks = ", ".join("?" * (columns.count(",") + 1))
    rows = old.scan(f"SELECT {columns} FROM {table} ORDER BY {order}")
    while batch := list(islice(rows, AT_ONCE)):
        new.run_many(f"INSERT INTO {table} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING", batch)


def _digest(session: Session, table: str, columns: str) -> tuple[int, int]:
    """Return the number of rows, and a sum of their digests, which does not depend on their order."""
    count, total = 0, 0
    for row in session.scan(f"SELECT DISTINCT {columns} FROM {table}"):  # on PostgreSQL an attempt is stored once
        count += 1
        total += int.from_bytes(blake2b(repr(tuple(row)).encode(errors="surrogatepass"), digest_size=16).digest())
    return count, total % 2**128
