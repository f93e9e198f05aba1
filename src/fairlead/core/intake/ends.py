"""Intake of the commonest report of all: the only task of a job has succeeded, and so has the job.

Such reports that come one after another become one change. Whatever is not quite as plain goes the way of all reports.
"""

from __future__ import annotations

from fairlead.core.changes import SinglesEnded
from fairlead.core.commands import Report
from fairlead.core.intake.reports import MAX_NUMBER
from fairlead.core.model import Allocation
from fairlead.core.plan import Plan


class Ends:
    """Reports that wait to become one change. It must be made before anybody looks at the state again."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ended: dict[int, None] = {}

    def take(self, report: Report) -> bool:
        """Take a report, if it is of that sort."""
        found = self._find(report)
        if found is None or found.id in self._ended:
            return False
        self._ended[found.id] = None
        self.plan.partition.reign.hear_node(found.node)
        return True

    def make(self) -> None:
        if self._ended:
            self.plan.do(SinglesEnded(tuple(self._ended)))
            self._ended = {}

    def _find(self, report: Report) -> Allocation | None:
        """The allocation that a report is about, if the report is right in every part and there is nothing to weigh."""
        partition = self.plan.partition
        job = partition.jobs.get(report.job)
        if job is None or report.state != "succeeded" or report.attempt != 1 or report.indices != (0, 1):
            return None
        if report.exit_code not in (0, None) or type(report.ran) is not int or not 0 <= report.ran <= MAX_NUMBER:
            return None
        if report.user or partition.removed:
            return None
        if len(job.stages) != 1 or job.manager or job.after or job.over or job.id in partition.followers:
            return None
        stage = job.stages[0]
        if stage.count != 1 or stage.history or not stage.live or len(stage.live) > 1 or stage.name != report.stage:
            return None
        found = stage.live[0]
        if found.attempt != 1 or found.state == "stopping" or report.number not in (0, job.number):
            return None
        return found if partition.nodes.name[partition.nodes.rows[found.node]] == report.node else None
