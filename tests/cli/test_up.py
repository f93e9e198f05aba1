"""`fairlead up` and the commands that talk to it: output, exit codes, and what keeps running after an end."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import pty
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from fairlead.agent.spawner_link import end_all
from fairlead.cli.agent import FINAL
from fairlead.cli.pool import _lines
from fairlead.cli.server_process import _program, _url
from fairlead.http.examples import example_of
from fairlead.wire import api as wire
from tests.live import PROGRAM, SECONDS, Up
from tests.until import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    found = Up(tmp_path_factory.mktemp("up") / "data")
    try:
        yield found
    finally:
        found.close()


def test_run_ends_as_its_command_did(up: Up) -> None:
    done = up.ask("run", "--cpu", "0.1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.startswith("err\n") and "exit code 7" in done.stderr
    assert up.run("run", "--cpu", "0.1", "--shell", "--", "echo $0 a b") == "/bin/sh a b\n"
    found = json.loads(up.run("run", "--cpu", "0.1", "--json", "--", "true"))
    assert (found["state"], found["name"]) == ("succeeded", "true")


def test_tasks_of_an_array_are_told_apart(up: Up) -> None:
    lines = up.run("run", "--array", "3", "--cpu", "0.1", "--", "sh", "-c", "echo $FAIRLEAD_INDEX").splitlines()
    assert sorted(lines) == ["main[0] 0", "main[1] 1", "main[2] 2"]


def test_a_last_line_without_its_end_is_shown(up: Up) -> None:
    document = {"command": ["printf", "begun"], "count": 2, "resources": {"cpu": 0.1}}
    lines = up.run("submit", "--follow", "-f", "-", text=json.dumps(document)).splitlines()
    assert sorted(lines) == ["main[0] begun", "main[1] begun"]


RETRIED = 'echo "try $FAIRLEAD_ATTEMPT"; echo "oops $FAIRLEAD_ATTEMPT" >&2; test $FAIRLEAD_ATTEMPT = 3'


def test_output_is_followed_from_attempt_to_attempt(up: Up) -> None:
    done = up.ask("run", "--cpu", "0.1", "--tries", "3", "--", "sh", "-c", RETRIED)
    assert (done.returncode, done.stdout) == (0, "try 1\ntry 2\ntry 3\n")
    first, second = "fairlead: attempt 2 of task main[0]", "fairlead: attempt 3 of task main[0]"
    assert done.stderr.splitlines() == ["oops 1", first, "oops 2", second, "oops 3"]
    name = json.loads(up.run("ps", "--all", "--json"))[0]["id"]
    assert up.run("logs", name) == "try 3\noops 3\n"
    assert up.run("logs", "--attempt", "1", "--stdout", name) == "try 1\n"
    assert up.run("logs", "--attempt", "2", "--stderr", name) == "oops 2\n"
    assert "has no attempt 4; it has 1, 2, 3" in up.ask("logs", "--attempt", "4", name).stderr


def test_logs_of_several_tasks_and_the_last_words_of_failed_ones(up: Up) -> None:
    script = 'echo out $FAIRLEAD_INDEX; echo "boom $FAIRLEAD_INDEX" >&2; test $FAIRLEAD_INDEX = 1'
    name = up.run("submit", "--cpu", "0.1", "--array", "3", "--shell", "--", script).strip()
    up.run("wait", name, code=1)
    both = [f"main[{index}] {word} {index}" for index in range(3) for word in ("out", "boom")]
    assert up.run("logs", name, "--all").splitlines() == both
    assert sorted(up.run("logs", "-f", name, "--all").splitlines()) == sorted(both)
    assert up.run("logs", name, "--failed", "--stderr").splitlines() == ["main[0] boom 0", "main[2] boom 2"]
    assert up.run("logs", name, "--all", "--grep", "[bn].*[12]$").splitlines() == ["main[1] boom 1", "main[2] boom 2"]
    shown = [json.loads(line) for line in up.run("logs", name, "--all", "--json", "--stdout").splitlines()]
    assert [(each["index"], each["text"]) for each in shown] == [(0, "out 0\n"), (1, "out 1\n"), (2, "out 2\n")]
    for command in ("show", "explain"):
        assert "main[0] wrote last to standard error:\n  boom 0\n" in up.run(command, name)
    for wrong, said in (
        (("--all", "-i", "1"), "chooses one task"),
        (("--failed", "-f"), "failed tasks write no more"),
        (("--grep", "("), "is not a regular expression"),
    ):
        refused = up.ask("logs", name, *wrong)
        assert refused.returncode == 2 and said in refused.stderr
    assert "no task of job" in up.ask("logs", up.run("submit", "--cpu", "0.1", "true").strip(), "--failed").stderr


def test_a_running_attempt_is_not_shown_with_the_failure_before_it(up: Up) -> None:
    script = "test $FAIRLEAD_ATTEMPT = 2 || exit 7; sleep 600"
    name = up.run("submit", "--cpu", "0.1", "--tries", "2", "--shell", "--", script).strip()
    line = next(line for line in up.until("show", name, said=" running  2 ").splitlines() if line.startswith("main[0]"))
    assert "exit code" not in line
    up.run("kill", name)


def test_users_take_turns_in_the_first_configuration(up: Up) -> None:
    assert "default: {share: 100, order: fair}" in up.run("config", "get")


def test_logs_of_a_waiting_task_say_what_to_do(up: Up) -> None:
    name = up.run("submit", "--cpu", "1000", "--", "true").strip()
    error = up.ask("logs", name).stderr
    assert f"task 0 of job {name} has not started yet; `fairlead explain {name}` shows why it waits" in error
    up.run("kill", name)


def test_nodes_are_listed_by_every_state_that_they_can_have(up: Up) -> None:
    for state in ("up", "disconnected", "draining", "disabled", "lost"):
        up.run("node", "list", "--state", state)


def test_logs_follow_the_attempts_that_come(up: Up, tmp_path: Path) -> None:
    wait = f"echo try $FAIRLEAD_ATTEMPT; until test -e {tmp_path}/$FAIRLEAD_ATTEMPT; do sleep 0.02; done; exit 1"
    name = up.run("submit", "--cpu", "0.1", "--tries", "2", "--", "sh", "-c", wait).strip()
    with subprocess.Popen([PROGRAM, "logs", "-f", name], env=up.environment, stdout=subprocess.PIPE, text=True) as logs:
        assert logs.stdout is not None
        for attempt in (1, 2):
            assert logs.stdout.readline() == f"try {attempt}\n"
            (tmp_path / str(attempt)).touch()
        assert logs.stdout.read() == "" and logs.wait(SECONDS) == 0


def test_output_goes_to_a_file(up: Up) -> None:
    done = up.ask("run", "--cpu", "0.1", "-o", "out-%j-%a.txt", "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.returncode, done.stdout) == (0, "")
    name = json.loads(up.run("ps", "--all", "--json"))[0]["id"]
    assert (up.folder.parent / f"out-{name}-0.txt").read_text() == "out\nerr\n"
    assert 'goes to "out-%j-%a.txt" on its node; read it there' in up.ask("logs", name).stderr
    assert "%z in" in up.ask("submit", "-o", "%z", "--", "true").stderr


def test_logs_of_an_array_say_which_task_is_shown(up: Up) -> None:
    job = up.run("submit", "--wait", "--array", "3", "--shell", "--", "echo $FAIRLEAD_INDEX").strip()
    done = up.ask("logs", job)
    assert (done.stdout, done.stderr) == ("0\n", "fairlead: task 0 of 3 tasks; -i shows another, --all shows all\n")
    done = up.ask("logs", job, "-i", "0")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_task_runs_where_it_was_submitted(up: Up) -> None:
    assert up.run("run", "--cpu", "0.1", "--", "pwd").strip() == str(up.folder.parent)


def test_a_killed_job_is_over_when_its_last_process_is_gone(up: Up, tmp_path: Path) -> None:
    leave = tmp_path / "leave"
    stop = f"until [ -e {leave} ]; do sleep 0.1; done; exit"
    slow_to_stop = f"trap '{stop}' TERM; echo ready; while :; do sleep 0.1; done"
    job = up.run("submit", "--name", "slow", "--cpu", "0.1", "--shell", "--", slow_to_stop).strip()
    up.until("logs", job, said="ready")
    assert up.run("kill", job) == f"{job}: killed\n"
    listed = [line.split() for line in up.run("ps").splitlines() if line.split()[0] == job]
    assert [(words[4], words[5:7]) for words in listed] == [("stopping", ["1", "stopping"])]
    assert f"in root.default: stopping, killed by {up.environment['LOGNAME']}" in up.run("show", job)
    assert not any(line.split()[0] == job for line in up.run("history").splitlines())
    assert up.run("wait", job, "--timeout", "0.1", code=124) == ""
    left = time.time()
    leave.touch()
    assert up.run("wait", job, code=1).startswith(f"{job}: killed, killed by")
    assert not any(line.split()[0] == job for line in up.run("ps").splitlines())
    up.until("history", said="slow")
    row = next(row for row in json.loads(up.run("history", "--json")) if row["id"] == job)
    assert row["state"] == "killed" and row["ended"] >= left


@contextmanager
def not_ignored(number: signal.Signals) -> Iterator[None]:
    """Let processes start with the default action of a signal, also if the tests were started with it ignored."""
    before = signal.signal(number, lambda *_: None)  # a handler is the default action after exec
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_told_to_terminate_kills_its_job(up: Up, number: signal.Signals) -> None:
    name = f"ended-by-{number}"
    command = [PROGRAM, "run", "--name", name, "--cpu", "0.1", "--", "sleep", "600"]
    with not_ignored(number):
        run = subprocess.Popen(command, env=up.environment, stderr=subprocess.PIPE, text=True)
    up.until("ps", "--state", "running", said=name)
    run.send_signal(number)
    _, said = run.communicate(timeout=SECONDS)
    assert run.returncode == 128 + number
    again = "press Ctrl-C again to leave without waiting"
    assert re.search(rf"fairlead: killing job (\d+); {again}\nfairlead: job \1 was killed\n", said)
    assert name not in up.run("ps")


def test_a_file_or_standard_input(up: Up, tmp_path: Path) -> None:
    job = "name: hello\nstages:\n- {command: [echo, hi], resources: {cpu: 0.1}}\n"
    (tmp_path / "job.yaml").write_text(job)
    assert up.run("submit", "--follow", "--file", str(tmp_path / "job.yaml")) == "hi\n"
    short = "command: [echo, short]\nresources: {cpu: 0.1}\nname: short\n"
    name = up.run("submit", "--file", "-", text=short).strip()
    assert up.run("wait", name) == f"{name}: succeeded\n"
    assert up.run("logs", name) == "short\n"
    (tmp_path / "bad.yaml").write_text("stages: [{comand: [x]}]")
    done = up.ask("submit", "--file", str(tmp_path / "bad.yaml"))
    assert done.returncode == 1 and "did you mean command?" in done.stderr
    assert up.ask("submit", "--file", str(tmp_path / "none.yaml")).returncode == 2
    assert up.ask("submit").returncode == 2


def test_after_and_labels(up: Up) -> None:
    first = up.run("submit", "--cpu", "0.1", "--", "sleep", "600").strip()
    second = up.run("submit", "--cpu", "0.1", "--after", first, "--label", "a=b", "--", "true").strip()
    assert f"waits for job {first}" in up.run("explain", second)
    assert [job["id"] for job in json.loads(up.run("ps", "--label", "a=b", "--json"))] == [second]
    assert up.ask("wait", "--timeout", "0.1", second).returncode == 124
    up.run("kill", first)
    assert up.ask("wait", first, second).returncode == 1


def test_where_tasks_ran_and_for_how_long(up: Up) -> None:
    job = up.run("submit", "--cpu", "0.1", "--", "sleep", "0.2").strip()
    up.run("wait", job)
    assert re.search(r"main\[0\] +succeeded +1 +box +(\S+ )?[0-9:]{8} +[1-9.0]+\w+ +0", up.run("show", job))


def test_a_gang_starts_together(up: Up) -> None:
    name = up.run("submit", "--gang", "5", "--", "sleep", "600").strip()
    assert "can never run" in up.run("explain", name)
    shown = json.loads(up.run("explain", "--json", name))
    assert shown["waiting"][0]["count"] == 5
    assert json.loads(up.run("kill", "--json", name)) == {name: ""}


def test_each_of_many_jobs_is_killed_and_reported(up: Up) -> None:
    first, second = (up.run("submit", "--cpu", "0.1", "--", "sleep", "600").strip() for _ in range(2))
    done = up.ask("kill", first, "none", second)
    assert (done.returncode, done.stdout) == (1, f"{first}: killed\n{second}: killed\n")
    assert done.stderr.startswith("fairlead: error: none: ") and done.stderr.count("\n") == 1
    assert "killed" in up.ask("wait", first).stdout and "killed" in up.ask("wait", second).stdout
    third = up.run("submit", "--cpu", "0.1", "--", "sleep", "600").strip()
    answer = json.loads(up.run("kill", "--json", "none", third, code=1))
    assert (answer["none"]["ok"], answer["none"]["status"], answer[third]) == (False, 404, "")


def test_secrets_of_others_and_unknown_things(up: Up) -> None:
    for arguments, code in (
        (("show", "none"), 1),
        (("logs", "none"), 1),
        (("kill", "none"), 1),
        (("node", "drain", "none"), 1),
        (("queue", "stop", "root.none"), 1),
        (("scale", "none", "-1"), 2),
        (("partition", "remove", "none", "--yes"), 1),
        (("token", "revoke", "none"), 1),
        (("nonsense",), 2),
    ):
        done = up.ask(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), arguments
        assert "Traceback" not in done.stderr
    said = json.loads(up.run("show", "none", "--json", code=1))
    assert (said["ok"], said["status"], said["code"]) == (False, 404, "missing")


def test_values_that_make_no_sense(up: Up) -> None:
    for role in (("user", "--user", "ann"), ("join",)):
        done = up.ask("token", "create", "--expires-in", "0", "--role", *role)
        assert (done.returncode, done.stdout) == (1, "")
        assert "expires_in: 0 would make a token that has expired already" in done.stderr
    for timeout in ("5x", "nan", "inf", "-3"):
        done = up.ask("wait", "--timeout", timeout, "none")
        assert done.returncode == 2 and "is not a time to wait; write 5m" in done.stderr
    assert "there is no job" in up.ask("wait", "--timeout", "1m30s", "none").stderr
    for text in ("", "\n"):
        done = up.ask("secret", "set", "pw", text=text)
        assert (done.returncode, done.stdout) == (1, "")
        assert "value: it is empty; give a value" in done.stderr
    assert up.run("secret", "list") == ""


def test_cluster_commands_print_json(up: Up) -> None:
    for arguments in (
        ("node", "list"),
        ("queue", "list"),
        ("lane", "list"),
        ("node", "held"),
        ("pool", "list"),
        ("partition", "list"),
        ("token", "list"),
        ("config", "get"),
        ("history",),
        ("ps",),
        ("top", "--once"),
    ):
        json.loads(up.run(*arguments, "--json"))
        assert up.run(*arguments)
    assert json.loads(up.run("node", "show", "--json", "box"))["resources"]["cpu"] == 4
    assert "has     cpu=4" in up.run("node", "show", "box")
    assert "1 nodes" in up.run("top", "--once")


def test_pools(up: Up, tmp_path: Path) -> None:
    """A pool whose provider lists nothing and brings nothing."""
    assert up.run("pool", "list").split() == list(HEAD)
    pool = {"node": {"cpu": 1, "memory": "1Gi"}, "max": 3, "provider": {"command": ["sh", "-c", CLOUD, "cloud"]}}
    (tmp_path / "part.json").write_text(json.dumps({"pool_pause": "1h", "pools": {"w": pool}}))
    up.run("partition", "set", "default", str(tmp_path / "part.json"))
    assert up.run("pool", "list").splitlines()[1].split() == ["w", "ready", *"00000030"]
    assert up.run("pool", "pause", "w") == "w is paused\n"
    assert "w: paused, provider command" in up.run("pool", "show", "w")
    assert json.loads(up.run("pool", "show", "w", "--json"))["paused"]
    assert json.loads(up.run("pool", "pause", "w", "--json")) == {"note": "no change"}
    assert up.run("pool", "resume", "w") == "w is resumed\n"
    assert up.run("pool", "scale", "w", "2") == "nodes ordered: 2\n"
    # Its provider fails, and says so.
    up.until("pool", "show", "w", said="problem: sh: create ended with code 3: no quota")
    assert up.ask("pool", "scale", "w", "4").returncode == 1
    assert up.ask("pool", "show", "v").returncode == 1
    assert up.ask("pool", "scale", "w", "-1").returncode == 2
    (tmp_path / "bad.yaml").write_text("pools: {w: {node: {cpu: 1}, provider: {cloud: {}}}}")
    refused = up.ask("partition", "set", "default", str(tmp_path / "bad.yaml"))
    assert refused.returncode == 1 and "names no provider" in refused.stderr
    (tmp_path / "whole.yaml").write_text("partitions: {default: {pools: {w: {node: {cpu: 1}, provider: {cloud: {}}}}}}")
    checked = up.ask("config", "check", str(tmp_path / "whole.yaml"))
    assert checked.returncode == 1 and "names no provider" in checked.stdout + checked.stderr
    up.run("partition", "set", "default")


def test_all_that_a_pool_shows() -> None:
    shown = _lines(msgspec.convert(example_of(wire.Pool), wire.Pool))
    assert shown[0] == "gpu: ready, provider command"
    assert "nodes: 4, 1 available, 3 pending, -2 idle, 2 ordered, 0 disabled" in shown
    assert any(each.startswith("order 3, ") and "for 17 worker (2 tasks): gpu-3-0, gpu-3-1" in each for each in shown)
    assert shown[-1] == "orphan: gpu-1-4 i-0abc"


def test_a_machine_that_cannot_be_destroyed_is_named(up: Up, tmp_path: Path) -> None:
    made, none, one = tmp_path / "made", '{"machines": []}', '{"machines": [{"name": "w-1-0"}]}'
    steps = f"create) touch {made};; list) test -e {made} && echo '{one}' || echo '{none}';; *) echo locked >&2; exit 3"
    provider = {"command": ["sh", "-c", f"case $1 in {steps};; esac", "cloud"]}
    pool = {"node": {"cpu": 1, "memory": "1Gi"}, "min": 1, "provider": provider}
    (tmp_path / "part.json").write_text(json.dumps({"ready_after": 0, "pools": {"w": pool}}))
    up.run("partition", "set", "cloudy", str(tmp_path / "part.json"))
    until(made.exists)
    done = up.ask("partition", "remove", "cloudy", "--yes")
    assert (done.returncode, done.stdout) == (0, "cloudy: partition removed\n")
    said = "cloudy: machine w-1-0 of pool w still runs; end it yourself: sh: destroy ended with code 3: locked\n"
    assert done.stderr.endswith(said), done.stderr


CLOUD = 'case $1 in list) echo "{\\"machines\\": []}";; *) echo no quota >&2; exit 3;; esac'
HEAD = ("POOL", "STATE", "NODES", "AVAILABLE", "PENDING", "IDLE", "ORDERED", "DISABLED", "MAX", "ORPHANS")


def test_configuration(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "fairlead.yaml"
    file.write_text("partitions: {default: {queues: {root: {default: {share: 70}, ml: {share: 30}}}}}")
    assert "default.queues.root.ml" in up.run("config", "diff", str(file))
    assert "root.ml" not in up.run("config", "get")
    assert "default.queues.root.default.share: 100 -> 70" in up.run("config", "apply", str(file))
    assert up.run("config", "diff", str(file)) == "no difference\n"
    assert "ml" in up.run("queue", "list")
    up.run("queue", "stop", "root.ml")
    assert up.ask("submit", "-q", "root.ml", "--", "true").returncode == 1
    up.run("queue", "start", "root.ml")
    assert up.run("partition", "set", "night").startswith("night: partition added")
    assert "night" in up.run("partition", "list")
    up.run("partition", "remove", "night", "--yes")


def test_a_configuration_without_a_partition_that_has_jobs_asks_first(up: Up, tmp_path: Path) -> None:
    up.run("partition", "set", "night")
    job = up.run("submit", "--partition", "night", "--", "true").strip()
    file = tmp_path / "fairlead.yaml"
    file.write_text("partitions: {default: {}}")
    lost = "night: 1 job will be killed, and 0 nodes removed"
    assert lost in up.run("config", "diff", str(file))
    refused = up.ask("config", "apply", str(file))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{lost}. Apply it? There is no terminal to ask on; add --yes" in refused.stderr
    for answer, code in (("n\n", 1), ("y\n", 0)):
        with on_terminal(up, "config", "apply", str(file)) as (process, terminal):
            os.write(terminal, answer.encode())
            assert process.wait(SECONDS) == code
        assert ("night" in up.run("partition", "list")) == (code == 1)
    assert up.ask("show", "--partition", "night", job).returncode == 1
    up.run("partition", "set", "night")
    up.run("submit", "--partition", "night", "--", "true")
    assert "night: partition removed" in up.run("config", "apply", str(file), "--yes")
    up.run("partition", "set", "night")
    assert "night: partition removed" in up.run("config", "apply", str(file))  # nothing is lost
    assert "add --yes" in up.ask("partition", "remove", "default").stderr


@contextmanager
def on_terminal(up: Up, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a command whose input is a terminal."""
    ours, its = pty.openpty()
    try:
        with subprocess.Popen(
            [PROGRAM, *arguments], env=up.environment, stdin=its, stdout=subprocess.DEVNULL, stderr=its, text=True
        ) as process:
            yield process, ours
    finally:
        os.close(its)
        os.close(ours)


