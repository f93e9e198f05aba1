"""The speed of cycles: gangs, single tasks and a mix from a backlog, steady state, idle cycles, and growth.

Everything goes through the writer: commands, plan, checks, effects, and one durable record a cycle.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from msgspec.structs import replace

from bench.harness import Row, loop_seconds, timed
from bench.worlds import PLAIN, open_writer
from fairlead.core.changes import NodeSpec
from fairlead.core.commands import AddNode, Command, Configure, MarkReady, Report, Submit
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.effects import Effect, ForNode
from fairlead.core.model import JobSpec
from fairlead.core.resources import GPU
from fairlead.writer.gc_settings import spare_the_collector
from fairlead.writer.writer import Writer

DEFAULT = PLAIN.settings.place
ENDS = 1_000
"""The number of tasks that end, and are replaced, in one cycle of the steady state."""

GANG = [parse_job({"stages": [{"count": 64, "resources": {"cpu": 1}}]})]
SINGLES = [
    parse_job({"stages": [{"resources": {"cpu": 1 + at % 5, "memory": f"{1 + at // 5}Gi"}}]}) for at in range(20)
]
MIX = [
    *SINGLES[:10],
    *(parse_job({"stages": [{"resources": {"cpu": 2, "gpu": gpu}}]}) for gpu in ("0.25", "0.5", 1, 2)),
    *(parse_job({"stages": [{"resources": {"cpu": 1}, "selectors": {"zone": zone}}]}) for zone in ("z0", "z1", "z2")),
    *(parse_job({"stages": [{"resources": {"gpu": "0.5"}, "selectors": {"zone": z}}]}) for z in (["z0", "z1"], "z3")),
    parse_job({"stages": [{"count": 8, "resources": {"cpu": 1, "gpu": 1}}]}),
]


def deciding(scale: float) -> Iterator[Row]:
    nodes = max(10, round(10_000 * scale))
    loop = loop_seconds()
    yield _backlog("gangs of 64 from a backlog", nodes, GANG, max(2, round(2_000 * scale)), 400_000, loop)
    yield _backlog(
        "single tasks of 20 shapes from a backlog", nodes, SINGLES, max(20, round(1e5 * scale)), 80_000, loop
    )
    mix = max(20, round(20_000 * scale))
    yield _backlog("a mix with selectors and parts of GPUs, `pack`", nodes, MIX, mix, 50_000, loop, "pack")
    yield _priced(max(10, round(1_000 * scale)), max(20, round(2_000 * scale)))
    yield _steady(nodes, max(60, round(100_000 * scale)), loop)
    yield _idle(nodes, max(1, round(1_000 * scale)), loop)
    for what, specs, jobs in (("gangs", GANG, 100), ("single tasks", SINGLES, 5_000)):
        yield _growth(what, specs, max(20, round(jobs * scale)), max(10, round(1_000 * scale)), 4)
    yield _growth_of_gpus(max(10, round(1_000 * scale)), max(50, round(6_400 * scale)))


def _backlog(
    what: str, nodes: int, specs: list[JobSpec], jobs: int, goal: float, loop: float, place: str = DEFAULT
) -> Row:
    with _waiting(nodes, specs, jobs, place) as writer:
        took, busy = timed(lambda: _decide(writer))
        placed = sum(job.live for job in writer.partition.jobs.values())
    note = f"{placed:,} tasks, {busy / placed * 1_000_000:.1f} µs of CPU each"
    return Row(what, placed / took, "/s", goal, True, took / loop, "plain loop", note)


def _priced(nodes: int, jobs: int) -> Row:
    """Compare the placements `priced` and `fgd` on the mix."""
    times: list[float] = []
    for place in (DEFAULT, "fgd"):
        with _waiting(nodes, MIX, jobs, place) as writer:
            busy = timed(lambda: _decide(writer))[1]
            times.append(busy / sum(job.live for job in writer.partition.jobs.values()) * 1_000_000)
    note = f"{times[0]:.0f} and {times[1]:.0f} µs of CPU for a task"
    ratio = times[0] / times[1]
    return Row("the mix by price, against `fgd`", ratio, "times", 1.3, False, ratio, "fgd", note)


def _steady(nodes: int, jobs: int, loop: float) -> Row:
    """Measure a full partition: every task that ends frees capacity for a waiting one."""
    with _waiting(max(1, nodes // 10), SINGLES, jobs) as writer:
        ends = list(ends_of(_decide(writer)))[: 20 * ENDS]
        batches = [ends[at : at + ENDS] for at in range(0, len(ends), ENDS)]
        took, busy = timed(lambda: [writer.cycle(batch, 3) for batch in batches])
    note = f"{ENDS:,} ends a cycle, {busy / len(ends) * 1_000_000:.1f} µs of CPU for an end and a start"
    what = "single tasks in steady state, one end a start"
    return Row(what, len(ends) / took, "/s", 30_000, True, took / loop, "plain loop", note)


def _idle(nodes: int, jobs: int, loop: float) -> Row:
    """Measure cycles without changes while very many tasks wait."""
    large = [parse_job({"stages": [{"count": 1_000, "min": 1, "resources": {"cpu": 40}}]})]
    with _waiting(max(1, nodes // 100), large, jobs) as writer:
        _decide(writer)
        waiting = sum(stage.waiting() for job in writer.partition.jobs.values() for stage in job.stages)
        took, _ = timed(lambda: [writer.cycle([], 3) for _ in range(100)])
    note = f"{waiting:,} tasks wait"
    what = "a cycle that changes nothing"
    return Row(what, took / 100 * 1_000, "ms", 5, False, took / 100 / loop, "plain loop", note)


def _growth(what: str, specs: list[JobSpec], jobs: int, nodes: int, goal: float) -> Row:
    """Compare the same work on some nodes and on a hundred times as many."""
    times = []
    for factor in (1, 100):
        with _waiting(nodes * factor, specs, jobs) as writer:
            writer.partition.derived.index.refresh()  # built once for all shapes, when they are first seen
            times.append(timed(lambda: _decide(writer))[1])
    note = f"{nodes:,} to {100 * nodes:,} nodes, {times[0] * 1_000:.0f} to {times[1] * 1_000:.0f} ms of CPU"
    return Row(
        f"growth with the nodes, {what}", times[1] / times[0], "times", goal, False, times[1] / times[0], "few", note
    )


def _growth_of_gpus(nodes: int, tasks: int) -> Row:
    """Compare an end and a start on some nodes with GPUs and on a hundred times as many.

    Before, the fleet was filled to 85 % of its GPUs and a quarter of the tasks ended in random order, so that its nodes
    are in many states. The mix is learnt again on the way.
    """
    times = []
    for factor in (1, 100):
        rng = Random(1)
        with _waiting(0, [], 0) as writer:
            joining: list[Command] = [
                AddNode(name=f"n{at}", spec=_gpu_node(at), operator=True) for at in range(nodes * factor)
            ]
            for at in range(0, len(joining), 1_000):
                writer.cycle(joining[at : at + 1_000], 1)
            live = list(ends_of(_decide(writer) + _fill(writer, rng, factor)))
            rng.shuffle(live)
            quarter = len(live) // 4
            for at in range(0, quarter, 1_000):
                writer.cycle(live[at : min(quarter, at + 1_000)], 2)
            live += ends_of(_fill(writer, rng, factor))
            del live[:quarter]
            rng.shuffle(live)
            single = [_gpu_job(at, 1) for at in range(KINDS_OF_GPU_JOBS)]

            def turn(writer: Writer = writer, live: list[Report] = live, single: list[JobSpec] = single) -> None:
                for at in range(0, tasks, 50):
                    ends, live[:50] = live[:50], []
                    submits = [Submit(spec=single[(at + more) % len(single)], operator=True) for more in range(50)]
                    live += ends_of(writer.cycle([*ends, *submits], 2).effects)

            times.append(timed(turn)[1] / tasks * 1_000_000)
    ratio = times[1] / times[0]
    note = (
        f"{nodes:,} to {100 * nodes:,} nodes in use, {times[0]:.0f} to {times[1]:.0f} µs of CPU for an end and a start"
    )
    return Row("growth with the nodes, a mix with GPUs", ratio, "times", 2, False, ratio, "few", note)


KINDS_OF_GPU_JOBS = 24


def _gpu_job(at: int, tasks: int) -> JobSpec:
    gpu = ("0.25", "0.33", "0.5", "0.7", 1, 1, 2, 4)[at % 8]
    cpu = (1, 2, 4)[at // 8] * (gpu if isinstance(gpu, int) else 1)
    return parse_job(
        {"stages": [{"array": tasks, "resources": {"cpu": cpu, "memory": f"{4 + 4 * (at % 5)}Gi", "gpu": gpu}}]}
    )


def _gpu_node(at: int) -> NodeSpec:
    resources = {"cpu": 64 + 32 * (at % 3), "memory": f"{256 << (at % 2)}Gi", "gpu": (2, 4, 4, 8)[at % 4]}
    return parse_node({"name": "n", "resources": resources})[1]


def _fill(writer: Writer, rng: Random, arrays: int) -> list[Effect]:
    """Submit random arrays, some at a time, until 85 % of all GPUs are in use."""
    partition, effects = writer.partition, list[Effect]()
    while partition.root.account.used.get(GPU, 0) * 100 < 85 * partition.nodes.total[GPU]:
        specs = [_gpu_job(rng.randrange(KINDS_OF_GPU_JOBS), 50) for _ in range(arrays)]
        effects += writer.cycle([Submit(spec=spec, operator=True) for spec in specs], 2).effects
        while writer.more:
            effects += writer.cycle([], 2).effects
    return effects


# -- worlds ------------------------------------------------------------------------------------------------------


@contextmanager
def _waiting(nodes: int, specs: list[JobSpec], jobs: int, place: str = DEFAULT) -> Iterator[Writer]:
    """Yield a writer that is not ready yet, with nodes in four zones and waiting jobs. Nodes have GPUs if jobs do."""
    gpus = 8 if specs is MIX else 0
    with tempfile.TemporaryDirectory() as folder:
        writer = open_writer(Path(folder))
        if place != DEFAULT:
            config = replace(PLAIN, settings=replace(PLAIN.settings, place=place))
            writer.cycle([Configure(config=config, operator=True)], 1)
        commands: list[Command] = [
            AddNode(name=f"n{at}", spec=_node(at % 4, gpus), operator=True) for at in range(nodes)
        ]
        commands += [Submit(spec=specs[at % len(specs)], operator=True) for at in range(jobs)]
        for at in range(0, len(commands), 1_000):
            writer.cycle(commands[at : at + 1_000], 1)
        usual = gc.get_threshold()
        spare_the_collector()  # as a server does after its start
        yield writer
        gc.unfreeze()
        gc.set_threshold(*usual)
        writer.journal.close()


def _node(zone: int, gpus: int) -> NodeSpec:
    resources = {"cpu": 64, "memory": "512Gi", "gpu": gpus}
    document = {"name": "n", "resources": resources, "labels": {"zone": f"z{zone}"}}
    return parse_node(document)[1]


def _decide(writer: Writer) -> list[Effect]:
    """Mark the partition ready and place tasks until nothing more fits. Return all effects."""
    effects = writer.cycle([MarkReady(operator=True)], 2).effects
    while writer.more:
        effects += writer.cycle([], 2).effects
    return effects


def ends_of(effects: list[Effect]) -> Iterator[Report]:
    """Yield the reports of agents when all launched tasks have succeeded."""
    for effect in effects:
        if isinstance(effect, ForNode):
            for launch in effect.launches:
                yield Report(
                    node=effect.node,
                    job=launch.job,
                    number=launch.number,
                    stage=launch.stage,
                    indices=launch.indices,
                    attempt=launch.attempt,
                    state="succeeded",
                    exit_code=0,
                )
