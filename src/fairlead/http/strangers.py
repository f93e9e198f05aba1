"""Connections and requests of strangers, callers without a valid token, at a limited rate.

Each address has a rate, and addresses take turns for the rate of all. So a flood delays other strangers of its address,
and costs users a small part of the loop's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from fairlead.http.connection_limits import Client, network_of

EACH, ALL = 200.0, 1_000.0
"""Requests of strangers per second: of one address, and of all. A second's worth of them may come at once."""
PAUSE = 0.01
"""Seconds between two looks at the waiting requests."""


class Buckets:
    """Rate limits by name, as token buckets: each holds at most `burst` and refills at `rate` per second."""

    def __init__(self, rate: float, burst: float, names: int = 10_000) -> None:
        self._rate, self._burst, self._names = rate, burst, names
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, name: str, amount: float = 1.0) -> bool:
        """Take an amount from a bucket. Return False if the bucket has less."""
        now = monotonic()
        level, since = self._levels.get(name, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= amount
        if allowed:
            if len(self._levels) >= self._names and name not in self._levels:
                self._levels.clear()  # allows too much for a moment, but limits the size of the table
            self._levels[name] = (level - amount, now)
        return allowed


class Strangers:
    """Connections of strangers that wait for their turn, to be set up or with a request."""

    def __init__(self, each: float = EACH, total: float = ALL) -> None:
        self._each = Buckets(each, each)
        self._total = Buckets(total, total)
        self._waiting: dict[str, dict[Client, Callable[[], None]]] = {}
        """Address → its connections that wait, with the functions that begin their requests, in the order of turns."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def begin(self, client: Client, start: Callable[[], None]) -> None:
        """Call `start`, now or when it is the turn of the client's address."""
        address = network_of(client[0])
        if address not in self._waiting and self._take(address):
            start()
            return
        self._waiting.setdefault(address, {})[client] = start
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._look)

    def has(self, client: Client) -> bool:
        """True if a connection waits for its turn."""
        return client in self._waiting.get(network_of(client[0]), ())

    def leave(self, client: Client) -> None:
        """Forget the request of a connection that has ended."""
        address = network_of(client[0])
        waiting = self._waiting.get(address)
        if waiting is not None and waiting.pop(client, None) is not None and not waiting:
            del self._waiting[address]

    def _look(self) -> None:
        """Begin the requests whose turn it is: one of each address, then the next of each, while the rates allow it."""
        self._timer = None
        begun = True
        while begun:
            begun = False
            for address in list(self._waiting):
                if address in self._waiting and self._take(address):
                    client = next(iter(self._waiting[address]))
                    start = self._waiting[address][client]
                    self.leave(client)
                    start()
                    begun = True
        if self._waiting:
            # The address that was first is last the next time, so that the rate of all is shared too.
            first = next(iter(self._waiting))
            self._waiting[first] = self._waiting.pop(first)
            self._timer = asyncio.get_running_loop().call_later(PAUSE, self._look)

    def _take(self, address: str) -> bool:
        return self._each.take(address) and self._total.take("")
