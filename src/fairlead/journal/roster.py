"""The servers of one journal: which are up, and which leads which stream.

`pgroster` keeps this in a database. `Alone` is for a journal that only one server uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Member(msgspec.Struct, frozen=True):
    """A server that is up."""

    id: str
    address: str
    version: int = 0
    """The version of the configuration that it knows."""
    takes: bool = True
    """False if it drains, or cannot lead: it leads nothing from now on."""
    draining: bool = False


class Lease(msgspec.Struct, frozen=True):
    """A stream and the server that leads it. `holder` is empty if there is none."""

    holder: str = ""
    address: str = ""
    seq: int = 0
    """The last record of the stream."""


class Standing(msgspec.Struct, frozen=True):
    """The servers and the streams at one time, as one of the servers sees them."""

    me: str
    members: Sequence[Member]
    leases: Mapping[str, Lease]

    def holder(self, stream: str) -> str:
        return self.leases.get(stream, Lease()).holder

    def leader(self, stream: str) -> str:
        """Return the address of the server that leads a stream; empty if there is none."""
        return self.leases.get(stream, Lease()).address


class Roster(Protocol):
    """The servers of a journal, for one of them. One thread uses it. Every method may raise `JournalError`."""

    lasts: float
    """Seconds after the last look until which other servers count this one."""
    every: float
    """Seconds between two looks."""

    def look(self, version: int, takes: bool) -> Standing:
        """Tell the other servers that this one is up, and return what they told."""

    def listen(self, woken: Callable[[], None]) -> None:
        """Call `woken`, in any thread, when another server has something to tell."""

    def call(self) -> None:
        """Wake the other servers up: a look will show them something new."""

    def drain(self, member: str, draining: bool) -> bool:
        """Tell a server to lead nothing, or to lead again. False if no other server would lead."""

    def close(self) -> None:
        """Leave: the other servers do not count this one any more."""


class Alone:
    """The roster of a journal that no other server uses."""

    lasts, every = float("inf"), 5.0
    """A look is only needed for a partition that refused the configuration; all else wakes the server."""

    def look(self, version: int, takes: bool) -> Standing:
        return Standing("alone", (Member("alone", "", version),), {})

    def listen(self, woken: Callable[[], None]) -> None:
        pass

    def call(self) -> None:
        pass

    def drain(self, member: str, draining: bool) -> bool:
        return False

    def close(self) -> None:
        pass


def places(counts: Mapping[str, int], streams: int) -> dict[str, int]:
    """Return how many streams each server should lead: equal numbers, with as few moves as possible.

    `counts` has the streams that each server leads now.
    """
    if not counts:
        return {}
    least, more = divmod(streams, len(counts))
    order = sorted(counts, key=lambda server: (-counts[server], server))
    return {server: least + (at < more) for at, server in enumerate(order)}


def spread(standing: Standing, streams: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the free streams that this server takes, and the streams that it gives up: at most one at a time.

    A stream is given up only while every stream has a leader.
    """
    held = {stream: standing.holder(stream) for stream in streams}
    counts = {member.id: 0 for member in standing.members if member.takes}
    for holder in held.values():
        if holder in counts:
            counts[holder] += 1
    mine = sorted(stream for stream, holder in held.items() if holder == standing.me)
    free = sorted(stream for stream, holder in held.items() if not holder)
    place = places(counts, len(streams)).get(standing.me, 0)
    if counts and not free and len(mine) > place:
        return [], mine[-1:]
    return free[: max(0, place - len(mine))], []
