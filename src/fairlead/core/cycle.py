"""One cycle: the order of the phases, on one screen. The writer calls this, commits what comes out, and acts on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fairlead.core import invariants
from fairlead.core.changes import Change
from fairlead.core.commands import Answer, AnyCommand
from fairlead.core.effects import Effect, effects_of
from fairlead.core.expiry import due, expiry
from fairlead.core.holds.holds import hold_nodes
from fairlead.core.holds.release import release_obsolete
from fairlead.core.intake import intake
from fairlead.core.match.chains import chain, pass_rooms
from fairlead.core.match.match import match
from fairlead.core.model import Micros
from fairlead.core.plan import Note, Plan
from fairlead.core.pools.demand import demand
from fairlead.core.preempt.preempt import preempt
from fairlead.core.preempt.shares import shares
from fairlead.core.reasons import Reason
from fairlead.core.state import Partition

__all__ = ["Cycle", "Watch", "due", "run"]

Watch = Callable[[str], None]
"""Called at the end of each phase with its name: the core has no clock, so whoever wants to know has to look at one."""


class Cycle(msgspec.Struct):
    """What a cycle decided. Nothing of it may leave before its changes are durable."""

    plan: Plan
    changes: list[Change[Any]]
    answers: list[Answer]
    effects: list[Effect]
    reasons: dict[tuple[str, str, int], Reason]
    notes: dict[Note, int]
    more: bool
    """Whether it reached its bounds, or altered what it had looked at: the next cycle should follow at once."""


def run(partition: Partition, commands: Sequence[AnyCommand], now: Micros, watch: Watch = lambda phase: None) -> Cycle:
    """Take the commands, let time pass, place what can be placed, make room for those who need it, order what lacks."""
    plan = Plan(partition, now)
    try:
        answers = intake(plan, commands)
        release_obsolete(plan)
        watch("intake")
        if not partition.removed:
            expiry(plan)
            release_obsolete(plan)
            pass_rooms(plan)
            watch("expiry")
            plan.placed_from = partition.counters.allocation
            match(plan)
            chain(plan)
            watch("match")
            matched = plan.mark()
            hold_nodes(plan)
            watch("holds")
            shares(plan)
            preempt(plan)
            release_obsolete(plan)  # who was stopped whole does not want what was held for a part of it
            # What was kept, let go or stopped since is another world to all who were tried before.
            plan.more = plan.more or plan.unsettled or plan.mark() > matched
            watch("preempt")
            demand(plan)
            watch("demand")
        invariants.check_touched(partition)
    except BaseException:
        # A fault of ours: the state is as it was, and the writer says so instead of writing half a truth.
        plan.abandon()
        raise
    done: list[tuple[Change[Any], Any]] = plan.done
    effects = effects_of(partition, done, plan.strays)
    changes = plan.seal()
    watch("seal")
    return Cycle(plan, changes, answers, effects, plan.reasons, plan.notes, plan.more)
