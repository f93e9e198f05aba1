"""Arithmetic of pool sizes: how many nodes to order, to give back and to keep."""

from __future__ import annotations

from collections.abc import Mapping


def nodes_to_add(*, idle: int, pending: int, ordered: int, min_idle: int, total: int, least: int) -> int:
    """Return how many nodes to order, for waiting tasks, for `min_idle` idle nodes and for at least `least` nodes.

    `idle` nodes have no work, and the waiting tasks need `pending` nodes.
    """
    return max(0, pending + min_idle - idle - ordered, least - total - ordered)


def nodes_to_give_back(*, idle: int, pending: int, max_idle: int, min_idle: int, total: int, least: int) -> int:
    """Return how many idle nodes to give back: those that waiting tasks do not need and that may not stay idle."""
    return max(0, min(idle - pending - max(max_idle, min_idle), total - least))


def nodes_for_free(*, free: Mapping[str, int], least: Mapping[str, int], node: Mapping[str, int]) -> int:
    """Return how many empty nodes to add so that at least `least` of each resource is free."""
    return max([0, *(-(-(amount - free.get(name, 0)) // node[name]) for name, amount in least.items())])


def leaves_free(*, free: Mapping[str, int], least: Mapping[str, int], node: Mapping[str, int]) -> bool:
    """True if at least `least` of each resource stays free when an empty node is removed."""
    return all(free.get(name, 0) - node.get(name, 0) >= amount for name, amount in least.items())
