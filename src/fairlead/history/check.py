"""Checks a whole history: the file or tables, and the form of every row. It writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.history.databases import tables_at
from fairlead.history.store import ATTEMPT_COLUMNS, JOB_COLUMNS, attempt_of, job_of
from fairlead.journal.journal import Damaged

REMEDY = "restore it from a backup, or move it away to begin a new history"
_FORMS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "jobs": (JOB_COLUMNS, job_of),
    "attempts": (ATTEMPT_COLUMNS, attempt_of),
    "used": ("partition, number, stage, place, attempt, signal, ran, cpu, memory", tuple),
    "copied": ("partition, number, stage, attempt, indices, node", tuple),
    "results": ("partition, number, stage, place, attempt, files, warning", tuple),
}


def check_history(place: str | os.PathLike[str]) -> int:
    """Return the number of rows of a history. Raise `JournalError` if it is damaged."""
    tables = tables_at(place)
    rows = 0
    with tables.session() as db:
        problem = db.damage()
        if problem:
            raise Damaged(tables.where, problem, REMEDY)
        for table, (columns, form) in _FORMS.items():
            try:
                for row in db.scan(f"SELECT {columns} FROM {table}"):
                    form(row)
                    rows += 1
            except (msgspec.MsgspecError, TypeError) as wrong:
                raise Damaged(tables.where, f"table {table}: a row is damaged ({wrong})", REMEDY) from wrong
    return rows
