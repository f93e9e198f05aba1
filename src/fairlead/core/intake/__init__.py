"""Intake: checks the commands one by one, and carries out each or rejects it without altering anything.

One file per noun: configuration, nodes, pools, jobs, reports, resource managers. Each function that carries out a
command is registered with `handles`.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from fairlead.core import commands
from fairlead.core.changes import KeyKept
from fairlead.core.commands import (
    Accepted,
    Answer,
    Command,
    Rejected,
    Report,
    Scale,
    Submit,
    SubmitPipeline,
    UpdateJob,
    decode_answer,
    encode_answer,
)
from fairlead.core.errors import Refused
from fairlead.core.intake import (  # noqa: F401 - each registers its handlers
    config,
    jobs,
    managers,
    nodes,
    pipelines,
    pools,
    reports,
    updates,
)
from fairlead.core.intake.command_table import HANDLERS
from fairlead.core.intake.reports import Ends
from fairlead.core.lifecycle import IllegalTransition
from fairlead.core.model import KeptKey
from fairlead.core.plan import Plan
from fairlead.core.reader import check_text
from fairlead.core.resources import printable

MAX_KEY = 200
MAX_USER = 200

# These commands can be repeated safely and are sent again after a restart, so their keys are ignored.
REPEATABLE = (
    commands.Configure,
    commands.MarkReady,
    commands.DisconnectNodes,
    commands.Report,
    commands.RegisterManager,
    commands.UpdateManager,
    commands.FailOrder,
)

DONE = Accepted()

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def intake(plan: Plan, batch: Iterable[Command]) -> tuple[list[Answer], list[int]]:
    """Carry out commands in order. Returns the answer to each, and the number of changes in the plan after each."""
    answers: list[Answer] = []
    marks: list[int] = []
    ends = Ends(plan)
    for command in batch:
        if isinstance(command, Report) and ends.take(command):
            answers.append(DONE)
        else:
            ends.make()
            if marks:
                marks[-1] = plan.mark()  # the change for the collected reports belongs to these commands
            answers.append(_take(plan, command))
        marks.append(plan.mark())
    ends.make()
    return answers, marks


def _take(plan: Plan, command: Command) -> Answer:
    mark = plan.mark()
    try:
        if plan.partition.removed:
            raise Refused("partition", f"{plan.partition.name} was removed; name another one", "gone")
        if command.user != "":
            check_text(command.user, "user", MAX_USER)
        if not command.key or isinstance(command, REPEATABLE):
            return HANDLERS[type(command)](plan, command)
        return _take_once(plan, command)
    except Refused as refusal:
        plan.rollback(mark)
        return Rejected(refusal.field, refusal.problem, refusal.code)
    except IllegalTransition as refusal:
        plan.rollback(mark)
        return Rejected("state", str(refusal), "conflict")


def _take_once(plan: Plan, command: Command) -> Answer:
    check_text(command.key, "key", MAX_KEY)
    digest = _digest(command)
    kept = plan.partition.keys.get((command.user, command.key))
    if kept is not None:
        if kept.digest != digest:
            raise Refused("key", "was used before with another body; use a new key for a new request", "conflict")
        if isinstance(command, Submit | Scale):
            plan.note("asked for again")
        return decode_answer(kept.answer) if kept.answer else Accepted(job=kept.job)
    answer = HANDLERS[type(command)](plan, command)
    assert isinstance(answer, Accepted), "only reports, which have no keys, are refused with changes"
    # A submission's key is kept as long as its job; any other key expires after `keep_keys`.
    job = answer.job if isinstance(command, Submit) else ""
    expires = None if job else plan.now + plan.partition.settings.keep_keys
    stored = b"" if answer == Accepted(job=job) else encode_answer(answer)
    plan.do(KeyKept(command.user, command.key, KeptKey(digest, stored, job, expires)))
    return answer


UNCOMPARED: dict[type[Command], dict[str, Any]] = {
    Submit: {"origin": msgspec.UNSET, "past": ()},
    SubmitPipeline: {"past": ()},
    UpdateJob: {"past": ()},
}
"""Fields that may differ when a command is repeated with the same key."""


def _digest(command: Command) -> bytes:
    try:
        body = _encode(msgspec.structs.replace(command, key="", **UNCOMPARED.get(type(command), {})))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        why = printable(str(problem), 100)
        raise Refused("key", f"the request cannot be compared with others ({why}); correct it") from None
    return blake2b(body, digest_size=16).digest()
