"""Copies the output of ended tasks from their nodes: result files from every node, logs only from nodes of pools.

A node of a pool may be gone soon. Only the return of a node to its pool, and readers of results, wait for the copies.
A node sends the output of one block of tasks at a time, and few nodes send at once, so that copying does not slow down
a flood of tasks. The result files of a task are copied before its logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fairlead.core.ranges import Flat, Ranges, count, indices, split
from fairlead.engines.engine import Away, Ended, Log
from fairlead.wire.agent_messages import OutputPart, OutputRequest, Tasks

AT_ONCE = 4
"""Nodes that send output at a time."""
BLOCK = 500
"""Tasks whose output is requested at a time."""
MOST_WAITING = 1_000_000
"""Tasks of a node whose output may wait to be copied. The output of further tasks stays on the node."""
RETURN_TIMEOUT = 60.0
"""Seconds without progress after which the return of a node to its pool no longer waits for output."""
RETURN_LIMIT = 1_800.0
"""Seconds after which the return of a node no longer waits, even with progress."""
PAUSE, TIMES = 1.0, 600
"""Seconds before another attempt if a node was away or a store failed, and the number of attempts."""

Node = tuple[str, str]
"""Partition and node."""


class Source(NamedTuple):
    user: str
    """The user of the tasks; empty if the job is no longer known."""
    indices: Flat
    """The tasks that ran on the node."""
    max_files: int
    max_bytes: int


class Sink(Protocol):
    """Stores the output of one block of tasks. Its methods block on a disk or an object store.

    They raise `OSError` if storing fails; then the whole block is sent again later.
    """

    def write(self, part: OutputPart) -> tuple[int, ...]:
        """Store a part. Return the tasks whose result files are now all durably stored."""

    def finish(self) -> None:
        """Store all of the logs."""

    def close(self) -> None:
        """Remove incomplete output."""


class Hub(Protocol):
    def outputs(self, partition: str, node: str, asked: OutputRequest) -> AsyncIterator[OutputPart]: ...

    def taken(self, partition: str, node: str, tasks: Tasks, user: str) -> None: ...


class _Waiting(NamedTuple):
    tasks: Tasks
    logs: bool
    """True if their logs are copied too, not only their result files."""


class Collector:
    """Collects the output of ended tasks, in one asyncio loop."""

    def __init__(
        self,
        hub: Hub,
        sink: Callable[[str, Source, Tasks, bool], Sink],
        source: Callable[[Node, Tasks, bool], Awaitable[Source]],
        log: Log = lambda event, fields: None,
        copied: Callable[[str, str, Tasks], None] = lambda partition, node, tasks: None,
    ) -> None:
        """Take the callbacks. `sink` returns the store for a partition's output.

        Its last argument is True if logs are included. `source` looks up tasks of a node. Its last argument is True if
        it has to check that they ran on that node. `copied` is called with partition, node and tasks when the tasks'
        output is stored; it blocks on a disk.
        """
        self._copied = copied
        self._hub = hub
        self._sink = sink
        self._source = source
        self._log = log
        self._waiting: dict[Node, deque[_Waiting]] = {}
        self._sizes: dict[Node, int] = {}
        self._working: dict[Node, asyncio.Task[None]] = {}
        self._expected: dict[tuple[str, int], set[tuple[str, int, int]]] = {}
        """Partition and number of a job → stage, attempt and index of tasks whose result files are to be stored."""
        self._progress: dict[Node, int] = {}
        """Number of parts that a node has sent."""
        self._turns = asyncio.Semaphore(AT_ONCE)

    def ended(self, tasks: Iterable[Ended]) -> None:
        """Queue tasks that have ended. The logs of nodes outside pools are not copied."""
        blocks: dict[tuple[Node, tuple[str, int, str, int]], list[int]] = {}
        for task in tasks:
            if task.pool and not task.stale:
                block = (task.job, task.number, task.stage, task.attempt)
                blocks.setdefault(((task.partition, task.node), block), []).append(task.index)
        for (node, block), numbers in blocks.items():
            self.add(node, Tasks(*block, Ranges.from_indices(sorted(numbers)).flat()))

    def collected(self, partition: str, node: str, tasks: Tasks) -> None:
        if self.add((partition, node), tasks, logs=False):
            expected = self._expected.setdefault((partition, tasks.number), set())
            expected.update((tasks.stage, tasks.attempt, index) for index in indices(tasks.indices))

    def expected(self, partition: str, number: int) -> int:
        return len(self._expected.get((partition, number), ()))

    def add(self, node: Node, tasks: Tasks, logs: bool = True) -> bool:
        """Queue ended tasks of a node, whose output will be copied. Return False if too many wait."""
        size, more = self._sizes.get(node, 0), count(tasks.indices)
        if size + more > MOST_WAITING:
            self._log("output not copied", {"node": node[1], "tasks": more, "problem": "too many wait"})
            return False
        self._sizes[node] = size + more
        self._waiting.setdefault(node, deque()).append(_Waiting(tasks, logs))
        self._start(node)
        return True

    async def settle(self, partition: str, nodes: Sequence[str], seconds: float = RETURN_TIMEOUT) -> None:
        """Wait until the output of these nodes is copied, before the nodes are removed.

        Stops waiting after `seconds` without progress, and after `RETURN_LIMIT`.
        """
        names = [(partition, name) for name in nodes]
        loop = asyncio.get_running_loop()
        limit = loop.time() + RETURN_LIMIT
        while working := [self._working[node] for node in names if node in self._working]:
            before = [self._progress.get(node, 0) for node in names]
            _, rest = await asyncio.wait(working, timeout=seconds)
            stuck = before == [self._progress.get(node, 0) for node in names]
            if rest and (stuck or loop.time() > limit):
                break
        for node in names:
            self._give_up(node, "the node is given back")

    async def close(self) -> None:
        for task in self._working.values():
            task.cancel()
        await asyncio.gather(*self._working.values(), return_exceptions=True)

    def _give_up(self, node: Node, problem: str) -> None:
        tasks = self._sizes.get(node, 0)
        if tasks:
            self._log("output not copied", {"node": node[1], "tasks": tasks, "problem": problem})
            for waiting in self._waiting[node]:
                self._forget(node, waiting.tasks)
            self._waiting[node].clear()
        if node in self._working:
            self._working[node].cancel()

    def _forget(self, node: Node, tasks: Tasks) -> None:
        key = (node[0], tasks.number)
        expected = self._expected.get(key)
        if expected is not None:
            expected.difference_update((tasks.stage, tasks.attempt, index) for index in indices(tasks.indices))
            if not expected:
                del self._expected[key]

    def _start(self, node: Node) -> None:
        if node not in self._working:
            task = self._working[node] = asyncio.create_task(self._work(node))
            task.add_done_callback(lambda done: self._working.pop(node, None))

    async def _work(self, node: Node) -> None:
        waiting = self._waiting[node]
        failures = 0
        logged = ""
        try:
            while waiting:
                async with self._turns:
                    block = _first(waiting)
                    try:
                        await self._collect(node, block)
                    except asyncio.CancelledError:
                        self._forget(node, block.tasks)
                        raise
                    except (Away, OSError) as problem:
                        waiting.appendleft(block)
                        failures += 1
                        if isinstance(problem, OSError) and str(problem) != logged:
                            logged = str(problem)
                            self._log("output not stored", {"node": node[1], "job": block.tasks.job, "problem": logged})
                        if failures == TIMES:
                            return self._give_up(node, str(problem))
                    else:
                        self._sizes[node] -= count(block.tasks.indices)
                        failures = 0
                        continue
                await asyncio.sleep(PAUSE)
        finally:
            if not waiting:
                self._progress.pop(node, None)
                del self._waiting[node], self._sizes[node]

    async def _collect(self, node: Node, block: _Waiting) -> None:
        partition, name = node
        tasks = block.tasks
        source = await self._source(node, tasks, not block.logs)
        if source.user and source.indices:
            wanted = _of(tasks, source.indices)
            sink = await asyncio.to_thread(self._sink, partition, source, wanted, block.logs)
            asked = OutputRequest(0, wanted, source.user, block.logs, source.max_files, source.max_bytes)
            try:
                async for part in self._hub.outputs(partition, name, asked):
                    self._progress[node] = self._progress.get(node, 0) + 1
                    if part.outputs or part.collected:
                        stored = await asyncio.to_thread(sink.write, part)
                        if stored:
                            done = _of(tasks, Ranges.from_indices(sorted(stored)).flat())
                            self._hub.taken(partition, name, done, source.user)
                            self._forget(node, done)
                await asyncio.to_thread(sink.finish)
            finally:
                await asyncio.to_thread(sink.close)
        if block.logs:
            await asyncio.to_thread(self._copied, partition, name, tasks)
        self._forget(node, tasks)


def _of(tasks: Tasks, flat: Flat) -> Tasks:
    return Tasks(tasks.job, tasks.number, tasks.stage, tasks.attempt, flat)


def _first(waiting: deque[_Waiting]) -> _Waiting:
    """Take at most `BLOCK` tasks of one attempt of a stage from the front of the queue."""
    tasks, logs = waiting.popleft()
    together = Ranges(tasks.indices)
    while waiting and len(together) < BLOCK:
        more = waiting[0]
        if more.logs != logs or _of(more.tasks, tasks.indices) != tasks or together.overlap(more.tasks.indices):
            break
        together.add(waiting.popleft().tasks.indices)
    tasks = _of(tasks, together.flat())
    if count(tasks.indices) <= BLOCK:
        return _Waiting(tasks, logs)
    first, rest = split(tasks.indices, BLOCK)
    waiting.appendleft(_Waiting(_of(tasks, rest), logs))
    return _Waiting(_of(tasks, first), logs)
