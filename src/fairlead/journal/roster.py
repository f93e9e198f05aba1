"""The roster of a journal: which servers are up, and which streams each of them leads.

`pgroster` stores it in a database. `Alone` is the roster of a journal that only one server uses.
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
    """The version of the configuration that this server knows."""
    takes: bool = True
    """False if the server takes no more streams, because it drains or cannot lead."""
    draining: bool = False
    program: str = ""
    """The version of the program of this server, if it is known."""


class Lease(msgspec.Struct, frozen=True):
    """The lease of a stream: the leading server and its address, both empty if no server leads."""

    holder: str = ""
    address: str = ""
    seq: int = 0
    """The last record of the stream."""


class Membership(msgspec.Struct, frozen=True):
    """The servers and leases at one time. `me` is the id of the server that has read them."""

    me: str
    members: Sequence[Member]
    leases: Mapping[str, Lease]

    def holder(self, stream: str) -> str:
        return self.leases.get(stream, Lease()).holder

    def leader(self, stream: str) -> str:
        """Return the address of the server that leads a stream; empty if no server leads it."""
        return self.leases.get(stream, Lease()).address

    def leads(self, stream: str) -> bool:
        """True if this server leads a stream."""
        return self.holder(stream) == self.me


class Roster(Protocol):
    """The roster, used by one thread of a server. Every method may raise `JournalError`."""

    lasts: float
    """Seconds after its last heartbeat until a server is no longer counted as up."""
    every: float
    """Seconds between two heartbeats."""

    def heartbeat(self, version: int, takes: bool) -> Membership:
        """Send a heartbeat of this server, and return the members and leases."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, in any thread, whenever another server calls `notify`."""

    def notify(self) -> None:
        """Wake the other servers, so that they read the roster now."""

    def drain(self, member: str, draining: bool) -> bool:
        """Tell a server to lead nothing, or to lead again. False if it is the last server that can lead."""

    def close(self) -> None:
        """Leave the roster, so that other servers no longer count this one as up."""


class Alone:
    """The roster of a journal that no other server uses."""

    lasts, every = float("inf"), 5.0
    """The server needs heartbeats only to try a configuration again that a partition refused."""

    def heartbeat(self, version: int, takes: bool) -> Membership:
        return Membership("alone", (Member("alone", "", version),), {})

    def listen(self, wake: Callable[[], None]) -> None:
        pass

    def notify(self) -> None:
        pass

    def drain(self, member: str, draining: bool) -> bool:
        return False

    def close(self) -> None:
        pass


def places(counts: Mapping[str, int], streams: int) -> dict[str, int]:
    """Return how many streams each server should lead: about equal numbers, with as few moves as possible.

    `counts` is the number of streams that each server leads now.
    """
    if not counts:
        return {}
    least, more = divmod(streams, len(counts))
    order = sorted(counts, key=lambda server: (-counts[server], server))
    return {server: least + (at < more) for at, server in enumerate(order)}


def spread(membership: Membership, streams: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the streams without a leader that this server should take, and the one stream that it should give up.

    A server gives up a stream only if every stream has a leader.
    """
    held = {stream: membership.holder(stream) for stream in streams}
    counts = {member.id: 0 for member in membership.members if member.takes}
    for holder in held.values():
        if holder in counts:
            counts[holder] += 1
    mine = sorted(stream for stream, holder in held.items() if holder == membership.me)
    free = sorted(stream for stream, holder in held.items() if not holder)
    place = places(counts, len(streams)).get(membership.me, 0)
    if counts and not free and len(mine) > place:
        return [], mine[-1:]
    return free[: max(0, place - len(mine))], []
