"""`salloc`: allocate nodes, run a program here, and give them back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead.slurm.options import Given, fail, from_environment, parse
from fairlead.slurm.server import connect, user_name
from fairlead.slurm.tables import SALLOC

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.slurm.steps import Allocation

NAME = "salloc"
HOLDER = '[ "${RANK:-0}" = 0 ] || exec sleep 2147483647; read -r code || exec sleep 2147483647; cat >&2; exit "$code"'
"""Holds an allocation until its first node is told an exit code, and then what its log is to have."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


def main(words: list[str]) -> int:
    given, rest = parse(SALLOC, words)
    given = Given({**from_environment(SALLOC, os.environ, "SALLOC", {}), **given})
    if rest[:1] == [":"]:
        fail(NAME, "allocations of several parts with : are not supported; submit them with sbatch")
    command = rest or [os.environ.get("SHELL", "/bin/sh")]
    with connect(NAME, given) as client:
        if "no-shell" in given:
            job = _submit(client, given, NAME, "no-shell")
            _until_allocated(client, job, given, NAME)
            print(f"salloc: Granted job allocation {job}", file=sys.stderr)
            return 0
        with allocated(client, given, NAME, os.path.basename(command[0])) as (_, variables, finish):
            try:
                code = subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
            except OSError as problem:
                print(f"salloc: error: {command[0]}: {problem.strerror}", file=sys.stderr)
                code = 1
            finish(0, b"")
        return 128 - code if code < 0 else code


@contextmanager
def allocated(
    client: Client, given: Given, command: str, name: str
) -> Iterator[tuple[Allocation, dict[str, str], Callable[[int, bytes], None]]]:
    """Yield an allocation, the variables of programs that use it, and a function that gives it back with a status."""
    job = _submit(client, given, command, name)
    done = False

    def finish(code: int, text: bytes) -> None:
        nonlocal done
        _finish(client, job, allocation, b"%d\n" % (code & 255) + text)
        done = True

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        allocation = _until_allocated(client, job, given, command)
        if command == NAME:
            print(f"salloc: Granted job allocation {job}", file=sys.stderr)
        yield allocation, _variables(client, job, given, allocation), finish
    finally:
        if not done:
            client.kill(job)
        if command == NAME:
            print(f"salloc: Relinquishing job allocation {job}", file=sys.stderr)


def _submit(client: Client, given: Given, command: str, name: str) -> str:
    from fairlead.slurm.queues import NoSuchPartition
    from fairlead.slurm.request import Cluster, Wrong, document_of
    from fairlead.wire import operations as op

    try:
        document: Any = document_of(
            [given], Cluster(client), ["/bin/sh", "-c", HOLDER], given.get("job-name", name), {}, user_name()
        )
    except NoSuchPartition as problem:
        fail(command, f"invalid partition specified: {problem}")
    except Wrong as problem:
        fail(command, str(problem))
    document["stages"][0]["stdin"] = True
    submitted = client.send(op.Submit(document=document))
    if submitted.warning:
        print(f"{command}: warning: job {submitted.job}: {submitted.warning}", file=sys.stderr)
    return submitted.job


def _until_allocated(client: Client, job: str, given: Given, command: str) -> Allocation:
    from fairlead.slurm.steps import allocation_of

    pause, told = FIRST_PAUSE, False
    patience = float(given["immediate"] or 5) if "immediate" in given else None
    begun = time.monotonic()
    while True:
        found = allocation_of(client, job)
        if found is not None:
            if told and command == "srun":
                print(f"srun: job {job} has been allocated resources", file=sys.stderr)
            return found
        view = client.job(job)
        if view.over:
            fail(command, f"Job allocation {job} has been revoked: {view.reason}")
        waited = time.monotonic() - begun
        if patience is not None and waited > patience:
            fail(command, "Unable to allocate resources: Requested nodes are busy")
        if waited > 1 and not told and "quiet" not in given:
            pending = f"Pending job allocation {job}\n{command}: " if command == NAME else ""
            print(f"{command}: {pending}job {job} queued and waiting for resources", file=sys.stderr)
            told = True
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 1.5)


def _variables(client: Client, job: str, given: Given, allocation: Allocation) -> dict[str, str]:
    from fairlead.slurm.request import Cluster, shape_of, variables_of
    from fairlead.slurm.srun import fold_in_order

    shape, _ = shape_of(given, Cluster(client))
    nodes = [place.node for place in allocation.places]
    hosts = fold_in_order(nodes)
    return {
        **variables_of(given, shape, given.get("job-name", "interactive"), os.getcwd(), user_name()),
        "SLURM_JOB_ID": job,
        "SLURM_JOBID": job,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NODELIST": hosts,
        "FAIRLEAD_NODES": ",".join(nodes),
        "FAIRLEAD_STAGE": allocation.places[0].stage,
        "FAIRLEAD_INDEX": "0",
    }


def _finish(client: Client, job: str, allocation: Allocation, text: bytes) -> None:
    """Give an allocation back: its holder reads an exit code and what its log is to have."""
    from uuid import uuid4

    from fairlead.client.calls import Problem
    from fairlead.client.tunnel import capture
    from fairlead.wire import operations as op

    first = allocation.places[0]
    wanted = op.OpenTunnel(job=job, stage=first.stage, index=first.index, tunnel=uuid4().hex, kind="task")
    try:
        capture(client, wanted, text)
    except Problem:
        client.kill(job)  # it may have ended by its time limit
