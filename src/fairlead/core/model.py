"""The records of a partition, under the words of docs/architecture.md.

Specifications (`JobSpec`, `StageSpec`) are immutable and say what was asked for; the other records are what became
of it, and only changes may alter them. A waiting job must be cheap: it keeps its specification packed, and
collections that most jobs never need start as None.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from fairlead.core.policy.order import MISSING, ORDERS, Order
from fairlead.core.ranges import Ranges, SharedRanges, indices
from fairlead.core.resources import Vector
from fairlead.core.shape import Selectors, Shape, ShapeKey

Micros = int
"""A point in time or a duration, in microseconds."""

JobState = Literal["pending", "running", "succeeded", "failed", "killed"]
AllocationState = Literal["assigned", "running", "stopping"]
Outcome = Literal["succeeded", "failed", "lost", "preempted", "killed"]
"""How an attempt ends."""
StopCause = Literal["", "kill", "scale", "time limit", "preempt", "gang", "return"]
"""Why tasks are told to stop. `return` is no stop: assigned tasks are asked back if they have not started."""
ClaimCause = Literal["priority", "guarantee", "share", "order"]
"""By what right tasks are stopped for others."""
NodeState = Literal["up", "draining", "disabled", "lost"]
QueueState = Literal["active", "draining", "stopped"]
OnLoss = Literal["replace", "restart", "fail"]
Gang = Literal["stage", "job"]
Scaling = Literal["strict", "partial"]
Unit = Literal["dominant", "slots"]

# The kinds of an ask, in the order in which they are served.
REPLACE, SCALE, NEW = 0, 1, 2
KINDS = ("replace", "scale", "new")

Pairs = tuple[tuple[str, str], ...]
Amounts = tuple[tuple[str, int], ...]


class StageSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group of equal tasks, as submitted. `min` 0 stands for "as many as `count`", also after scaling."""

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
    on_loss: OnLoss = "replace"
    scaling: Scaling = "strict"
    near: str = ""
    apart: bool = False
    directory: str = ""
    secrets: Pairs = ()
    """Variables and the names of the secrets that they hold: values are never here."""

    def shape_key(self, manager: str, user: str) -> ShapeKey:
        return ShapeKey(
            self.resources, self.selectors, self.tolerations, self.pool, manager, self.near, self.apart, user
        )


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What deciding asks of a stage all the time; equal ones are one object."""

    name: str
    min: int
    tries: int
    on_loss: OnLoss
    scaling: Scaling
    estimate: Micros | None
    time_limit: Micros | None


@lru_cache(maxsize=10_000)
def _same(terms: Terms) -> Terms:
    return terms


def terms_of(spec: StageSpec) -> Terms:
    return _same(Terms(spec.name, spec.min, spec.tries, spec.on_loss, spec.scaling, spec.estimate, spec.time_limit))


class JobSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One submission. `manager` names the resource manager whose job it is; empty for our own agents'."""

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
    """The requestor pattern that chose the queue, if one did; the empty one matches everybody."""
    shape_user: str = ""
    """The user in the shapes of its tasks: set where nodes may take tasks of named users only."""

    @property
    def whole(self) -> bool:
        """Whether all stages start together. One stage alone starts together anyway."""
        return self.gang == "job" and len(self.stages) > 1


pack_spec = msgspec.msgpack.Encoder().encode
"""A specification as the bytes that the journal has too; about a tenth of the memory that the records take."""


@lru_cache(maxsize=1_000)
def unpack_spec(packed: bytes) -> JobSpec:
    return _decode_spec(packed)


_decode_spec = msgspec.msgpack.Decoder(JobSpec).decode


class _Owner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a `JobSpec`."""

    name: str
    user: str


_decode_owner = msgspec.msgpack.Decoder(_Owner).decode


class History(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What happened to a task before: its last attempt, what it used of its budgets, how the last one ended."""

    attempt: int = 0
    tries_used: int = 0
    launches_failed: int = 0
    reason: str = ""
    exit_code: int | None = None


NO_HISTORY = History()


Pending = tuple[Ranges | None, ...]
"""The pending tasks of a stage by kind."""


NOTHING_PENDING: Pending = (None, None, None)


