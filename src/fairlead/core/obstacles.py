"""Obstacles: what keeps tasks from ever fitting, as typed values of the reason `NeverFits`."""

from __future__ import annotations

import msgspec

from fairlead.core.resources import format_vector, printable


class TooSmall(msgspec.Struct, frozen=True):
    """A task asks for more of a resource than any node has."""

    resource: str
    asked: int
    most: int
    """The amount of the largest node; 0 if no node has any."""
    largest: str = ""
    """The largest node, such as `n1`, or `of pool NAME` if a pool would bring it."""

    def __str__(self) -> str:
        asked = format_vector({self.resource: self.asked})
        if not self.most:
            return f"no node has {self.resource} (asked {asked})"
        return f"the largest node ({self.largest}) has {format_vector({self.resource: self.most})} of the asked {asked}"

    def lacking(self) -> str:
        """Return what one node lacks."""
        has = format_vector({self.resource: self.most}) if self.most else f"no {self.resource}"
        return f"has {has} of the asked {format_vector({self.resource: self.asked})}"


class NoLabel(msgspec.Struct, frozen=True):
    """A task selects nodes by a label that no node has, or by values that no node has."""

    label: str
    values: tuple[str, ...]
    present: tuple[str, ...] = ()
    """Values that nodes have, at most five of them."""

    def _asked(self) -> str:
        return f"label {self.label}" + ("" if "*" in self.values else f"={' or '.join(self.values)}")

    def __str__(self) -> str:
        present = ", ".join(f"{self.label}={value}" for value in self.present)
        return f"no node has {self._asked()}" + (f" (but {present})" if present else "")

    def lacking(self) -> str:
        return f"has no {self._asked()}"


class NotInPool(msgspec.Struct, frozen=True):
    """A task asks for nodes of a pool that has none and brings none."""

    pool: str

    def __str__(self) -> str:
        return f"no node is in pool {self.pool}"

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
    """The node or pool that lacks the fewest things that a task asks for. No node has all of them."""

    name: str
    pool: bool
    lacks: tuple[Lack, ...]

    def __str__(self) -> str:
        what = "pool" if self.pool else "node"
        lacks = " and ".join(lack.lacking() for lack in self.lacks)
        return f"no node has all that a task asks for: the nearest, {what} {self.name}, {lacks}"


class Closed(msgspec.Struct, frozen=True):
    """Nodes that have what a task asks for and do not take it; or a pool that would bring such nodes, or none."""

    name: str
    """The first node, or the pool."""
    nodes: int
    """The number of nodes; 0 for a pool."""
    taints: tuple[str, ...] = ()
    """Their taints that the task does not tolerate."""
    user: str = ""
    """The user of the task, if they are for other users."""
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
        return f"{which} what a task asks for, but {' and '.join(why)}"


class NoNodes(msgspec.Struct, frozen=True):
    """No node has joined the partition; or, for jobs of a resource manager, none of its nodes has."""

    manager: str = ""

    def __str__(self) -> str:
        return f"no node of manager {self.manager} has joined yet" if self.manager else "no node has joined yet"


class NoPool(msgspec.Struct, frozen=True):
    """The partition has no pools, or only pools that bring no suitable nodes."""

    pools: int

    def __str__(self) -> str:
        return "no pool brings such nodes" if self.pools else "the partition has no pools"


class AllTogether(msgspec.Struct, frozen=True):
    """What the stages of a whole job ask for, and what all nodes and pools have."""

    resource: str
    asked: int
    most: int

    def __str__(self) -> str:
        most = format_vector({self.resource: self.most}) or "none"
        return f"asked {format_vector({self.resource: self.asked})}, all have {most}"


Obstacle = Lack | Nearest | Closed | NoNodes | NoPool | AllTogether
"""What keeps tasks from ever fitting."""
