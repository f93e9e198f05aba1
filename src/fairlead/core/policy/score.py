"""Scores of nodes to hold for a starving gang: free capacity compared with the request of a task.

    of one resource   required <= free: 100 - 100 * required / free     0 … 100
                      required >  free: 100 * free / required - 100     -100 … 0
    of a node         ((cpu + memory) / 2 + 2 * others) / 3, where others is the mean over the other resources asked for

Scores are integers in millionths, rounded down. A resource that is not asked for scores 100. The highest score is the
best, but a node that the task would fill exactly is better than all others. The function `fit` turns the score into a
key, of which the lowest is the best, as for all policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fairlead.core.policy.registry import Registry
from fairlead.core.resources import CPU, MEMORY

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
