"""The leases of a server and of others, measured by its own steady clock.

The clock of a database may be set, so the time that it says a lease ends is not enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

LEASE = 3.0
"""Seconds that a lease lasts after its last renewal."""
RENEWALS = 4
"""Number of renewals during the time of a lease."""
EARLY = 0.1
"""Fraction of a lease by which it ends earlier here than in the database, because clocks run at different speeds."""


class Leases:
    """The streams that a server leads, and when each lease was last renewed. Several threads may use it."""

    def __init__(self, lease: float, steady: Callable[[], float] = monotonic) -> None:
        self._lease = lease
        self._steady = steady
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[int, float]] = {}
        """Stream → its epoch, and when the last successful renewal was sent, by the clock of this machine."""

    def keep(self, stream: str, epoch: int, sent: float) -> None:
        """Add a lease that was requested at the time `sent`. In the database it began at that time or later."""
        with self._lock:
            self._streams[stream] = (epoch, sent)

    def forget(self, stream: str) -> None:
        with self._lock:
            self._streams.pop(stream, None)

    def renew(self, extend: Callable[[str, int], bool]) -> None:
        """Renew all leases by `extend`, which returns False if this server has lost the lease of a stream.

        If `extend` raises, the remaining leases are not renewed and end by themselves.
        """
        with self._lock:
            kept = {stream: epoch for stream, (epoch, _) in self._streams.items()}
        for stream, epoch in kept.items():  # one by one, so that a locked row delays no other
            sent = self._steady()
            extended = extend(stream, epoch)
            with self._lock:
                if extended and self._streams.get(stream, (0, 0.0))[0] == epoch:
                    self._streams[stream] = (epoch, sent)

    def leads_until(self) -> float:
        """Return the time (`time.monotonic`) until which all leases certainly last."""
        with self._lock:
            oldest = min((sent for _, sent in self._streams.values()), default=None)
        return float("inf") if oldest is None else oldest + self._lease * (1 - EARLY)


class Sightings:
    """When this process first saw the present end of each lease of other servers. Several threads may use it.

    A server that lives renews its lease, so an end that stays the same for as long as the lease lasts is over, even if
    the clock of the database was set back since.
    """

    def __init__(self, steady: Callable[[], float] = monotonic) -> None:
        self._steady = steady
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[object, float]] = {}
        """Lease → its end as the database has it, and when that was first seen."""

    def left(self, name: str, end: object, left: float, lasts: float) -> float:
        """Return how many seconds a lease still lasts; `left` is that time by the clock of the database.

        A lease lasts `lasts` seconds after a renewal; 0 if that is not known.
        """
        now = self._steady()
        with self._lock:
            seen, since = self._seen.get(name, (None, now))
            if seen != end:
                since = now
                self._seen[name] = (end, now)
        return min(left, since + lasts - now) if lasts else left
