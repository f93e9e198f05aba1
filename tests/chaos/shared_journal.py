"""A journal in memory that several servers share, with leases and a roster as on PostgreSQL.

The fault simulation uses it. `SharedStore` stands for the database, and outlives its servers. Each server has a `Link`
to the store, which tests and simulations can break. `tests/journal/test_leases.py` runs the same tests on this journal
and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Literal, Protocol

import msgspec

from fairlead.journal.in_memory import MemoryJournal
from fairlead.journal.journal import (
    NEWEST,
    Fenced,
    Held,
    Journal,
    JournalError,
    NotWritten,
    Record,
    Snapshot,
    UnknownOutcome,
)
from fairlead.journal.leases import LEASE, RENEWALS, Leases
from fairlead.journal.roster import Lease, Member, Membership

ENDED = float("-inf")


class LeaseRow(msgspec.Struct):
    """The lease of a stream. The stream itself is in `SharedStore.records`."""

    holder: str = ""
    address: str = ""
    session: int = 0
    """Only the object with this session may append."""
    expires: float = ENDED


class ServerRow(msgspec.Struct):
    address: str
    version: int
    takes: bool
    expires: float
    draining: bool = False


class Watch(Protocol):
    """An observer of the store."""

    def began(self, stream: str, epoch: int, server: str, until: float) -> None:
        """Called when a reign began, with a lease until a time of the store's clock."""

    def renewed(self, stream: str, epoch: int, server: str, until: float) -> None:
        """Called when the lease of a reign was renewed. If `until` is in the past, the lease was given up."""

    def appended(self, stream: str, epoch: int, server: str) -> None: ...


class SharedStore:
    """Streams, leases and rows of servers. Leases expire by `clock`, which stands for the clock of a database."""

    def __init__(self, clock: Callable[[], float] = monotonic, watch: Watch | None = None) -> None:
        self.clock = clock
        self.watch = watch
        self.records = MemoryJournal()
        self.leases: dict[str, LeaseRow] = {}
        self.servers: dict[str, ServerRow] = {}
        self.listeners: dict[str, Callable[[], None]] = {}
        """Server → the function that wakes it up."""
        self.sessions = count(1)

    def notify(self) -> None:
        for wake in list(self.listeners.values()):
            wake()