def test_shares(up: Up) -> None:
    assert "ENTITLED" in up.run("share", "list")
    assert "default.queues.root.default.share: " in up.run("share", "set", "root.default", "55")
    assert "rebalance_threshold" in up.run("share", "rebalance", "--threshold", "30", "--after", "2min")
    assert "requestors" in up.run("share", "match", "^ci-=root.default", "^ann$=root.default")
    name = up.run("submit", "--cpu", "0.1", "--", "true").strip()
    assert "because its user matches '^ann$'" in up.run("show", name)
    assert json.loads(up.run("show", "--json", name))["job"]["matched"] == "^ann$"
    said = up.run("share", "list")
    assert "go to root.default" in said and "has waited for 120 s while queues are 30% apart" in said
    assert json.loads(up.run("share", "list", "--json"))["rebalance_after"] == 120
    assert up.ask("share", "match", "nothing").returncode == 2


def test_shares_tell_when_loans_return(tmp_path: Path) -> None:
    config = tmp_path / "lent.yaml"
    config.write_text("partitions: {default: {queues: {root: {default: {share: 10}, own: {share: 90}}}}}")
    up = Up(tmp_path / "data", "--name", "box", "--resource", "cpu=4", "--resource", "memory=8Gi")
    try:
        up.run("config", "apply", str(config))
        limited = up.run("submit", "--time-limit", "1h", "--", "sleep", "600").strip()
        up.until("ps", said="1 running")
        assert re.search(r"root\.default +10 .* (in 1h|in 60min|in 59min)", up.run("share", "list"))
        assert "its newest tasks may be stopped when other queues need their shares" in up.run("explain", limited)
        up.run("submit", "--", "sleep", "600")
        up.until("share", "list", said="the rest not known")
        up.run("kill", limited)
        up.until("share", "list", said=" not known")
        up.run("down", "--kill")
    finally:
        up.close()


