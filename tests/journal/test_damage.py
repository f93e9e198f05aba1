"""Damage to the files of a SQLite journal is found and named, or is harmless; it never changes what is read.

One journal is made by a process that ends without closing it, so that its log is still there; each test
spoils a copy. `state` recovers as a writer does: newest snapshot, then records.
"""

import hashlib
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fairlead.journal import Damaged, JournalError, SqliteJournal

FILES = ["j", "j-wal", "j-head", "j-snapshots"]

MAKE = """
    import hashlib, os, random, sys

    sys.path[:0] = sys.argv[2:]
    from fairlead.journal import SqliteJournal

    dice = random.Random(1)
    states = {"plain": [b""], "pruned": [b""]}
    epochs = {}

    def write(journal, stream, count):
        for _ in range(count):
            payload = dice.randbytes(dice.choice([0, 30, 900, 3000, 12_000]))
            states[stream].append(states[stream][-1] + hashlib.md5(payload).digest())
            journal.append(stream, epochs[stream], len(states[stream]) - 1, payload)

    with SqliteJournal(sys.argv[1]) as journal:  # closing it moves the log into the file
        for stream in states:
            epochs[stream] = journal.reign(stream)
            write(journal, stream, 30)
        for seq in (10, 20):
            journal.save_snapshot("pruned", seq, states["pruned"][seq])
        journal.prune("pruned", 15)
    journal = SqliteJournal(sys.argv[1])
    for stream in states:
        epochs[stream] = journal.reign(stream)
        write(journal, stream, 10)
    journal.save_snapshot("pruned", 32, states["pruned"][32])
    os._exit(0)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    subprocess.run([sys.executable, "-c", textwrap.dedent(MAKE), folder / "j", *sys.path], check=True)
    (folder / "j-shm").unlink()  # shared memory, which a crash of the machine does not leave
    assert sorted(file.name for file in folder.iterdir()) == sorted(FILES)
    return folder


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return renew(made, tmp_path)


def renew(made: Path, folder: Path) -> Path:
    shutil.rmtree(folder)
    shutil.copytree(made, folder)
    return folder / "j"


def state(path: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the next epoch, the last record and a digest of all records of each stream."""
    found = {}
    with SqliteJournal(path) as journal:
        for stream in journal.streams():
            snapshot = journal.snapshot(stream)
            seq, content = (snapshot.seq, snapshot.payload) if snapshot else (0, b"")
            for record in journal.read(stream, seq):
                seq, content = record.seq, content + hashlib.md5(record.payload).digest()
            found[stream] = (journal.reign(stream), seq, content)
    return found


@pytest.fixture(scope="module")
def truth(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int, bytes]]:
    found = state(renew(made, tmp_path_factory.mktemp("truth")))
    assert {stream: (epoch, seq) for stream, (epoch, seq, _) in found.items()} == {
        "plain": (3, 40),
        "pruned": (3, 40),
    }
    return found


def spoiled(path: Path, truth: dict[str, tuple[int, int, bytes]], what: object) -> bool:
    """True if the damage was found. If it was not, everything must be as before."""
    try:
        assert state(path) == truth, what
        return False
    except JournalError as error:
        assert str(path) in str(error), what
        return True


# Bits and lengths


