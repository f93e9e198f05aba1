"""A stop has a reason and a deadline: the signal, the file and the variable that a task gets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Client, Problem
from tests.live import Up
from tests.until import until

WATCH = """
trap 'echo usr1; cat $FAIRLEAD_STOP_FILE; echo saved $FAIRLEAD_ATTEMPT >> $FAIRLEAD_CHECKPOINT/state' USR1
trap 'echo term; exit 0' TERM
echo begun after "$FAIRLEAD_LAST_END"
cat $FAIRLEAD_CHECKPOINT/state 2>/dev/null
while :; do sleep 0.02; done
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("stops")
    grace = {"partitions": {"default": {"preempt_grace": "1s", "queues": {"root": {"default": {"max_grace": "1min"}}}}}}
    (folder / "config.yaml").write_text(json.dumps(grace))
    options = ("--name", "box", "--resource", "cpu=4", "--config", str(folder / "config.yaml"))
    site = Up(folder / "data", *options)
    site.until("node", "list", said="box")
    yield site
    site.close()


def reason_in(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    return found


def test_a_task_learns_why_it_stops_and_why_its_last_attempt_did(up: Up, tmp_path: Path) -> None:
    script = WATCH.replace("$FAIRLEAD_CHECKPOINT", str(tmp_path))
    job = up.run("submit", "--cpu", "0.1", "--signal", "USR1", "--shell", "--", script).strip()
    up.until("logs", job, said="begun after \n")
    asked = time.time()
    up.run("requeue", job)
    again = up.until("logs", job, said="begun after requeued by ann\nsaved 1\n")
    assert "usr1" not in again
    first = up.run("logs", job, "--attempt", "1")
    assert reason_in(first)["reason"] == "requeued"
    assert asked < float(str(reason_in(first)["until"])) < time.time() + 60
    assert first.index("usr1") < first.index("term")
    up.run("kill", job)
    up.run("wait", job, code=1)
    assert reason_in(up.run("logs", job))["reason"] == "killed"


def test_a_signal_comes_before_the_time_limit(up: Up, tmp_path: Path) -> None:
    script = f"trap 'cat $FAIRLEAD_STOP_FILE; touch {tmp_path}/saved; exit 3' USR1; while :; do sleep 0.02; done"
    began = time.time()
    options = ("--cpu", "0.1", "--time-limit", "10min", "--signal", "sigusr1@599s")
    job = up.run("submit", *options, "--shell", "--", script).strip()
    until((tmp_path / "saved").exists)
    up.run("wait", job, code=1)
    told = reason_in(up.run("logs", job))
    assert told["reason"] == "time limit"
    assert began + 590 < float(str(told["until"])) < time.time() + 600
    for wrong, said in (("USR3", "is not a signal"), ("USR1@60", "60"), ("USR1@60s", "a time before time_limit")):
        refused = up.ask("submit", "--signal", wrong, "--", "true")
        assert refused.returncode and said in refused.stderr, refused.stderr
    refused = up.ask("submit", "--time-limit", "30s", "--signal", "USR1@60s", "--", "true")
    assert "that is not longer" in refused.stderr


def test_a_stage_names_its_grace_within_the_bound_of_the_queue(up: Up, tmp_path: Path) -> None:
    script = f"trap 'sleep 2.5; touch {tmp_path}/saved; exit 0' TERM; echo on; while :; do sleep 0.02; done"
    for grace, saves in (((), False), (("--grace", "50s"), True)):
        job = up.run("submit", "--cpu", "0.1", *grace, "--shell", "--", script).strip()
        up.until("logs", job, said="on\n")
        up.run("kill", job)
        up.run("wait", job, code=1)
        assert (tmp_path / "saved").exists() == saves
    token = up.run("token", "create", "--user", "bob", "--role", "user").split()[-1]
    with (
        Client(up.url, token) as bob,
        pytest.raises(Problem, match=r"2min is above 60s, the max_grace of root\.default"),
    ):
        bob.submit(["true"], grace="2min")
