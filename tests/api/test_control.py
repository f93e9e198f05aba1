"""The control plane alone, with an engine that only records messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.api.control import Control
from fairlead.api.problems import Unserved
from fairlead.core.commands import AddNode, Kill, MarkReady, Submit
from fairlead.core.config import parse_partition
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.effects import ForNode
from fairlead.engines.base import PartitionHandle
from fairlead.journal.codec import CLUSTER_STREAM
from fairlead.journal.memory import MemoryJournal


class Listener:
    """An engine that records the messages to nodes."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def begin(self, partition: str, desk: PartitionHandle) -> None:
        pass

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        for message in messages:
            self.messages += ["launch" for _ in message.launches] + ["stop" for _ in message.stops]

    def end(self, partition: str) -> None:
        pass


def config(**queue: Any) -> Any:
    return parse_partition({"queues": {"root": {"a": queue}}}, "test")


def test_launches_of_a_configuration_are_sent_before_later_stops() -> None:
    async def story() -> list[str]:
        journal, engine = MemoryJournal(), Listener()
        control = Control(lambda: journal, engine, first={"default": config(limit={"cpu": 1})})
        await control.start()
        served = control.find()
        name, node = parse_node({"name": "n0", "resources": {"cpu": 4}})
        spec = parse_job({"queue": "root.a", "stages": [{"command": ["true"], "resources": {"cpu": 2}}]})
        for command in (MarkReady(operator=True), AddNode(name=name, spec=node, operator=True)):
            await control.execute(served, command)
        await control.execute(served, Submit(spec=spec, id="j", operator=True))
        await control.configure({"default": config()})
        await control.execute(served, Kill(job="j", operator=True))
        await control.close()
        return engine.messages

    assert asyncio.run(story()) == ["launch", "stop"]


def test_a_configuration_that_meets_the_end_of_the_writers_starts_no_partition() -> None:
    """The next control plane follows it: it is durable."""

    async def story() -> list[str]:
        journal = MemoryJournal()
        control = Control(lambda: journal, Listener(), first={"default": config()})
        await control.start()
        configuring = asyncio.create_task(control.configure({"default": config(), "other": config()}))
        while journal.last(CLUSTER_STREAM) < 2:
            await asyncio.sleep(0)
        await control.close()
        with pytest.raises(Unserved):
            await configuring
        assert control.names() == []
        control = Control(lambda: journal, Listener(), first={"default": config()})
        await control.start()
        try:
            return control.names()
        finally:
            await control.close()

    assert asyncio.run(story()) == ["default", "other"]
