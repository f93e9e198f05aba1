"""Durable streams of changes: the interface, and journals in memory (for tests), on SQLite and on PostgreSQL.

A journal stores opaque bytes; `codec` encodes changes. `opening` opens a journal by its location. `postgresql` is not
imported here, because it needs a package that is not always installed.
"""

from fairlead.journal.in_memory import MemoryJournal
from fairlead.journal.journal import (
    Damaged,
    Fenced,
    Held,
    Journal,
    JournalError,
    Locked,
    NotWritten,
    Pruned,
    Record,
    Snapshot,
    TooNew,
    UnknownOutcome,
)
from fairlead.journal.sql import SqliteJournal

__all__ = [
    "Damaged",
    "Fenced",
    "Held",
    "Journal",
    "JournalError",
    "Locked",
    "MemoryJournal",
    "NotWritten",
    "Pruned",
    "Record",
    "Snapshot",
    "SqliteJournal",
    "TooNew",
    "UnknownOutcome",
]
