"""The things that commands name: each function returns the thing, or refuses a name that is not known."""

from __future__ import annotations

from collections.abc import Collection

from fairlead.core.errors import Refused
from fairlead.core.model import Job, Pool, Queue, Stage
from fairlead.core.reader import suggestion
from fairlead.core.resources import shown
from fairlead.core.state import Partition


def unknown(
    field: str, noun: str, name: str, known: Collection[str], remedy: str = "name one that is known"
) -> Refused:
    """Return the error for a name that is not known."""
    return Refused(field, f"there is no {noun} {shown(name)}{suggestion(name, known)}; {remedy}", "unknown")


def find_queue(partition: Partition, path: str) -> Queue:
    queue = partition.queues.get(path)
    if queue is None:
        raise unknown("queue", "queue", path, partition.queues)
    return queue


def find_job(partition: Partition, job_id: str) -> Job:
    job = partition.jobs.get(job_id)
    if job is None:
        raise unknown("job", "job", job_id, partition.jobs)
    return job


def need_live(job: Job, consequence: str) -> None:
    """Refuse a command for a job that is over. `consequence` ends the sentence."""
    if job.over:
        raise Refused("job", f"job {job.id} is over ({job.state}){consequence}", "conflict")


def find_stage(job: Job, name: str) -> Stage:
    stage = job.stage(name)
    if stage is None:
        names = some([stage.name for stage in job.stages])
        raise Refused("stage", f"job {job.id} has no stage {shown(name)}; it has {names}", "unknown")
    return stage


def find_node(partition: Partition, name: str, field: str = "name") -> int:
    node_id = partition.nodes.find(name)
    if node_id is None:
        raise unknown(field, "node", name, partition.nodes.joins)
    return node_id


def find_pool(partition: Partition, name: str) -> Pool:
    pool = partition.pools.get(name)
    if pool is None:
        raise unknown("pool", "pool", name, partition.pools, "name one that is configured")
    return pool


def some(names: list[str]) -> str:
    """Return the first 20 names, and the number of the others."""
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
