"""The records of a partition: jobs, stages, asks, allocations, queues, accounts, holds, promises, pools and orders.

Specifications (`JobSpec`, `StageSpec`) are immutable and hold what was submitted. The other records hold the present
state; only changes may alter them. A waiting job must use little memory: it keeps its specification packed, and
collections that most jobs never need are None at first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from fairlead.core.expressions import Preferences, Where
from fairlead.core.policy.order import MISSING, ORDERS, Order
from fairlead.core.ranges import Ranges, SharedRanges, indices
from fairlead.core.resources import Vector
from fairlead.core.shape import Selectors, Shape, ShapeKey

Micros = int
"""A point in time or a duration, in microseconds."""

FAR: Micros = 2**62
"""Later than any other time."""

JobState = Literal["pending", "running", "succeeded", "failed", "killed"]
AllocationState = Literal["assigned", "running", "stopping"]
Outcome = Literal["succeeded", "failed", "lost", "preempted", "killed"]
"""How an attempt ends."""
StopCause = Literal["", "kill", "scale", "time limit", "preempt", "gang", "return", "requeue", "done", "replace"]
"""Why tasks are told to stop: `done` if their job has succeeded without them. `return` is not a stop: assigned tasks
are recalled if they have not started."""
ClaimCause = Literal["priority", "guarantee", "share", "order"]
"""The right by which nodes are promised to an ask; `order` if they were ordered for it and no task stops."""
NodeState = Literal["up", "draining", "disabled", "lost"]
QueueState = Literal["active", "draining", "stopped"]
Policy = Literal["replace", "restart", "fail"]
"""What follows when a task fails or is lost: it is asked for again alone, its gang starts again, or the job fails."""
ChosenPolicy = Literal["", "replace", "restart", "fail"]
"""A policy as submitted; empty for the default, which depends on the size of the stage. See `Stage.on_failure`."""
Gang = Literal["stage", "job"]
Scaling = Literal["strict", "partial"]
Unit = Literal["dominant", "slots"]

# The kinds of asks, in the order in which they are served.
REPLACE, SCALE, NEW = 0, 1, 2
KINDS = ("replace", "scale", "new")

Pairs = tuple[tuple[str, str], ...]
Amounts = tuple[tuple[str, int], ...]


class StageSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group of equal tasks, as submitted. If `min` is 0, all `count` tasks start together, also after scaling."""

    name: str
    count: int
    min: int = 0
    resources: Amounts = ()
    selectors: Selectors = ()
    tolerations: tuple[str, ...] = ()
    pool: str = ""
    command: tuple[str, ...] = ()
    environment: Pairs = ()
    estimate: Micros | None = None
    time_limit: Micros | None = None
    tries: int = 1
    on_loss: ChosenPolicy = "replace"
    scaling: Scaling = "strict"
    near: str = ""
    apart: bool = False
    directory: str = ""
    secrets: Pairs = ()
    """Environment variables with the names of their secrets, never the values."""
    output: str = ""
    """Pattern of the file for standard output; empty for a log of the agent."""
    error: str = ""
    """Pattern of the file for standard error; empty for the file of standard output, or for a log of the agent."""
    results: tuple[str, ...] = ()
    """Patterns of the files that are collected when a task ends."""
    where: Where = ()
    prefer: Preferences = ()
    on_failure: ChosenPolicy = "replace"
    """Journals that were written before gangs had generations have no such field: their tasks are replaced."""

    def shape_key(self, manager: str, user: str) -> ShapeKey:
        return ShapeKey(
            self.resources,
            self.selectors,
            self.tolerations,
            self.pool,
            manager,
            self.near,
            self.apart,
            user,
            self.where,
            self.prefer,
        )


class Terms(msgspec.Struct, frozen=True, gc=False):
    """The fields of a stage that decisions read often. Equal terms are one object."""

    name: str
    min: int
    tries: int
    on_loss: ChosenPolicy
    scaling: Scaling
    estimate: Micros | None
    time_limit: Micros | None
    on_failure: ChosenPolicy


@lru_cache(maxsize=10_000)
def _same(terms: Terms) -> Terms:
    return terms


def terms_of(spec: StageSpec) -> Terms:
    return _same(
        Terms(
            spec.name,
            spec.min,
            spec.tries,
            spec.on_loss,
            spec.scaling,
            spec.estimate,
            spec.time_limit,
            spec.on_failure,
        )
    )


class JobSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One submission. `manager` names the resource manager that owns the job; empty for jobs that run on agents."""

    name: str
    user: str
    queue: str
    stages: tuple[StageSpec, ...]
    groups: tuple[str, ...] = ()
    priority: int = 0
    labels: Pairs = ()
    after: tuple[str, ...] = ()
    gang: Gang = "stage"
    preemptible: bool = True
    manager: str = ""
    matched: str | None = None
    """The requestor pattern that chose the queue, if one did; an empty pattern matches all users."""
    shape_user: str = ""
    """The user in the shapes of its tasks, set if the partition may have nodes for named users only."""
    preempts: bool = True
    """True if tasks may be stopped for this job, for its priority or for a guarantee of its queue."""
    done_when: str = ""
    """The stage with which the job succeeds; the tasks of other stages are then stopped. Empty for all stages."""

    @property
    def whole(self) -> bool:
        """True if all stages start together as one gang. False for a job with one stage."""
        return self.gang == "job" and len(self.stages) > 1


pack_spec = msgspec.msgpack.Encoder().encode
"""Packs a specification into bytes, as in the journal: about a tenth of the memory of the records."""


@lru_cache(maxsize=1_000)
def unpack_spec(packed: bytes) -> JobSpec:
    return _decode_spec(packed)


_decode_spec = msgspec.msgpack.Decoder(JobSpec).decode


class _Owner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a `JobSpec`."""

    name: str
    user: str


_decode_owner = msgspec.msgpack.Decoder(_Owner).decode


@lru_cache(maxsize=10_000)
def _owner_of(packed: bytes) -> tuple[str, str]:
    owner = _decode_owner(packed)
    return owner.user, owner.name


