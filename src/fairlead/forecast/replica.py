"""A copy of a partition that follows its journal, with the past from the history."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from fairlead.core import changes
from fairlead.core.ahead.expected_ends import guess
from fairlead.core.changes.jobs import job_over
from fairlead.core.commands import Actor
from fairlead.core.dump import load
from fairlead.core.model import Micros
from fairlead.core.ranges import count
from fairlead.core.resources import DAY
from fairlead.core.state import Partition, Touched
from fairlead.forecast.recorded import DAYS, Past, PastJob
from fairlead.forecast.runtimes import Runtimes
from fairlead.history.databases import Tables
from fairlead.history.past_jobs import RanJob, ran_jobs, ran_stages
from fairlead.journal.codec import actors_of, replay, stream_of
from fairlead.journal.journal import Pruned
from fairlead.journal.locate import open_journal
from fairlead.views.decision_log import CONFIGURATION
from fairlead.wire.preview import StoryLine

WORDS = {"agent": "the agent of its node", "server": "the server"}
SUBMITTED, OVER = "job submitted", "job over"
ENDED = ("succeeded", "failed", "killed")
EVERY_JOB = ""
"""Stands for all jobs in lines about the configuration."""
MOST_JOBS = 20_000
"""At most this number of finished jobs is read from the history."""
MOST_STAGES = 100
"""Of at most this number of stages that still run, the ended tasks are read from the history."""
MOST_LINES = 200_000
"""At most this number of lines is remembered for stories."""


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
        """The time of the snapshot that the follower began with; it has no story lines of earlier changes."""
        self._lines: deque[tuple[str, StoryLine]] = deque(maxlen=MOST_LINES)
        """Job and line, for each event since then."""
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
                self._add_lines(done, actors_of(record.payload, where))
        self.state.touched = Touched()

    def past(self, now: Micros) -> tuple[Past, Runtimes]:
        """Return the recorded jobs, also those that have not ended, and the recorded run times."""
        since = max(self._read_until, now - 2 * DAYS * DAY)
        self._ended += ran_jobs(self._history, self.name, since, MOST_JOBS)
        del self._ended[:-MOST_JOBS]
        if self._ended:
            self._read_until = self._ended[-1].ended
        past = Past()
        for _, _, job in sorted(self._past_jobs(), key=lambda entry: entry[:2]):
            past.add(job)
        return past, self._runtimes()

    def _past_jobs(self) -> Iterator[tuple[Micros, int, PastJob]]:
        """Yield the jobs to draw arrivals from, each with its time of submission and its number."""
        known: set[int] = set()
        for job in self._ended:
            if not job.spec.manager:
                known.add(job.number)
                runs = [job.ran.get(stage.name) for stage in job.spec.stages]
                means = [None if run is None else run.mean for run in runs]
                took = [job.took.get(stage.name) for stage in job.spec.stages]
                yield job.submitted, job.number, PastJob(job.submitted, job.id, job.spec, means, took)
        for live in self.state.jobs.values():
            if live.number not in known and not live.manager:
                unknown: list[Micros | None] = [None] * len(live.spec.stages)
                spec = replace(live.spec, queue=live.queue.path)
                yield live.submitted, live.number, PastJob(live.submitted, live.id, spec, unknown)

    def _runtimes(self) -> Runtimes:
        runtimes = Runtimes()
        recorded = {(job.spec.user, job.spec.name, stage) for job in self._ended for stage in job.ran}
        runtimes.note_learned(self.state, recorded)
        for job in self._ended:
            for spec in job.spec.stages:
                runs = job.ran.get(spec.name)
                if runs is not None:
                    given = spec.estimate if spec.estimate is not None else spec.time_limit
                    runtimes.note(job.spec.user, job.spec.name, spec.name, runs.mean, given, runs.tasks)
        begun = [stage for job in self.state.jobs.values() if not job.over for stage in job.stages if stage.ended]
        for stage, ran in ran_stages(self._history, self.name, begun[-MOST_STAGES:]):
            runtimes.note(*stage.job.owner, stage.name, ran.mean, guess(stage.terms), ran.tasks)
        return runtimes

    def story(self, job: str, number: int) -> list[StoryLine]:
        """Return the lines about a job, and those about the configuration from its submission to its end."""
        lines: list[StoryLine] = []
        over = False
        submitted = any(name == job and line.event == SUBMITTED for name, line in self._lines)
        for name, line in self._lines:
            if name == job and line.fields.get("number", number) == number:
                lines.append(line)
                submitted, over = False, over or line.event == OVER
            elif name == EVERY_JOB and not submitted and not over:
                lines.append(line)
        return lines

    def _restore(self) -> None:
        with open_journal(self.journal, read_only=True) as journal:
            snapshot = journal.snapshot(stream_of(self.name))
        self.state, self._seq = Partition(self.name), 0
        if snapshot is not None:
            self.state, self._seq = load(snapshot.payload), snapshot.seq
        self.began = self.state.now
        self._lines.clear()

    def _add_lines(self, done: list[tuple[changes.Change[Any], Any]], actors: list[Actor] | None) -> None:
        removed = {
            change.node_id: before.node.name for change, before in done if isinstance(change, changes.NodeRemoved)
        }
        names = changes.Names(self.state, self.state.now, removed)
        configured = [at for at, (change, _) in enumerate(done) if type(change) in CONFIGURATION]
        if configured:
            changed = sorted({CONFIGURATION[type(done[at][0])] for at in configured} - {""})
            fields = {"changed": changed, **_by(actors, configured[0])}
            self._lines.append((EVERY_JOB, StoryLine(self.state.now, "configuration applied", fields)))
        promises = [change for change, _ in done if isinstance(change, changes.Promised)]
        rights = {number: promise.cause for promise in promises for number in promise.victims}
        for at, (change, before) in enumerate(done):
            self._lines += self._lines_of(names, change, before, _cause(change, _by(actors, at), rights))

    def _lines_of(
        self, names: changes.Names, change: changes.Change[Any], before: Any, by: dict[str, str]
    ) -> list[tuple[str, StoryLine]]:
        """Return the jobs and story lines of a change. Lines about the end of jobs come last."""
        lines: list[tuple[str, StoryLine]] = []
        last: list[tuple[str, StoryLine]] = []
        with_line: set[str] = set()
        """Jobs that have a line about tasks already."""
        for _, event, fields in change.lines(names, before):
            job = fields.get("job")
            if isinstance(job, str):
                if event.startswith("tasks"):
                    with_line.add(job)
                line = StoryLine(self.state.now, event, {**fields, **by})
                (last if event == OVER else lines).append((job, line))
        if isinstance(change, changes.Asked) and (moved := _move_of(change, before)):
            lines.append((change.job, StoryLine(self.state.now, moved, {"stage": before.stage.name, **by})))
        over = {job for job, _ in last}
        for news in change.news(self.state, before):
            if isinstance(news, changes.TaskNews) and news.stage.job.id not in with_line:
                line = self._line_of(names, news)
                line.fields.update(by)
                lines.append((news.stage.job.id, line))
            elif isinstance(news, changes.JobNews) and news.state in ENDED and news.job.id not in over:
                # The log has one line for the end of many jobs; a story needs one for each job.
                _, event, fields = job_over(names, news.job, news.state, news.reason)
                last.append((news.job.id, StoryLine(self.state.now, event, {**fields, **by})))
        return [*lines, *last]

    def _line_of(self, names: changes.Names, news: changes.TaskNews) -> StoryLine:
        """Return the story line about tasks whose state changed without a line in the log."""
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


def _cause(change: changes.Change[Any], by: dict[str, str], rights: Mapping[int, str]) -> dict[str, str]:
    """Return the fields that say whose decision a change was, and the right for which it stopped a task."""
    if isinstance(change, changes.Stopped) and (right := rights.get(change.into or change.allocation)):
        return {"right": right, **by}
    if by and isinstance(change, changes.SinglesEnded):
        return {"by": WORDS["agent"]}  # ends that agents reported are booked together after all commands
    return by


def _move_of(change: changes.Asked, before: changes.AskedUndo) -> str:
    """Return why a waiting ask moved to another place in its lane; empty if it is new or keeps its place."""
    replaced = before.replaced
    if replaced is None:
        return ""
    if change.front > replaced.front:
        return "asks brought to front"
    return "asks moved to tail" if change.round > replaced.round else ""


def _by(actors: list[Actor] | None, position: int) -> dict[str, str]:
    """Return the field `by`: whose decision the change at a position of a record was; empty if that is unknown."""
    if actors is None:
        return {}
    for actor in actors:
        if position < actor.until:
            return {"by": f"{actor.kind} {actor.user}" if actor.user else WORDS[actor.kind]}
    return {"by": "the scheduler"}
