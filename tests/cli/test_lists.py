"""Lists with chosen columns and live lists, progress, amounts that are probably mistakes, and what a priority stops."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import fairlead
from fairlead.cli.job_actions import _stops
from fairlead.cli.statusline import Pace, line_of
from fairlead.wire import api as wire
from tests.live import PROGRAM, SECONDS, Up
from tests.until import until

CONFIG = {
    "partitions": {
        "default": {
            "preempt_grace": "1s",
            "queues": {"root": {"default": {"order": "priority", "max_priority": 100}}},
        }
    }
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("lists")
    config = folder / "fairlead.json"
    config.write_text(json.dumps(CONFIG))
    server = Up(folder / "data", "--name", "box", "--resource", "cpu=2", "--config", str(config))
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def words(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


# -- columns and watching ------------------------------------------------------------------------------------------


def test_columns(up: Up) -> None:
    job = up.run("submit", "--name", "nap", "--label", "team=red", "sleep", "600").strip()
    try:
        assert up.run("ps", "-o", "job,labels,priority").splitlines() == [
            "JOB  LABELS    PRIORITY",
            f"{job}    team=red  0",
        ]
        assert up.run("node", "list", "-o", "node,has").splitlines()[0].split() == ["NODE", "HAS"]
    finally:
        up.run("kill", job)
    up.run("wait", job, code=1)
    up.until("history", "-o", "name,state,reason", said="killed by")
    done = up.ask("ps", "-o", "job,stat")
    assert done.returncode == 2 and "no column 'stat'; did you mean state?" in words(done)
    assert "The columns are job, name, user, queue, state" in words(done)
    assert "JSON has all columns" in words(up.ask("ps", "-o", "job", "--json"))


@pytest.mark.parametrize("command", [("ps",), ("node", "list"), ("history",)])
def test_watching_prints_a_line_for_each_refresh_until_it_is_interrupted(up: Up, command: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [PROGRAM, *command, "--watch", "--json"],
        env=up.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    for _ in range(2):
        assert isinstance(json.loads(process.stdout.readline()), list)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 0 and process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


def on_terminal(up: Up, *arguments: str, until: str, then: Path | None = None) -> str:
    """Run a command on a terminal and return what it shows. At a text, make a file, or else press Ctrl-C."""
    pid, terminal = pty.fork()
    if not pid:
        os.execve(PROGRAM, [PROGRAM, *arguments], {**up.environment, "TERM": "xterm", "COLUMNS": "100"})
    shown = b""
    deadline = time.monotonic() + SECONDS
    sent = False
    while True:
        assert time.monotonic() < deadline, shown
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the program has ended
            break
        if not part:
            break
        shown += part
        if not sent and until.encode() in shown:
            sent = True
            if then is not None:
                then.touch()
            else:
                os.write(terminal, b"\x03")
    os.close(terminal)
    os.waitpid(pid, 0)
    assert until.encode() in shown, shown
    return shown.decode(errors="replace")


def test_a_live_list_on_a_terminal_ends_with_ctrl_c(up: Up) -> None:
    assert "Traceback" not in on_terminal(up, "node", "list", "--watch", until="box")


# -- progress ------------------------------------------------------------------------------------------------------


def view(**ended: int) -> wire.Job:
    stage = {"name": "main", "count": 100, "min": 1, "resources": {}, "command": [], "waiting": 0, "running": 5}
    job = {"id": "7", "number": 7, "partition": "default", "name": "j", "user": "ann", "queue": "root.default"}
    job |= {"state": "running", "priority": 0, "labels": {}, "after": [], "submitted": 0.0, "waiting_since": None}
    return msgspec.convert({**job, "ended": None, "reason": "", "stages": [{**stage, "ended": ended}]}, wire.Job)


def test_the_time_left_follows_from_the_pace() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert line_of(view(succeeded=10), pace) == "job 7: 10 of 100 tasks done, 5 running, 0 failed"
    now = 20.0
    said = "job 7: 20 of 100 tasks done, 5 running, 2 failed, about 160s left"
    assert line_of(view(succeeded=18, failed=2), pace).replace("3min", "160s") == said
    now = 21.3
    assert line_of(view(succeeded=93), pace).endswith(", about 2s left")


def test_waiting_shows_progress_on_a_terminal_only(up: Up, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"echo hi; until [ -e {go} ]; do sleep 0.1; done"
    job = up.run("submit", "--array", "6", "--shell", script).strip()
    shown = on_terminal(up, "wait", job, until="0 of 6 tasks done, 2 running, 0 failed", then=go)
    assert f"{job}: succeeded" in shown
    done = up.ask("submit", "--wait", "--array", "2", "true")
    assert done.returncode == 0 and done.stderr == ""
    go.unlink()
    shown = on_terminal(up, "run", "--array", "4", "--shell", script, until="0 of 4 tasks done, 2 running", then=go)
    assert "main[3] hi" in shown


# -- amounts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory", "8"), "memory 8 is 8 bytes; write 8Gi for gibibytes, or 8Mi"),
        (("--resource", "memory=64"), "memory 64 is 64 bytes; write 64Gi"),
        (("--memory", "0"), "a task needs more memory than 0; write a size such as 512Mi"),
        (("--memory", "0Gi"), "a task needs more memory than 0Gi; write a size such as 512Mi"),
        (("--time-limit", "2"), "2 has no unit; write 2h for hours, 2min for minutes, or 2s for seconds"),
        (("--estimate", "90"), "90 has no unit"),
        (("--memory", "8Ki"), "stages[0].resources.memory: 8192 bytes are too little for a process"),
    ],
)
def test_amounts_that_are_probably_mistakes_are_refused(up: Up, options: tuple[str, ...], said: str) -> None:
    for command in (("submit",), ("run",), ("submit", "--dry-run")):
        done = up.ask(*command, *options, "true")
        assert done.returncode in (1, 2) and said in words(done), command
    for text in ("memory: 8", 'memory: "8"'):
        done = up.ask("submit", "-f", "-", text=f"command: [sleep, 1s]\nresources: {{{text}}}\n")
        assert "8 bytes are too little for a process; write 8Gi or 8Mi" in words(done)
    with fairlead.Client(up.url, up.token) as client, pytest.raises(fairlead.Problem, match="8 bytes are too little"):
        client.submit(["true"], resources={"memory": 8})


def test_an_agent_without_a_unit_of_memory_is_refused(tmp_path: Path) -> None:
    for command in (["up", "--data", str(tmp_path)], ["agent", "--join", "http://127.0.0.1:1"]):
        done = subprocess.run(
            [PROGRAM, *command, "--resource", "memory=8"], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 2 and "memory 8 is 8 bytes" in words(done)


# -- priorities ----------------------------------------------------------------------------------------------------


def test_a_priority_says_what_it_stops(up: Up) -> None:
    low = up.run("submit", "--name", "low", "--array", "2", "sleep", "600").strip()
    with fairlead.Client(up.url, up.token) as client:
        until(lambda: client.job(low).stages[0].running == 2)
        high = up.run("submit", "--name", "high", "--gang", "2", "sleep", "600").strip()
        assert client.try_priority(high, 0).tasks == 0
        stops = client.try_priority(high, 50)
        assert stops.tasks == 2 and {(stop.job, stop.node) for stop in stops.stops} == {(low, "box")}
        assert client.job(high).priority == 0 and client.job(low).stages[0].running == 2
        done = up.ask("priority", high, "50")
        assert f"running tasks stop for job {high} at once: " in words(
            done
        ) and f"of job {low} (low of ann) on box" in words(done)
        assert done.stdout == f"{high}: priority 50\n"
        until(lambda: client.job(high).stages[0].running == 2)
        with pytest.raises(fairlead.Problem, match='no job "none"'):
            client.try_priority("none", 1)
    up.run("kill", low, high)


# -- an agent that died while the server was away --------------------------------------------------------------------


def test_an_agent_that_died_while_the_server_was_away(tmp_path: Path) -> None:
    config = tmp_path / "fairlead.json"
    config.write_text(json.dumps({"partitions": {"default": {"ready_after": "600s"}}}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    environment["FAIRLEAD_DATA"] = str(tmp_path / "data")

    def server(port: str) -> tuple[subprocess.Popen[str], str]:
        command = [PROGRAM, "server", "--port", port, "--json", "--config", str(config)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())["url"]

    def ask(*arguments: str) -> str:
        done = subprocess.run(
            [PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
        )
        return done.stdout

    process, url = server("0")
    agent = None
    try:
        token = ask("token", "create", "--role", "join", "--node", "box").strip()
        command = [PROGRAM, "agent", "--join", url, "--name", "box", "--directory", str(tmp_path / "agent")]
        command += ["--resource", "cpu=1", "--for", "ann", *["--user", "root"] * (os.geteuid() == 0)]
        agent = subprocess.Popen(command, env={**environment, "FAIRLEAD_TOKEN": token}, stderr=subprocess.DEVNULL)
        until(lambda: "box   up " in ask("node", "list"))
        process.kill()
        process.wait(SECONDS)
        agent.kill()
        agent.wait(SECONDS)
        process, _ = server(url.rpartition(":")[2])
        until(lambda: "disconnected, agent not connected for" in ask("node", "list"))
        assert "box" in ask("node", "list", "--state", "disconnected")
        assert "box" not in ask("node", "list", "--state", "up")
    finally:
        for started in (process, agent):
            if started is not None:
                started.kill()
                started.wait(SECONDS)


# -- help ----------------------------------------------------------------------------------------------------------


def test_a_barrier_has_a_help_text() -> None:
    def barrier(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fairlead.gang", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    shown = barrier("--help")
    assert shown.returncode == 0 and "SECONDS" in shown.stdout
    wrong = barrier("soon")
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr


def test_equal_parts_of_what_a_priority_stops_are_summed() -> None:
    part = {"job": "2", "name": "sweep", "user": "ann", "stage": "main", "node": "box", "tasks": 2}
    stops = msgspec.convert({"tasks": 5, "stops": [part, part]}, wire.PriorityStops)
    assert _stops("3", 9, stops) == (
        "fairlead: with priority 9, running tasks stop for job 3 at once: "
        "4 tasks of job 2 (sweep of ann) on box, 1 task of jobs of other users"
    )
