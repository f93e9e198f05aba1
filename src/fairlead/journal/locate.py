"""Opens a journal by its location: the path of an SQLite file, or the address of a PostgreSQL database."""

from __future__ import annotations

import os

from fairlead.journal.chained import ChainedJournal
from fairlead.journal.journal import JournalError
from fairlead.journal.sql import SqliteJournal

SCHEMES = ("postgresql://", "postgres://")


def is_url(where: str | os.PathLike[str]) -> bool:
    """True if a location is the address of a PostgreSQL database."""
    return isinstance(where, str) and where.startswith(SCHEMES)


def need_driver() -> None:
    """Raise `JournalError` if the package for PostgreSQL is missing."""
    try:
        import psycopg  # noqa: F401
    except ImportError as problem:
        raise JournalError(
            f"PostgreSQL needs a package that is missing here ({problem}); "
            "install it with: pip install 'fairlead[postgresql]'"
        ) from problem


def open_journal(where: str | os.PathLike[str], read_only: bool = False) -> ChainedJournal:
    """Open the journal in a file or a database. No reign is begun."""
    if not is_url(where):
        return SqliteJournal(where, read_only=read_only)
    need_driver()
    from fairlead.journal.postgresql import PostgresJournal

    return PostgresJournal(str(where), read_only=read_only)
