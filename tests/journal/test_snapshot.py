"""Snapshots by a second process: what they hold, which records they prune, and that the writer never waits."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fairlead.core.dump import dump
from fairlead.core.invariants import check_all
from fairlead.journal import JournalError, Pruned, SqliteJournal
from fairlead.journal.codec import restore, stream_of, time_of
from fairlead.journal.snapshot import Snapshots, main, make_snapshot, renew
from fairlead.journal.verify import verify
from fairlead.testing import World
from tests.kill_child import PARTITION, Driver
from tests.until import until

STREAM = stream_of(PARTITION)


class Live:
    """A journal and the driver that writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = SqliteJournal(path, synchronous="off")
        self.driver = Driver(self.journal, "snapshots")
        self.driver.begin()

    def write(self, upto: int) -> None:
        """Write records up to `upto`."""
        while self.driver.writer.seq < upto:
            self.driver.cycle()

    def saved(self) -> int:
        snapshot = self.journal.snapshot(STREAM)
        return snapshot.seq if snapshot else 0

    def first(self) -> int:
        """The first record that is still there."""
        for after in range(self.driver.writer.seq):
            try:
                return next(self.journal.read(STREAM, after)).seq
            except Pruned:
                pass
        raise AssertionError("no records")

    def check(self) -> None:
        state, seq = restore(self.journal, PARTITION)
        check_all(state)
        assert seq == self.driver.writer.seq
        assert dump(state) == dump(self.driver.state)


@pytest.fixture
def live(tmp_path: Path):  # type: ignore[no-untyped-def]
    live = Live(tmp_path / "j")
    yield live
    live.journal.close()


def settle(snapshots: Snapshots) -> None:
    """Wait until the process that is under way has ended. At record 0 another one is never due."""

    def is_over() -> bool:
        snapshots.poll(0)
        return snapshots.pid is None

    until(is_over, 600)


# -- one snapshot ------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_state_after_its_record(live: Live) -> None:
    live.write(30)
    before = dump(live.driver.state)
    assert make_snapshot(live.path, PARTITION) == 30
    found = live.journal.snapshot(STREAM)
    assert found is not None and (found.seq, found.payload) == (30, before)
    live.write(50)
    live.check()


def test_snapshots_of_snapshots(live: Live) -> None:
    for seq in (10, 20, 35):
        live.write(seq)
        assert make_snapshot(live.path, PARTITION) == seq
        live.check()
    live.write(40)
    live.check()


def test_the_records_are_not_written_to(live: Live) -> None:
    live.write(20)
    live.journal.close()
    before = live.path.read_bytes(), live.path.with_name("j-head").read_bytes()
    make_snapshot(live.path, PARTITION)
    assert before == (live.path.read_bytes(), live.path.with_name("j-head").read_bytes())


def test_no_such_partition(live: Live) -> None:
    with pytest.raises(JournalError, match="'other' has no records"):
        make_snapshot(live.path, "other")


def test_renewing_keeps_the_records_behind_the_snapshot_before(live: Live) -> None:
    live.write(20)
    assert renew(live.path, PARTITION) == 20
    assert live.first() == 1  # there is no older snapshot to fall back on
    live.write(40)
    assert renew(live.path, PARTITION) == 40
    assert live.first() == 21
    assert renew(live.path, PARTITION) == 40  # nothing new: nothing is done
    assert live.first() == 21
    live.write(60)
    assert renew(live.path, PARTITION) == 60
    assert live.first() == 41
    live.check()


def test_a_damaged_new_snapshot_costs_nothing(live: Live) -> None:
    for seq in (20, 40, 60):
        live.write(seq)
        renew(live.path, PARTITION)
    live.write(70)
    assert live.saved() == 60
    with contextlib.closing(sqlite3.connect(live.path.with_name("j-snapshots"))) as file, file:
        file.execute("UPDATE snapshots SET payload = substr(payload, 2) WHERE seq = 60")
    assert live.saved() == 40
    live.check()


# -- the process -------------------------------------------------------------------------------------------------


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead.journal.snapshot", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_process(live: Live) -> None:
    live.write(25)
    done = run(live.path, PARTITION)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert live.saved() == 25


def test_the_process_says_what_is_wrong(tmp_path: Path) -> None:
    done = run(tmp_path / "none", PARTITION)
    assert done.returncode == 1
    assert "no such journal" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "none").exists()


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one"]) == 2
    assert "usage" in capsys.readouterr().err


# -- beside a live writer ----------------------------------------------------------------------------------------


