"""The log of a real server: decisions appear in it, and `--log-level` sets how much it says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.agent.spawner.files import LARGE
from tests.live import PROGRAM, Up
from tests.until import until


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    server = Up(tmp_path / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def logged(up: Up) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (up.folder / "server.log").read_text().splitlines()]


def test_decisions_are_logged_with_their_users_and_the_level_can_be_set(up: Up) -> None:
    agent_log = up.folder / "agent.log"
    assert " info joined " in agent_log.read_text()
    up.run("run", "--cpu", "0.1", "--", "true")
    job = up.run("submit", "--cpu", "0.1", "--", "sleep", "600").strip()
    up.until("ps", said="running")
    up.run("scale", job, "2")
    up.run("kill", job)
    up.run("kill", "nothing", code=1)
    up.run("share", "set", "root.default", "60")
    by_event: dict[str, dict[str, Any]] = {line["event"]: line for line in logged(up)}
    assert {"writer began", "partition ready", "node added", "job submitted", "tasks placed"} < by_event.keys()
    for event in ("stage scaled", "job over", "tasks stopped", "configuration applied"):
        assert by_event[event]["by"] == "ann", event
    assert by_event["job submitted"]["user"] == "ann"

    up.interrupt()
    with agent_log.open("ab") as log:
        log.truncate(LARGE)
    before = len(logged(up))
    up.environment["FAIRLEAD_LOG_LEVEL"] = "warning"
    up.start()
    up.until("node", "list", said="up")
    up.run("run", "--cpu", "0.1", "--", "true")
    assert [line for line in logged(up)[before:] if line["level"] == "info"] == []
    until(lambda: agent_log.stat().st_size < LARGE)
    assert "info joined" not in agent_log.read_text()
    assert agent_log.with_name("agent.log.1").stat().st_size == LARGE


def test_an_unknown_level_is_refused() -> None:
    done = subprocess.run([PROGRAM, "server", "--log-level", "loud"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'loud' is not" in " ".join(done.stderr.replace("│", " ").split())