def test_a_secret_reaches_the_task_and_nothing_else(up: Up) -> None:
    up.run("secret", "set", "db", text="hidden-value\n")
    assert up.run("secret", "list") == "db\n"
    command = ("--cpu", "0.1", "--secret", "PASSWORD=db", "--shell", "--", "echo ${#PASSWORD}")
    assert up.run("run", *command) == "12\n"
    token = up.run("token", "create", "--role", "user", "--user", "bob").strip()
    join = up.run("token", "create", "--role", "join", "--node", "elsewhere").strip().partition(".")[0]
    assert up.ask("run", "--secret", "PASSWORD=none", "--", "true").returncode == 1
    for file in up.folder.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [each for each in ("hidden-value", token, join) if each.encode() in content], file
    up.run("secret", "remove", "db")
    assert up.ask("run", *command).returncode == 1


def test_tokens(up: Up) -> None:
    secret = up.run("token", "create", "--role", "user", "--user", "carla").strip()
    before = dict(up.environment)
    up.environment.update(FAIRLEAD_URL=up.url, FAIRLEAD_TOKEN=secret)
    try:
        name = up.run("submit", "--cpu", "0.1", "--", "true").strip()
        assert up.ask("node", "drain", "box").returncode == 1
        up.environment["FAIRLEAD_TOKEN"] = "fl_wrong"
        assert "token" in up.ask("ps").stderr
        up.environment["FAIRLEAD_URL"] = "http://127.0.0.1:1"
    finally:
        up.environment = before
    assert json.loads(up.run("show", "--json", name))["job"]["user"] == "carla"
    (known,) = (each for each in json.loads(up.run("token", "list", "--json")) if each["user"] == "carla")
    up.run("token", "revoke", known["id"])


