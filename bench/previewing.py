"""Predictions: the speed of computing start times of waiting jobs, and the writer's cycles meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from msgspec.structs import replace

from bench.harness import Row, loop_seconds
from fairlead.core.commands import AddNode, Command, Configure, MarkReady, SetPriority, Submit
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.resources import SECOND
from fairlead.forecast.eta import draw_futures, sum_up
from fairlead.forecast.preview_process import SECONDS
from fairlead.forecast.previewer import Previewer
from fairlead.forecast.recorded import Past, PastJob
from fairlead.forecast.runtimes import Runtimes
from fairlead.history.store import History
from fairlead.journal.sql import SqliteJournal
from fairlead.sim.policy_files import NAMED
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import LeftOut, Trace
from fairlead.sim.traces.generate import Workload, generate
from fairlead.sim.traces.trace import cpu_node
from fairlead.wire.preview import EtaQuestion, Etas
from fairlead.writer.writer import Writer

WAITING = 1_000
PROCESSORS = 256
GOAL = 5.0
PAUSE = 0.01
"""Seconds between two cycles, as under load."""
QUIET = 300
"""Cycles without a question; the first ones do not count."""
UNAFFECTED = 1.1
"""Factor by which cycles may slow down while start times are computed."""


def previewing(scale: float) -> Iterator[Row]:
    """Yield the time of an answer for all jobs that wait on an overloaded machine."""
    wanted = max(10, int(WAITING * scale))
    nodes = [("machine", cpu_node(PROCESSORS))]
    arrivals = generate(Workload(jobs=wanted + wanted // 30, load=95, largest=PROCESSORS // 4), nodes, "extend")
    begin = arrivals[-1].at + 1
    past, runtimes = Past(), Runtimes()
    for arrival in arrivals:
        spec, run = arrival.spec, arrival.run
        past.add(PastJob(arrival.at, arrival.job, spec, [run]))
        runtimes.note(spec.user, spec.name, spec.stages[0].name, run, spec.stages[0].estimate)
    queue = [replace(arrival, at=begin, id=f"again-{arrival.id}") for arrival in arrivals]
    trace = Trace("made up", queue, nodes, LeftOut())
    simulation = Simulation(trace, NAMED["easy"](trace))
    partition = simulation.writer.partition
    simulation.run(begin)
    waiting = [job.id for job in partition.jobs.values() if not job.over and not job.live][:wanted]
    began = perf_counter()
    workers = os.cpu_count() or 1
    samples = draw_futures(partition, simulation.now, runtimes, past, waiting, SECONDS, workers=workers)
    known = sum(sum_up(job, samples).likely is not None for job in waiting)
    seconds = perf_counter() - began
    yield Row(
        f"start times of {len(waiting):,} waiting jobs",
        seconds,
        "s",
        GOAL,
        ratio=seconds / loop_seconds(),
        against="a million steps of a loop",
        note=f"{len(samples)} futures, {known:,} with a start, {len(past.jobs):,} recorded jobs",
    )
    yield from _beside(wanted)


def _beside(wanted: int) -> Iterator[Row]:
    """Yield how much longer a writer's cycles take while a second process computes the start times of its jobs."""
    with TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "journal")
        history = History(Path(folder) / "history")
        try:
            yield asyncio.run(_compare(Writer(journal, "default"), Path(folder), wanted))
        finally:
            history.close()
            journal.close()


async def _compare(writer: Writer, folder: Path, wanted: int) -> Row:
    config = parse_config({"partitions": {"default": {"backfill": "easy"}}})["default"]
    _, node = parse_node({"name": "n", "resources": {"cpu": PROCESSORS}})
    now = 1_790_000_000 * SECOND

    def did(commands: list[Command]) -> float:
        nonlocal now
        now += 1
        began = perf_counter()
        writer.cycle(commands, now)
        return perf_counter() - began

    did([Configure(config=config, version=1, operator=True), MarkReady(operator=True)])
    did([AddNode(name="n", spec=node, operator=True)])
    sizes = cycle((1, 2, 3, 8, 20))
    submits: list[Command] = []
    for number in range(wanted + PROCESSORS):
        stage = {"resources": {"cpu": next(sizes)}, "estimate": f"{5 + number % 50}min"}
        spec = parse_job({"name": f"job{number % 7}", "user": f"user{number % 13}", "stages": [stage]})
        submits.append(Submit(spec=spec, id=f"j{number}", operator=True))
    did(submits)
    waiting = [job.id for job in writer.partition.jobs.values() if not job.live][:wanted]
    turns = cycle(waiting)

    async def step() -> float:
        await asyncio.sleep(PAUSE)
        return did([SetPriority(job=next(turns), priority=now % 3, operator=True)])

    quiet = [await step() for _ in range(QUIET)][QUIET // 3 :]
    preview = Previewer(folder / "journal", folder / "history")
    question = EtaQuestion(partition="default", seq=writer.seq, now=now, jobs=tuple(waiting))
    began = perf_counter()
    asking = asyncio.create_task(preview.ask(question))
    busy: list[float] = []
    while not asking.done():
        busy.append(await step())
    answered = perf_counter() - began
    found = asking.result()
    await preview.close()
    assert isinstance(found, Etas), found
    quiet += [await step() for _ in range(QUIET)]
    ratio = median(busy) / median(quiet)
    return Row(
        f"cycles of the writer while start times of {len(waiting):,} jobs are computed",
        ratio,
        "times as long",
        UNAFFECTED,
        note=f"median {median(busy) * 1e3:.2f} ms of {len(busy)} cycles, {median(quiet) * 1e3:.2f} ms of {len(quiet)} "
        f"others; longest {max(busy) * 1e3:.1f} and {max(quiet) * 1e3:.1f} ms; {found.futures} futures in "
        f"{answered:.1f} s",
    )
