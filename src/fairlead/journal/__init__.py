"""Durable streams of changes: the contract, one in memory for tests, one on SQLite.

The journal stores opaque bytes and knows nothing of what they mean.
"""

from fairlead.journal.base import (
    Damaged,
    Fenced,
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
from fairlead.journal.memory import MemoryJournal
from fairlead.journal.sql import SqliteJournal

__all__ = [
    "Damaged",
    "Fenced",
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
