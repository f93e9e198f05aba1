"""Gathering: places a gang on nodes with few different values of a label, for example in few racks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fairlead.core.index.kinds import Choice, NodeIndex
from fairlead.core.shape import Shape


def gather(index: NodeIndex[Any], shape: Shape, most: int, number: int, home: Collection[str]) -> list[Choice]:
    """Choose nodes for up to `most` tasks: first nodes with the values where the stage already runs (`home`).

    Then comes the value with capacity for the most tasks; of values with capacity for all tasks, the one that needs the
    fewest nodes. There is one search for each value.
    """
    ranked: list[tuple[bool, int, int, str]] = []
    for value in index.values(shape):
        choices = index.choose(shape, most, number, value)
        index.put_back([choice.node_id for choice in choices])
        ranked.append((value not in home, -sum(choice.tasks for choice in choices), len(choices), value))
    chosen: list[Choice] = []
    for *_, value in sorted(ranked):
        more = index.choose(shape, most, number, value)
        chosen += more
        most -= sum(choice.tasks for choice in more)
        if not most:
            break
    return chosen