class History(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The past of a task: its last attempt and how it ended, and the tries and launches it used."""

    attempt: int = 0
    tries_used: int = 0
    launches_failed: int = 0
    reason: str = ""
    exit_code: int | None = None


NO_HISTORY = History()


Pending = tuple[Ranges | None, ...]
"""The pending tasks of a stage by kind."""


NOTHING_PENDING: Pending = (None, None, None)

Members = tuple[tuple[int, int, int], ...]
"""Members of a generation, as spans: the rank of the first task, its index, and the index after the last task."""


@lru_cache(maxsize=1_000)
def all_pending(count: int) -> Pending:
    """Return `Stage.pending` of a new stage; one object for all stages of this size."""
    return (None, None, SharedRanges((0, count)) if count else None)


Asks = tuple["Ask | None", ...]
"""The asks of a stage, by kind."""

NO_ASKS: Asks = (None, None, None)


class Ask(msgspec.Struct, eq=False):
    """A demand: the pending tasks of one kind of a stage.

    When its place changes, it is replaced, not altered. `front` is above 0 if an operator brought it to the front. A
    `whole` ask is shared by all stages of a job that has not started yet; `stage` is the first of them.
    """

    stage: Stage
    kind: int
    asked: Micros
    waiting_since: Micros
    seq: int
    round: int = 0
    front: int = 0
    whole: bool = False
    unheld_until: Micros = 0
    """No nodes are held for it before this time, because an earlier hold did not help in time."""
    unclaimed_until: Micros = 0
    """No tasks are stopped for it before this time, because that did not help before."""
    failed_orders: int = 0
    """The number of failed orders of nodes for it."""
    tie: int = 0
    """The number that orders it among asks of the same instant, if it returned to an earlier ask's place; else 0."""
    latest: Micros = 0
    """With learned estimates, the latest planned start: no ask behind it may delay it further. 0 if there is none
    yet."""

    @property
    def place(self) -> int:
        """Return the number that orders it among asks of the same instant."""
        return self.tie or self.seq

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Return the stages of its tasks."""
        return self.stage.job.stages if self.whole else (self.stage,)

    @property
    def count(self) -> int:
        if self.whole:
            return sum(len(stage.wanted(self.kind)) for stage in self.stages)
        return len(self.stage.wanted(self.kind))


class Stage(msgspec.Struct, eq=False):
    """The present state of a stage. Each task is in exactly one place: `pending` by kind, `live`, or `ended`."""

    job: Job
    position: int
    own: StageSpec | None
    """The specification of a stage that was added after its job was submitted; None otherwise."""
    terms: Terms
    shape: Shape
    count: int
    pending: Pending
    asks: Asks = NO_ASKS
    live: dict[int, Allocation] | None = None
    ended: dict[str, Ranges] | None = None
    history: dict[int, History] | None = None
    started: bool = False
    top: int = 0
    """The highest attempt of any task of the stage so far."""
    floor: int = 0
    """New attempts are above this: the highest attempt of removed tasks, so that no attempt is used twice."""
    short_since: Micros | None = None
    """Since when a started stage has had fewer live tasks than it needs."""
    ran: Micros | None = None
    """The measured run time of its tasks, if they are quick enough for chains."""
    below_min: bool = False
    """True if it has started and needs replacements to have `min` live tasks again. Derived, see `Partition`."""
    last_ask: tuple[Micros, Micros] | None = None
    """`asked` and `waiting_since` of its last ask of kind new; None if both are the submission time."""
    last_place: int = 0
    """`place` of its last ask of kind new."""
    generation: int = 0
    """The number of starts of its gang, of one stage or of a whole job; 0 before the first, and without a gang."""
    members: Members = ()
    """The tasks that have been placed in this generation, in the order in which they came."""
    failures: int = 0
    """The number of generations of its gang that failed, with `on_failure: restart`."""

    @property
    def spec(self) -> StageSpec:
        return self.own or self.job.spec.stages[self.position]

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def min(self) -> int:
        """Return the number of tasks that must start together."""
        return min(self.terms.min or self.count, self.count)

    @property
    def needed(self) -> int:
        """Return the number of tasks that must be live at once, counting only tasks that have not ended."""
        least = self.terms.min or self.count
        left = self.count - self.done() if self.ended else self.count
        return least if least < left else left

    @property
    def needed_before_growth(self) -> int:
        """Return the number of tasks that must be live at once, without pending tasks of kind scale."""
        left = self.count - self.done() - len(self.wanted(SCALE))
        return min(self.terms.min or left, left)

    def missing(self) -> int:
        """Return how many replacements a started stage needs to have enough live tasks, without tasks of kind scale."""
        if not self.started or self.pending[REPLACE] is None or self.job.over:
            return 0
        return max(0, self.needed_before_growth - self.running())

    @property
    def strict(self) -> bool:
        """True if its gang cannot go on without one of its tasks. Managers restart their tasks themselves."""
        return self.min == self.count and (self.count > 1 or self.job.whole) and not self.job.manager

    @property
    def on_failure(self) -> Policy:
        """What follows when a task fails and has tries left."""
        return self.terms.on_failure or ("restart" if self.strict else "replace")

    @property
    def on_loss(self) -> Policy:
        """What follows when a task is lost."""
        return self.terms.on_loss or ("restart" if self.strict else "replace")

    @property
    def starts_whole(self) -> bool:
        """True if all its tasks run in each generation, also those that succeeded in an earlier one."""
        return self.strict and self.on_failure == self.on_loss == "restart"

    def tries_used(self, index: int) -> int:
        """Return the tries that a task has used; a gang that restarts uses its tries as one."""
        return self.failures if self.on_failure == "restart" else self.past(index).tries_used

    def rank(self, index: int) -> int | None:
        """Return the rank of a task in the present generation of its gang; None if it has none."""
        for rank, start, end in self.members:
            if start <= index < end:
                return rank + index - start
        return None

    def world_size(self) -> int:
        """Return the number of ranks of the present generation of its gang. Tasks that were removed do not count."""
        ends = [
            rank + min(end, stage.count) - start
            for stage in self.gang()
            for rank, start, end in stage.members
            if start < stage.count
        ]
        return max(ends, default=0)

    def gang(self) -> tuple[Stage, ...]:
        """Return the stages that start together and are taken back together, including this one."""
        return self.job.stages if self.job.whole else (self,)

    def whole(self, kind: int) -> bool:
        """True if its tasks of a kind share one ask with all other stages of the job."""
        return self.job.whole and kind == NEW and not self.started

    def set_ask(self, kind: int, ask: Ask | None) -> None:
        before = self.asks
        self.asks = (*before[:kind], ask, *before[kind + 1 :])

    def set_pending(self, kind: int, wanted: Ranges | None) -> None:
        self.pending = (*self.pending[:kind], wanted, *self.pending[kind + 1 :])

    def alter_pending(self, kind: int) -> Ranges | None:
        """Return the pending tasks of a kind for altering in place. A shared object is copied first."""
        wanted = self.pending[kind]
        if isinstance(wanted, SharedRanges):
            wanted = wanted.copy()
            self.set_pending(kind, wanted)
        return wanted

    def note_ask(self, asked: Micros, waiting_since: Micros, place: int) -> None:
        submitted = self.job.submitted
        self.last_place = place
        self.last_ask = None if asked == waiting_since == submitted else (asked, waiting_since)

    @property
    def asked(self) -> Micros:
        """Return when its last ask of kind new was made. Tasks that return to that place ask with the same time."""
        return self.last_ask[0] if self.last_ask is not None else self.job.submitted

    @property
    def waiting_since(self) -> Micros:
        """Return `waiting_since` of its last ask of kind new."""
        return self.last_ask[1] if self.last_ask is not None else self.job.submitted

    def wanted(self, kind: int) -> Ranges:
        return self.pending[kind] or EMPTY

    def waiting(self) -> int:
        """Return the number of pending tasks of all kinds."""
        if self.pending is NOTHING_PENDING:
            return 0
        return sum([len(ranges) for ranges in self.pending if ranges is not None])

    def running(self) -> int:
        """Return the number of tasks with a live attempt."""
        return len(self.live) if self.live else 0

    def ended_as(self, outcome: str) -> Ranges:
        return (self.ended.get(outcome) if self.ended else None) or EMPTY

    def done(self) -> int:
        """Return the number of tasks that have ended for good."""
        return sum(map(len, self.ended.values())) if self.ended else 0

    def next_attempt(self, block: tuple[int, ...]) -> int:
        """Return the attempt for a block that is assigned now, above all earlier attempts of its tasks."""
        if not self.history:
            return self.floor + 1
        return max(self.floor, *(self.past(index).attempt for index in indices(block))) + 1

    def past(self, index: int) -> History:
        return (self.history.get(index) if self.history else None) or NO_HISTORY


EMPTY = Ranges()
"""Stands in for a collection of a stage that is None; never altered."""


class HeldBy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The user who holds a job back, so that none of its tasks start, and since when."""

    user: str
    level: int
    """The right by which the job is held: of its owner, of an administrator of its queue, or of an operator."""
    since: Micros


OWNER, ADMINISTRATOR, OPERATOR = 0, 1, 2
"""The rights over a job, the lowest first."""


class Job(msgspec.Struct, eq=False):
    """The present state of a job. `number` counts submissions and is never reused."""

    id: str
    number: int
    packed: bytes
    submitted: Micros
    queue: Queue
    accounts: tuple[Account, ...]
    stages: tuple[Stage, ...] = ()
    state: JobState = "pending"
    priority: int = 0
    ended_at: Micros | None = None
    allocations: int = 0
    live: int = 0
    """The number of its live tasks, without those that wait in a chain."""
    reason: str = ""
    manager: str = ""
    after: tuple[str, ...] = ()
    whole: bool = False
    """True if all its stages start together: either all of them have started, or none has."""
    preemptible: bool = True
    preempts: bool = True
    listed: bool = False
    """True if its queue counts it."""
    held_by: HeldBy | None = None
    """Set while the job is held back by a user: none of its tasks start. Not to be confused with held nodes."""
    done_when: str = ""
    """The name of the stage with which it succeeds; empty for all stages."""

    @property
    def spec(self) -> JobSpec:
        """Return the specification, unpacked on each use. Fields that are read often are attributes of the job."""
        return unpack_spec(self.packed)

    @property
    def owner(self) -> tuple[str, str]:
        """Return the user and the name, without unpacking the whole specification, which may be large."""
        return _owner_of(self.packed)

    @property
    def user(self) -> str:
        """Return the owner, without unpacking the whole specification, which may be large."""
        return _decode_owner(self.packed).user

    def stage(self, name: str) -> Stage | None:
        for stage in self.stages:
            if stage.terms.name == name:
                return stage
        return None

    @property
    def over(self) -> bool:
        return self.ended_at is not None


class Strange(msgspec.Struct, frozen=True):
    """Tasks of one stage that run on nodes although this journal never started them."""

    floor: int
    """The floor of the stage's attempts when the first of these tasks was found."""
    tasks: dict[int, tuple[int, ...]]
    """Attempt → indices of its tasks. These attempts are not given again."""


class Allocation(msgspec.Struct, eq=False):
    """Tasks of one stage on one node, in one state, under one attempt.

    `devices` lists the devices of the first task, then of the second, and so on.
    """

    id: int
    stage: Stage
    node: int
    indices: tuple[int, ...]
    attempt: int
    devices: tuple[int, ...]
    state: AllocationState
    since: Micros
    started: Micros | None = None
    cause: StopCause = ""
    kind: int = NEW
    """The kind of its ask. Tasks of a launch that is taken back are pending under this kind again."""
    group: int = 0
    """The number of the first allocation of its gang; 0 for tasks that were placed one by one."""
    chain: int = 0
    """The number of the first allocation of its chain; 0 for none."""
    slots: int = 0
    """If above 0, the tasks wait for one of this number of slots of their chain: they use no capacity, and start as
    other tasks of the chain end."""
    safe_until: Micros = 0
    """If nodes were held for its tasks, these are not stopped for a higher priority before this time."""
    overdue: bool = False
    """True if its tasks were told to stop and did not stop in time. Their capacity is no longer expected to become
    free."""
    stopped_for: str = ""
    """For preempted tasks, the job or queue that they stop for, such as `job 7` or `queue root.ml`. For tasks that a
    user requeued, replaced or killed alone, the user. For members of a gang, the member that ended the generation. If
    the job is done, the stage that has succeeded."""
    expected: Micros | None = None
    """The learned run time that was expected when it was placed, if any."""
    generation: int = 0
    """The generation of its gang; 0 without a gang."""

    @property
    def leaving(self) -> bool:
        """True if its capacity is expected to become free: its tasks were told to stop and are not overdue."""
        return self.state == "stopping" and not self.slots and not self.overdue


Place = tuple[int, int, int]
"""A node id, the position of a stage, and how many of its tasks the node is kept for."""


class Earmark(msgspec.Struct, eq=False):
    """Nodes that are kept for the ask with the number `seq`, which does not use them yet."""

    seq: int
    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    since: Micros
    checked: int = -1
    """The version of the nodes at which the earmark was last found valid; not journaled."""

    @property
    def nodes(self) -> dict[int, None]:
        return {node_id: None for node_id, _, _ in self.places}

    @property
    def tasks(self) -> int:
        return sum(tasks for _, _, tasks in self.places)


class Hold(Earmark, eq=False):
    """Nodes that take no new work except that of one ask."""

    large: bool = False
    """True if it has more nodes than may be held at once: then it is the only hold of a starving ask."""
    recalled: bool = False
    """True if loans are to end there: the ask is within the entitlement of its queue. Otherwise the ask starved."""


class Promise(Earmark, eq=False):
    """Nodes on which capacity is coming that only one ask may use."""

    victims: tuple[int, ...] = ()
    """The allocations that stop for it."""
    ordered: bool = False
    """True if the nodes were ordered for the ask, joined, and are kept until the other ordered nodes join."""


RunsKey = tuple[str, str, str]
"""A user, and the name of a job and of a stage; both names are empty for all runs of the user."""


class Runs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The run times of the last two tasks that ended, and when the last was noted."""

    noted: Micros
    last: Micros
    before: Micros | None = None


class Account(msgspec.Struct, eq=False):
    """Use and limits of a queue, or of a user or group in a queue."""

    name: str
    limit: Vector | None = None
    max_jobs: int | None = None
    used: Vector = msgspec.field(default_factory=dict)
    tasks: int = 0
    """The number of tasks that use capacity here."""
    running: int = 0
    """The number of jobs with live allocations here."""
    booked: Vector | None = None
    """With `share_memory`, for a queue and for users that take turns: the value from which `policy.past.past_use`
    computes past use. None if past use does not count."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """The limits of one user or group in a queue and below it."""

    limit: Amounts | None = None
    max_jobs: int | None = None
    max_priority: int | None = None


class QueueSettings(msgspec.Struct, frozen=True, array_like=True):
    """A queue as configured. In `limit`, a missing resource is unlimited, and an explicit 0 allows nothing."""

    share: int | None = None
    guarantee: Amounts = ()
    limit: Amounts | None = None
    max_jobs: int | None = None
    order: str = "priority"
    scale_first: bool = True
    preemptible: bool = True
    submit: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    users: tuple[tuple[str, Limits], ...] = ()
    groups: tuple[tuple[str, Limits], ...] = ()
    max_priority: int | None = None
    """None: the value of the parent; 0 at the root."""


class Queue(msgspec.Struct, eq=False):
    """A node of the tree. Only leaves hold jobs."""

    path: str
    name: str
    parent: Queue | None
    settings: QueueSettings
    account: Account
    state: QueueState = "active"
    children: dict[str, Queue] = msgspec.field(default_factory=dict)
    jobs: int = 0
    """The number of jobs of a leaf that have not ended or still have allocations."""
    asks: int = 0
    """The number of asks in all lanes of a leaf."""
    at_work: dict[int, dict[str, Job]] = msgspec.field(default_factory=dict)
    """The jobs of a leaf with live allocations, by priority."""
    uneven_since: Micros | None = None
    """Since when its children have been too far from their shares."""
    users: dict[str, Account] = msgspec.field(default_factory=dict)
    groups: dict[str, Account] = msgspec.field(default_factory=dict)
    accounts_by_user: dict[tuple[str, tuple[str, ...]], tuple[Account, ...]] = msgspec.field(default_factory=dict)
    """User and groups → the accounts of their jobs here, root first; see `Partition.accounts_for`."""
    shared: tuple[Account, ...] = ()
    """The accounts of all users without limits of their own; empty until the first such user."""
    order: Order = MISSING
    """The order that the settings name."""
    uses: int = 0
    """Grows when the use of a user changes in a leaf where users take turns."""

    def __post_init__(self) -> None:
        self.configure(self.settings)

    def configure(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.order = ORDERS.get(settings.order, MISSING)

    def begin_work(self, job: Job) -> None:
        self.at_work.setdefault(job.priority, {})[job.id] = job

    def end_work(self, job: Job) -> None:
        jobs = self.at_work[job.priority]
        del jobs[job.id]
        if not jobs:
            del self.at_work[job.priority]

    def line(self) -> list[Queue]:
        """Return the queue and its ancestors, root first."""
        line: list[Queue] = []
        queue: Queue | None = self
        while queue is not None:
            line.append(queue)
            queue = queue.parent
        line.reverse()
        return line


DEFAULT_COST = 1


class PoolSettings(msgspec.Struct, frozen=True, array_like=True):
    """A pool as configured: nodes of one kind, in a number that grows and shrinks.

    The core does not read the JSON `provider`.
    """

    node: Amounts = ()
    labels: Pairs = ()
    taints: tuple[str, ...] = ()
    min: int = 0
    max: int | None = None
    min_idle: int = 0
    max_idle: int = 0
    idle_for: Micros = 600_000_000
    cost: int = DEFAULT_COST
    """Nodes of cheaper pools are ordered first, and used first. Nodes without a pool have the default cost."""
    provider: str = ""
    min_free: Amounts = ()
    """What the nodes of the pool have free together for future work; more nodes are ordered if it is less."""


Meant = tuple[str, int, int, int]
"""The tasks that an ordered node is meant for: job, position of the stage, kind, number of tasks."""

OrderCause = Literal["demand", "spare", "hand"]


class Pool(msgspec.Struct, eq=False, array_like=True):
    """The present state of a pool."""

    name: str
    settings: PoolSettings
    paused: bool = False
    """True if an operator paused it: it neither grows nor shrinks."""
    paused_until: Micros = 0
    """No nodes are ordered before this time, because an order failed."""
    problem: str = ""
    """Why the last order failed; empty again once an ordered node joined."""
    grew: Micros | None = None
    shrank: Micros | None = None
    """When nodes were last ordered and last given back."""

    @property
    def elastic(self) -> bool:
        """True if the pool has a provider that creates and removes its nodes."""
        return bool(self.settings.provider)


class NodeOrder(msgspec.Struct, eq=False):
    """An order of nodes from a pool. It ends when none of the nodes is expected any more."""

    number: int
    pool: str
    since: Micros
    cause: OrderCause
    coming: dict[str, tuple[Meant, ...]]
    """Name of a node that has not joined yet → the tasks it is meant for."""
    failed: tuple[tuple[str, int, int], ...] = ()
    """The asks (job, stage, kind) that count this order as failed."""

    @property
    def tasks_by_ask(self) -> dict[tuple[str, int, int], int]:
        """Return (job, stage, kind) → the number of tasks that the ordered nodes are meant for."""
        by_ask: dict[tuple[str, int, int], int] = {}
        for meant in self.coming.values():
            for job, stage, kind, tasks in meant:
                by_ask[job, stage, kind] = by_ask.get((job, stage, kind), 0) + tasks
        return by_ask


class Closure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nodes with some labels are disabled until a time, also those that join meanwhile."""

    until: Micros
    reason: str = ""


class Manager(msgspec.Struct, eq=False, array_like=True):
    """A resource manager: the adapter of another scheduler, with nodes, jobs and asks of its own."""

    name: str
    registered: Micros


class KeptKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An idempotency key: the digest of its request, and the answer."""

    digest: bytes
    answer: bytes
    """Empty if `job` is the whole answer."""
    job: str = ""
    expires: Micros | None = None
    """None if the key is kept as long as its job."""
