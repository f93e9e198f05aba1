"""Shared state of the control plane: the partitions that this server leads and follows, and current problems.

`Control` answers requests, `Looking` decides which partitions to lead, `Leading` starts and stops leading, and
`Configuring` applies configurations. All of them run in one asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from fairlead.api.following import FollowedPartition
from fairlead.api.problems import Unserved
from fairlead.api.service import AfterCycle, PartitionService
from fairlead.api.walltime import steady_wall
from fairlead.core.cluster import NOTHING, ClusterConfigured
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.reader import suggestion
from fairlead.core.resources import shown
from fairlead.core.settings import DEFAULT_CONFIG, PartitionConfig
from fairlead.engines.base import Engine
from fairlead.journal.base import Journal
from fairlead.journal.codec import stream_of
from fairlead.journal.roster import Alone, Roster, Standing
from fairlead.pools.service import PoolService
from fairlead.writer.clock import Steady
from fairlead.writer.cluster import Configuration
from fairlead.writer.loop import WriterThread
from fairlead.writer.observer import Observer

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a failed control plane starts again: after the first failure, and at most."""
LAPSED = "the lease of this server ended before it could be renewed; another server may lead now"
CLOSING = "the server is closing"
SILENT = "the database does not answer this server"
LOOK_AGAIN = 0.02


class Seat:
    """A journal object and its thread: for one stream that this server leads, or for all streams that it reads."""

    def __init__(self, thread: WriterThread) -> None:
        self.thread = thread
        self.journal: Journal | None = None
        self.led = ""
        """The stream that is led through this seat."""
        self.cause = ""
        """Why the seat is broken; empty if it works."""
        self.ended = False

    def opened(self, open_journal: Callable[[], Journal]) -> Journal:
        """Return the journal, opened on first use. Call it in the seat's thread."""
        if self.journal is None:
            self.journal = open_journal()
        return self.journal


class Plane:
    """Shared state of the control plane."""

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        engine: Engine,
        observers: Sequence[Observer] = (),
        first: Mapping[str, PartitionConfig] | None = None,
        after_cycle: AfterCycle = lambda partition, seq: None,
        note: Callable[[str], None] = lambda text: None,
        pools: PoolService | None = None,
        wall: Callable[[], int] | None = None,
        steady: Steady = monotonic,
        thread: Callable[[], WriterThread] = WriterThread,
        leads: Callable[[str], None] = lambda partition: None,
        roster: Roster | None = None,
    ) -> None:
        """Take the arguments of `Control`."""
        self.on_lead = leads
        self.wall = wall or steady_wall()
        self.steady = steady
        self.new_thread = thread
        self.open_journal = open_journal
        self.engine = engine
        self.observers = observers
        self.first = dict(first) if first else {"default": DEFAULT_CONFIG}
        self.after_cycle = after_cycle
        self.note = note
        self.pools = pools or PoolService()
        """By default a service without providers: ordered nodes never arrive."""
        self.apart = roster is not None
        """True if several servers share the journal."""
        self.roster = roster or Alone()
        self.served: dict[str, PartitionService] = {}
        self.followed: dict[str, FollowedPartition] = {}
        self.at_work: dict[str, asyncio.Task[None]] = {}
        """Stream → the work in progress to lead it, follow it or give it up."""
        self.seats: dict[str, Seat] = {}
        """Stream that this server leads or is about to → its seat."""
        self.reader: Seat | None = None
        """The seat that reads the streams of other servers."""
        self.roster_seat: Seat | None = None
        self.configuration: Configuration | None = None
        """The configuration stream, if this server leads it."""
        self.configured: ClusterConfigured = NOTHING
        self.found: list[str] = []
        """The streams found when the journal was opened. Only for a journal that no other server uses."""
        self.standing = Standing("", (), {})
        self.heard = 0.0
        """When the last heartbeat was sent."""
        self.able = True
        """False if this installation cannot lead, for example because a policy is missing or a journal is too new."""
        self.started = False
        """True after the first reconcile pass. From then on problems are noted, not raised."""
        self.problem = "starting"
        self.problems: dict[str, str] = {}
        """Stream → why this server does not lead it although it should."""
        self.woken = asyncio.Event()

    @property
    def now(self) -> Micros:
        """The time of the writers' clocks."""
        return max((service.now for service in self.served.values()), default=self.wall() // 1000)

    def unserved(self) -> str:
        """Return why this server cannot answer requests; empty if it can."""
        return self.problem or (SILENT if self.steady() > self.heard + self.roster.lasts else "")

    def need_serving(self) -> None:
        problem = self.unserved()
        if problem:
            raise Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    def names(self) -> list[str]:
        """Return the names of all partitions."""
        return [name for name, _ in self.configured.partitions]

    def named(self, name: str = "") -> str:
        """Return the name of a partition that exists; without a name, the only one, or the one called default."""
        names = self.names()
        if not name:
            name = names[0] if len(names) == 1 else "default"
        if name not in names:
            raise Refused(
                "partition",
                f"there is no partition {shown(name)}{suggestion(name, names)}; name one of {', '.join(names[:20])}",
                "missing",
            )
        return name

    def not_led(self, stream: str, what: str) -> Unserved:
        standing = self.standing
        leader = standing.leader(stream) if standing.holder(stream) != standing.me else ""
        if leader and stream not in self.problems:
            return Unserved("standby", f"{leader} leads {what}; send the request there", 1, leader)
        problem = self.problems.get(stream) or f"no server leads {what} now"
        return Unserved("unavailable", f"{problem}; ask again in a moment", 1)

    def left_over(self) -> list[str]:
        """Return partitions that have records but are not in the configuration; they have to be removed."""
        prefix, names = stream_of(""), self.names()
        streams = [stream for stream, lease in self.standing.leases.items() if lease.seq] if self.apart else self.found
        found = [stream.removeprefix(prefix) for stream in streams if stream.startswith(prefix)]
        return [name for name in found if name not in names]
