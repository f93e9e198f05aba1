"""The control plane by itself, with an engine that only listens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fairlead.api.control import Control
from fairlead.core.commands import AddNode, Kill, MarkReady, Submit
from fairlead.core.config import parse_partition
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.effects import ForNode
from fairlead.engines.base import PartitionHandle
from fairlead.journal.memory import MemoryJournal


class Listener:
    """An engine that notes what nodes would be told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin(self, partition: str, desk: PartitionHandle) -> None:
        pass

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        for message in messages:
            self.heard += ["launch" for _ in message.launches] + ["stop" for _ in message.stops]

    def end(self, partition: str) -> None:
        pass


def config(**queue: Any) -> Any:
    return parse_partition({"queues": {"root": {"a": queue}}}, "test")


def test_what_a_configuration_starts_is_told_before_what_comes_after_it() -> None:
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
        configuring = asyncio.create_task(control.configure({"default": config()}))
        await asyncio.sleep(0)  # it is being followed now, and this waits for its turn:
        await asyncio.gather(configuring, control.execute(served, Kill(job="j", operator=True)))
        await control.close()
        return engine.heard

    assert asyncio.run(story()) == ["launch", "stop"]
