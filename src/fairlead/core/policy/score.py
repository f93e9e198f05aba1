"""Which nodes to hold for a starving gang: a score of what is free against what a task requires.

    of one resource   required <= free: 100 - 100 * required / free     0 … 100
                      required >  free: 100 * free / required - 100     -100 … 0
    of a node         ((cpu + memory) / 2 + 2 * others) / 3, where others is the mean over the other resources asked for

Everything is an integer, in millionths, rounded down. A resource that is not asked for misses nothing: 100. The higher
the score the better, but for one case: a node of which nothing would be left over scores 0 and is still the best.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.resources import CPU, MEMORY

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
    """Whether a task would leave nothing over of what it asks for."""
    return all(free.get(name, 0) == amount for name, amount in required.items())


def may_be_held(percent: int, nodes: int) -> int:
    """How many of so many nodes may be held at once: rounded up, so that of one node that is one."""
    return -(-percent * nodes // 100)
