"""Checks that bills of waiting time add up: the parts of each job's bill equal its wait, which is counted apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from fairlead.core.cycle import Cycle
from fairlead.core.dump import dump
from fairlead.core.model import Job, Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.core.why.wait_causes import WaitCause
from fairlead.views.bills import Bills


class BillChecker:
    """An observer that keeps two bills of each job, with looks after each record and with few looks."""

    def __init__(self) -> None:
        self.waited: Counter[tuple[int, bool]] = Counter()
        """Number of a job, and whether some of its tasks ran → how long tasks of it waited."""
        self.exact, self.rough = Counter[tuple[int, bool]](), Counter[tuple[int, bool]]()
        self.causes: Counter[WaitCause] = Counter()
        self._bills = [Bills(self._charge), Bills(self._charge_roughly, 10 * SECOND)]
        self._before: dict[int, bool] = {}
        self._at: Micros = 0

    def began(self, partition: Partition) -> None:
        self._see(partition, partition.jobs)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        if decided.changes:  # else no record is written
            self._see(decided.plan.partition, decided.plan.partition.touched.jobs)

    def stopped(self, partition: Partition, why: str) -> None:
        pass

    def _charge(self, job: Job, cause: WaitCause, partly: bool, start: Micros, end: Micros) -> None:
        assert str(cause) and end > start
        self.exact[job.number, partly] += end - start
        self.causes[cause] += end - start

    def _charge_roughly(self, job: Job, cause: WaitCause, partly: bool, start: Micros, end: Micros) -> None:
        self.rough[job.number, partly] += end - start

    def _see(self, partition: Partition, touched: Mapping[str, None]) -> None:
        now, before = partition.now, dump(partition)
        for number, partly in self._before.items():
            self.waited[number, partly] += now - self._at
        for bills in self._bills:
            bills.look(partition, touched)
        assert dump(partition) == before
        assert +self.exact == +self.waited, "the parts of a bill do not add up"
        self._at, self._before = now, dict(_waiting(partition))

    def at_end(self) -> None:
        """Check the bills with few looks."""
        for bills in self._bills:
            bills.close(self._at)
        assert +self.rough == +self.waited


def _waiting(partition: Partition) -> Iterator[tuple[int, bool]]:
    """Yield the jobs of which tasks wait, each with whether others run, by counting tasks."""
    for job in partition.jobs.values():
        tasks = [task for stage in job.stages for task in (stage.live or {}).values()]
        placed = sum(len(stage.live or {}) + stage.done() for stage in job.stages)
        waits = any(task.slots and task.state == "assigned" for task in tasks)
        waits |= placed < sum(stage.size for stage in job.stages)
        if waits and job.state not in ("succeeded", "failed", "killed"):
            yield job.number, any(not task.slots for task in tasks)
