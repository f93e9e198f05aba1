"""Gangs that fail, with real processes: all members stop, and the gang starts again whole, as one try."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import SECONDS, Up
from tests.until import until

REDUCE = str(Path(__file__).parents[1] / "reduce.py")
PYTHON = shlex.quote(sys.executable)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("gangs") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def tasks(up: Up, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(up.run("show", "--json", job))["tasks"]
    return found


def outputs(up: Up, job: str, count: int) -> list[str]:
    return [up.run("logs", job, "-i", str(index)) for index in range(count)]


def kill_member(folder: Path, rank: int, members: int, seconds: float = SECONDS) -> None:
    """Kill a member of the first generation once all of its members have met."""
    files = [folder / f"1.{each}" for each in range(members)]
    until(lambda: all(file.exists() for file in files), seconds)
    os.kill(int(files[rank].read_text()), signal.SIGKILL)


def test_a_member_that_exits_starts_again_with_its_gang(up: Up) -> None:
    """Rank 1 ends in its first attempt, before or after the others came. The second attempts meet again."""
    meet = f"{PYTHON} -m fairlead.gang 60"
    script = f"{meet} && if [ $RANK = 1 ] && [ $FAIRLEAD_ATTEMPT = 1 ]; then exit 7; fi; {meet} && echo rank $RANK"
    job = up.run("submit", "--gang", "3", "--tries", "2", "--cpu", "0.5", "--shell", "--", script).strip()
    assert up.run("wait", job) == f"{job}: succeeded\n"
    assert outputs(up, job, 3) == ["rank 0\n", "rank 1\n", "rank 2\n"]
    assert [(task["attempt"], task["tries_used"]) for task in tasks(up, job)] == [(2, 1)] * 3
    assert "exit code 7" in up.run("story", job)


@pytest.mark.parametrize("rank", range(3))
def test_any_member_can_be_killed(up: Up, tmp_path: Path, rank: int) -> None:
    command = [sys.executable, REDUCE, str(tmp_path), "3"]
    job = up.run("submit", "--gang", "3", "--tries", "2", "--cpu", "0.5", *command).strip()
    kill_member(tmp_path, rank, 3)
    assert up.run("wait", job) == f"{job}: succeeded\n"
    assert outputs(up, job, 3) == [f"rank {each} of 3 in generation 2: 3\n" for each in range(3)]
    assert [task["tries_used"] for task in tasks(up, job)] == [1] * 3


def test_without_tries_left_the_job_fails(up: Up, tmp_path: Path) -> None:
    command = [sys.executable, REDUCE, str(tmp_path), "3"]
    job = up.run("submit", "--gang", "3", "--cpu", "0.5", *command).strip()
    kill_member(tmp_path, 1, 3)
    assert f"{job}: failed" in up.run("wait", job, code=1)


def test_a_job_fails_at_once_if_it_says_so(up: Up) -> None:
    options = ("--gang", "2", "--tries", "9", "--on-failure", "fail", "--cpu", "0.5", "--shell")
    job = up.run("submit", *options, "--", "[ $RANK = 0 ] && exit 7; sleep 600").strip()
    assert f"{job}: failed" in up.run("wait", job, code=1)
    assert tasks(up, job)[0]["attempt"] == 1


def test_replaced_members_come_back_alone(up: Up) -> None:
    script = "[ $RANK = 1 ] && [ $FAIRLEAD_ATTEMPT = 1 ] && exit 7; sleep 0.$RANK; echo attempt $FAIRLEAD_ATTEMPT"
    options = ("--gang", "2", "--tries", "2", "--on-failure", "replace", "--cpu", "0.5", "--shell")
    job = up.run("submit", *options, "--", script).strip()
    assert up.run("wait", job) == f"{job}: succeeded\n"
    assert outputs(up, job, 2) == ["attempt 1\n", "attempt 2\n"]


def test_a_gang_below_its_count_knows_its_size(up: Up, tmp_path: Path) -> None:
    """Four CPUs have room for two of four members. They meet, although the others start later."""
    script = f"{PYTHON} -m fairlead.gang 60 && echo rank $RANK of $WORLD_SIZE in $FAIRLEAD_GENERATION"
    file = tmp_path / "job.yaml"
    stage = {
        "count": 4,
        "min": 2,
        "resources": {"cpu": 2},
        "command": ["sh", "-c", f"if [ $RANK -lt 2 ]; then {script}; fi"],
    }
    file.write_text(json.dumps({"name": "part", "stages": [stage]}))
    job = up.run("submit", "--file", str(file)).strip()
    assert up.run("wait", job) == f"{job}: succeeded\n"
    assert outputs(up, job, 4) == ["rank 0 of 2 in 1\n", "rank 1 of 2 in 1\n", "", ""]
