"""Finished jobs, for replays and estimates: their specifications, submit times and run times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlead.core.model import JobSpec, Micros, Stage
from fairlead.history.databases import Tables
from fairlead.history.recorder import decode_spec
from fairlead.history.store import BEGAN

AT_ONCE = 500
LAST = 400
"""The number of newest attempt rows from which the run time of a stage of an unfinished job is computed."""


class RanStage(msgspec.Struct, frozen=True, gc=False):
    """The tasks of a stage that succeeded or failed: their mean run time and number."""

    mean: Micros
    tasks: int


class RanJob(msgspec.Struct, frozen=True, gc=False):
    number: int
    id: str
    submitted: Micros
    ended: Micros
    spec: JobSpec
    ran: dict[str, RanStage]
    took: dict[str, Micros]
    """Stage → the mean run time of its tasks, including killed tasks.

    Preempted and lost attempts count only if the stage has no others, because mostly another attempt follows them.
    """


def ran_jobs(tables: Tables, partition: str, since: Micros, most: int) -> list[RanJob]:
    """Return the last `most` jobs that ended after `since`, in the order of their ends.

    Jobs recorded by earlier versions are left out, because they have no specification.
    """
    with tables.session() as db:
        rows = list(
            db.run(
                "SELECT number, id, submitted, ended, spec FROM jobs WHERE ended > ? AND partition = ? AND spec <> '' "
                f"ORDER BY ended DESC, partition DESC, number DESC LIMIT {most:d}",
                (since, partition),
            )
        )
        rows.reverse()
        ran: dict[int, dict[str, RanStage]] = {}
        took: dict[int, dict[str, Micros]] = {}
        for at in range(0, len(rows), AT_ONCE):
            numbers = [row[0] for row in rows[at : at + AT_ONCE]]
            marks = ", ".join("?" * len(numbers))
            for number, stage, mean, tasks in db.run(
                f"SELECT number, stage, avg(ended - {BEGAN}), sum(tasks) FROM attempts WHERE partition = ? "
                f"AND outcome IN ('succeeded', 'failed') AND number IN ({marks}) GROUP BY number, stage",
                (partition, *numbers),
            ):
                if mean is not None:
                    ran.setdefault(number, {})[stage] = RanStage(max(0, round(mean)), int(tasks))
            for number, stage, mean, _ in db.run(
                "SELECT number, stage, sum(ran * tasks) / sum(tasks), again FROM (SELECT number, stage, "
                f"ended - {BEGAN} AS ran, CASE WHEN tasks > 0 THEN tasks ELSE 1 END AS tasks, "
                f"outcome IN ('preempted', 'lost') AS again FROM attempts WHERE partition = ? AND number IN ({marks})) "
                "AS blocks WHERE ran IS NOT NULL GROUP BY number, stage, again ORDER BY again DESC",
                (partition, *numbers),
            ):
                took.setdefault(number, {})[stage] = max(0, round(mean))
    return [
        RanJob(number, name, submitted, ended, decode_spec(spec), ran.get(number, {}), took.get(number, {}))
        for number, name, submitted, ended, spec in rows
    ]


def ran_stages(tables: Tables, partition: str, stages: Sequence[Stage]) -> Iterator[tuple[Stage, RanStage]]:
    """Yield the stages that have ended tasks, with the run time of their newest ended tasks (highest indices)."""
    last = (
        f"SELECT ended - {BEGAN} AS ran, tasks FROM attempts WHERE partition = ? AND number = ? AND stage = ? "
        f"AND outcome IN ('succeeded', 'failed') ORDER BY first DESC LIMIT {LAST}"
    )
    with tables.session() as db:
        for stage in stages:
            asked = (partition, stage.job.number, stage.name)
            for mean, tasks in db.run(f"SELECT avg(ran), sum(tasks) FROM ({last}) AS last", asked):
                if mean is not None:
                    yield stage, RanStage(max(0, round(mean)), int(tasks))
