"""The time until many nodes have joined, through commands, the writer and SQLite."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.harness import Row, loop_seconds, timed
from bench.worlds import batches, node_commands, open_writer
from fairlead.core.commands import AddNode


def joining(scale: float) -> Iterator[Row]:
    commands = node_commands(max(2, round(10_000 * scale)))
    for size, how in ((100, "batches of 100"), (len(commands), "one batch")):
        loop = loop_seconds()
        took, busy = _join(commands, size)
        what = f"{len(commands):,} nodes join, {how}"
        note = f"{busy:.2f} s of CPU"
        yield Row(what, took, "s", max(scale, 0.01), ratio=took / loop, against="plain loop", note=note)


def _join(commands: Sequence[AddNode], size: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        writer = open_writer(Path(folder))

        def join_all() -> None:
            for at, batch in enumerate(batches(commands, size)):
                writer.cycle(batch, 2 + at)

        took = timed(join_all)
        assert len(writer.partition.nodes) == len(commands)
        writer.journal.close()
    return took