@lru_cache(maxsize=1_000)
def all_pending(count: int) -> Pending:
    """What is pending of a stage that has just arrived: one object for all stages of that size."""
    return (None, None, SharedRanges((0, count)) if count else None)


Asks = tuple["Ask | None", ...]
"""A place for each kind."""

NO_ASKS: Asks = (None, None, None)


class Ask(msgspec.Struct, eq=False):
    """An entry of demand: the pending tasks of one kind of a stage, wanted together.

    It is replaced, never altered, when its place changes. `front` is above 0 when somebody brought it to the front.
    A `whole` one speaks for all stages of a job that has yet to start: each has it as its own. `stage` is the first.
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
    """No nodes are held for it before this, because those that were did not help in time."""
    unclaimed_until: Micros = 0
    """Nobody is stopped for it before this, because that did not help."""
    orders: int = 0
    """How many orders of nodes for it failed."""
    tie: int = 0
    """The number that orders it among asks of one instant, if it has come back to an earlier place; 0: its own."""

    @property
    def place(self) -> int:
        """Its place among asks of one instant."""
        return self.tie or self.seq

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages whose tasks it asks for."""
        return self.stage.job.stages if self.whole else (self.stage,)

    @property
    def count(self) -> int:
        if self.whole:
            return sum(len(stage.wanted(self.kind)) for stage in self.stages)
        return len(self.stage.wanted(self.kind))


class Stage(msgspec.Struct, eq=False):
    """A stage at work. A task is in exactly one place: `pending` of a kind, `live`, or `ended` in some way."""

    job: Job
    position: int
    own: StageSpec | None
    """Only of a stage that came after its job was submitted."""
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
    """The highest attempt any task of the stage has had."""
    floor: int = 0
    """Attempts start above this: the highest of tasks that a scale-down removed, so that none is ever reused."""
    short_since: Micros | None = None
    """Since when a started stage has had fewer live tasks than it needs."""
    ran: Micros | None = None
    """About how long its tasks run, if they are quick enough for chains."""
    below_min: bool = False
    """True if it has started and needs replacements to have `min` live tasks again: derived, see `Partition`."""
    last_ask: tuple[Micros, Micros] | None = None
    """`asked` and `waiting_since` of its last ask of kind new; None if both are when its job was submitted."""
    last_place: int = 0
    """`place` of the same."""

    @property
    def spec(self) -> StageSpec:
        return self.own or self.job.spec.stages[self.position]

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def min(self) -> int:
        """How many tasks must start together."""
        return min(self.terms.min or self.count, self.count)

    @property
    def needed(self) -> int:
        """How many must be at work at once, counting only tasks that are not over."""
        least = self.terms.min or self.count
        left = self.count - self.done() if self.ended else self.count
        return least if least < left else left

    @property
    def needed_before_growth(self) -> int:
        """How many must be at work at once, without the tasks that it has yet to grow by."""
        left = self.count - self.done() - len(self.wanted(SCALE))
        return min(self.terms.min or left, left)

    def missing(self) -> int:
        """How many replacements a started stage needs to have as many live tasks as it must. Growth is not missing."""
        if not self.started or self.pending[REPLACE] is None or self.job.over or self.job.manager:
            return 0
        return max(0, self.needed_before_growth - self.running())

    def gang(self) -> tuple[Stage, ...]:
        """The stages that start together with this one, and are taken back with it; it is one of them."""
        return self.job.stages if self.job.whole else (self,)

    def whole(self, kind: int) -> bool:
        """Whether its tasks of a kind are asked for in one ask with those of all other stages."""
        return self.job.whole and kind == NEW and not self.started

    def set_ask(self, kind: int, ask: Ask | None) -> None:
        before = self.asks
        self.asks = (*before[:kind], ask, *before[kind + 1 :])

    def set_pending(self, kind: int, wanted: Ranges | None) -> None:
        self.pending = (*self.pending[:kind], wanted, *self.pending[kind + 1 :])

    def alter_pending(self, kind: int) -> Ranges | None:
        """The pending tasks of a kind, to be altered in place: from here on they are the stage's own."""
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
        """When its tasks of kind new were last asked for: the place that they come back to."""
        return self.last_ask[0] if self.last_ask is not None else self.job.submitted

    @property
    def waiting_since(self) -> Micros:
        """Since when its tasks of kind new have waited, or had when they were placed."""
        return self.last_ask[1] if self.last_ask is not None else self.job.submitted

    def wanted(self, kind: int) -> Ranges:
        return self.pending[kind] or EMPTY

    def waiting(self) -> int:
        """How many tasks are pending, of any kind."""
        if self.pending is NOTHING_PENDING:
            return 0
        return sum([len(ranges) for ranges in self.pending if ranges is not None])

    def running(self) -> int:
        """How many tasks have a live attempt."""
        return len(self.live) if self.live else 0

    def ended_as(self, outcome: str) -> Ranges:
        return (self.ended.get(outcome) if self.ended else None) or EMPTY

    def done(self) -> int:
        """How many tasks have ended for good."""
        return sum(map(len, self.ended.values())) if self.ended else 0

    def next_attempt(self, block: tuple[int, ...]) -> int:
        """The attempt for a block that is assigned now: above every one its tasks have had."""
        if not self.history:
            return self.floor + 1
        return max(self.floor, *(self.past(index).attempt for index in indices(block))) + 1

    def past(self, index: int) -> History:
        return (self.history.get(index) if self.history else None) or NO_HISTORY


