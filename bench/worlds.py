"""The input of the benchmarks: commands as they arrive from outside, and a large state made of changes.

Job documents pass through JSON, so that no two jobs share a string that real submissions would not share. Partitions
are not ready, so nothing is matched; placements are made here. They wait for a resource manager that is registered and
sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from fairlead.core.changes import (
    Acknowledged,
    Asked,
    Change,
    Ended,
    JobAdded,
    NodeSpec,
    Part,
    Placed,
)
from fairlead.core.commands import AddNode, Configure, RegisterManager, Report, ReportState, Submit
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.model import NEW, JobSpec
from fairlead.core.plan import Plan
from fairlead.core.settings import PartitionConfig, PartitionSettings, QueueSettings
from fairlead.core.state import Partition
from fairlead.journal.codec import encode
from fairlead.journal.sql import SqliteJournal, Synchronous
from fairlead.writer.writer import Writer

Item = TypeVar("Item")

PARTITION = "default"
PLAIN = PartitionConfig(PartitionSettings(), (("root", QueueSettings()), ("root.default", QueueSettings(share=100))))
BATCH = 100
GANG = 64
PER_NODE = 8


def batches(items: Iterable[Item], size: int = BATCH) -> Iterator[list[Item]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def open_writer(folder: Path, synchronous: Synchronous = "full") -> Writer:
    """Return a writer on SQLite. Its partition has only the default queues, and is not ready until marked so."""
    writer = Writer(SqliteJournal(folder / "journal", synchronous), PARTITION)
    waits = RegisterManager(name="never-heard", operator=True)
    writer.cycle([Configure(config=PLAIN, operator=True), waits], 1)
    return writer


# -- commands ----------------------------------------------------------------------------------------------------


def job_text(at: int, tasks: int) -> str:
    """Return a job as a client would write it."""
    stage = {
        "name": "main",
        "count": tasks,
        "min": 1,
        "resources": {"cpu": 1, "memory": "1Gi"},
        "command": ["python", "train.py", f"--seed={at}"],
        "environment": {"SEED": str(at)},
    }
    return json.dumps({"name": f"train-{at}", "user": f"user{at % 50}", "stages": [stage]})


def job_spec(at: int, tasks: int) -> JobSpec:
    return parse_job(json.loads(job_text(at, tasks)))


def submits(jobs: int, tasks: int) -> Iterator[Submit]:
    for at in range(jobs):
        spec = job_spec(at, tasks)
        yield Submit(spec=spec, id=f"train-{at}.main", user=spec.user)


def node_spec(at: int) -> tuple[str, NodeSpec]:
    document = {
        "name": f"node-{at:05}",
        "resources": {"cpu": 64, "memory": "512Gi", "gpu": 8},
        "labels": {"zone": f"zone-{at % 4}", "rack": f"rack-{at // 40}", "gpu-model": "h100"},
    }
    return parse_node(json.loads(json.dumps(document)))


def node_commands(count: int) -> list[AddNode]:
    return [AddNode(name=name, spec=spec, operator=True) for name, spec in map(node_spec, range(count))]


# -- a large state -----------------------------------------------------------------------------------------------


class Large:
    """A writer's partition that is filled by changes, with one record per cycle.

    `write` makes changes as they are drawn, so a generator of changes sees the state that the earlier ones left.
    """

    def __init__(self, writer: Writer, nodes: int) -> None:
        self.writer = writer
        self.partition = writer.partition
        self._node = 0
        for batch in batches(node_commands(nodes), 1_000):
            writer.cycle(batch, self.partition.now + 1_000)

    def write(self, changes: Iterable[Change]) -> bytes:
        """Write one cycle without its phases, only a plan and a record. Return the record."""
        plan = Plan(self.partition, self.partition.now + 1_000)
        for change in changes:
            plan.do(change)
        record = encode(plan.now, plan.seal())
        writer = self.writer
        writer.journal.append(writer.stream, writer.epoch, writer.seq + 1, record)
        writer.seq += 1
        return record

    def fill(self, singles: int, blocks: int, pending: int) -> None:
        """Add tasks that run alone (in jobs of 100), in gangs of 64, and pending tasks (in jobs of 1,000)."""
        for _ in range(singles // 100):
            job = self.next_job()
            self.write(self.submit(100))
            self.write(change for index in range(100) for change in self.place(job, (index, index + 1)))
        for _ in range(blocks // GANG):
            job = self.next_job()
            self.write(self.submit(GANG))
            self.write(self.place(job, (0, GANG)))
        for batch in batches([*self.partition.allocations], 1_000):
            self.write(change for number in batch for change in self.acknowledge(number))
        for batch in batches(range(pending // 1_000), 10):
            self.write(change for _ in batch for change in self.submit(1_000))

    # Each of these yields the changes of one event in the present state.

    def next_job(self) -> str:
        return f"made-{self.partition.counters.job}.main"

    def submit(self, tasks: int) -> Iterator[Change]:
        partition = self.partition
        number, job = partition.counters.job, self.next_job()
        yield JobAdded(job, number, _made_spec(tasks))
        yield Asked(job, 0, NEW, partition.now, partition.now, partition.counters.ask)

    def place(self, job: str, block: tuple[int, int]) -> Iterator[Change]:
        """Place up to 8 tasks of the block on each node, the nodes in turn."""
        start, end = block
        parts: list[Part] = []
        while start < end:
            upto = min(end, start + PER_NODE)
            self._node = self._node % len(self.partition.nodes) + 1
            parts.append(Part(self._node, (start, upto)))
            start = upto
        attempt = self.partition.jobs[job].stages[0].next_attempt(block)
        yield Placed(job, 0, NEW, attempt, self.partition.counters.allocation, tuple(parts))

    def acknowledge(self, number: int) -> Iterator[Change]:
        yield Acknowledged(number, self.partition.allocations[number].indices)

    def end(self, number: int) -> Iterator[Change]:
        """Let the tasks of an allocation succeed. The job does not change: ends of jobs are not measured here."""
        yield Ended(number, self.partition.allocations[number].indices, "succeeded", exit_code=0)

    def mix(self, changes: int) -> Iterator[Change]:
        """Yield a number of changes: jobs of one task arrive, are placed and acknowledged, and the oldest task ends."""
        left = changes
        while left > 0:
            job = self.next_job()
            number = self.partition.counters.allocation
            steps = [self.submit(1), self.place(job, (0, 1)), self.acknowledge(number)]
            steps.append(self.end(next(iter(self.partition.allocations))))
            for change in islice((change for step in steps for change in step), left):
                left -= 1
                yield change


@cache
def _made_spec(tasks: int) -> JobSpec:
    return replace(job_spec(0, tasks), queue="root.default")


def reports(partition: Partition, jobs: Iterable[str], state: ReportState) -> Iterator[Report]:
    """Yield reports of agents about the live tasks of these jobs, one per allocation."""
    for job in jobs:
        for stage in partition.jobs[job].stages:
            for allocation in (stage.live or {}).values():
                node = partition.nodes.name[partition.nodes.rows[allocation.node]]
                yield Report(
                    node=node,
                    job=job,
                    stage=stage.name,
                    indices=allocation.indices,
                    attempt=allocation.attempt,
                    state=state,
                    exit_code=0 if state == "succeeded" else None,
                )
