"""Filters of finished jobs, as SQL conditions."""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.model import Micros
from fairlead.history.databases import Session


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of finished jobs. Fields that are empty or None exclude no job."""

    user: str = ""
    queue: str = ""
    """Jobs of this queue and of the queues below it."""
    state: str = ""
    name: str = ""
    """A pattern: `*` stands for any text, `?` for one character, `[abc]` for one of these."""
    label: tuple[str, str] | None = None
    since: Micros | None = None
    """Jobs that ended at this time or later."""
    until: Micros | None = None
    """Jobs that ended before this time."""
    node: str = ""
    """A node on which a task of the job ran."""
    ids: tuple[str, ...] = ()


EVERY_JOB = JobFilter()
CONDITIONS = {
    "user": '"user" = :user',
    "queue": "(queue = :queue OR substr(queue, 1, length(:queue) + 1) = :queue || '.')",
    "state": "state = :state",
    "since": "ended >= :since",
    "until": "ended < :until",
    "node": "EXISTS (SELECT 1 FROM attempts WHERE attempts.partition = jobs.partition "
    "AND attempts.number = jobs.number AND node = :node)",
}


def condition(db: Session, wanted: JobFilter) -> tuple[str, dict[str, Any]]:
    """Return a filter as an SQL condition on the table `jobs`, and the values of its parameters."""
    values = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value not in ("", None, ())}
    conditions = [CONDITIONS[name] for name in values if name in CONDITIONS]
    if wanted.name:
        matches, more = db.matches("name", values.pop("name"))
        conditions.append(matches)
        values |= more
    if wanted.ids:
        conditions.append(f"id IN ({db.members('ids')})")
        values["ids"] = msgspec.json.encode(wanted.ids).decode()
    if wanted.label is not None:
        conditions.append(f"EXISTS (SELECT 1 FROM {db.entries('labels')} AS label WHERE key = :key AND value = :value)")
        values["key"], values["value"] = values.pop("label")
    return " AND ".join(conditions) or "1 = 1", values
