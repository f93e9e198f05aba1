"""Makes snapshots in a second process, from the last snapshot and the journal, while the writer keeps running.

    python -m fairlead.journal.snapshot PATH PARTITION [SECONDS]

If PATH is `-`, the journal is the database that FAIRLEAD_DATABASE names. The process also deletes the records before
the previous snapshot that are older than SECONDS. `Snapshots` starts the process when a snapshot is due.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO

from fairlead.core.dump import dump, load
from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.journal.chained import ChainedJournal
from fairlead.journal.codec import replay, restore, stream_of, time_of
from fairlead.journal.disk_space import is_tight
from fairlead.journal.journal import JournalError, Locked
from fairlead.journal.locate import is_url, open_journal

DATABASE = "FAIRLEAD_DATABASE"
"""The environment variable with the address of the database."""
EVERY = 10_000
PAUSE = 0.5
"""Seconds between two snapshots of a partition while its disk is nearly full."""
_PATIENCE = 5.0  # seconds from SIGTERM to SIGKILL


def make_snapshot(path: str | os.PathLike[str], partition: str) -> int:
    """Save the state of a partition as of its last record, and return that record's number."""
    with open_journal(path, read_only=not is_url(path)) as journal:
        state, seq = restore(journal, partition)
        if not seq:
            raise JournalError(f"{journal.path}: partition {partition!r} has no records; check the name")
        journal.save_snapshot(stream_of(partition), seq, dump(state))
    return seq


def renew(path: str | os.PathLike[str], partition: str, age: int = 0) -> int:
    """Make a snapshot, then delete the records before the previous snapshot that are older than `age` seconds.

    On a disk that is nearly full, all records before the new snapshot are deleted.

    A snapshot stays where the remaining records begin, so that a backup can be restored to any of these records.
    """
    stream = stream_of(partition)
    tight = not is_url(path) and is_tight(Path(path).parent)
    with open_journal(path, read_only=True) as journal:
        before = journal.snapshot(stream)
        is_new = before is not None and before.seq == journal.last(stream)
    if before is not None and is_new and not tight:
        return before.seq
    seq = before.seq if before is not None and is_new else make_snapshot(path, partition)
    if tight:
        with open_journal(path) as journal:
            journal.prune(stream, seq)
    elif before is not None:
        # If the new snapshot is damaged, recovery needs the previous one and the records after it.
        with suppress(Locked), open_journal(path) as journal:  # if the writer is busy, the next call prunes
            upto = _keep_age(journal, partition, before.seq, age * SECOND) if age else before.seq
            journal.prune(stream, upto)
    return seq


def renew_all(path: str | os.PathLike[str]) -> None:
    """Renew the snapshots of all partitions."""
    prefix = stream_of("")
    with open_journal(path, read_only=True) as journal:
        partitions = [stream.removeprefix(prefix) for stream in journal.streams() if stream.startswith(prefix)]
    for partition in partitions:
        renew(path, partition)


def _keep_age(journal: ChainedJournal, partition: str, before: int, age: Micros) -> int:
    """Return the last record up to `before` that is older than `age`, after saving a snapshot at that record."""
    stream = stream_of(partition)
    base = journal.state_of(stream)[0].base
    state = Partition(partition)
    if base:
        first = journal.load_snapshot(stream, base)
        if first is None:
            return before  # without a state before them, these records cannot be restored
        state = load(first.payload)
    end = time_of(next(journal.read(stream, journal.last(stream) - 1)).payload, stream) - age
    cut = base
    for record in journal.read(stream, base):
        where = f"record {record.seq} of {stream}"
        if record.seq > before or time_of(record.payload, where) > end:
            break
        replay(state, record.payload, where)
        cut = record.seq
    if cut in (base, before):
        return cut
    journal.save_snapshot(stream, cut, dump(state))
    return cut


class Snapshots:
    """Makes the snapshots of one partition. Its server calls `poll`, which never blocks, after each cycle."""

    def __init__(
        self, path: str | os.PathLike[str], partition: str, last: int = 0, every: int = EVERY, age: int = 0
    ) -> None:
        """`last` is the record of the newest snapshot, or 0. A snapshot is due `every` records after it.

        If `age` is not 0, a snapshot is also due after that many seconds, and records are kept for that many seconds.
        """
        self.last = last
        self.failure = ""
        """Why the latest attempt failed; empty after a success."""
        self._every = every
        self._wait_until = 0
        place, self._environment = os.fspath(path), dict(os.environ)
        if is_url(path):  # other users can read the arguments of a process, and the address may have a password
            place, self._environment[DATABASE] = "-", os.fspath(path)
        self._command = [sys.executable, "-P", "-m", "fairlead.journal.snapshot", place, partition, str(age)]
        self._age = age
        self._folder = None if is_url(path) else Path(path).parent
        self._made = monotonic()
        self._child: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._began_at = 0

    @property
    def pid(self) -> int | None:
        """The pid of the running process, or None."""
        return None if self._child is None else self._child.pid

    def poll(self, seq: int) -> None:
        """Collect an ended process, and start a new one if a snapshot is due. `seq` is the last record."""
        if self._child is not None and self._child.poll() is not None:
            self._collect()
        due = seq - self.last >= self._every or (self._age and seq > self.last and monotonic() > self._made + self._age)
        due = due or self._needs_space(seq)
        if self._child is None and due and seq >= self._wait_until:
            self._start(seq)

    def _needs_space(self, seq: int) -> bool:
        """True if the disk is nearly full and records have come since the last snapshot, not too shortly before."""
        if self._folder is None or seq <= self.last or monotonic() < self._made + PAUSE:
            return False
        return is_tight(self._folder)

    def close(self) -> None:
        """End a running process. Its unfinished snapshot is lost."""
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._forget()

    def _start(self, seq: int) -> None:
        self._began_at, self._made = seq, monotonic()
        try:
            # Not a pipe: the process would block on a full pipe.
            self._output = tempfile.TemporaryFile()  # noqa: SIM115
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                env=self._environment,
            )
        except OSError as problem:
            self._fail(f"the process cannot be started: {problem}")
            self._forget()

    def _collect(self) -> None:
        assert self._child is not None and self._output is not None
        if self._child.returncode:
            self._output.seek(0)
            text = self._output.read(10_000).decode(errors="replace").strip()
            self._fail(text or f"the process ended with {self._child.returncode} and no message")
        else:
            self.last, self.failure = self._began_at, ""
        self._forget()

    def _fail(self, why: str) -> None:
        self.failure = f"no snapshot at record {self._began_at}: {why}"
        self._wait_until = self._began_at + max(1, self._every // 10)  # an immediate retry would likely fail too

    def _forget(self) -> None:
        if self._output is not None:
            self._output.close()
        self._child = self._output = None


def main(arguments: list[str]) -> int:
    if len(arguments) not in (2, 3) or not (arguments[2:] or ["0"])[0].isdecimal():
        print("usage: python -m fairlead.journal.snapshot PATH PARTITION [SECONDS]", file=sys.stderr)
        return 2
    try:
        path, partition, *age = arguments
        renew(os.environ.get(DATABASE, path) if path == "-" else path, partition, int("".join(age) or 0))
    except (JournalError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
