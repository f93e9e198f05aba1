"""One cycle: runs the phases in order. The writer calls `run`, commits the changes, and then sends the effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fairlead.core import invariants
from fairlead.core.changes import Change
from fairlead.core.commands import Actor, ActorKind, Answer, Command, Report
from fairlead.core.effects import Effect, effects_of
from fairlead.core.expiry import due, expiry
from fairlead.core.followers import follow
from fairlead.core.holds.recall import recall_loans
from fairlead.core.holds.release import release_obsolete
from fairlead.core.holds.starvation import hold_nodes
from fairlead.core.intake import intake
from fairlead.core.last_runs import learn
from fairlead.core.match.advance_chains import advance_chains, chain
from fairlead.core.match.match import match
from fairlead.core.mix import learn_mix
from fairlead.core.model import Micros
from fairlead.core.past_use import move_landmark
from fairlead.core.plan import Note, Plan
from fairlead.core.pools.demand import demand
from fairlead.core.preempt.loans import shares
from fairlead.core.preempt.preempt import preempt
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason

__all__ = ["Cycle", "Watch", "due", "run"]

Watch = Callable[[str], None]
"""Called with the name of each phase when it ends. The core has no clock, so the caller measures the time."""


class Cycle(msgspec.Struct):
    """The result of a cycle. No part of it may be sent before the changes are durable."""

    plan: Plan
    changes: list[Change[Any]]
    commands: Sequence[Command]
    answers: list[Answer]
    marks: list[int]
    """For each command, the number of changes in the plan after it."""
    effects: list[Effect]
    reasons: dict[tuple[str, str, int], Reason]
    notes: dict[Note, int]
    more: bool
    """True if another cycle should follow at once: this one reached a bound, or phases after match changed holds or
    stopped tasks."""
    seq: int = 0
    """The number of its record. The writer sets it; 0 before that, and if there were no changes."""

    def actors(self) -> list[Actor]:
        """Return the callers whose commands made changes.

        These are the first changes of the cycle; phases after intake made the others.
        """
        actors: list[Actor] = []
        first = 0
        for command, last in zip(self.commands, self.marks, strict=True):
            if last == first:
                continue
            first = last
            kind: ActorKind = "operator" if command.operator else "user"
            if not command.user:
                kind = "agent" if isinstance(command, Report) else "server"
            if actors and (actors[-1].kind, actors[-1].user) == (kind, command.user):
                actors.pop()
            actors.append(Actor(last, kind, command.user))
        return actors


def run(partition: Partition, commands: Sequence[Command], now: Micros, watch: Watch = lambda phase: None) -> Cycle:
    """Run all phases: carry out commands, act on deadlines, place tasks, hold nodes, preempt, order nodes."""
    plan = Plan(partition, now)
    try:
        move_landmark(plan)
        answers, marks = intake(plan, commands)
        release_obsolete(plan)
        watch("intake")
        if not partition.removed:
            learn(plan)
            learn_mix(plan)
            expiry(plan)
            follow(plan)
            release_obsolete(plan)
            advance_chains(plan)
            watch("expiry")
            match(plan)
            chain(plan)
            watch("match")
            matched = plan.mark()
            hold_nodes(plan)
            recall_loans(plan)
            watch("holds")
            shares(plan)
            preempt(plan)
            release_obsolete(plan)  # a gang that was stopped whole needs no hold for a part of it
            # If phases after match changed holds or stopped tasks, asks already tried may get another answer.
            plan.more = plan.more or plan.unsettled or plan.mark() > matched
            watch("preempt")
            plan.more = follow(plan) or plan.more
            demand(plan)
            watch("demand")
        invariants.check_touched(partition)
    except BaseException:
        # A bug: take everything back, so that the writer reports the error and writes nothing.
        plan.abandon()
        raise
    done: list[tuple[Change[Any], Any]] = plan.done
    effects = effects_of(partition, done, plan.strays)
    changes = plan.seal()
    watch("seal")
    return Cycle(plan, changes, commands, answers, marks, effects, plan.reasons, plan.notes, plan.more)
