"""Output is taken from nodes: in blocks, again after a node was away or the store failed, and before a node is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.core.ranges import count
from fairlead.engines import collector
from fairlead.engines.collector import BLOCK, Collector, Source
from fairlead.engines.engine import Away, Ended
from fairlead.wire.agent_messages import Collected, Output, OutputPart, OutputRequest, Tasks

SECONDS = 30


def ended(index: int, pool: str = "work", stale: bool = False, node: str = "n1") -> Ended:
    return Ended("default", node, "job", 1, "main", index, 1, "succeeded", 0, 0, 1, 1, 1, stale, pool)


class Hub:
    """The nodes, the store and the history of a collector."""

    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.full = 0
        """Times that the store fails."""
        self.asked: list[OutputRequest] = []
        self.stored: list[int] = []
        self.told: list[Tasks] = []
        self.notes: list[dict[str, Any]] = []
        self.copied: list[tuple[str, Tasks]] = []
        self.results: set[int] = set()
        """Tasks with result files on their node."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.collector = Collector(
            self,
            lambda partition, source, tasks, logs: self,
            self.source,
            lambda event, fields: self.notes.append(fields),
            self.mark_copied,
        )

    async def outputs(self, partition: str, node: str, asked: OutputRequest) -> AsyncIterator[OutputPart]:
        if self.away:
            self.away -= 1
            raise Away(f"node {node} is not connected")
        self.asked.append(asked)
        for at in range(0, asked.tasks.indices[-1], 100):
            await self.gate.wait()
            collected = (Collected(at, ()),) if at in self.results else ()
            outputs = (Output(at, "out", 0, b"x"),) if asked.logs else ()
            yield OutputPart(0, outputs, collected=collected)
        yield OutputPart(0, (), True)

    def taken(self, partition: str, node: str, tasks: Tasks, user: str) -> None:
        self.told.append(tasks)

    def write(self, part: OutputPart) -> tuple[int, ...]:
        if self.full:
            self.full -= 1
            raise OSError("no space left")
        self.stored += [output.index for output in part.outputs]
        return tuple(each.index for each in part.collected)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass

    def mark_copied(self, partition: str, node: str, tasks: Tasks) -> None:
        self.copied.append((node, tasks))

    async def source(self, node: tuple[str, str], tasks: Tasks, check: bool) -> Source:
        return Source("ann", tasks.indices, 10, 1000)


def run(story: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await story()

    asyncio.run(bounded())


def test_tasks_of_pool_nodes_are_collected_in_blocks() -> None:
    async def story() -> None:
        hub = Hub()
        hub.collector.ended([ended(index) for index in range(2 * BLOCK + 1)])
        hub.collector.ended([ended(1, pool=""), ended(2, stale=True)])
        await hub.collector.settle("default", ["n1", "n2"])
        assert [count(asked.tasks.indices) for asked in hub.asked] == [BLOCK, BLOCK, 1]
        assert hub.notes == [] and hub.collector._working == {} == hub.collector._sizes

    run(story)


def test_tasks_are_marked_when_all_of_their_logs_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PAUSE", 0.0)

    async def story() -> None:
        hub = Hub()
        left = Tasks("job", 1, "main", 1, (3, 4, 7, 9))
        hub.collector.add(("default", "n1"), left)
        await hub.collector.settle("default", ["n1"])
        assert hub.copied == [("n1", left)] and [asked.tasks for asked in hub.asked] == [left]

        hub.full = 1
        hub.collector.add(("default", "n1"), left)
        while len(hub.copied) < 2:
            await asyncio.sleep(0.01)
        assert hub.notes == [{"node": "n1", "job": "job", "problem": "no space left"}], "it was tried again"
        await hub.collector.close()

    run(story)


def test_a_node_that_was_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PAUSE", 0.0)

    async def story() -> None:
        hub = Hub(away=3)
        hub.collector.ended([ended(0)])
        await hub.collector.settle("default", ["n1"])
        assert len(hub.asked) == 1 and hub.stored == [0]

    run(story)


def test_what_cannot_be_copied_is_given_up_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        hub = Hub(away=1_000_000)
        hub.collector.ended([ended(0), ended(1)])
        await hub.collector.settle("default", ["n1"], seconds=0.0)
        assert hub.notes == [{"node": "n1", "tasks": 2, "problem": "the node is given back"}]
        await asyncio.sleep(0)
        monkeypatch.setattr(collector, "PAUSE", 0.0)
        hub.collector.ended([ended(0, node="n2")])
        while len(hub.notes) < 2:
            await asyncio.sleep(0)
        assert hub.notes[1] == {"node": "n2", "tasks": 1, "problem": "node n2 is not connected"}
        await hub.collector.close()

    run(story)


def test_result_files_are_taken_from_every_node_and_expected_until_then() -> None:
    async def story() -> None:
        hub = Hub()
        hub.results = {0}
        hub.gate.clear()
        hub.collector.collected("default", "n1", Tasks("job", 1, "main", 1, (0, 2)))
        assert (hub.collector.expected("default", 1), hub.collector.expected("default", 2)) == (2, 0)
        hub.gate.set()
        await hub.collector.settle("default", ["n1"])
        assert [asked.logs for asked in hub.asked] == [False] and hub.copied == [] == hub.stored
        assert [tasks.indices for tasks in hub.told] == [(0, 1)]
        assert hub.collector.expected("default", 1) == 0 and hub.collector._expected == {}

    run(story)


def test_a_node_is_not_given_back_while_it_sends() -> None:
    """Each part extends the wait; a node that sends nothing is given up."""

    async def story() -> None:
        hub = Hub()
        hub.gate.clear()
        hub.collector.collected("default", "n1", Tasks("job", 1, "main", 1, (0, 500)))
        waits = asyncio.create_task(hub.collector.settle("default", ["n1"], seconds=0.5))
        for _ in range(4):
            await asyncio.sleep(0.2)
            hub.collector._progress["default", "n1"] = hub.collector._progress.get(("default", "n1"), 0) + 1
            assert not waits.done()
        await waits
        assert hub.notes == [{"node": "n1", "tasks": 500, "problem": "the node is given back"}]
        while hub.collector.expected("default", 1):
            await asyncio.sleep(0.01)

    run(story)