def test_a_machine_joins_and_is_revoked(up: Up, tmp_path: Path) -> None:
    token, log, directory = tmp_path / "token", tmp_path / "log", tmp_path / "agent"
    token.write_text(up.run("token", "create", "--role", "join", "--node", "extra"))
    command = [
        PROGRAM,
        "agent",
        f"--join={up.url}",
        "--name=extra",
        f"--for={getpass.getuser()}",
        *["--user=root"] * (os.geteuid() == 0),
        f"--directory={directory}",
        f"--token-file={token}",
    ]
    with log.open("w") as out:
        agent = subprocess.Popen([*command, "--resource=cpu=0.1"], env=up.environment, stderr=out)
    try:
        up.until("node", "list", said="extra")
        assert "extra" not in up.run("token", "list")  # it is used up
        up.run("node", "revoke", "extra")
        until(lambda: "the credential of node extra was revoked" in log.read_text())
        assert agent.wait(SECONDS) == FINAL
        assert re.search("disconnected, .*revoked", up.run("node", "list"))
        assert json.loads(up.run("node", "show", "extra", "--json"))["credential"] == "revoked"
        assert up.ask("node", "revoke", "none").returncode == 1
    finally:
        agent.terminate()
        agent.wait(SECONDS)
        end_all(directory, 0.0)
        up.run("node", "remove", "extra")


