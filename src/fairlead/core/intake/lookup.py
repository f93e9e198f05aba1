"""The things that commands name, and access checks. An unknown name is refused, and so is a missing right.

Operators may do everything; users may act on their own jobs, and as access lists of queues allow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fairlead.core.commands import Command
from fairlead.core.errors import Refused
from fairlead.core.model import ADMINISTRATOR, OPERATOR, OWNER, Job, Pool, Queue, Stage, StageSpec
from fairlead.core.reader import suggestion
from fairlead.core.resources import format_duration, shown
from fairlead.core.state import Partition, max_priority


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


def need_operator(command: Command, action: str) -> None:
    """Refuse the command unless it comes from an operator."""
    if not command.operator:
        raise Refused("user", f"only an operator may {action}; ask one", "forbidden")


def need_submit(command: Command, queue: Queue) -> None:
    """Refuse the command if the queue or its ancestors have submit lists without the user, or if its token is not for
    the queue."""
    need_within(command, queue, "submit jobs to")
    if command.operator:
        return
    lists = [(level.settings.submit, level.settings.admin) for level in queue.line()]
    if not any(submit for submit, _ in lists):
        return
    if not any(_listed(command, submit) or _listed(command, admin) for submit, admin in lists):
        raise Refused(
            "queue",
            f"user {command.user or 'anonymous'} may not submit to {queue.path}; "
            "ask for an entry in its submit list, or name another queue",
            "forbidden",
        )


def need_priority(command: Command, queue: Queue, priority: int) -> None:
    """Refuse a priority above the caller's `max_priority` in the queue. Operators have no maximum."""
    if command.operator or priority <= 0:
        return
    most = max_priority(queue, command.user, command.groups)
    if priority > most:
        raise Refused(
            "priority",
            f"{priority} is above {most}, the max_priority of user {command.user or 'anonymous'} in {queue.path}; "
            f"write at most {most}, or ask an operator for a higher max_priority",
            "forbidden",
        )


def need_grace(command: Command, partition: Partition, queue: Queue, stages: Iterable[StageSpec]) -> None:
    """Refuse a grace above the `max_grace` of the queue. Operators have no maximum."""
    bounds = (level.settings.max_grace for level in reversed(queue.line()))
    most = next((bound for bound in bounds if bound is not None), partition.settings.preempt_grace)
    for at, stage in enumerate(() if command.operator else stages):
        if stage.grace is not None and stage.grace > most:
            raise Refused(
                f"stages[{at}].grace",
                f"{format_duration(stage.grace)} is above {format_duration(most)}, the max_grace of {queue.path}; "
                "write at most that, or ask an operator for a higher max_grace",
                "forbidden",
            )


def is_owner(command: Command, job: Job) -> bool:
    """True if the caller is an operator, the owner of the job, or an administrator of its queue or of an ancestor."""
    return command.user == job.user or is_administrator(command, job.queue)


def is_administrator(command: Command, queue: Queue) -> bool:
    """True if the caller is an operator, or an administrator of the queue or of an ancestor."""
    return command.operator or any(_listed(command, level.settings.admin) for level in queue.line())


def right_over(command: Command, job: Job) -> int:
    """Return the highest right of a caller over a job. The caller must pass `is_owner`."""
    if command.operator:
        return OPERATOR
    return ADMINISTRATOR if any(_listed(command, level.settings.admin) for level in job.queue.line()) else OWNER


def need_owner(command: Command, job: Job, action: str) -> None:
    """Refuse the command unless `is_owner` holds."""
    if not is_owner(command, job):
        raise Refused(
            "user",
            f"{command.user or 'anonymous'} may not {action} job {job.id}; "
            f"its owner {job.user} or an administrator of {job.queue.path} may",
            "forbidden",
        )
    need_within(command, job.queue, "change jobs of")


def need_within(command: Command, queue: Queue, action: str) -> None:
    """Refuse the command if the caller's token is only for other queues."""
    if command.within and all(level.path != command.within for level in queue.line()):
        raise Refused(
            "queue",
            f"this token is only for {command.within} and may not {action} {queue.path}; use another token",
            "forbidden",
        )


def _listed(command: Command, entries: tuple[str, ...]) -> bool:
    return "*" in entries or command.user in entries or any(f"@{group}" in entries for group in command.groups)
