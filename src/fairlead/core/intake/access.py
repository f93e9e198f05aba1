"""Who may do what: operators everything, owners what is theirs, and whoever a queue's lists name."""

from __future__ import annotations

from fairlead.core.commands import Command
from fairlead.core.errors import Refused
from fairlead.core.model import Job, Queue


def need_operator(command: Command, action: str) -> None:
    if not command.operator:
        raise Refused("user", f"only an operator may {action}; ask one", "forbidden")


def need_submit(command: Command, queue: Queue) -> None:
    """Somebody on the way to the root must let the user in, if anybody there keeps a list."""
    if command.operator:
        return
    kept = [(level.settings.submit, level.settings.admin) for level in queue.line()]
    if not any(submit for submit, _ in kept):
        return
    if not any(_listed(command, submit) or _listed(command, admin) for submit, admin in kept):
        raise Refused(
            "queue",
            f"user {command.user or 'anonymous'} may not submit to {queue.path}; "
            "ask for an entry in its submit list, or name another queue",
            "forbidden",
        )


def is_owner(command: Command, job: Job) -> bool:
    """True for operators, the owner of a job, and administrators of a queue above it."""
    if command.operator or command.user == job.user:
        return True
    return any(_listed(command, level.settings.admin) for level in job.queue.line())


def need_owner(command: Command, job: Job, action: str) -> None:
    if not is_owner(command, job):
        raise Refused(
            "user",
            f"{command.user or 'anonymous'} may not {action} job {job.id}; "
            f"its owner {job.user} or an administrator of {job.queue.path} may",
            "forbidden",
        )


def _listed(command: Command, entries: tuple[str, ...]) -> bool:
    return "*" in entries or command.user in entries or any(f"@{group}" in entries for group in command.groups)
