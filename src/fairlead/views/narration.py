"""Sentences for the story of a job: one for each event of the log that concerns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.core.resources import SECOND
from fairlead.core.why.reasons import of_stage
from fairlead.views.outlook import listed, shortened

Fields = Mapping[str, Any]

RIGHTS = {
    "priority": "which has a higher priority",
    "guarantee": "whose queue is below its guarantee",
    "share": "whose queue is below its share",
}
"""Right by which tasks stop for a job → relative clause."""
RUN_AGAIN = {"requeue": " and run again later, requeued", "replace": " and run again, replaced"}
"""Cause of a stop by a user → what follows."""
MACHINES = ("the scheduler", "the server", "the agent of its node")
"""Deciders that a sentence does not name."""


class Narrator:
    """Tells the events of one job."""

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
        return f"1 task {verb}" if tasks == 1 else f"{tasks} tasks {plural_verb or verb}"

    def again(self, fields: Fields, when: str = "again") -> str:
        """Return "; it will run again" if the tasks wait again."""
        if not fields.get(when):
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


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _listing(event: str, fields: Fields) -> str:
    """Return an event without a sentence of its own, with its fields."""
    told = [(name, value) for name, value in fields.items() if value not in (None, False, "", [])]
    details = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told if name != "stage")
    return f"{event}: {details}" if details else event


# -- the job -----------------------------------------------------------------------------------------------------


def _submitted(teller: Narrator, fields: Fields) -> str:
    user, by = str(fields.get("user", "")), str(fields.get("by") or "")
    text = "submitted" + (f" by {user}" if user else "")
    if by and by not in MACHINES and by.partition(" ")[2] != user:
        text = f"submitted{_by(fields)} for {user}"
    text += f" to queue {fields['queue']}" if fields.get("queue") else ""
    tasks = fields.get("tasks")
    text += f", {tasks} tasks" if tasks is not None and tasks != 1 else ""
    text += f", with priority {fields['priority']}" if fields.get("priority") else ""
    after = tuple(map(str, fields.get("after") or ()))
    return text + (
        f", to start after {'job' if len(after) == 1 else 'jobs'} {listed(after, len(after))}" if after else ""
    )


def _held(teller: Narrator, fields: Fields) -> str:
    return f"held{_by(fields)}: no task starts until the job is released"


def _released(teller: Narrator, fields: Fields) -> str:
    seconds = fields.get("held_seconds")
    return f"released{_by(fields)}" + (f", after it was held for {_span(seconds)}" if seconds is not None else "")


def _prioritised(teller: Narrator, fields: Fields) -> str:
    return f"priority changed from {fields['before']} to {fields['priority']}{_by(fields)}"


def _scaled(teller: Narrator, fields: Fields) -> str:
    return f"scaled from {fields['before']} to {fields['tasks']} tasks{_by(fields)}"


def _over(teller: Narrator, fields: Fields) -> str:
    state = str(fields["state"])
    text = f"the job {'was killed' if state == 'killed' else state}"
    seconds = fields.get("lasted_seconds")
    text += f", {_span(seconds)} after it was submitted" if seconds is not None else ""
    return text + _why(fields)


def _configured(teller: Narrator, fields: Fields) -> str:
    changed = tuple(fields.get("changed") or ())
    return f"the configuration of the cluster was changed{_by(fields)}" + (
        f": {listed(changed, len(changed))}" if changed else ""
    )


# -- waiting tasks -----------------------------------------------------------------------------------------------


def _cancelled(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'cancelled')}{_by(fields)} before the start"


def _asked_again(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'waits', 'wait')} again after being cancelled"


def _to_front(teller: Narrator, fields: Fields) -> str:
    return f"moved to the front of its queue{_by(fields)}"


def _to_tail(teller: Narrator, fields: Fields) -> str:
    return f"moved to the end of its queue{_by(fields)}"


def _nodes_held(teller: Narrator, fields: Fields) -> str:
    waited = fields.get("waited_seconds")
    after = "" if waited is None else f", because it has waited for {_span(waited)}"
    return f"{_kept(fields)} kept free for it{_on(fields, 'now:')}{after}"


def _kept(fields: Fields) -> str:
    number = int(fields["nodes"])
    return f"{_nodes(number)} {'is' if number == 1 else 'are'}"


def _promised(teller: Narrator, fields: Fields) -> str:
    right = {
        "priority": "because it has a higher priority",
        "guarantee": "because its queue is below its guarantee",
        "share": "because its queue is below its share",
    }.get(str(fields.get("cause")))
    where = _on(fields)
    if right is None:
        return f"nodes that were ordered for it have joined: {_kept(fields)} kept free for it"
    return f"tasks of other jobs{where} were told to stop for it, {right}"


def _some_let_go(teller: Narrator, fields: Fields) -> str:
    kept = int(fields["kept"])
    return f"{_kept(fields)} no longer kept free for it ({kept} still {'is' if kept == 1 else 'are'}){_why(fields)}"


def _let_go(teller: Narrator, fields: Fields) -> str:
    return f"{_kept(fields)} no longer kept free for it{_why(fields)}"


# -- running tasks -----------------------------------------------------------------------------------------------


def _placed(teller: Narrator, fields: Fields) -> str:
    text = teller.subject(fields, "sent") + (" together" if fields.get("gang") else "") + _on(fields, "to")
    waited = fields.get("waited_seconds")
    text += "" if waited is None else " at once" if waited < 1 else f" after waiting {_span(waited)}"
    return text + (", to replace others" if fields.get("kind") == "replace" else "")


def _sent_ahead(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'sent')} ahead{_on(fields, 'to')}, to start when a task there ends"


def _recalled(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'called')} back{_on(fields, 'from')}, unless already started there"


def _returned(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'came')} back{_on(fields, 'from')} before the start{_why(fields)}" + teller.again(
        fields
    )


def _running(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'started')}{_on(fields)} (attempt {fields['attempt']})"


def _stopped(teller: Narrator, fields: Fields) -> str:
    text = teller.subject(fields, "told") + " to stop" + _on(fields)
    cause, claimant = fields.get("cause"), str(fields.get("for") or "")
    if cause == "preempt":
        right = RIGHTS.get(str(fields.get("right")), "")
        if claimant.startswith("queue "):
            right = "which is below its share"
        return text + (f" for {claimant}" if claimant else " for another job") + (f", {right}" if right else "")
    if cause in RUN_AGAIN:
        return text + RUN_AGAIN[str(cause)] + (f" by {claimant}" if claimant else "")
    return text + {
        "kill": f", killed by {claimant}" if claimant else ", because the job was killed",
        "done": f", because {claimant}" if claimant else ", because the job is done",
        "scale": ", because the job was scaled down",
        "time limit": ", because the time limit was reached",
    }.get(str(cause), "")


def _stopping(teller: Narrator, fields: Fields) -> str:
    # Only tasks of a gang that is taken back stop without a line of their own.
    return (
        teller.subject(fields, "told") + f" to stop{_on(fields)}, because tasks that must run together are incomplete"
    )


def _not_stopped(teller: Narrator, fields: Fields) -> str:
    text = teller.subject(fields, "still runs", "still run") + _on(fields)
    return f"{text} {_span(fields['after'])} after being told to stop"


def _not_launched(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'did')} not start{_on(fields)}{_why(fields)}" + teller.again(fields)


def _lost(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'lost')}{_why(fields) or _on(fields)}" + teller.again(fields)


def _failed(teller: Narrator, fields: Fields) -> str:
    return f"{teller.subject(fields, 'failed')}{_on(fields)}{_why(fields)}" + teller.again(fields)


def _ended(teller: Narrator, fields: Fields) -> str:
    outcome, code = str(fields.get("outcome") or ""), fields.get("exit_code")
    on = _on(fields)
    if outcome == "pending":
        return _not_launched(teller, fields)
    if outcome == "preempted":
        waits = teller.again({**fields, "again": True})
        return f"{teller.subject(fields, 'stopped')}{on}{_why(fields)}{waits}"
    if outcome == "killed":
        return f"{teller.subject(fields, 'stopped')}{on}{_why(fields)}"
    reason = str(fields.get("reason") or ("" if not code else f"exit code {code}"))
    return f"{teller.subject(fields, outcome or 'ended')}{on}" + (f": {reason}" if reason else "")


def _unknown(teller: Narrator, fields: Fields) -> str:
    tasks = fields.get("tasks", 1)
    return (
        f"node {fields['node']} runs {'1 task' if tasks == 1 else f'{tasks} tasks'} of it that the server never started"
    )


TOLD: dict[str, Callable[[Narrator, Fields], str]] = {
    "job submitted": _submitted,
    "job held": _held,
    "job released": _released,
    "priority changed": _prioritised,
    "stage scaled": _scaled,
    "configuration applied": _configured,
    "tasks cancelled": _cancelled,
    "tasks asked again": _asked_again,
    "asks brought to front": _to_front,
    "asks moved to tail": _to_tail,
    "nodes held": _nodes_held,
    "nodes promised": _promised,
    "some nodes released": _some_let_go,
    "nodes released": _let_go,
    "tasks placed": _placed,
    "tasks sent ahead": _sent_ahead,
    "tasks recalled": _recalled,
    "tasks returned": _returned,
    "tasks running": _running,
    "tasks stopped": _stopped,
    "tasks stopping": _stopping,
    "tasks did not stop": _not_stopped,
    "launch undone": _not_launched,
    "tasks lost": _lost,
    "tasks failed": _failed,
    "tasks ended": _ended,
    "job over": _over,
    "unknown tasks found": _unknown,
}
"""Event → its sentence."""
