"""Sizes of pools: arithmetic on counts of nodes and on free amounts."""

from __future__ import annotations

from collections.abc import Mapping


def nodes_to_add(*, idle: int, pending: int, ordered: int, min_idle: int, total: int, least: int) -> int:
    """Return how many nodes to order to serve the waiting tasks, keep `min_idle` nodes idle and reach `least` nodes.

    `idle` is the number of nodes without work, `pending` the number of nodes that the waiting tasks need.
    """
    wanted = pending + min_idle - idle - ordered
    return max(0, wanted, least - total - ordered)


def nodes_to_give_back(*, idle: int, pending: int, max_idle: int, min_idle: int, total: int, least: int) -> int:
    """Return how many idle nodes to give back: those beyond what waiting tasks need and what may stay idle."""
    return max(0, min(idle - pending - max(max_idle, min_idle), total - least))


def nodes_for_free(*, free: Mapping[str, int], least: Mapping[str, int], node: Mapping[str, int]) -> int:
    """Return how many empty nodes are missing so that `least` of each resource is free."""
    return max([0, *(-(-(amount - free.get(name, 0)) // node[name]) for name, amount in least.items())])


def leaves_free(*, free: Mapping[str, int], least: Mapping[str, int], node: Mapping[str, int]) -> bool:
    """True if `least` of each resource is still free without an empty node."""
    return all(free.get(name, 0) - node.get(name, 0) >= amount for name, amount in least.items())
