"""Speed of explain, remedies and dry runs while a million tasks wait."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from time import monotonic

from msgspec.structs import replace

from bench.harness import Row, best, loop_seconds
from fairlead.control.fork import fork, result_of
from fairlead.core.commands import AddNode, Command, Configure, MarkReady, Submit
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.journal.in_memory import MemoryJournal
from fairlead.views.dryrun import Tried, try_submission
from fairlead.views.explanation import explained, remedies_of
from fairlead.writer.gc_settings import spare_the_collector
from fairlead.writer.writer import Writer

QUEUES, NODES, JOBS, TASKS = 10, 1_000, 100_000, 10
SEARCHING = 1.0


def explaining(scale: float) -> Iterator[Row]:
    loop = loop_seconds()
    writer = _waiting(max(QUEUES, round(JOBS * scale)), max(1, round(NODES * scale)))
    partition = writer.partition
    usual = gc.get_threshold()
    spare_the_collector()
    waiting = sum(stage.waiting() for job in partition.jobs.values() for stage in job.stages)
    note = f"{waiting:,} tasks of {len(partition.jobs):,} jobs wait, {len(partition.nodes):,} nodes"
    jobs = [next(job for job in partition.jobs.values() if not job.allocations), list(partition.jobs.values())[-1]]
    for which, job in zip(("first", "last"), jobs, strict=True):
        took = best(lambda job=job: explained(partition, job, writer.reasons, 3))  # type: ignore[misc]
        yield Row(f"explain the {which} waiting job", took * 1e3, "ms", 50, False, took / loop, "plain loop", note)

    def search() -> bytes:
        end = monotonic() + SEARCHING
        return str(remedies_of(partition, partition.jobs[jobs[0].id], 3, lambda: monotonic() > end)).encode()

    took, blocked = _on_copy(search)
    yield Row("its remedies, in a second process", took * 1e3, "ms", None, False, took / loop, "plain loop", note)
    blocked_note = "the time in which no cycle can begin"
    yield Row("the start of that process", blocked * 1e3, "ms", None, False, blocked / loop, "plain loop", blocked_note)
    spec = replace(jobs[0].spec, queue=jobs[0].queue.path)

    def attempt() -> bytes:
        tried = try_submission(partition, Submit(spec=spec, operator=True), writer.reasons, 3)
        assert isinstance(tried, Tried)
        return str(tried.explained().waiting).encode()

    took, _ = _on_copy(attempt)
    yield Row("a dry run, with remedies", took * 1e3, "ms", 200, False, took / loop, "plain loop", note)
    gc.unfreeze()
    gc.set_threshold(*usual)


def _on_copy(work: Callable[[], bytes]) -> tuple[float, float]:
    """Return the seconds from the start of a copy to its result, and the seconds that making the copy took."""

    async def once() -> tuple[float, float]:
        began = monotonic()
        pid, pipe = fork(work, SEARCHING)
        forked = monotonic()
        assert await result_of(pid, pipe, SEARCHING)
        return monotonic() - began, forked - began

    return min(asyncio.run(once()) for _ in range(3))


def _waiting(jobs: int, nodes: int) -> Writer:
    """Return a writer with full nodes and waiting jobs in several queues."""
    tree = {f"q{at}": {"share": at + 1} for at in range(QUEUES)}
    config = parse_config({"partitions": {"default": {"chain": 0, "queues": {"root": tree}}}})["default"]
    writer = Writer(MemoryJournal(), "default")
    node = parse_node({"name": "n", "resources": {"cpu": 8}})[1]
    commands: list[Command] = [Configure(config=config, operator=True), MarkReady(operator=True)]
    commands += [AddNode(name=f"n{at}", spec=node, operator=True) for at in range(nodes)]
    document = {"stages": [{"count": TASKS, "min": 1, "resources": {"cpu": 1}}]}
    specs = [replace(parse_job(document), queue=f"root.q{at}") for at in range(QUEUES)]
    commands += [Submit(spec=specs[at % QUEUES], operator=True) for at in range(jobs)]
    for at in range(0, len(commands), 1_000):
        writer.cycle(commands[at : at + 1_000], 2)
    while writer.more:
        writer.cycle([], 2)
    return writer
