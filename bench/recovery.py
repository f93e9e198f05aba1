"""The time of a restart: from a snapshot and later records to the state, in a fresh process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.harness import MEGABYTE, Row, in_child, loop_seconds, peak
from bench.worlds import PARTITION, Large, open_writer
from fairlead.core.dump import dump
from fairlead.core.invariants import check_all
from fairlead.journal.codec import restore
from fairlead.journal.journal import NEWEST, Record, Snapshot
from fairlead.journal.postgresql import PostgresJournal
from fairlead.journal.sql import SqliteJournal
from fairlead.writer.writer import Writer

RECORD = 100


def recovery(scale: float) -> Iterator[Row]:
    nodes = max(8, round(10_000 * scale))
    running = max(256, round(50_000 * scale))
    pending = max(1_000, round(1_000_000 * scale))
    changes = max(RECORD, round(10_000 * scale))
    with tempfile.TemporaryDirectory() as folder:
        state = in_child(prepare, folder, nodes, running, pending, changes)
        times = in_child(recover, folder)
    whole = sum(times[part] for part in ("read", "load", "replay"))
    size = f"{nodes:,} nodes, {state['running']:,} running, {state['pending']:,} pending"
    yield Row(
        f"recovery: {size}, {changes:,} changes",
        whole,
        "s",
        max(5 * scale, 0.05),
        ratio=whole / times["loop"],
        against="plain loop",
        note=f"snapshot {state['snapshot'] / MEGABYTE:.1f} MB, highest {times['peak'] / MEGABYTE:,.0f} MB resident",
    )
    for part, what in (("read", "reading the snapshot"), ("load", "loading it"), ("replay", "replaying the changes")):
        yield Row(f"— {what}", times[part], "s", ratio=times[part] / times["loop"], against="plain loop")


def prepare(folder: str, nodes: int, running: int, pending: int, changes: int) -> dict[str, float]:
    """Write a snapshot and more records. Half of the running tasks have an allocation each, the others are in gangs."""
    writer = open_writer(Path(folder), "off")
    large = Large(writer, nodes)
    large.fill(running, running, pending)
    snapshot = dump(large.partition)
    writer.journal.save_snapshot(writer.stream, writer.seq, snapshot)
    jobs = large.partition.jobs.values()
    result: dict[str, float] = {
        "running": sum(stage.running() for job in jobs for stage in job.stages),
        "pending": sum(stage.waiting() for job in jobs for stage in job.stages),
        "snapshot": len(snapshot),
    }
    for _ in range(changes // RECORD):
        large.write(large.mix(RECORD))
    (Path(folder) / "expected").write_bytes(dump(large.partition))
    writer.journal.close()
    return result


def recover(folder: str) -> dict[str, float]:
    """Measure the real `restore`. The journal notes when it is read, to measure the parts."""
    loop = loop_seconds()
    with _Watched(Path(folder) / "journal") as journal:
        began = perf_counter()
        partition, _ = restore(journal, PARTITION)
        ended = perf_counter()
    highest = peak()
    assert dump(partition) == (Path(folder) / "expected").read_bytes()
    check_all(partition)
    return {
        "loop": loop,
        "read": journal.snapshot_given - began,
        "load": journal.records_asked - journal.snapshot_given,
        "replay": ended - journal.records_asked,
        "peak": highest,
    }


def recover_database(url: str) -> dict[str, float]:
    """Measure how long a new leader takes to load the state, from its first connection to the database."""
    began = perf_counter()
    with PostgresJournal(url) as journal:
        Writer(journal, PARTITION)
        return {"seconds": perf_counter() - began}


class _Watched(SqliteJournal):
    snapshot_given = 0.0
    records_asked = 0.0

    def snapshot(self, stream: str, upto: int = NEWEST) -> Snapshot | None:
        snapshot = super().snapshot(stream, upto)
        self.snapshot_given = perf_counter()
        return snapshot

    def read(self, stream: str, after: int = 0) -> Iterator[Record]:
        self.records_asked = perf_counter()
        return super().read(stream, after)
