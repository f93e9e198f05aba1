"""Turns inside a leaf queue behind the head, with `backfill: shortest`: the shortest expected run time first.

A `ShortestCursor` replaces a `QueueCursor` once an ask without capacity is known. It gives turns to the asks that have
had none; asks without an estimate come last. Later phases see the same asks of a lane as with other orders of turns.
"""

from __future__ import annotations

from fairlead.core.ahead.easy import NO_CAPACITY, TRY, Backfill
from fairlead.core.lanes import Lane, Place
from fairlead.core.last_runs import run_time
from fairlead.core.match.queue_cursor import QueueCursor
from fairlead.core.model import FAR, Account, Ask, Micros

Entry = tuple[Micros, Place, str, Lane, Ask]


class ShortestCursor:
    """The asks of a leaf queue by expected run time, then by their places."""

    def __init__(self, cursor: QueueCursor, backfill: Backfill) -> None:
        self.leaf = cursor.leaf
        self.open = cursor.open
        """The lanes that are not closed. All lanes close after the turn of the last ask."""
        self.full = cursor.full
        self._cursor = cursor
        cursor.by_length = True
        self._entries: list[Entry] = []
        """The asks in reverse order: the last entry has the turn."""
        noted: set[tuple[Lane, Account | None]] = set()
        for lane, ask in cursor.rest():
            prospect = backfill.prospect(lane, ask)
            if prospect == NO_CAPACITY and (lane, lane.user(ask)) not in noted and cursor.note_untried(lane, ask):
                noted.add((lane, lane.user(ask)))  # only the first ask of a user in a lane counts
            if prospect == TRY:
                length = run_time(backfill.plan.partition, ask)
                place = cursor.place(lane, ask)
                self._entries.append((FAR if length is None else length, place, lane.text, lane, ask))
        self._entries.sort(key=lambda entry: entry[:3], reverse=True)
        self._close_if_empty()

    def current(self) -> tuple[Lane, Ask]:
        """Return the ask that has the turn."""
        return self._entries[-1][3:]

    def go_on(self, after: Ask | None = None) -> None:
        """End the turn. `after`, the ask that had the turn, gets the next one too if it has more tasks."""
        if after is None or after.stage.asks[after.kind] is not after:
            self._entries.pop()
        self._close_if_empty()

    def pass_over(self, no_capacity: bool = False) -> None:
        """Continue with the next ask. The current ask keeps its place in its lane."""
        _, _, _, lane, ask = self._entries.pop()
        if no_capacity:
            self._cursor.note_no_capacity(lane, ask)
        self._close_if_empty()

    def pass_hopeless(self, backfill: Backfill) -> None:
        """Skip asks that certainly cannot start."""
        while self._entries and not self._passes(backfill, *self.current()):
            self._entries.pop()
        self._close_if_empty()

    def block(self, no_capacity: bool) -> None:
        """Block the lane of the current ask: only its asks with earmarked nodes are still tried."""
        _, _, _, lane, _ = self._entries.pop()
        self._cursor.block_but_owners(lane)
        partition = self._cursor.partition
        self._entries = [
            entry for entry in self._entries if entry[3] is not lane or partition.earmark_of(entry[4].seq) is not None
        ]
        self._close_if_empty()

    def note_limited(self, lane: Lane, ask: Ask) -> None:
        self._cursor.note_limited(lane, ask)

    def _passes(self, backfill: Backfill, lane: Lane, ask: Ask) -> bool:
        if ask.stage.asks[ask.kind] is not ask:
            return False
        prospect = backfill.prospect(lane, ask)
        if prospect == NO_CAPACITY:
            self._cursor.note_untried(lane, ask)
        return prospect == TRY

    def _close_if_empty(self) -> None:
        while self.open and not self._entries:
            self._cursor.close()
