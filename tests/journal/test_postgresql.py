"""The journal on PostgreSQL beyond the contract: leases, lost connections, a killed database, schemas and damage."""

import builtins
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.dump import dump
from fairlead.journal import Damaged, Fenced, Held, JournalError, NotWritten, TooNew, UnknownOutcome
from fairlead.journal.codec import restore
from fairlead.journal.journal import LINE
from fairlead.journal.locate import open_journal
from fairlead.journal.pgconnection import connect, shown_url, warnings_of
from fairlead.journal.pgschema import MIGRATIONS
from fairlead.journal.postgresql import _APPEND, PostgresJournal
from fairlead.journal.snapshot import Snapshots, make_snapshot, renew
from fairlead.journal.verify import verify
from fairlead.testing import World
from tests.postgres import Postgres, PostgresProxy, running
from tests.until import until


def sql(url: str, text: str, *values: object) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET search_path = fairlead")
        done = db.execute(text.encode(), values)
        return done.fetchall() if done.description else []


@pytest.fixture
def proxy(tmp_path: Path, postgres: Postgres) -> Iterator[PostgresProxy]:
    proxy = PostgresProxy(tmp_path, postgres)
    yield proxy
    proxy.close()


# Leases


def test_a_stream_with_a_lease_is_held(database: str) -> None:
    with PostgresJournal(database, address="http://one", lease=60) as one, PostgresJournal(database) as two:
        epoch = one.reign("a")
        with pytest.raises(Held, match="'a': http://one leads it; this server stands by") as held:
            two.reign("a")
        assert held.value.leader == "http://one" and 50 < held.value.seconds <= 60
        with pytest.raises(Held):
            two.drop("a")
        one.append("a", epoch, 1, b"1")
        assert one.leads_until() > time.monotonic()
        assert two.last("a") == 1  # reading needs no lease
        two.reign("b")


def test_closing_gives_leases_back(database: str) -> None:
    with PostgresJournal(database, lease=60) as one:
        epoch = one.reign("a")
    with PostgresJournal(database, lease=60) as two:
        assert two.reign("a") == epoch + 1


def test_the_same_server_may_begin_again(database: str) -> None:
    with PostgresJournal(database, "me", lease=60) as one, PostgresJournal(database, "me", lease=60) as two:
        epoch = one.reign("a")
        assert two.reign("a") == epoch + 1
        with pytest.raises(Fenced):
            one.append("a", epoch, 1, b"1")


def test_a_lease_is_renewed_while_its_holder_is_idle(database: str) -> None:
    with PostgresJournal(database, lease=4) as journal:
        journal.reign("a")
        [(expires,)] = sql(database, "SELECT expires FROM reigns")
        for _ in range(3):
            before = journal.leads_until()
            until(lambda before=before: journal.leads_until() > before)  # type: ignore[misc]
        assert sql(database, "SELECT expires FROM reigns")[0][0] > expires


def test_a_deposed_leader_waits_behind_its_successor_and_fails(database: str) -> None:
    """An append that was sent before the successor committed finds the new epoch when its turn comes."""
    with PostgresJournal(database, lease=60) as one, psycopg.connect(database) as other:
        epoch = one.reign("a")
        one.append("a", epoch, 1, b"1")
        other.execute("UPDATE fairlead.reigns SET epoch = epoch + 1 WHERE stream = 'a'")
        failed: list[Exception] = []

        def append() -> None:
            try:
                one.append("a", epoch, 2, b"2")
            except JournalError as problem:
                failed.append(problem)

        thread = threading.Thread(target=append)
        thread.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        until(lambda: sql(database, waiting) == [(1,)])
        other.commit()
        thread.join()
        assert [type(problem) for problem in failed] == [Fenced]
    assert sql(database, "SELECT count(*) FROM records") == [(1,)]


def test_a_leader_without_its_database_stops_early(database: str, proxy: PostgresProxy) -> None:
    with PostgresJournal(proxy.url(database), lease=1, patience=0.2) as one:
        one.reign("a")
        proxy.open = False
        proxy.cut_all()
        until(lambda: one.leads_until() < time.monotonic())
        # By the clock of the database the lease still lasted then, or the other server could lead by now.
        with PostgresJournal(database) as two:
            until(lambda: _took(two))
            assert one.leads_until() < time.monotonic()


