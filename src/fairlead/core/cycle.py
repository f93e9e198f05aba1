"""One cycle: the order of the phases, on one screen. The writer calls this, commits what comes out, and acts on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.core import invariants
from fairlead.core.changes import Change
from fairlead.core.commands import Answer, AnyCommand
from fairlead.core.effects import Effect, effects_of
from fairlead.core.model import Micros
from fairlead.core.phases.expiry import due, expiry
from fairlead.core.phases.intake import intake
from fairlead.core.phases.match import match
from fairlead.core.plan import Plan
from fairlead.core.reasons import Reason
from fairlead.core.state import Partition

__all__ = ["Cycle", "due", "run"]


class Cycle(msgspec.Struct):
    """What a cycle decided. Nothing of it may leave before its changes are durable."""

    plan: Plan
    changes: list[Change]
    answers: list[Answer]
    effects: list[Effect]
    reasons: dict[tuple[str, str, int], Reason]
    notes: dict[str, int]
    more: bool
    """Whether it reached its bounds: the next cycle should follow at once."""


def run(partition: Partition, commands: Sequence[AnyCommand], now: Micros) -> Cycle:
    """Take the commands, let time pass, place what can be placed."""
    plan = Plan(partition, now)
    try:
        answers = intake(plan, commands)
        if not partition.removed:
            expiry(plan)
            match(plan)
        invariants.check_touched(partition)
    except BaseException:
        # A fault of ours: the state is as it was, and the writer says so instead of writing half a truth.
        plan.abandon()
        raise
    done: list[tuple[Change, Any]] = plan.done
    effects = effects_of(partition, done, plan.strays)
    return Cycle(plan, plan.seal(), answers, effects, plan.reasons, plan.notes, plan.more)
