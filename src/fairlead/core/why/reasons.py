"""Reasons: why tasks were not placed, as typed values. Phases of a cycle note them, and views show them as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from fairlead.core.model import FAR, After, Condition, Job
from fairlead.core.resources import CPU, GPU, MILLI, format_amount, format_moment, format_quantity, noun_of
from fairlead.core.why.obstacles import Obstacle

Sees = Callable[[str], bool]
"""True if a reader may see the job with an id."""
HIDDEN = "another user's job"


def in_words(name: str) -> str:
    """Return the name of a class in words, such as "no capacity" for NoCapacity."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


class Reason(msgspec.Struct, frozen=True, tag=in_words):
    """Base class of reasons. The tag is the name of a reason in the API, such as "no capacity"."""

    def __str__(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def short(self) -> str:
        """Return the reason in a few words, for lists of jobs."""
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
        limit = format_amount(self.resource, self.limit)
        used, more = format_quantity(self.resource, self.used), format_quantity(self.resource, self.asked)
        return f"the limit of {self.account} is {limit}: {used} in use, {more} more needed"

    @property
    def short(self) -> str:
        return f"{noun_of(self.resource, MILLI)} limit of {self.account}"


class TooManyJobs(Reason, frozen=True, tag="too many jobs"):
    """An account already has its maximum number of running jobs."""

    account: str
    max_jobs: int

    def __str__(self) -> str:
        if not self.max_jobs:
            return f"no job of {self.account} may run (max_jobs is 0)"
        run = "1 job runs" if self.max_jobs == 1 else f"{self.max_jobs} jobs run"
        return f"{run} already in {self.account}, and max_jobs allows no more"

    @property
    def short(self) -> str:
        return f"max_jobs of {self.account} reached"


class Throttled(Reason, frozen=True, tag="throttled"):
    """As many tasks of a stage run as its throttle allows."""

    stage: str
    throttle: int

    def __str__(self) -> str:
        return f"its throttle lets {self.throttle} task{'s' if self.throttle > 1 else ''} run at a time"

    @property
    def short(self) -> str:
        return f"throttle of {self.throttle} reached"


class HeldFor(msgspec.Struct, frozen=True):
    """Nodes that are held for another ask."""

    job: str
    """Empty for a reader that may not see it."""
    stage: str
    nodes: int
    until: int
    """The time when the hold ends, if its ask has not started before; `FAR` if it lasts until then."""
    names: tuple[str, ...] = ()
    """The names of the first nodes."""
    waited: int = 0
    """The time that the other ask has waited, in microseconds; 0 for a reader that may not see it."""

    def __str__(self) -> str:
        nodes = "1 node is" if self.nodes == 1 else f"{self.nodes} nodes are"
        until = f" (until {format_moment(self.until)})" if self.until < FAR else ""
        return f"{nodes} held for {tasks_of(self.job, self.stage)}{until}"

    def shown_to(self, sees: Sees) -> HeldFor:
        return self if sees(self.job) else HeldFor("", "", self.nodes, self.until, self.names)


class NotStopping(msgspec.Struct, frozen=True):
    """Tasks that were told to stop and did not stop in time."""

    job: str
    """Empty for a reader that may not see it."""
    stage: str
    tasks: int
    node: str
    since: int

    def __str__(self) -> str:
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        since = format_moment(self.since)
        return f"{tasks} of {tasks_of(self.job, self.stage)} on {self.node}, told to stop at {since}, did not stop"

    def shown_to(self, sees: Sees) -> NotStopping:
        return self if sees(self.job) else NotStopping("", "", self.tasks, self.node, self.since)


class NoCapacity(Reason, frozen=True, tag="no capacity"):
    """The nodes have too little free capacity now.

    Match notes `wanted` and `fitting` when it tries the ask. When a user asks, `explain.why_no_capacity` fills in the
    other fields.
    """

    wanted: int
    fitting: int
    """The number of tasks that fit now."""
    failed: tuple[tuple[str, int], ...] = ()
    """The first thing that nodes lack for a task, with the number of such nodes. `NODE_PHRASES` has the names."""
    nearest: str = ""
    """The node that lacks the smallest part of what a task asks for."""
    stages: tuple[tuple[str, int, int], ...] = ()
    """For a whole job: the stages tried, with the tasks wanted and the tasks that fit. The last one does not fit."""
    held: int = 0
    """The number of nodes held for the ask."""
    coming: int = 0
    """The number of allocations that stop for the ask."""
    ordered: int = 0
    """The number of nodes ordered for the ask."""
    failed_orders: int = 0
    """The number of failed orders for the ask."""
    given_up: bool = False
    """True if too many orders failed, so that no more nodes are ordered for the ask."""
    problem: str = ""
    """Why the last order failed."""
    full: tuple[str, ...] = ()
    """Pools with suitable nodes that are at their maximum size."""
    paused: tuple[str, ...] = ()
    """Pools with suitable nodes that are paused."""
    closed: tuple[HeldFor, ...] = ()
    """The holds of other asks on nodes that accept the tasks."""
    stuck: tuple[NotStopping, ...] = ()
    """Overdue stops on nodes that accept the tasks."""
    without_share: str = ""
    """A queue of the job with a share of 0, while other queues use capacity."""
    lacks: str = ""
    """The resource that is short on most of the nodes that accept the tasks."""
    asked: int = 0
    """The amount of the resource `lacks` that one task asks for."""
    free: tuple[tuple[str, int], ...] = ()
    """The names of the first nodes on which some of the tasks fit, each with the number of tasks."""
    free_nodes: int = 0
    """The number of nodes on which some of the tasks fit."""
    unused: int = 0
    """The free amount of `lacks` on nodes where some of the tasks fit; if there are none, on all that accept them."""
    largest: int = 0
    """The largest part of `unused` on one node."""
    taking: int = 0
    """The number of nodes that are up and accept the tasks, whatever is free there."""
    nodes: int = 0
    """The number of all nodes."""

    def __str__(self) -> str:
        fit = ", ".join(f"{fitting} of {wanted} {name} tasks" for name, wanted, fitting in self.stages)
        text = f"{fit or f'{self.fitting} of {self.wanted}'} fit now"
        details = [nodes_in_words(self.unnamed, self.wanted)] if self.unnamed else []
        details += self.pools
        details += map(str, (*self.closed, *self.stuck))
        details += [_gets_leftovers(self.without_share)] if self.without_share else []
        return f"{text}: {'; '.join(details)}" if details else text

    @property
    def unnamed(self) -> tuple[tuple[str, int], ...]:
        """The entries of `failed`, without the held nodes if `closed` has all of them."""
        closed = sum(hold.nodes for hold in self.closed)
        return tuple((what, nodes) for what, nodes in self.failed if what != "held" or nodes > closed)

    @property
    def pools(self) -> list[str]:
        """Return in words why pools order no nodes for the ask."""
        texts: list[str] = []
        if self.failed_orders:
            problem = f" ({self.problem})" if self.problem else ""
            orders = "1 order" if self.failed_orders == 1 else f"{self.failed_orders} orders"
            texts.append(f"{orders} of nodes for it failed{problem}")
        if self.given_up:
            texts.append("no more nodes are ordered for it until a pool is resumed or added")
        texts += [f"pool {name} is at its maximum size" for name in self.full]
        return texts + [f"pool {name} is paused" for name in self.paused]

    @property
    def short(self) -> str:
        return "no free capacity" if self.wanted == 1 else f"no free capacity for {self.wanted} tasks at once"

    def shown_to(self, sees: Sees) -> NoCapacity:
        closed = tuple(hold.shown_to(sees) for hold in self.closed)
        return msgspec.structs.replace(self, closed=closed, stuck=tuple(late.shown_to(sees) for late in self.stuck))


class WouldDelay(Reason, frozen=True, tag="would delay"):
    """There is capacity, but a start now would delay the planned start of another ask."""

    job: str
    """Empty for a reader that may not see it."""
    when: int

    def __str__(self) -> str:
        return f"it {self.short}, which is planned to start at {format_moment(self.when)}"

    @property
    def short(self) -> str:
        return f"would delay {f'job {self.job}' if self.job else HIDDEN}"

    def shown_to(self, sees: Sees) -> WouldDelay:
        return self if sees(self.job) else WouldDelay("", self.when)


class StillStopping(Reason, frozen=True, tag="still stopping"):
    """Old tasks of the gang are still stopping. The gang starts again when all of them have stopped."""

    def __str__(self) -> str:
        return "its gang starts again when all of its old tasks have stopped"

    @property
    def short(self) -> str:
        return "its old tasks are still stopping"


class NeverFits(Reason, frozen=True, tag="never fits"):
    """The wanted tasks do not fit on all nodes and pools together, even if these were empty."""

    wanted: int
    most: int
    stages: tuple[tuple[str, int, int], ...] = ()
    """For a whole job: stages that never fit, the tasks wanted and fitting. Stages of one shape have one entry."""
    missing: str = ""
    """For a whole job: a resource of which all stages together ask for more than exists."""
    obstacles: tuple[Obstacle, ...] = ()
    """What is missing. Match leaves this empty, and `never.why_never` fills it in when a user asks."""

    def __str__(self) -> str:
        return f"can never run: {self.why}"

    @property
    def why(self) -> str:
        """What is missing, in words."""
        why = "; ".join(map(str, self.obstacles))
        if self.missing:
            text = f"all stages together need more {noun_of(self.missing, MILLI)} than all nodes and pools have"
        elif not self.most and not self.stages:
            return why or "no node or pool has what one task needs"
        else:
            most = ", ".join(f"{most} of {wanted} {name} tasks" for name, wanted, most in self.stages)
            text = f"all nodes and pools together take {most or f'{self.most} of {self.wanted} tasks'}"
        return text + (f" ({why})" if why else "")

    @property
    def short(self) -> str:
        return "can never run"


class NoNodeYet(NeverFits, frozen=True, tag="no node yet"):
    """The partition has no nodes and no pools yet."""

    def __str__(self) -> str:
        return "no node has joined yet"

    @property
    def short(self) -> str:
        return str(self)


class HeldBack(Reason, frozen=True, tag="held back"):
    """A user holds the job back: none of its tasks starts until the job is released, or until its time to begin."""

    by: str
    operator: bool = False
    """True if only an operator can release it."""
    until: int = 0
    """When it is released by itself; 0 for never."""

    def __str__(self) -> str:
        return f"{self.short}; only an operator can release it" if self.operator and not self.until else self.short

    @property
    def short(self) -> str:
        return f"begins at {format_moment(self.until)}" if self.until else f"held by {self.by}"


class AfterUnmet(Reason, frozen=True, tag="after unmet"):
    """Dependencies of the job are not met yet."""

    jobs: tuple[str, ...]
    never: str = ""
    """The first of these jobs that can never run with the present cluster; empty if there is none."""
    conditions: tuple[Condition, ...] = ()
    """What is awaited of each of the jobs; empty for the success of all."""

    def __str__(self) -> str:
        text = _awaited(self.jobs, self.conditions)
        if not self.never:
            return text
        which = ", which" if len(self.jobs) == 1 else f"; job {self.never}"
        return f"{text}{which} can never run as the cluster is now"

    @property
    def short(self) -> str:
        more = len(self.jobs) - 2
        return _awaited(self.jobs[:2], self.conditions[:2]) + (f" and {more} more" if more > 0 else "")


AWAITED = {"ok": "", "any": "the end of ", "failed": "the failure of ", "started": "the start of "}


def _awaited(jobs: tuple[str, ...], conditions: tuple[Condition, ...]) -> str:
    named: dict[str, list[str]] = {}
    for job, when in zip(jobs, conditions or ("ok",) * len(jobs), strict=True):
        named.setdefault(AWAITED[when], []).append(job)
    parts = [f"{what}{'job' if len(names) == 1 else 'jobs'} {', '.join(names)}" for what, names in named.items()]
    return f"waits for {' and '.join(parts)}"


def after_unmet(unmet: tuple[After, ...], never: str = "") -> AfterUnmet:
    """Return the reason for dependencies that are not met."""
    jobs, conditions = tuple(after.job for after in unmet), tuple(after.when for after in unmet)
    return AfterUnmet(jobs, never, () if set(conditions) == {"ok"} else conditions)


class AfterTasks(Reason, frozen=True, tag="after tasks"):
    """Tasks wait for the tasks of other jobs with the same index."""

    jobs: tuple[str, ...]

    def __str__(self) -> str:
        which = "job" if len(self.jobs) == 1 else "jobs"
        return f"waits for the tasks of {which} {', '.join(self.jobs)} with the same indices"

    @property
    def short(self) -> str:
        return f"waits for tasks of job {self.jobs[0]}"


def after_tasks(job: Job) -> AfterTasks:
    """Return the reason for blocked tasks."""
    return AfterTasks(tuple(name for name, when in job.after if when == "each"))


class ShareSpent(Reason, frozen=True, tag="share spent"):
    """A queue uses its whole entitlement, and tasks that cannot be preempted get no loan."""

    queue: str
    zero: bool = False
    """True if the share of the queue is 0."""
    small: bool = False
    """True if the share is above 0, but too small for any capacity."""

    def __str__(self) -> str:
        spent = "has a share that is too small for one task" if self.small else "uses its whole share"
        spent = "has a share of 0" if self.zero else spent
        return f"queue {self.queue} {spent}, and only preemptible tasks may borrow more"

    @property
    def short(self) -> str:
        return f"share of queue {self.queue} is {'0' if self.zero else 'too small' if self.small else 'used up'}"


class NoShare(Reason, frozen=True, tag="no share"):
    """The queue has a share of 0, and other queues use capacity. Asks of other queues come first."""

    queue: str

    def __str__(self) -> str:
        return _gets_leftovers(self.queue)

    @property
    def short(self) -> str:
        return f"share of queue {self.queue} is 0"


class NotActive(Reason, frozen=True, tag="not active"):
    """The queue of the job, or a queue above it, is stopped."""

    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is stopped"

    @property
    def short(self) -> str:
        return str(self)


class NotReady(Reason, frozen=True, tag="not ready"):
    """The partition has just started and waits for its agents and resource managers."""

    def __str__(self) -> str:
        return "the scheduler has just started and waits until its nodes have reported"

    @property
    def short(self) -> str:
        return "the scheduler is starting"


class InChain(Reason, frozen=True, tag="in chain"):
    """Quick tasks are on a node already, and start when the tasks before them in their chain end."""

    nodes: int

    def __str__(self) -> str:
        where = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"sent ahead to {where}, to start when the quick tasks before them end"


MAIN = "main"
"""The stage of a job that names none. Texts leave it out."""


def tasks_of(job: str, stage: str) -> str:
    """Return the name of a job and its stage, such as "job 3" or "job 3, stage worker"."""
    if not job:
        return HIDDEN
    return f"job {job}" if stage == MAIN else f"job {job}, stage {stage}"


def of_stage(stage: str) -> str:
    """Return the beginning of a line about a stage, such as "worker: "; empty for `main`."""
    return "" if stage == MAIN else f"{stage}: "


NOT_FOR_ALL = "not for all"
"""Names nodes on which a task fits, but which have too little capacity for all tasks."""
MISSING = "missing "
SMALL = "small "
NONE = "none "
"""With the name of a resource: nodes with too little of it free, too little of it in all, or none of it."""
TAINT = "taint "
"""With the name of a taint: nodes with that taint, which is not tolerated."""
NODE_PHRASES = {
    "disconnected": ("is disconnected", "are disconnected"),
    "backed off": ("is paused after failed launches", "are paused after failed launches"),
    "another pool": ("is not in its pool", "are not in its pool"),
    "selector": ("does not match its selectors", "do not match its selectors"),
    "for other users": ("is for other users", "are for other users"),
    "over its capacity": ("has more tasks than it can take", "have more tasks than they can take"),
    "promised": ("is promised to another job", "are promised to other jobs"),
    "held": ("is held for another job", "are held for other jobs"),
    "closing": (
        "will be drained, and takes only tasks with a time limit that ends before",
        "will be drained, and take only tasks with a time limit that ends before",
    ),
    "split gpu": ("has only parts of GPUs free", "have only parts of GPUs free"),
    "apart": ("runs one of its tasks already", "run one of its tasks already"),
}
"""What nodes lack → the words for one node and for several."""
COUNTED = (CPU, GPU)
"""Resources of which nodes have "too few", not "too little"."""


def nodes_in_words(failed: tuple[tuple[str, int], ...], wanted: int) -> str:
    """Return in words how many nodes lack what, such as "3 nodes have too little free memory; 1 is draining"."""
    parts = []
    for at, (what, nodes) in enumerate(failed):
        one = nodes == 1
        noun = "" if at else " node" if one else " nodes"
        parts.append(f"{nodes}{noun} {_lack_in_words(what, one, wanted)}")
    return "; ".join(parts)


def _lack_in_words(what: str, one: bool, wanted: int) -> str:
    has = "has" if one else "have"
    if what == NOT_FOR_ALL:
        return f"{has} capacity, but not for all {wanted}"
    if what.startswith((MISSING, SMALL)):
        resource = what.removeprefix(MISSING).removeprefix(SMALL)
        free = " free" if what.startswith(MISSING) else ""
        return f"{has} too {'few' if resource in COUNTED else 'little'} {noun_of(resource)}{free}"
    if what.startswith(NONE):
        return f"{has} no {noun_of(what.removeprefix(NONE), MILLI)}"
    if what.startswith(TAINT):
        return f"{has} the taint {what.removeprefix(TAINT)}, which is not tolerated"
    if what in NODE_PHRASES:
        return NODE_PHRASES[what][0 if one else 1]
    return f"{'is' if one else 'are'} {what}"


def _gets_leftovers(queue: str) -> str:
    return f"queue {queue} has a share of 0: it gets only what other queues leave idle"


def first_over(limit: Mapping[str, int], used: Mapping[str, int], asked: Mapping[str, int]) -> str | None:
    """Return the first resource, by name, for which `asked` does not fit under `limit`; None if all fit."""
    for name in sorted(asked):
        if name in limit and used.get(name, 0) + asked[name] > limit[name]:
            return name
    return None
