"""Open connections: how many there may be, and for whom places are kept.

A connection is a stranger's until a valid token came with a request on it. Strangers never keep others out: when they
are too many, from one address or in all, the oldest of them is closed. Users have a bound each, and cannot use the
places that are kept for agents and operators.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

import msgspec

from fairlead.api.tokens import Token

Client = tuple[str, int]
"""The address and the port of the other end."""

MAX_CONNECTIONS = 10_000
DESCRIPTORS = 128
"""File descriptors that are left for everything else."""


class Shares(msgspec.Struct, frozen=True):
    """How many of the connections each kind of caller may have."""

    most: int
    address: int
    """Of one address, without a token."""
    strangers: int
    """Without a token, in all."""
    user: int
    """Of one user."""
    users: int
    """Of all users. What is left of `most` is for agents and operators."""


def shares(most: int) -> Shares:
    return Shares(most, max(1, most // 8), max(1, most // 4), max(1, most // 4), max(1, most - most // 8))


def most_connections() -> int:
    """The number of connections that this process has file descriptors for, and no more than `MOST`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, min(MAX_CONNECTIONS, soft - DESCRIPTORS))


class Refusal(Exception):
    """A connection that may not be used; the message says why and what to do."""


class Connections:
    def __init__(self, most: int = 0) -> None:
        """`most` connections at a time; 0 means as many as there are file descriptors for."""
        self.shares = shares(most or most_connections())
        self._strangers: dict[Client, Callable[[], None]] = {}
        """How each is closed, the oldest first."""
        self._by_address: dict[str, dict[Client, None]] = {}
        """Address → its strangers, the oldest first."""
        self._known: dict[Client, str] = {}
        """Connections with a valid token → the user; empty for agents and operators."""
        self._by_user: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def enter(self, client: Client, close: Callable[[], None]) -> bool:
        """Take in a new connection; False if there is no place. A stranger that has been here longer may have to go."""
        if len(self) >= self.shares.most and not self._strangers:
            return False
        near = _near(client[0])
        if len(self._by_address.get(near, ())) >= self.shares.address:
            self._turn_out(next(iter(self._by_address[near])))
        elif len(self._strangers) >= self.shares.strangers or len(self) >= self.shares.most:
            self._turn_out(next(iter(self._strangers)))
        self._strangers[client] = close
        self._by_address.setdefault(near, {})[client] = None
        return True

    def stay(self, client: Client, close: Callable[[], None]) -> bool:
        """Note how a connection is closed from now on; False if it had to go meanwhile."""
        if client in self._strangers:
            self._strangers[client] = close
        return client in self._strangers

    def leave(self, client: Client) -> None:
        """Forget a connection that is over."""
        if client in self._strangers:
            self._forget_stranger(client)
        user = self._known.pop(client, None)
        if user:
            self._uncount(user)

    def trust(self, client: Client, caller: Token | None = None) -> None:
        """Note that a valid token came on a connection, or proof of a node. `Refusal` if its user has too many."""
        user = caller.user if caller is not None and caller.role == "user" else ""
        if self._known.get(client) == user or (client not in self._known and client not in self._strangers):
            return
        if user and self._by_user[user] >= self.shares.user:
            raise Refusal(f"{self.shares.user} connections of user {user} are open; close some")
        if user and self._by_user.total() >= self.shares.users:
            raise Refusal("all connections for users are taken; ask again in a moment")
        self.leave(client)
        self._known[client] = user
        if user:
            self._by_user[user] += 1

    def _turn_out(self, client: Client) -> None:
        close = self._strangers[client]
        self._forget_stranger(client)
        close()

    def _forget_stranger(self, client: Client) -> None:
        del self._strangers[client]
        near = _near(client[0])
        del self._by_address[near][client]
        if not self._by_address[near]:
            del self._by_address[near]

    def _uncount(self, user: str) -> None:
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]


@lru_cache(10_000)
def _near(host: str) -> str:
    """The address that connections are counted by: of IPv6 the first 64 bits, which one machine may choose within."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{int(address) >> 64:x}"
    return host
