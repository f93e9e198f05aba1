"""Queues in the words of Slurm: partitions, accounts and QOS are names of queues, without `root.`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fairlead.slurm.options import Given

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire


class NoSuchPartition(Exception):
    """Raised if `-p` names no queue."""


def short(path: str) -> str:
    """Return a queue as a name of a partition."""
    return path.removeprefix("root.")


def is_called(path: str, name: str) -> bool:
    """True if a queue is meant by a name: its path, or the end of its path."""
    return f".{path}".endswith(f".{name}")


def is_below(path: str, name: str) -> bool:
    """True if a queue, or one above it, is meant by a name."""
    parts = path.split(".")
    return any(is_called(".".join(parts[: at + 1]), name) for at in range(len(parts)))


def leaves_of(queues: Iterable[wire.Queue], name: str) -> list[str]:
    """Return the leaf queues at or below the queues that a name means."""
    return [queue.path for queue in queues if queue.leaf and is_below(queue.path, name)]


def choose_queue(client: Client, given: Given) -> str:
    """Return the queue of a job by its partition, account and QOS; empty to let the server choose.

    A partition must be a queue. Accounts and QOS narrow the choice if they are queues.
    """
    if not given.keys() & {"partition", "account", "qos"}:
        return ""
    queues = client.queues()
    found: list[str] = []
    for option in ("partition", "account", "qos"):
        name = given.get(option, "").split(",")[0]
        leaves = leaves_of(queues, name) if name else []
        if name and option == "partition" and not leaves:
            raise NoSuchPartition(name)
        both = [leaf for leaf in leaves if leaf in found]
        found = both or found or leaves
    if len(found) > 1:
        return next((leaf for leaf in found if leaf.endswith(".default")), found[0])
    return found[0] if found else ""
