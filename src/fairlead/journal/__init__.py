"""Durable streams of changes: the interface, a journal in memory for tests, and one on SQLite.

A journal stores opaque bytes; `codec` gives them their meaning.
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
