"""Gangs of `torch.distributed`, by themselves and with `torchrun`: each rank is killed in turn."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_gangs import kill_member, outputs, tasks
from tests.live import Up
from tests.packages import NO_TORCH, torch_python

PROGRAM = str(Path(__file__).parents[1] / "torch_reduce.py")
LONG = 400.0  # the import of torch takes long on a busy machine; no result depends on it
PYTHON = torch_python()
# Torch 1.13 knows names with underscores only, and cannot leave the output as it is with Python 3.11.
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "1", "--redirects", "1", "--tee", "1")

pytestmark = [pytest.mark.long, pytest.mark.skipif(not PYTHON, reason=NO_TORCH)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("torch") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def ended(up: Up, job: str) -> str:
    deadline = time.monotonic() + LONG
    while True:
        state: str = json.loads(up.run("show", "--json", job))["job"]["state"]
        if state not in ("pending", "running", "stopping"):
            return state
        assert time.monotonic() < deadline, up.run("explain", job)
        time.sleep(1)


def submit(up: Up, *arguments: str) -> str:
    """Submit tasks that find torch where this process does. Gloo would look for the name of the machine."""
    found = {"GLOO_SOCKET_IFNAME": "lo"}
    if sys.executable == PYTHON:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    variables = [word for name, value in found.items() for word in ("--env", f"{name}={value}")]
    return up.run("submit", "--cpu", "0.5", *variables, *arguments).strip()


def succeeds_at_the_second_try(up: Up, job: str) -> None:
    assert ended(up, job) == "succeeded"
    assert [task["tries_used"] for task in tasks(up, job)] == [1] * 3
    assert all(" of 3 in generation 2: 3\n" in output for output in outputs(up, job, 3))


@pytest.mark.parametrize("rank", range(3))
def test_the_environment_is_enough(up: Up, tmp_path: Path, rank: int) -> None:
    job = submit(up, "--gang", "3", "--tries", "2", PYTHON, PROGRAM, str(tmp_path))
    kill_member(tmp_path, rank, 3, LONG)
    succeeds_at_the_second_try(up, job)


@pytest.mark.parametrize("rank", range(3))
def test_torchrun_with_a_fixed_size(up: Up, tmp_path: Path, rank: int) -> None:
    nodes = "--nnodes $WORLD_SIZE --node_rank $RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
    words = f"{' '.join(TORCHRUN)} {nodes} {PROGRAM} {tmp_path}"
    job = submit(up, "--gang", "3", "--tries", "2", "--shell", "--", words)
    kill_member(tmp_path, rank, 3, LONG)
    succeeds_at_the_second_try(up, job)


@pytest.mark.parametrize("index", (1, 2))
def test_torchrun_with_an_elastic_size(up: Up, tmp_path: Path, index: int) -> None:
    """A member that is killed is replaced; torchrun lets the others meet it again. The generation goes on.

    Not tested with task 0, the first one that may have the store of torchrun's rendezvous.
    """
    meet = "--rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT --rdzv_id $FAIRLEAD_JOB.$FAIRLEAD_GENERATION"
    conf = "--nnodes 1:3 --max_restarts 9 --rdzv_conf last_call_timeout=5"
    conf += " --local-addr $MASTER_ADDR" if sys.executable == PYTHON else ""  # torch 1.13 has no such option
    words = f"{' '.join(TORCHRUN)} {conf} {meet} {PROGRAM} {tmp_path} elastic"
    job = submit(up, "--gang", "3", "--tries", "5", "--on-failure", "replace", "--shell", "--", words)
    kill_member(tmp_path, index, 3, LONG)
    (tmp_path / "go").touch()
    assert ended(up, job) == "succeeded"
    assert all("in generation 1" in output for output in outputs(up, job, 3))
