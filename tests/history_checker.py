"""Judges the recorded history of a cluster under faults. It knows nothing of the code: only what was asked and seen.

`check` returns what is wrong: an answered request that was lost, a request that took effect twice, a task that ran
twice at a time, a gang that was not whole or did not start together, an agent that followed an earlier leader after a
later one.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple


class Run(NamedTuple):
    """One attempt of a task, as the task wrote it itself. `end` is equal to `start` if it was stopped."""

    job: str
    index: int
    attempt: int
    start: int
    end: int


class Asked(NamedTuple):
    """A job that a client submitted, by its unique name."""

    kind: str
    """`single`, `gang` of two tasks, `scaled` from one to three tasks, or `killed`."""
    job: str = ""
    """Its id, if the submission was answered."""
    done: bool = False
    """True if the scaling or the kill was answered, and not refused."""


class Found(NamedTuple):
    """A job as a server has it at the end."""

    name: str
    job: str
    state: str


class Stored(NamedTuple):
    """The attempt of a task as the history of the servers has it, with the seconds that usage counts for it."""

    job: str
    index: int
    attempt: int
    seconds: float
    lost: bool = False
    """True if it was lost. Then it counts until that was noticed, or until the last record before a restore."""


ERA = 1_000_000
"""Numbers that are skipped after data were set back."""
TOO_LONG = 5.0
"""Seconds by which a counted attempt may exceed what ran: a busy machine starts a program late."""


class History(NamedTuple):
    asked: dict[str, Asked]
    found: list[Found]
    runs: list[Run]
    epochs: dict[str, list[int]]
    """Agent → the epochs that it stored, in order."""
    followed: dict[str, list[int]]
    """Agent → the epochs of the leaders that it followed, one for each of its connections, in their order."""
    stored: list[Stored]


def check(history: History) -> list[str]:
    return [
        *(*_requests(history), *_runs(history), *_wholes(history), *_gangs(history), *_leaders(history)),
        *_stored(history),
    ]


def _requests(history: History) -> list[str]:
    wrong: list[str] = []
    by_id = {found.job: found for found in history.found}
    for name, asked in history.asked.items():
        if asked.job and (asked.job not in by_id or by_id[asked.job].name != name):
            wrong.append(f"job {asked.job} ({name}) was answered and is lost")
    for name, times in Counter(found.name for found in history.found).items():
        if times > 1:
            wrong.append(f"the submission {name} took effect {times} times")
        if name not in history.asked:
            wrong.append(f"job {name} was never submitted")
    for found in history.found:
        asked = history.asked.get(found.name, Asked("single"))
        expected = ("killed",) if asked.kind == "killed" and asked.done else ("succeeded",)
        if asked.kind == "killed" and not asked.done:
            expected = ("killed", "succeeded")
        if found.state not in expected:
            wrong.append(f"job {found.job} ({found.name}, {asked.kind}) is {found.state}")
    return wrong


def _runs(history: History) -> list[str]:
    wrong: list[str] = []
    for key, times in Counter(run[:3] for run in history.runs).items():
        if times > 1:
            wrong.append(f"attempt {key} was started {times} times")
    of_task: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in history.runs:
        of_task[run.job, run.index].append(run)
    for task, runs in of_task.items():
        runs.sort(key=lambda run: run.start)
        for first, second in pairwise(runs):
            # A restore gives attempts of another era, and does not end those that were lost.
            if first.end > second.start and first.attempt // ERA == second.attempt // ERA:
                wrong.append(f"task {task} ran twice at a time: {first}, {second}")
            if first.attempt > second.attempt:
                wrong.append(f"task {task} went back to an earlier attempt: {first}, {second}")
    return wrong


def _wholes(history: History) -> list[str]:
    """Check that each job that succeeded ran all of its tasks."""
    wrong: list[str] = []
    ran: dict[str, set[int]] = defaultdict(set)
    ended: dict[str, list[Run]] = defaultdict(list)
    for run in history.runs:
        if run.end > run.start:
            ran[run.job].add(run.index)
            ended[run.job].append(run)
    for found in history.found:
        asked = history.asked.get(found.name, Asked("single"))
        count = {"gang": 2, "scaled": 3 if asked.done else 1}.get(asked.kind, 1)
        if found.state == "succeeded" and not set(range(count)) <= ran[found.job]:
            wrong.append(f"job {found.job} ({found.name}, {asked.kind}) has not run whole: {sorted(ran[found.job])}")
        elif found.state == "succeeded" and asked.kind == "gang":
            attempts = [{run.attempt for run in ended[found.job] if run.index == index} for index in (0, 1)]
            if not attempts[0] & attempts[1]:
                wrong.append(f"gang {found.job} ({found.name}) succeeded, and no attempt ended whole: {attempts}")
    return wrong


def _gangs(history: History) -> list[str]:
    """Check that a task of a gang went on only if the other one had started, under the same attempt."""
    gangs = {found.job for found in history.found if history.asked.get(found.name, Asked("single")).kind == "gang"}
    attempts: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in history.runs:
        if run.job in gangs:
            attempts[run.job, run.attempt].append(run)
    wrong: list[str] = []
    for (job, attempt), runs in attempts.items():
        ends = [run.end for run in runs if run.end > run.start]
        whole = {run.index for run in runs} == {0, 1}
        if ends and not (whole and max(run.start for run in runs) < min(ends)):
            wrong.append(f"attempt {attempt} of gang {job} did not start together: {runs}")
    return wrong


def _stored(history: History) -> list[str]:
    """Check that the history has each task of a job that succeeded, each attempt once, and its time."""
    times = Counter(stored[:3] for stored in history.stored)
    wrong = [f"attempt {key} is stored {count} times" for key, count in times.items() if count > 1]
    finished = {run[:3]: run for run in history.runs if run.end > run.start}
    kept = {stored[:2] for stored in history.stored if stored[:3] in finished}
    succeeded = {found.job for found in history.found if found.state == "succeeded"}
    for job, index in sorted({key[:2] for key in finished}):
        if job in succeeded and (job, index) not in kept:
            wrong.append(f"task {index} of job {job} ran, and the history lacks it")
    for stored in history.stored:
        run = finished.get(stored[:3])
        if run is not None and not stored.lost and stored.seconds > (run.end - run.start) / 1e9 + TOO_LONG:
            wrong.append(
                f"attempt {stored[:3]} counts {stored.seconds:.1f} s, and ran {(run.end - run.start) / 1e9:.1f}"
            )
    return wrong


def _leaders(history: History) -> list[str]:
    return [
        f"agent {agent} {what} epoch {second} after {first}"
        for what, of_agent in (("stored", history.epochs), ("followed", history.followed))
        for agent, epochs in of_agent.items()
        for first, second in pairwise(epochs)
        if second < first
    ]
