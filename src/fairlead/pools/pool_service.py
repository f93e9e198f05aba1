"""The pools of a server: one reconciler for each pool that has a provider.

`PoolService` serves the whole process, in one asyncio loop. Pools never delay a writer: effects wake a reconciler, and
its results go to the writer's inbox as commands. Closing the service ends no machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from time import monotonic
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from fairlead.core.cluster_config import LeftMachine
from fairlead.core.effects import ForPool
from fairlead.core.errors import Refused
from fairlead.core.model import PoolSettings
from fairlead.core.state import Partition
from fairlead.pools.provider import Join, Log, Machine, MakeProvider, PartitionHandle, PoolKind, Provider, ProviderError
from fairlead.pools.reconciler import CallQueue, PoolReconciler, Settle

TAKEN = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300)
LABELS = ("partition", "pool")
CALLS = ("create", "destroy", "list")


class Figures:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Create the metrics in `registry`, which shows them with those of other modules."""
        registry = registry or CollectorRegistry()
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, labelnames=LABELS, registry=registry)
        self.created = counter(
            "fairlead_machines_brought_total",
            "Machines that the provider of a pool was asked for, and did not refuse.",
            LABELS,
        )
        self.failed = counter(
            "fairlead_machines_failed_total",
            "Ordered machines that could not be brought, or that went away before their node came.",
            LABELS,
        )
        self.destroyed = counter(
            "fairlead_machines_destroyed_total",
            "Machines that were destroyed because they are not needed any more.",
            LABELS,
        )
        self.machines = gauge("fairlead_machines", "Machines that the provider lists.")
        self.orphans = gauge(
            "fairlead_orphan_machines",
            "Machines that the provider lists and that are neither nodes nor expected. Fairlead does not destroy them.",
        )
        self.calls = Histogram(
            "fairlead_provider_call_seconds",
            "Time that a provider took for a call (create, destroy or list).",
            (*LABELS, "call"),
            registry=registry,
            buckets=TAKEN,
        )
        self.errors = counter(
            "fairlead_provider_errors_total",
            "Calls of a provider that failed, or with an unknown outcome.",
            (*LABELS, "call"),
        )

    def begin(self, partition: str, pool: str) -> None:
        """Create the series of a pool at zero, because a rate counts the first event only if a zero came before it."""
        for metric in (self.created, self.failed, self.destroyed, self.machines, self.orphans):
            metric.labels(partition, pool)
        for call in CALLS:
            self.errors.labels(partition, pool, call)
            self.calls.labels(partition, pool, call)

    def end(self, partition: str, pool: str) -> None:
        """Remove the gauges of a pool that is gone or no longer has a provider."""
        self.machines.remove(partition, pool)
        self.orphans.remove(partition, pool)


COPIED, DESTROYED = 2.0, 6.0
"""Seconds that the removal of a partition waits for the output of its nodes, and then for the provider of a pool."""
GRACE = 10.0
"""Seconds that a closing server waits for provider calls in progress."""


async def no_settling(partition: str, nodes: Sequence[str]) -> None:
    """Do nothing; the default for `settle`."""


PoolMachines = dict[str, tuple[PoolSettings, tuple[str, ...]]]
"""Pool → its settings and the names of its machines."""


class RunningPool(NamedTuple):
    reconciler: PoolReconciler
    provider: Provider
    task: asyncio.Task[None]


