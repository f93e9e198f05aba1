"""Obstacles: typed values in the reason `NeverFits`. Each says why tasks can never fit."""

from __future__ import annotations

import msgspec

from fairlead.core.resources import GPU, format_amount, format_amounts, format_quantity, noun_of, printable
from fairlead.core.shape import IMAGES

RUNTIMES = {
    f"{IMAGES}folder": "bubblewrap, apptainer or podman",
    f"{IMAGES}docker": "apptainer, podman, or bubblewrap with skopeo and umoci",
    f"{IMAGES}oras": "apptainer",
    f"{IMAGES}sif": "apptainer",
}
"""Label of the nodes that run a kind of image → what makes a node one of them."""


class TooSmall(msgspec.Struct, frozen=True):
    """A task asks for more of a resource than any node has."""

    resource: str
    asked: int
    most: int
    """The amount of the largest node; 0 if no node has any."""
    largest: str = ""
    """The largest node, such as `n1`, or `one of pool NAME` if a pool would bring it."""

    def __str__(self) -> str:
        if not self.most:
            one = "a GPU" if self.resource == GPU else noun_of(self.resource)
            return f"no node has {one} ({self._asked})"
        return f"the largest node, {self.largest}, has {format_amount(self.resource, self.most)} ({self._asked})"

    @property
    def _asked(self) -> str:
        return f"asked: {format_quantity(self.resource, self.asked)}"

    def lacking(self) -> str:
        """Return what one node lacks."""
        has = format_amount(self.resource, self.most) if self.most else f"no {noun_of(self.resource, 1)}"
        return f"has {has} ({self._asked})"


class NoLabel(msgspec.Struct, frozen=True):
    """A task selects nodes by a label or a value that no node has."""

    label: str
    values: tuple[str, ...]
    present: tuple[str, ...] = ()
    """Values that nodes have, at most five of them."""
    meant: str = ""
    """The most similar label of a node, with its value if one was asked for; empty if none is similar."""

    def _asked(self) -> str:
        return f"label {self.label}" + ("" if "*" in self.values else f"={' or '.join(self.values)}")

    def __str__(self) -> str:
        if self.label in RUNTIMES:
            kind = self.label.removeprefix(IMAGES)
            what = {"folder": "a folder", "sif": "a .sif file"}.get(
                kind, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}:// image"
            )
            return (
                f"no node runs {what} as a container; install {RUNTIMES[self.label]} on nodes, and restart their agents"
            )
        present = ", ".join(f"{self.label}={value}" for value in self.present)
        text = f"no node has {self._asked()}"
        if self.meant:
            return f"{text} (did you mean {self.meant}?)"
        return text + (f" (but {present})" if present else "")

    def lacking(self) -> str:
        return f"has no {self._asked()}"


class NotInPool(msgspec.Struct, frozen=True):
    """A task asks for nodes of a pool that has no nodes and is not configured."""

    pool: str
    meant: str = ""
    """The most similar name of a pool; empty if none is similar."""

    def __str__(self) -> str:
        return f"no node is in pool {self.pool}" + (f" (did you mean {self.meant}?)" if self.meant else "")

    def lacking(self) -> str:
        return f"is not in pool {self.pool}"


class NotWhere(msgspec.Struct, frozen=True):
    """A task has conditions on labels that no node meets."""

    where: str

    def __str__(self) -> str:
        return f"no node has labels with {printable(self.where, 200)}"

    def lacking(self) -> str:
        return f"has no labels with {printable(self.where, 200)}"


Lack = TooSmall | NoLabel | NotWhere | NotInPool
"""What one node lacks for a task."""


class Nearest(msgspec.Struct, frozen=True):
    """The node or pool that lacks the fewest things that a task asks for."""

    name: str
    pool: bool
    lacks: tuple[Lack, ...]

    def __str__(self) -> str:
        what = "pool" if self.pool else "node"
        lacks = " and ".join(lack.lacking() for lack in self.lacks)
        return f"no node has all that a task needs: the nearest, {what} {self.name}, {lacks}"


class Closed(msgspec.Struct, frozen=True):
    """Nodes or a pool with enough capacity that refuse the task, because of taints, users or `max: 0`."""

    name: str
    """The name of the first node, or of the pool."""
    nodes: int
    """The number of nodes; 0 for a pool."""
    taints: tuple[str, ...] = ()
    """The taints that the task does not tolerate."""
    user: str = ""
    """The user of the task, if the nodes are for other users."""
    empty: bool = False
    """True for a pool with `max: 0`."""

    def __str__(self) -> str:
        if not self.nodes:
            which, their = f"pool {self.name} has", "its"
        elif self.nodes == 1:
            which, their = f"node {self.name} has", "its"
        else:
            which, their = f"{self.nodes} nodes, such as {self.name}, have", "their"
        why: list[str] = []
        if len(self.taints) == 1:
            why.append(f"{their} taint {self.taints[0]} is not tolerated")
        elif self.taints:
            why.append(f"{their} taints {', '.join(self.taints)} are not tolerated")
        if self.user:
            why.append(f"may take no tasks of user {self.user}")
        if self.empty:
            why.append("its max is 0")
        return f"{which} what a task needs, but {' and '.join(why)}"


class NoNodes(msgspec.Struct, frozen=True):
    """No node has joined the partition; for jobs of a resource manager, no node of that manager."""

    manager: str = ""

    def __str__(self) -> str:
        return f"no node of manager {self.manager} has joined yet" if self.manager else "no node has joined yet"


class NoPool(msgspec.Struct, frozen=True):
    """The partition has pools, but none of them brings suitable nodes."""

    def __str__(self) -> str:
        return "no pool brings such nodes"


class AllTogether(msgspec.Struct, frozen=True):
    """All stages of a whole job together ask for more of a resource than all nodes and pools have."""

    resource: str
    asked: int
    most: int

    def __str__(self) -> str:
        asked = format_quantity(self.resource, self.asked)
        return f"all nodes have {format_amount(self.resource, self.most)} (asked: {asked})"


class TooFew(msgspec.Struct, frozen=True):
    """Nodes accept the tasks and have what one needs, but together take fewer than have to start at once."""

    tasks: int
    """The number of tasks for which capacity is missing."""
    per_task: tuple[tuple[str, int], ...]
    apart: bool = False
    """True if each task needs a node of its own."""

    def __str__(self) -> str:
        capacity = "capacity" if not self.apart else "a node" if self.tasks == 1 else "nodes"
        amounts = f" with {format_amounts(self.per_task)}" if self.per_task else ""
        return f"missing: {capacity} for {self.tasks} more{amounts}{' each' if amounts and self.tasks > 1 else ''}"


Obstacle = Lack | Nearest | Closed | NoNodes | NoPool | AllTogether | TooFew
"""What keeps tasks from ever fitting."""
