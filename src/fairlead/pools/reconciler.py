"""Who tends one pool: it has machines brought and taken away, and tells the writer what came of it.

A pass looks at what the provider lists and then at the state, and does what is missing. So it does not matter what an
earlier pass, or an earlier server, has done or has died over: what is listed is not brought again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from fairlead.core.commands import AnyCommand, FailOrder, Rejected, RemoveNode
from fairlead.core.effects import standing_pools
from fairlead.core.state import Partition
from fairlead.pools.base import Log, Machine, PartitionHandle, PoolKind, Provider, ProviderError
from fairlead.pools.figures import Figures

Result = TypeVar("Result")

BUSY, QUIET = 3.0, 30.0
"""Seconds between two passes while something is expected to happen, and otherwise."""
GONE = 5.0
"""Seconds for which a machine has to be missing from the lists to be gone. Some providers list with a delay."""
MOST_REASON = 500
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds before a destruction that failed is tried again."""


class CallQueue:
    """Calls of one provider, one after the other, whoever makes them. Each is finished, also if nobody waits for it."""

    def __init__(self) -> None:
        self._last: asyncio.Task[Any] | None = None

    async def do(self, work: Callable[[], Awaitable[Result]]) -> Result:
        before = self._last

        async def in_turn() -> Result:
            if before is not None:
                await asyncio.wait([before])
            return await work()

        task = self._last = asyncio.create_task(in_turn())
        return await asyncio.shield(task)

    async def close(self, seconds: float) -> None:
        """Let what is under way end, for so long."""
        if self._last is not None:
            await asyncio.wait([self._last], timeout=seconds)
            self._last.cancel()


class Standing(msgspec.Struct, frozen=True):
    """What the state has of a pool, as of one look."""

    orders: dict[int, tuple[str, ...]]
    """Order → the nodes that have yet to come."""
    unwanted: tuple[str, ...]
    lost: tuple[str, ...]
    known: frozenset[str]
    """Those of the listed machines that are nodes."""

    @property
    def coming(self) -> set[str]:
        return {name for names in self.orders.values() for name in names}


