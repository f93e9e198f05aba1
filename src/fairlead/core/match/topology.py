"""Gathering: a gang on nodes with as few values of a label as can be, such as one rack."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fairlead.core.index.kinds import Choice, NodeIndex
from fairlead.core.shape import Shape


def gather(index: NodeIndex[Any], shape: Shape, most: int, number: int, home: Collection[str]) -> list[Choice]:
    """Nodes for up to that many tasks: where others of the stage live first, then with as few more values as can be.

    Of values with room for all, the one that needs the fewest nodes is taken; else those with the most room first.
    Looking costs a search for each value.
    """
    found: list[tuple[bool, int, int, str]] = []
    for value in index.values(shape):
        tried = index.choose(shape, most, number, value)
        index.put_back([each.node_id for each in tried])
        found.append((value not in home, -sum(each.tasks for each in tried), len(tried), value))
    chosen: list[Choice] = []
    for *_, value in sorted(found):
        more = index.choose(shape, most, number, value)
        chosen += more
        most -= sum(each.tasks for each in more)
        if not most:
            break
    return chosen
