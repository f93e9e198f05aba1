"""A real server on a disk that is full for a while: it reports that, loses no acknowledged work, and recovers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.http.serving import JOB
from tests.live import PROGRAM, SECONDS
from tests.postgres import MISSING, Postgres, programs
from tests.until import until


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small disk of its own, of 64 MiB or as many as the test asks for."""
    with small_disk(tmp_path / "disk", getattr(request, "param", 64), 0o700) as found:
        yield found


@contextmanager
def small_disk(found: Path, size: int, mode: int) -> Iterator[Path]:
    found.mkdir(mode=mode)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode={mode:o}", "tmpfs", str(found)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        yield found
    finally:
        subprocess.run(["umount", "--lazy", str(found)], check=True)


class Server:
    """`fairlead server` on a data directory."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, "server", "--data", str(folder), "--port", "0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]
        headers = {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=SECONDS)

    def close(self) -> int:
        self.client.close()
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(SECONDS)


def fill(file: Path) -> None:
    """Take all room of the disk that the file is on."""
    with file.open("ab", buffering=0) as out:
        for size in (1 << 20, 4096, 1):
            try:
                while out.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


HUGE = {"stages": [{"command": ["true", *["x" * 100_000] * 19], "resources": {"cpu": 1}}]}
"""A job of 1.9 MB."""


def clients_of(server: Server, *users: str) -> list[httpx.Client]:
    clients = []
    for user in users:
        created = server.client.post("/api/v1/tokens", json={"role": "user", "user": user}).json()
        headers = {"Authorization": f"Bearer {created['secret']}"}
        clients.append(httpx.Client(base_url=server.url, headers=headers, timeout=SECONDS))
    return clients


def test_one_user_does_not_fill_the_disk(disk: Path) -> None:
    """Killing jobs makes no room for more of them, and other users go on."""
    server = Server(disk / "data")
    try:
        clients = ann, bob = clients_of(server, "ann", "bob")
        until(lambda: server.client.get("/readyz").status_code == 200)
        taken = 0
        while (answer := ann.post("/api/v1/jobs", json=HUGE)).status_code == 201:
            assert ann.post(f"/api/v1/jobs/{answer.json()['job']}/kill").status_code == 200
            taken += 1
            assert taken < 20
        assert taken == 4  # an eighth of the disk
        assert answer.status_code == 409 and "keep_ended" in answer.json()["detail"]
        assert bob.post("/api/v1/jobs", json=HUGE).status_code == 201
        for client in clients:
            client.close()
    finally:
        server.close()


def test_a_disk_that_is_nearly_full_gets_room_again(disk: Path) -> None:
    """Old records are dropped, so that more can be written than the disk has space for."""
    config = disk / "config.json"
    config.write_text(json.dumps({"partitions": {"default": {"keep_ended": "100ms", "keep_keys": "100ms"}}}))
    server = Server(disk / "data", "--config", str(config), "--history-size", "4Mi")
    try:
        until(lambda: server.client.get("/readyz").status_code == 200)
        clients = clients_of(server, *"abcdefghij")
        for at in range(60):  # one user alone may not write as much in this time
            client = clients[at % len(clients)]
            answer = client.post("/api/v1/jobs", json=HUGE)
            assert answer.status_code == 201, answer.text
            assert client.post(f"/api/v1/jobs/{answer.json()['job']}/kill").status_code == 200
            time.sleep(0.2)
        for client in clients:
            client.close()
        assert server.client.get("/readyz").status_code == 200
    finally:
        server.close()


@pytest.mark.parametrize("disk", [192], indirect=True)
def test_a_server_on_a_full_disk_makes_room_and_goes_on(disk: Path) -> None:
    """The disk stays full of other files. Space that was set aside lets the server drop its old records."""
    config = disk / "config.json"
    config.write_text(json.dumps({"partitions": {"default": {"keep_ended": "100ms", "keep_keys": "100ms"}}}))
    server = Server(disk / "data", "--config", str(config))
    try:
        until(lambda: server.client.get("/readyz").status_code == 200)
        kept = server.client.post("/api/v1/jobs", json=JOB).json()["job"]
        for _ in range(2):
            job = server.client.post("/api/v1/jobs", json=HUGE).json()["job"]
            assert server.client.post(f"/api/v1/jobs/{job}/kill").status_code == 200
        fill(disk / "filler")
        until(lambda: server.client.post("/api/v1/jobs", json=HUGE).status_code == 503)
        until(lambda: server.client.get("/readyz").status_code == 200)
        for _ in range(5):
            assert server.client.post("/api/v1/jobs", json=JOB).status_code == 201
        assert server.client.get(f"/api/v1/jobs/{kept}").json()["state"] == "pending"
        assert "disk full" in (disk / "data" / "server.log").read_text()
        assert server.close() == 0
        (disk / "filler").unlink()
        server = Server(disk / "data")
        until(lambda: server.client.get("/readyz").status_code == 200)
        assert (disk / "data" / ".reserve").exists()  # for the next time
    finally:
        server.close()


@pytest.fixture
def open_disk() -> Iterator[Path]:
    """A small disk that every user can reach, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fairlead-pg-") as name:
        Path(name).chmod(0o755)
        with small_disk(Path(name) / "disk", 192, 0o755) as disk:
            yield disk


