"""A fleet that follows the work: the real server, providers, agents and tasks on this machine, and a server that is
killed while it orders."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead import Client
from fairlead.client import Problem
from tests.live import PROGRAM, SECONDS, Up
from tests.s3 import s3_server
from tests.until import until

ROOT = Path(__file__).parents[2]
CLOUD = ROOT / "examples" / "pools" / "mycloud.py"
SETTINGS = {"ready_after": "1s", "pool_pause": "200ms", "heartbeat": "500ms"}
LONG = 4 * SECONDS  # many agents have to start on a machine that may be busy


@contextmanager
def fleet(
    folder: Path, most: int, provider: dict[str, Any], lease: str = "1min", options: tuple[str, ...] = (), **more: str
) -> Iterator[Up]:
    pool = {"node": {"cpu": 1, "memory": "64Mi"}, "max": most, "idle_for": "1s", "provider": provider}
    config = folder / "fairlead.json"
    settings = {**SETTINGS, "lease": lease, "pools": {"work": pool}}
    config.write_text(json.dumps({"partitions": {"default": settings}}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    before = dict(os.environ)
    os.environ.update(more)
    up = Up(folder / "data", "--name", "box", "--config", str(config), "--port", port, *options)
    try:
        yield up
    finally:
        up.close()
        for home in (folder / "cloud").glob("*/*/*"):
            request = {"partition": home.parts[-3], "pool": home.parts[-2], "names": [home.name]}
            subprocess.run([sys.executable, str(CLOUD), "destroy"], input=json.dumps(request), text=True, check=True)
        os.environ.clear()
        os.environ.update(before)


def log(up: Up, event: str) -> list[dict[str, Any]]:
    file = up.folder / "server.log"
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [each for each in found if each["event"] == event]


def pool(up: Up) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(up.run("pool", "show", "work", "--json"))
    return found


def submit(up: Up, tasks: int, seconds: float = 0.5) -> str:
    command = ("--", "sleep", str(seconds))
    return up.run("submit", "--array", str(tasks), "--cpu", "1", "--pool", "work", *command).strip()


def ran_on(up: Up, job: str) -> set[str]:
    """The nodes of all tasks. Each task was tried once, and succeeded."""
    with Client(up.url, up.token) as client:
        tasks = sum(client.job(job).stages[0].ended.values())
        attempts = client.attempts(job).attempts
    assert {attempt.outcome for attempt in attempts} == {"succeeded"}
    assert sum(stop - start for attempt in attempts for start, stop in batched(attempt.indices)) == tasks
    return {attempt.node for attempt in attempts}


def batched(ranges: list[int]) -> Iterator[tuple[int, int]]:
    return zip(ranges[::2], ranges[1::2], strict=True)


def processes(folder: Path) -> list[psutil.Process]:
    """Agents and spawners of machines."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in process.info["cmdline"] or ())
    ]


def submit_with_results(up: Up, folder: Path, waits_for: Path | None = None) -> str:
    """Three tasks, one after the other, with output and result files."""
    wait = f"while [ ! -e {waits_for} ]; do sleep 0.05; done; " if waits_for else ""
    script = f"{wait}echo $FAIRLEAD_INDEX; echo oops >&2; echo $FAIRLEAD_INDEX >r-$FAIRLEAD_INDEX.txt"
    document = {
        "command": ["sh", "-c", script],
        "pool": "work",
        "array": 3,
        "resources": {"cpu": 1},
        "directory": str(folder),
        "results": ["r-%a.txt"],
    }
    return up.run("submit", "-f", "-", text=json.dumps(document)).strip()


def check_output(up: Up, folder: Path, job: str) -> None:
    """All output of `submit_with_results` is there, and nothing is left of its machines."""
    assert list((up.folder / "pools" / "default" / "work").iterdir()) == []
    assert [up.run("logs", job, "-i", str(at), "--stdout") for at in range(3)] == ["0\n", "1\n", "2\n"]
    assert up.run("logs", job, "--stderr", "--tail", "3", "--follow") == "ps\n"
    up.run("results", job, "-o", str(folder))
    assert [(folder / f"main.{at}" / f"r-{at}.txt").read_text() for at in range(3)] == ["0\n", "1\n", "2\n"]
    token = up.run("token", "create", "--role", "user", "--user", "bob").splitlines()[0].strip()
    with Client(up.url, token) as bob:
        with pytest.raises(Problem, match="no job"):
            list(bob.log(job))
        with pytest.raises(Problem, match="no job"):
            bob.results(job)
    assert log(up, "output not copied") == []


