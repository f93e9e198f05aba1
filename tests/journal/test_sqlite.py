"""The SQLite journal beyond the contract: opening, two objects, full and failing disks, processes."""

import os
import select
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.journal import (
    Damaged,
    Fenced,
    JournalError,
    Locked,
    NotWritten,
    Snapshot,
    SqliteJournal,
    TooNew,
    UnknownOutcome,
)

Child = Callable[..., subprocess.Popen[str]]


def fill(journal: SqliteJournal, stream: str, count: int) -> int:
    epoch = journal.reign(stream)
    first = journal.last(stream) + 1
    for seq in range(first, first + count):
        journal.append(stream, epoch, seq, b"%d" % seq)
    return epoch


def payloads(journal: SqliteJournal, stream: str, after: int = 0) -> list[bytes]:
    return [record.payload for record in journal.read(stream, after)]


def answers(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate()
    assert process.returncode == 0
    return out.splitlines()


# Opening


def test_reopening(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j") as journal:
        first = fill(journal, "a", 3)
        journal.save_snapshot("a", 2, b"s")
        journal.prune("a", 1)
    with SqliteJournal(tmp_path / "j") as journal:
        second = fill(journal, "a", 2)
        assert second > first
        assert payloads(journal, "a", after=1) == [b"2", b"3", b"4", b"5"]
        assert journal.snapshot("a") == Snapshot(2, b"s")
    with SqliteJournal(tmp_path / "j", read_only=True) as journal:
        assert [record.epoch for record in journal.read("a", 2)] == [first, second, second]


def test_names_that_need_quoting(tmp_path: Path) -> None:
    path = tmp_path / "what? 100%#1 é"
    with SqliteJournal(path) as journal:
        fill(journal, "a b\n'é'", 1)
    assert path.exists()
    with SqliteJournal(path) as journal:
        assert journal.streams() == ["a b\n'é'"]


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="a directory; name a file in it"):
        SqliteJournal(tmp_path)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"nowhere/j: opening: .* check that it and its directory exist"):
        SqliteJournal(tmp_path / "nowhere" / "j")


