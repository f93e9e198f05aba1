"""Heartbeats: each tells the other servers that this one is up, and reads which servers are up and what they lead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fairlead.control.dependencies import Dependencies
from fairlead.journal.roster import Alone, Membership, Roster
from fairlead.writer.loop import WriterThread


class Heartbeat:
    """Sends heartbeats, and stores the answer to the last one."""

    def __init__(self, given: Dependencies) -> None:
        self.membership = Membership("", (), {})
        """The servers of the cluster and their leases, as of the last heartbeat."""
        self.shared = given.roster is not None
        """True if several servers may share the journal."""
        self.able = True
        """False if this installation cannot lead, for example because a policy is missing or a journal is too new."""
        self._roster: Roster = given.roster or Alone()
        self._new_thread = given.new_thread
        self._thread: WriterThread | None = None
        self._steady = given.steady
        self._sent = 0.0
        """When the last answered heartbeat was sent."""

    @property
    def seconds(self) -> float:
        """Seconds between two heartbeats."""
        return self._roster.every

    @property
    def silent(self) -> bool:
        """True if the last answered heartbeat is so old that other servers no longer count this one as up."""
        return self._steady() > self._sent + self._roster.lasts

    def start(self, wake: Callable[[], None]) -> None:
        """Prepare for heartbeats. `wake` is called, in any thread, when another server calls `notify`."""
        if self.shared:
            self._thread = self._new_thread()
        self._roster.listen(wake)

    async def send(self, version: int) -> None:
        """Send a heartbeat with the version of the configuration that this server knows."""
        sent, beat = self._steady(), partial(self._roster.heartbeat, version, self.able)
        self.membership = beat() if self._thread is None else await self._thread.alone(beat)
        self._sent = sent

    def notify(self) -> None:
        """Have the other servers start a reconcile pass, because this server changed something."""
        self._roster.notify()

    async def drain(self, member: str, draining: bool) -> bool:
        """Drain a server, so that it leads nothing, or enable it again. Return False if no other server can lead."""
        return self._thread is not None and await self._thread.alone(lambda: self._roster.drain(member, draining))

    async def close(self) -> None:
        if self._thread is not None:
            await self._thread.alone(self._roster.close)
            self._thread.close()
