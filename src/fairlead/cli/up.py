"""`fairlead up` and `fairlead down`: a server and an agent on this machine."""

from __future__ import annotations

import getpass
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.option_values import check_memory, pairs
from fairlead.cli.options import Output
from fairlead.cli.output import fail
from fairlead.cli.server_options import Data, NetworkOptions, ServerOptions, directory_of, is_locked
from fairlead.cli.typer_commands import option

STOPPING = 20.0
"""Seconds that a server has to stop."""
GRACE = 10.0
"""Seconds that tasks have to stop if no server runs. A server would set their grace period."""


class NodeOptions(ServerOptions):
    name: str = option("Name of this machine as a node. By default its host name.")
    resource: list[str] | None = option(
        "Amount of a resource that tasks may use, such as cpu=4 or memory=8Gi. By default all that this machine has. "
        "May be repeated."
    )


def up(options: NodeOptions) -> None:
    """Run Fairlead on this machine: a server, and an agent that runs tasks.

    Ctrl-C stops both. Running tasks continue, and the next `fairlead up` finds them again. `fairlead down --kill` ends
    them.
    """
    resources = pairs(options.resource, "--resource")
    check_memory(resources.get("memory", ""), "--resource", none=True)
    _check_node(options.name, resources)
    agent = [
        "--log-level",
        options.log_level,
        "--for",
        getpass.getuser(),
        *["--user", "root"] * (os.geteuid() == 0),
        *["--name", options.name] * bool(options.name),
    ]
    for text in options.resource or ():
        agent += ["--resource", text]
    from fairlead.cli.server_process import run_server

    run_server(options, NetworkOptions(), agent)


def _check_node(name: str, resources: dict[str, str]) -> None:
    """Refuse a name or resources with which the agent of this machine could never join."""
    from fairlead.agent.machine import host_name
    from fairlead.server.failure import Failed, check_node

    try:
        check_node(name or host_name(), resources)
    except Failed as problem:
        fail(str(problem), code=2)


def down(
    *,
    data: Data = None,
    kill: Annotated[bool, typer.Option("--kill", help="Kill all running and waiting jobs first.")] = False,
    output: Output,
) -> None:
    """Stop the server on this machine.

    Tasks keep running unless --kill is given. --kill also ends tasks that an earlier server left running.
    """
    from fairlead.client.endpoint import running

    directory = directory_of(data)
    server = running(directory)
    if server is None or not is_locked(directory):
        if kill and any((directory / part).exists() for part in ("agent", "pools")):
            return _end_left_tasks(directory, output)
        output.fail(f"no server runs on {directory}; `fairlead up` starts one", data=str(directory))
    killed = _kill_all(directory, output) if kill else 0
    with suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOPPING
    while is_locked(directory):
        if time.monotonic() > deadline:
            fail(f"the server (process {server.pid}) does not stop; see {directory / 'server.log'}")
        time.sleep(0.02)
    machines = _end_machines(directory) if kill else 0
    if kill:
        _end_agent(directory)
    ended = f"jobs killed: {killed}" + (f"; machines of pools ended: {machines}" if machines else "")
    done = f"stopped; {ended if kill else 'running tasks continue'}"
    output.show({"ok": True, "data": str(directory), "killed": killed, "machines": machines}, [done])


def _end_left_tasks(directory: Path, output: Output) -> None:
    """End the tasks that an earlier server left running.

    Their jobs do not change: jobs are in the journal, which only a server writes.
    """
    ended = _end_agent(directory)
    machines = _end_machines(directory)
    again = "; unfinished jobs continue with the next `fairlead up`" if ended or machines else ""
    pools = f"; machines of pools ended: {machines}" if machines else ""
    done = f"no server runs on {directory}; leftover tasks ended: {ended}{pools}{again}"
    output.show({"ok": True, "data": str(directory), "killed": 0, "ended": ended, "machines": machines}, [done])


def _end_agent(directory: Path) -> int:
    """End the tasks and spawners of the agent beside the server; return the number of tasks."""
    from fairlead.agent.spawner_link import end_all, is_used

    deadline = time.monotonic() + STOPPING
    while is_used(directory / "agent"):  # the agent may be about to end, as its server has
        if time.monotonic() > deadline:
            fail(f"no server runs on {directory}, but an agent does; stop that agent first")
        time.sleep(0.02)
    return end_all(directory / "agent", GRACE)


def _end_machines(directory: Path) -> int:
    from fairlead.server.failure import Failed
    from fairlead.server.providers import end_local_machines

    try:
        return end_local_machines(directory)
    except Failed as problem:
        fail(str(problem))


def _kill_all(directory: Path, output: Output) -> int:
    """Kill all running and waiting jobs, wait until no task runs, and return the number of jobs."""
    from fairlead.client import NotFound, Problem

    try:
        return _killed_jobs(directory)
    except (NotFound, Problem) as problem:
        output.fail(f"no job was killed, and the server runs on: {problem}")


def _killed_jobs(directory: Path) -> int:
    from rich.console import Console
    from rich.progress import track

    from fairlead.client import Client, find_endpoint

    place = find_endpoint(directory)
    quiet = not sys.stderr.isatty()
    killed = 0
    with Client(place.url, place.token, place.authority) as client:
        for name in client.partitions():
            client.partition = name
            jobs = list(client.jobs(state=["pending", "running"]))
            for job in track(jobs, "killing", console=Console(stderr=True), transient=True, disable=quiet):
                client.kill(job.id)
            killed += len(jobs)
            while any(node.tasks and not node.manager for node in client.nodes()):
                time.sleep(0.05)
    return killed
