"""Applies a configuration: tries it on all partitions, writes it to the journal, and lets each partition adopt it."""

from __future__ import annotations

import asyncio

from fairlead.control.configuration import ClusterConfiguration
from fairlead.control.dependencies import Dependencies
from fairlead.control.follower import FollowedPartition, Follower
from fairlead.control.heartbeat import Heartbeat
from fairlead.control.leader import Leader
from fairlead.control.partition import PartitionService
from fairlead.control.streams import Streams
from fairlead.control.supervisor import Supervisor
from fairlead.core.cluster_config import LeftMachine
from fairlead.core.errors import Refused
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.journal.codec import restore_remains, stream_of
from fairlead.journal.journal import Journal, JournalError
from fairlead.wire.unserved import Unserved
from fairlead.writer.cluster import try_configuration

ADOPTED = 10.0
"""Seconds to wait until all servers and partitions have adopted an applied configuration."""
PAUSE = 0.02


class Configurator:
    """Changes the configuration of the cluster, if this server leads the configuration stream."""

    def __init__(
        self,
        given: Dependencies,
        heartbeat: Heartbeat,
        streams: Streams,
        configuration: ClusterConfiguration,
        leader: Leader,
        follower: Follower,
        supervisor: Supervisor,
    ) -> None:
        self._given = given
        self._heartbeat = heartbeat
        self._streams = streams
        self._configuration = configuration
        self._leader = leader
        self._follower = follower
        self._supervisor = supervisor
        self._lock = asyncio.Lock()

    async def configure(
        self, configs: dict[str, PartitionConfig], user: str = ""
    ) -> dict[str, tuple[LeftMachine, ...]]:
        """Apply a configuration for a user, all of it or nothing. Return the machines that removed partitions leave.

        It is tried on all partitions, then written, then adopted by each partition. A partition whose state changed in
        between may refuse it; it then adopts the configuration as soon as it can, and the error says so.
        """
        async with self._lock:
            self._supervisor.need_serving()
            log = self._configuration.led_log()
            if tuple(sorted(configs.items())) == log.current.partitions:
                return {}
            removed = [name for name in self._configuration.names() if name not in configs]
            for name, config in sorted(configs.items()):
                await self._try(name, config)
            await self._configuration.write(log, configs)
            refusals = [await self._leader.adopt_next(name, user) for name in sorted(self._leader.served)]
            await self._until_adopted()
            for refusal in filter(None, refusals):
                raise Refused(
                    refusal.field,
                    f"{refusal.problem}; the configuration was written, and this partition "
                    "follows it as soon as it can",
                    refusal.code,
                )
            return await self._machines_left(removed)

    async def _machines_left(self, removed: list[str]) -> dict[str, tuple[LeftMachine, ...]]:
        """Return the machines that are left of removed partitions, by whichever servers led them."""

        def read(journal: Journal) -> dict[str, tuple[LeftMachine, ...]]:
            streams = journal.streams()
            remains = {name: restore_remains(journal, name) for name in removed if stream_of(name) not in streams}
            return {name: kept.machines for name, kept in remains.items() if kept is not None}

        return await self._streams.reader.run(read) if removed else {}

    async def _try(self, name: str, config: PartitionConfig) -> None:
        if name not in self._configuration.names():
            return try_configuration(Partition(name), config, self._leader.now)
        known: PartitionService | FollowedPartition | None
        known = self._leader.served.get(name) or self._follower.followed.get(name)
        if known is None:
            raise self._streams.not_led(stream_of(name), f"partition {name}")
        try:
            await known.try_configuration(config)
        except JournalError as problem:
            raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None

    async def _until_adopted(self) -> None:
        """Wait until all servers and partitions have adopted the configuration, at most `ADOPTED` seconds."""
        deadline = self._given.steady() + ADOPTED
        while True:
            try:
                await self._supervisor.reconcile()
            except (JournalError, OSError) as problem:
                raise Unserved("unavailable", f"{problem}; ask again in a moment", 1) from None
            await self._streams.finish_all()
            self._supervisor.need_serving()
            if self._is_adopted() or self._given.steady() > deadline:
                return
            await asyncio.sleep(PAUSE)

    def _is_adopted(self) -> bool:
        configuration, served = self._configuration, self._leader.served
        version, names = configuration.current.version, configuration.names()
        states = {name: followed.partition for name, followed in self._follower.followed.items()}
        states.update({name: service.partition for name, service in served.items()})
        adopted = all((state := states.get(name)) is not None and state.config_version >= version for name in names)
        removed = not any(name not in names for name in (*configuration.left_over(), *served))
        return adopted and removed and all(m.version >= version for m in self._heartbeat.membership.members)
