"""Durable changes a second, 100 a cycle: by a plan and the journal alone, and through the whole writer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.harness import MICRO, Row, raw_commit_seconds, timed
from bench.worlds import BATCH, Large, batches, open_writer, reports, submits
from fairlead.core.commands import Command
from fairlead.journal.codec import encode


def durable(scale: float) -> Iterator[Row]:
    cycles = max(2, round(500 * scale))
    with tempfile.TemporaryDirectory() as folder:
        writer = open_writer(Path(folder))
        large = Large(writer, nodes=max(8, round(10_000 * scale)))
        large.fill(max(100, round(10_000 * scale)), 0, 0)
        yield from _by_plan(large, cycles, Path(folder))
        submitted = list(submits(cycles * BATCH, 1))
        yield _through(large, "submits", submitted, Path(folder))
        for batch in batches(submitted):
            large.write(change for command in batch for change in large.place(command.id, (0, 1)))
        jobs = [command.id for command in submitted]
        yield _through(large, "acknowledgements", list(reports(large.partition, jobs, "running")), Path(folder))
        yield _through(large, "ends", list(reports(large.partition, jobs, "succeeded")), Path(folder))
        writer.journal.close()


def _by_plan(large: Large, cycles: int, folder: Path) -> Iterator[Row]:
    records: list[bytes] = []

    def work() -> None:
        for _ in range(cycles):
            records.append(large.write(large.mix(BATCH)))

    yield _row("changes by plan and journal (submit, ask, place, acknowledge, end)", work, records, folder)


def _through(large: Large, what: str, commands: Sequence[Command], folder: Path) -> Row:
    records: list[bytes] = []
    turns = list(batches(commands))

    def work() -> None:
        for turn in turns:
            now = large.partition.now + 1_000
            decided = large.writer.cycle(turn, now)
            records.append(encode(now, decided.changes))

    return _row(f"{what} through the writer", work, records, folder)


def _row(what: str, work: Callable[[], None], records: Sequence[bytes], folder: Path) -> Row:
    """Run `work`, which fills `records`, then write the same records by plain commits."""
    took, busy = timed(work)
    raw = raw_commit_seconds(folder / "raw", records)
    size = sum(map(len, records)) / len(records)
    return Row(
        what,
        len(records) * BATCH / took,
        "/s",
        ratio=took / raw,
        against="plain sqlite3 commits of the same records",
        note=f"{busy / len(records) / BATCH * MICRO:.0f} µs of CPU each; "
        f"{len(records) / raw:,.0f} plain commits/s of {size:,.0f} bytes",
    )
