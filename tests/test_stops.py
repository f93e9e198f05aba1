"""Causes that stop a writer, without lost or invented changes: full disks, unknown outcomes, fences, faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fairlead.core import cycle
from fairlead.core.changes import NodeMoved
from fairlead.core.commands import Kill, MarkReady, Submit
from fairlead.core.documents import parse_job
from fairlead.core.dump import dump
from fairlead.core.invariants import InvariantBroken, check_all
from fairlead.core.plan import Plan
from fairlead.journal import Damaged, Fenced, Journal, MemoryJournal, NotWritten, SqliteJournal, UnknownOutcome
from fairlead.journal.codec import encode, restore, stream_of
from fairlead.writer.writer import Stopped, Writer
from tests.kill_child import PARTITION, Driver

STREAM = stream_of(PARTITION)


def submission(name: str, size: int = 0) -> Submit:
    stage = {"resources": {"cpu": 1}, "environment": {"PADDING": "x" * size}}
    spec = parse_job({"name": "job", "user": "ann", "queue": "root.b", "stages": [stage]})
    return Submit(spec=spec, id=name, user="ann")


def started(journal: Journal) -> Driver:
    driver = Driver(journal, "stops")
    driver.begin()
    return driver


def is_stopped(writer: Writer, why: str) -> None:
    """Check that further turns are refused with the reason, and change nothing."""
    before = dump(writer.partition)
    for commands in ([submission("later")], []):
        with pytest.raises(Stopped, match=why):
            writer.cycle(commands, writer.partition.now)
    assert dump(writer.partition) == before


# -- a full disk -------------------------------------------------------------------------------------------------


class Small(SqliteJournal):
    """A journal whose file may not grow by more than some pages from now on."""

    def stay_small(self, pages: int) -> None:
        [(have,)] = self._file.run("PRAGMA page_count")
        self._file.run(f"PRAGMA max_page_count = {have + pages}")


def test_a_full_file(tmp_path: Path) -> None:
    journal = Small(tmp_path / "j")
    driver = started(journal)
    journal.stay_small(20)
    accepted = 0
    while True:
        before = dump(driver.state)
        seq = driver.writer.seq
        try:
            driver.cycle([submission(f"s{accepted}", 5_000)])
        except Stopped as stopped:
            problem = stopped
            break
        accepted += 1
    assert accepted > 3
    assert "full" in str(problem) and f"cycle {seq + 1} was not written" in str(problem)
    assert isinstance(problem.__cause__, NotWritten)
    assert (dump(driver.state), driver.writer.seq) == (before, seq)
    check_all(driver.state)
    is_stopped(driver.writer, "full")
    journal.close()
    with SqliteJournal(tmp_path / "j") as again:
        state, last = restore(again, PARTITION)
        assert (dump(state), last) == (before, seq)
        assert [f"s{at}" in state.jobs for at in range(accepted + 1)] == [True] * accepted + [False]
        later = Driver(again, "later")
        later.cycle([submission("later")])
        assert "later" in later.state.jobs


# Under a limit on the size of files a write fails half-way, as it does where a quota ends or a disk breaks.
LIMITED = """
import json, resource, sys
from fairlead.core.dump import dump
from fairlead.journal import SqliteJournal
from fairlead.writer.writer import Stopped
from tests.test_stops import started, submission

journal = SqliteJournal(sys.argv[1])
driver = started(journal)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
accepted = 0
while True:
    before, seq = dump(driver.state), driver.writer.seq
    try:
        driver.cycle([submission(f"s{accepted}", 3_000)])
        accepted += 1
    except Stopped as stopped:
        said = [str(stopped), type(stopped.__cause__).__name__]
        break
try:
    driver.cycle([])
    said.append("went on")
except Stopped as stopped:
    said.append(str(stopped))