def test_a_second_one_is_refused(up: Up) -> None:
    done = up.ask("up", "--port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"another server runs on {up.folder}" in done.stderr


@pytest.mark.parametrize("command", ["up", "server"])
def test_a_taken_port_is_one_line_with_the_remedy(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = refused(tmp_path, command, "--port", str(port))
    text = f"port {port} of 127.0.0.1 is in use by another program; choose another one with --port, such as {port + 1}"
    assert (code, error) == (1, f"fairlead: error: {text}")


def test_beyond_this_machine_tls_is_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "server", "--data", str(tmp_path / "d"), "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1 and "TLS is needed" in done.stderr


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", f"https://{os.uname().nodename}:7070"),
        ("::", f"https://{os.uname().nodename}:7070"),
        ("::1", "https://[::1]:7070"),
        ("head", "https://head:7070"),
    ],
)
def test_a_server_that_listens_everywhere_is_named_by_its_machine(host: str, url: str) -> None:
    assert _url("https", host, 7070) == url


def test_commands_that_are_printed_work_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fairlead").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["./fairlead", "up"])
    assert _program() == str(tmp_path / "fairlead")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _program() == "fairlead"


def refused(tmp_path: Path, *arguments: str | Path) -> tuple[int, str]:
    """Return the exit code and the error output of a server that cannot start."""
    try:
        done = subprocess.run(
            [PROGRAM, arguments[0], "--data", tmp_path / "d", *("--port", "0"), *arguments[1:]],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(late.stdout) from None
    assert done.stdout == "" and "Traceback" not in done.stderr, done
    return done.returncode, " ".join(done.stderr.replace("│", " ").split())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates and their keys; that of `locked` has a password."""
    folder = tmp_path_factory.mktemp("tls")
    for name, lock in (("a", "-nodes"), ("b", "-nodes"), ("locked", "-passout pass:abcd")):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=localhost"),
                *lock.split(),
                *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")),
            ],
            check=True,
            capture_output=True,
        )
    (folder / "text").write_text("hello")
    return folder


@pytest.mark.parametrize(
    "certificate, key, said",
    [
        ("none", "a.key", "--certificate {}/none: No such file or directory; name a file that the server can read"),
        ("a.pem", "none", "--key {}/none: No such file or directory; name a file"),
        ("text", "a.key", "--certificate {}/text: there is no certificate in it; name a PEM file"),
        ("a.pem", "a.pem", "--key {}/a.pem: there is no private key in it; name a PEM file"),
        ("a.pem", "b.key", "--certificate {0}/a.pem and --key {0}/b.key: "),
        ("locked.pem", "locked.key", "name a certificate and its own key, which has no password"),
    ],
)
def test_tls_files_that_cannot_be_used(tmp_path: Path, tls: Path, certificate: str, key: str, said: str) -> None:
    code, error = refused(tmp_path, "server", "--certificate", tls / certificate, "--key", tls / key)
    assert code == 1 and said.format(tls) in error
    assert not (tmp_path / "d").exists()


def test_options_that_no_server_starts_with(tmp_path: Path, tls: Path) -> None:
    for given, missing in (("--certificate", "--key"), ("--key", "--certificate")):
        code, error = refused(tmp_path, "server", given, tls / "a.pem")
        assert (code, error) == (2, f"fairlead: error: {given} is given without {missing}; TLS needs both")
    for command in ("up", "server"):
        code, error = refused(tmp_path, command, "--port", "99999")
        assert code == 2 and "99999 is not in the range 0<=x<=65535" in error
        code, error = refused(tmp_path, command, "--log-size", "1x")
        assert code == 1 and error.startswith("fairlead: error: --log-size: ")
        (tmp_path / "file").touch()
        code, error = refused(tmp_path, command, "--secrets-key", tmp_path / "file" / "x")
        assert code == 1 and f"{tmp_path}/file/x" in error


def test_up_is_up_when_its_agent_has_joined(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        assert "box" in up.run("node", "list")
        done = up.ask("submit", "--cpu", "1", "--", "true")
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        up.close()


def test_a_job_that_comes_before_any_node_waits_for_one(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", agent=False)
    try:
        done = up.ask("submit", "--", "true")
        warning = f"fairlead: warning: job {done.stdout.strip()}: no node has joined yet; it waits until one does\n"
        assert (done.returncode, done.stderr) == (0, warning)
        assert "never" not in up.run("explain", done.stdout.strip()) + up.run("ps")
    finally:
        up.close()


def test_no_server_answers(tmp_path: Path) -> None:
    environment = {"FAIRLEAD_DATA": str(tmp_path / "none"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    for command, code in (("ps", 3), ("down", 1)):
        done = subprocess.run(
            [PROGRAM, command], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert (done.returncode, "fairlead up" in done.stderr) == (code, True)


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_tasks_outlive_the_server(tmp_path: Path, how: str) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        flag = tmp_path / "flag"
        name = up.run("submit", "--shell", "--", f"while [ ! -e {flag} ]; do sleep 0.05; done; echo went on").strip()
        up.until("show", name, said="running")
        up.until("node", "list", said="box   up           1")
        if how == "interrupted":
            assert up.interrupt() == 0
        else:
            up.process.kill()
            up.process.wait(SECONDS)
        assert up.ask("ps").returncode == 3
        flag.touch()
        up.start()
        assert up.run("wait", name) == f"{name}: succeeded\n"
        assert up.run("logs", name) == "went on\n"
        assert '"attempt":1' in up.run("show", "--json", name)
        # `down --kill` ends them.
        name = up.run("submit", "--", "sleep", "600").strip()
        up.until("show", name, said="running")
        assert "jobs killed: 1" in up.run("down", "--kill")
        assert up.process.wait(SECONDS) == 0
    finally:
        up.close()


def test_down_ends_what_an_earlier_server_left(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        name = up.run("submit", "--cpu", "0.1", "--array", "2", "--", "sleep", "600").strip()
        up.until("show", name, said="running")
        up.until("node", "list", said="box   up           2")
        assert up.interrupt() == 0
        assert "leftover tasks ended: 2" in up.run("down", "--kill")
        assert json.loads(up.run("down", "--kill", "--json"))["ended"] == 0
        up.start()
        up.until("show", "--json", name, said='"attempt":2')  # the next server learns of it, and goes on
        up.run("down", "--kill")
    finally:
        up.close()


def test_a_log_as_documents(up: Up) -> None:
    name = up.run("submit", "--cpu", "0.1", "--", "echo", "grüß dich").strip()
    up.run("wait", name)
    pieces = [json.loads(line) for line in up.run("logs", "--json", name).splitlines()]
    assert {piece["stream"] for piece in pieces} == {"out"}
    assert "".join(piece["text"] for piece in pieces) == "grüß dich\n"


PLANTED = "import pathlib; pathlib.Path({flag!r}).touch()\n"
MODULES = ("uvloop", "resource", "typing", "json", "fairlead", "msgspec")


def _plant(folder: Path, flag: Path) -> Path:
    """A folder with modules of well-known names, which must not be imported."""
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text(PLANTED.format(flag=str(flag)))
    return folder


def test_no_process_imports_modules_from_the_current_folder_or_a_task_s(tmp_path: Path) -> None:
    flag = tmp_path / "imported"
    here = _plant(tmp_path / "here", flag)
    up = Up(tmp_path / "data", here=here)
    try:
        up.until("node", "list", said="box")
        # Two tasks for each spawner: the first one that ends has it wait in the folder of a task.
        up.run("run", "--cpu", "0.1", "--array", "4", "--directory", str(here), "--", "true")
        assert not flag.exists()
    finally:
        up.close()


def test_a_second_user_gets_a_warning_that_no_task_of_that_user_runs_here(up: Up) -> None:
    done = up.ask("token", "create", "--role", "user", "--user", "dan")
    assert "no task of dan runs on box" in done.stderr and "agents as root" in done.stderr
    own = up.ask("token", "create", "--role", "user", "--user", "ann")
    assert "fairlead" not in own.stderr or "no task" not in own.stderr
    assert "users   ann" in up.run("node", "show", "box")
    assert "users=one" in up.run("node", "show", "box")


def test_run_says_why_its_job_waits(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        process = subprocess.Popen(
            [PROGRAM, "run", "--cpu", "64", "--", "true"], env=up.environment, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        warning = process.stderr.readline()
        assert "warning: job 1: it can never run as the cluster is now: the largest node, box," in warning
        assert "waits: can never run: the largest node, box," in process.stderr.readline()
        process.terminate()
        process.wait(SECONDS)
    finally:
        up.close()


@pytest.mark.parametrize(("how", "said"), [("Ctrl-C", "stopped; running tasks continue"), ("down --kill", "stopped")])
def test_up_says_in_its_terminal_what_happens(tmp_path: Path, how: str, said: str) -> None:
    environment = os.environ | {"FAIRLEAD_DATA": str(tmp_path / "data")}
    stop = [PROGRAM, "down", "--kill"]
    with subprocess.Popen(
        [PROGRAM, "up", "--port", "0", "--name", "box", "--resource", "cpu=1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            while "Ctrl-C" not in process.stdout.readline():
                assert process.poll() is None
            [agent] = psutil.Process(process.pid).children()
            agent.kill()
            assert "the agent ended with code -9 and is restarted" in process.stdout.readline()
            if how == "Ctrl-C":
                process.send_signal(signal.SIGINT)
            else:
                subprocess.run(stop, env=environment, check=True, capture_output=True, timeout=SECONDS)
            assert process.stdout.read().splitlines() == [said]
            assert process.wait(SECONDS) == 0
        finally:
            subprocess.run(stop, env=environment, check=False, capture_output=True, timeout=SECONDS)


def test_a_test_ends_only_the_processes_that_it_started(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    with subprocess.Popen(["sh", "-c", "sleep 600; true", str(tmp_path / "data")]) as other:
        try:
            up.until("node", "list", said="box")
            up.close()
            assert other.poll() is None
        finally:
            for child in psutil.Process(other.pid).children():
                child.kill()
            other.kill()


def test_down_kill_leaves_no_spawner_behind(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        up.run("run", "--cpu", "0.1", "--", "true")
        up.run("down", "--kill")
        for lock in (tmp_path / "data" / "agent").glob("spawner-*/lock"):
            with lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        up.close()