def test_a_lease_counts_from_before_a_slow_commit(database: str) -> None:
    """Else this server would count on its lease for longer than the database does."""
    with PostgresJournal(database, lease=60) as journal:
        journal.reign("a")
        sql(
            database,
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END'",
        )
        sql(
            database,
            "CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON reigns DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW WHEN (OLD.epoch < NEW.epoch) EXECUTE FUNCTION slow()",
        )
        journal.reign("a")
        [(left,)] = sql(database, "SELECT extract(epoch FROM expires - clock_timestamp())::float FROM reigns")
        assert journal.leads_until() - time.monotonic() < left - 60 * 0.1 + 0.1


def _took(journal: PostgresJournal) -> bool:
    try:
        return journal.reign("a") > 0
    except Held:
        return False


# Lost connections


@pytest.mark.parametrize("before", [True, False])
def test_a_connection_lost_in_an_append(database: str, proxy: PostgresProxy, before: bool) -> None:
    """The record is written once, whether the connection was lost before it was written or before its answer."""
    with PostgresJournal(proxy.url(database), lease=60) as journal:
        epoch = journal.reign("a")
        for seq in range(1, 4):
            journal.append("a", epoch, seq, b"%d" % seq)
        proxy.cut_next("the fourth", before)
        journal.append("a", epoch, 4, b"the fourth")
        assert proxy.cuts == 1
        journal.append("a", epoch, 5, b"5")
        assert [record.payload for record in journal.read("a")] == [b"1", b"2", b"3", b"the fourth", b"5"]


@pytest.mark.parametrize("before", [True, False])
def test_a_connection_lost_for_long(database: str, proxy: PostgresProxy, before: bool) -> None:
    with PostgresJournal(proxy.url(database), "me", lease=60, patience=0.3) as journal:
        epoch = journal.reign("a")
        proxy.cut_next("the first", before)
        threading.Timer(0.0, lambda: until(lambda: proxy.cuts)).start()
        proxy.open = False
        with pytest.raises(UnknownOutcome, match="the connection was lost"):
            journal.append("a", epoch, 1, b"the first")
        with pytest.raises(UnknownOutcome, match="open it again"):
            journal.append("a", epoch, 1, b"the first")
    with PostgresJournal(database, "me") as again:
        fresh = again.reign("a")
        assert again.last("a") == (0 if before else 1)
        again.append("a", fresh, again.last("a") + 1, b"next")


@pytest.mark.parametrize("before", [True, False])
def test_a_connection_lost_while_another_server_takes_over(database: str, proxy: PostgresProxy, before: bool) -> None:
    with PostgresJournal(proxy.url(database), lease=60) as one, PostgresJournal(database, lease=60) as two:
        epoch = one.reign("a")
        proxy.cut_next("the first", before)
        proxy.open = False
        outcome: list[object] = []

        def append() -> None:
            try:
                outcome.append(one.append("a", epoch, 1, b"the first"))
            except JournalError as problem:
                outcome.append(type(problem))

        thread = threading.Thread(target=append)
        thread.start()
        until(lambda: proxy.cuts)
        if not before:
            until(lambda: sql(database, "SELECT count(*) FROM records") == [(1,)])
        sql(database, "UPDATE reigns SET expires = now()")
        two.reign("a")
        proxy.open = True
        thread.join()
        assert outcome == [Fenced if before else None]
        assert two.last("a") == (0 if before else 1)


def test_a_late_statement_of_a_lost_connection_writes_nothing(database: str) -> None:
    """After a new connection has asked what was written, the old one can write no more."""
    with PostgresJournal(database, lease=60) as journal:
        epoch = journal.reign("a")
        old, session = journal._db, journal._session
        journal._db = psycopg.connect(database)
        journal._reconnect()
        values = {"stream": "a", "epoch": epoch, "seq": 1, "digest": b"x", "payload": b"late", "session": session}
        assert old.execute(_APPEND, values).rowcount == 0
        old.close()
        journal.append("a", epoch, 1, b"1")


