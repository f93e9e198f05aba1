"""Intake: every command is checked alone and becomes changes of the plan, or a refusal that altered nothing.

One file a noun: configuration, nodes, jobs, reports, resource managers. `HANDLERS` says who takes what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from fairlead.core.changes import KeyKept
from fairlead.core.commands import (
    Accepted,
    AddNode,
    Answer,
    AnyCommand,
    BringToFront,
    CancelReservation,
    Configure,
    Kill,
    MarkReady,
    MoveNode,
    MoveQueue,
    RegisterManager,
    Rejected,
    RemoveNode,
    RemovePartition,
    Report,
    ResetLane,
    Scale,
    SetPriority,
    Submit,
    UpdateManager,
    UpdateNode,
)
from fairlead.core.errors import Refused
from fairlead.core.lifecycle import IllegalTransition
from fairlead.core.model import KeptKey
from fairlead.core.phases.intake import config, jobs, managers, nodes, reports
from fairlead.core.plan import Plan

MAX_KEY = 200

HANDLERS: dict[type[Any], Callable[[Plan, Any], Accepted]] = {
    Configure: config.configure,
    MoveQueue: config.move_queue,
    MarkReady: config.mark_ready,
    RemovePartition: config.remove_partition,
    AddNode: nodes.add,
    UpdateNode: nodes.update,
    MoveNode: nodes.move,
    RemoveNode: nodes.remove,
    Submit: jobs.submit,
    Scale: jobs.scale,
    Kill: jobs.kill,
    SetPriority: jobs.set_priority,
    BringToFront: jobs.bring_to_front,
    CancelReservation: jobs.cancel,
    ResetLane: jobs.reset_lane,
    Report: reports.report,
    RegisterManager: managers.register,
    UpdateManager: managers.update,
}

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_answer = msgspec.msgpack.Decoder(Accepted).decode


def intake(plan: Plan, commands: Iterable[AnyCommand]) -> list[Answer]:
    """Take the commands in their order; the answers are in the same order."""
    return [_take(plan, command) for command in commands]


def _take(plan: Plan, command: AnyCommand) -> Answer:
    mark = plan.mark()
    try:
        if plan.partition.removed:
            raise Refused("partition", f"{plan.partition.name} was removed; name another one", "gone")
        if not command.key:
            return HANDLERS[type(command)](plan, command)
        return _take_once(plan, command)
    except Refused as refusal:
        plan.rollback(mark)
        return Rejected(refusal.field, refusal.problem, refusal.code)
    except IllegalTransition as refusal:
        plan.rollback(mark)
        return Rejected("state", str(refusal), "conflict")


def _take_once(plan: Plan, command: AnyCommand) -> Answer:
    if len(command.key) > MAX_KEY:
        raise Refused("key", f"{len(command.key)} characters are too many; at most {MAX_KEY} are allowed")
    digest = blake2b(_encode(msgspec.structs.replace(command, key="")), digest_size=16).digest()
    kept = plan.partition.keys.get((command.user, command.key))
    if kept is not None:
        if kept.digest != digest:
            raise Refused("key", "was used before with another body; use a new key for a new request", "conflict")
        return _decode_answer(kept.answer)
    answer = HANDLERS[type(command)](plan, command)
    # A submission's key lives with its job; any other key counts from now.
    expires = None if answer.job else plan.now + plan.partition.settings.keep_keys
    plan.do(KeyKept(command.user, command.key, KeptKey(digest, _encode(answer), answer.job, expires)))
    return answer
