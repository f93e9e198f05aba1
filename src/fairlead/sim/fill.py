"""Packing: measures what part of all GPUs a placement allocates before jobs no longer fit.

The protocol is that of the paper that introduced `fgd` (USENIX ATC 2023), with its random orders: jobs of the trace
arrive until they have asked for a given percentage of all GPUs; if the trace is too short, random jobs arrive again. No
job ends, so a job that does not fit has failed. The placement knows the mix of jobs from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import msgspec

from fairlead.core.changes import MixLearnt
from fairlead.core.config import parse_partition
from fairlead.core.errors import Refused
from fairlead.core.mix import WEIGHT
from fairlead.core.model import Mix
from fairlead.core.plan import Plan
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.placement import placement_names
from fairlead.core.reader import suggestion
from fairlead.core.resources import CPU, GPU, MILLI, SECOND
from fairlead.core.shape import Shape, ShapeKey
from fairlead.core.state import Partition
from fairlead.sim.go_random import GoRandom
from fairlead.sim.policy_files import ONE_QUEUE, Policy
from fairlead.sim.record import Record
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Arrival, LeftOut, Trace

BATCH = 100
"""The number of jobs that arrive at the same time."""
FOR_EVER = 10_000 * 24 * 3600 * SECOND


class Packed(msgspec.Struct, frozen=True):
    """The result of one shuffle."""

    seed: int
    allocated: int
    """Allocated milli-GPUs."""
    failed: int
    arrived: int
    fragmented: float
    """The number of idle GPUs that an average job of the trace cannot use."""
    way: tuple[tuple[int, int], ...] = ()
    """Requested and allocated milli-GPUs on the way, after each batch that changed the latter."""


def check_placement(name: str) -> None:
    """Refuse a name that no placement has."""
    names = placement_names()
    if name not in names:
        raise Refused("place", f"there is no placement {name}{suggestion(name, names)}; write {', '.join(names)}")


def pack(
    trace: Trace, place: str, percent: int, seed: int, stop: Callable[[], bool] = lambda: False, known: bool = True
) -> Packed | None:
    """Run one shuffle. Returns None if it was stopped.

    With `known`, the placement knows the mix of all jobs from the start; otherwise it learns it from what arrives.
    """
    check_placement(place)
    if not trace.amount(GPU):
        raise Refused("packing", "the nodes have no GPUs to fill; name nodes that have some")
    shuffled = _shuffled(trace, percent, seed)
    policy = Policy(place, parse_partition({**ONE_QUEUE, "place": place, "seed": seed}, place))
    simulation = Simulation(shuffled, policy)
    if known:
        _learn(simulation.writer.partition, trace.arrivals)
    if not simulation.run(until=shuffled.arrivals[-1].at, stop=lambda _: stop()):
        return None
    partition = simulation.writer.partition
    return Packed(
        seed,
        partition.root.account.used.get(GPU, 0),
        simulation.record.arrived - simulation.record.started,
        simulation.record.arrived,
        fragmented(partition, trace.arrivals),
        _way(shuffled, simulation.record),
    )


def summary(trace: Trace, place: str, percent: int, packed: Sequence[Packed]) -> dict[str, Any]:
    """Return the means over the shuffles."""
    total = trace.amount(GPU)
    shares = [100 * shuffle.allocated / total for shuffle in packed]
    mean = sum(shares) / len(shares)
    return {
        "trace": trace.name,
        "policy": place,
        "arrived_percent": percent,
        "shuffles": len(packed),
        "gpus": total // MILLI,
        "gpu_allocation_percent": round(mean, 3),
        "lowest_percent": round(min(shares), 3),
        "highest_percent": round(max(shares), 3),
        "unallocated_gpus": round(total / MILLI * (1 - mean / 100), 2),
        "failed_pods": round(sum(shuffle.failed for shuffle in packed) / len(packed), 1),
        "arrived_pods": round(sum(shuffle.arrived for shuffle in packed) / len(packed), 1),
        "fragmented_gpus": round(sum(shuffle.fragmented for shuffle in packed) / len(packed), 2),
        "left_out": trace.left_out.rows(),
    }


def _way(shuffled: Trace, record: Record) -> tuple[tuple[int, int], ...]:
    asked = list(accumulate(map(_gpu_of, shuffled.arrivals)))
    return tuple(
        [
            (asked[min(len(asked), (when // SECOND + 1) * BATCH) - 1], used)
            for when, used in zip(record.times, record.used, strict=True)
            if used
        ]
    )


def _shuffled(trace: Trace, percent: int, seed: int) -> Trace:
    """Return the trace in the order of a seed, as the simulator of the published figures orders it.

    The jobs are shuffled. If they ask for too much, random ones are left out; if for too little, random ones are added.
    Then the nodes are shuffled, because ties go to the first one.
    """
    if not any(map(_gpu_of, trace.arrivals)):
        raise Refused("packing", "no job asks for GPUs; name a trace with some that do")
    rng = GoRandom(seed)
    rng.int63()
    jobs = sorted(trace.arrivals, key=lambda arrival: arrival.job)
    rng.shuffle(jobs)
    arriving = list(jobs)
    left = trace.amount(GPU) * percent // 100 - sum(map(_gpu_of, jobs))
    while left < 0:
        left += _gpu_of(arriving.pop(rng.intn(len(arriving))))
    while left:
        more = jobs[rng.intn(len(jobs))]
        if _gpu_of(more) > left:
            break
        left -= _gpu_of(more)
        arriving.append(more)
    arrivals = [
        Arrival(number // BATCH * SECOND, str(number), arrival.spec, (FOR_EVER,))
        for number, arrival in enumerate(arriving)
    ]
    names = sorted(trace.nodes, key=itemgetter(0))
    places = rng.permutation(len(names))
    nodes = [node for _, node in sorted(zip(places, names, strict=True), key=itemgetter(0))]
    return Trace(trace.name, arrivals, nodes, LeftOut())


def _gpu_of(arrival: Arrival) -> int:
    return sum([dict(stage.resources).get(GPU, 0) * stage.count for stage in arrival.spec.stages])


def _learn(partition: Partition, usual: Sequence[Arrival]) -> None:
    """Let a partition know the mix of all jobs of a trace."""
    weights: dict[ShapeKey, int] = {}
    for arrival in usual:
        for stage in arrival.spec.stages:
            key = stage.shape_key("", "")
            weights[key] = weights.get(key, 0) + WEIGHT * stage.count
    plan = Plan(partition, partition.now)
    plan.do(MixLearnt(Mix(tuple(sorted(weights.items())), partition.counters.job)))
    plan.seal()


def fragmented(partition: Partition, usual: Sequence[Arrival]) -> float:
    """Return the number of idle GPUs that a job of the trace cannot use, as the mean over the jobs `usual`."""
    weights: dict[Shape, int] = {}
    shapes: dict[object, Shape] = {}
    for arrival in usual:
        for stage in arrival.spec.stages:
            key = stage.shape_key("", "")
            shape = shapes.setdefault(key, Shape(key))
            weights[shape] = weights.get(shape, 0) + 1
    names = [CPU, *sorted({name for shape in weights for name, _ in shape.amounts} - {CPU, GPU})]
    columns = [partition.nodes.columns(name) for name in names]
    workloads: dict[tuple[tuple[str, str], ...], Workload] = {}
    pieces = 0.0
    for row in partition.nodes.rows.values():
        if not partition.nodes.devices[row]:
            continue
        kind = tuple(sorted(partition.nodes.labels[row].items()))
        if kind not in workloads:
            workloads[kind] = _workload(weights, names, dict(kind))
        free = [capacity[row] - used[row] for capacity, used in columns]
        workload = workloads[kind]
        pieces += workload.fragmentation(free, partition.nodes.devices[row]) / workload.total
    return pieces / MILLI


def _workload(weights: dict[Shape, int], names: Sequence[str], labels: dict[str, str]) -> Workload:
    """Return the usual jobs as a workload for nodes with these labels."""
    here = [(shape, weight) for shape, weight in weights.items() if shape.accepts(labels, (), "")]
    tasks: list[tuple[Task, int]] = []
    for shape, weight in here:
        amounts = dict(shape.amounts)
        asks = tuple(amounts.get(name, 0) for name in names)
        tasks.append((Task(asks, shape.devices, shape.device_milli), weight))
    return Workload(tasks, sum(weights.values()) - sum(weight for _, weight in here))
