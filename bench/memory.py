"""Memory of waiting jobs: resident, above that of the same process with an empty partition."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import MEGABYTE, Row, in_child, peak, resident
from bench.worlds import PARTITION, batches, job_text, open_writer, submits
from fairlead.core.dump import dump
from fairlead.journal.codec import restore
from fairlead.journal.sql import SqliteJournal


def memory(scale: float) -> Iterator[Row]:
    few = max(1, round(1_000 * scale))
    many = max(1, round(100_000 * scale))
    yield from _rows(f"{few * 1_000:,} pending tasks of {few:,} jobs", few, 1_000, 50 * scale)
    yield from _rows(f"{many:,} jobs of one task", many, 1, 100 * scale)


def _rows(what: str, jobs: int, tasks: int, goal: float) -> Iterator[Row]:
    documents = sum(len(job_text(at, tasks)) for at in range(jobs))
    with tempfile.TemporaryDirectory() as folder:
        results = [
            ("memory", in_child(submitted, folder, jobs, tasks), goal),
            ("memory after recovery", in_child(recovered, folder), None),
        ]
    for which, result, most in results:
        used = result["used"]
        note = f"{used / jobs:,.0f} bytes a job, highest on the way {result['peak'] / MEGABYTE:,.0f} MB"
        yield Row(
            f"{which}, {what}", used / MEGABYTE, "MB", most, ratio=used / documents, against="their JSON", note=note
        )


def submitted(folder: str, jobs: int, tasks: int) -> dict[str, float]:
    """Submit through the writer, in batches, and save a snapshot."""
    writer = open_writer(Path(folder))
    empty = resident()
    for at, batch in enumerate(batches(submits(jobs, tasks))):
        writer.cycle(batch, 2 + at)
    used, highest = resident() - empty, peak() - empty
    writer.journal.save_snapshot(writer.stream, writer.seq, dump(writer.partition))
    writer.journal.prune(writer.stream, writer.seq)
    writer.journal.close()
    return {"used": used, "peak": highest}


def recovered(folder: str) -> dict[str, float]:
    with SqliteJournal(Path(folder) / "journal") as journal:
        nothing, _ = restore(journal, "nothing")
        empty = resident()
        partition, _ = restore(journal, PARTITION)
        used = resident() - empty
    assert not nothing.jobs and partition.jobs
    return {"used": used, "peak": peak() - empty}
