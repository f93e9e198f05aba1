"""What a server would know of the past of a simulation: who submitted what when, and how long it ran."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.ahead.expected_ends import guess
from fairlead.core.changes import TaskNews
from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.state import Partition
from fairlead.forecast.recorded import Past, PastJob
from fairlead.forecast.runtimes import Runtimes
from fairlead.writer.writer import Observer


class ObservedPast(Observer):
    """An observer that records what a server would know of the past."""

    def __init__(self) -> None:
        self.runtimes = Runtimes()
        self.past = Past()
        self.services: list[Micros] = []
        """The run times of all tasks that ended."""
        self._by_id: dict[str, PastJob] = {}

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        partition = decided.plan.partition
        for command, answer in zip(decided.commands, decided.answers, strict=True):
            job = partition.jobs.get(getattr(answer, "job", "") or "")
            if job is not None and type(command).__name__ == "Submit":
                known = PastJob(job.submitted, job.id, job.spec, [None] * len(job.stages))
                self.past.add(known)
                self._by_id[job.id] = known
        for news in decided.plan.news():
            if isinstance(news, TaskNews) and news.what == "ended" and news.started is not None:
                ran = partition.now - news.started
                stage = news.stage
                user, name = stage.job.owner
                self.runtimes.note(user, name, stage.name, ran, guess(stage.terms))
                self.services.append(ran)
                recorded = self._by_id.pop(stage.job.id, None)
                if recorded is not None:
                    recorded.durations[stage.position] = ran

    def began(self, partition: Partition) -> None:
        pass

    def stopped(self, partition: Partition, why: str) -> None:
        pass
