"""Applies a configuration: tries it on all partitions, writes it to the journal, and lets each partition adopt it."""

from __future__ import annotations

import asyncio

from fairlead.control.follower import FollowedPartition
from fairlead.control.partition import PartitionService
from fairlead.control.supervisor import Supervisor
from fairlead.core.cluster_config import LeftMachine
from fairlead.core.errors import Refused
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.journal.codec import restore_remains, stream_of
from fairlead.journal.journal import Journal, JournalError
from fairlead.wire.unserved import Unserved
from fairlead.writer.clock import Steady
from fairlead.writer.cluster import try_configuration

ADOPTED = 10.0
"""Seconds to wait until all servers and partitions have adopted an applied configuration."""
PAUSE = 0.02


class Configurator:
    """Changes the configuration of the cluster, if this server leads the configuration stream."""

    def __init__(self, supervisor: Supervisor, steady: Steady) -> None:
        self._supervisor = supervisor
        self._steady = steady
        self._lock = asyncio.Lock()

    async def configure(
        self, configs: dict[str, PartitionConfig], user: str = ""
    ) -> dict[str, tuple[LeftMachine, ...]]:
        """Apply a configuration as a whole for a user. Return the machines that removed partitions leave behind.

        The configuration is tried on all partitions, then written, then adopted by each partition. If a partition has
        changed since the trial and refuses it, this raises `Refused`; the partition adopts it as soon as it can.
        """
        async with self._lock:
            self._supervisor.need_serving()
            log = self._supervisor.configuration.led_log()
            if tuple(sorted(configs.items())) == log.current.partitions:
                return {}
            removed = [name for name in self._supervisor.configuration.names() if name not in configs]
            for name, config in sorted(configs.items()):
                await self._try(name, config)
            await self._supervisor.configuration.write(log, configs)
            refusals = [
                await self._supervisor.leader.adopt_next(name, user) for name in sorted(self._supervisor.leader.served)
            ]
            await self._until_adopted()
            for refusal in filter(None, refusals):
                remedy = "the configuration was written, and this partition follows it as soon as it can"
                raise Refused(refusal.field, f"{refusal.problem}; {remedy}", refusal.code)
            return await self._machines_left(removed)

    async def _machines_left(self, removed: list[str]) -> dict[str, tuple[LeftMachine, ...]]:
        """Return the machines that removed partitions leave behind, whichever servers led the partitions."""

        def read(journal: Journal) -> dict[str, tuple[LeftMachine, ...]]:
            streams = journal.streams()
            remains = {name: restore_remains(journal, name) for name in removed if stream_of(name) not in streams}
            return {name: kept.machines for name, kept in remains.items() if kept is not None}

        return await self._supervisor.streams.reader.run(read) if removed else {}

    async def _try(self, name: str, config: PartitionConfig) -> None:
        if name not in self._supervisor.configuration.names():
            return try_configuration(Partition(name), config, self._supervisor.leader.now)
        known: PartitionService | FollowedPartition | None
        known = self._supervisor.leader.served.get(name) or self._supervisor.follower.followed.get(name)
        if known is None:
            raise self._supervisor.streams.not_led(stream_of(name), f"partition {name}")
        try:
            await known.try_configuration(config)
        except JournalError as problem:
            raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None

    async def _until_adopted(self) -> None:
        """Wait until all servers and partitions have adopted the configuration, at most `ADOPTED` seconds."""
        deadline = self._steady() + ADOPTED
        while True:
            try:
                await self._supervisor.reconcile()
            except (JournalError, OSError) as problem:
                raise Unserved("unavailable", f"{problem}; ask again in a moment", 1) from None
            await self._supervisor.streams.finish_all()
            self._supervisor.need_serving()
            if self._is_adopted() or self._steady() > deadline:
                return
            await asyncio.sleep(PAUSE)

    def _is_adopted(self) -> bool:
        configuration, served = self._supervisor.configuration, self._supervisor.leader.served
        version, names = configuration.current.version, configuration.names()
        states = {name: followed.partition for name, followed in self._supervisor.follower.followed.items()}
        states.update({name: service.partition for name, service in served.items()})
        adopted = all((state := states.get(name)) is not None and state.config_version >= version for name in names)
        removed = not any(name not in names for name in (*configuration.left_over(), *served))
        return adopted and removed and all(m.version >= version for m in self._supervisor.heartbeat.membership.members)
