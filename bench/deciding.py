"""How fast cycles decide: gangs and single tasks from a backlog, matched, checked and written durably."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Row, loop_seconds, timed
from bench.worlds import open_writer
from fairlead.core.commands import AddNode, AnyCommand, MarkReady, Submit
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.model import JobSpec
from fairlead.writer.loop import Writer


def deciding(scale: float) -> Iterator[Row]:
    nodes = max(10, round(10_000 * scale))
    gang = [parse_job({"stages": [{"count": 64, "resources": {"cpu": 1}}]})]
    shapes = [
        parse_job({"stages": [{"resources": {"cpu": 1 + at % 5, "memory": f"{1 + at // 5}Gi"}}]}) for at in range(20)
    ]
    loop = loop_seconds()
    yield _row("gangs of 64 from a backlog", nodes, gang, max(2, round(2_000 * scale)), 64, 400_000, loop)
    yield _row(
        "single tasks of 20 shapes from a backlog", nodes, shapes, max(20, round(50_000 * scale)), 1, 80_000, loop
    )


def _row(what: str, nodes: int, specs: list[JobSpec], jobs: int, tasks: int, goal: float, loop: float) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        writer = open_writer(Path(folder))
        _prepare(writer, nodes, specs, jobs)
        gc.freeze()  # as a server would after its start: what waits is not walked through again and again
        took, busy = timed(lambda: _decide(writer))
        gc.unfreeze()
        placed = sum(job.live for job in writer.partition.jobs.values())
        writer.journal.close()
    note = f"{busy / placed * 1_000_000:.1f} µs of CPU each"
    return Row(what, placed / took, "/s", goal, True, took / loop, "plain loop", note)


def _prepare(writer: Writer, nodes: int, specs: list[JobSpec], jobs: int) -> None:
    _, spec = parse_node({"name": "n", "resources": {"cpu": 64, "memory": "512Gi", "gpu": 8}})
    commands: list[AnyCommand] = [AddNode(name=f"n{at}", spec=spec, operator=True) for at in range(nodes)]
    commands += [Submit(spec=specs[at % len(specs)], operator=True) for at in range(jobs)]
    for at in range(0, len(commands), 1_000):
        writer.turn(commands[at : at + 1_000], 1)


def _decide(writer: Writer) -> None:
    writer.turn([MarkReady(operator=True)], 2)
    while writer.more:
        writer.turn([], 2)
