"""Reconciles one pool with its provider: creates and destroys machines, and reports the results to the writer.

A pass compares the machines that the provider lists with the state, and makes the calls that are needed. A listed
machine is never created again, even if an earlier pass or another server has created it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fairlead.core.commands import Command, FailOrder, Rejected, RemoveNode
from fairlead.core.effects import outstanding_orders
from fairlead.core.state import Partition
from fairlead.pools.provider import Machine, PartitionHandle, PoolKind, Provider, ProviderError

if TYPE_CHECKING:
    from fairlead.pools.pool_service import PoolService

Result = TypeVar("Result")

BUSY, QUIET = 3.0, 30.0
"""Seconds between two passes: while changes are expected, and otherwise."""
GONE = 5.0
"""Seconds after which a machine that is missing from the list counts as gone. Some providers list with a delay."""
MAX_REASON = 500
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds before a failed destroy call is repeated."""

Settle = Callable[[str, Sequence[str]], Awaitable[None]]
"""Called with a partition and nodes. Waits, for a bounded time, until the output of tasks on them is copied."""


class CallQueue:
    """Runs the calls of one provider one after the other. A call is finished even if its caller was cancelled."""

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
        """Wait at most this long for calls in progress, then cancel them."""
        if self._last is not None:
            await asyncio.wait([self._last], timeout=seconds)
            self._last.cancel()


class PoolState(msgspec.Struct, frozen=True):
    orders: dict[int, tuple[str, ...]]
    """Order → its nodes that have not joined yet."""
    unwanted: tuple[str, ...]
    lost: tuple[str, ...]
    known: frozenset[str]
    """Listed machines that are nodes."""

    @property
    def coming(self) -> set[str]:
        return {name for names in self.orders.values() for name in names}


