"""How large a pool should be: arithmetic on counts of nodes."""

from __future__ import annotations


def nodes_to_add(*, idle: int, pending: int, ordered: int, min_idle: int, total: int, least: int) -> int:
    """How many nodes to order, so that all who wait have one, so many stay idle, and the pool has its least.

    `idle` ones are there and have nothing to do; `pending` is how many nodes the waiting work needs.
    """
    wanted = pending + min_idle - idle - ordered
    return max(0, wanted, least - total - ordered)


def nodes_to_give_back(*, idle: int, pending: int, max_idle: int, min_idle: int, total: int, least: int) -> int:
    """How many idle nodes are too many: beyond those that the waiting work needs, and those that may stay idle."""
    return max(0, min(idle - pending - max(max_idle, min_idle), total - least))
