"""A copy of a partition that follows its journal, with the past from the history."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from msgspec.structs import replace

from fairlead.core.ahead.expected_ends import guess
from fairlead.core.changes import (
    Asked,
    AskedUndo,
    Change,
    JobNews,
    Names,
    NodeRemoved,
    Promised,
    SinglesEnded,
    Stopped,
    TaskNews,
)
from fairlead.core.changes.jobs import job_over
from fairlead.core.commands import Actor
from fairlead.core.dump import load
from fairlead.core.model import Micros
from fairlead.core.ranges import count
from fairlead.core.resources import DAY
from fairlead.core.state import Partition, Touched
from fairlead.forecast.recorded import DAYS, Past, PastJob
from fairlead.forecast.runtimes import Runtimes
from fairlead.history.past_jobs import RanJob, ran_jobs, ran_stages
from fairlead.history.tables import Tables
from fairlead.journal.codec import actors_of, replay, stream_of
from fairlead.journal.journal import Pruned
from fairlead.journal.locate import open_journal
from fairlead.views.decision_log import CONFIGURATION
from fairlead.wire.preview import StoryLine

WORDS = {"agent": "the agent of its node", "server": "the server"}
SUBMITTED, OVER = "job submitted", "job over"
ENDED = ("succeeded", "failed", "killed")
EVERY_JOB = ""
"""Key for lines that concern all jobs of that time."""
MOST_JOBS = 20_000
"""Maximum number of finished jobs that are read."""
MOST_STAGES = 100
"""Maximum number of stages, with some tasks ended, that are read."""
MOST_LINES = 200_000
"""Maximum number of journal lines that are remembered for stories."""


class Follower:
    def __init__(self, journal: str | os.PathLike[str], history: Tables, partition: str) -> None:
        self.name = partition
        self.journal = journal
        self._history = history
        self._seq = 0
        self._ended: list[RanJob] = []
        self._read_until: Micros = 0
        self.state = Partition(partition)
        self.began: Micros = 0
        """The time from which the journal was followed."""
        self._lines: deque[tuple[str, StoryLine]] = deque(maxlen=MOST_LINES)
        """Job and line: what happened since then."""
        self._restore()

    def catch_up(self) -> None:
        """Apply the records written since the last call."""
        try:
            self._read_on()
        except Pruned:
            self._restore()
            self._read_on()

    def _read_on(self) -> None:
        with open_journal(self.journal, read_only=True) as journal:
            for record in journal.read(stream_of(self.name), self._seq):
                where = f"record {record.seq} of {stream_of(self.name)}"
                done = replay(self.state, record.payload, where)
                self._seq = record.seq
                self._tell(done, actors_of(record.payload, where))
        self.state.touched = Touched()

    def past(self, now: Micros) -> tuple[Past, Runtimes]:
        """Return recorded jobs and run times: from the history, and submissions that have not ended."""
        since = max(self._read_until, now - 2 * DAYS * DAY)
        self._ended += ran_jobs(self._history, self.name, since, MOST_JOBS)
        del self._ended[:-MOST_JOBS]
        if self._ended:
            self._read_until = self._ended[-1].ended
        runtimes = Runtimes()
        recorded = {(job.spec.user, job.spec.name, stage) for job in self._ended for stage in job.ran}
        runtimes.note_learned(self.state, recorded)
        entries: list[tuple[Micros, int, PastJob]] = []
        for job in self._ended:
            durations: list[Micros | None] = [None] * len(job.spec.stages)
            for at, spec in enumerate(job.spec.stages):
                runs = job.ran.get(spec.name)
                if runs is not None:
                    durations[at] = runs.mean
                    given = spec.estimate if spec.estimate is not None else spec.time_limit
                    runtimes.note(job.spec.user, job.spec.name, spec.name, runs.mean, given, runs.tasks)
            if not job.spec.manager:
                took = [job.took.get(spec.name) for spec in job.spec.stages]
                past_job = PastJob(job.submitted, job.id, job.spec, durations, took)
                entries.append((job.submitted, job.number, past_job))
        begun = [stage for job in self.state.jobs.values() if not job.over for stage in job.stages if stage.ended]
        for stage, ran in ran_stages(self._history, self.name, begun[-MOST_STAGES:]):
            runtimes.note(*stage.job.owner, stage.name, ran.mean, guess(stage.terms), ran.tasks)
        known = {number for _, number, _ in entries}
        for live in self.state.jobs.values():
            if live.number not in known and not live.manager:
                nothing: list[Micros | None] = [None] * len(live.spec.stages)
                asked = replace(live.spec, queue=live.queue.path)
                entries.append((live.submitted, live.number, PastJob(live.submitted, live.id, asked, nothing)))
        past = Past()
        for _, _, entry in sorted(entries, key=lambda entry: entry[:2]):
            past.add(entry)
        return past, runtimes

    def story(self, job: str, number: int) -> list[StoryLine]:
        """Return what happened to a job since the journal is followed, and to the configuration meanwhile."""
        told: list[StoryLine] = []
        over = False
        submitted = any(name == job and line.event == SUBMITTED for name, line in self._lines)
        for name, line in self._lines:
            if name == job and line.fields.get("number", number) == number:
                told.append(line)
                submitted, over = False, over or line.event == OVER
            elif name == EVERY_JOB and not submitted and not over:
                told.append(line)
        return told

    # -- inside --------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Start again from the newest snapshot."""
        with open_journal(self.journal, read_only=True) as journal:
            snapshot = journal.snapshot(stream_of(self.name))
        self.state, self._seq = Partition(self.name), 0
        if snapshot is not None:
            self.state, self._seq = load(snapshot.payload), snapshot.seq
        self.began = self.state.now
        self._lines.clear()

    def _tell(self, done: list[tuple[Change[Any], Any]], actors: list[Actor] | None) -> None:
        removed = {change.node_id: before.node.name for change, before in done if isinstance(change, NodeRemoved)}
        names = Names(self.state, self.state.now, removed)
        configured = [at for at, (change, _) in enumerate(done) if type(change) in CONFIGURATION]
        if configured:
            changed = sorted({CONFIGURATION[type(done[at][0])] for at in configured} - {""})
            fields = {"changed": changed, **_by(actors, configured[0])}
            self._lines.append((EVERY_JOB, StoryLine(self.state.now, "configuration applied", fields)))
        rights = {
            number: change.cause for change, _ in done if isinstance(change, Promised) for number in change.victims
        }
        for at, (change, before) in enumerate(done):
            by = _by(actors, at)
            if isinstance(change, Stopped) and (right := rights.get(change.into or change.allocation)):
                by = {"right": right, **by}
            if by and isinstance(change, SinglesEnded):
                by = {"by": WORDS["agent"]}  # ends that agents reported are booked together after all commands
            self._lines += self._lines_of(names, change, before, by)

    def _lines_of(
        self, names: Names, change: Change[Any], before: Any, by: dict[str, str]
    ) -> list[tuple[str, StoryLine]]:
        """Return the jobs and story lines of a change; lines that tell the end of a job come last."""
        lines: list[tuple[str, StoryLine]] = []
        last: list[tuple[str, StoryLine]] = []
        told: set[str] = set()
        for _, event, fields in change.lines(names, before):
            job = fields.get("job")
            if isinstance(job, str):
                if event.startswith("tasks"):
                    told.add(job)
                line = StoryLine(self.state.now, event, {**fields, **by})
                (last if event == OVER else lines).append((job, line))
        if isinstance(change, Asked) and (moved := _move_of(change, before)):
            lines.append((change.job, StoryLine(self.state.now, moved, {"stage": before.stage.name, **by})))
        over = {job for job, _ in last}
        for news in change.news(self.state, before):
            if isinstance(news, TaskNews) and news.stage.job.id not in told:
                line = self._line_of(names, news)
                line.fields.update(by)
                lines.append((news.stage.job.id, line))
            elif isinstance(news, JobNews) and news.state in ENDED and news.job.id not in over:
                # One line tells the end of many jobs. Here each job has its own.
                _, event, fields = job_over(names, news.job, news.state, news.reason)
                last.append((news.job.id, StoryLine(self.state.now, event, {**fields, **by})))
        return [*lines, *last]

    def _line_of(self, names: Names, news: TaskNews) -> StoryLine:
        """Return the story line for tasks that changed state by a change that writes no log line about tasks."""
        fields: dict[str, Any] = {"stage": news.stage.name, "tasks": count(news.indices), "attempt": news.attempt}
        if news.node in self.state.nodes.rows:
            fields["node"] = names.node(news.node)
        if news.outcome:
            fields["outcome"] = news.outcome
        if news.reason:
            fields["reason"] = news.reason
        if news.exit_code is not None:
            fields["exit_code"] = news.exit_code
        return StoryLine(self.state.now, f"tasks {news.what}", fields)


def _move_of(change: Asked, before: AskedUndo) -> str:
    """Return why a waiting ask moved to another place in its lane; empty if it is new or keeps its place."""
    replaced = before.replaced
    if replaced is None:
        return ""
    if change.front > replaced.front:
        return "asks brought to front"
    return "asks moved to tail" if change.round > replaced.round else ""


def _by(actors: list[Actor] | None, position: int) -> dict[str, str]:
    """Return who decided the change at a position of a record; empty if that is not known."""
    if actors is None:
        return {}
    for actor in actors:
        if position < actor.until:
            return {"by": f"{actor.kind} {actor.user}" if actor.user else WORDS[actor.kind]}
    return {"by": "the scheduler"}
