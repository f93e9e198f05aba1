"""Records which logs were copied from nodes of pools, so that a restarted server copies only the missing ones.

The table `attempts` has the attempts that ran on a node; the table `copied` has those whose logs were copied.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.ranges import Ranges, difference
from fairlead.history.tables import Session
from fairlead.wire.agent_messages import Tasks


def mark_copied(db: Session, partition: str, node: str, tasks: Tasks) -> None:
    """Record that the logs of tasks were copied from their node."""
    indices = msgspec.json.encode(tasks.indices).decode()
    row = (partition, tasks.number, tasks.stage, tasks.attempt, indices, node)
    db.run("INSERT INTO copied VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)


def not_copied(db: Session, partition: str, nodes: list[str]) -> list[tuple[str, Tasks]]:
    """Return the ended tasks on these nodes whose logs were not copied, each with its node, the oldest first.

    Deletes the rows of `copied` for all other nodes, which no longer exist. Names of nodes are not used again.
    """
    among = f"node IN ({db.members('nodes')})"
    values: dict[str, Any] = {"partition": partition, "nodes": msgspec.json.encode(nodes).decode()}
    db.run(f"DELETE FROM copied WHERE partition = :partition AND NOT {among}", values)
    copied: dict[tuple[int, str, int], Ranges] = {}
    query = f"SELECT number, stage, attempt, indices FROM copied WHERE partition = :partition AND {among}"
    for number, stage, attempt, indices in db.run(query, values):
        done = copied.setdefault((number, stage, attempt), Ranges())
        flat = _flat(indices)
        done.add(difference(flat, done.overlap(flat)))
    query = (
        "SELECT job, number, stage, attempt, indices, node FROM attempts "
        f"WHERE partition = :partition AND tasks > 0 AND {among} ORDER BY rowid"
    )
    missing: list[tuple[str, Tasks]] = []
    for job, number, stage, attempt, indices, node in db.run(query, values):
        flat = _flat(indices)
        done = copied.get((number, stage, attempt), Ranges())
        rest = difference(flat, done.overlap(flat))
        if rest:
            missing.append((node, Tasks(job, number, stage, attempt, rest)))
    return missing


def _flat(indices: str) -> tuple[int, ...]:
    return msgspec.json.decode(indices, type=tuple[int, ...])
