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

from fairlead.core.ranges import Ranges
from fairlead.history.schema import create_tables
from fairlead.journal.journal import JournalError
from fairlead.journal.locate import is_url, need_driver

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
