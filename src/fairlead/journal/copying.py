"""Copies a whole journal into an empty one of the same or of the other kind, and compares them at the end.

Epochs go on in the copy, so that agents follow its servers as they followed those of the original.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.journal.base import JournalError
from fairlead.journal.chained import ChainedJournal

Told = Callable[[str, int], None]
"""Called with a stream or table and the number of its rows that were copied."""


def copy_journal(source: ChainedJournal, target: ChainedJournal, told: Told) -> None:
    """Copy all streams with their snapshots. No server may use either journal."""
    for journal in (source, target):
        leader = journal.held_by()
        if leader:
            raise JournalError(f"{journal.path}: the server {leader} runs on it; stop all its servers first")
    if target.reigned():
        raise JournalError(f"{target.path}: there is a journal already; name an empty place")
    streams = source.reigned()
    with target.adopting():
        for stream in streams:
            target.adopt(stream, *source.copied_from(stream))
    for stream in streams:
        for seq in reversed(source.saved_snapshots(stream)):
            snapshot = source.load_snapshot(stream, seq)
            if snapshot is not None:  # a damaged one is of no use
                target.save_snapshot(stream, seq, snapshot.payload)
    for stream in streams:
        told(stream, _compare(source, target, stream))


def _compare(source: ChainedJournal, target: ChainedJournal, stream: str) -> int:
    """Read a stream of both journals, and return the number of its records. Raise if they differ."""
    row, tail, _ = source.copied_from(stream)
    copied, copied_tail, _ = target.copied_from(stream)
    # The digest of the last record covers all records before it; reading checks each record against its own.
    same = row[1:] == copied[1:] and tail == copied_tail
    count = sum(1 for _ in target.read(stream, copied.base))
    if not same or count != tail.seq - row.base or source.snapshot(stream) != target.snapshot(stream):
        raise JournalError(f"{target.path}: stream {stream!r} is not equal to its original; remove the copy")
    return count
