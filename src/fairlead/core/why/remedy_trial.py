"""Trials: apply steps to a copy of a partition, run the next cycle, see whether an ask starts, and undo everything.

The core itself decides, so a trial follows all rules: limits, shares, turns, holds and placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import msgspec

from fairlead.core import cycle
from fairlead.core.admission import held_back
from fairlead.core.asks import minimum_by_stage
from fairlead.core.changes import Stopped
from fairlead.core.commands import Command, Kill, Rejected, Submit
from fairlead.core.cycle import Cycle
from fairlead.core.dump import dump, load
from fairlead.core.model import NEW, Ask, Job, Micros, Stage
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason, after_unmet
from fairlead.core.why.remedy_steps import Request, Step, configured, report_end

AGAIN = "again"
"""The beginning of the id of a job that a trial submits again."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a trial."""

    started: bool
    reason: Reason | None = None
    """Why the ask was not placed; None if it was not tried or has started."""
    refused: bool = False
    """True if the command of a step was refused."""


def copy_of(partition: Partition) -> Partition:
    """Return an independent copy of a partition, with the same readiness."""
    twin = load(dump(partition))
    twin.readiness = copy(partition.readiness)
    twin.retime()
    return twin


class Trials:
    """Tries steps for the pending tasks of one kind of a stage.

    The partition is a copy. Each trial changes it and then restores it, equal to the byte.
    """

    def __init__(self, partition: Partition, stage: Stage, kind: int, now: Micros) -> None:
        self.partition = partition
        self.job = stage.job
        self.kind = kind
        # A job that waits for other jobs has no ask yet.
        self.ask = stage.asks[kind] or Ask(stage, kind, now, now, 0, whole=stage.whole(kind))
        self.needs = minimum_by_stage(self.ask)
        """The tasks that have to start together, by stage."""
        self.now = max(now, partition.now)
        self.runs = 0
        """The number of trials so far."""
        self._known: dict[tuple[Step, ...], Outcome] = {}

    def run(self, steps: tuple[Step, ...]) -> Outcome:
        """Return the result of the next cycle after all steps. Settings are changed in a cycle of their own before."""
        known = self._known.get(steps)
        if known is None:
            self.runs += 1
            known, stops = self._run(steps)
            if known.started and stops:
                # New settings may stop tasks for other asks. The ask must start whether they end at once or later.
                known, _ = self._run(steps, stopped=True)
            self._known[steps] = known
        return known

    def _run(self, steps: tuple[Step, ...], stopped: bool = False) -> tuple[Outcome, bool]:
        """Return the result, and True if new settings made tasks stop. With `stopped`, these end at once."""
        partition, first = self.partition, self.partition.counters.allocation
        readiness = copy(partition.readiness)
        done: list[Cycle] = []
        # A sleeping lane is not tried and gives no reason.
        partition.memory.backfill = None
        partition.wake_lanes(self.ask.stage)
        try:
            setting = configured(partition, steps)
            ends: list[Command] = []
            if setting is not None:
                done.append(cycle.run(partition, [setting], self.now))
                ends = self._ends(done[0])
            commands, job_id = self._commands(steps)
            done.append(cycle.run(partition, [*(ends if stopped else ()), *commands], self.now))
            if any(isinstance(answer, Rejected) for turn in done for answer in turn.answers):
                return Outcome(False, refused=True), False
            job = partition.jobs[job_id]
            return Outcome(self._started(job, first), self._reason(job, done[-1])), bool(ends)
        finally:
            for turn in reversed(done):
                turn.plan.abandon()
            partition.readiness = readiness

    def _ends(self, turn: Cycle) -> list[Command]:
        """Return the reports of tasks that a cycle stopped."""
        partition = self.partition
        numbers = [change.into or change.allocation for change in turn.changes if isinstance(change, Stopped)]
        stopping = [partition.allocations[number] for number in numbers if number in partition.allocations]
        return [report_end(partition, allocation, allocation.indices) for allocation in stopping]

    def _reason(self, job: Job, turn: Cycle) -> Reason | None:
        if job.held_by is not None:
            return held_back(job)
        unmet = self.partition.unmet(job)
        if unmet:
            return after_unmet(unmet)
        keys = [(job.id, stage.name, self.kind) for stage, _ in self.needs]
        return next((turn.reasons[key] for key in keys if key in turn.reasons), None)

    def _commands(self, steps: Sequence[Step]) -> tuple[list[Command], str]:
        """Return the commands of all steps but settings of queues, and the id of the job that should start."""
        commands = [command for step in steps for command in step.commands(self.partition)]
        requests = [step for step in steps if isinstance(step, Request)]
        if not requests:
            return commands, self.job.id
        spec = self.job.spec
        for request in requests:
            spec = request.changed(spec)
        again = f"{AGAIN}-{self.job.id}"
        commands += [Kill(job=self.job.id, operator=True), Submit(spec=spec, id=again, operator=True)]
        return commands, again

    def _started(self, job: Job, first: int) -> bool:
        """True if the tasks that must start together were placed, in allocations from number `first` on."""
        kind = self.kind if job is self.job else NEW
        return all(
            any(
                allocation.id >= first
                and allocation.kind == kind
                and allocation.state == "assigned"
                and not allocation.slots
                for allocation in (stage.live or {}).values()
            )
            for needed, _ in self.needs
            if (stage := job.stage(needed.name)) is not None
        )
