"""Jobs and array tasks as rows, in Slurm's words: states, reasons, ids and times."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlead.slurm.queues import short
from fairlead.wire.hostlist import fold_hosts
from fairlead.wire.index_spans import each_index, text_of

if TYPE_CHECKING:
    from fairlead.wire import api as wire

STATES = {
    "PENDING": "PD", "RUNNING": "R", "SUSPENDED": "S", "COMPLETED": "CD", "CANCELLED": "CA", "FAILED": "F",
    "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR", "BOOT_FAIL": "BF", "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM", "COMPLETING": "CG", "CONFIGURING": "CF", "RESIZING": "RS", "RESV_DEL_HOLD": "RD",
    "REQUEUED": "RQ", "REQUEUE_FED": "RF", "REQUEUE_HOLD": "RH", "REVOKED": "RV", "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE", "STAGE_OUT": "SO", "STOPPED": "ST",
}  # fmt: skip
"""Long states → short ones."""
LONG = {brief: state for state, brief in STATES.items()}
LIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")
OF_GROUP = {
    "pending": "PENDING", "assigned": "CONFIGURING", "running": "RUNNING", "stopping": "COMPLETING",
    "succeeded": "COMPLETED", "killed": "CANCELLED", "failed": "FAILED", "lost": "NODE_FAIL", "preempted": "PREEMPTED",
}  # fmt: skip
REASONS = (
    (re.compile(r"^begins at"), "BeginTime"),
    (re.compile(r"^waits for .*\bjob"), "Dependency"),
    (re.compile(r"^throttle"), "JobArrayTaskLimit"),
    (re.compile(r"never|no node|can never"), "ReqNodeNotAvail"),
    (re.compile(r"is stopped|is draining"), "PartitionDown"),
    (re.compile(r"limit of .*user"), "QOSMaxCpuPerUserLimit"),
    (re.compile(r"limit|share"), "AssocGrpCpuLimit"),
    (re.compile(r"jobs? (runs?|may)|too many jobs|max_jobs"), "QOSMaxJobsPerUserLimit"),
    (re.compile(r"^behind|would delay|held for"), "Priority"),
    (re.compile(r"starting|just started"), "None"),
)
"""Reasons of Fairlead in short → words of Slurm. All others are `Resources`."""
FINITE = re.compile(r"signal (\d+)")


class Row(msgspec.Struct, kw_only=True):
    """A job, or some tasks of an array, as Slurm lists it."""

    id: str
    """Such as `7`, `7_3`, or `7_[4-9%2]`."""
    number: str
    """The id of the job."""
    index: str = ""
    """Of an array: the index or the indices."""
    name: str
    user: str
    queue: str
    labels: dict[str, str]
    state: str
    reason: str = "None"
    told: str = ""
    """Why it waits or ended, in the words of Fairlead."""
    nodes: list[str] = []
    """The nodes, in the order of their numbers."""
    size: int = 1
    """The number of nodes that are asked for."""
    resources: dict[str, int | float] = {}
    """Resources of each node."""
    submitted: float
    started: float | None = None
    ended: float | None = None
    limit: float | None = None
    exit_code: int | None = None
    attempt: int = 1
    priority: int = 0
    after: list[str] = []
    held: bool = False
    cpu_seconds: float | None = None
    memory: int | None = None
    partition: str = ""
    stage: str = "main"
    indices: list[int] = []

    def label(self, name: str, missing: str = "") -> str:
        return self.labels.get(f"slurm/{name}", missing)

    @property
    def brief(self) -> str:
        return STATES[self.state]

    @property
    def job_name(self) -> str:
        return self.label("name") or self.name

    @property
    def partition_name(self) -> str:
        return short(self.queue)

    @property
    def account(self) -> str:
        return self.label("account")

    @property
    def cpus(self) -> float:
        return self.size * self.resources.get("cpu", 0)

    @property
    def tasks(self) -> int:
        return int(self.label("ntasks", str(self.size)))

    @property
    def elapsed(self) -> float:
        if self.started is None:
            return 0.0
        return (time.time() if self.ended is None else self.ended) - self.started

    @property
    def hosts(self) -> str:
        return fold_hosts(self.nodes)

    @property
    def over(self) -> bool:
        return self.state not in LIVE

    @property
    def exit(self) -> tuple[int, int]:
        """The exit code and the signal."""
        signal = FINITE.search(self.told)
        if self.exit_code is not None and self.exit_code > 128 and not signal and self.exit_code < 193:
            return 0, self.exit_code - 128
        if signal:
            return 0, int(signal[1])
        if self.state in ("TIMEOUT", "CANCELLED"):
            return 0, 15 if self.started is not None else 0
        return (self.exit_code or 0) & 255 if self.exit_code is not None else int(self.state == "FAILED"), 0


def reason_word(text: str, held: bool) -> str:
    """Return why a job waits, in one word of Slurm."""
    if held:
        return "JobHeldUser"
    for pattern, word in REASONS:
        if pattern.search(text):
            return word
    return "Resources" if text else "None"


def end_state(state: str, reason: str) -> str:
    """Return the state of an ended job or task, by its outcome and the reason."""
    if state == "failed":
        if "time limit" in reason:
            return "TIMEOUT"
        if "memory" in reason and "limit" in reason:
            return "OUT_OF_MEMORY"
        if " lost" in reason or "lost:" in reason:
            return "NODE_FAIL"
    return OF_GROUP[state]


ENDED = {"CANCELLED": "None", "TIMEOUT": "TimeLimit", "NODE_FAIL": "NodeDown", "OUT_OF_MEMORY": "OutOfMemory",
         "FAILED": "NonZeroExitCode", "PREEMPTED": "None", "COMPLETED": "None"}  # fmt: skip


def of_indices(row: Row, indices: set[int] | None) -> bool:
    """True if a row is one of these tasks of an array; all rows are if there are no indices."""
    return indices is None or not indices.isdisjoint(each_index(row.indices))


def is_array(job: wire.Job) -> bool:
    return bool(job.stages) and ("slurm/array" in job.labels or (job.stages[0].count > 1 and job.stages[0].min == 1))


def rows_of(job: wire.Job, each: bool = False) -> list[Row]:
    """Return the rows of a job that the scheduler knows. With `each`, each waiting task of an array has its own."""
    if not job.stages:
        return []
    common = _common(job)
    if not is_array(job):
        return [_whole(job, common)]
    rows: list[Row] = []
    stage = job.stages[0]
    waiting = [group for group in stage.tasks if group.state == "pending"]
    for group in waiting:
        held = bool(job.held_by) and not job.waits_for.startswith("begins")
        more: dict[str, Any] = {"state": "PENDING", "reason": reason_word(job.waits_for, held), "told": job.waits_for}
        if each:
            rows += [
                Row(id=f"{job.id}_{at}", index=str(at), indices=[at, at + 1], **common, **more)
                for at in each_index(group.indices)
            ]
        else:
            text = text_of(group.indices) + (f"%{stage.throttle}" if stage.throttle else "")
            rows.append(Row(id=f"{job.id}_[{text}]", index=f"[{text}]", indices=group.indices, **common, **more))
    for group in sorted(stage.tasks, key=lambda group: -group.indices[0]):
        if group.state == "pending":
            continue
        state = end_state(group.state, group.reason)
        rows += [
            Row(
                id=f"{job.id}_{at}",
                index=str(at),
                indices=[at, at + 1],
                state=state,
                reason=ENDED.get(state, "None"),
                told=group.reason,
                nodes=[group.node] if group.node else [],
                started=group.started,
                exit_code=group.exit_code,
                attempt=group.attempt,
                ended=job.ended,
                **common,
            )
            for at in sorted(each_index(group.indices), reverse=True)
        ]
    return rows


def _common(job: wire.Job) -> dict[str, Any]:
    stage = job.stages[0]
    return {
        "number": job.id,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "labels": job.labels,
        "resources": stage.resources,
        "submitted": job.submitted,
        "limit": stage.time_limit,
        "priority": job.priority,
        "after": job.after,
        "held": bool(job.held_by),
        "partition": job.partition,
        "stage": stage.name,
        "size": 1 if is_array(job) else sum(stage.count for stage in job.stages),
    }


JOB_STATES = {"pending": "PENDING", "running": "RUNNING", "stopping": "COMPLETING"}


def _whole(job: wire.Job, common: dict[str, Any]) -> Row:
    groups = [group for stage in job.stages for group in stage.tasks]
    live = [group for group in groups if group.node]
    live.sort(key=lambda group: group.indices[0])
    starts = [group.started for group in live if group.started is not None]
    ended = [group for group in groups if group.state in ("succeeded", "failed", "lost", "killed")]
    state = JOB_STATES.get(job.state) or end_state(job.state, job.reason)
    if state == "RUNNING" and not starts:
        state = "CONFIGURING" if live else "PENDING"
    told = job.reason if job.ended is not None or state == "COMPLETING" else job.waits_for
    held = bool(job.held_by) and not job.waits_for.startswith("begins")
    reason = reason_word(job.waits_for, held) if state == "PENDING" else ENDED.get(state, "None")
    first = next((group for group in ended if 0 in each_index(group.indices)), None)
    return Row(
        id=job.id,
        state=state,
        reason=reason,
        told=told,
        nodes=[group.node for group in live for _ in each_index(group.indices)],
        started=min(starts, default=None),
        ended=job.ended,
        exit_code=None if first is None else first.exit_code,
        attempt=max((group.attempt for group in groups), default=1),
        **common,
    )


def past_rows(job: wire.PastJob) -> list[Row]:
    """Return the rows of a job of the history."""
    labels = job.labels
    array = "slurm/array" in labels
    common: dict[str, Any] = {
        "number": job.id,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "labels": labels,
        "submitted": job.submitted,
        "partition": job.partition,
        "size": 1 if array else int(labels.get("slurm/nodes", "1")),
    }
    if job.stages:
        common |= {"resources": job.stages[0].resources, "limit": job.stages[0].time_limit}
    attempts = [attempt for attempt in job.attempts if attempt.outcome != "preempted"]
    if array:
        last = {at: attempt for attempt in attempts for at in each_index(attempt.indices)}
        return [
            _past(job, [attempt], id=f"{job.id}_{at}", index=str(at), indices=[at, at + 1], **common)
            for at, attempt in sorted(last.items())
        ] or [_past(job, [], id=job.id, **common)]
    newest = max((attempt.attempt for attempt in attempts), default=0)
    return [_past(job, [each for each in attempts if each.attempt == newest], id=job.id, **common)]


def _past(job: wire.PastJob, attempts: list[wire.Attempt], **common: Any) -> Row:
    first = min(attempts, key=lambda attempt: attempt.indices[0], default=None)
    outcome, reason = job.state, job.reason
    if common.get("index") and first is not None:
        outcome, reason = first.outcome, first.reason
    elif first is not None and job.state == "failed":
        reason = f"{reason} {first.reason}"
    state = end_state(outcome, reason)
    starts = [attempt.started for attempt in attempts if attempt.started is not None]
    used = [attempt.cpu_seconds for attempt in attempts if attempt.cpu_seconds is not None]
    return Row(
        state=state,
        reason=ENDED.get(state, "None"),
        told=reason,
        nodes=[attempt.node for attempt in sorted(attempts, key=lambda a: a.indices[0]) if attempt.node],
        started=min(starts, default=None),
        ended=max((attempt.ended for attempt in attempts), default=job.ended),
        exit_code=None if first is None else first.exit_code,
        attempt=max((attempt.attempt for attempt in attempts), default=1),
        cpu_seconds=sum(used) if used else None,
        memory=max((attempt.most_memory for attempt in attempts if attempt.most_memory is not None), default=None),
        **common,
    )


def parse_states(text: str) -> set[str] | None:
    """Return the long names of states; None for all. Raise ValueError for a wrong one."""
    if text.lower() == "all":
        return None
    found = set()
    for word in text.replace(" ", ",").split(","):
        if word:
            state = LONG.get(word.upper(), word.upper())
            if state not in STATES:
                raise ValueError(word)
            found.add(state)
    return found


class Wanted(NamedTuple):
    """A job, or tasks of it, or a step: `7`, `8_3`, `9_[1-4]`, `7.0`."""

    job: str
    indices: set[int] | None
    step: str


def parse_wanted(text: str) -> Iterator[Wanted]:
    """Yield what a list of ids names. Raise ValueError for a wrong id."""
    for word in re.findall(r"[^,\[]+(?:\[[^\]]*\])?(?:\.\w+)?|\[[^\]]*\]", text):
        whole, _, step = word.strip().partition(".")
        job, underscore, rest = whole.partition("_")
        job = job.partition("+")[0]
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9@-]*", job):
            raise ValueError(word)
        indices = set(each_of(rest.strip("[]").partition("%")[0])) if underscore and rest not in ("*", "") else None
        yield Wanted(job, indices, step)


def parse_ids(text: str) -> Iterator[tuple[str, set[int] | None]]:
    """Yield jobs with indices of their array tasks, None for all: `7,8_3,9_[1-4]`. Raise ValueError for a wrong id."""
    for wanted in parse_wanted(text):
        yield wanted.job, wanted.indices


def each_of(text: str) -> Iterable[int]:
    for part in filter(None, text.split(",")):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        yield from range(int(low), int(high or low) + 1, int(step or 1))
