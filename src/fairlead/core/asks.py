"""The needs of an ask: its stages, how many tasks of each must start together, and their resources."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.model import NEW, SCALE, Ask, Stage
from fairlead.core.resources import CPU, GPU, MEMORY, Vector, add

Needs = Sequence[tuple[Stage, int]]
"""Stages, and the number of tasks of each."""


def gang_size(ask: Ask) -> int:
    """Return the number of tasks that must start together."""
    if ask.whole:
        return sum(stage.needed for stage in ask.stages)
    stage = ask.stage
    if stage.count == 1:
        return 1
    if ask.kind == NEW:
        return 1 if stage.started else max(1, stage.needed)
    if ask.kind == SCALE and stage.terms.scaling == "strict" and not stage.terms.min:
        return ask.count
    return 1


def is_single(ask: Ask) -> bool:
    """True if the tasks of an ask start one by one."""
    return not ask.whole and gang_size(ask) == 1


def minimum_by_stage(ask: Ask) -> list[tuple[Stage, int]]:
    """Return how many tasks of each stage must start together, with the stages that are hardest to place first.

    In another order, small tasks that fit any node would take the only nodes that fit large tasks.
    """
    if not ask.whole:
        return [(ask.stage, gang_size(ask))]
    return [(stage, stage.needed) for stage in sorted(ask.stages, key=_ease) if stage.needed]


def _ease(stage: Stage) -> tuple[int, ...]:
    key = stage.shape.key
    conditions = len(key.selectors) + bool(key.where) + bool(key.pool) + key.apart
    gpu, *rest = _smallness(stage)
    return (gpu, -conditions, *rest)


def largest_first(needs: Needs) -> list[tuple[Stage, int]]:
    """Return the stages ordered by the size of their tasks alone, the largest first."""
    return sorted(needs, key=lambda need: _smallness(need[0]))


def _smallness(stage: Stage) -> tuple[int, ...]:
    asked = stage.shape.resources
    return (-asked.get(GPU, 0), -asked.get(CPU, 0), -asked.get(MEMORY, 0), stage.position)


def asked_by(ask: Ask) -> Vector:
    """Return the resources of all tasks that must start together."""
    return asked_for(minimum_by_stage(ask))


def asked_for(needs: Needs) -> Vector:
    """Return the sum of the resources of tasks. A stage with 0 tasks adds its resources with the amount 0."""
    asked: Vector = {}
    for stage, tasks in needs:
        for name, amount in stage.shape.amounts:
            asked[name] = asked.get(name, 0) + amount * tasks
    return asked


def use_of(ask: Ask, placed: int) -> tuple[Vector, int, int]:
    """Return the use of placed tasks: a resource vector, a factor for it, and the number of tasks.

    For a whole job, the vector is the use of all its running tasks and the factor is 1.
    """
    if not ask.whole:
        return ask.stage.shape.resources, placed, placed
    together: Vector = {}
    for stage in ask.stages:
        add(together, stage.shape.resources, stage.running())
    return together, 1, placed
