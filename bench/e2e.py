"""End to end with the real program: from submit to the end of processes, and from submit to the start of one.

`fairlead up` runs on its own data directory. Every task is a process that is supervised, limited and logged. The floor
is the rate at which plain processes, one for each core, can start and await others in the same minute.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from time import perf_counter, sleep, time

from bench.harness import CORES, Row, floor
from fairlead.client import Client

TASKS = 10_000
LONE = 200
QUEUED = 100_000
SLOTS = 64
"""Tasks that may run at a time."""
FAIRLEAD = [sys.executable, "-c", "from fairlead.cli import main; main()"]
TRUE = {"command": ["/bin/true"], "resources": {"cpu": 1}}


def e2e(scale: float) -> Generator[Row, None, None]:
    tasks, lone = max(20, round(TASKS * scale)), max(5, round(LONE * scale))
    # Deleted only when the process ends: after many files are deleted, creating new ones is slow for minutes.
    outer = tempfile.mkdtemp(prefix="e2e-")
    atexit.register(shutil.rmtree, outer)
    folder = Path(outer) / "data"  # the key of its secrets is beside it
    began = perf_counter()
    server, client = _up(folder)
    try:
        client.wait(client.submit(["/bin/true"]))
        yield Row("fairlead up, to the end of the first task", perf_counter() - began, "s", 2.0)
        waits = sorted(_lone(client) for _ in range(lone))
        yield Row("submit to start of one process, median", 1_000 * waits[lone // 2], "ms", 4.0)
        yield Row("submit to start of one process, 99 of 100", 1_000 * waits[lone * 99 // 100], "ms", 10.0)
        plain = floor(tasks)
        for what, run in (("one array", _array), ("as many jobs", _jobs)):
            rate = tasks / run(client, tasks)
            yield Row(
                f"processes from submit to all ended, {what}",
                rate,
                "/s",
                1_552,
                True,
                rate / plain,
                f"{CORES} plain processes",
                f"{tasks:,} of /bin/true; the floor was {plain:,.0f} /s",
            )
        large = {**TRUE, "resources": {"cpu": 10**6}}
        array = client.submit(document={"stages": [{**large, "count": QUEUED, "min": 1}]})
        yield Row(f"memory of the server, {QUEUED:,} tasks queued in an array", _memory(server), "MiB", 100.0)
        client.kill(array)
        jobs, before = max(20, round(QUEUED * scale)), _memory(server)
        client.submit_many({"name": "one", "stages": [large]} for _ in range(jobs))
        memory = _memory(server)
        per_job = f"{(memory - before) * 2**20 / jobs:,.0f} bytes each"
        yield Row(f"memory of the server, {jobs:,} jobs of one task queued", memory, "MiB", note=per_job)
    finally:
        client.close()
        subprocess.run([*FAIRLEAD, "down", "--data", str(folder)], check=True, stdout=subprocess.DEVNULL)
        server.wait()


def _memory(server: subprocess.Popen[str]) -> float:
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _up(folder: Path) -> tuple[subprocess.Popen[str], Client]:
    options = ["--data", str(folder), "--port", "0", "--json", "--resource", f"cpu={SLOTS}", "--resource", "memory=8Gi"]
    server = subprocess.Popen([*FAIRLEAD, "up", *options], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = json.loads(server.stdout.readline())["url"]
    return server, Client(url, (folder / "token").read_text().strip())


def _lone(client: Client) -> float:
    """Return the seconds from a submit until it is answered and its process has read the clock."""
    before = time()
    job = client.submit(["/bin/date", "+%s.%N"], resources={"cpu": 1})
    answered = time()
    client.wait(job)
    started = float(b"".join(client.log(job)))
    return max(started, answered) - before


def _array(client: Client, tasks: int) -> float:
    job = client.wait(client.submit(document={"stages": [{**TRUE, "count": tasks, "min": 1}]}))
    assert job.state == "succeeded" and job.ended is not None
    return job.ended - job.submitted


def _jobs(client: Client, tasks: int) -> float:
    began = time()
    items = client.submit_many([{"name": "one", "stages": [TRUE]} for _ in range(tasks)])
    assert all(item.job for item in items)
    client.wait(items[-1].job)  # nearly all have ended by then; poll for the rest
    while any(True for _ in client.jobs(state=["pending", "running"], limit=1)):
        sleep(0.02)
    return time() - began