@pytest.fixture(scope="module")
def closed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same journal, closed in good order: without a log all depends on the file itself."""
    path = renew(made, tmp_path_factory.mktemp("closed"))
    SqliteJournal(path).close()
    assert not path.with_name("j-wal").exists()
    return path.parent


@pytest.mark.parametrize("flips", [150, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("log", "name"), [*((True, name) for name in FILES), (False, "j")])
def test_flipped_bits(
    made: Path,
    closed: Path,
    tmp_path: Path,
    truth: dict[str, tuple[int, int, bytes]],
    log: bool,
    name: str,
    flips: int,
) -> None:
    source = made if log else closed
    size = (source / name).stat().st_size
    dice = random.Random(f"{log} {name} {flips}")
    offsets = [*range(130), *(dice.randrange(size) for _ in range(flips))]
    found = 0
    for offset in offsets:
        path = renew(source, tmp_path)
        content = bytearray((tmp_path / name).read_bytes())
        bit = dice.randrange(8)
        content[offset] ^= 1 << bit
        (tmp_path / name).write_bytes(content)
        found += spoiled(path, truth, f"{name}: bit {bit} of byte {offset}")
    assert found > 20  # far from all: much of a database is free space, or replaced by what is in the log


@pytest.mark.parametrize("name", FILES)
def test_cut_files(made: Path, tmp_path: Path, truth: dict[str, tuple[int, int, bytes]], name: str) -> None:
    size = (made / name).stat().st_size
    dice = random.Random(name)
    lengths = [
        0,
        1,
        31,
        32,
        100,
        512,
        4096,
        size - 4096,
        size - 1,
        *(dice.randrange(size) for _ in range(40)),
    ]
    found = 0
    for length in lengths:
        path = renew(made, tmp_path)
        with open(tmp_path / name, "r+b") as file:
            file.truncate(length)
        found += spoiled(path, truth, f"{name}: cut to {length} of {size}")
    assert found > len(lengths) // 2


@pytest.mark.parametrize(("name", "harmless"), [("j", 0), ("j-wal", 0), ("j-head", 1), ("j-snapshots", 0)])
def test_a_missing_file(path: Path, truth: dict[str, tuple[int, int, bytes]], name: str, harmless: int) -> None:
    (path.parent / name).unlink()
    assert spoiled(path, truth, name) != bool(harmless)


def test_a_cut_log_names_both_numbers_and_stays(path: Path) -> None:
    log = path.with_name("j-wal")
    with open(log, "r+b") as file:
        file.truncate(log.stat().st_size - 20_000)
    before = log.read_bytes()
    for read_only in (True, False):
        with pytest.raises(
            Damaged, match=r"stream 'p[a-z]+': the last record is \d+, but 40 was written; .*j-head to go on"
        ):
            SqliteJournal(path, read_only=read_only)
        assert log.read_bytes() == before  # opening and closing a database as usual deletes it


def test_without_a_head_a_cut_log_is_a_shorter_journal(path: Path) -> None:
    path.with_name("j-head").unlink()
    with open(path.with_name("j-wal"), "r+b") as file:
        file.truncate(20_000)
    with SqliteJournal(path) as journal:
        assert 30 <= journal.last("plain") < 40
        assert len(list(journal.read("plain"))) == journal.last("plain")


def test_an_older_head_is_no_damage(path: Path, truth: dict[str, tuple[int, int, bytes]]) -> None:
    with SqliteJournal(path) as journal:
        old = path.with_name("j-head").read_bytes()
        epoch = journal.reign("plain")
        journal.append("plain", epoch, 41, b"")
    path.with_name("j-head").write_bytes(old)
    with SqliteJournal(path) as journal:
        assert journal.last("plain") == 41


# Rows


def change(path: Path, *statements: str) -> None:
    database = sqlite3.connect(path)
    with database:
        for statement in statements:
            assert database.execute(statement).rowcount, statement
    database.close()


SWAP = (
    "UPDATE records SET seq = -1 WHERE stream = 'plain' AND seq = 5",
    "UPDATE records SET seq = 5 WHERE stream = 'plain' AND seq = 6",
    "UPDATE records SET seq = 6 WHERE stream = 'plain' AND seq = -1",
)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["DELETE FROM records WHERE stream = 'plain' AND seq = 1"], "record 1 is missing, 2 follows"),
        (["DELETE FROM records WHERE stream = 'plain' AND seq = 7"], "record 7 is missing, 8 follows"),
        (
            ["DELETE FROM records WHERE stream = 'plain' AND seq = 40"],
            "last record is 39, but 40 was written",
        ),
        (["DELETE FROM records WHERE stream = 'plain'"], "last record is 0, but 40 was written"),
        (SWAP, "record 5 does not match its digest"),
        (
            ["UPDATE records SET payload = x'00' WHERE stream = 'plain' AND seq = 40"],
            "record 40 does not match its digest",
        ),
        (
            ["UPDATE records SET payload = 'text' WHERE stream = 'plain' AND seq = 3"],
            "record 3 does not match its digest",
        ),
        (
            ["UPDATE records SET epoch = 9 WHERE stream = 'plain' AND seq = 3"],
            "record 3 does not match its digest",
        ),
        (
            ["UPDATE records SET digest = x'00' WHERE stream = 'plain' AND seq = 40"],
            "record 40 is not the one",
        ),
        (
            ["INSERT INTO records SELECT 'other', 1, epoch, digest, payload FROM records WHERE seq = 1"],
            "stream 'other': its reign is missing or",
        ),
        (["DELETE FROM reigns WHERE stream = 'plain'"], "a stream is missing that .*j-head knows"),
        (["UPDATE reigns SET epoch = 1"], "its reign does not match its digest"),
        (["UPDATE reigns SET base = 16 WHERE stream = 'pruned'"], "its reign does not match its digest"),
    ],
)
def test_altered_rows(path: Path, statements: list[str], message: str) -> None:
    change(path, *statements)
    with pytest.raises(Damaged, match=message) as damaged:
        state(path)
    assert damaged.value.file == str(path)
    assert "restore" in str(damaged.value)
    assert "fairlead journal verify" in str(damaged.value)


def test_altered_tables(path: Path) -> None:
    change(
        path,
        "PRAGMA writable_schema = on",
        "UPDATE sqlite_master SET sql = replace(sql, 'epoch INTEGER', 'epoch TEXT')",
    )
    with pytest.raises(Damaged, match="its tables are not those of schema 1"):
        SqliteJournal(path)


def test_a_record_with_a_digest_made_for_another_place(path: Path) -> None:
    change(
        path,
        "DELETE FROM records WHERE stream = 'plain' AND seq = 9",
        "INSERT INTO records SELECT stream, 9, epoch, digest, payload FROM records WHERE stream = 'plain' AND seq = 8",
    )
    with pytest.raises(Damaged, match="record 9 does not match its digest"):
        state(path)


def test_the_older_snapshot_serves_when_the_newest_is_damaged(
    path: Path, truth: dict[str, tuple[int, int, bytes]]
) -> None:
    change(path.with_name("j-snapshots"), "UPDATE snapshots SET payload = x'00' WHERE seq = 32")
    with SqliteJournal(path) as journal:
        found = journal.snapshot("pruned")
        assert found
        assert found.seq == 20
    assert state(path) == truth


@pytest.mark.parametrize("statement", ["DELETE FROM snapshots", "UPDATE snapshots SET payload = x'00'"])
def test_no_snapshot_for_a_pruned_log(path: Path, statement: str) -> None:
    change(path.with_name("j-snapshots"), statement)
    with SqliteJournal(path) as journal:
        with pytest.raises(Damaged, match="no intact snapshot at or beyond record 15, up to which"):
            journal.snapshot("pruned")
        with pytest.raises(Damaged):
            journal.prune("pruned", 20)
        assert len(list(journal.read("plain"))) == 40


def test_a_snapshot_of_another_history(path: Path) -> None:
    with SqliteJournal(path.with_name("k")) as other:
        epoch = other.reign("pruned")
        for seq in range(1, 41):
            other.append("pruned", epoch, seq, b"other")
        other.save_snapshot("pruned", 35, b"other")
    path.with_name("k-snapshots").replace(path.with_name("j-snapshots"))
    with SqliteJournal(path) as journal, pytest.raises(Damaged, match="at 35 was made of another record 35"):
        journal.snapshot("pruned")


def test_a_snapshot_beyond_the_last_record(path: Path) -> None:
    path.with_name("j-head").unlink()
    change(path, "DELETE FROM records WHERE stream = 'pruned' AND seq > 31")
    with SqliteJournal(path) as journal, pytest.raises(Damaged, match="is 31, but there is a snapshot at 32"):
        journal.snapshot("pruned")


def test_snapshots_of_a_dropped_stream_are_not_read_again(path: Path) -> None:
    kept = path.with_name("j-snapshots").read_bytes()
    with SqliteJournal(path) as journal:
        journal.drop("pruned")
    path.with_name("j-snapshots").write_bytes(kept)  # as if the process had ended in the middle of the drop
    with SqliteJournal(path) as journal:
        assert journal.snapshot("pruned") is None
        epoch = journal.reign("pruned")
        journal.append("pruned", epoch, 1, b"")
        assert journal.snapshot("pruned") is None
        journal.save_snapshot("pruned", 1, b"new")
        found = journal.snapshot("pruned")
        assert found
        assert found.payload == b"new"