class Link:
    """The connection of a server to the store, and the clock of its machine.

    This base class never fails; subclasses inject faults.
    """

    def steady(self) -> float:
        return monotonic()

    def check(self) -> None:
        """Raise `JournalError` if the store cannot be reached now."""

    def loses(self) -> Literal["", "before", "after"]:
        """Return when the present append loses the connection: before its write, after it, or never (empty)."""
        return ""

    def repeat(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Make a call every `seconds`; return a function that ends the repetition.

        This base class makes no calls: tests renew leases themselves.
        """
        return lambda: None

    def wake(self, wake: Callable[[], None]) -> None:
        wake()


class SharedJournal(Journal):
    """The journal object of one server. Objects with the same server name share leases."""

    def __init__(
        self, store: SharedStore, server: str, address: str = "", lease: float = LEASE, link: Link | None = None
    ) -> None:
        self._store = store
        self._server = server
        self._address = address
        self._lease = lease
        self._link = link or Link()
        self._session = next(store.sessions)
        self._epochs: dict[str, int] = {}
        """Stream → the epoch of this object's reign."""
        self._in_doubt = False
        self._leases = Leases(lease, self._link.steady)
        self._stop_renewing: Callable[[], None] | None = None
        self._link.check()

    # Reigns and appends

    def reign(self, stream: str) -> int:
        self._claim(stream)
        sent, epoch = self._link.steady(), self._store.records.reign(stream)
        until = self._store.clock() + self._lease
        self._store.leases[stream] = LeaseRow(self._server, self._address, self._session, until)
        if self._store.watch is not None:
            self._store.watch.began(stream, epoch, self._server, until)
        self._epochs[stream] = epoch
        self._leases.keep(stream, epoch, sent)
        if self._stop_renewing is None:
            self._stop_renewing = self._link.repeat(self._lease / RENEWALS, self.renew)
        return epoch

    def renew(self) -> None:
        """Renew all leases of this object. Leases that cannot be renewed end by themselves."""
        with suppress(JournalError):
            self._leases.renew(self._extend)

    def _extend(self, stream: str, epoch: int) -> bool:
        self._link.check()
        return self._set(stream, epoch, self._store.clock() + self._lease)

    def _set(self, stream: str, epoch: int, until: float) -> bool:
        """Set the end of a lease; False if another server has taken the stream."""
        row = self._store.leases.get(stream, LeaseRow())
        if row.holder != self._server or self._store.records.epoch(stream) != epoch:
            return False
        row.expires = until
        if self._store.watch is not None:
            self._store.watch.renewed(stream, epoch, self._server, until)
        return True

    def _claim(self, stream: str) -> None:
        self._link.check()
        row = self._store.leases.get(stream, LeaseRow())
        left = row.expires - self._store.clock()
        if row.holder not in ("", self._server) and left > 0:
            raise Held(stream, row.address, left)

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        if self._epochs.get(stream) != epoch:
            raise self._refusal(stream, epoch)
        if self._in_doubt:
            raise UnknownOutcome(f"stream {stream!r}: record {seq}: refused after a write of unknown outcome; recover")
        try:
            self._link.check()
            lost = self._link.loses()
        except JournalError:
            lost = "before"
        if lost != "before":
            self._write(stream, epoch, seq, payload)
        if lost and not self._is_written(stream, epoch, seq):
            self._write(stream, epoch, seq, payload)

    def _write(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        """Write a record.

        As on PostgreSQL, refuse it unless the row of the stream has this writer's epoch and session.
        """
        if self._store.leases[stream].session != self._session:
            raise self._refusal(stream, epoch)
        self._store.records.append(stream, epoch, seq, payload)
        if self._store.watch is not None:
            self._store.watch.appended(stream, epoch, self._server)

    def _is_written(self, stream: str, epoch: int, seq: int) -> bool:
        """True if a record was written. Called after the connection was lost; reads with a new one."""
        try:
            self._link.check()
        except JournalError as problem:
            self._in_doubt = True
            raise UnknownOutcome(
                f"stream {stream!r}: record {seq}: the connection was lost, and whether it was written cannot be read "
                f"({problem}); open the journal again and recover from it"
            ) from problem
        self._session = next(self._store.sessions)
        for name, own in self._epochs.items():
            if self._set(name, own, self._store.clock() + self._lease):
                self._store.leases[name].session = self._session
        if self._store.records.last(stream) >= seq:
            [record] = [record for record in self._store.records.read(stream, seq - 1) if record.seq == seq]
            return record.epoch == epoch
        return False

    def _refusal(self, stream: str, epoch: int) -> JournalError:
        self._link.check()
        current = self._store.records.epoch(stream)
        if epoch < current:
            return Fenced(stream, epoch, current)
        return NotWritten(f"stream {stream!r}: epoch {epoch} was not begun by this object; call reign() first")

    def leads_until(self) -> float:
        return self._leases.leads_until()

    # Reading, snapshots, dropping

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        self._link.check()
        yield from self._store.records.read(stream, after)

    def last(self, stream: str) -> int:
        return self._reached.last(stream)

    def epoch(self, stream: str) -> int:
        return self._reached.epoch(stream)

    def streams(self) -> list[str]:
        return self._reached.streams()

    def snapshot(self, stream: str, upto: int = NEWEST) -> Snapshot | None:
        return self._reached.snapshot(stream, upto)

    def save_snapshot(self, stream: str, seq: int, payload: bytes) -> None:
        self._reached.save_snapshot(stream, seq, payload)

    def prune(self, stream: str, upto: int) -> None:
        self._reached.prune(stream, upto)

    def skipped(self, stream: str) -> range:
        return range(0)

    def drop(self, stream: str) -> None:
        self._claim(stream)
        self._store.records.drop(stream)
        self._store.leases[stream] = LeaseRow()
        self._epochs.pop(stream, None)
        self._leases.forget(stream)

    @property
    def _reached(self) -> MemoryJournal:
        self._link.check()
        return self._store.records

    def close(self) -> None:
        """Close the journal and give up its leases, so that another server can take over without waiting."""
        if self._stop_renewing is not None:
            self._stop_renewing()
        for stream in self._epochs:
            self._leases.forget(stream)
        with suppress(JournalError):
            self._link.check()
            given = [stream for stream, epoch in self._epochs.items() if self._set(stream, epoch, ENDED)]
            for stream in given:
                self._store.leases[stream].holder = ""
            if given:
                self._store.notify()


class SharedRoster:
    """The roster of a shared store, for one of its servers."""

    def __init__(
        self,
        store: SharedStore,
        server: str,
        address: str,
        lease: float = LEASE,
        link: Link | None = None,
        every: float = 0.25,
    ) -> None:
        self.lasts = lease
        self.every = every
        self._store = store
        self._server = server
        self._address = address
        self._link = link or Link()

    def heartbeat(self, version: int, takes: bool) -> Membership:
        self._link.check()
        now, servers = self._store.clock(), self._store.servers
        row = servers.setdefault(self._server, ServerRow(self._address, version, takes, now))
        row.version, row.takes, row.expires = version, takes, now + self.lasts
        lapsed = {lease.holder for lease in self._store.leases.values() if lease.holder and lease.expires < now}
        members = [
            Member(id, each.address, each.version, each.takes and not each.draining, each.draining)
            for id, each in sorted(servers.items())
            if each.expires > now and (id == self._server or id not in lapsed)
        ]
        leases = {
            stream: Lease(lease.holder if held else "", lease.address if held else "", self._store.records.last(stream))
            for stream, lease in self._store.leases.items()
            for held in [bool(lease.holder) and lease.expires > now]
        }
        return Membership(self._server, members, leases)

    def listen(self, wake: Callable[[], None]) -> None:
        self._store.listeners[self._server] = lambda: self._link.wake(wake)

    def notify(self) -> None:
        with suppress(JournalError):
            self._link.check()
            self._store.notify()

    def drain(self, member: str, draining: bool) -> bool:
        self._link.check()
        now, servers = self._store.clock(), self._store.servers
        others = any(
            each.takes and not each.draining and each.expires > now for id, each in servers.items() if id != member
        )
        if member not in servers or (draining and not others):
            return False
        servers[member].draining = draining
        self.notify()
        return True

    def close(self) -> None:
        self._store.listeners.pop(self._server, None)
        with suppress(JournalError):
            self._link.check()
            self._store.servers.pop(self._server, None)
        self.notify()
