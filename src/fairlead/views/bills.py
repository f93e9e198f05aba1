"""Bills of waiting time: how long jobs waited for which cause, in microseconds that add up to the wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fairlead.core.cycle import Cycle
from fairlead.core.model import Job, Micros
from fairlead.core.state import Partition
from fairlead.core.why.wait_causes import WaitCause, wait_cause

Charge = Callable[[Job, WaitCause, bool, Micros, Micros], None]
"""Called with a job, the cause for which it waited, whether some of its tasks ran meanwhile, and the time: from, to."""


class Bills:
    """Follows a partition and charges the time for which jobs wait to causes.

    It is fed with states by `look`, or as an observer of a writer. A cause lasts until the next look at the job. Jobs
    that a record touches are looked at after it; the others after each record too, or, with `every`, only after that
    time. Starts and ends of waits are exact in both cases.
    """

    def __init__(self, charge: Charge, every: Micros = 0) -> None:
        self._charge = charge
        self._every = every
        self._looks_at: Micros = 0
        self._waiting: dict[str, tuple[Job, WaitCause, bool, Micros]] = {}

    def look(self, partition: Partition, touched: Iterable[str], of: Job | None = None) -> None:
        """Note why jobs wait after a record that touched some of them; with `of`, why that job does."""
        now = partition.now
        names: Iterable[str] = touched
        if of is not None:
            names = (of.id,)
        elif now >= self._looks_at:
            self._looks_at = now + self._every
            names = [*self._waiting, *partition.jobs]
        for name in dict.fromkeys(names):
            self._settle(name, now)
            job = partition.jobs.get(name)
            cause = None if job is None else wait_cause(partition, job)
            if job is not None and cause is not None:
                self._waiting[name] = (job, cause, job.live > 0, now)

    def close(self, now: Micros) -> None:
        """Charge what jobs have waited until now."""
        for name in list(self._waiting):
            self._settle(name, now)

    def began(self, partition: Partition) -> None:
        self.look(partition, partition.jobs)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        if decided.changes:  # else there is no record, and a replay would not see the moment
            self.look(decided.plan.partition, decided.plan.partition.touched.jobs)

    def stopped(self, partition: Partition, why: str) -> None:
        pass

    def _settle(self, name: str, now: Micros) -> None:
        before = self._waiting.pop(name, None)
        if before is not None and now > before[3]:
            self._charge(*before, now)
