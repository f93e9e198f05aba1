"""The leases of a server as its own clock sees them. That clock only ends a lease early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

LEASE = 3.0
"""Seconds that a lease lasts after its last renewal."""
RENEWALS = 4
"""Renewals in the time of a lease."""
EARLY = 0.1
"""The part of a lease by which it ends earlier here than in the database: clocks run at different speeds."""


class Leases:
    """The streams that a server leads, and when each lease was last renewed. Any thread may use it."""

    def __init__(self, lease: float, steady: Callable[[], float] = monotonic) -> None:
        self._lease = lease
        self._steady = steady
        self._lock = threading.Lock()
        self._streams: dict[str, tuple[int, float]] = {}
        """Stream → epoch, and when the last successful renewal was sent, by the clock of this machine."""

    def keep(self, stream: str, epoch: int, sent: float) -> None:
        """Add a lease that was asked for at the time `sent`. The database counts it from that time or a later one."""
        with self._lock:
            self._streams[stream] = (epoch, sent)

    def forget(self, stream: str) -> None:
        with self._lock:
            self._streams.pop(stream, None)

    def renew(self, extend: Callable[[str, int], bool]) -> None:
        """Renew all leases. `extend` renews the lease of a stream and an epoch in the database; False if it is lost.

        It may raise. Leases that were not renewed then end by themselves.
        """
        with self._lock:
            kept = {stream: epoch for stream, (epoch, _) in self._streams.items()}
        for stream, epoch in kept.items():  # one by one: a row that is locked delays no other
            sent = self._steady()
            extended = extend(stream, epoch)
            with self._lock:
                if extended and self._streams.get(stream, (0, 0.0))[0] == epoch:
                    self._streams[stream] = (epoch, sent)

    def leads_until(self) -> float:
        """Return the time of the steady clock until which all kept leases certainly last."""
        with self._lock:
            oldest = min((sent for _, sent in self._streams.values()), default=None)
        return float("inf") if oldest is None else oldest + self._lease * (1 - EARLY)
