"""`fairlead manager`, `hold`, `watch` and `lane` against a real server."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from fairlead.client import Client
from tests.live import PROGRAM, SECONDS, Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("managers") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def test_managers_are_listed_and_removed(up: Up) -> None:
    with Client(up.url, up.token) as client:
        client.register_manager("k8s")
        update = {"nodes": [{"name": "k1", "resources": {"cpu": 4}}], "jobs": [{"job": "app"}]}
        client.update_manager("k8s", update)
        [line] = up.run("manager", "list").splitlines()[1:]
        name, _, *rest = line.split()
        assert (name, rest) == ("k8s", ["yes", "1", "1"])
        refused = up.ask("manager", "remove", "k9s", "--yes")
        assert refused.returncode == 1 and 'there is no resource manager "k9s"' in refused.stderr
        assert up.run("manager", "remove", "k8s", "--yes") == "k8s is removed\n"
        assert json.loads(up.run("manager", "list", "--json")) == []
        assert client.job("app").state == "killed" and [node.name for node in client.nodes()] == ["box"]


def test_watch_ends_with_its_job(up: Up) -> None:
    job = up.run("submit", "--cpu", "0.1", "--", "sleep", "600").strip()
    watching = subprocess.Popen(
        [PROGRAM, "watch", job], env=up.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        up.until("ps", said="running")
        up.run("kill", job)
        out, err = watching.communicate(timeout=SECONDS)
    finally:
        watching.kill()
    assert watching.returncode == 0, err
    if out:  # the job may be over before the stream begins
        assert f"state job {job} killed: killed by ann" in out.splitlines()[-1]
    assert up.run("watch", job) == ""


def test_promised_nodes_are_listed(up: Up) -> None:
    end = up.folder.parent / "end"
    program = f"trap '' TERM; until test -e {end}; do sleep 0.1; done"
    up.run("submit", "--cpu", "4", "--shell", "--", program)
    up.until("ps", said="running")
    high = up.run("submit", "--cpu", "4", "--priority", "1", "--", "true").strip()
    try:
        lines = up.until("node", "held", said="promised").splitlines()
    finally:
        end.touch()
    assert lines[1].split()[:5] == [high, "main", "promised", "1", "1"]
    up.run("wait", high)