def test_output_outlives_the_node(tmp_path: Path) -> None:
    with fleet(tmp_path, 1, {"local": {}}) as up:
        job = submit_with_results(up, tmp_path)
        assert up.run("wait", job) == f"{job}: succeeded\n"
        until(lambda: pool(up)["use"]["total"] == 0, LONG)
        check_output(up, tmp_path / "fetched", job)


def test_output_in_an_object_store_outlives_the_node(tmp_path: Path) -> None:
    with s3_server() as s3:
        options = ("--outputs", f"s3://{s3.bucket}/fairlead", "--outputs-endpoint", s3.url)
        with fleet(tmp_path, 1, {"local": {}}, options=options, **s3.environment) as up:
            job = submit_with_results(up, tmp_path)
            assert up.run("wait", job) == f"{job}: succeeded\n"
            until(lambda: pool(up)["use"]["total"] == 0, LONG)
            assert not (up.folder / "outputs").exists()
            check_output(up, tmp_path / "fetched", job)
            keys = {key.rpartition("/")[2] for key in s3.names()}
            assert {"r-0.txt", f"{job}.main.0.1.out", f"{job}.main.0.1.err"} <= keys


def test_output_survives_a_crash_between_the_end_and_the_copy(tmp_path: Path) -> None:
    """Until the output is stored, the node stays, also with a new server."""
    with fleet(tmp_path, 1, {"local": {}}) as up:
        flag = tmp_path / "flag"
        job = submit_with_results(up, tmp_path, flag)
        until(lambda: '"running":1' in up.run("show", job, "--json"), LONG)
        incoming = up.folder / "outputs" / ".incoming"
        incoming.rmdir()
        incoming.write_text("not a folder, so nothing can be stored")
        flag.touch()
        assert up.run("wait", job) == f"{job}: succeeded\n"
        until(lambda: log(up, "output not stored"), LONG)
        assert pool(up)["use"]["total"] == 1
        with Client(up.url, up.token) as client, pytest.raises(TimeoutError, match="still on their way"):
            client.results(job, timeout=0)
        up.process.kill()
        up.process.wait(SECONDS)
        incoming.unlink()
        up.start()
        until(lambda: pool(up)["use"] is not None and pool(up)["use"]["total"] == 0, LONG)
        check_output(up, tmp_path / "fetched", job)


def test_from_none_to_eight_and_back(tmp_path: Path) -> None:
    with fleet(tmp_path, 8, {"local": {}}) as up:
        job = submit(up, 24)
        (asked,) = until(lambda: log(up, "machines asked for"), LONG)
        names = {f"work-1-{at}" for at in range(8)}
        assert set(asked["names"]) == names
        until(lambda: pool(up)["use"] is not None and not pool(up)["orders"], LONG)
        assert up.run("wait", job) == f"{job}: succeeded\n"
        until(lambda: pool(up)["use"]["total"] == 0, LONG)
        assert log(up, "machines asked for") == [asked] and log(up, "machines failed") == []
        assert {each["node"] for each in log(up, "machine gone")} == names
        assert log(up, "orphan machine") == []
        assert list((up.folder / "pools" / "default" / "work").iterdir()) == []
        assert processes(up.folder / "pools") == []


@pytest.mark.parametrize("provider", ["local", pytest.param("command", marks=pytest.mark.long)])
def test_a_server_that_is_killed_while_it_orders(tmp_path: Path, provider: str) -> None:
    most = 8 if provider == "local" else 4
    settings = {"local": {}} if provider == "local" else {"command": [sys.executable, str(CLOUD)]}
    with fleet(tmp_path, most, settings, MYCLOUD=str(tmp_path / "cloud"), MYCLOUD_FAIRLEAD=PROGRAM) as up:
        job = submit(up, 2 * most)
        until(lambda: log(up, "machines asked for"), LONG)
        up.process.kill()
        up.process.wait(SECONDS)
        up.start()
        assert up.run("wait", job) == f"{job}: succeeded\n"
        # There was one order, and exactly its nodes came.
        names = {f"work-1-{at}" for at in range(most)}
        assert ran_on(up, job) <= names
        assert {each["node"] for each in log(up, "agent joined")} - {"box"} <= names
        assert log(up, "machines failed") == [] and log(up, "orphan machine") == []
        # And back to none, twice: the next burst is a new order.
        until(lambda: pool(up)["use"]["total"] == 0, LONG)
        again = submit(up, 2)
        assert up.run("wait", again) == f"{again}: succeeded\n"
        assert all(name.startswith("work-2-") for name in ran_on(up, again))
        until(lambda: pool(up)["use"]["total"] == 0, LONG)
        assert processes(up.folder / "pools") == [] and processes(tmp_path / "cloud") == []


