"""A real PostgreSQL for tests, from the machine's packages. One server per test process.

It listens on a Unix socket only and trades durability for speed; `durable=True` keeps the defaults of PostgreSQL. The
tests are left out where there is no PostgreSQL; in CI, as root on Debian, it is installed.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path

from tests.network import Proxy, Watch
from tests.packages import installed

OLDEST = 15
MISSING = f"tests of PostgreSQL left out: version {OLDEST} or newer is not installed (Debian: apt install postgresql)"
FAST = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")


@cache
def programs() -> Path | None:
    """Return the folder with the programs of PostgreSQL; None if there are none."""
    return installed(_programs, "postgresql")


def _programs() -> Path | None:
    found = {int(path.parts[-3]): path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")}
    if found and max(found) >= OLDEST:
        return found[max(found)]
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


class Postgres:
    """One server with its data in a temporary folder. It ends with the process that started it."""

    def __init__(
        self, folder: Path, durable: bool = False, options: tuple[str, ...] = (), primary: "Postgres | None" = None
    ) -> None:
        """With a primary this is a standby of it, named as its folder."""
        where = programs()
        assert where is not None, MISSING
        self._programs = where
        self._owner = _unprivileged()
        self.folder = folder
        self.data = folder / "data"
        folder.mkdir(mode=0o755, exist_ok=True)
        self._options = (*(() if durable else FAST), *options)
        self._numbers = count(1)
        self.process: subprocess.Popen[bytes] | None = None
        if self._owner is not None:
            os.chown(folder, *self._owner)
        if primary is not None:
            self.follow(primary)
            return
        self.run("initdb", "-D", str(self.data), "-A", "trust", "-U", "fairlead", "-N", "--no-locale", "-E", "UTF8")

    def follow(self, primary: "Postgres") -> None:
        """Begin anew as a standby of a server that runs."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.run("pg_basebackup", "-h", str(primary.folder), "-U", "fairlead", "-D", str(self.data), "-c", "fast", "-N")
        (self.data / "standby.signal").touch()
        told = f"primary_conninfo = 'host={primary.folder} user=fairlead application_name={self.folder.name}'\n"
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(told)

    def promote(self) -> None:
        """Make this standby the primary."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def start(self) -> None:
        command = [str(self._programs / "postgres"), "-D", str(self.data), "-k", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "-c", "listen_addresses=", *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_owner(),  # type: ignore[arg-type]
            )
        deadline = time.monotonic() + 60
        while subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", self.folder, "-U", "fairlead"], check=False
        ).returncode:
            assert self.process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT as at a shutdown, SIGQUIT as at a crash."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def pause(self) -> None:
        """Stop the server and all its children for a while, as a machine that stands still."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # first, so that it starts no more children
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        self.process.send_signal(signal.SIGCONT)

    def _children(self) -> list[int]:
        assert self.process is not None
        number = self.process.pid
        return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            **self._as_owner(),  # type: ignore[arg-type]
        )

    def url(self, name: str = "postgres") -> str:
        return f"postgresql://fairlead@/{name}?host={self.folder}"

    def create(self) -> str:
        """Create an empty database and return its address."""
        import psycopg

        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def drop(self, url: str) -> None:
        import psycopg

        name = url.partition("@/")[2].partition("?")[0]
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def _as_owner(self) -> dict[str, object]:
        if self._owner is None:
            return {"cwd": "/"}
        user, group = self._owner
        return {"cwd": "/", "user": user, "group": group, "extra_groups": []}


class PostgresProxy(Proxy):
    """A socket in front of a server, which can cut connections at chosen moments."""

    def __init__(self, folder: Path, server: Postgres) -> None:
        self.folder = folder
        self.behind = server
        """The server. It can be replaced by another one."""
        self.cuts = 0
        self._cut = ""
        """A part of a message. The connection on which it is sent is cut before or after it takes effect."""
        self._before = False
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(folder / ".s.PGSQL.5432"))
        listening.listen()
        super().__init__(listening)

    def url(self, url: str) -> str:
        """Return the address of a database by way of this proxy."""
        return f"{url.partition('?')[0]}?host={self.folder}"

    def connect(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self.behind.folder / ".s.PGSQL.5432"))
        return server

    def cut_next(self, text: str, before: bool) -> None:
        """Cut the connection that next sends this text: before the server gets it, or before its answer arrives."""
        self._cut, self._before = text, before

    def watches(self) -> tuple[Watch, Watch]:
        mute = False

        def from_client(data: bytes) -> None:
            nonlocal mute
            if self._cut and self._cut.encode() in data:
                self._cut = ""
                self.cuts += 1
                mute = True
                if self._before:
                    raise ConnectionError

        def from_server(data: bytes) -> None:
            if mute:
                raise ConnectionError

        return from_client, from_server


def _unprivileged() -> tuple[int, int] | None:
    """Return another user and group if this is root, with which PostgreSQL refuses to run."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    return 65534, 65534


@contextmanager
def running(durable: bool = False, options: tuple[str, ...] = (), on_disk: bool = False) -> Iterator[Postgres]:
    """Run one server in a folder that its user can reach: in memory if there is such a folder, or on a disk."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") and not on_disk else None
    folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-", dir=memory))
    folder.chmod(0o755)
    server = Postgres(folder / "pg", durable, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    print(programs() or MISSING, file=sys.stderr)
