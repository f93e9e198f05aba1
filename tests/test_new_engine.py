"""An engine that only this file knows: it has no machines, and tasks end as soon as they are launched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.control.control import Control
from fairlead.control.dependencies import Dependencies
from fairlead.core.commands import AddNode, MarkReady, Report, Submit
from fairlead.core.config import parse_partition
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.effects import ForNode, outstanding_effects
from fairlead.engines.engine import PartitionHandle
from fairlead.journal.in_memory import MemoryJournal


class Instant:
    """Runs tasks without machines: each succeeds at once."""

    def __init__(self) -> None:
        self.handles: dict[str, PartitionHandle] = {}

    def begin(self, partition: str, handle: PartitionHandle) -> None:
        self.handles[partition] = handle
        effects = outstanding_effects(handle.partition)  # launches that an earlier leader may not have sent
        self.dispatch(partition, [effect for effect in effects if isinstance(effect, ForNode)])

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        for message in messages:
            for launch in message.launches:
                self.handles[partition].offer(
                    Report(
                        node=message.node,
                        job=launch.job,
                        stage=launch.stage,
                        indices=launch.indices,
                        attempt=launch.attempt,
                        state="succeeded",
                        exit_code=0,
                        operator=True,
                    )
                )

    def end(self, partition: str) -> None:
        del self.handles[partition]


def test_tasks_run_on_a_new_engine() -> None:
    async def story() -> tuple[str, int]:
        journal, engine = MemoryJournal(), Instant()
        configs = {"default": parse_partition({}, "test")}
        control = Control(Dependencies(lambda: journal, engine, first=configs))
        await control.start()
        served = control.find()
        name, node = parse_node({"name": "n", "resources": {"cpu": 2}})
        spec = parse_job({"stages": [{"command": ["true"], "array": 5}]})
        for command in (
            MarkReady(operator=True),
            AddNode(name=name, spec=node, operator=True),
            Submit(spec=spec, id="j", operator=True),
        ):
            await served.execute(command)
        async with asyncio.timeout(60):
            while not await served.read(lambda state: state.jobs["j"].over):
                await asyncio.sleep(0.01)
        found = await served.read(lambda state: (state.jobs["j"].state, state.jobs["j"].stages[0].done()))
        await control.close()
        assert not engine.handles
        return found

    assert asyncio.run(story()) == ("succeeded", 5)