def test_reading_a_missing_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no such journal; check the name"):
        SqliteJournal(tmp_path / "j", read_only=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_may_not_be_read(child: Child, read_only: bool) -> None:
    script = """
        import os, sys
        from fairlead.journal import JournalError, SqliteJournal
        if os.getuid() == 0:
            os.setuid(65534)  # root may read everything
        try:
            SqliteJournal(sys.argv[1], read_only=sys.argv[2] == "True")
        except JournalError as error:
            print(type(error).__name__, error)
    """
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
        os.chmod(folder, 0o755)
        path = Path(folder) / "j"
        SqliteJournal(path).close()
        path.chmod(0)
        [said] = answers(child(script, path, read_only))
        assert said.startswith(f"JournalError {path}: opening: ")
        assert "allow access" in said


@pytest.mark.parametrize("beside", ["", "-snapshots"])
def test_a_newer_schema(tmp_path: Path, beside: str) -> None:
    with SqliteJournal(tmp_path / "j") as journal:
        fill(journal, "a", 1)
        journal.save_snapshot("a", 1, b"")
    change(tmp_path / f"j{beside}", "PRAGMA user_version = 2")
    with pytest.raises(TooNew, match=rf"j{beside}: schema 2 is newer than this program's 1; upgrade"):
        SqliteJournal(tmp_path / "j").snapshot("a")


def test_the_database_of_another_program(tmp_path: Path) -> None:
    change(tmp_path / "j", "CREATE TABLE songs (name)")
    with pytest.raises(Damaged, match="not a file of a Fairlead journal"):
        SqliteJournal(tmp_path / "j")


def test_tables_of_others_are_left_alone(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "j").close()
    change(tmp_path / "j", "CREATE TABLE history (job)")
    with SqliteJournal(tmp_path / "j") as journal:
        fill(journal, "a", 1)


def test_using_a_closed_journal(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j")
    epoch = fill(journal, "a", 1)
    journal.close()
    for use in (lambda: journal.append("a", epoch, 2, b""), lambda: journal.last("a")):
        with pytest.raises(JournalError, match=r"closed.*open the journal again"):
            use()


def change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


# Two objects


def test_a_second_object_fences_the_first(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j") as one, SqliteJournal(tmp_path / "j") as two:
        first = fill(one, "a", 3)
        second = fill(two, "a", 2)
        with pytest.raises(Fenced, match=rf"epoch {first} .* {second}"):
            one.append("a", first, 4, b"late")
        two.append("a", second, 6, b"6")
        assert payloads(one, "a") == [b"1", b"2", b"3", b"4", b"5", b"6"]
        third = fill(one, "a", 1)
        with pytest.raises(Fenced, match=rf"epoch {second} .* {third}"):
            two.append("a", second, 7, b"late")


def test_an_epoch_belongs_to_the_object_that_began_it(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j") as one, SqliteJournal(tmp_path / "j") as two:
        epoch = fill(one, "a", 3)
        with pytest.raises(NotWritten, match="was not begun by this object"):
            two.append("a", epoch, 4, b"")


def test_dropping_under_a_writer(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j") as one, SqliteJournal(tmp_path / "j") as two:
        epoch = fill(one, "a", 3)
        two.drop("a")
        with pytest.raises(Fenced):
            one.append("a", epoch, 4, b"")
        assert fill(one, "a", 1) > epoch
        assert payloads(two, "a") == [b"1"]


def test_locked(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j", busy_timeout=0.0) as journal:
        epoch = fill(journal, "a", 1)
        other = sqlite3.connect(tmp_path / "j", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Locked, match="another process holds it"):
            journal.append("a", epoch, 2, b"2")
        other.close()
        journal.append("a", epoch, 2, b"2")
        assert payloads(journal, "a") == [b"1", b"2"]


def test_read_only_writes_snapshots_and_nothing_else(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j") as journal:
        fill(journal, "a", 3)
    with SqliteJournal(tmp_path / "j", read_only=True) as journal:
        journal.save_snapshot("a", 3, b"s")
        for write in (
            lambda: journal.reign("a"),
            lambda: journal.prune("a", 2),
            lambda: journal.drop("a"),
        ):
            with pytest.raises(NotWritten, match="readonly"):
                write()
        assert journal.snapshot("a") == Snapshot(3, b"s")
        assert journal.last("a") == 3


# Disks that are full or fail

APPEND_UNTIL_IT_FAILS = """
    import os, resource, sys
    from fairlead.journal import JournalError, SqliteJournal

    journal = SqliteJournal(sys.argv[1])
    epoch = journal.reign("a")
    if sys.argv[2] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    payload = lambda seq: b"%d" % seq * 20_000
    seq = 0
    try:
        while True:
            journal.append("a", epoch, seq + 1, payload(seq + 1))
            seq += 1
    except JournalError as error:
        print(type(error).__name__)
    print(seq)
    try:
        journal.append("a", epoch, seq + 1, b"small")
        print("small")
    except JournalError as error:
        print(type(error).__name__)
    sys.stdout.flush()
    os._exit(0)  # leaves the write-ahead log as a crash would
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def check_after_failure(path: Path, said: list[str]) -> None:
    """What was acknowledged is there, in full; what failed is not; the journal goes on."""
    failure, count, small = said
    assert failure == "NotWritten"
    expected = [b"%d" % seq * 20_000 for seq in range(1, int(count) + 1)]
    assert len(expected) > 5
    with SqliteJournal(path) as journal:
        assert payloads(journal, "a") == expected + [b"small"] * (small == "small")
        fill(journal, "a", 1)


def test_a_file_size_limit(tmp_path: Path, child: Child) -> None:
    check_after_failure(tmp_path / "j", answers(child(APPEND_UNTIL_IT_FAILS, tmp_path / "j", "limit")))


def test_a_full_disk(small_disk: Path, tmp_path: Path, child: Child) -> None:
    said = answers(child(APPEND_UNTIL_IT_FAILS, small_disk / "j", "full"))
    for file in small_disk.iterdir():
        shutil.copy(file, tmp_path)
    check_after_failure(tmp_path / "j", said)


def test_a_failed_sync_has_an_unknown_outcome(tmp_path: Path, child: Child) -> None:
    # A log on /dev/null takes every write and refuses to be synced.
    script = """
        import os, sys
        from fairlead.journal import JournalError, SqliteJournal

        journal = SqliteJournal(sys.argv[1])
        epoch = journal.reign("a")
        journal.append("a", epoch, 1, b"1")
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{name}").endswith("-wal"):
                    os.dup2(os.open("/dev/null", os.O_RDWR), int(name))
            except FileNotFoundError:
                pass
        for attempt in range(2):
            try:
                journal.append("a", epoch, 2, b"2")
            except JournalError as error:
                print(type(error).__name__, error)
        sys.stdout.flush()
        os._exit(0)
    """
    first, second = answers(child(script, tmp_path / "j"))
    assert first.startswith(f"{UnknownOutcome.__name__} {tmp_path}/j: stream 'a': record 2: the commit failed")
    assert second.startswith(UnknownOutcome.__name__)
    assert "refused" in second
    with SqliteJournal(tmp_path / "j") as journal:
        assert payloads(journal, "a") == [b"1"]


# Several processes


def test_snapshots_by_a_second_process_while_the_writer_goes_on(tmp_path: Path, child: Child) -> None:
    script = """
        import sys
        from fairlead.journal import SqliteJournal

        with SqliteJournal(sys.argv[1], read_only=True) as journal:
            for _ in range(8):
                found = journal.snapshot("a")
                seq, state = (found.seq, found.payload) if found else (0, b"")
                before = seq
                while seq == before:  # the writer goes on: there will be more
                    for record in journal.read("a", seq):
                        seq, state = record.seq, state + record.payload
                journal.save_snapshot("a", seq, state)
                print(seq, flush=True)
    """
    with SqliteJournal(tmp_path / "j", synchronous="normal") as journal:
        epoch = journal.reign("a")
        journal.append("a", epoch, 1, b"1")
        maker = child(script, tmp_path / "j")
        assert maker.stdout
        seq, said, ended = 1, b"", False
        while not ended:
            seq += 1
            journal.append("a", epoch, seq, b"%d" % seq)
            if select.select([maker.stdout], [], [], 0)[0]:
                news = os.read(maker.stdout.fileno(), 100)
                said, ended = said + news, not news
        assert maker.wait() == 0
        made = [int(line) for line in said.split()]
        assert len(made) == 8
        found = journal.snapshot("a")
        assert found
        assert found.seq == made[-1]
        assert found.payload == b"".join(b"%d" % number for number in range(1, found.seq + 1))
        journal.prune("a", found.seq)
        assert payloads(journal, "a", found.seq) == [b"%d" % number for number in range(found.seq + 1, seq + 1)]


def test_pruning_while_another_process_writes(tmp_path: Path, child: Child) -> None:
    script = """
        import sys
        from fairlead.journal import SqliteJournal

        with SqliteJournal(sys.argv[1], synchronous="normal") as journal:
            epoch = journal.reign("a")
            for seq in range(1, 1501):
                journal.append("a", epoch, seq, b"%d" % seq * 1000)
                if seq == 200:
                    print("begun", flush=True)
                    sys.stdin.readline()
            print("done", flush=True)
            sys.stdin.readline()
    """
    writer = child(script, tmp_path / "j")
    assert writer.stdin
    assert writer.stdout
    assert writer.stdout.readline() == "begun\n"
    with SqliteJournal(tmp_path / "j", synchronous="normal") as journal:
        seq = 0
        for last in (200, 1500):
            while True:
                fresh = list(journal.read("a", seq))
                assert [record.payload for record in fresh] == [b"%d" % record.seq * 1000 for record in fresh]
                if fresh:
                    seq = fresh[-1].seq
                    journal.save_snapshot("a", seq, b"%d" % seq)
                    journal.prune("a", seq)
                if seq == last:
                    break
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert answers(writer) == ["done"]
        assert journal.last("a") == 1500
        assert journal.snapshot("a") == Snapshot(1500, b"1500")
