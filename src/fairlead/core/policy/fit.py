"""Arithmetic of fit: how many equal tasks fit on a node, which devices they get, and how well a task fits.

Nodes are held for a starving gang by their score: free capacity compared with the request of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fairlead.core.policy.registry import Registry
from fairlead.core.resources import CPU, MEMORY

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


Key = tuple[int, ...]

MILLION = 1_000_000
BEST = 100 * MILLION


def resource_score(required: int, free: int) -> int:
    if not required:
        return BEST
    if required <= free:
        return BEST - BEST * required // free
    return BEST * max(0, free) // required - BEST


def node_score(required: Mapping[str, int], free: Mapping[str, int]) -> int:
    scores = {name: resource_score(amount, free.get(name, 0)) for name, amount in required.items()}
    cpu, memory = scores.pop(CPU, BEST), scores.pop(MEMORY, BEST)
    return combined(cpu, memory, list(scores.values()))


def combined(cpu: int, memory: int, others: list[int]) -> int:
    rest = sum(others) // len(others) if others else 0
    return ((cpu + memory) // 2 + 2 * rest) // 3


def is_exact(required: Mapping[str, int], free: Mapping[str, int]) -> bool:
    """True if a task would leave none of its resources free."""
    return all(free.get(name, 0) == amount for name, amount in required.items())


def fit(required: Mapping[str, int], free: Mapping[str, int]) -> Key:
    """Prefer the node that a task would fill exactly, then the one with the highest score."""
    return not is_exact(required, free), -node_score(required, free)


HoldScore = Callable[[Mapping[str, int], Mapping[str, int]], Key]
"""Returns the key of a node from the amounts that a task asks for and those that are free. The lowest keys are held."""

HOLD_SCORES: Registry[HoldScore] = Registry("hold score", {"fit": fit})


def may_be_held(percent: int, nodes: int) -> int:
    """Return how many of `nodes` nodes may be held at once: `percent` of them, rounded up."""
    return -(-percent * nodes // 100)