class LedPartition:
    def __init__(self, handle: PartitionHandle) -> None:
        self.handle = handle
        self.running: dict[str, RunningPool] = {}
        self.version: int | None = None
        """The version of the pools in the state that `running` follows."""


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
        self._lines: dict[tuple[str, str], CallQueue] = {}
        self._led: dict[str, LedPartition] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        """Start the pools of a partition that a writer took over. Called between cycles."""
        self.end(partition)
        self._led[partition] = LedPartition(handle)
        self.follow(partition, handle.partition)

    def follow(self, partition: str, state: Partition) -> None:
        """Start and end reconcilers according to the present pools. Called between cycles."""
        led = self._led.get(partition)
        if led is None or state.derived.pools_version == led.version:
            return
        led.version = state.derived.pools_version
        kinds = {
            name: PoolKind(state.name, name, pool.settings, self.join)
            for name, pool in state.pools.items()
            if pool.settings.provider
        }
        for name in [name for name, pool in led.running.items() if kinds.get(name) != pool.reconciler.kind]:
            self._end_pool(led.running.pop(name))
        for name, kind in kinds.items():
            if name not in led.running:
                provider = self._provider(kind)
                reconciler = PoolReconciler(self, kind, provider, led.handle)
                led.running[name] = RunningPool(reconciler, provider, asyncio.create_task(reconciler.run()))

    def dispatch(self, partition: str, messages: Sequence[ForPool]) -> None:
        """Wake the reconcilers of pools with new orders or unwanted nodes. Quick, and never raises."""
        for message in messages:
            running = self._running(partition, message.pool)
            if running is not None:
                running.reconciler.wake()

    def end(self, partition: str) -> None:
        """Stop the pools of a partition that has no writer now."""
        led = self._led.pop(partition, None)
        for running in led.running.values() if led is not None else ():
            self._end_pool(running)

    def line(self, kind: PoolKind) -> CallQueue:
        """Return the queue of provider calls of a pool, which outlives reconcilers."""
        return self._lines.setdefault((kind.partition, kind.pool), CallQueue())

    def _running(self, partition: str, pool: str) -> RunningPool | None:
        led = self._led.get(partition)
        return None if led is None else led.running.get(pool)

    def _end_pool(self, running: RunningPool) -> None:
        running.task.cancel()
        self.figures.end(running.reconciler.kind.partition, running.reconciler.kind.pool)
        self._retire(running.provider)

    async def close(self) -> None:
        for partition in list(self._led):
            self.end(partition)
        await asyncio.gather(*(line.close(GRACE) for line in self._lines.values()))
        await asyncio.gather(*self._retiring)

    async def destroy(self, partition: str, machines: PoolMachines) -> tuple[LeftMachine, ...]:
        """Destroy the machines of a removed partition's pools. Return those that are left or may be left."""
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
        line, provider = self.line(kind), self._provider(kind)
        with suppress(TimeoutError):
            async with asyncio.timeout(DESTROYED):
                left = await _destroyed(provider, line, names)
        self._retire(provider)
        gone = [name for name in names if name not in left]
        await asyncio.to_thread(self.join.forget, kind.partition, gone)
        where = {"partition": kind.partition, "pool": kind.pool}
        for name in gone:
            self.log("info", "machine gone", {**where, "node": name, "reason": "the partition was removed"})
        for name, reason in left.items():
            self.log("warning", "machine left", {**where, "name": name, "reason": reason})
        return [LeftMachine(kind.pool, name, reason) for name, reason in left.items()]

    def _provider(self, kind: PoolKind) -> Provider:
        try:
            return self.make(kind)
        except Refused as refusal:
            return UnavailableProvider(str(refusal))

    def about(self, partition: str, pool: str) -> tuple[str, tuple[Machine, ...]]:
        """Return the problem of a pool's provider (empty if none) and the orphaned machines."""
        running = self._running(partition, pool)
        return ("", ()) if running is None else (running.reconciler.problem, running.reconciler.orphans)

    def _retire(self, provider: Provider) -> None:
        task = asyncio.ensure_future(provider.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def machines_of(partition: Partition) -> PoolMachines:
    nodes, found = partition.nodes, PoolMachines()
    for name, pool in partition.pools.items():
        if pool.settings.provider:
            present = [nodes.name[row] for row in nodes.rows.values() if nodes.pool[row] == name]
            coming = [each for order in partition.orders.values() if order.pool == name for each in order.coming]
            found[name] = pool.settings, tuple(present + coming)
    return found


async def _destroyed(provider: Provider, line: CallQueue, names: Sequence[str]) -> dict[str, str]:
    """Destroy the named machines. Return the machines of the pool that are left, each with the reason."""
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
