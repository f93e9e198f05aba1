"""A real server with many agents and a long queue: the latency of the API, and the memory of the server.

The agents are coroutines of one process (`python -m bench.fleet URL TOKEN COUNT`). Each has a connection, sends
heartbeats, and reports all launched tasks as running. So the fleet is full, and all other tasks wait.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

from websockets.asyncio.client import connect

from bench.harness import ROOT, Row
from fairlead.agent.node_key import prove
from fairlead.client import Client
from fairlead.wire import agent_messages as wire
from fairlead.wire import operations as op
from fairlead.wire.agent_messages import Beat, Hello, Report, Reports, Tasks, Welcome, Work, decode_from_server, encode
from fairlead.wire.handshake import Key, split_token

AGENTS = 500
JOBS, TASKS = 1_000, 100
REQUESTS = 1_000
CPUS = 4
FAIRLEAD = [sys.executable, "-c", "from fairlead.cli import main; main()"]


# -- the agents --------------------------------------------------------------------------------------------------


async def agent(url: str, token: str, name: str, joined: asyncio.Semaphore) -> None:
    secret, server = split_token(token)
    async with connect(url.replace("http", "ws", 1) + wire.PATH, compression=None) as link:
        await prove(link, name, Key(), server, "", secret)  # type: ignore[arg-type]
        await link.send(encode(Hello(name, {"cpu": CPUS, "memory": "8Gi"})))
        running: list[Tasks] = []
        number = beats = 0
        heartbeat = 5.0
        while True:
            try:
                async with asyncio.timeout(heartbeat):
                    data = await link.recv()
            except TimeoutError:
                beats += 1
                await link.send(encode(Beat(beats, tuple(running))))
                continue
            assert isinstance(data, bytes)
            message = decode_from_server(data)
            if isinstance(message, Welcome):
                heartbeat = message.heartbeat / 1e6
                joined.release()
            elif isinstance(message, Work) and message.launches:
                running += [launch.tasks for launch in message.launches]
                number += 1
                await link.send(
                    encode(Reports(number, tuple(Report(launch.tasks, "running") for launch in message.launches)))
                )


async def agents(url: str, token: str, count: int) -> None:
    joined = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(agent(url, token, f"n{number}", joined))
        for _ in range(count):
            await joined.acquire()
        print("joined", flush=True)


# -- the measurement ---------------------------------------------------------------------------------------------


def resident(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def answers(client: Client, requests: int) -> dict[str, list[float]]:
    """Return the seconds of each request, by kind of request."""
    stage = {"name": "main", "count": 1, "command": ["true"], "resources": {"cpu": 1}}
    job = client.submit(document={"stages": [stage]})
    senders = {
        "a submit": lambda: client.submit(document={"stages": [stage]}),
        "a job": lambda: client.job(job),
        "100 jobs": lambda: client.send(op.Jobs(limit=100)),
        "100 nodes": lambda: client.send(op.Nodes(limit=100)),
    }
    seconds: dict[str, list[float]] = {what: [] for what in senders}
    for at in range(requests):
        what = list(senders)[at % len(senders)]
        began = perf_counter()
        senders[what]()
        seconds[what].append(perf_counter() - began)
    return seconds


def fleet(scale: float) -> Iterator[Row]:
    agent_count, jobs, requests = (max(4, int(size * scale)) for size in (AGENTS, JOBS, REQUESTS))
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [*FAIRLEAD, "server", "--data", folder, "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        agents_process = None
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            with Client(url, (Path(folder) / "token").read_text().strip()) as client:
                token = client.create_token("join", uses=agent_count).secret
                began = perf_counter()
                agents_process = subprocess.Popen(
                    [sys.executable, "-m", "bench.fleet", url, token, str(agent_count)],
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=ROOT,
                )
                assert agents_process.stdout is not None and agents_process.stdout.readline() == "joined\n"
                yield Row(
                    f"{agent_count:,} agents join", perf_counter() - began, "s", note="with the start of their process"
                )
                array = {"name": "main", "count": TASKS, "min": 1, "command": ["true"], "resources": {"cpu": 1}}
                client.submit_many({"stages": [array]} for _ in range(jobs))
                seconds = answers(client, requests)
                for what, times in seconds.items():
                    worst = sorted(times)[int(0.99 * len(times))] * 1000
                    note = f"median {median(times) * 1000:.1f} ms; {agent_count:,} agents, {jobs * TASKS:,} tasks"
                    yield Row(f"an answer to {what}, slowest of 100", worst, "ms", goal=100, note=note)
                yield Row("memory of that server", resident(server.pid), "MB", note=f"{jobs:,} jobs of {TASKS} tasks")
        finally:
            for process in (agents_process, server):
                if process is not None:
                    process.terminate()
                    process.wait()


if __name__ == "__main__":
    asyncio.run(agents(sys.argv[1], sys.argv[2], int(sys.argv[3])))
