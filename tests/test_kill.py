"""A writer is killed at random instants, over and over on one journal; all that it had answered is there afterwards.

The child (kill_child.py) prints each record before and after its commit. The restored state must be exactly the one
after the last committed record, or the one after the record that was being committed.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import psutil
import pytest

from fairlead.core.invariants import check_all
from fairlead.core.state import Partition
from fairlead.journal import SqliteJournal
from fairlead.journal.codec import restore
from tests.kill_child import KEPT, PARTITION, digest

EVERY = 25  # records between snapshots, so that there is nearly always one under way
SCRIPT = Path(__file__).parent / "kill_child.py"


class Child:
    """The process and its output."""

    def __init__(self, path: Path, seed: int) -> None:
        # A group of its own: that is how its snapshot process can be killed along with it.
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(path), str(seed), str(EVERY)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._pipe = self.process.stdout.fileno()
        self._text = b""

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._text.decode().splitlines()]

    def count(self, word: str) -> int:
        return sum(1 for line in self.lines() if line[0] == word)

    def read(self, lines: int, word: str = "", seconds: float = 60.0) -> None:
        """Read until there are `lines` lines (with this first word), the time is over or the child has ended."""
        until = time.monotonic() + seconds
        while (self.count(word) if word else self._text.count(b"\n")) < lines:
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, until - time.monotonic()))
            text = os.read(self._pipe, 65536) if ready else b""
            if not text:
                return
            self._text += text

    def kill(self, group: bool) -> None:
        # The child has not been waited for yet, so its number, which is also the group's, is still its own.
        if group:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.read(sys.maxsize)
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.process.wait() == -signal.SIGKILL, said
        assert self._text.endswith(b"\n") or not self._text


def end_by(dice: Random, child: Child) -> str:
    """Kill the child at some instant. The instant must not matter."""
    how = dice.choice(["lines", "lines", "delay", "start", "snapshot", "snapshot"])
    group = dice.random() < 0.5
    match how:
        case "lines":
            child.read(dice.randrange(1, 150))
        case "delay":
            child.read(1)
            child.read(sys.maxsize, seconds=dice.random() * 0.4)
        case "start":
            child.read(sys.maxsize, seconds=dice.random() * 0.5)
        case "snapshot":
            child.read(1, "snapshot")
            child.read(sys.maxsize, seconds=dice.random() * 0.4)
    child.kill(group)
    return f"{how}{' with its snapshot process' if group else ''}"


class Truth:
    """What the children reported, over all kills."""

    def __init__(self) -> None:
        self.epoch = self.seq = 0
        self.possible = {0: ""}
        """The records that may be the last, with the digest of the state after each; unknown before the first start."""
        self.submitted: dict[str, int] = {}
        self.killed: set[str] = set()
        self.snapshot_pids: set[int] = set()

    def add(self, lines: list[list[str]], what: str) -> None:
        """Add the lines of a child."""
        for word, *rest in lines:
            match word:
                case "open":
                    epoch, seq = int(rest[0]), int(rest[1])
                    assert epoch > self.epoch, what
                    self.epoch = epoch
                    assert self.possible.get(seq) in ("", rest[2]), f"{what}: {seq} is not one of {self.possible}"
                    self.possible = {seq: rest[2]}
                case "writing":
                    self.possible[int(rest[0])] = rest[1]
                case "written":
                    self.possible = {int(rest[0]): self.possible[int(rest[0])]}
                case "answer":
                    assert int(rest[0]) in self.possible, what
                    if rest[2] == "Submit":
                        self.submitted.setdefault(rest[3], int(rest[1]))
                    elif rest[2] == "Kill":
                        self.killed.add(rest[3])
                case "snapshot":
                    self.snapshot_pids.add(int(rest[0]))
                case _:
                    raise AssertionError(f"{what}: {word} {' '.join(rest)}")

    def check(self, state: Partition, seq: int, what: str) -> None:
        assert seq in self.possible, f"{what}: the last record is {seq}, announced were {list(self.possible)}"
        if self.possible[seq]:
            assert digest(state) == self.possible[seq], f"{what}: not the state that record {seq} was to lead to"
        for job, when in self.submitted.items():
            assert job in state.jobs or when + KEPT <= state.now, f"{what}: job {job} was accepted and is not known"
        for job in self.killed & state.jobs.keys():
            # A manager may name a job again that was killed just before.
            assert state.jobs[job].over or state.jobs[job].spec.manager, f"{what}: job {job} was killed and lives"
        # A commit in progress may show only later: while a snapshot process is connected, SQLite does not look
        # for what a killed writer had written but not yet entered in the log's index. A new reign settles it.
        self.seq = seq
        self.possible = {each: found for each, found in self.possible.items() if each >= seq}


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.long)])
def test_killed_writers(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "journal"
    seed = 1
    dice = Random(seed)
    truth = Truth()
    for number in range(kills):
        child = Child(path, seed)
        try:
            how = end_by(dice, child)
        finally:
            if child.process.returncode is None:
                os.killpg(child.process.pid, signal.SIGKILL)
        what = f"kill {number} ({how})"
        truth.add(child.lines(), what)
        if path.exists():  # else it was killed before it began
            check(path, truth, what, read_only=dice.random() < 0.5)
    assert truth.seq > kills and truth.snapshot_pids
    wait_for(truth.snapshot_pids)
    check(path, truth, "in the end", read_only=False)
    with SqliteJournal(path) as journal:
        assert journal.reign(f"partition/{PARTITION}") > truth.epoch


def check(path: Path, truth: Truth, what: str, read_only: bool) -> None:
    # A file that was only just created can be opened for writing, which completes it, but has nothing to read.
    with SqliteJournal(path, read_only=read_only and bool(truth.seq)) as journal:
        state, seq = restore(journal, PARTITION)
    check_all(state)
    truth.check(state, seq, what)


def wait_for(pids: set[int]) -> None:
    """Snapshot processes that outlived their writers end by themselves."""
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if "fairlead.journal.snapshot" in process.cmdline():
                process.wait(30)
