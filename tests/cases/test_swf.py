"""Batch logs by the rules that simulators of such logs agree on: the schedule, job by job.

Logs are written down here as (id, submit, run, processors, estimate); starts are worked out by hand. The hash is of
`ID START` lines in the order of the queue, as published references of real logs give it.
"""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairlead.sim.figures import figures, started_jobs
from fairlead.sim.policy_files import NAMED
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import read_traces
from tests.sim import oracle

Line = tuple[int, int, int, int, int]


class Case(NamedTuple):
    what: str
    machine: int
    lines: Sequence[Line]
    fcfs: Sequence[tuple[int, int]]
    """Job and start, in the order of the queue."""
    easy: Sequence[tuple[int, int]] | None = None
    """The schedule under EASY, if it differs."""


CASES = [
    Case(
        "only a job that ends in time passes the head",
        4,
        [(1, 0, 10, 3, 10), (2, 1, 10, 2, 10), (3, 2, 1, 1, 1)],
        [(1, 0), (2, 10), (3, 10)],
        [(1, 0), (2, 10), (3, 2)],
    ),
    Case(
        "to the second",
        4,
        [(1, 0, 10, 3, 10), (2, 1, 10, 4, 10), (3, 2, 9, 1, 9), (4, 2, 8, 1, 8)],
        [(1, 0), (2, 10), (3, 20), (4, 20)],
        [(1, 0), (2, 10), (3, 20), (4, 2)],
    ),
    Case(
        "a job that leaves enough for the head may run longer",
        8,
        [(1, 0, 10, 6, 10), (2, 1, 5, 6, 5), (3, 2, 50, 2, 50), (4, 3, 50, 1, 50)],
        [(1, 0), (2, 10), (3, 10), (4, 15)],
        [(1, 0), (2, 10), (3, 2), (4, 15)],
    ),
    Case(
        "what is to spare shrinks as it is used",
        8,
        [(1, 0, 10, 4, 10), (2, 1, 5, 6, 5), (3, 2, 50, 1, 50), (4, 2, 50, 2, 50), (5, 2, 50, 1, 50)],
        [(1, 0), (2, 10), (3, 10), (4, 15), (5, 15)],
        [(1, 0), (2, 10), (3, 2), (4, 15), (5, 2)],
    ),
    Case(
        "an end before its time is a new plan",
        4,
        [(1, 0, 5, 3, 100), (2, 1, 10, 4, 10), (3, 2, 50, 1, 50)],
        [(1, 0), (2, 5), (3, 15)],
        [(1, 0), (2, 52), (3, 2)],
    ),
    Case("ends come before arrivals", 4, [(1, 0, 10, 4, 10), (2, 10, 5, 4, 5)], [(1, 0), (2, 10)]),
    Case("a job of no length frees its room at once", 2, [(1, 5, 0, 2, 1), (2, 5, 3, 2, 3)], [(1, 5), (2, 5)]),
    Case(
        "of one second, the line decides",
        4,
        [(9, 0, 10, 4, 10), (8, 3, 2, 3, 2), (7, 3, 2, 3, 2), (6, 3, 2, 1, 2)],
        [(9, 0), (8, 10), (7, 12), (6, 12)],
        [(9, 0), (8, 10), (7, 12), (6, 10)],
    ),
    Case("submit time comes before the line", 4, [(1, 7, 1, 4, 1), (2, 0, 5, 4, 5)], [(2, 0), (1, 7)]),
    Case(
        "too large and unknown jobs are left out",
        4,
        [(1, 0, 5, 5, 5), (2, 0, -1, 1, 5), (3, 0, 5, 0, 5), (4, 0, 5, 4, 5)],
        [(4, 0)],
    ),
]


def log(folder: Path, case: Case) -> Path:
    path = folder / "log.swf"
    lines = [f"; MaxProcs: {case.machine}\n"]
    for number, submit, run, processors, estimate in case.lines:
        lines.append(f"{number} {submit} -1 {run} -1 -1 -1 {processors} {estimate}{' -1' * 9}\n")
    path.write_text("".join(lines))
    return path


def simulated(path: Path, policy: str) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    trace = read_traces([path], lambda path: None)
    simulation = Simulation(trace, NAMED[policy](trace))
    assert simulation.run()
    starts = [(int(each.id), each.start // 1_000_000) for each in started_jobs(simulation.record)]
    return starts, figures(simulation.record, policy, 1.0)


@pytest.mark.parametrize("policy", ["fcfs", "easy"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_log(tmp_path: Path, case: Case, policy: str) -> None:
    starts, result = simulated(log(tmp_path, case), policy)
    expected = case.easy if policy == "easy" and case.easy is not None else case.fcfs
    assert starts == list(expected)
    text = "".join(f"{job} {start}\n" for job, start in expected)
    assert result["starts_sha256"] == sha256(text.encode()).hexdigest()


def drawn(jobs: int) -> list[Line]:
    """A log from a recipe that needs no library: a linear congruence."""
    lines: list[Line] = []
    state, now = 12345, 0
    for number in range(1, jobs + 1):
        drawn_numbers = []
        for _ in range(4):
            state = (1103515245 * state + 12345) % 2**31
            drawn_numbers.append(state >> 16)
        now += drawn_numbers[0] % 240
        run = drawn_numbers[1] % 900
        lines.append((number, now, run, 1 + drawn_numbers[2] % 64, run + drawn_numbers[3] % 600))
    return lines


# The figures are those of tests/sim/oracle.py, which has none of our code.
DRAWN = {
    "fcfs": {
        "mean_wait_s": 23407.678571,
        "p95_wait_s": 45751,
        "makespan_s": 134314,
        "starts_sha256": "3d9d68729395d556e89cdc7dc7ba2dd159c0d01588764f278682d76148b075b3",
    },
    "easy": {
        "mean_wait_s": 8303.787143,
        "p95_wait_s": 22876,
        "makespan_s": 110076,
        "starts_sha256": "53a8ac6ae7c51c4aad0f7aa6b67659ac1f48f36e8e426e51a49f13759ecd5111",
    },
}


@pytest.mark.parametrize("policy", DRAWN)
def test_a_log_of_seven_hundred_jobs(tmp_path: Path, policy: str) -> None:
    starts, result = simulated(log(tmp_path, Case("", 100, drawn(700), [])), policy)
    assert len(starts) == 700
    assert {key: result[key] for key in DRAWN[policy]} == DRAWN[policy]


@pytest.mark.parametrize("mode", ["shortest", "conservative"])
def test_other_modes_of_backfill(tmp_path: Path, mode: oracle.Mode) -> None:
    lines = drawn(200)
    starts, _ = simulated(log(tmp_path, Case("", 100, lines, [])), mode)
    expected = oracle.schedule([line[1:] for line in lines], 100, mode)
    assert starts == [(line[0], start) for line, start in zip(lines, expected, strict=True)]
