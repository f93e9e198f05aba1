"""What commands show: lists that say when they are cut, times of waiting and running, jobs that were forgotten."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.cli.history import _hours
from fairlead.cli.inspect import _times
from fairlead.cli.node import _gpus
from fairlead.cli.output import ago, lasted
from fairlead.cli.server_process import _program
from fairlead.wire import api as wire
from tests.live import PROGRAM, Up

CONFIG = """
partitions:
  default:
    ready_after: 5s
    keep_ended: 1s
    queues: {root: {default: {}, ml: {train: {}, serve: {}}}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("shown")
    (folder / "fairlead.yaml").write_text(CONFIG)
    server = Up(folder / "data", "--name", "box", "--resource", "cpu=2", "--config", str(folder / "fairlead.yaml"))
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def test_lists_say_that_they_are_cut(up: Up) -> None:
    jobs = [up.run("submit", "--queue", "root.ml.train", "--array", "3", "sleep", "600").strip() for _ in range(2)]
    done = up.ask("ps", "--limit", "1")
    assert "only 1 jobs, the newest, are shown; --limit shows more" in done.stderr
    assert up.ask("ps", "--limit", "2").stderr == ""
    done = up.ask("show", "--limit", "2", jobs[0])
    assert "only 2 of 3 tasks are shown" in done.stderr and "main[2]" not in done.stdout
    assert up.ask("show", jobs[0]).stderr == ""
    queues = {line.split()[0]: line.split()[-1] for line in up.run("queue", "list").splitlines()}
    assert (queues["train"], queues["ml"], queues["root"]) == ("2", "2", "2")
    up.run("kill", *jobs)
    up.ask("wait", *jobs)
    done = up.ask("history", "--limit", "1")
    assert "only 1 jobs, the newest, are shown" in done.stderr


@pytest.mark.parametrize(("variable", "shown"), [("", "fairlead"), ("/bin/uv", shlex.quote(PROGRAM))])
def test_the_program_is_named_as_another_terminal_finds_it(
    variable: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`uvx` and `uv run` put the program on the PATH of one process only, and set the variable UV there."""
    monkeypatch.setattr("sys.argv", [PROGRAM, "up"])
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent))
    monkeypatch.delenv("UV", raising=False)
    if variable:
        monkeypatch.setenv("UV", variable)
    assert _program() == shown


def test_a_node_shows_which_gpus_are_in_use() -> None:
    node = wire.Node(
        name="n",
        state="up",
        pool="",
        manager="",
        labels={},
        taints=[],
        users=[],
        resources={},
        used={},
        devices=[0, 1, 0.5],
        tasks=1,
        avoided=False,
    )
    assert _gpus(node) == "0: free, 1: in use, 2: 50% in use"


def test_a_job_that_is_scaled_to_nothing_says_that_it_ends(up: Up) -> None:
    job = up.run("submit", "--array", "2", "sleep", "600").strip()
    assert up.run("scale", job, "1") == f"{job}: 1 task\n"
    assert up.run("scale", job, "0") == f"{job}: 0 tasks, so the job ends\n"
    up.run("wait", job)


def test_output_in_a_folder_that_does_not_exist(up: Up) -> None:
    done = up.ask("run", "-o", "no-such-folder/%a.txt", "true")
    assert "its output no-such-folder/0.txt: No such file or directory; create its folder first" in done.stderr
    done = up.ask("run", "--directory", "/no/such", "true")
    assert "its working directory /no/such: No such file or directory\n" in done.stderr


def test_hours_that_are_almost_none_are_no_powers_of_ten() -> None:
    assert [_hours(hours) for hours in (0.0, 8.5e-06, 0.25, 1234.5)] == ["0", "<0.0001", "0.25", "1234"]


def test_a_manager_that_does_not_exist_needs_no_confirmation(up: Up) -> None:
    done = up.ask("manager", "remove", "nobody")
    assert "Kill all jobs" not in done.stdout and "there is no" in done.stderr


def test_waiting_is_not_running(up: Up) -> None:
    first = up.run("submit", "--cpu", "2", "sleep", "600").strip()
    up.until("show", first, said="runs for")
    began = time.monotonic()
    second = up.run("submit", "--cpu", "2", "sleep", "0.1").strip()
    assert "not started" in up.run("show", second)
    time.sleep(3)
    up.run("kill", first)
    up.run("wait", second)
    took = time.monotonic() - began
    assert re.search(r"waited \d", up.run("show", second))
    assert "WAITED  RAN" in up.run("history").splitlines()[0]
    [row] = [row for row in json.loads(up.run("history", "--json")) if row["id"] == second]
    task = row["started"] - row["submitted"], row["ended"] - row["started"]
    assert task[0] >= 3 and sum(task) <= took


def test_a_forgotten_job_is_still_shown_and_waited_for(up: Up) -> None:
    job = up.run("submit", "--name", "old", "--cpu", "0.1", "true").strip()
    up.run("wait", job)
    deadline = time.monotonic() + 30
    while job in [row["id"] for row in json.loads(up.run("ps", "--all", "--json"))]:
        assert time.monotonic() < deadline
        up.run("run", "--cpu", "0.1", "true")  # a cycle that forgets
    assert up.run("wait", job) == f"{job}: succeeded\n"
    shown = up.run("show", job)
    assert f"job {job} (old)" in shown and re.search(r"main\[0\] +succeeded +1 +box", shown)
    assert json.loads(up.run("show", "--json", job))["attempts"][0]["node"] == "box"
    with fairlead.Client(up.url, up.token) as client:
        assert client.wait(job).state == "succeeded"


def test_a_removed_queue_is_called_removed(up: Up, tmp_path: Path) -> None:
    (tmp_path / "fewer.yaml").write_text(CONFIG.replace(", serve: {}", ""))
    removed = "default.queues.root.ml.serve: queue removed; its jobs still run, and it takes no new ones\n"
    assert up.run("config", "diff", str(tmp_path / "fewer.yaml")) == removed
    (tmp_path / "more.yaml").write_text(CONFIG.replace("serve: {}", "serve: {share: 3}, new: {share: 1}"))
    lines = up.run("config", "diff", str(tmp_path / "more.yaml")).splitlines()
    assert 'default.queues.root.ml.new: queue added, {"share": 1}' in lines
    assert "default.queues.root.ml.serve.share: (default) -> 3" in lines


def test_a_configuration_that_is_not_applied_is_told(up: Up, tmp_path: Path) -> None:
    """The last test of this module: the server is started again."""
    up.run("down")
    up.process.wait(30)
    (tmp_path / "other.yaml").write_text("partitions: {default: {keep_ended: 2h}}")
    for config, warned in ((tmp_path / "other.yaml", True), (up.folder.parent / "fairlead.yaml", False)):
        process = subprocess.Popen(
            [PROGRAM, "up", "--port", "0", "--json", "--name", "box", "--config", str(config)],
            env=up.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert ("was not applied" in errors) == warned, errors


@pytest.mark.parametrize("seconds", [-0.0, -0.01, -0.04, -3.0])
def test_no_duration_is_below_zero(seconds: float) -> None:
    """A start is reported by the clock of a node, which may be behind that of the server."""
    assert lasted(seconds) == "0.0s"
    assert ago(time.time() - seconds) == "0.0s"


def test_a_start_before_the_submission_was_waited_for_no_time() -> None:
    now = time.time()
    job = wire.Job(
        id="7",
        number=7,
        partition="default",
        name="j",
        user="ann",
        queue="root",
        state="running",
        priority=0,
        labels={},
        after=[],
        submitted=now,
        waiting_since=None,
        ended=None,
        reason="",
        stages=[],
    )
    assert ", waited 0.0s, started " in _times(job, [now - 0.04], [])
