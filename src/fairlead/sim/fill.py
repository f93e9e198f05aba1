"""Packing: measures what part of all GPUs a placement allocates before jobs no longer fit.

Jobs of the trace arrive in random order until they have asked for a given percentage of all GPUs; if the trace is too
short, random jobs arrive again. No job ends, so a job that does not fit has failed. Nodes join in random order, so that
ties between equal nodes favour none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from fairlead.core.config import parse_partition
from fairlead.core.errors import Refused
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.placement import placement_names
from fairlead.core.reader import suggestion
from fairlead.core.resources import CPU, GPU, MILLI, SECOND
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.sim.policy_files import ONE_QUEUE, Policy
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


def check_placement(name: str) -> None:
    """Refuse a name that no placement has."""
    names = placement_names()
    if name not in names:
        raise Refused("place", f"there is no placement {name}{suggestion(name, names)}; write {', '.join(names)}")


def pack(trace: Trace, place: str, percent: int, seed: int, stop: Callable[[], bool] = lambda: False) -> Packed | None:
    """Run one shuffle. Returns None if it was stopped."""
    check_placement(place)
    if not trace.amount(GPU):
        raise Refused("packing", "the nodes have no GPUs to fill; name nodes that have some")
    shuffled = _shuffled(trace, percent, Random(seed))
    policy = Policy(place, parse_partition({**ONE_QUEUE, "place": place, "seed": seed}, place))
    simulation = Simulation(shuffled, policy)
    if not simulation.run(until=shuffled.arrivals[-1].at, stop=lambda _: stop()):
        return None
    partition = simulation.writer.partition
    return Packed(
        seed,
        partition.root.account.used.get(GPU, 0),
        simulation.record.arrived - simulation.record.started,
        simulation.record.arrived,
        fragmented(partition, trace.arrivals),
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


def _shuffled(trace: Trace, percent: int, rng: Random) -> Trace:
    nodes = list(trace.nodes)
    rng.shuffle(nodes)
    wanted = trace.amount(GPU) * percent // 100
    arrivals: list[Arrival] = []
    asked = 0
    for arrival in _endless(trace.arrivals, rng):
        if asked >= wanted:
            break
        number = len(arrivals)
        arrivals.append(Arrival(number // BATCH * SECOND, str(number), arrival.spec, (FOR_EVER,)))
        asked += sum(dict(stage.resources).get(GPU, 0) * stage.count for stage in arrival.spec.stages)
    return Trace(trace.name, arrivals, nodes, LeftOut())


def _endless(arrivals: Sequence[Arrival], rng: Random) -> Iterator[Arrival]:
    """Yield all arrivals in random order, then random ones without end."""
    yield from rng.sample(arrivals, len(arrivals))
    if not any(dict(stage.resources).get(GPU) for arrival in arrivals for stage in arrival.spec.stages):
        raise Refused("packing", "no job asks for GPUs; name a trace with some that do")
    while True:
        yield rng.choice(arrivals)


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