print(json.dumps([accepted, seq, dump(driver.state) == before, *said]))
"""


@pytest.mark.parametrize("limit", [40_001, 65_536, 99_999])
def test_a_write_that_fails(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "j"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(limit)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accepted, seq, as_before, why, kind, then = json.loads(done.stdout)
    assert accepted and then == why
    assert kind in ("NotWritten", "UnknownOutcome")
    with SqliteJournal(path) as journal:
        state, last = restore(journal, PARTITION)
    check_all(state)
    assert all(f"s{at}" in state.jobs for at in range(accepted))
    if kind == "NotWritten":
        assert as_before
        assert (last, f"s{accepted}" in state.jobs) == (seq, False)
    else:
        assert last in (seq, seq + 1)
        assert (f"s{accepted}" in state.jobs) == (last == seq + 1)


# -- unknown outcomes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [True, False])
def test_an_unknown_outcome(written: bool) -> None:
    journal = MemoryJournal()
    driver = started(journal)
    driver.cycle([submission("answered")])
    seq = driver.writer.seq
    before = dump(driver.state)
    journal.break_next("unknown", written)
    with pytest.raises(Stopped, match=f"not known whether cycle {seq + 1} was written") as stopped:
        driver.cycle([submission("doubtful")])
    assert isinstance(stopped.value.__cause__, UnknownOutcome)
    is_stopped(driver.writer, "not known whether")
    after = dump(driver.state)  # the cycle is not taken back, because its outcome is unknown
    writer = Writer(journal, PARTITION)
    check_all(writer.partition)
    assert journal.last(STREAM) == writer.seq == seq + written
    assert dump(writer.partition) == (after if written else before)
    assert "answered" in writer.partition.jobs
    assert ("doubtful" in writer.partition.jobs) == written
    writer.cycle([submission("later")], driver.now)
    assert dump(restore(journal, PARTITION)[0]) == dump(writer.partition)


def test_a_write_that_certainly_failed() -> None:
    journal = MemoryJournal()
    driver = started(journal)
    before, seq = dump(driver.state), driver.writer.seq
    journal.break_next("failed")
    with pytest.raises(Stopped, match=f"cycle {seq + 1} was not written"):
        driver.cycle([submission("gone")])
    assert (dump(driver.state), driver.writer.seq, journal.last(STREAM)) == (before, seq, seq)
    is_stopped(driver.writer, "was not written")
    assert dump(Writer(journal, PARTITION).partition) == before


@pytest.mark.parametrize("how", ["failed", "unknown", "unknown, written"])
def test_random_commands_over_faults(how: str) -> None:
    """Whatever a cycle was about to do, taken back or not, the next writer has the state of the journal."""
    journal = MemoryJournal()
    driver = started(journal)
    for _ in range(60):
        for _ in range(driver.dice.randrange(4)):
            driver.cycle()
        journal.break_next("failed" if how == "failed" else "unknown", how.endswith("written"))
        while True:  # a cycle without changes writes nothing
            before, seq = dump(driver.state), driver.writer.seq
            try:
                driver.cycle()
            except Stopped:
                break
        if how == "failed":
            assert dump(driver.state) == before
            check_all(driver.state)
        now = driver.now
        driver = Driver(journal, "stops")
        driver.now = now
        assert driver.writer.seq == seq + how.endswith("written")
        if not how.endswith("written"):
            assert dump(driver.state) == before
        check_all(driver.state)
        driver.begin()


# -- fences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda _: MemoryJournal(), lambda path: SqliteJournal(path / "j")])
def test_an_old_writer_is_fenced(tmp_path: Path, make: Callable[[Path], Journal]) -> None:
    journal = make(tmp_path)
    old = started(journal)
    old.cycle([submission("first")])
    before = dump(old.state)
    new = Writer(journal, PARTITION)
    assert new.epoch > old.writer.epoch
    with pytest.raises(Stopped, match="fenced") as stopped:
        old.cycle([submission("second")])
    assert isinstance(stopped.value.__cause__, Fenced)
    assert dump(old.state) == before
    is_stopped(old.writer, "fenced")
    new.cycle([submission("third")], old.now)
    assert {"first", "third"} <= new.partition.jobs.keys() and "second" not in new.partition.jobs
    assert dump(restore(journal, PARTITION)[0]) == dump(new.partition)
    journal.close()


def test_another_process_takes_over(tmp_path: Path) -> None:
    with SqliteJournal(tmp_path / "j") as journal, SqliteJournal(tmp_path / "j") as other:
        old = started(journal)
        new = Writer(other, PARTITION)
        new.cycle([submission("new")], old.now)
        with pytest.raises(Stopped, match="fenced"):
            old.cycle([submission("old")])
        assert dump(restore(journal, PARTITION)[0]) == dump(new.partition)


# -- faults of Fairlead ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["intake", "expiry", "match"])
def test_a_fault_in_a_phase(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The phase does its work and then fails: all of the cycle is taken back, and the next one finds a sound state."""
    journal = MemoryJournal()
    driver = started(journal)
    for _ in range(30):
        driver.cycle()
    before, seq = dump(driver.state), driver.writer.seq
    real = getattr(cycle, phase)

    def fail(plan: Plan, *rest: object) -> None:
        real(plan, *rest)
        assert len(plan)
        raise ZeroDivisionError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(cycle, phase, fail)
        jobs = [Kill(job=name, operator=True) for name in driver.state.jobs]
        with pytest.raises(ZeroDivisionError):
            driver.cycle([submission("unlucky"), *jobs])
    assert (dump(driver.state), driver.writer.seq, journal.last(STREAM)) == (before, seq, seq)
    check_all(driver.state)
    driver.cycle([submission("lucky")])
    check_all(driver.state)
    assert dump(restore(journal, PARTITION)[0]) == dump(driver.state)