class PoolReconciler:
    def __init__(
        self,
        kind: PoolKind,
        provider: Provider,
        handle: PartitionHandle,
        line: CallQueue,
        figures: Figures,
        log: Log,
        steady: Callable[[], float],
    ) -> None:
        self.kind = kind
        self.problem = ""
        """Why the last call of the provider failed, if it did."""
        self.orphans: tuple[Machine, ...] = ()
        self._provider = provider
        self._desk = handle
        self._line = line
        self._figures = figures
        self._log = log
        self._steady = steady
        self._wake = asyncio.Event()
        self._tried = {each.order for each in _orders(handle.partition, kind.pool)}
        """Orders that the provider may have had, from an earlier server or from us."""
        self._asked: set[str] = set()
        """Nodes that have yet to come, whose machines were asked for or seen."""
        self._missing: dict[str, float] = {}
        """Machine → since when it is not listed, though it should be."""
        self._destroyed: set[str] = set()
        """Machines that were to be destroyed, and may be listed for a while."""
        self._named: set[str] = set()
        """Orphans that have been told of."""
        self._pause = 0.0
        self._not_before = 0.0
        figures.begin(kind.partition, kind.pool)

    def wake(self) -> None:
        """Something was ordered, or is not wanted any more."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                busy = await self._pass()
            except Exception as fault:  # of ours, or of a provider that raises what it should not
                self._say("warning", "pool not tended", reason=repr(fault))
                busy = True
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY if busy else QUIET):
                    await self._wake.wait()

    async def _pass(self) -> bool:
        """Look, and do what is missing. Whether more is to be done soon."""
        listed = await self._list()
        names = () if listed is None else tuple(listed)
        standing = await self._desk.read(
            lambda partition: _standing(partition, self.kind.pool, names) if self._desk.reigns else None
        )
        if standing is None:
            return False
        if listed is None:
            await self._give_up_new(standing)
            return True
        self._asked &= standing.coming
        self._asked |= standing.coming & listed.keys()
        self._tried &= standing.orders.keys()
        await self._create(standing)
        await self._fail_vanished(standing, listed)
        await self._destroy(standing, listed)
        await self._remove(self._gone(standing.lost, listed), "it is lost")
        self._missing = {name: since for name, since in self._missing.items() if name in self._expected(standing)}
        self._show(standing, listed)
        return bool(standing.orders or standing.unwanted or standing.lost)

    def _expected(self, standing: Standing) -> set[str]:
        return {*self._asked, *standing.unwanted, *standing.lost}

    # -- growing -------------------------------------------------------------------------------------------------

    async def _create(self, standing: Standing) -> None:
        for order, names in standing.orders.items():
            wanted = [name for name in names if name not in self._asked]
            if not wanted:
                continue
            self._say("info", "machines asked for", order=order, names=wanted)
            self._asked.update(wanted)
            self._tried.add(order)
            try:
                await self._call("create", partial(self._provider.create, wanted))
            except ProviderError as problem:
                failed = await self._not_brought(wanted, problem)
                self._asked.difference_update(failed)
                if not problem.unknown:
                    await self._fail(order, [name for name in wanted if name in failed], str(problem))
                wanted = [name for name in wanted if name not in failed]
            self._figures.created.labels(*self._where).inc(len(wanted))
            if wanted:
                self._say("info", "machines created", order=order, names=wanted)

    async def _not_brought(self, wanted: Sequence[str], problem: ProviderError) -> set[str]:
        """For which machines it was not done. If nobody says so, whatever is not listed is asked for again."""
        if problem.names:
            return set(problem.names).intersection(wanted)
        listed = await self._list()
        return set(wanted).difference(listed or ())

    async def _give_up_new(self, standing: Standing) -> None:
        """The provider cannot be looked up. What it was never asked for cannot be there."""
        for order, names in standing.orders.items():
            if order not in self._tried:
                await self._fail(order, names, self.problem)

    async def _fail_vanished(self, standing: Standing, listed: Mapping[str, Machine]) -> None:
        for order, names in standing.orders.items():
            gone = self._gone([name for name in names if name in self._asked], listed)
            if gone:
                await self._fail(order, gone, f"{gone[0]} went away before its node came")

    async def _fail(self, order: int, names: Sequence[str], reason: str) -> None:
        if not names:
            return
        reason = reason[:MOST_REASON]
        self._figures.failed.labels(*self._where).inc(len(names))
        self._say("warning", "machines failed", order=order, names=list(names), reason=reason)
        pool = self.kind.pool
        await self._tell(FailOrder(pool=pool, order=order, reason=reason, names=tuple(names), operator=True))

    # -- shrinking -----------------------------------------------------------------------------------------------

    async def _destroy(self, standing: Standing, listed: Mapping[str, Machine]) -> None:
        there = [name for name in standing.unwanted if name in listed]
        self._destroyed.intersection_update(standing.unwanted)
        if [name for name in there if name not in self._destroyed] and self._steady() >= self._not_before:
            self._say("info", "machines to destroy", names=there)
            try:
                await self._call("destroy", partial(self._provider.destroy, there))
                self._pause = 0.0
                self._destroyed.update(there)
            except ProviderError as problem:
                self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
                self._not_before = self._steady() + self._pause
                if not problem.unknown and problem.names:
                    self._destroyed.update(set(there).difference(problem.names))
            listed = await self._list() or listed
        ended = [name for name in standing.unwanted if name in self._destroyed and name not in listed]
        self._figures.destroyed.labels(*self._where).inc(len(ended))
        rest = [name for name in standing.unwanted if name not in self._destroyed]
        await self._remove([*ended, *self._gone(rest, listed)], "nobody needs it")

    async def _remove(self, names: Sequence[str], reason: str) -> None:
        """Nodes whose machines are gone are forgotten, and not before: an agent that lives would bring them back."""
        if names:
            await asyncio.to_thread(self.kind.join.forget, self.kind.partition, names)
        for name in names:
            self._say("info", "machine gone", node=name, reason=reason)
            self._missing.pop(name, None)
            await self._tell(RemoveNode(name=name, operator=True))

    # -- looking -------------------------------------------------------------------------------------------------

    def _gone(self, names: Iterable[str], listed: Mapping[str, Machine]) -> list[str]:
        """Those that have been missing for long enough."""
        gone: list[str] = []
        for name in names:
            if name in listed:
                self._missing.pop(name, None)
            elif self._steady() - self._missing.setdefault(name, self._steady()) >= GONE:
                gone.append(name)
        return gone

    async def _list(self) -> dict[str, Machine] | None:
        try:
            listed = await self._call("list", self._provider.list)
        except ProviderError:
            return None
        return {machine.name: machine for machine in listed}

    def _show(self, standing: Standing, listed: Mapping[str, Machine]) -> None:
        expected = standing.coming | standing.known
        self.orphans = tuple(machine for name, machine in sorted(listed.items()) if name not in expected)
        self._figures.machines.labels(*self._where).set(len(listed))
        self._figures.orphans.labels(*self._where).set(len(self.orphans))
        self._named.intersection_update(listed)
        for machine in self.orphans:
            if machine.name not in self._named:
                self._named.add(machine.name)
                self._say("warning", "orphan machine", name=machine.name, note=machine.note)

    # -- calls and commands --------------------------------------------------------------------------------------

    async def _call(self, what: str, work: Callable[[], Awaitable[Result]]) -> Result:
        began = self._steady()
        try:
            done = await self._line.do(work)
            self.problem = ""
            return done
        except ProviderError as problem:
            if str(problem) != self.problem:
                self._say("warning", "provider failed", call=what, reason=str(problem))
            self.problem = str(problem)
            self._figures.errors.labels(*self._where, what).inc()
            raise
        finally:
            self._figures.calls.labels(*self._where, what).observe(self._steady() - began)

    async def _tell(self, command: AnyCommand) -> None:
        answer = await self._desk.settle(command)
        if isinstance(answer, Rejected):
            # It was so no more: the node came after all, or somebody was faster.
            self._say("info", "pool command refused", problem=str(answer))

    @property
    def _where(self) -> tuple[str, str]:
        return self.kind.partition, self.kind.pool

    def _say(self, level: str, event: str, **fields: Any) -> None:
        self._log(level, event, {"partition": self.kind.partition, "pool": self.kind.pool, **fields})


def _orders(partition: Partition, pool: str) -> Iterable[Any]:
    return (order for each in standing_pools(partition) if each.pool == pool for order in each.orders)


def _standing(partition: Partition, pool: str, listed: Sequence[str]) -> Standing:
    nodes = partition.nodes
    unwanted = tuple(name for each in standing_pools(partition) if each.pool == pool for name in each.unwanted)
    lost = tuple(
        nodes.name[row]
        for _, row in sorted(nodes.rows.items())
        if nodes.pool[row] == pool and not nodes.manager[row] and nodes.state[row] == "lost"
    )
    return Standing(
        orders={each.order: each.names for each in _orders(partition, pool)},
        unwanted=unwanted if partition.reign.ready else (),
        lost=lost if partition.reign.ready else (),
        known=frozenset(name for name in listed if nodes.find(name) is not None),
    )
