"""Reasons: why tasks were not placed, as typed values. Phases record them; views turn them into text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from fairlead.core.obstacles import Obstacle
from fairlead.core.resources import format_moment, format_vector

Sees = Callable[[str], bool]
"""True if a reader may see the job with an id."""
HIDDEN = "another user's job"


def in_words(name: str) -> str:
    """Return the name of a class as words, such as "no room" for NoRoom."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


class Reason(msgspec.Struct, frozen=True, tag=in_words):
    """Base class of reasons. The tag identifies a reason in the API: the class name in words, such as "no room"."""

    def __str__(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def short(self) -> str:
        """The reason in a few words, for lists of jobs."""
        return str(self.__struct_config__.tag)

    def shown_to(self, sees: Sees) -> Reason:
        """Return the reason without the ids of jobs that a reader may not see."""
        return self


class OverLimit(Reason, frozen=True, tag="over limit"):
    """The limit of an account would be exceeded."""

    account: str
    resource: str
    limit: int
    used: int
    asked: int

    def __str__(self) -> str:
        def text(amount: int) -> str:
            return format_vector({self.resource: amount}) or f"{self.resource}=0"

        return f"{self.account}: limit {text(self.limit)}, used {text(self.used)}, asked {text(self.asked)}"

    @property
    def short(self) -> str:
        return f"limit of {self.account}"


class TooManyJobs(Reason, frozen=True, tag="too many jobs"):
    """An account already has its maximum number of running jobs."""

    account: str
    max_jobs: int

    def __str__(self) -> str:
        running = "1 job is" if self.max_jobs == 1 else f"{self.max_jobs} jobs are"
        return f"{self.account}: {running} running, no more are allowed"

    @property
    def short(self) -> str:
        return f"max_jobs of {self.account}"


class HeldFor(msgspec.Struct, frozen=True):
    """Nodes that are held for another ask."""

    job: str
    """Empty for a reader that may not see it."""
    stage: str
    nodes: int
    until: int
    """When the hold ends if its ask has not started by then."""
    names: tuple[str, ...] = ()
    """The first of the nodes."""
    waited: int = 0
    """The time that the other ask has waited, in microseconds; 0 for a reader that may not see it."""

    def __str__(self) -> str:
        nodes = "1 node is" if self.nodes == 1 else f"{self.nodes} nodes are"
        return f"{nodes} held for {_named(self.job, self.stage)} until {format_moment(self.until)}"

    def shown_to(self, sees: Sees) -> HeldFor:
        return self if sees(self.job) else HeldFor("", "", self.nodes, self.until, self.names)


class NotStopping(msgspec.Struct, frozen=True):
    """Tasks that were told to stop and have not stopped in time."""

    job: str
    """Empty for a reader that may not see it."""
    stage: str
    tasks: int
    node: str
    since: int

    def __str__(self) -> str:
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        told = f"told to stop at {format_moment(self.since)}"
        return f"{tasks} of {_named(self.job, self.stage)} on {self.node}, {told}, did not stop"

    def shown_to(self, sees: Sees) -> NotStopping:
        return self if sees(self.job) else NotStopping("", "", self.tasks, self.node, self.since)


class NoRoom(Reason, frozen=True, tag="no room"):
    """Not enough nodes have capacity now. `failed` counts nodes by the first thing that they are missing."""

    wanted: int
    room: int
    failed: tuple[tuple[str, int], ...] = ()
    nearest: str = ""
    """The node that is missing least."""
    stages: tuple[tuple[str, int, int], ...] = ()
    """For a whole job: stage, wanted and room, for the stages that were tried; the last one has too little."""
    held: int = 0
    """The number of nodes held for it."""
    coming: int = 0
    """The number of allocations that stop for it."""
    ordered: int = 0
    """The number of nodes ordered for it."""
    failed_orders: int = 0
    """The number of failed orders for it."""
    given_up: bool = False
    """True if too many orders failed, so that none is made for it any more."""
    problem: str = ""
    """Why the last order failed."""
    full: tuple[str, ...] = ()
    """Pools with suitable nodes that are at their maximum size."""
    paused: tuple[str, ...] = ()
    """Pools with suitable nodes that are paused."""
    closed: tuple[HeldFor, ...] = ()
    """The holds of other asks on nodes that accept its tasks."""
    stuck: tuple[NotStopping, ...] = ()
    """Tasks that do not stop in time, on nodes that accept its tasks."""
    without_share: str = ""
    """A queue of its job that has a share of 0, while other queues use capacity."""
    lacks: str = ""
    """The resource that most of the nodes that accept its tasks have too little of."""
    asked: int = 0
    """The amount of that resource that one task asks for."""
    free: tuple[tuple[str, int], ...] = ()
    """Nodes with capacity for some of the tasks, and for how many; the first of them by name."""
    free_nodes: int = 0
    """The number of such nodes."""

    def __str__(self) -> str:
        why = ", ".join(f"{count} {what}" for what, count in self.failed)
        text = _by_stage("room for", self.wanted, self.room, self.stages)
        held = f"; nodes held for it: {self.held}" if self.held else ""
        coming = f"; allocations that stop for it: {self.coming}" if self.coming else ""
        ordered = f"; nodes ordered for it: {self.ordered}" if self.ordered else ""
        pools = "".join(f"; {what}" for what in self.pools)
        blocked = "".join(f"; {obstacle}" for obstacle in (*self.closed, *self.stuck))
        blocked += f"; {_gets_leftovers(self.without_share)}" if self.without_share else ""
        return text + (f" (nodes: {why})" if why else "") + held + coming + ordered + pools + blocked

    @property
    def pools(self) -> list[str]:
        """What keeps pools from bringing nodes for it, in words."""
        said: list[str] = []
        if self.failed_orders:
            problem = f" ({self.problem})" if self.problem else ""
            said.append(f"orders of nodes for it failed: {self.failed_orders}{problem}")
        if self.given_up:
            said.append("no more are made until a pool is resumed or added")
        said += [f"pool {name} is at its maximum size" for name in self.full]
        return said + [f"pool {name} is paused" for name in self.paused]

    @property
    def short(self) -> str:
        return _by_stage("room for", self.wanted, self.room, self.stages)

    def shown_to(self, sees: Sees) -> NoRoom:
        closed = tuple(hold.shown_to(sees) for hold in self.closed)
        return msgspec.structs.replace(self, closed=closed, stuck=tuple(late.shown_to(sees) for late in self.stuck))


class WouldDelay(Reason, frozen=True, tag="would delay"):
    """There is capacity, but the planned start of an earlier ask would be delayed."""

    job: str
    """Empty for a reader that may not see it."""
    when: int

    def __str__(self) -> str:
        return f"it {self.short}, which is planned for {format_moment(self.when)}"

    @property
    def short(self) -> str:
        return f"would delay {f'job {self.job}' if self.job else HIDDEN}"

    def shown_to(self, sees: Sees) -> WouldDelay:
        return self if sees(self.job) else WouldDelay("", self.when)


class StillStopping(Reason, frozen=True, tag="still stopping"):
    """Members of the gang are still stopping; it starts again when all have stopped."""

    def __str__(self) -> str:
        return "waiting for old gang members to stop"


class NeverFits(Reason, frozen=True, tag="never fits"):
    """The known nodes and pools could not take the wanted tasks at once, even if they were empty."""

    wanted: int
    most: int
    stages: tuple[tuple[str, int, int], ...] = ()
    """For a whole job: the stages of one shape that never fit, the wanted number, and the most that fit."""
    missing: str = ""
    """For a whole job: the resource of which its stages together ask for more than exists."""
    obstacles: tuple[Obstacle, ...] = ()
    """What is missing. Match leaves it out; `never.why_never` finds it when a user asks."""

    def __str__(self) -> str:
        why = "; ".join(map(str, self.obstacles))
        if self.missing:
            text = f"all stages together ask for more {self.missing} than all nodes and pools have"
        elif not self.most and not self.stages:
            return f"never fits: {why or 'no node or pool has what one task asks for'}"
        else:
            text = _by_stage("all nodes and pools together take", self.wanted, self.most, self.stages)
        return f"never fits: {text}" + (f" ({why})" if why else "")


class HeldBack(Reason, frozen=True, tag="held back"):
    """The job is held back by a user. None of its tasks start until it is released."""

    by: str
    operator: bool = False
    """True if only an operator can release it."""

    def __str__(self) -> str:
        return f"{self.short}, an operator" if self.operator else self.short

    @property
    def short(self) -> str:
        return f"held by {self.by}"


class AfterUnmet(Reason, frozen=True, tag="after unmet"):
    """Jobs in `after` have not succeeded yet."""

    jobs: tuple[str, ...]
    never: str = ""
    """The first of them that can never run as the cluster is now. `explain.never_before` finds it."""

    def __str__(self) -> str:
        text = f"waits for {'job' if len(self.jobs) == 1 else 'jobs'} {', '.join(self.jobs)}"
        if not self.never:
            return text
        which = ", which" if len(self.jobs) == 1 else f"; job {self.never}"
        return f"{text}{which} can never run as the cluster is now"

    @property
    def short(self) -> str:
        more = len(self.jobs) - 2
        return "after " + ", ".join(self.jobs[:2]) + (f" and {more} more" if more > 0 else "")


class ShareSpent(Reason, frozen=True, tag="share spent"):
    """A queue uses its whole entitlement, and tasks that cannot be preempted get no loan."""

    queue: str
    zero: bool = False
    """True if the share of the queue is 0."""
    small: bool = False
    """True if the share is above 0, and its part of the capacity is rounded to nothing."""

    def __str__(self) -> str:
        spent = "has a share that is too small for one task" if self.small else "uses its whole share"
        spent = "has a share of 0" if self.zero else spent
        return f"queue {self.queue} {spent}, and tasks that are not preemptible get no loan"

    @property
    def short(self) -> str:
        return f"share of {self.queue} is {'0' if self.zero else 'too small' if self.small else 'used'}"


class NoShare(Reason, frozen=True, tag="no share"):
    """A queue has a share of 0, and other queues use capacity. Its asks come after those of all other queues."""

    queue: str

    def __str__(self) -> str:
        return _gets_leftovers(self.queue)


class NotActive(Reason, frozen=True, tag="not active"):
    """The queue or an ancestor is stopped."""

    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is stopped"

    @property
    def short(self) -> str:
        return str(self)


class NotReady(Reason, frozen=True, tag="not ready"):
    """The partition has just started and waits for its agents and resource managers."""

    def __str__(self) -> str:
        return "the partition has just started and waits for its agents and resource managers"


class InChain(Reason, frozen=True, tag="in chain"):
    """Quick tasks are assigned already, and start when other tasks of their chain end."""

    nodes: int

    def __str__(self) -> str:
        return f"sent ahead to {self.nodes} nodes, to start when quick tasks before them end"


def _named(job: str, stage: str) -> str:
    return f"{job}[{stage}]" if job else HIDDEN


def _gets_leftovers(queue: str) -> str:
    return f"queue {queue} has a share of 0: it gets only what other queues leave idle"


def _by_stage(what: str, wanted: int, room: int, stages: tuple[tuple[str, int, int], ...]) -> str:
    parts = ", ".join(f"{room} of {wanted} {name}" for name, wanted, room in stages)
    return f"{what} {parts or f'{room} of {wanted}'}"


def first_over(limit: Mapping[str, int], used: Mapping[str, int], asked: Mapping[str, int]) -> str | None:
    """Return the first resource, by name, for which `asked` does not fit under `limit`; None if all fit."""
    for name in sorted(asked):
        if name in limit and used.get(name, 0) + asked[name] > limit[name]:
            return name
    return None
