"""Copies the logs of ended tasks from nodes of pools to the server, because such a node may be gone soon.

Nothing waits for it but the return of a node to its pool. Tasks are collected into blocks, a node sends one block at
a time, and few nodes send at once, so that a flood of tasks is not slowed down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from fairlead.core.ranges import Ranges, count, split
from fairlead.engines.base import Away, Ended, Log
from fairlead.wire.agent import OutputPart, OutputRequest, Tasks

AT_ONCE = 4
"""Nodes that send logs at a time."""
BLOCK = 500
"""Tasks whose logs are asked for at a time."""
MOST_WAITING = 1_000_000
"""Tasks of a node whose logs may wait to be copied. The logs of further tasks stay on the node."""
RETURN_TIMEOUT = 60.0
"""Seconds for which the return of a node to its pool waits for its logs."""
AWAY_PAUSE, AWAY_TIMES = 1.0, 600
"""Seconds after which a node that was away is asked again, and how often before its logs are given up."""

Node = tuple[str, str]
"""Partition and node."""


class Hub(Protocol):
    def outputs(self, partition: str, node: str, asked: OutputRequest) -> AsyncIterator[OutputPart]: ...


class Collector:
    """Collects the logs of ended tasks. All of it is for one asyncio loop."""

    def __init__(
        self,
        hub: Hub,
        store: Callable[[str, str, Tasks, OutputPart], None],
        user_of: Callable[[str, str, int], Awaitable[str]],
        log: Log = lambda event, fields: None,
        copied: Callable[[str, str, Tasks], None] = lambda partition, node, tasks: None,
    ) -> None:
        """`store` writes a part of the logs of a partition's user; it waits for a disk and may raise `OSError`.

        `user_of` returns the user of a job by partition, id and number; empty if the job is not known any more.
        `copied` is called with tasks of a partition's node when their logs are stored; it waits for a disk.
        """
        self._copied = copied
        self._hub = hub
        self._store = store
        self._user_of = user_of
        self._log = log
        self._waiting: dict[Node, deque[Tasks]] = {}
        self._sizes: dict[Node, int] = {}
        self._working: dict[Node, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def ended(self, tasks: Iterable[Ended]) -> None:
        """Take tasks that have ended. Those of nodes that belong to no pool are left alone."""
        blocks: dict[tuple[Node, tuple[str, int, str, int]], list[int]] = {}
        for task in tasks:
            if task.pool and not task.stale:
                block = (task.job, task.number, task.stage, task.attempt)
                blocks.setdefault(((task.partition, task.node), block), []).append(task.index)
        for (node, block), indices in blocks.items():
            self.add(node, Tasks(*block, Ranges.from_indices(sorted(indices)).flat()))

    def add(self, node: Node, tasks: Tasks) -> None:
        """Take tasks of a node that have ended and whose logs are to be copied."""
        size, more = self._sizes.get(node, 0), count(tasks.indices)
        if size + more > MOST_WAITING:
            self._log("logs not copied", {"node": node[1], "tasks": more, "problem": "too many wait"})
            return
        self._sizes[node] = size + more
        self._waiting.setdefault(node, deque()).append(tasks)
        self._start(node)

    async def settle(self, partition: str, nodes: Sequence[str], seconds: float = RETURN_TIMEOUT) -> None:
        """Wait until the logs of these nodes are copied, for at most `seconds`: the nodes are about to be gone."""
        working = [self._working[partition, name] for name in nodes if (partition, name) in self._working]
        if not working:
            return
        await asyncio.wait(working, timeout=seconds)
        for name in nodes:
            self._give_up((partition, name), "the node is given back")

    async def close(self) -> None:
        for task in self._working.values():
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _give_up(self, node: Node, problem: str) -> None:
        """Forget logs that still wait."""
        tasks = self._sizes.get(node, 0)
        if tasks:
            self._log("logs not copied", {"node": node[1], "tasks": tasks, "problem": problem})
            self._waiting[node].clear()
        if node in self._working:
            self._working[node].cancel()

    def _start(self, node: Node) -> None:
        if node not in self._working:
            task = self._working[node] = asyncio.create_task(self._work(node))
            task.add_done_callback(lambda done: self._working.pop(node, None))

    async def _work(self, node: Node) -> None:
        waiting = self._waiting[node]
        away = 0
        try:
            while waiting:
                async with self._turns:
                    tasks = _first(waiting)
                    try:
                        await self._collect(node, tasks)
                    except Away as problem:
                        waiting.appendleft(tasks)
                        away += 1
                        if away == AWAY_TIMES:
                            return self._give_up(node, str(problem))
                    except OSError as problem:
                        self._log("logs not copied", {"node": node[1], "job": tasks.job, "problem": str(problem)})
                        self._sizes[node] -= count(tasks.indices)
                    else:
                        self._sizes[node] -= count(tasks.indices)
                        away = 0
                        continue
                await asyncio.sleep(AWAY_PAUSE)
        finally:
            if not waiting:
                del self._waiting[node], self._sizes[node]

    async def _collect(self, node: Node, tasks: Tasks) -> None:
        partition, name = node
        user = await self._user_of(partition, tasks.job, tasks.number)
        if not user:
            return
        async for part in self._hub.outputs(partition, name, OutputRequest(0, tasks, user)):
            if part.outputs:
                await asyncio.to_thread(self._store, partition, user, tasks, part)
        await asyncio.to_thread(self._copied, partition, name, tasks)


def _first(waiting: deque[Tasks]) -> Tasks:
    """Take a block of at most `BLOCK` tasks from the queue."""
    tasks = waiting.popleft()
    if count(tasks.indices) <= BLOCK:
        return tasks
    first, rest = split(tasks.indices, BLOCK)
    waiting.appendleft(Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, rest))
    return Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, first)
