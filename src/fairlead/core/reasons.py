"""Why not, as typed values. Decisions leave them behind; views turn them into words."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from fairlead.core.resources import format_moment, format_vector


def _in_words(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


class Reason(msgspec.Struct, frozen=True, tag=_in_words):
    """Base class of reasons. Programs know a reason by its tag: the name of the class in words, as "no room"."""

    def __str__(self) -> str:
        return str(self.__struct_config__.tag)


class OverLimit(Reason, frozen=True, tag="over limit"):
    """An account's limit would be exceeded."""

    account: str
    resource: str
    limit: int
    used: int
    asked: int

    def __str__(self) -> str:
        def text(amount: int) -> str:
            return format_vector({self.resource: amount}) or f"{self.resource}=0"

        return f"{self.account}: limit {text(self.limit)}, used {text(self.used)}, asked {text(self.asked)}"


class TooManyJobs(Reason, frozen=True, tag="too many jobs"):
    """An account already has as many running jobs as it may."""

    account: str
    max_jobs: int

    def __str__(self) -> str:
        return f"{self.account}: {self.max_jobs} jobs are running, no more are allowed"


class HeldFor(msgspec.Struct, frozen=True):
    """Nodes that a hold closes to all but its owner."""

    job: str
    stage: str
    nodes: int
    until: int
    """When the hold ends if its owner has not started before."""

    def __str__(self) -> str:
        nodes = "1 node is" if self.nodes == 1 else f"{self.nodes} nodes are"
        return f"{nodes} held for {self.job}[{self.stage}] until {format_moment(self.until)}"


class NotStopping(msgspec.Struct, frozen=True):
    """Tasks that were told to stop and have not in time."""

    job: str
    stage: str
    tasks: int
    node: str
    since: int

    def __str__(self) -> str:
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        told = f"told to stop at {format_moment(self.since)}"
        return f"{tasks} of {self.job}[{self.stage}] on {self.node}, {told}, did not stop"


class NoRoom(Reason, frozen=True, tag="no room"):
    """Not enough nodes have room now. `failed` counts nodes by what they lack first."""

    wanted: int
    room: int
    failed: tuple[tuple[str, int], ...] = ()
    nearest: str = ""
    """The node that misses least."""
    stages: tuple[tuple[str, int, int], ...] = ()
    """Of a job that starts whole: stage, wanted and room, as far as they were tried; the last one has too little."""
    held: int = 0
    """How many nodes are held for it."""
    coming: int = 0
    """How many allocations of others stop for it."""
    ordered: int = 0
    """How many nodes are ordered for it."""
    vain: int = 0
    """How many orders of nodes for it failed."""
    given_up: bool = False
    """Whether they were too many, and nothing is ordered for it any more."""
    problem: str = ""
    """Why the last one failed."""
    full: tuple[str, ...] = ()
    """Pools whose nodes would do, and that have as many as they may."""
    paused: tuple[str, ...] = ()
    """Pools whose nodes would do, and that order nothing for now."""
    closed: tuple[HeldFor, ...] = ()
    """The holds of other asks on nodes that accept its tasks."""
    stuck: tuple[NotStopping, ...] = ()
    """The tasks on nodes that accept its tasks that were told to stop and do not."""

    def __str__(self) -> str:
        why = ", ".join(f"{count} {what}" for what, count in self.failed)
        text = _by_stage("room for", self.wanted, self.room, self.stages)
        held = f"; nodes held for it: {self.held}" if self.held else ""
        coming = f"; allocations of others that stop for it: {self.coming}" if self.coming else ""
        ordered = f"; nodes ordered for it: {self.ordered}" if self.ordered else ""
        vain = f"; orders of nodes for it failed: {self.vain}" if self.vain else ""
        vain += f" ({self.problem})" if vain and self.problem else ""
        vain += "; no more are made until a pool is resumed or added" if self.given_up else ""
        pools = "".join(f"; pool {name} has as many nodes as it may" for name in self.full)
        pools += "".join(f"; pool {name} is paused" for name in self.paused)
        others = "".join(f"; {each}" for each in (*self.closed, *self.stuck))
        return text + (f" (nodes: {why})" if why else "") + held + coming + ordered + vain + pools + others


class WouldDelay(Reason, frozen=True, tag="would delay"):
    """There is room, but somebody before it is planned to start, and would have to wait for it."""

    job: str
    when: int

    def __str__(self) -> str:
        return f"it would delay job {self.job}, which is planned for {format_moment(self.when)}"


class StillStopping(Reason, frozen=True, tag="still stopping"):
    """Members of the gang are still being stopped; it starts again when all are back."""

    def __str__(self) -> str:
        return "members of the gang still stop"


class NeverFits(Reason, frozen=True, tag="never fits"):
    """No nodes or pools that are known could ever take so many at once, however empty."""

    wanted: int
    most: int
    stages: tuple[tuple[str, int, int], ...] = ()
    """Of a job that starts whole: the stages of one shape that never fit, how many are wanted, and the most."""
    missing: str = ""
    """Likewise: the resource of which its stages together ask for more than there is."""
    user: str = ""
    """The user, if nodes that take only tasks of other users have what is asked for."""

    def __str__(self) -> str:
        if self.user:
            return f"never fits: nodes that have what one task asks for take no tasks of user {self.user}"
        if self.missing:
            return f"never fits: all stages together ask for more {self.missing} than all nodes and pools have"
        if not self.most:
            return "never fits: no node or pool has what one task asks for"
        return _by_stage("never fits: all nodes and pools together take", self.wanted, self.most, self.stages)


class AfterUnmet(Reason, frozen=True, tag="after unmet"):
    """Jobs it comes after have not succeeded yet."""

    jobs: tuple[str, ...]

    def __str__(self) -> str:
        return "waits for " + ", ".join(self.jobs)


class ShareSpent(Reason, frozen=True, tag="share spent"):
    """A queue has all that it is entitled to, and what could not be taken back is not lent more."""

    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} uses its whole share, and what is not preemptible gets no loan"


class NotActive(Reason, frozen=True, tag="not active"):
    """A queue on the path is stopped."""

    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is stopped"


class NotReady(Reason, frozen=True, tag="not ready"):
    """The partition has just started and waits for its agents and resource managers."""

    def __str__(self) -> str:
        return "the partition is not ready yet"


class InChain(Reason, frozen=True, tag="in chain"):
    """Quick tasks are assigned already, and start when others of their chain end."""

    nodes: int

    def __str__(self) -> str:
        return f"sent ahead to {self.nodes} nodes, to start when quick tasks before them end"


def _by_stage(what: str, wanted: int, found: int, stages: tuple[tuple[str, int, int], ...]) -> str:
    parts = ", ".join(f"{found} of {wanted} {name}" for name, wanted, found in stages)
    return f"{what} {parts or f'{found} of {wanted}'}"


def first_over(limit: Mapping[str, int], used: Mapping[str, int], asked: Mapping[str, int]) -> str | None:
    """The first resource, by name, of which `asked` does not fit under `limit`."""
    for name in sorted(asked):
        if name in limit and used.get(name, 0) + asked[name] > limit[name]:
            return name
    return None
