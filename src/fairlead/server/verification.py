"""Verifies a journal, for `fairlead journal verify`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fairlead.journal.locate import is_url, open_journal
from fairlead.journal.verify import Progress, StreamReport, verify
from fairlead.server.failure import storage_problems_as_failed


def verify_journal(place: str | os.PathLike[str], progress: Progress) -> Iterator[StreamReport]:
    """Check a journal, in a file or a database, and yield a report on each stream."""
    with storage_problems_as_failed(), open_journal(place, read_only=True) as journal:
        yield from verify(journal, progress)


def shown_place(place: str) -> str:
    """Return the location of a journal for messages, without passwords."""
    if not is_url(place):
        return place
    from fairlead.journal.pgconnection import shown_url

    return shown_url(place)
