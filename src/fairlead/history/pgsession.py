"""The tables of the history on PostgreSQL. `fairlead.journal.pgschema` creates them.

Sessions are reused, because connecting takes longer than most queries.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from fairlead.history.databases import Session, Tables
from fairlead.journal.journal import JournalError
from fairlead.journal.pgconnection import Connection, connect, explained, shown_url, with_placeholders
from fairlead.journal.pglimit import limited
from fairlead.journal.pgschema import prepare

KEPT = 4
"""Maximum number of idle sessions that stay open."""
CHECKED_EVERY = 60.0
"""Seconds between two measurements of the size, which are slow."""
ROW = 80
"""Approximate bytes of a row in addition to its columns: its header and its entries in indexes."""
PATIENCE = 60.0
"""Seconds that a transaction may take. A COMMIT on a former primary would take for ever."""
TARGET = 0.95
"""The fraction of the size limit that is used after rows were deleted."""


class PostgresTables(Tables):
    def __init__(self, url: str) -> None:
        self.where = f"{shown_url(url)}, history"
        self._url = url
        self._lock = threading.Lock()
        self._kept: list[PostgresSession] = []

    def create(self) -> None:
        with connect(self._url, "history") as connection:
            prepare(connection, self.where)

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self._lock:
            session = self._kept.pop() if self._kept else None
        if session is None or not session.works():
            session = PostgresSession(connect(self._url, "history"))
        try:
            yield session
        except psycopg.Error as problem:
            session.close()
            if self.is_of_a_row(problem):
                raise
            raise explained(problem, self.where, "using the history") from problem
        except BaseException:
            session.close()
            raise
        with self._lock:
            if len(self._kept) < KEPT:
                self._kept.append(session)
                return
        session.close()

    def is_of_a_row(self, problem: Exception) -> bool:
        return not isinstance(
            problem,
            psycopg.OperationalError
            | psycopg.InterfaceError
            | psycopg.InternalError
            | psycopg.ProgrammingError
            | OSError
            | MemoryError
            | JournalError,
        )


class PostgresSession(Session):
    def __init__(self, db: Connection) -> None:
        self.db = db
        self._checked = -CHECKED_EVERY

    def works(self) -> bool:
        """True if the connection was not lost while the session was idle. Otherwise close it."""
        try:
            self.db.execute("SELECT 1")
        except psycopg.Error:
            self.db.close()
            return False
        return True

    def run(self, sql: str, values: Any = ()) -> Iterable[Any]:
        return self.db.execute(with_placeholders(sql), values)

    def scan(self, sql: str, values: Any = ()) -> Iterator[Any]:
        with self.db.transaction(), self.db.cursor("scan") as cursor:
            yield from cursor.execute(with_placeholders(sql), values)

    def run_many(self, sql: str, rows: list[Any]) -> None:
        if rows:
            with self.db.cursor() as cursor:
                cursor.executemany(with_placeholders(sql), rows)

    @contextmanager
    def writing(self) -> Iterator[None]:
        with limited(self.db, PATIENCE), self.db.transaction():
            yield

    def make_durable(self) -> None:
        """Do nothing: PostgreSQL makes every transaction durable, unless it is configured otherwise."""

    def close(self) -> None:
        self.db.close()

    def members(self, name: str) -> str:
        return f"SELECT value FROM json_array_elements_text(CAST(:{name} AS json))"

    def entries(self, column: str) -> str:
        return f"json_each_text(CAST({column} AS json))"

    def matches(self, column: str, pattern: str) -> tuple[str, dict[str, Any]]:
        return f"{column} ~ :pattern", {"pattern": _regex(pattern)}

    def damage(self) -> str:
        return ""  # PostgreSQL checks its pages itself, if it has checksums

    def excess(self, size: int) -> int:
        """Return the number of jobs to delete, estimated from the sizes of rows.

        The size of the tables is not enough for this, because it does not shrink when rows are deleted.
        """
        if time.monotonic() < self._checked + CHECKED_EVERY:
            return 0
        self._checked = time.monotonic()
        [(whole,)] = self.run(
            "SELECT sum(pg_total_relation_size(CAST(name AS regclass))) FROM "
            "(VALUES ('jobs'), ('attempts'), ('used'), ('copied'), ('results'), ('promised')) AS tables (name)"
        )
        if whole <= size:
            return 0
        used, jobs = 0.0, 0
        for table in ("jobs", "attempts", "used", "copied", "results", "promised"):
            [(rows,)] = self.run(f"SELECT count(*) FROM {table}")
            [(width,)] = self.run(
                f"SELECT coalesce(avg(pg_column_size(sample.*)), 0) FROM (SELECT * FROM {table} LIMIT 1000) AS sample"
            )
            used += rows * (float(width) + ROW)
            jobs = rows if table == "jobs" else jobs
        return max(0, int(jobs * (1 - TARGET * size / used)) + 1) if used > size else 0


def _regex(pattern: str) -> str:
    """Return a shell pattern as a PostgreSQL regular expression that cannot take exponential time."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            parts.append(".*")
        elif char == "?":
            parts.append(".")
        elif char == "[" and (end := pattern.find("]", at + 1 + (pattern[at : at + 1] == "!"))) > 0:
            inside = pattern[at:end]
            negated = inside.startswith("!")
            chars = "".join(f"\\{char}" if char in "\\^[]" else char for char in inside[negated:])
            parts.append(f"[{'^' * negated}{chars}]")
            at = end + 1
        else:
            parts.append(re.sub(r"(\W)", r"\\\1", char))
    return f"^(?:{''.join(parts)})$"
