"""Logs are copied from nodes of pools: in blocks, again after a node was away, and before a node is given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlead.core.ranges import count
from fairlead.engines import collecting
from fairlead.engines.base import Away, Ended
from fairlead.engines.collecting import BLOCK, Collector
from fairlead.wire.agent import Output, OutputPart, OutputRequest, Tasks

SECONDS = 30


def ended(index: int, pool: str = "work", stale: bool = False, node: str = "n1") -> Ended:
    return Ended("default", node, "job", 1, "main", index, 1, "succeeded", 0, 0, 1, 1, 1, stale, pool)


class Hub:
    def __init__(self, away: int = 0) -> None:
        self.away = away
        self.asked: list[OutputRequest] = []
        self.stored: list[int] = []
        self.notes: list[dict[str, Any]] = []
        self.copied: list[tuple[str, Tasks]] = []
        self.collector = Collector(
            self, self.store, self.user, lambda event, fields: self.notes.append(fields), self.mark_copied
        )

    async def outputs(self, partition: str, node: str, asked: OutputRequest) -> AsyncIterator[OutputPart]:
        if self.away:
            self.away -= 1
            raise Away(f"node {node} is not connected")
        self.asked.append(asked)
        for at in range(0, asked.tasks.indices[-1], 100):
            yield OutputPart(0, tuple(Output(index, "out", 0, b"x") for index in range(at, at + 1)))
        yield OutputPart(0, (), True)

    def store(self, partition: str, user: str, tasks: Tasks, part: OutputPart) -> None:
        assert user == "ann"
        self.stored += [output.index for output in part.outputs]

    def mark_copied(self, partition: str, node: str, tasks: Tasks) -> None:
        self.copied.append((node, tasks))

    async def user(self, partition: str, job: str, number: int) -> str:
        return "ann"


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


def test_tasks_are_marked_when_all_of_their_logs_are_stored() -> None:
    async def story() -> None:
        hub = Hub()
        left = Tasks("job", 1, "main", 1, (3, 4, 7, 9))
        hub.collector.add(("default", "n1"), left)
        await hub.collector.settle("default", ["n1"])
        assert hub.copied == [("n1", left)] and [asked.tasks for asked in hub.asked] == [left]

        def full(partition: str, user: str, tasks: Tasks, part: OutputPart) -> None:
            raise OSError("no space left")

        hub.collector._store = full
        hub.collector.add(("default", "n1"), left)
        await asyncio.sleep(0.05)
        assert hub.notes[0]["problem"] == "no space left" and len(hub.copied) == 1
        await hub.collector.close()

    run(story)


def test_a_node_that_was_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "AWAY_PAUSE", 0.0)

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
        monkeypatch.setattr(collecting, "AWAY_PAUSE", 0.0)
        hub.collector.ended([ended(0, node="n2")])
        while len(hub.notes) < 2:
            await asyncio.sleep(0)
        assert hub.notes[1] == {"node": "n2", "tasks": 1, "problem": "node n2 is not connected"}
        await hub.collector.close()

    run(story)