def test_a_killed_database(postgres: Postgres) -> None:
    """Nothing that was appended is lost when PostgreSQL is killed, and the writer goes on when it is back."""
    with running(durable=True) as own, PostgresJournal(own.url(), lease=60, patience=60) as journal:
        epoch = journal.reign("a")
        for seq in range(1, 11):
            if seq == 5:
                own.stop(signal.SIGQUIT)
                threading.Timer(0.3, own.start).start()
            journal.append("a", epoch, seq, b"%d" % seq)
        assert [record.seq for record in journal.read("a")] == list(range(1, 11))


# Addresses, versions, schemas


def test_an_unreachable_database(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot connect .*check the address"):
        PostgresJournal(f"postgresql://me:geheim@/x?host={tmp_path}")


def test_no_password_is_shown() -> None:
    assert shown_url("postgresql://me:geheim@one:5433,two:5434/db?x=1") == "postgresql://…"
    assert shown_url("postgresql://me:geheim@one:5433,two:5434/db") == "postgresql://one:5433,two:5434/db"
    with pytest.raises(JournalError) as problem:
        PostgresJournal("postgresql://me:geheim@127.0.0.1:1/db")
    assert "geheim" not in str(problem.value)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "psycopg":
            raise ImportError("No module named 'psycopg'")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(JournalError, match=r"pip install 'fairlead\[postgresql\]'"):
        open_journal("postgresql://x/y")


def test_an_old_version(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.journal.pgconnection.OLDEST", 99)
    with pytest.raises(JournalError, match="is too old; use 99 or newer"):
        PostgresJournal(database)


def test_a_newer_schema(database: str) -> None:
    PostgresJournal(database).close()
    sql(database, "UPDATE schema_version SET version = %s", len(MIGRATIONS) + 1)
    for read_only in (True, False):
        with pytest.raises(TooNew, match="is newer than this program's"):
            PostgresJournal(database, read_only=read_only)


def test_each_schema_is_brought_to_the_newest(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.journal.pgschema.MIGRATIONS", MIGRATIONS[:1])
    PostgresJournal(database).close()
    sql(database, "INSERT INTO reigns VALUES ('a', 0, 0, 0, '', '', 0, '', '', '', '', 'epoch')")
    more = (*MIGRATIONS, "CREATE TABLE further (x int)", "ALTER TABLE further ADD y int")
    monkeypatch.setattr("fairlead.journal.pgschema.MIGRATIONS", more)
    with pytest.raises(JournalError, match="is older than this program's"):
        PostgresJournal(database, read_only=True)
    with PostgresJournal(database) as journal:
        journal.append("a", journal.reign("a"), 1, b"1")
        assert journal.last("a") == 1
    assert sql(database, "SELECT x, y FROM further") == []
    assert sql(database, "SELECT version FROM schema_version") == [(len(more),)]


def test_tables_are_created_once_by_many(database: str) -> None:
    problems: list[object] = []

    def begin() -> None:
        try:
            PostgresJournal(database).close()
        except JournalError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(sql(database, "SELECT * FROM schema_version")) == 1


def test_reading_an_empty_database(database: str) -> None:
    with pytest.raises(JournalError, match="no journal yet; check the address"):
        PostgresJournal(database, read_only=True)


def test_a_reader_writes_nothing(database: str) -> None:
    with PostgresJournal(database) as journal:
        journal.append("a", journal.reign("a"), 1, b"1")
    with PostgresJournal(database, read_only=True) as reader, pytest.raises(NotWritten, match="read-only"):
        reader.reign("a")


# Replication


def test_settings_that_lose_data_are_named(database: str) -> None:
    def warned(*changes: str) -> list[str]:
        for change in changes:
            sql(database, f"ALTER DATABASE {database.partition('@/')[2].partition('?')[0]} SET {change}")
        with connect(database, "check") as connection:
            return [warning.partition(" is ")[0] for warning in warnings_of(connection)]

    tests = ["fsync", "full_page_writes"]  # settings of the whole server, which are off in tests
    assert warned() == [*tests, "synchronous_commit", "synchronous_standby_names"]
    assert warned("synchronous_commit = on") == [*tests, "synchronous_standby_names"]
    assert warned("synchronous_commit = remote_apply") == [*tests, "synchronous_standby_names"]


# Damage


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM records WHERE seq = 3", "the last record is 2, but 3 was written"),
        ("DELETE FROM records WHERE seq = 2", "record 2 is missing, 3 follows"),
        ("UPDATE records SET payload = 'x' WHERE seq = 2", "record 2 does not match its digest"),
        ("UPDATE records SET digest = 'x' WHERE seq = 3", "record 3 is not the one that was written"),
        ("UPDATE reigns SET epoch = epoch + 1", "its reign does not match its digest"),
        ("DELETE FROM reigns", "its reign is missing"),
    ],
)
def test_damage(database: str, change: str, message: str) -> None:
    with PostgresJournal(database) as journal:
        epoch = journal.reign("a")
        for seq in range(1, 4):
            journal.append("a", epoch, seq, b"%d" % seq)
    sql(database, change)
    with pytest.raises(Damaged, match=message), PostgresJournal(database, read_only=True) as journal:
        journal.streams()
        list(journal.read("a"))


# Snapshots, verification


def test_snapshots_and_verification(database: str) -> None:
    with PostgresJournal(database) as journal:
        world = World({"partitions": {"default": {}}}, journal=journal)
        world.nodes(2, prefix="n", cpu=2)
        for _ in range(2):
            world.submit(name="x", user="ann", stages=[{"name": "s", "count": 2, "resources": {"cpu": 1}}])
            world.cycle()
            renew(database, "default")
        state, seq = restore(journal, "default")
        assert dump(state) == dump(world.partition())
        assert make_snapshot(database, "default") == seq
        snapshots = Snapshots(database, "default", every=1)
        snapshots.poll(seq)
        assert snapshots.pid is not None
        assert database.encode() not in Path(f"/proc/{snapshots.pid}/cmdline").read_bytes()
        until(lambda: (snapshots.poll(0), snapshots.pid is None)[1])
        assert (snapshots.failure, snapshots.last) == ("", seq)
        reports = list(verify(journal, lambda *_: None))
    assert [(report.stream, report.problem) for report in reports] == [("cluster", ""), ("partition/default", "")]
    assert reports[1].snapshots[-1] == seq and reports[1].records < seq


def test_verification_on_the_command_line(database: str) -> None:
    with PostgresJournal(database) as journal:
        World({"partitions": {"default": {}}}, journal=journal).cycle()
    done = CliRunner().invoke(app, ["journal", "verify", database])
    assert done.exit_code == 0 and "cluster: sound, 1 record" in done.stdout
    sql(database, "UPDATE records SET payload = 'x' WHERE stream = 'cluster'")
    done = CliRunner().invoke(app, ["journal", "verify", database])
    assert done.exit_code == 1 and "does not match its digest" in done.stdout


def test_a_promotion_that_lost_records(postgres: Postgres) -> None:
    with running(durable=True) as primary:
        database = primary.create()
        with PostgresJournal(database) as journal:
            assert journal.reign("s") == 1
            journal.append("s", 1, 1, b"kept")
        standby = Postgres(primary.folder.parent / "standby", primary=primary)
        with PostgresJournal(database) as journal:
            assert (journal.reign("s"), journal.skipped("s")) == (2, range(0))
            journal.append("s", 2, 2, b"lost")
        primary.stop(signal.SIGQUIT)
        standby.start()
        try:
            standby.promote()
            with PostgresJournal(database.replace(str(primary.folder), str(standby.folder))) as journal:
                assert [record.payload for record in journal.read("s")] == [b"kept"]
                assert journal.reign("s") == LINE
                assert 2 in journal.skipped("s") and 1 not in journal.skipped("s")
                journal.append("s", LINE, 2, b"new")
            with PostgresJournal(database.replace(str(primary.folder), str(standby.folder))) as journal:
                assert (journal.reign("s"), journal.skipped("s")) == (LINE + 1, range(0))
        finally:
            standby.stop()


def test_the_rights_of_a_plain_user_are_enough(postgres: Postgres) -> None:
    database = postgres.create()
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS plain")
        db.execute("CREATE ROLE plain LOGIN")
        name = database.partition("@/")[2].partition("?")[0]
        db.execute(f"GRANT CREATE ON DATABASE {name} TO plain".encode())
    try:
        with PostgresJournal(database.replace("fairlead@", "plain@")) as journal:
            assert journal.reign("s") == 1
            assert journal.users() == 0
    finally:
        postgres.drop(database)
