"""How many equal tasks fit a node, and which devices they get. Plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = 1000  # milli-GPU of one device


def room(free: Sequence[tuple[int, int]], wanted: int) -> int:
    """How many of `wanted` tasks fit, from (free, asked) pairs of every resource asked for."""
    for have, asked in free:
        if have < asked:
            return 0
        wanted = min(wanted, have // asked)
    return wanted


def choose_devices(used: Sequence[int], count: int, per_task: int, milli: int, tasks: int) -> tuple[int, ...]:
    """Devices for as many of `tasks` as fit, task after task; a task takes whole devices or a part of one.

    Whole devices are taken in their order. A part goes where the least is left over, so that whole devices stay
    whole.
    """
    if milli == WHOLE:
        free = [device for device in range(count) if device >= len(used) or not used[device]]
        fitting = min(tasks, len(free) // per_task)
        return tuple(free[: fitting * per_task])
    left = [WHOLE - (used[device] if device < len(used) else 0) for device in range(count)]
    chosen: list[int] = []
    for _ in range(tasks):
        best = min(
            (device for device in range(count) if left[device] >= milli),
            key=lambda d: (left[d], d),
            default=-1,
        )
        if best < 0:
            break
        left[best] -= milli
        chosen.append(best)
    return tuple(chosen)


def overbook_devices(used: Sequence[int], count: int, per_task: int, milli: int) -> tuple[int, ...]:
    """Devices for one task that runs already: free ones if there are, else the least used, beyond them if need be."""
    if not per_task:
        return ()
    fitting = choose_devices(used, count, per_task, milli, 1)
    if fitting:
        return fitting
    order = sorted(range(max(count, per_task)), key=lambda d: (used[d] if d < len(used) else 0, d))
    return tuple(sorted(order[:per_task]))
