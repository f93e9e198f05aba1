"""Applies a configuration: tries it on all partitions, writes it to the journal, and lets each partition adopt it."""

from __future__ import annotations

import asyncio

from fairlead.api.leading import Leading
from fairlead.api.looking import Looking
from fairlead.api.plane import LOOK_AGAIN, Plane
from fairlead.api.problems import Unserved
from fairlead.core.errors import Refused
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.journal.base import JournalError
from fairlead.journal.codec import CLUSTER_STREAM, stream_of
from fairlead.writer.cluster import try_configuration
from fairlead.writer.writer import Stopped

FOLLOWED = 10.0
"""Seconds to wait until all servers and partitions have adopted an applied configuration."""


class Configuring:
    """Changes the configuration of the cluster, if this server leads the configuration stream."""

    def __init__(self, plane: Plane, leading: Leading, looking: Looking) -> None:
        self._plane = plane
        self._leading = leading
        self._looking = looking
        self._configuring = asyncio.Lock()

    async def configure(self, configs: dict[str, PartitionConfig], user: str = "") -> None:
        """Apply a configuration for a user, all of it or nothing.

        It is tried on all partitions, then written, then adopted by each partition. A partition whose state changed in
        between may refuse it; it then adopts the configuration as soon as it can, and the error says so.
        """
        async with self._configuring:
            self._plane.need_serving()
            configuration = self._plane.configuration
            if configuration is None:
                raise self._plane.not_led(CLUSTER_STREAM, "the configuration")
            if tuple(sorted(configs.items())) == configuration.current.partitions:
                return
            for name, config in sorted(configs.items()):
                await self._try(name, config)
            seat = self._plane.seats.get(CLUSTER_STREAM)
            if seat is None or self._plane.configuration is not configuration:
                raise self._plane.not_led(CLUSTER_STREAM, "the configuration")
            try:
                await seat.thread.alone(lambda: configuration.write(configs))
            except (Stopped, JournalError) as stopped:
                self._leading.break_seat(seat, str(stopped))
                raise Unserved("unavailable", f"{stopped}; ask again in a moment", 1) from None
            self._plane.configured = configuration.current
            self._plane.roster.call()
            refusals = [await self._leading.obey_next(name, user) for name in sorted(self._plane.served)]
            await self._until_followed()
            for refusal in filter(None, refusals):
                raise Refused(
                    refusal.field,
                    f"{refusal.problem}; the configuration was written, and this partition "
                    "follows it as soon as it can",
                    refusal.code,
                )

    async def _try(self, name: str, config: PartitionConfig) -> None:
        if name not in self._plane.names():
            return try_configuration(Partition(name), config, self._plane.now)
        followed = self._plane.followed.get(name)
        if name in self._plane.served:
            service = self._plane.served[name]
            await service.thread.alone(lambda: try_configuration(service.partition, config, service.now))
        elif followed is not None:

            def attempt() -> None:
                followed.replay_new()
                assert followed.partition is not None
                try_configuration(followed.partition, config, self._plane.now)

            try:
                await followed.thread.alone(attempt)
            except JournalError as problem:
                raise Unserved("unavailable", f"nothing was done: {problem}", 1) from None
        else:
            raise self._plane.not_led(stream_of(name), f"partition {name}")

    async def _until_followed(self) -> None:
        """Wait until all servers and partitions have adopted the configuration, at most `FOLLOWED` seconds."""
        deadline = self._plane.steady() + FOLLOWED
        while True:
            try:
                await self._looking.look()
            except (JournalError, OSError) as problem:
                raise Unserved("unavailable", f"{problem}; ask again in a moment", 1) from None
            if self._plane.at_work:
                await asyncio.wait(self._plane.at_work.values())
            self._plane.need_serving()
            if self._is_followed() or self._plane.steady() > deadline:
                return
            await asyncio.sleep(LOOK_AGAIN)

    def _is_followed(self) -> bool:
        version, names = self._plane.configured.version, self._plane.names()
        states = {name: followed.partition for name, followed in self._plane.followed.items()}
        states.update({name: service.partition for name, service in self._plane.served.items()})
        led = all((state := states.get(name)) is not None and state.config_version >= version for name in names)
        gone = not any(name not in names for name in (*self._plane.left_over(), *self._plane.served))
        return led and gone and all(member.version >= version for member in self._plane.standing.members)
