"""Keepers: one a partition, with somebody to tend each of its pools that has a provider.

`Pools` is for the whole process, and all of it for one asyncio loop. Nothing here holds up a writer: effects wake a
tender, and what it finds goes to the writer's inbox as commands. Whoever closes all this ends no machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.core.effects import ForPool
from fairlead.core.errors import Refused
from fairlead.core.state import Partition
from fairlead.pools.base import Join, Log, Machine, MakeProvider, PartitionHandle, PoolKind, Provider, ProviderError
from fairlead.pools.figures import Figures
from fairlead.pools.reconciler import CallQueue, PoolReconciler

GRACE = 10.0
"""Seconds for which a closing server waits for calls of providers that are under way."""


class PartitionPools:
    """The pools of one partition while one writer reigns."""

    def __init__(self, pools: PoolService, handle: PartitionHandle) -> None:
        self._pools = pools
        self._desk = handle
        self._tended: dict[str, tuple[PoolReconciler, Provider, asyncio.Task[None]]] = {}
        self._version: int | None = None
        self.follow(handle.partition)

    def follow(self, partition: Partition) -> None:
        """Tend the pools that there are now. Called between turns."""
        if partition.derived.pools_version == self._version:
            return
        self._version = partition.derived.pools_version
        kinds = {
            name: PoolKind(partition.name, name, pool.settings, self._pools.join)
            for name, pool in partition.pools.items()
            if pool.settings.provider
        }
        for name in [name for name, (tender, *_) in self._tended.items() if kinds.get(name) != tender.kind]:
            self._end(name)
        for name, kind in kinds.items():
            if name not in self._tended:
                self._begin(kind)

    def dispatch(self, messages: Sequence[ForPool]) -> None:
        for message in messages:
            tended = self._tended.get(message.pool)
            if tended is not None:
                tended[0].wake()

    def tender(self, pool: str) -> PoolReconciler | None:
        tended = self._tended.get(pool)
        return None if tended is None else tended[0]

    def end(self) -> None:
        for name in list(self._tended):
            self._end(name)

    def _begin(self, kind: PoolKind) -> None:
        pools = self._pools
        try:
            provider = pools.make(kind)
        except Refused as refusal:
            provider = UnavailableProvider(str(refusal))
        line = pools.lines.setdefault((kind.partition, kind.pool), CallQueue())
        tender = PoolReconciler(kind, provider, self._desk, line, pools.figures, pools.log)
        task = asyncio.create_task(tender.run())
        self._tended[kind.pool] = (tender, provider, task)

    def _end(self, name: str) -> None:
        tender, provider, task = self._tended.pop(name)
        task.cancel()
        self._pools.figures.end(tender.kind.partition, tender.kind.pool)
        self._pools.retire(provider)


class PoolService:
    """All pools of a server. Calls of a provider that outlive a reign are finished before the next one's begin."""

    def __init__(
        self,
        make: MakeProvider | None = None,
        join: Join | None = None,
        figures: Figures | None = None,
        log: Log = lambda level, event, fields: None,
    ) -> None:
        self.make = make or nobody
        self.join = join or Join("", lambda partition, pool, names: {}, lambda partition, names: None)
        self.figures = figures or Figures()
        self.log = log
        self.lines: dict[tuple[str, str], CallQueue] = {}
        self._keepers: dict[str, PartitionPools] = {}
        self._retiring: set[asyncio.Task[None]] = set()

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        """A writer took the partition over. Called between turns, as are the next two."""
        self.end(partition)
        self._keepers[partition] = PartitionPools(self, handle)

    def follow(self, partition: str, state: Partition) -> None:
        """A cycle is over, after which there may be other pools."""
        if partition in self._keepers:
            self._keepers[partition].follow(state)

    def dispatch(self, partition: str, messages: Sequence[ForPool]) -> None:
        """Something was ordered, or is not wanted any more. Quick, and never raises."""
        if partition in self._keepers:
            self._keepers[partition].dispatch(messages)

    def end(self, partition: str) -> None:
        """Nobody writes the partition any more, or not for a while."""
        keeper = self._keepers.pop(partition, None)
        if keeper is not None:
            keeper.end()

    async def close(self) -> None:
        for partition in list(self._keepers):
            self.end(partition)
        await asyncio.gather(*(line.close(GRACE) for line in self.lines.values()))
        await asyncio.gather(*self._retiring)

    def about(self, partition: str, pool: str) -> tuple[str, tuple[Machine, ...]]:
        """What is wrong with a pool's provider, if something is, and the machines that nobody knows."""
        tender = self._keepers[partition].tender(pool) if partition in self._keepers else None
        return ("", ()) if tender is None else (tender.problem, tender.orphans)

    def retire(self, provider: Provider) -> None:
        task = asyncio.ensure_future(provider.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


def nobody(kind: PoolKind) -> Provider:
    raise Refused("provider", "this server brings no machines; start it with `fairlead up` or `fairlead server`")


class UnavailableProvider:
    """Stands for a provider that cannot be made."""

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
