"""Arithmetic of fit: how many equal tasks fit on a node, and which devices they get."""

from __future__ import annotations

from collections.abc import Sequence

WHOLE = 1000  # milli-GPU of one device


def count_fitting(free: Sequence[tuple[int, int]], wanted: int) -> int:
    """Return how many of `wanted` tasks fit. `free` has a pair (free, asked by a task) for each resource."""
    for available, asked in free:
        if available < asked:
            return 0
        wanted = min(wanted, available // asked)
    return wanted


def choose_devices(used: Sequence[int], count: int, per_task: int, milli: int, tasks: int) -> tuple[int, ...]:
    """Return the devices of the first task, then of the second, and so on, for as many tasks as fit.

    A task takes whole devices in order, or a part of the fullest device that has enough left.
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
            key=lambda device: (left[device], device),
            default=-1,
        )
        if best < 0:
            break
        left[best] -= milli
        chosen.append(best)
    return tuple(chosen)


def overbook_devices(used: Sequence[int], count: int, per_task: int, milli: int) -> tuple[int, ...]:
    """Return devices for a task that runs already: free devices or, if there are too few, the least used ones."""
    if not per_task:
        return ()
    fitting = choose_devices(used, count, per_task, milli, 1)
    if fitting:
        return fitting
    order = sorted(range(max(count, per_task)), key=lambda device: (used[device] if device < len(used) else 0, device))
    return tuple(sorted(order[:per_task]))