def test_a_broken_invariant_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = MemoryJournal()
    driver = started(journal)
    before = dump(driver.state)

    def broken(_: object) -> None:
        raise InvariantBroken("on purpose")

    monkeypatch.setattr(cycle.invariants, "check_touched", broken)
    with pytest.raises(InvariantBroken):
        driver.cycle([submission("unlucky")])
    assert dump(driver.state) == before
    assert dump(restore(journal, PARTITION)[0]) == before


class Interrupted(MemoryJournal):
    """A journal that is interrupted by Ctrl-C during an append, before or after the write."""

    when = ""

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        when, self.when = self.when, ""
        if when == "before":
            raise KeyboardInterrupt
        super().append(stream, epoch, seq, payload)
        if when == "after":
            raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_write(when: str) -> None:
    """It is unknown whether the record was written, so the writer must stop."""
    journal = Interrupted()
    driver = started(journal)
    seq = driver.writer.seq
    journal.when = when
    with pytest.raises((KeyboardInterrupt, Stopped)):
        driver.cycle([submission("doubtful")])
    with pytest.raises(Stopped):
        driver.cycle([submission("later")])
    state, last = restore(journal, PARTITION)
    assert last == seq + (when == "after")
    assert "later" not in state.jobs


def test_a_cycle_that_cannot_be_encoded() -> None:
    journal = MemoryJournal()
    driver = started(journal)
    before, seq = dump(driver.state), driver.writer.seq
    driver.now = 2**70  # a time that no record can hold
    with pytest.raises((OverflowError, Stopped)):
        driver.cycle([submission("late")])
    assert (dump(driver.state), driver.writer.seq) == (before, seq)


# -- records that do not replay ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["no such node", "not the format", "not msgpack", "empty"])
def test_a_record_that_does_not_replay(tmp_path: Path, what: str) -> None:
    payload = {
        "no such node": encode(10**12, [NodeMoved(77, "lost")]),
        "not the format": msgspec.msgpack.encode((1, "soon", [])),
        "not msgpack": b"\xc1\xc1",
        "empty": b"",
    }[what]
    with SqliteJournal(tmp_path / "j") as journal:
        driver = started(journal)
        seq = driver.writer.seq + 1
        journal.append(STREAM, driver.writer.epoch, seq, payload)
        with pytest.raises(Damaged, match=rf"record {seq} of {STREAM}"):
            restore(journal, PARTITION)
        with pytest.raises(Damaged, match=rf"record {seq} of {STREAM}"):
            Writer(journal, PARTITION)


def test_a_snapshot_that_does_not_load() -> None:
    journal = MemoryJournal()
    driver = started(journal)
    driver.cycle([submission("one"), MarkReady(operator=True)])
    document = msgspec.msgpack.decode(dump(driver.state))
    document[7] = [queue for queue in document[7] if queue[0] != "root"]  # the tree without its root
    for payload in (b"", b"\xc1", msgspec.msgpack.encode(document)):
        journal.save_snapshot(STREAM, driver.writer.seq, payload)
        with pytest.raises(Damaged, match=rf"snapshot {driver.writer.seq} of {STREAM}"):
            restore(journal, PARTITION)
