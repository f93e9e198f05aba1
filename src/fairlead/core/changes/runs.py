"""Changes for expected run times: the last run times by user and job name, and the latest planned start of an ask."""

from __future__ import annotations

from fairlead.core.changes.change import Change
from fairlead.core.model import Micros, Runs, RunsKey
from fairlead.core.state import Partition


class RunsNoted(Change[dict[RunsKey, Runs | None]], frozen=True, tag="runs noted"):
    """Records the last run times of some users and job names, and drops old ones."""

    runs: tuple[tuple[RunsKey, Runs], ...]
    dropped: tuple[RunsKey, ...] = ()

    def apply(self, partition: Partition) -> dict[RunsKey, Runs | None]:
        before: dict[RunsKey, Runs | None] = {}
        for key in self.dropped:
            before[key] = partition.runs.pop(key)
        for key, runs in self.runs:
            before[key] = partition.runs.get(key)
            partition.note_runs(key, runs)
        return before

    def undo(self, partition: Partition, before: dict[RunsKey, Runs | None]) -> None:
        for key, runs in before.items():
            if runs is None:
                del partition.runs[key]
            else:
                partition.note_runs(key, runs)


class StartPlanned(Change[None], frozen=True, tag="start planned"):
    """Records the latest planned start of the first ask without capacity. Asks behind it must not delay it further."""

    job: str
    stage: int
    kind: int
    latest: Micros

    def apply(self, partition: Partition) -> None:
        self._set(partition, self.latest)

    def undo(self, partition: Partition, before: None) -> None:
        self._set(partition, 0)

    def _set(self, partition: Partition, latest: Micros) -> None:
        ask = partition.waits(self.job, self.stage, self.kind)
        if ask is None:
            raise ValueError(f"job {self.job} asks for nothing of kind {self.kind}")
        ask.latest = latest
        partition.touched.jobs[self.job] = None
