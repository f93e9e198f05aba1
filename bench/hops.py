"""The way of many separate jobs from the request to the end of their processes: `python -m bench.hops`.

Server and agent note when each job passes each point of its way, by the machine's clock. The table has the times at
which a tenth, half and all of the jobs have passed, and the CPU time of each thread, so that it shows which part the
others wait for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

from bench.e2e import SLOTS

FOLDER = "FAIRLEAD_BENCH_HOPS"
"""Environment variable with the folder for the notes; it is set in traced processes."""
SITE = "import os, sys\nif sys.flags.isolated == 0: from bench.hops import trace; trace()\n"
POINTS = (
    "read and offered",
    "cycle is durable",
    "sent to the agent",
    "agent has it",
    "agent hears of its start",
    "agent hears of its end",
    "end is reported to the server",
    "cycle of the end is durable",
)


def trace() -> None:
    """Note the points in this process, a server or an agent, and write them to the folder when it exits."""
    folder = Path(os.environ[FOLDER])
    passed: dict[str, dict[int, float]] = {}

    def note(point: int, jobs: Any) -> None:
        times, now = passed.setdefault(POINTS[point], {}), monotonic()
        for job in jobs:
            times.setdefault(job, now)

    _trace_server(note)
    _trace_agent(note)

    def write() -> None:
        while not (folder / "over").exists():
            sleep(0.1)
        (folder / f"{os.getpid()}.json").write_text(json.dumps(passed))

    Thread(target=write, daemon=True).start()


def _trace_server(note: Callable[[int, Any], None]) -> None:
    from fairlead.core.commands import Report, Submit
    from fairlead.engines.agents import Agents
    from fairlead.writer.inbox import Inbox
    from fairlead.writer.loop import LiveWriter

    offer, cycle, dispatch = Inbox.offer, LiveWriter._cycle, Agents.dispatch
    offered = 0

    def traced_offer(self: Any, command: Any) -> Any:
        nonlocal offered
        if isinstance(command, Submit):
            offered += 1
            note(0, [offered])  # the jobs of one user get their numbers in this order
        elif isinstance(command, Report) and command.state != "running":
            note(6, [command.number])
        return offer(self, command)

    def traced_cycle(self: Any, batch: Any) -> Any:
        decided = cycle(self, batch)
        commands = [message.command for message in batch]
        submitted = [
            int(answer.job)
            for command, answer in zip(commands, decided[0].answers, strict=True)
            if isinstance(command, Submit)
        ]
        note(1, submitted)
        note(7, [each.number for each in commands if isinstance(each, Report) and each.state != "running"])
        return decided

    def traced_dispatch(self: Any, partition: str, messages: Any) -> None:
        dispatch(self, partition, messages)
        note(2, [launch.number for message in messages for launch in message.launches])

    Inbox.offer, LiveWriter._cycle, Agents.dispatch = traced_offer, traced_cycle, traced_dispatch  # type: ignore[method-assign]


def _trace_agent(note: Callable[[int, Any], None]) -> None:
    from fairlead.agent.task_table import TaskTable

    handle, record = TaskTable.handle, TaskTable.record

    def traced_handle(self: Any, work: Any) -> None:
        note(3, [launch.tasks.number for launch in work.launches])
        handle(self, work)

    def traced_record(self: Any, started: Any, ended: Any) -> None:
        note(4, [key[0] for key in started])
        note(5, [key[0] for key, _ in ended])
        record(self, started, ended)

    TaskTable.handle, TaskTable.record = traced_handle, traced_record  # type: ignore[method-assign]


def _name_of(comm: Path) -> str:
    try:
        return comm.read_text().strip()
    except OSError:
        return "?"


def _cpu_of(pid: int, thread: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _threads(pids: list[int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for pid in pids:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        what = "spawner" if b"fairlead.agent.spawner" in command else "agent" if b"--join" in command else "server"
        for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
            name = _name_of(Path(f"/proc/{pid}/task/{thread}/comm"))
            found[f"{what} {pid}, {'main thread' if thread == pid else f'{name} {thread}'}"] = _cpu_of(pid, thread)
    return found


def _below(pid: int) -> list[int]:
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += map(int, children.read_text().split())
    return pids


def run(jobs: int, array: bool) -> None:
    with tempfile.TemporaryDirectory() as notes:
        site = Path(notes) / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        path = [str(site), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        os.environ |= {FOLDER: notes, "PYTHONPATH": os.pathsep.join(filter(None, path))}
        folder = Path(tempfile.mkdtemp(prefix="hops-")) / "data"
        from bench import e2e

        server, client = e2e._up(folder)
        client.wait(client.submit(["/bin/true"]))
        pids = _below(server.pid)
        before, began = _threads(pids), monotonic()
        (e2e._array if array else e2e._jobs)(client, jobs)
        seconds = monotonic() - began
        after = _threads(pids)
        (Path(notes) / "over").touch()
        sleep(1.0)
        client.close()
        subprocess.run([*e2e.FAIRLEAD, "down", "--data", str(folder)], check=True, stdout=subprocess.DEVNULL)
        server.wait()
        passed: dict[str, list[float]] = {}
        for file in Path(notes).glob("*.json"):
            for point, times in json.loads(file.read_text()).items():
                passed.setdefault(point, []).extend(time - began for time in times.values() if time > began)
    print(f"{jobs:,} jobs on {os.cpu_count()} cores with {SLOTS} slots in {seconds:.2f} s: {jobs / seconds:,.0f} /s")
    print("| ms after the request, when passed by | jobs | first | 10 % | 50 % | 90 % | all |")
    print("|---|---|---|---|---|---|---|")
    for point in POINTS:
        times = sorted(passed.get(point, []))
        if times:
            shown = [times[min(len(times) - 1, len(times) * share // 100)] * 1_000 for share in (0, 10, 50, 90, 100)]
            print(f"| {point} | {len(times):,} | " + " | ".join(f"{time:,.0f}" for time in shown) + " |")
    print("\n| thread | CPU, ms | of one core |\n|---|---|---|")
    for name, used in after.items():
        busy = used - before.get(name, 0.0)
        if busy >= 0.02:
            print(f"| {name} | {busy * 1_000:,.0f} | {busy / seconds:.0%} |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hops", description="Where separate jobs spend their time.")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--array", action="store_true", help="run one array instead of separate jobs")
    options = parser.parse_args()
    run(options.jobs, options.array)
    return 0


if __name__ == "__main__":
    sys.exit(main())
