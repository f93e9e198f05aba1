"""The order of a lane: a function that turns a reservation's plain values into a sort key, lowest first.

Another order is another function of this signature in `ORDERS`: of the kind (already merged with `new` where a queue
says `scale_first: false`), the job's priority, how many of its tasks run, when it was asked for, and whether these are
replacements that a started gang needs to reach `min`. The key is followed by the reservation's place among those of one
instant (its sequence number, or that of the ask whose place it came back to) and by its sequence number, so that the
order is total. A place may change with each of these values but the kind: the priority of a job when it is set, the
tasks that run under `fair` only, and the last one for replacements only; see `Lane`.
"""

from __future__ import annotations

from collections.abc import Callable

Key = tuple[int, ...]


def by_priority(kind: int, priority: int, running: int, asked: int, below_min: bool) -> Key:
    return (not below_min, -priority, kind, asked)


def first_in_first_out(kind: int, priority: int, running: int, asked: int, below_min: bool) -> Key:
    return (kind, asked)


def fair(kind: int, priority: int, running: int, asked: int, below_min: bool) -> Key:
    return (kind, running, asked)


ORDERS: dict[str, Callable[[int, int, int, int, bool], Key]] = {
    "priority": by_priority,
    "fifo": first_in_first_out,
    "fair": fair,
}
