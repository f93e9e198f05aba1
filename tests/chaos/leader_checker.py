"""Checks leadership in a trial, by leases and epochs alone: which server may lead, write, serve and give orders."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.journal.codec import stream_of
from tests.chaos.checkers import need


class Reign(msgspec.Struct):
    epoch: int
    server: str
    until: float
    """When its lease ends, by the clock of the database."""


class LeaderChecker:
    """Checks that leases are not taken early, that only the newest leader writes, and that agents obey no earlier one.

    It observes the shared store (`shared_journal.Watch`), and servers and agents report to it what they serve and obey.
    """

    def __init__(self, partition: str, clock: Callable[[], float]) -> None:
        self._stream = stream_of(partition)
        self._clock = clock
        self._reigns: dict[str, Reign] = {}
        self._of_epoch: dict[int, str] = {}
        """Epoch of the partition → the server that began it."""
        self._obeyed: dict[str, int] = {}
        """Node → the highest epoch of an order that it followed."""

    def began(self, stream: str, epoch: int, server: str, until: float) -> None:
        before = self._reigns.get(stream, Reign(0, "", 0.0))
        need(epoch > before.epoch, f"{server} begins epoch {epoch} of {stream} after epoch {before.epoch}")
        free = before.server in ("", server) or before.until <= self._clock()
        need(free, f"{server} takes {stream}, and the lease of {before.server} lasts until {before.until}")
        self._reigns[stream] = Reign(epoch, server, until)
        if stream == self._stream:
            self._of_epoch[epoch] = server

    def renewed(self, stream: str, epoch: int, server: str, until: float) -> None:
        reign = self._reigns[stream]
        need((reign.epoch, reign.server) == (epoch, server), f"{server} renews the lease of {reign.server}: {stream}")
        reign.until = until

    def appended(self, stream: str, epoch: int, server: str) -> None:
        reign = self._reigns[stream]
        need(
            (reign.epoch, reign.server) == (epoch, server),
            f"{server} writes to {stream} under epoch {epoch}, and {reign.server} leads under epoch {reign.epoch}",
        )

    def serves(self, server: str, epoch: int) -> None:
        """Called when a server accepts a request or an agent under an epoch."""
        newest = self._reigns[self._stream].epoch
        need(epoch == newest, f"{server} serves under epoch {epoch}, and epoch {newest} has begun")

    def obeyed(self, node: str, epoch: int, server: str) -> None:
        """Called when an agent follows an order from a server."""
        before = self._obeyed.get(node, 0)
        need(epoch >= before, f"{node} obeys {server} under epoch {epoch}, and obeyed epoch {before} before")
        owner = self._of_epoch.get(epoch, server)
        need(owner == server, f"{node} obeys {server} under epoch {epoch}, which {owner} began")
        self._obeyed[node] = epoch
