"""Faults that are planted in the shipped parts around the core on purpose, to see that the fault simulation finds them.

From the top: the live loop, the pools, the agents' tables of tasks, the hub, leadership.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fairlead.agent.coordinator import Epoch
from fairlead.agent.report_queue import Reporting
from fairlead.agent.task_table import TaskTable
from fairlead.control.heartbeat import Heartbeat
from fairlead.core.commands import Accepted
from fairlead.engines.agents import Agents
from fairlead.engines.launches import Orders
from fairlead.journal.journal import Record
from fairlead.journal.leases import Leases
from fairlead.pools import reconciler
from fairlead.pools.reconciler import PoolReconciler
from fairlead.wire import agent_messages as wire
from fairlead.wire.index_spans import each_index
from fairlead.writer import loop
from fairlead.writer.inbox import Inbox
from fairlead.writer.loop import LiveWriter
from fairlead.writer.writer import Stopped, Writer
from tests.chaos.shared_journal import SharedJournal

# -- the live loop -----------------------------------------------------------------------------------------------


def dispatch_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects are sent before the commit, even if the write then fails."""
    commit, turn = Writer._commit, LiveWriter._cycle
    decisions: list[Any] = []

    def remember(self: Writer, decided: Any, *rest: Any) -> None:
        decisions[:] = [decided]
        commit(self, decided, *rest)

    def planted(self: LiveWriter, batch: Any) -> Any:
        try:
            return turn(self, batch)
        except Stopped:
            self._dispatch(decisions[0].effects)
            raise

    monkeypatch.setattr(Writer, "_commit", remember)
    monkeypatch.setattr(LiveWriter, "_cycle", planted)


def answer_what_was_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(batch: Any, problem: BaseException) -> None:
        for message in batch:
            message.reply(Accepted(job=getattr(message.command, "id", "")))

    monkeypatch.setattr(loop, "_refuse", planted)


def drop_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of many messages is in no turn."""
    drain = Inbox.drain

    def planted(self: Inbox, max_batch: int) -> Any:
        batch = drain(self, max_batch)
        return batch[:-1] if len(batch) > 2 else batch

    monkeypatch.setattr(Inbox, "drain", planted)


def forget_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only messages start turns, timers do not."""
    monkeypatch.setattr(LiveWriter, "_until_timer", lambda self: None)


# -- pools -------------------------------------------------------------------------------------------------------


def create_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that were ordered or listed are ordered again in each pass."""
    create = PoolReconciler._create

    async def planted(self: PoolReconciler, standing: Any) -> None:
        self._asked.clear()
        await create(self, standing)

    monkeypatch.setattr(PoolReconciler, "_create", planted)


def fail_what_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order fails when its machine is listed, before its node has come."""

    async def planted(self: PoolReconciler, standing: Any, listed: Any) -> None:
        for order, names in standing.orders.items():
            await self._fail(order, [name for name in names if name in listed], "planted")

    monkeypatch.setattr(PoolReconciler, "_fail_vanished", planted)


def destroy_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one node of a pool is unwanted, all its nodes are destroyed."""
    standing_of = reconciler._pool_state

    def planted(partition: Any, pool: str, listed: Any) -> Any:
        standing = standing_of(partition, pool, listed)
        return (
            msgspec.structs.replace(standing, unwanted=tuple(sorted(standing.known))) if standing.unwanted else standing
        )

    monkeypatch.setattr(reconciler, "_pool_state", planted)


# -- tables of tasks ---------------------------------------------------------------------------------------------


def start_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every spawner starts the tasks of one spawner."""
    launch = TaskTable._launch

    def planted(self: TaskTable, order: wire.Launch, work: Any, groups: Any) -> None:
        launch(self, order, work, groups)
        for other in groups[1:]:
            other += [group for group in groups[0] if group not in other]

    monkeypatch.setattr(TaskTable, "_launch", planted)


def forget_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end is forgotten when it is reported, without waiting for the confirmation."""
    batch = Reporting.batch

    def planted(self: Reporting) -> Any:
        ended = [entry for entry in self._news.values() if entry.state == "ended"]
        number, reports = batch(self)
        for entry in ended:
            entry.state = "sent"  # it is in neither the next hello nor the next heartbeat
        return number, reports

    monkeypatch.setattr(Reporting, "batch", planted)


def ignore_early_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of a task that has not started is dropped."""
    stop = TaskTable._stop

    def planted(self: TaskTable, order: wire.Stop) -> None:
        tasks = order.tasks
        keys = [(tasks.number, tasks.stage, tasks.attempt, index) for index in each_index(tasks.indices)]
        if not any(key in self._entries and self._entries[key].state == "sent" for key in keys):
            stop(self, order)

    monkeypatch.setattr(TaskTable, "_stop", planted)


# -- the hub -----------------------------------------------------------------------------------------------------


def lose_standing_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that reconnects does not receive its standing work."""
    work = Orders.work

    def planted(self: Orders, partition: Any, message: Any, gangs: Any, standing: bool = False) -> wire.Work:
        sent = work(self, partition, message, gangs, standing)
        return msgspec.structs.replace(sent, launches=(), specs=()) if standing else sent

    monkeypatch.setattr(Orders, "work", planted)


def confirm_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are confirmed before they are durable."""
    confirm = Agents._confirm

    async def planted(self: Agents, partition: str, attached: Any, batch: wire.Reports, slots: Any) -> None:
        attached.put(wire.Confirmed(batch.number))
        await confirm(self, partition, attached, batch, slots)

    monkeypatch.setattr(Agents, "_confirm", planted)


def never_call_a_node_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def planted(self: Agents, partition: str, reign: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Agents, "_watch", planted)


def keep_disconnections_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer does not hear that an agent has disconnected."""
    monkeypatch.setattr(Agents, "_part", lambda self, partition, reign, node: None)


def keep_what_runs_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The running tasks of an agent that reconnects are not reported to the writer."""
    join = Agents._join

    async def planted(self: Agents, reign: Any, attached: Any, hello: wire.Hello) -> None:
        await join(self, reign, attached, msgspec.structs.replace(hello, running=()))

    monkeypatch.setattr(Agents, "_join", planted)


# -- leadership --------------------------------------------------------------------------------------------------


def append_without_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database takes records of any leader, also of one that another server has followed."""

    def planted(self: SharedJournal, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        entry = self._store.records._streams[stream]
        entry.records.append(Record(entry.last + 1, epoch, payload))
        assert self._store.watch is not None
        self._store.watch.appended(stream, epoch, self._server)

    monkeypatch.setattr(SharedJournal, "_write", planted)


def take_leases_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that wants to lead does so, although the lease of another one lasts."""
    monkeypatch.setattr(SharedJournal, "_claim", lambda self, stream: self._link.check())


def serve_beyond_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server does not look at its clock, and serves until a write fails."""
    monkeypatch.setattr(Leases, "leads_until", lambda self: float("inf"))
    monkeypatch.setattr(Heartbeat, "silent", False)


def obey_any_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents follow orders of any epoch."""

    def planted(self: Epoch, epoch: int) -> None:
        self.seen = max(self.seen, epoch)

    monkeypatch.setattr(Epoch, "check", planted)
