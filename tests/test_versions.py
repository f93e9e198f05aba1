"""The version before works together with the present one, in any order of upgrades: servers, agents and clients."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

import fairlead
from tests.servers import Agent, Server, fairlead_program
from tests.until import until

ROOT = Path(__file__).parent.parent
VERSION, COMMIT = (ROOT / "VERSIONS").read_text().split()[-2:]
MISSING = f"tests beside version {VERSION} left out: this clone does not have its commit {COMMIT[:12]}"


@cache
def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-c", "safe.directory=*", *arguments], cwd=ROOT, capture_output=True, check=False)


def is_there() -> bool:
    return shutil.which("git") is not None and git("cat-file", "-e", f"{COMMIT}^{{commit}}").returncode == 0


needs_history = pytest.mark.skipif(not is_there(), reason=MISSING)


def extracted(folder: Path) -> Path | None:
    """Write the `src` of the version before into a folder, and return it; None if this clone does not have it."""
    if not is_there():
        return None
    with tarfile.open(fileobj=io.BytesIO(git("archive", COMMIT, "src").stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = extracted(tmp_path_factory.mktemp("before"))
    assert found is not None
    return found


@needs_history
@pytest.mark.parametrize("old", ["agent", "client", "server", "agent client", "server client", "server agent"])
def test_any_two_of_server_agent_and_client_may_be_of_the_version_before(
    tmp_path: Path, before: Path, old: str
) -> None:
    trees = {part: before if part in old.split() else None for part in ("server", "agent", "client")}
    server = Server(tmp_path, "server", "", tree=trees["server"]).start()
    try:
        agent = Agent(tmp_path, "n0", server.url, server.token, tree=trees["agent"])
        try:
            told = fairlead_program(server.url, server.token, "run", "--", "echo", "hello", tree=trees["client"])
            assert told.splitlines() == ["hello"]
            run = ("submit", "--gang", "2", "--", "sh", "-c", "echo member $FAIRLEAD_INDEX")
            job = fairlead_program(server.url, server.token, *run, tree=trees["client"]).strip()
            waited = fairlead_program(server.url, server.token, "wait", job, tree=trees["client"])
            assert "succeeded" in waited
        finally:
            agent.stop()
    finally:
        server.kill()


@needs_history
@pytest.mark.parametrize("first", ["server", "agent"])
def test_a_task_goes_on_while_everything_around_it_is_upgraded(tmp_path: Path, before: Path, first: str) -> None:
    server = Server(tmp_path, "server", "", tree=before).start()
    agent = Agent(tmp_path, "n0", server.url, server.token, tree=before)
    file = tmp_path / "go"
    try:
        script = f"while [ ! -e {file} ]; do sleep 0.1; done; echo done"
        job = fairlead_program(server.url, server.token, "submit", "--", "sh", "-c", script, tree=before).strip()
        with server.client() as client:
            until(lambda: [task.state for task in client.tasks(job)] == ["running"])

        def upgrade(part: Server | Agent) -> None:
            if isinstance(part, Server):
                part.kill()
            else:
                part.process.kill()
                part.process.wait()
            part.tree = None
            part.start()

        for part in (server, agent) if first == "server" else (agent, server):
            upgrade(part)
            until(server.leads)
            with server.client() as client:
                until(lambda client=client: [node.state for node in client.nodes()] == ["up"])
                [task] = until(lambda client=client: list(client.tasks(job)))
                assert (task.state, task.attempt) == ("running", 1)
        file.touch()
        with fairlead.Client(server.url, server.token) as client:
            until(lambda: client.job(job).state == "succeeded")
    finally:
        server.kill()
        agent.stop()


def test_the_wheel_has_the_version_after(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "FAIRLEAD_PAGE": "0"}, capture_output=True, check=True)
    present = fairlead.__version__
    assert present != VERSION and f"fairlead-{present}.tar.gz" in {path.name for path in tmp_path.iterdir()}
    with zipfile.ZipFile(tmp_path / f"fairlead-{present}-py3-none-any.whl") as wheel:
        assert "fairlead/__init__.py" in wheel.namelist()
