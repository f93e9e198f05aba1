"""The databases of the history: an SQLite file, or a PostgreSQL database.

The statements of the history are written once, in SQL that both databases understand, with `?` and `:name` for values.
This module and `pgsession` have the parts that differ: sessions, a few expressions, and the size in bytes.
"""

from __future__ import annotations

import fnmatch
import os
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from fairlead.core.ranges import Ranges, difference
from fairlead.journal.journal import JournalError
from fairlead.journal.locate import is_url, need_driver
from fairlead.wire.agent_messages import Tasks

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    partition TEXT NOT NULL, number INTEGER NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
    queue TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, submitted INTEGER NOT NULL,
    ended INTEGER NOT NULL, tasks TEXT NOT NULL, labels TEXT NOT NULL DEFAULT '{}',
    spec TEXT NOT NULL DEFAULT '', notify TEXT NOT NULL DEFAULT '[]', told INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition, number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_by_id ON jobs (partition, id, number);
CREATE INDEX IF NOT EXISTS jobs_by_end ON jobs (ended, partition, number);
CREATE TABLE IF NOT EXISTS attempts (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, indices TEXT NOT NULL,
    attempt INTEGER NOT NULL, outcome TEXT NOT NULL, node TEXT NOT NULL, exit_code INTEGER, reason TEXT NOT NULL,
    started INTEGER, ended INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    job TEXT NOT NULL DEFAULT '', user TEXT NOT NULL DEFAULT '', queue TEXT NOT NULL DEFAULT '',
    amounts TEXT NOT NULL DEFAULT '[]', submitted INTEGER NOT NULL DEFAULT 0, tasks INTEGER NOT NULL DEFAULT 0,
    ran INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS used (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, place INTEGER NOT NULL,
    attempt INTEGER NOT NULL, signal INTEGER NOT NULL, ran INTEGER NOT NULL, cpu INTEGER NOT NULL,
    memory INTEGER NOT NULL, PRIMARY KEY (partition, number, stage, place, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS copied (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, attempt INTEGER NOT NULL,
    indices TEXT NOT NULL, node TEXT NOT NULL, PRIMARY KEY (partition, number, stage, attempt, indices)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS results (
    partition TEXT NOT NULL, number INTEGER NOT NULL, stage TEXT NOT NULL, place INTEGER NOT NULL,
    attempt INTEGER NOT NULL, files TEXT NOT NULL, warning TEXT NOT NULL,
    PRIMARY KEY (partition, number, stage, place, attempt)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS promised (
    partition TEXT NOT NULL, number INTEGER NOT NULL, last INTEGER NOT NULL, made INTEGER NOT NULL,
    likely INTEGER NOT NULL, earliest INTEGER NOT NULL, latest INTEGER, stretch REAL NOT NULL,
    what TEXT NOT NULL DEFAULT '', decided INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (partition, number, last)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS promised_by_time ON promised (partition, last, decided);
CREATE TABLE IF NOT EXISTS reached (partition TEXT PRIMARY KEY NOT NULL, seq INTEGER NOT NULL) WITHOUT ROWID;
"""
ONCE = """
DELETE FROM attempts WHERE rowid NOT IN (
    SELECT min(rowid) FROM attempts GROUP BY partition, number, stage, first, attempt);
CREATE UNIQUE INDEX attempts_once ON attempts (partition, number, stage, first, attempt);
DROP INDEX IF EXISTS attempts_by_job;
"""
"""Removes the duplicates of earlier versions, and prevents new ones."""
UNTOLD = "CREATE INDEX IF NOT EXISTS jobs_untold ON jobs (partition, number) WHERE told = 0 AND notify <> '[]'"
"""The index of jobs whose end is not told yet."""
ADDED = {
    "jobs": {
        **{"labels": "TEXT NOT NULL DEFAULT '{}'", "spec": "TEXT NOT NULL DEFAULT ''"},
        **{"notify": "TEXT NOT NULL DEFAULT '[]'", "told": "INTEGER NOT NULL DEFAULT 0"},
    },
    "attempts": {
        **dict.fromkeys(("job", "user", "queue"), "TEXT NOT NULL DEFAULT ''"),
        "amounts": "TEXT NOT NULL DEFAULT '[]'",
        **dict.fromkeys(("submitted", "tasks", "ran"), "INTEGER NOT NULL DEFAULT 0"),
    },
}
"""Columns that files of earlier versions lack. Attempts of such a file get 0 `tasks`, and reports leave them out."""


def create_tables(db: sqlite3.Connection) -> None:
    """Create the tables that are missing, and add the columns that a file of an earlier version lacks."""
    db.executescript(SCHEMA)
    for table, columns in ADDED.items():
        present = {row[1] for row in db.execute(f"PRAGMA table_info({table})")}
        for name, form in columns.items():
            if name not in present:
                db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {form}")
    db.execute(UNTOLD)
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts_once'").fetchall():
        db.executescript(ONCE)


DROPPED_AT_ONCE = 200
"""Jobs that are deleted per transaction when the history is too large."""


class Session(ABC):
    """A connection, used by one thread at a time."""

    @abstractmethod
    def run(self, sql: str, values: Any = ()) -> Iterable[Any]:
        """Run a statement and return its rows."""

    @abstractmethod
    def scan(self, sql: str, values: Any = ()) -> Iterator[Any]:
        """Yield the rows of a query without holding all of them in memory."""

    @abstractmethod
    def run_many(self, sql: str, rows: list[Any]) -> None: ...

    @abstractmethod
    def writing(self) -> AbstractContextManager[object]:
        """Run the statements of a block in one transaction: all of them take effect, or none."""

    @abstractmethod
    def make_durable(self) -> None:
        """Make the session's later writes survive a power failure."""

    @abstractmethod
    def close(self) -> None: ...

    # Expressions

    @abstractmethod
    def members(self, name: str) -> str:
        """Return an SQL query for the strings in the JSON list that the parameter `name` holds."""

    @abstractmethod
    def entries(self, column: str) -> str:
        """Return an SQL table with the columns `key` and `value`, for the JSON object in a column."""

    @abstractmethod
    def matches(self, column: str, pattern: str) -> tuple[str, dict[str, Any]]:
        """Return an SQL condition that is true if a column matches a shell pattern, and its parameters."""

    # Size and damage

    @abstractmethod
    def damage(self) -> str:
        """Return what the database finds wrong with its own file; empty if nothing."""

    @abstractmethod
    def excess(self, size: int) -> int:
        """Return the number of jobs to delete now because the history is larger than `size` bytes."""


class Tables(ABC):
    """A database with the tables of a history."""

    where: str
    """The place of the history, for messages."""

    @abstractmethod
    def create(self) -> None:
        """Create the tables that are missing."""

    @abstractmethod
    def session(self) -> AbstractContextManager[Session]:
        """Open a session. Failures of the database become `JournalError`s."""

    @abstractmethod
    def is_of_a_row(self, problem: Exception) -> bool:
        """True if an error is caused by one of the rows, and not by the database or its disk."""


def tables_at(place: str | os.PathLike[str]) -> Tables:
    """Return the tables in an SQLite file, or in the PostgreSQL database of an address."""
    if not is_url(place):
        return SqliteTables(place)
    need_driver()
    from fairlead.history.pgsession import PostgresTables

    return PostgresTables(str(place))


class SqliteTables(Tables):
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.where = os.fspath(path)

    def create(self) -> None:
        with self.session() as session, session.writing():
            assert isinstance(session, SqliteSession)
            session.db.execute("PRAGMA journal_mode = WAL")
            create_tables(session.db)

    @contextmanager
    def session(self) -> Iterator[Session]:
        try:
            db = sqlite3.connect(self.where, timeout=10.0, check_same_thread=False)
        except sqlite3.Error as problem:
            raise self._unreadable(problem) from problem
        try:
            db.execute("PRAGMA synchronous = NORMAL")
            db.create_function("holds", 2, _holds, deterministic=True)
            yield SqliteSession(db)
        except sqlite3.Error as problem:
            if self.is_of_a_row(problem):
                raise
            raise self._unreadable(problem) from problem
        finally:
            db.close()

    def _unreadable(self, problem: sqlite3.Error) -> JournalError:
        return JournalError(f"{self.where}: {problem}; move the file away to begin a new history")

    def is_of_a_row(self, problem: Exception) -> bool:
        return not (
            isinstance(problem, sqlite3.OperationalError | sqlite3.InternalError | OSError | MemoryError | JournalError)
            or type(problem) is sqlite3.DatabaseError
        )


class SqliteSession(Session):
    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def run(self, sql: str, values: Any = ()) -> Iterable[Any]:
        return self.db.execute(sql, values)

    def scan(self, sql: str, values: Any = ()) -> Iterator[Any]:
        yield from self.db.execute(sql, values)

    def run_many(self, sql: str, rows: list[Any]) -> None:
        self.db.executemany(sql, rows)

    def writing(self) -> AbstractContextManager[object]:
        return self.db

    def make_durable(self) -> None:
        self.db.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        self.db.close()

    def members(self, name: str) -> str:
        return f"SELECT value FROM json_each(:{name})"

    def entries(self, column: str) -> str:
        return f"json_each({column})"

    def matches(self, column: str, pattern: str) -> tuple[str, dict[str, Any]]:
        # The patterns of `fnmatch` never take exponential time; those of SQLite's GLOB may.
        match: Callable[[str], object] = re.compile(fnmatch.translate(pattern)).match
        self.db.create_function("matches", 1, lambda name: match(name) is not None)
        return f"matches({column})", {}

    def damage(self) -> str:
        [(found,)] = self.db.execute("PRAGMA quick_check(1)").fetchall()
        return "" if found == "ok" else str(found)

    def excess(self, size: int) -> int:
        # Free pages of deleted rows do not count, because SQLite uses them again.
        pages, free, page = (
            self.db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return DROPPED_AT_ONCE if (pages - free) * page > size else 0


def _holds(indices: str, index: int) -> bool:
    return index in Ranges(msgspec.json.decode(indices, type=list[int]))


def mark_copied(db: Session, partition: str, node: str, tasks: Tasks) -> None:
    """Record that the logs of tasks were copied from their node."""
    indices = msgspec.json.encode(tasks.indices).decode()
    row = (partition, tasks.number, tasks.stage, tasks.attempt, indices, node)
    db.run("INSERT INTO copied VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)


def not_copied(db: Session, partition: str, nodes: list[str]) -> list[tuple[str, Tasks]]:
    """Return the ended tasks on these nodes whose logs were not copied, each with its node, the oldest first.

    Deletes the rows of `copied` for all other nodes, which no longer exist. Names of nodes are not used again.
    """
    among = f"node IN ({db.members('nodes')})"
    values: dict[str, Any] = {"partition": partition, "nodes": msgspec.json.encode(nodes).decode()}
    db.run(f"DELETE FROM copied WHERE partition = :partition AND NOT {among}", values)
    copied: dict[tuple[int, str, int], Ranges] = {}
    query = f"SELECT number, stage, attempt, indices FROM copied WHERE partition = :partition AND {among}"
    for number, stage, attempt, indices in db.run(query, values):
        done = copied.setdefault((number, stage, attempt), Ranges())
        flat = _flat(indices)
        done.add(difference(flat, done.overlap(flat)))
    query = (
        "SELECT job, number, stage, attempt, indices, node FROM attempts "
        f"WHERE partition = :partition AND tasks > 0 AND {among} ORDER BY rowid"
    )
    missing: list[tuple[str, Tasks]] = []
    for job, number, stage, attempt, indices, node in db.run(query, values):
        flat = _flat(indices)
        done = copied.get((number, stage, attempt), Ranges())
        rest = difference(flat, done.overlap(flat))
        if rest:
            missing.append((node, Tasks(job, number, stage, attempt, rest)))
    return missing


def _flat(indices: str) -> tuple[int, ...]:
    return msgspec.json.decode(indices, type=tuple[int, ...])
