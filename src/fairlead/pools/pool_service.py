"""The pools of a server: one reconciler for each pool that has a provider.

`PoolService` serves the whole process, in one asyncio loop. Nothing here delays a writer: effects wake a reconciler,
and its results go to the writer's inbox as commands. Closing the service ends no machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from time import monotonic

from fairlead.core.cluster_config import LeftMachine
from fairlead.core.effects import ForPool
from fairlead.core.errors import Refused
from fairlead.core.model import PoolSettings
from fairlead.core.state import Partition
from fairlead.pools.call_metrics import Figures
from fairlead.pools.provider import Join, Log, Machine, MakeProvider, PartitionHandle, PoolKind, Provider, ProviderError
from fairlead.pools.reconciler import CallQueue, PoolReconciler, Settle

COPIED, DESTROYED = 2.0, 6.0
"""Seconds that the removal of a partition waits for the output of its nodes, and then for the provider of a pool."""
GRACE = 10.0
"""Seconds that a closing server waits for provider calls in progress."""


async def no_settling(partition: str, nodes: Sequence[str]) -> None:
    """Do nothing; the default for `settle`."""


PoolMachines = dict[str, tuple[PoolSettings, tuple[str, ...]]]
"""Pool → its settings and the names of its machines."""


class PartitionPools:
    """The pools of one partition during the term of one writer."""

    def __init__(self, pools: PoolService, handle: PartitionHandle) -> None:
        self._pools = pools
        self._handle = handle
        self._running: dict[str, tuple[PoolReconciler, Provider, asyncio.Task[None]]] = {}
        self._version: int | None = None
        self.follow(handle.partition)

    def follow(self, partition: Partition) -> None:
        """Start and end reconcilers according to the present pools. Called between cycles."""
        if partition.derived.pools_version == self._version:
            return
        self._version = partition.derived.pools_version
        kinds = {
            name: PoolKind(partition.name, name, pool.settings, self._pools.join)
            for name, pool in partition.pools.items()
            if pool.settings.provider
        }
        for name in [name for name, (reconciler, *_) in self._running.items() if kinds.get(name) != reconciler.kind]:
            self._end(name)
        for name, kind in kinds.items():
            if name not in self._running:
                self._begin(kind)

    def dispatch(self, messages: Sequence[ForPool]) -> None:
        for message in messages:
            reconciler = self.reconciler(message.pool)
            if reconciler is not None:
                reconciler.wake()

    def reconciler(self, pool: str) -> PoolReconciler | None:
        running = self._running.get(pool)
        return None if running is None else running[0]

    def end(self) -> None:
        for name in list(self._running):
            self._end(name)

    def _begin(self, kind: PoolKind) -> None:
        pools = self._pools
        provider = pools.provider(kind)
        line = pools.lines.setdefault((kind.partition, kind.pool), CallQueue())
        reconciler = PoolReconciler(
            kind, provider, self._handle, line, pools.figures, pools.log, pools.steady, pools.settle
        )
        task = asyncio.create_task(reconciler.run())
        self._running[kind.pool] = (reconciler, provider, task)

    def _end(self, name: str) -> None:
        reconciler, provider, task = self._running.pop(name)
        task.cancel()
        self._pools.figures.end(reconciler.kind.partition, reconciler.kind.pool)
        self._pools.retire(provider)


class PoolService:
    """All pools of a server. Calls that outlive a writer are finished before those of the next begin."""

    def __init__(
        self,
        make: MakeProvider | None = None,
        join: Join | None = None,
        figures: Figures | None = None,
        log: Log = lambda level, event, fields: None,
        steady: Callable[[], float] = monotonic,
        settle: Settle = no_settling,
    ) -> None:
        """Take the parts. `settle` is awaited before machines are destroyed."""
        self.settle = settle
        self.make = make or no_provider
        self.join = join or Join(lambda: "", lambda partition, pool, names: {}, lambda partition, names: None)
        self.figures = figures or Figures()
        self.log = log
        self.steady = steady
        self.lines: dict[tuple[str, str], CallQueue] = {}
        self._partitions: dict[str, PartitionPools] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        """Start the pools of a partition that a writer took over. Called between cycles."""
        self.end(partition)
        self._partitions[partition] = PartitionPools(self, handle)

    def follow(self, partition: str, state: Partition) -> None:
        """Adapt to changed pools after a cycle."""
        if partition in self._partitions:
            self._partitions[partition].follow(state)

    def dispatch(self, partition: str, messages: Sequence[ForPool]) -> None:
        """Wake the reconcilers of pools with new orders or unwanted nodes. Quick, and never raises."""
        if partition in self._partitions:
            self._partitions[partition].dispatch(messages)

    def end(self, partition: str) -> None:
        """Stop the pools of a partition that has no writer now."""
        pools = self._partitions.pop(partition, None)
        if pools is not None:
            pools.end()

    async def close(self) -> None:
        for partition in list(self._partitions):
            self.end(partition)
        await asyncio.gather(*(line.close(GRACE) for line in self.lines.values()))
        await asyncio.gather(*self._retiring)

    async def destroy(self, partition: str, machines: PoolMachines) -> tuple[LeftMachine, ...]:
        """Destroy the machines of a removed partition's pools. Return those that are left, or may be."""
        if not machines:
            return ()
        with suppress(TimeoutError):
            async with asyncio.timeout(COPIED):
                await self.settle(partition, [name for _, names in machines.values() for name in names])
        kinds = [
            (PoolKind(partition, pool, settings, self.join), names) for pool, (settings, names) in machines.items()
        ]
        return tuple(chain.from_iterable(await asyncio.gather(*(self._destroy(*each) for each in kinds))))

    async def _destroy(self, kind: PoolKind, names: tuple[str, ...]) -> list[LeftMachine]:
        left = {name: f"the provider did not answer within {DESTROYED:g} s" for name in names}
        line, provider = self.lines.setdefault((kind.partition, kind.pool), CallQueue()), self.provider(kind)
        with suppress(TimeoutError):
            async with asyncio.timeout(DESTROYED):
                left = await _destroyed(provider, line, names)
        self.retire(provider)
        gone = [name for name in names if name not in left]
        await asyncio.to_thread(self.join.forget, kind.partition, gone)
        where = {"partition": kind.partition, "pool": kind.pool}
        for name in gone:
            self.log("info", "machine gone", {**where, "node": name, "reason": "the partition was removed"})
        for name, reason in left.items():
            self.log("warning", "machine left", {**where, "name": name, "reason": reason})
        return [LeftMachine(kind.pool, name, reason) for name, reason in left.items()]

    def provider(self, kind: PoolKind) -> Provider:
        try:
            return self.make(kind)
        except Refused as refusal:
            return UnavailableProvider(str(refusal))

    def about(self, partition: str, pool: str) -> tuple[str, tuple[Machine, ...]]:
        """Return the problem of a pool's provider (empty if none) and the orphaned machines."""
        reconciler = self._partitions[partition].reconciler(pool) if partition in self._partitions else None
        return ("", ()) if reconciler is None else (reconciler.problem, reconciler.orphans)

    def retire(self, provider: Provider) -> None:
        task = asyncio.ensure_future(provider.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def machines_of(partition: Partition) -> PoolMachines:
    """Return the nodes of all pools with a provider, and the ordered ones."""
    nodes, found = partition.nodes, PoolMachines()
    for name, pool in partition.pools.items():
        if pool.settings.provider:
            present = [nodes.name[row] for row in nodes.rows.values() if nodes.pool[row] == name]
            coming = [each for order in partition.orders.values() if order.pool == name for each in order.coming]
            found[name] = pool.settings, tuple(present + coming)
    return found


async def _destroyed(provider: Provider, line: CallQueue, names: Sequence[str]) -> dict[str, str]:
    """Destroy the machines of these names; return the machines of the pool that are left, with the reason."""
    try:
        listed = {machine.name for machine in await line.do(provider.list)}
        there = [name for name in names if name in listed]
        left = {name: "it was no node of the partition" for name in sorted(listed.difference(names))}
    except ProviderError as problem:
        return {name: str(problem) for name in names}
    try:
        if there:
            await line.do(lambda: provider.destroy(there))
    except ProviderError as problem:
        left |= {name: str(problem) for name in (not problem.unknown and problem.names) or there}
    return left


def no_provider(kind: PoolKind) -> Provider:
    raise Refused("provider", "this server brings no machines; start it with `fairlead up` or `fairlead server`")


class UnavailableProvider:
    """Replaces a provider with invalid settings: all calls fail."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def create(self, names: Sequence[str]) -> None:
        raise ProviderError(self._problem, names)

    async def destroy(self, names: Sequence[str]) -> None:
        raise ProviderError(self._problem)

    async def list(self) -> Sequence[Machine]:
        raise ProviderError(self._problem)

    async def close(self) -> None:
        pass