EMPTY = Ranges()
"""Shared stand-in for a collection that a stage never needed; never altered."""


class Job(msgspec.Struct, eq=False):
    """A submission at work. `number` is its place in the order of arrival and is never reused."""

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
    """How many of its tasks have a room: all that are live, but for those that wait in a chain."""
    reason: str = ""
    manager: str = ""
    after: tuple[str, ...] = ()
    whole: bool = False
    """Whether all its stages start together: either all of them have started, or none has."""
    preemptible: bool = True
    listed: bool = False
    """Whether its queue counts it."""

    @property
    def spec(self) -> JobSpec:
        """What was submitted: unpacked when asked for. What is asked for all the time stands beside it."""
        return unpack_spec(self.packed)

    @property
    def user(self) -> str:
        """The owner, read without unpacking the rest, which may be large."""
        return _decode_owner(self.packed).user

    def stage(self, name: str) -> Stage | None:
        for stage in self.stages:
            if stage.terms.name == name:
                return stage
        return None

    @property
    def over(self) -> bool:
        return self.ended_at is not None


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
    """The kind of the ask it was placed for; a launch that is taken back returns there."""
    group: int = 0
    """The number of the first allocation of the gang it was placed with; 0 for tasks that came one by one."""
    chain: int = 0
    """The number of the first allocation of its chain; 0 for none."""
    rooms: int = 0
    """Above 0 the tasks wait: they use no room, and start as others of their chain end, which has so many rooms."""
    safe_until: Micros = 0
    """Nodes were held for its tasks: they are not stopped for a higher priority before this."""
    overdue: bool = False
    """Whether its tasks were told to stop and have not in time. Their room is not counted on any more."""

    @property
    def leaving(self) -> bool:
        """Whether its room is coming: its tasks were told to stop, and still have time to."""
        return self.state == "stopping" and not self.rooms and not self.overdue


Place = tuple[int, int, int]
"""A node by its join number, the position of a stage, and how many of its tasks the node is kept for."""


class Earmark(msgspec.Struct, eq=False):
    """Nodes that are kept for an ask, which is named by its number. It uses nothing of them yet."""

    seq: int
    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    since: Micros
    checked: int = -1
    """For which version of the nodes it was found to stand; not written down."""

    @property
    def nodes(self) -> dict[int, None]:
        return {node_id: None for node_id, _, _ in self.places}

    @property
    def tasks(self) -> int:
        return sum(tasks for _, _, tasks in self.places)


class Hold(Earmark, eq=False):
    """Nodes that get no new work but that of a starving ask."""

    large: bool = False
    """Whether it has more nodes than may be held at once: then it is the only one."""


class Promise(Earmark, eq=False):
    """Nodes on which room is being made for an ask: only it may take that."""

    victims: tuple[int, ...] = ()
    """The allocations that stop for it."""
    ordered: bool = False
    """Whether its nodes came because they were ordered for it, and wait for the rest of them."""


