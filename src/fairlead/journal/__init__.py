"""The journal: durable streams of records, in memory (for tests), on SQLite or on PostgreSQL.

A record is opaque bytes; `codec` encodes changes as records. `locate` opens a journal by its path or address.
`postgresql` is not imported here, because it needs a package that is not always installed.
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
