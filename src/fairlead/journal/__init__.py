"""Durable streams of changes: the interface, a journal in memory for tests, one on SQLite and one on PostgreSQL.

A journal stores opaque bytes; `codec` gives them their meaning. `opening` opens the right one; `postgresql` needs a
package that is not always installed, so it is not imported here.
"""

from fairlead.journal.base import (
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
from fairlead.journal.memory import MemoryJournal
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
