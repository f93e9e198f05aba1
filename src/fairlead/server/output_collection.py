"""Collects logs and result files of tasks from their nodes into the store, and records them in the history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from structlog.typing import FilteringBoundLogger

from fairlead.control.control import Control
from fairlead.core.errors import Refused
from fairlead.core.ranges import Flat, Ranges, difference
from fairlead.core.ranges import indices as each_index
from fairlead.core.state import Partition
from fairlead.engines.collector import Collector, Hub, Node, Sink, Source
from fairlead.engines.engine import Away, Ended
from fairlead.history.outputs import Incoming, OutputStore
from fairlead.history.recorder import ResultRow
from fairlead.history.store import History, Used
from fairlead.wire.agent_messages import Tasks
from fairlead.wire.unserved import Unserved

PAUSE, TIMES = 0.1, 600
"""Seconds between two tries to resume copying logs of a partition that is not served yet, and the number of tries."""


class OutputCollection:
    """Connects the collector with the agents' hub, the control plane, the history and the store."""

    def __init__(self, history: History, outputs: OutputStore, log: FilteringBoundLogger) -> None:
        self.collector: Collector
        self._history = history
        self._outputs = outputs
        self._log = log
        self._control: Control
        self._loop = asyncio.get_running_loop()
        self._resumed: dict[str, asyncio.Event] = {}
        """Partition → event that is set when the logs that an earlier leader did not copy are queued."""
        self._resuming: set[asyncio.Task[None]] = set()

    def connect(self, hub: Hub, control: Control) -> None:
        """Connect the hub and the control plane, before the control plane starts."""
        self._control = control
        self.collector = Collector(
            hub,
            self._sink,
            partial(source_of, control, self._history),
            lambda event, fields: self._log.warning(event, **fields),
            self._history.mark_copied,
        )

    # -- calls of the hub, the pools and the control plane -------------------------------------------------------

    def ended(self, ended: list[Ended]) -> None:
        """Record what ended tasks used, and queue their logs and result files."""
        used = []
        for task in ended:
            ids = (task.partition, task.number, task.stage, task.index, task.attempt)
            node = task.node if task.stale else ""
            used.append(Used(*ids, task.signal, task.ran, task.cpu, task.memory, node))
        self._history.put_used(used)
        self.collector.ended(ended)

    def collected(self, partition: str, node: str, tasks: Tasks) -> None:
        """Queue tasks whose result files are on a node."""
        self.collector.collected(partition, node, tasks)

    async def settle(self, partition: str, nodes: Sequence[str]) -> None:
        """Wait until the outputs of nodes are copied, before the nodes are removed."""
        await self._resumed.setdefault(partition, asyncio.Event()).wait()
        await self.collector.settle(partition, nodes)

    def resume_soon(self, partition: str) -> None:
        """Queue the logs that an earlier leader of a partition did not copy. May be called in any thread."""
        self._loop.call_soon_threadsafe(self._begin_resuming, partition)

    async def close(self) -> None:
        for task in self._resuming:
            task.cancel()
        await self.collector.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _begin_resuming(self, partition: str) -> None:
        self._resumed.setdefault(partition, asyncio.Event()).clear()
        task = asyncio.create_task(self._resume_when_served(partition))
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)

    async def _resume_when_served(self, partition: str) -> None:
        for _ in range(TIMES):  # the partition is served soon, unless another server has taken it over
            with suppress(Unserved, Refused):
                await resume(self._control, partition, self._history, self.collector)
                self._resumed[partition].set()
                return
            await asyncio.sleep(PAUSE)

    def _sink(self, partition: str, source: Source, tasks: Tasks, logs: bool) -> Sink:
        limits = (source.max_files, source.max_bytes)
        return Incoming(self._outputs, partition, source.user, tasks, limits, self._record, only_results=not logs)

    def _record(self, partition: str, number: int, rows: list[ResultRow], replace: bool) -> None:
        for row in self._history.put_results(partition, number, rows, replace):
            if row.warning:
                task = {"stage": row.stage, "index": row.index, "attempt": row.attempt}
                self._log.warning("results incomplete", partition=partition, number=number, problem=row.warning, **task)


async def source_of(control: Control, history: History, node: Node, tasks: Tasks, check: bool) -> Source:
    """Return the user of tasks and the limits on their result files, also for past jobs.

    With `check`, leave out tasks that did not run on the node, so that a node cannot add to the results of other tasks.
    """

    def look(state: Partition) -> tuple[Source, Flat]:
        job = state.jobs.get(tasks.job)
        user, found = "", () if check else tasks.indices
        if job is not None and job.number == tasks.number:
            user = job.spec.user
            if check:
                found = _running_on(state, node[1], tasks)
        return Source(user, found, state.settings.max_result_files, state.settings.max_result_bytes), found

    try:
        source, found = await control.find(node[0]).read(look)
    except (Refused, Unserved):
        raise Away("the partition is not served now") from None
    if not source.user:
        row = await asyncio.to_thread(history.job, node[0], tasks.job)
        source = source._replace(user="" if row is None or row.number != tasks.number else row.user)
    rest = difference(tasks.indices, found)
    if rest and source.user:
        past = Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, rest)
        ran = Ranges(await asyncio.to_thread(history.ran_on, node[0], node[1], past))
        ran.add(found)
        source = source._replace(indices=ran.flat())
    return source


def _running_on(state: Partition, node: str, tasks: Tasks) -> Flat:
    """Return the indices of those tasks that the state has on a node."""
    stage, node_id = state.jobs[tasks.job].stage(tasks.stage), state.nodes.find(node)
    live = (stage.live or {}) if stage is not None and node_id is not None else {}
    return Ranges.from_indices(
        index
        for index in each_index(tasks.indices)
        if (task := live.get(index)) is not None and (task.attempt, task.node) == (tasks.attempt, node_id)
    ).flat()


async def resume(control: Control, partition: str, history: History, collector: Collector) -> None:
    """Queue the logs that an earlier leader did not copy from nodes of pools that still exist."""

    def nodes_of_pools(state: Partition) -> list[str]:
        nodes = state.nodes
        return [nodes.name[row] for row in nodes.rows.values() if nodes.pool[row]]

    nodes = await control.find(partition).read(nodes_of_pools)
    for node, tasks in await asyncio.to_thread(history.not_copied, partition, nodes):
        collector.add((partition, node), tasks)
