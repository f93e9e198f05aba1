"""Dry runs: what the next cycles would do with a submission or a priority, tried on a copy of the state."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlead.core import cycle
from fairlead.core.commands import Rejected, SetPriority, Submit
from fairlead.core.model import Allocation, Job, Micros
from fairlead.core.outcomes import live_of
from fairlead.core.ranges import count
from fairlead.core.state import Partition
from fairlead.core.why.never import never_runs
from fairlead.core.why.reasons import NoNodeYet, Reason, Sees
from fairlead.views.causes import NAMED
from fairlead.views.explanation import Explained, explained, remedies_of, with_remedies
from fairlead.views.outlook import listed
from fairlead.views.summaries import Reasons

SUBMITTED = "submitted now, it"


class Tried(msgspec.Struct, frozen=True):
    """The result of a tried submission. `partition` is the copy after the cycle; a forecast can continue from there."""

    partition: Partition
    job: Job
    reasons: Reasons
    now: Micros

    @property
    def starts(self) -> bool:
        """True if all stages start, each with at least `min` tasks."""
        return all(stage.started for stage in self.job.stages)

    @property
    def placed(self) -> list[tuple[str, str, int]]:
        """Return stage, node and number of the tasks that start at once."""
        nodes = self.partition.nodes
        return [
            (stage.name, nodes.name[nodes.rows[allocation.node]], count(allocation.indices))
            for stage in self.job.stages
            for allocation in live_of(stage)
        ]

    @property
    def never(self) -> Reason | None:
        """Return why the job can never run with the present cluster; None if it can."""
        never = None if self.starts else never_runs(self.partition, self.job)
        return None if isinstance(never, NoNodeYet) else never

    def explained(self, sees: Sees = lambda job: True, expired: Callable[[], bool] = lambda: False) -> Explained:
        """Explain what would happen to the job, with remedies if it would wait."""
        view = explained(self.partition, self.job, self.reasons, self.now, sees)
        if self.starts:
            return msgspec.structs.replace(view, sentence=f"{SUBMITTED} starts at once {self._where()}")
        subject = "it" if self.never else SUBMITTED
        view = msgspec.structs.replace(view, sentence=f"{subject} {view.sentence.removeprefix(f'job {view.job} ')}")
        return with_remedies(view, remedies_of(self.partition, self.job, self.now, expired), sees)

    def _where(self) -> str:
        """Return the nodes where the job starts, and the number of tasks if not all of them start."""
        tasks, all_tasks = sum(tasks for _, _, tasks in self.placed), sum(stage.size for stage in self.job.stages)
        nodes = tuple(dict.fromkeys(node for _, node, _ in self.placed))
        part = "" if tasks == all_tasks else f"with {tasks} of {all_tasks} tasks "
        return f"{part}on {listed(nodes[:NAMED], len(nodes))}"


CYCLES = 8
"""The greatest number of cycles that are run to see which tasks a change of priority stops."""


def stopped_by(partition: Partition, command: SetPriority | Submit, now: Micros) -> list[Allocation] | Rejected:
    """Change a priority, or submit a job, in a copy of a partition. Return the tasks that stop for it in the next
    cycles."""
    stopping = {number for number, allocation in partition.allocations.items() if allocation.state == "stopping"}
    now = max(now, partition.now)
    decided = cycle.run(partition, [msgspec.structs.replace(command, key="")], now)
    answer = decided.answers[0]
    if isinstance(answer, Rejected):
        return answer
    job = command.job if isinstance(command, SetPriority) else answer.job
    for _ in range(CYCLES):
        if not decided.more:
            break
        decided = cycle.run(partition, [], now)
    return [
        allocation
        for number, allocation in sorted(partition.allocations.items())
        if allocation.state == "stopping" and allocation.stopped_for == f"job {job}" and number not in stopping
    ]


def try_submission(partition: Partition, command: Submit, reasons: Reasons, now: Micros) -> Tried | Rejected:
    """Submit a job to a copy of a partition, and run the next cycle there. A refused job gives the refusal."""
    now = max(now, partition.now)
    decided = cycle.run(partition, [msgspec.structs.replace(command, key="")], now)
    answer = decided.answers[0]
    if isinstance(answer, Rejected):
        return answer
    return Tried(partition, partition.jobs[answer.job], {**reasons, **decided.reasons}, now)