def test_beside_a_writer(live: Live) -> None:
    snapshots = Snapshots(live.path, PARTITION, every=20)
    snapshots.poll(live.driver.writer.seq)
    assert snapshots.pid is None  # not due
    started: set[int] = set()
    deadline = time.monotonic() + 600
    while len(started) < 4:
        assert time.monotonic() < deadline
        live.write(live.driver.writer.seq + 1)
        snapshots.poll(live.driver.writer.seq)
        if snapshots.pid is not None:
            started.add(snapshots.pid)
        time.sleep(0.001)  # the other process needs its turns as well
    settle(snapshots)
    assert snapshots.failure == ""
    assert snapshots.last <= live.saved()
    assert 1 < live.first() <= snapshots.last
    live.check()


def test_never_two_at_a_time(live: Live) -> None:
    live.write(10)
    snapshots = Snapshots(live.path, PARTITION, every=1)
    snapshots.poll(10)
    pid = snapshots.pid
    assert pid is not None
    assert [child.pid for child in psutil.Process().children() if child.pid == pid] == [pid]
    for _ in range(100):
        snapshots.poll(10)
        assert snapshots.pid in (pid, None)
    settle(snapshots)
    assert snapshots.last == 10


def test_polling_does_not_wait(live: Live, tmp_path: Path) -> None:
    live.write(10)
    snapshots = Snapshots(live.path, PARTITION, every=1)
    snapshots._command = [sys.executable, "-c", "import time; time.sleep(60)"]
    snapshots.poll(10)
    began = time.monotonic()
    for _ in range(10):
        snapshots.poll(10)
    assert time.monotonic() - began < 5
    snapshots.close()
    assert snapshots.pid is None


def test_a_failure_is_reported_and_not_repeated_at_once(live: Live) -> None:
    live.write(10)
    snapshots = Snapshots(live.path, "other", every=10)
    snapshots.poll(10)
    settle(snapshots)
    assert "no snapshot at record 10" in snapshots.failure and "'other' has no records" in snapshots.failure
    snapshots.poll(10)
    assert snapshots.pid is None
    snapshots.poll(11)
    assert snapshots.pid is not None
    settle(snapshots)


def test_much_to_say(live: Live) -> None:
    snapshots = Snapshots(live.path, PARTITION, every=1)
    snapshots._command = [sys.executable, "-c", "import sys; sys.stderr.write('x' * 1_000_000); sys.exit(3)"]
    snapshots.poll(1)
    settle(snapshots)
    assert 9_000 < len(snapshots.failure) < 11_000


def test_a_process_that_cannot_be_started(live: Live) -> None:
    snapshots = Snapshots(live.path, PARTITION, every=1)
    snapshots._command = [str(live.path.with_name("nothing"))]
    snapshots.poll(1)
    assert snapshots.pid is None
    assert "cannot be started" in snapshots.failure


def test_closing_ends_its_own_process_only(live: Live) -> None:
    live.write(10)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    snapshots = Snapshots(live.path, PARTITION, every=1)
    # It ignores the first signal, so that the second one is needed too.
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    for command in ("import time; time.sleep(60)", deaf):
        snapshots._command = [sys.executable, "-c", command]
        snapshots.poll(10)
        pid = snapshots.pid
        assert pid is not None
        snapshots.close()
        snapshots.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_success_clears_the_failure(live: Live) -> None:
    live.write(10)
    snapshots = Snapshots(live.path, PARTITION, every=5)
    good = snapshots._command
    snapshots._command = [sys.executable, "-c", "import sys; sys.exit(7)"]
    snapshots.poll(10)
    settle(snapshots)
    assert "ended with 7" in snapshots.failure
    snapshots._command = good
    snapshots.poll(11)
    settle(snapshots)
    assert (snapshots.failure, snapshots.last, live.saved()) == ("", 11, 10)


def test_records_are_kept_for_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with SqliteJournal(path) as journal:
        world = World(journal=journal)
        for number in range(30):
            world.node(f"n{number}", cpu=1)
            world.advance(60)
            world.cycle()
            if number % 2 == 1:
                renew(path, "default", age=300)
        truth, last = world.dump(), journal.last("partition/default")
    with SqliteJournal(path) as journal:
        oldest = journal.state_of("partition/default")[0].base
        kept = [time_of(record.payload, "") for record in journal.read("partition/default", oldest)]
        # Five minutes at the last snapshot, and nothing that is much older.
        assert journal.load_snapshot("partition/default", oldest) is not None
        assert kept[-1] - 300_000_000 <= kept[0] <= kept[-1] - 180_000_000
        assert [report.problem for report in verify(journal, lambda *_: None)] == ["", ""]
        state, seq = restore(journal, "default")
        assert (dump(state), seq) == (truth, last)


def test_a_snapshot_is_due_after_the_age_of_records(live: Live) -> None:
    snapshots = Snapshots(live.path, PARTITION, every=10**6, age=1)
    live.write(10)
    snapshots.poll(10)
    assert snapshots.pid is None

    def is_made() -> bool:
        snapshots.poll(10)
        return snapshots.last > 0

    until(is_made)
    assert live.saved() == 10
