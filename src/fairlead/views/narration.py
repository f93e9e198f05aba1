"""Sentences for the story of a job: one for each line of the log about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.core.resources import SECOND
from fairlead.core.why.reasons import of_stage
from fairlead.views.outlook import are, listed, number_of_nodes, number_of_tasks, shortened

Fields = Mapping[str, Any]

RIGHTS = {
    "priority": ("which has a higher priority", "because it has a higher priority"),
    "guarantee": ("whose queue is below its guarantee", "because its queue is below its guarantee"),
    "share": ("whose queue is below its share", "because its queue is below its share"),
}
"""Right by which tasks stop for a job → the words about another job, and about the job of the story."""
MACHINES = ("the scheduler", "the server", "the agent of its node")
"""Values of `by` that a sentence leaves out: only users are named."""


class Narrator:
    """Turns the log lines of one job into sentences."""

    def __init__(self, several: bool) -> None:
        self._several = several
        """True if the job has several tasks, so that sentences say how many are meant."""

    def sentence(self, event: str, fields: Fields) -> str:
        """Return what happened, as a sentence without a time."""
        tell = TOLD.get(event)
        text = _listing(event, fields) if tell is None else tell(self, fields)
        return of_stage(str(fields.get("stage") or "main")) + text

    def subject(self, fields: Fields, verb: str, plural_verb: str = "") -> str:
        """Return "3 tasks started", or "started" if the job has only one task."""
        tasks = fields.get("tasks", 1)
        if not self._several:
            return verb
        return f"{number_of_tasks(tasks)} {verb if tasks == 1 else plural_verb or verb}"

    def again(self, fields: Fields) -> str:
        """Return "; it will run again" if the tasks wait again."""
        if not fields.get("again"):
            return ""
        if not self._several:
            return "; the task will run again"
        return "; it will run again" if fields.get("tasks", 1) == 1 else "; they will run again"


# -- phrases -----------------------------------------------------------------------------------------------------


def _by(fields: Fields) -> str:
    by = str(fields.get("by") or "")
    return "" if not by or by in MACHINES else f" by {by.removeprefix('user ')}"


def _why(fields: Fields) -> str:
    return f": {fields['reason']}" if fields.get("reason") else ""


def _on(fields: Fields, word: str = "on") -> str:
    names = tuple(fields.get("on") or ([fields["node"]] if fields.get("node") else []))
    return f" {word} {listed(names, int(fields.get('nodes', 1)))}" if names else ""


def _span(seconds: float) -> str:
    return shortened(round(seconds * SECOND))


def _after(fields: Fields, name: str, text: str) -> str:
    return "" if fields.get(name) is None else f"{text} {_span(fields[name])}"


def _named(names: object, one: str, several: str) -> str:
    texts = tuple(map(str, names or ()))  # type: ignore[call-overload]
    return f"{one if len(texts) == 1 else several} {listed(texts, len(texts))}" if texts else ""


def _kept(fields: Fields) -> str:
    number = int(fields["nodes"])
    return f"{number_of_nodes(number)} {are(number)}"


def _listing(event: str, fields: Fields) -> str:
    """Return an event that has no sentence of its own, with its fields."""
    told = [(name, value) for name, value in fields.items() if value not in (None, False, "", [])]
    details = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told if name != "stage")
    return f"{event}: {details}" if details else event


# -- sentences ---------------------------------------------------------------------------------------------------


def _submitted(teller: Narrator, fields: Fields) -> str:
    user, by = str(fields.get("user", "")), str(fields.get("by") or "")
    text = "submitted" + (f" by {user}" if user else "")
    if by and by not in MACHINES and by.partition(" ")[2] != user:
        text = f"submitted{_by(fields)} for {user}"
    text += f" to queue {fields['queue']}" if fields.get("queue") else ""
    text += f", {fields['tasks']} tasks" if fields.get("tasks", 1) != 1 else ""
    text += f", with priority {fields['priority']}" if fields.get("priority") else ""
    return text + _named(fields.get("after"), ", to start after job", ", to start after jobs")


def _over(teller: Narrator, fields: Fields) -> str:
    seconds = fields.get("lasted_seconds")
    lasted = "" if seconds is None else f", {_span(seconds)} after it was submitted"
    return f"the job {'was killed' if fields['state'] == 'killed' else fields['state']}{lasted}{_why(fields)}"


def _promised(teller: Narrator, fields: Fields) -> str:
    right = RIGHTS.get(str(fields.get("cause")))
    if right is None:
        return f"nodes that were ordered for it have joined: {_kept(fields)} kept free for it"
    return f"tasks of other jobs{_on(fields)} were told to stop for it, {right[1]}"


def _placed(teller: Narrator, fields: Fields) -> str:
    text = teller.subject(fields, "sent") + (" together" if fields.get("gang") else "") + _on(fields, "to")
    waited = fields.get("waited_seconds")
    text += " at once" if waited is not None and waited < 1 else _after(fields, "waited_seconds", " after waiting")
    return text + (", to replace others" if fields.get("kind") == "replace" else "")


def _stopped(teller: Narrator, fields: Fields) -> str:
    text = f"{teller.subject(fields, 'told')} to stop{_on(fields)}"
    cause, claimant = str(fields.get("cause")), str(fields.get("for") or "")
    by = f" by {claimant}" if claimant else ""
    if cause == "preempt":
        right = str(fields.get("right"))
        which = f", {RIGHTS[right][0]}" if right in RIGHTS else ""
        if claimant.startswith("queue "):
            which = ", which is below its share"
        return f"{text} for {claimant or 'another job'}{which}"
    return text + {
        "requeue": f" and run again later, requeued{by}",
        "replace": f" and run again, replaced{by}",
        "kill": f", killed{by}" if claimant else ", because the job was killed",
        "done": f", because {claimant or 'the job is done'}",
        "scale": ", because the job was scaled down",
        "time limit": ", because the time limit was reached",
    }.get(cause, "")


def _not_launched(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'did')} not start{_on(fields)}{_why(fields)}{teller.again(fields)}"


def _ended(teller: Narrator, fields: Fields) -> str:
    outcome, code = str(fields.get("outcome") or ""), fields.get("exit_code")
    if outcome == "pending":
        return _not_launched(teller, fields)
    if outcome in ("preempted", "killed"):
        again = teller.again({**fields, "again": outcome == "preempted"})
        return f"{teller.subject(fields, 'stopped')}{_on(fields)}{_why(fields)}{again}"
    why = _why(fields) or (f": exit code {code}" if code else "")
    return f"{teller.subject(fields, outcome or 'ended')}{_on(fields)}{why}"


TOLD: dict[str, Callable[[Narrator, Fields], str]] = {
    # The job
    "job submitted": _submitted,
    "job held": lambda _, fields: f"held{_by(fields)}: no task starts until the job is released",
    "job released": lambda _, fields: (
        f"released{_by(fields)}{_after(fields, 'held_seconds', ', after it was held for')}"
    ),
    "job updated": lambda _, fields: f"changed{_by(fields)}: {', '.join(fields['changed'])}",
    "tasks given up": lambda teller, fields: f"{teller.subject(fields, 'given up')} before the start{_why(fields)}",
    "priority changed": lambda _, fields: (
        f"priority changed from {fields['before']} to {fields['priority']}{_by(fields)}"
    ),
    "stage scaled": lambda _, fields: f"scaled from {fields['before']} to {fields['tasks']} tasks{_by(fields)}",
    "configuration applied": lambda _, fields: (
        f"the configuration of the cluster was changed{_by(fields)}{_named(fields.get('changed'), ':', ':')}"
    ),
    "job over": _over,
    # Waiting tasks
    "tasks cancelled": lambda teller, fields: f"{teller.subject(fields, 'cancelled')}{_by(fields)} before the start",
    "tasks asked again": lambda teller, fields: (
        f"{teller.subject(fields, 'waits', 'wait')} again after being cancelled"
    ),
    "asks brought to front": lambda _, fields: f"moved to the front of its queue{_by(fields)}",
    "asks moved to tail": lambda _, fields: f"moved to the end of its queue{_by(fields)}",
    "nodes held": lambda _, fields: (
        f"{_kept(fields)} kept free for it{_on(fields, 'now:')}"
        f"{_after(fields, 'waited_seconds', ', because it has waited for')}"
    ),
    "nodes promised": _promised,
    "some nodes released": lambda _, fields: (
        f"{_kept(fields)} no longer kept free for it ({fields['kept']} still {are(fields['kept'])}){_why(fields)}"
    ),
    "nodes released": lambda _, fields: f"{_kept(fields)} no longer kept free for it{_why(fields)}",
    # Running tasks
    "tasks placed": _placed,
    "tasks sent ahead": lambda teller, fields: (
        f"{teller.subject(fields, 'sent')} ahead{_on(fields, 'to')}, to start when a task there ends"
    ),
    "tasks recalled": lambda teller, fields: (
        f"{teller.subject(fields, 'called')} back{_on(fields, 'from')}, unless already started there"
    ),
    "tasks returned": lambda teller, fields: (
        f"{teller.subject(fields, 'came')} back{_on(fields, 'from')} before the start{_why(fields)}"
        f"{teller.again(fields)}"
    ),
    "tasks running": lambda teller, fields: (
        f"{teller.subject(fields, 'started')}{_on(fields)} (attempt {fields['attempt']})"
    ),
    "tasks stopped": _stopped,
    # Only tasks of a gang that is taken back stop without a line of their own.
    "tasks stopping": lambda teller, fields: (
        f"{teller.subject(fields, 'told')} to stop{_on(fields)}, because tasks that must run together are incomplete"
    ),
    "tasks did not stop": lambda teller, fields: (
        f"{teller.subject(fields, 'still runs', 'still run')}{_on(fields)} {_span(fields['after'])} after being told "
        "to stop"
    ),
    "launch undone": _not_launched,
    "tasks lost": lambda teller, fields: (
        f"{teller.subject(fields, 'lost')}{_why(fields) or _on(fields)}{teller.again(fields)}"
    ),
    "tasks failed": lambda teller, fields: (
        f"{teller.subject(fields, 'failed')}{_on(fields)}{_why(fields)}{teller.again(fields)}"
    ),
    "tasks ended": _ended,
    "unknown tasks found": lambda _, fields: (
        f"node {fields['node']} runs {number_of_tasks(fields.get('tasks', 1))} of it that the server never started"
    ),
}
"""Event → its sentence."""
