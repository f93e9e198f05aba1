"""Limits on open connections, for each kind of caller.

A connection is a stranger until a valid token or node key has arrived on it. If there are too many strangers, from one
address or in total, the oldest is closed, so that strangers never block other callers. Each user has a limit, and some
connections are reserved for agents and operators.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

import msgspec

from fairlead.identity.tokens import Token
from fairlead.wire.unserved import Unserved

Client = tuple[str, int]
"""Address and port of the client."""

MAX_CONNECTIONS = 10_000
DESCRIPTORS = 128
"""File descriptors that are reserved for other uses."""


class Shares(msgspec.Struct, frozen=True):
    """Largest numbers of open connections."""

    most: int
    """All connections together."""
    address: int
    """Connections from one address without a token."""
    strangers: int
    """All connections without a token together."""
    user: int
    """Connections of one user."""
    users: int
    """Connections of all users together. The rest of `most` is reserved for agents and operators."""


def shares(most: int) -> Shares:
    """Divide `most` connections among the kinds of callers."""
    return Shares(most, max(1, most // 8), max(1, most // 4), max(1, most // 4), max(1, most - most // 8))


def most_connections() -> int:
    """Return the number of connections that this process has file descriptors for, at most `MAX_CONNECTIONS`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, min(MAX_CONNECTIONS, soft - DESCRIPTORS))


class Connections:
    """The open connections of a server, counted by kind of caller."""

    def __init__(self, most: int = 0) -> None:
        """Allow `most` connections at a time. 0 means one for each available file descriptor."""
        self.shares = shares(most or most_connections())
        self._strangers: dict[Client, Callable[[], None]] = {}
        """Stranger → function that closes it, oldest first."""
        self._by_address: dict[str, dict[Client, None]] = {}
        """Address → its strangers, oldest first."""
        self._trusted: dict[Client, str] = {}
        """Connection with a valid token or node key → its user; empty for agents and operators."""
        self._by_user: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._trusted)

    def enter(self, client: Client, close: Callable[[], None]) -> bool:
        """Count a new connection, and close the oldest stranger if there are too many. False if that is not enough."""
        if len(self) >= self.shares.most and not self._strangers:
            return False
        near = network_of(client[0])
        if len(self._by_address.get(near, ())) >= self.shares.address:
            self._close(next(iter(self._by_address[near])))
        elif len(self._strangers) >= self.shares.strangers or len(self) >= self.shares.most:
            self._close(next(iter(self._strangers)))
        self._strangers[client] = close
        self._by_address.setdefault(near, {})[client] = None
        return True

    def stay(self, client: Client, close: Callable[[], None]) -> bool:
        """Replace the function that closes a stranger. Return False if the stranger has been closed already."""
        if client in self._strangers:
            self._strangers[client] = close
        return client in self._strangers

    def is_stranger(self, client: Client) -> bool:
        """True if no valid token or node key has arrived on a connection."""
        return client not in self._trusted

    def leave(self, client: Client) -> None:
        """Remove a connection that has ended."""
        if client in self._strangers:
            self._forget_stranger(client)
        user = self._trusted.pop(client, None)
        if user:
            self._uncount(user)

    def trust(self, client: Client, caller: Token | None = None) -> None:
        """Count a connection for its user, or for agents and operators. Raise `Unserved` if the user has too many.

        `caller` is the token that arrived on it; None for the key of a node.
        """
        user = caller.user if caller is not None and caller.role == "user" else ""
        if self._trusted.get(client) == user or (client not in self._trusted and client not in self._strangers):
            return
        if user and self._by_user[user] >= self.shares.user:
            raise Unserved("too many", f"{self.shares.user} connections of user {user} are open; close some", 10)
        if user and self._by_user.total() >= self.shares.users:
            raise Unserved("too many", "all connections for users are taken; ask again in a moment", 10)
        self.leave(client)
        self._trusted[client] = user
        if user:
            self._by_user[user] += 1

    def _close(self, client: Client) -> None:
        close = self._strangers[client]
        self._forget_stranger(client)
        close()

    def _forget_stranger(self, client: Client) -> None:
        del self._strangers[client]
        near = network_of(client[0])
        del self._by_address[near][client]
        if not self._by_address[near]:
            del self._by_address[near]

    def _uncount(self, user: str) -> None:
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]


@lru_cache(10_000)
def network_of(host: str) -> str:
    """Return the address by which connections are counted. For IPv6, it is the /64 prefix of one network."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{int(address) >> 64:x}"
    return host