class PoolReconciler:
    def __init__(self, pools: PoolService, kind: PoolKind, provider: Provider, handle: PartitionHandle) -> None:
        self.kind = kind
        self.problem = ""
        """Why the last call of the provider failed; empty if it did not."""
        self.orphans: tuple[Machine, ...] = ()
        """Listed machines that are neither nodes nor expected."""
        self._settle_nodes = pools.settle
        self._provider = provider
        self._handle = handle
        self._line = pools.line(kind)
        self._figures = pools.figures
        self._log = pools.log
        self._steady = pools.steady
        self._wake = asyncio.Event()
        self._tried = {order.order for order in _orders(handle.partition, kind.pool)}
        """Orders that the provider may have received from this server or an earlier one."""
        self._asked: set[str] = set()
        """Ordered nodes that the provider was asked for or lists, and that have not joined yet."""
        self._missing: dict[str, float] = {}
        """Machine → when it was first missing from the list."""
        self._destroyed: set[str] = set()
        """Machines that were destroyed and may still be listed for a while."""
        self._named: set[str] = set()
        """Orphans that have been logged."""
        self._pause = 0.0
        self._not_before = 0.0
        self._figures.begin(kind.partition, kind.pool)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                busy = await self._pass()
            except Exception as fault:  # a bug here, or a provider that raises something other than `ProviderError`
                self._write_log("warning", "pool pass failed", reason=repr(fault))
                busy = True
            with suppress(TimeoutError):
                async with asyncio.timeout(BUSY if busy else QUIET):
                    await self._wake.wait()

    async def _pass(self) -> bool:
        """Compare the list with the state and make the missing calls; return True if more changes are expected soon."""
        listed = await self._list()
        names = () if listed is None else tuple(listed)
        state = await self._handle.read(
            lambda partition: _pool_state(partition, self.kind.pool, names) if self._handle.leads else None
        )
        if state is None:
            return False
        if listed is None:
            await self._give_up_new(state)
            return True
        self._asked &= state.coming
        self._asked |= state.coming & listed.keys()
        self._tried &= state.orders.keys()
        await self._create(state)
        await self._fail_vanished(state, listed)
        await self._destroy(state, listed)
        await self._remove(self._gone(state.lost, listed), "it is lost")
        self._missing = {name: since for name, since in self._missing.items() if name in self._expected(state)}
        self._show(state, listed)
        return bool(state.orders or state.unwanted or state.lost)

    def _expected(self, state: PoolState) -> set[str]:
        return {*self._asked, *state.unwanted, *state.lost}

    # -- growing -------------------------------------------------------------------------------------------------

    async def _create(self, state: PoolState) -> None:
        for order, names in state.orders.items():
            wanted = [name for name in names if name not in self._asked]
            if not wanted:
                continue
            if not await self._handle.still_leads():
                return
            self._write_log("info", "machines asked for", order=order, names=wanted)
            self._asked.update(wanted)
            self._tried.add(order)
            try:
                await self._call("create", partial(self._provider.create, wanted))
            except ProviderError as problem:
                failed = await self._not_created(wanted, problem)
                self._asked.difference_update(failed)
                if not problem.unknown:
                    await self._fail(order, [name for name in wanted if name in failed], str(problem))
                wanted = [name for name in wanted if name not in failed]
            self._figures.created.labels(*self._where).inc(len(wanted))
            if wanted:
                self._write_log("info", "machines created", order=order, names=wanted)

    async def _not_created(self, wanted: Sequence[str], problem: ProviderError) -> set[str]:
        """Return the machines that were not created.

        If the provider does not name them, they are the machines that it does not list.
        """
        if problem.names:
            return set(problem.names).intersection(wanted)
        listed = await self._list()
        return set(wanted).difference(listed or ())

    async def _give_up_new(self, state: PoolState) -> None:
        """Fail the orders that the provider never received, because it cannot list machines now."""
        for order, names in state.orders.items():
            if order not in self._tried:
                await self._fail(order, names, self.problem)

    async def _fail_vanished(self, state: PoolState, listed: Mapping[str, Machine]) -> None:
        for order, names in state.orders.items():
            gone = self._gone([name for name in names if name in self._asked], listed)
            if gone:
                await self._fail(order, gone, f"{gone[0]} went away before its node came")

    async def _fail(self, order: int, names: Sequence[str], reason: str) -> None:
        if not names:
            return
        reason = reason[:MAX_REASON]
        self._figures.failed.labels(*self._where).inc(len(names))
        self._write_log("warning", "machines failed", order=order, names=list(names), reason=reason)
        pool = self.kind.pool
        await self._settle(FailOrder(pool=pool, order=order, reason=reason, names=tuple(names), operator=True))

    # -- shrinking -----------------------------------------------------------------------------------------------

    async def _destroy(self, state: PoolState, listed: Mapping[str, Machine]) -> None:
        there = [name for name in state.unwanted if name in listed]
        self._destroyed.intersection_update(state.unwanted)
        if [name for name in there if name not in self._destroyed] and self._steady() >= self._not_before:
            self._write_log("info", "machines to destroy", names=there)
            await self._settle_nodes(self.kind.partition, there)
            if not await self._handle.still_leads():
                return
            self._destroyed.update(await self._destroy_machines(there))
            listed = await self._list() or listed
        ended = [name for name in state.unwanted if name in self._destroyed and name not in listed]
        self._figures.destroyed.labels(*self._where).inc(len(ended))
        rest = [name for name in state.unwanted if name not in self._destroyed]
        await self._remove([*ended, *self._gone(rest, listed)], "it is not needed any more")

    async def _destroy_machines(self, names: Sequence[str]) -> Collection[str]:
        """Destroy machines. Return those that the provider accepted to destroy. After an error, pause."""
        try:
            await self._call("destroy", partial(self._provider.destroy, names))
        except ProviderError as problem:
            self._pause = min(LONGEST_PAUSE, 2 * self._pause or FIRST_PAUSE)
            self._not_before = self._steady() + self._pause
            return set(names).difference(problem.names) if problem.names and not problem.unknown else ()
        self._pause = 0.0
        return names

    async def _remove(self, names: Sequence[str], reason: str) -> None:
        """Remove nodes whose machines are gone. The agent of a machine that still runs would add its node again."""
        if names:
            await asyncio.to_thread(self.kind.join.forget, self.kind.partition, names)
        for name in names:
            self._write_log("info", "machine gone", node=name, reason=reason)
            self._missing.pop(name, None)
            await self._settle(RemoveNode(name=name, operator=True))

    # -- looking -------------------------------------------------------------------------------------------------

    def _gone(self, names: Iterable[str], listed: Mapping[str, Machine]) -> list[str]:
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

    def _show(self, state: PoolState, listed: Mapping[str, Machine]) -> None:
        expected = state.coming | state.known
        self.orphans = tuple(machine for name, machine in sorted(listed.items()) if name not in expected)
        self._figures.machines.labels(*self._where).set(len(listed))
        self._figures.orphans.labels(*self._where).set(len(self.orphans))
        self._named.intersection_update(listed)
        for machine in self.orphans:
            if machine.name not in self._named:
                self._named.add(machine.name)
                self._write_log("warning", "orphan machine", name=machine.name, note=machine.note)

    # -- calls and commands --------------------------------------------------------------------------------------

    async def _call(self, call: str, work: Callable[[], Awaitable[Result]]) -> Result:
        began = self._steady()
        try:
            result = await self._line.do(work)
            self.problem = ""
            return result
        except ProviderError as problem:
            if str(problem) != self.problem:
                self._write_log("warning", "provider failed", call=call, reason=str(problem))
            self.problem = str(problem)
            self._figures.errors.labels(*self._where, call).inc()
            raise
        finally:
            self._figures.calls.labels(*self._where, call).observe(self._steady() - began)

    async def _settle(self, command: Command) -> None:
        answer = await self._handle.execute_patiently(command)
        if isinstance(answer, Rejected):
            # The state changed meanwhile: the node has joined, or another command came first.
            self._write_log("info", "pool command refused", problem=str(answer))

    @property
    def _where(self) -> tuple[str, str]:
        return self.kind.partition, self.kind.pool

    def _write_log(self, level: str, event: str, **fields: Any) -> None:
        self._log(level, event, {"partition": self.kind.partition, "pool": self.kind.pool, **fields})


def _orders(partition: Partition, pool: str) -> Iterable[Any]:
    return (order for message in outstanding_orders(partition) if message.pool == pool for order in message.orders)


def _pool_state(partition: Partition, pool: str, listed: Sequence[str]) -> PoolState:
    nodes = partition.nodes
    unwanted: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    if partition.readiness.ready:
        messages = [message for message in outstanding_orders(partition) if message.pool == pool]
        unwanted = tuple(name for message in messages for name in message.unwanted)
        lost = tuple(
            nodes.name[row]
            for _, row in sorted(nodes.rows.items())
            if nodes.pool[row] == pool and not nodes.manager[row] and nodes.state[row] == "lost"
        )
    return PoolState(
        orders={order.order: order.names for order in _orders(partition, pool)},
        unwanted=unwanted,
        lost=lost,
        known=frozenset(name for name in listed if nodes.find(name) is not None),
    )
