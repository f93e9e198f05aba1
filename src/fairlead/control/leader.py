"""Starts and stops leading partitions, and has led partitions adopt the configuration."""

from __future__ import annotations

import asyncio

from fairlead.control.configuration import ClusterConfiguration
from fairlead.control.dependencies import Dependencies
from fairlead.control.partition import PartitionService
from fairlead.control.streams import JournalThread, Streams
from fairlead.core.commands import Configure, Rejected
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.journal.codec import restore_cluster, stream_of
from fairlead.journal.journal import Held, Journal, JournalError
from fairlead.pools.pool_service import PoolMachines, machines_of
from fairlead.writer.clock import Clock, cycle_clock
from fairlead.writer.loop import WriterThread
from fairlead.writer.writer import Stopped, Writer


class Leader:
    """Leads partitions of the cluster."""

    def __init__(self, given: Dependencies, streams: Streams, configuration: ClusterConfiguration) -> None:
        self.served: dict[str, PartitionService] = {}
        """The partitions that this server leads."""
        self._given = given
        self._streams = streams
        self._configuration = configuration
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Partition → the task that runs its writer's loop."""

    @property
    def now(self) -> Micros:
        """The time of the writers' clocks."""
        return max((service.now for service in self.served.values()), default=self._given.wall() // 1000)

    async def lead(self, name: str) -> None:
        """Take over a partition and serve it; if it is not in the configuration any more, remove it."""
        stream, configured = stream_of(name), self._configuration.current
        thread = self._streams.thread(stream)
        config = dict(configured.partitions).get(name)
        machines = PoolMachines()

        def take_over(journal: Journal) -> tuple[Writer, Clock]:
            writer = Writer(journal, name, self._given.observers)
            clock = cycle_clock(writer.partition.now, self._given.wall, lambda: int(self._given.steady() * 1e9))
            if config is None:
                if name in dict(restore_cluster(journal)[0].partitions):
                    raise Stopped(f"partition {name} was just added by another server")
                # No agent is connected yet: agents of removed partitions are dismissed when they connect; see
                # `Control.removed`.
                machines.update(machines_of(writer.partition))
                writer.remove(clock())
                return writer, clock
            opening = writer.opening(config, configured.version)
            if opening:
                writer.cycle(opening, clock())
            self._given.on_lead(name)
            return writer, clock

        try:
            led = await thread.run(take_over)
            self._streams.need(thread)
        except Held:
            await self._streams.end(thread)
        except Exception as problem:
            self._streams.fail(thread, problem)
            if not self._streams.started:
                raise
        else:
            self._streams.succeed(stream)
            if config is None:
                await self._drop(led[0], machines, thread)
            else:
                thread.release = lambda: self._close(name)
                self._serve(*led, thread.thread)

    async def resign(self, name: str) -> None:
        """Give up a partition, so that another server leads it."""
        self._given.inform(f"partition {name} is given to another server")
        await self._streams.give_up(stream_of(name))

    async def adopt_next(self, name: str, user: str) -> Rejected | None:
        """Have a partition adopt the configuration, after other work on its stream. Return its refusal, if any.

        If the writer stops meanwhile, this returns None, and the next writer adopts the configuration.
        """
        stream, refusals = stream_of(name), list[Rejected | None]()

        async def adopt() -> None:
            refusals.append(await self.adopt(name, user))

        await self._streams.finish(stream)
        self._streams.begin(stream, adopt())
        await self._streams.finish(stream)
        return refusals[0] if refusals else None

    async def adopt(self, name: str, user: str = "") -> Rejected | None:
        """Have a led partition adopt the configuration, or remove it. Return its refusal, if any.

        Call it only as work on the stream, with `Streams.begin`.
        """
        service, version = self.served.get(name), self._configuration.current.version
        if service is None or service.partition.config_version >= version:
            return None
        config = self._configuration.partitions.get(name)
        if config is None:
            await self._remove(service)
            return None
        answer = await service.execute_patiently(Configure(config=config, version=version, user=user, operator=True))
        if isinstance(answer, Rejected):
            self._given.note(f"partition {name} does not follow configuration {version} yet: {answer.problem}")
            return Rejected(f"partitions.{name}.{answer.field}", answer.problem, answer.code)
        return None

    def _serve(self, writer: Writer, clock: Clock, thread: WriterThread) -> None:
        given = self._given
        service = PartitionService(
            writer, clock, given.steady, thread, given.engine, given.pools, given.after_cycle, given.cores
        )
        self.served[service.name] = service
        given.engine.begin(service.name, service)
        given.pools.begin(service.name, service)
        self._tasks[service.name] = asyncio.create_task(self._run(service))
        service.live.wake()

    async def _run(self, service: PartitionService) -> None:
        try:
            cause = await service.live.run()
        except asyncio.CancelledError:
            raise
        except Exception as fault:  # an internal error, not a failure of the journal
            cause = f"{fault!r}"
            self._given.note(f"partition {service.name}: {fault!r}")
        thread = self._streams.threads.get(stream_of(service.name))
        if cause and thread is not None:
            self._streams.fail(thread, cause)

    async def _remove(self, service: PartitionService) -> None:
        """Remove a served partition that is not in the configuration any more, and send the effects to its agents."""
        thread, machines = self._streams.threads[stream_of(service.name)], PoolMachines()

        def send(decided: Cycle) -> None:
            service.publish(decided)
            service.dispatch(decided.effects)

        def remove() -> Cycle:
            machines.update(machines_of(service.partition))
            return service.writer.remove(service.now)

        await thread.thread.alone(remove, send)
        await self._close(service.name)
        await self._drop(service.writer, machines, thread)

    async def _drop(self, writer: Writer, machines: PoolMachines, thread: JournalThread) -> None:
        """Destroy the machines of a removed partition's pools, and drop its stream."""
        name = writer.partition.name
        left = await self._given.pools.destroy(name, machines)
        try:
            await thread.run(lambda journal: writer.drop(left))
        except JournalError as problem:
            return self._streams.fail(thread, f"the journal of partition {name} was not dropped: {problem}")
        self._configuration.forget(writer.stream)
        await self._streams.end(thread)

    async def _close(self, name: str) -> None:
        """Stop serving a partition."""
        service = self.served.pop(name, None)
        if service is None:
            return
        running = self._tasks.pop(name)
        await service.live.close()
        await asyncio.gather(running, return_exceptions=True)
        service.close()
        self._given.on_end(name)
        if name not in self.served:  # otherwise this server leads it again already
            self._given.engine.end(name)
            self._given.pools.end(name)
