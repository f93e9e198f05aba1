"""The mix: what jobs usually ask for, learnt from submissions. Placements that weigh usual requests use it.

It is learnt again after 1, 2, 4, … and then every 6,400 jobs, or as many jobs as there are nodes if these are more, so
that scores of nodes stay valid for long: to score all nodes again costs more with more nodes. Old requests
count less and less: whenever the mix has grown to twice its size, all numbers are halved. It also has the part of the
GPUs that tasks gave back because they ended, instead of keeping them as services do.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.core.changes import MixLearnt
from fairlead.core.model import Mix
from fairlead.core.plan import Plan
from fairlead.core.resources import GPU
from fairlead.core.shape import PLUGIN, ShapeKey
from fairlead.core.state import MAX_MIX, MIX_WEIGHT, Partition

WEIGHT = 100
"""The weight of a task."""
PERIOD = 6_400
"""The most jobs after which the mix is learnt again, unless there are more nodes."""
MAX_OF_STAGE = 1_000
"""The most tasks of one stage that count."""


def learn_mix(plan: Plan) -> None:
    """Learn what jobs ask for, if enough jobs came since the mix was last learnt."""
    partition = plan.partition
    partition.use_index()
    if (partition.nodes.with_gpus or partition.pools) and learns_mix(partition):
        job, known = partition.counters.job, partition.mix.upto
        if job - known >= min(max(PERIOD, len(partition.nodes.rows)), max(1, known - 1)) and job > 1:
            plan.do(MixLearnt(mixed(partition)))


def learns_mix(partition: Partition) -> bool:
    """True if a node or a pool has GPUs."""
    if partition.nodes.with_gpus:
        return True
    offered = [name for pool in partition.pools.values() for name, _ in pool.settings.node]
    return any(name == GPU or name.endswith(PLUGIN) for name in offered)


def mixed(partition: Partition) -> Mix:
    """Return the mix with the jobs that came since it was learnt."""
    weights, gpu, waiting = dict(partition.mix.requests), partition.mix.gpu, 0
    for job in partition.jobs.values():
        new = job.number >= partition.mix.upto
        for stage in job.stages:
            of_task = stage.shape.gpus * stage.shape.gpu_milli
            waiting += stage.waiting() * of_task
            if new:
                gpu += stage.count * of_task
                key = usual(stage.shape.key)
                weights[key] = weights.get(key, 0) + WEIGHT * min(stage.count, MAX_OF_STAGE)
    total = sum(weights.values())
    if total > 2 * MIX_WEIGHT:
        weights = {key: weight * MIX_WEIGHT // total for key, weight in weights.items()}
    most = sorted([(-weight, key) for key, weight in weights.items() if weight])[:MAX_MIX]
    started = gpu - waiting
    used = [amount for name, amount in partition.root.account.used.items() if name == GPU or name.endswith(PLUGIN)]
    ended = max(0, started - sum(used))
    ending = 100 * ended // started if ended else 0
    return Mix(tuple(sorted([(key, -weight) for weight, key in most])), partition.counters.job, gpu, ending)


def usual(key: ShapeKey) -> ShapeKey:
    """Return a shape without preferences and without conditions between its own tasks."""
    return replace(key, near="", apart=False, prefer=()) if key.near or key.apart or key.prefer else key
