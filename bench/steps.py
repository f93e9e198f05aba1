"""Single steps on a large state: a cycle that does nothing, a dump and its load, and changes that are taken back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.harness import MEGABYTE, MICRO, Row, best, loop_seconds, seconds
from bench.worlds import GANG, Large, open_writer
from fairlead.core.changes import Change
from fairlead.core.dump import dump, load
from fairlead.core.plan import Plan


def steps(scale: float) -> Iterator[Row]:
    running = max(256, round(50_000 * scale))
    with tempfile.TemporaryDirectory() as folder:
        writer = open_writer(Path(folder), "off")
        large = Large(writer, nodes=max(8, round(10_000 * scale)))
        large.fill(running, running, max(1_000, round(1_000_000 * scale)))
        loop = loop_seconds()
        turns = max(10, round(1_000 * scale))

        def idle() -> None:
            for _ in range(turns):
                writer.cycle([], large.partition.now + 1)

        took = seconds(idle) / turns
        yield Row("a cycle that does nothing", took * MICRO, "µs", ratio=took / loop, against="plain loop")
        yield from _dumping(large, loop)
        yield from _undoing(large, loop, max(10, round(5_000 * scale)))
        writer.journal.close()


def _dumping(large: Large, loop: float) -> Iterator[Row]:
    data = dump(large.partition)
    note = f"{len(data) / MEGABYTE:.1f} MB"
    for what, work in (("dump", lambda: dump(large.partition)), ("load", lambda: load(data))):
        took = best(work)
        yield Row(f"{what} of the large state", took, "s", ratio=took / loop, against="plain loop", note=note)


def _undoing(large: Large, loop: float, times: int) -> Iterator[Row]:
    """Measure making and undoing the same change again and again."""
    gang = large.next_job()
    large.write(large.submit(GANG))
    number = next(iter(large.partition.allocations))
    cases: dict[str, Callable[[], Iterable[Change]]] = {
        "a submit": lambda: large.submit(1),
        "a placement of 64 tasks on 8 nodes": lambda: large.place(gang, (0, GANG)),
        "a placement of one task": lambda: large.place(gang, (0, 1)),
        "an end": lambda: large.end(number),
    }
    for what, case in cases.items():
        plan = Plan(large.partition, large.partition.now)
        changes = list(_drawn(plan, case()))

        def work(plan: Plan = plan, changes: list[Change] = changes) -> None:
            for _ in range(times):
                for change in changes:
                    plan.do(change)
                plan.rollback(0)

        took = seconds(work) / times
        yield Row(f"made and undone: {what}", took * MICRO, "µs", ratio=took / loop, against="plain loop")


def _drawn(plan: Plan, changes: Iterable[Change]) -> list[Change]:
    """Draw changes, each on the state that the earlier ones left, and undo them."""
    drawn: list[Change] = []
    for change in changes:
        plan.do(change)
        drawn.append(change)
    plan.rollback(0)
    return drawn