@pytest.mark.parametrize("full", ["data", pytest.param("log", marks=pytest.mark.long)])
@pytest.mark.skipif(programs() is None, reason=MISSING)
def test_a_full_disk_of_postgresql_is_reported_and_passes(tmp_path: Path, open_disk: Path, full: str) -> None:
    """With a full disk PostgreSQL refuses writes. It ends if there is no room for its own log, and is started again."""
    disk = open_disk
    postgres = Postgres(
        (disk if full == "data" else disk.parent) / "pg", durable=True, options=("-c", "min_wal_size=32MB")
    )
    if full == "log":
        log = postgres.data / "pg_wal"
        shutil.copytree(log, disk / "log")
        shutil.rmtree(log)
        log.symlink_to(disk / "log")
        owner = postgres.data.stat()
        for path in ((disk / "log"), *(disk / "log").rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
    postgres.start()
    server = Server(tmp_path / "data", "--database", postgres.create(), "--secrets-key", str(tmp_path / "key"))
    taken = []

    def submit() -> int:
        answer = server.client.post("/api/v1/jobs", json=HUGE)
        if answer.status_code == 201:
            taken.append(answer.json()["job"])
        return answer.status_code

    try:
        until(lambda: submit() == 201)
        fill(disk / "filler")
        until(lambda: submit() == 503)
        if full == "data":
            until(lambda: "make room on the disk of the database" in (tmp_path / "data" / "server.log").read_text())
            until(lambda: server.client.get(f"/api/v1/jobs/{taken[-1]}").json().get("state") == "pending")
        else:
            assert postgres.process is not None
            postgres.process.wait(60)
        (disk / "filler").unlink()
        if full == "log":
            postgres.start()
        until(lambda: submit() == 201)
        for job in taken:
            assert server.client.get(f"/api/v1/jobs/{job}").status_code == 200
    finally:
        server.close()
        postgres.stop()


def test_a_full_disk_is_reported_and_passes(disk: Path) -> None:
    server = Server(disk / "data")
    try:
        taken = []

        def submit(**more: object) -> int:
            answer = server.client.post("/api/v1/jobs", json={**JOB, **more})
            if answer.status_code == 201:
                taken.append(answer.json()["job"])
            return answer.status_code

        assert submit() == 201
        until(lambda: server.client.get("/readyz").status_code == 200)
        for _ in range(2):  # twice, because recovery must work more than once
            fill(disk / "filler")
            # The log of the journal has some room of its own; large jobs use that up first.
            large = {"name": "x", "labels": {f"l{at}": "x" * 60 for at in range(60)}}
            deadline = time.monotonic() + SECONDS
            while submit(**large) == 201:
                assert time.monotonic() < deadline
                fill(disk / "filler")
            refused = 0
            problems: set[str] = set()  # while the server recovers, another one may stand there for a moment
            began = time.monotonic()
            while time.monotonic() < began + 2:
                # While a submission is refused, the server does not call itself ready.
                refused += submit(**large) == 503
                health = server.client.get("/readyz")
                assert (health.status_code, health.json()["ready"]) == (503, False)
                assert health.json()["problem"] and str(disk) not in health.text
                problems.add(health.json()["problem"])
                assert server.client.get("/healthz").status_code == 200
                assert server.client.put("/api/v1/secrets/s", json={"value": "x" * 60_000}).status_code == 503
                assert server.process.poll() is None
                time.sleep(0.1)
            assert refused and any("disk is full" in problem for problem in problems), problems
            (disk / "filler").unlink()
            until(lambda: server.client.get("/readyz").status_code == 200)
            assert submit() == 201
            assert server.client.put("/api/v1/secrets/s", json={"value": "x"}).status_code == 200
        assert server.close() == 0
        assert "log lines lost" in (disk / "data" / "server.log").read_text()
        server = Server(disk / "data")
        found = {job["id"] for job in server.client.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"]}
        assert found >= set(taken[-1000:])
    finally:
        server.close()