def test_tasks_and_machines_outlive_the_server(tmp_path: Path) -> None:
    """Killed while tasks run on machines that it brought, and started at another address."""
    with fleet(tmp_path, 2, {"local": {}}) as up:
        flag = tmp_path / "flag"
        command = ("--cpu", "1", "--pool", "work", "--array", "2", "--shell", "--")
        job = up.run("submit", *command, f"while [ ! -e {flag} ]; do sleep 0.05; done").strip()
        until(lambda: '"running":2' in up.run("show", job, "--json"), LONG)
        up.process.kill()
        up.process.wait(SECONDS)
        up._options = ("--name", "box")
        up.start()
        until(lambda: pool(up)["use"] is not None and len(log(up, "agent joined")) >= 6, LONG)
        flag.touch()
        assert up.run("wait", job) == f"{job}: succeeded\n"
        assert ran_on(up, job) == {"work-1-0", "work-1-1"}
        until(lambda: pool(up)["use"]["total"] == 0, LONG)
        assert log(up, "orphan machine") == [] and len(log(up, "machines asked for")) == 1


@pytest.mark.parametrize("crash", [False, True])
def test_down_and_kill_leave_no_machine(tmp_path: Path, crash: bool) -> None:
    """The same holds when the server is gone already. The next server notices that, and orders again."""
    with fleet(tmp_path, 2, {"local": {}}, lease="5s") as up:
        job = submit(up, 2, 1000)
        until(lambda: '"running":2' in up.run("show", job, "--json"), LONG)
        if crash:
            up.process.kill()
            up.process.wait(SECONDS)
        assert "machines of pools ended: 2" in up.run("down", "--kill")
        assert processes(up.folder / "pools") == []
        up.start()
        if crash:  # the job was not killed: it is tried again elsewhere
            up.run("kill", job)
        again = submit(up, 1)
        assert up.run("wait", again) == f"{again}: succeeded\n"


HALF = """
import json, subprocess, sys, time
from pathlib import Path

cloud, half, go = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
asked, what = json.load(sys.stdin), sys.argv[4]


def call(document):
    subprocess.run([sys.executable, cloud, what], input=json.dumps(document), text=True, check=True)


if what == "create" and not half.exists():
    call({**asked, "names": asked["names"][:2]})
    half.touch()
    while not go.exists():
        time.sleep(0.05)
call(asked)
"""


def test_a_server_that_is_killed_when_half_is_there(tmp_path: Path) -> None:
    """The next server orders the other half only, while the first server's call goes on and asks for all."""
    (tmp_path / "half.py").write_text(HALF)
    half, go = tmp_path / "half", tmp_path / "go"
    command = [sys.executable, str(tmp_path / "half.py"), str(CLOUD), str(half), str(go)]
    with fleet(tmp_path, 4, {"command": command}, MYCLOUD=str(tmp_path / "cloud"), MYCLOUD_FAIRLEAD=PROGRAM) as up:
        job = submit(up, 8)
        until(half.exists, LONG)
        (asked,) = log(up, "machines asked for")
        up.process.kill()
        up.process.wait(SECONDS)
        up.start()
        _, again = until(lambda: len(found := log(up, "machines asked for")) == 2 and found, LONG)
        assert (again["order"], again["names"]) == (asked["order"], asked["names"][2:])
        go.touch()
        assert up.run("wait", job) == f"{job}: succeeded\n"
        assert ran_on(up, job) <= set(asked["names"])
        agents = [process for process in processes(tmp_path / "cloud") if "--pool=work" in process.info["cmdline"]]
        assert len(agents) <= 4
        until(lambda: pool(up)["use"]["total"] == 0, LONG)
        assert log(up, "machines failed") == [] and log(up, "orphan machine") == []
