"""A primary of PostgreSQL that stopped and comes back beside its promoted successor: real replication, real servers."""

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import fairlead
from fairlead.journal.journal import JournalError, UnknownOutcome
from fairlead.journal.pgconnection import PRIMARIES, connect
from fairlead.journal.postgresql import PostgresJournal
from tests.postgres import MISSING, Postgres, programs
from tests.servers import Server
from tests.until import until

SYNCHRONOUS = ("-c", "synchronous_standby_names=ANY 1 (one, two, three)")


class Three:
    """A primary and two standbys, of which one confirms each commit."""

    def __init__(self, folder: Path) -> None:
        self.one = Postgres(folder / "one", durable=True, options=SYNCHRONOUS)
        self.one.start()
        self.two = Postgres(folder / "two", durable=True, options=SYNCHRONOUS, primary=self.one)
        self.two.start()
        self.three = Postgres(folder / "three", durable=True, options=SYNCHRONOUS, primary=self.one)
        self.three.start()
        database = self.one.create().partition("@/")[2].partition("?")[0]
        hosts = ",".join(str(each.folder) for each in (self.one, self.two, self.three))
        self.url = f"postgresql://fairlead@/{database}?host={hosts}"

    def replace(self) -> None:
        """Lose the primary, and promote a standby, which the other one follows."""
        self.one.stop(signal.SIGQUIT)
        self.two.promote()
        self.three.stop(signal.SIGQUIT)
        self.three.follow(self.two)
        self.three.start()

    def close(self) -> None:
        for each in (self.three, self.two, self.one):
            each.stop(signal.SIGQUIT)


@pytest.fixture
def three(postgres: Postgres) -> Iterator[Three]:
    assert programs() is not None, MISSING
    folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    folder.chmod(0o755)
    found = Three(folder)
    try:
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_servers_follow_the_successor_of_a_primary_that_comes_back(three: Three, tmp_path: Path) -> None:
    server = Server(tmp_path, "first", three.url, "--lease", "1.5s").start()
    other = Server(tmp_path, "second", three.url, "--lease", "1.5s").start()

    def submit() -> str:
        with suppress(fairlead.Problem), fairlead.Client(f"{server.url},{other.url}", server.token) as client:
            return client.submit(["true"])
        return ""

    try:
        until(submit, 60)
        three.replace()
        until(submit, 60)
        three.one.start()  # it accepts writes, and no standby follows it
        began = time.monotonic()
        for each in (server, other):
            each.kill()
            each.start()
            assert until(submit, 30)
        assert time.monotonic() - began < 40
        with psycopg.connect(three.two.url(three.url.partition("@/")[2].partition("?")[0])) as db:
            assert db.execute("SELECT count(*) FROM fairlead.records").fetchall()[0][0] > 5
    finally:
        server.kill()
        other.kill()


def test_a_primary_that_was_replaced_is_refused_and_a_commit_without_end_is_given_up(three: Three) -> None:
    journal = PostgresJournal(three.url, lease=1.0, patience=1.0)
    epoch = journal.reign("a")
    journal.append("a", epoch, 1, b"1")
    three.two.stop(signal.SIGQUIT)
    three.three.stop(signal.SIGQUIT)
    began = time.monotonic()
    with pytest.raises(UnknownOutcome):  # no standby confirms the commit
        journal.append("a", epoch, 2, b"2")
    assert time.monotonic() - began < 10
    journal.close()
    three.two.start()
    three.three.start()
    three.replace()
    connect(three.url, "test").close()
    three.two.stop()
    three.three.stop()
    three.one.start()
    with pytest.raises(JournalError, match="was replaced by one of timeline 2"):
        connect(three.url, "test")
    PRIMARIES.__init__()  # type: ignore[misc]  # as another process
    connect(three.url, "test").close()
    three.two.start()
    with connect(three.url, "test") as connection:
        assert connection.info.host == str(three.two.folder)


def test_a_clock_of_the_database_that_was_set_back_delays_no_leader(tmp_path: Path, database: str) -> None:
    first = Server(tmp_path, "first", database, "--lease", "1.5s").start()
    second = Server(tmp_path, "second", database, "--lease", "1.5s").start()
    try:
        until(first.leads)
        first.kill()
        with psycopg.connect(database, autocommit=True) as db:  # as after a step of its clock by -60 s
            for table in ("reigns", "servers"):
                db.execute(f"UPDATE fairlead.{table} SET expires = expires + interval '60 s'".encode())
        began = time.monotonic()
        until(second.leads, 60)
        assert time.monotonic() - began < 15
    finally:
        first.kill()
        second.kill()
