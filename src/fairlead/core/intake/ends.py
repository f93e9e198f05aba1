"""Fast path for the most common report: the task of a one-task job succeeded, and so did the job.

Consecutive reports of this kind become one change. All other reports are handled in `reports`.
"""

from __future__ import annotations

from fairlead.core.changes import SinglesEnded
from fairlead.core.commands import Report
from fairlead.core.intake.reports import MAX_NUMBER
from fairlead.core.model import Allocation, Job, Micros, Stage
from fairlead.core.plan import Plan


class Ends:
    """Collects reports for one change. `make` must be called before other code reads the state."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ended: dict[int, Micros] = {}
        """Allocation → how long its task ran; 0 if that is not known."""

    def take(self, report: Report) -> bool:
        """Collect a report. False if the fast path does not cover it."""
        allocation = self._find(report)
        if allocation is None or allocation.id in self._ended:
            return False
        self._ended[allocation.id] = report.ran
        self.plan.partition.readiness.note_node(allocation.node)
        return True

    def make(self) -> None:
        """Make the change for the collected reports, if any."""
        if self._ended:
            self.plan.do(SinglesEnded(tuple(self._ended), tuple(self._ended.values())))
            self._ended = {}

    def _find(self, report: Report) -> Allocation | None:
        partition = self.plan.partition
        job = partition.jobs.get(report.job)
        if job is None or not _is_plain(report) or partition.removed:
            return None
        stage = _only_task(job)
        if stage is None or job.id in partition.derived.followers or stage.name != report.stage:
            return None
        allocation = (stage.live or {}).get(0)
        if (
            allocation is None
            or allocation.attempt != 1
            or allocation.state == "stopping"
            or report.number not in (0, job.number)
        ):
            return None
        return allocation if partition.nodes.name[partition.nodes.rows[allocation.node]] == report.node else None


def _is_plain(report: Report) -> bool:
    """True if an agent reports that the first attempt of the first task of a stage succeeded."""
    return (
        report.state == "succeeded"
        and report.attempt == 1
        and report.indices == (0, 1)
        and report.exit_code in (0, None)
        and type(report.ran) is int
        and 0 <= report.ran <= MAX_NUMBER
        and not report.user
    )


def _only_task(job: Job) -> Stage | None:
    """Return the stage of a one-task job in its first attempt; None for other jobs."""
    if len(job.stages) != 1 or job.manager or job.after or job.over:
        return None
    stage = job.stages[0]
    return None if stage.count != 1 or stage.history or len(stage.live or ()) != 1 else stage