class Account(msgspec.Struct, eq=False):
    """What is used and what may be used under one name: a queue, or a user or group in a queue."""

    name: str
    limit: Vector | None = None
    max_jobs: int | None = None
    used: Vector = msgspec.field(default_factory=dict)
    tasks: int = 0
    """How many tasks have a room here."""
    running: int = 0
    """How many jobs have a live allocation here."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """What one user or group may use in a queue and below it."""

    limit: Amounts | None = None
    max_jobs: int | None = None


class QueueSettings(msgspec.Struct, frozen=True, array_like=True):
    """A queue as configured. An absent resource of `limit` is unlimited, an explicit 0 is nothing."""

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
    """How many jobs of a leaf want something, or still use something."""
    asks: int = 0
    """How many there are in all lanes of a leaf."""
    at_work: dict[int, dict[str, Job]] = msgspec.field(default_factory=dict)
    """The jobs of a leaf that have live allocations, by priority."""
    uneven_since: Micros | None = None
    """Since when its children have been too far from their shares."""
    users: dict[str, Account] = msgspec.field(default_factory=dict)
    groups: dict[str, Account] = msgspec.field(default_factory=dict)
    accounts_by_user: dict[tuple[str, tuple[str, ...]], tuple[Account, ...]] = msgspec.field(default_factory=dict)
    """User and groups → every account their jobs here are booked on, root first; see `Partition.accounts_for`."""
    shared: tuple[Account, ...] = ()
    """The same for all who have no limits of their own, if there is anybody."""
    order: Order = MISSING
    """What the settings name."""

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
        """The queue and those above it, root first."""
        line: list[Queue] = []
        queue: Queue | None = self
        while queue is not None:
            line.append(queue)
            queue = queue.parent
        line.reverse()
        return line


class PoolSettings(msgspec.Struct, frozen=True, array_like=True):
    """Nodes of one kind that can be grown and shrunk, as configured. `provider` is JSON that the core does not read."""

    node: Amounts = ()
    labels: Pairs = ()
    taints: tuple[str, ...] = ()
    min: int = 0
    max: int | None = None
    min_idle: int = 0
    max_idle: int = 0
    idle_for: Micros = 600_000_000
    cost: int = 1
    provider: str = ""


Meant = tuple[str, int, int, int]
"""Whom room on an ordered node is for: a job, a stage of it by position, the kind, and how many tasks."""

OrderCause = Literal["demand", "spare", "hand"]


class Pool(msgspec.Struct, eq=False):
    name: str
    settings: PoolSettings
    paused: bool = False
    """Somebody wants it to stay as it is."""
    paused_until: Micros = 0
    """Nothing is ordered before this, because an order failed."""
    problem: str = ""
    """Why the last order failed, until one has come."""
    grew: Micros | None = None
    shrank: Micros | None = None
    """When it was last told to."""

    @property
    def elastic(self) -> bool:
        """Whether there is somebody who brings its nodes and takes them away."""
        return bool(self.settings.provider)


class NodeOrder(msgspec.Struct, eq=False):
    """Nodes that a pool was asked for. It is over when the last has come, or is not expected any more."""

    number: int
    pool: str
    since: Micros
    cause: OrderCause
    coming: dict[str, tuple[Meant, ...]]
    """The names of the nodes that have yet to come, and what each is meant for."""
    failed: tuple[tuple[str, int, int], ...] = ()
    """The asks (job, stage, kind) that count this order among their failed ones."""

    @property
    def for_whom(self) -> dict[tuple[str, int, int], int]:
        """Job, stage and kind → how many tasks its nodes are meant for."""
        whom: dict[tuple[str, int, int], int] = {}
        for meant in self.coming.values():
            for job, stage, kind, tasks in meant:
                whom[job, stage, kind] = whom.get((job, stage, kind), 0) + tasks
        return whom


class Manager(msgspec.Struct, eq=False):
    """A resource manager: an outside scheduler's shim that brings nodes, jobs and asks of its own."""

    name: str
    registered: Micros


class KeptKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An idempotency key: which body it came with, and what was answered."""

    digest: bytes
    answer: bytes
    """Empty where `job` says it all."""
    job: str = ""
    expires: Micros | None = None
    """None while its job lives."""
