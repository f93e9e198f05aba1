"""The records of a partition: jobs, stages, asks, allocations, queues, accounts, holds, promises, pools and orders.

Specifications (`JobSpec`, `StageSpec`) are immutable and contain what was submitted. The other records contain the
present state, and only changes may alter them. A waiting job must use little memory: its specification is packed, and
collections that most jobs never need are None at first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Literal, NamedTuple, cast

import msgspec

from fairlead.core.expressions import Preferences, Where
from fairlead.core.policy.order import MISSING, ORDERS, Order
from fairlead.core.ranges import Flat, Ranges, SharedRanges, difference, indices
from fairlead.core.ranges import count as tasks_in
from fairlead.core.resources import Vector
from fairlead.core.shape import Selectors, Shape, ShapeKey, image_label

Micros = int
"""A point in time or a duration, in microseconds."""

FAR: Micros = 2**62
"""Later than any other time."""

JobState = Literal["pending", "running", "succeeded", "failed", "killed"]
AllocationState = Literal["assigned", "running", "stopping"]
Outcome = Literal["succeeded", "failed", "lost", "preempted", "killed"]
"""How an attempt ends."""
StopCause = Literal["", "kill", "scale", "time limit", "preempt", "gang", "return", "requeue", "done", "replace"]
"""Why tasks are told to stop. `done`: their job has succeeded without them. `return` recalls assigned tasks that have
not started; running tasks continue."""
ClaimCause = Literal["priority", "guarantee", "share", "order"]
"""The right by which nodes are promised to an ask. `order`: the nodes were ordered for it, and no task stops."""
NodeState = Literal["up", "draining", "disabled", "lost"]
QueueState = Literal["active", "draining", "stopped"]
Policy = Literal["replace", "restart", "fail"]
"""What follows when a task fails or is lost: the task starts again, its whole gang starts again, or its job fails."""
ChosenPolicy = Literal["", "replace", "restart", "fail"]
"""A policy as submitted; empty for the default, which depends on `min` and `count`. See `Stage.on_failure`."""
Gang = Literal["stage", "job"]
Scaling = Literal["strict", "partial"]
Unit = Literal["dominant", "slots"]

# The kinds of asks, in the order in which they are served.
REPLACE, SCALE, NEW = 0, 1, 2
KINDS = ("replace", "scale", "new")

Pairs = tuple[tuple[str, str], ...]
Parameters = tuple[tuple[str, tuple[str, ...]], ...]
"""The parameters of a sweep, each with its values. There is a task for each combination; the last parameter varies
fastest."""
Amounts = tuple[tuple[str, int], ...]


class StageSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group of equal tasks, as submitted.

    `min` tasks start together. If it is 0, all tasks start together, and so do tasks that are added later.
    """

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
    """`replace` in journals that were written before this field existed."""
    indices: Flat = ()
    """The indices of the tasks of an array that leaves some out; empty if they are 0 to `count` - 1."""
    parameters: Parameters = ()
    throttle: int = 0
    """The number of tasks that may run at a time; 0 for no bound."""
    pty: bool = False
    """True if each task has a terminal."""
    stdin: bool = False
    """True if a client may write to the standard input of a task."""
    signal: str = ""
    """The signal with which a stop of a task begins, such as `USR1`, and after an `@` how long before the time limit it
    is sent."""
    image: str = ""
    """The container image in which a task runs: `docker://…`, `oras://…`, a `.sif` file, or an unpacked root folder."""
    mounts: tuple[str, ...] = ()
    """Folders and files of the node in the container, as `SOURCE:TARGET`, and `:ro` behind it if they are read-only."""
    snapshot: str = ""
    """The SHA-256 of the stored files that are unpacked as the working directory."""
    grace: Micros | None = None
    """The time that a stopped task has to end; None for that of the partition."""

    @property
    def size(self) -> int:
        """Return the number of tasks, which is less than `count` if an array leaves indices out."""
        return tasks_in(self.indices) if self.indices else self.count

    def values(self, index: int) -> tuple[str, ...]:
        """Return the values of the parameters for a task."""
        values: list[str] = []
        for _, choices in reversed(self.parameters):
            index, at = divmod(index, len(choices))
            values.append(choices[at])
        return tuple(reversed(values))

    def shape_key(self, manager: str, user: str) -> ShapeKey:
        selectors = self.selectors
        if self.image and not manager:
            label = image_label(self.image)
            if label not in dict(selectors):
                selectors = tuple(sorted((*selectors, (label, ("*",)))))
        asked = (self.resources, selectors, self.tolerations, self.pool)
        return ShapeKey(*asked, manager, self.near, self.apart, user, self.where, self.prefer)


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
    grace: Micros | None
    absent: Flat = ()
    """The indices below `count` that an array leaves out."""


@lru_cache(maxsize=10_000)
def _same(terms: Terms) -> Terms:
    return terms


def terms_of(spec: StageSpec) -> Terms:
    absent = difference((0, spec.count), spec.indices) if spec.indices else ()
    values = (*_values_of_terms(spec), absent)
    return _same(Terms(*values))


_values_of_terms = attrgetter(*Terms.__struct_fields__[:-1])


Condition = Literal["ok", "any", "failed", "started", "each"]
"""What a job waits for: the success of another job, its end, its end without success, the start of its first task, or,
for each task, the success of the task with the same index."""
CONDITIONS: tuple[Condition, ...] = ("ok", "any", "failed", "started", "each")


NotifyOn = Literal["end", "failure"]
"""Whether every end of a job is told, or only one without success."""


class After(NamedTuple):
    """A dependency: a job starts after another one. In documents it is `7:any`, or `7` for `7:ok`."""

    job: str
    when: Condition = "ok"

    def __str__(self) -> str:
        return self.job if self.when == "ok" else f"{self.job}:{self.when}"


@lru_cache(maxsize=10_000)
def after_of(texts: tuple[str, ...]) -> tuple[After, ...]:
    """Return the dependencies of a specification."""
    parts = (text.partition(":") for text in texts)
    return tuple([After(job, cast(Condition, when or "ok")) for job, _, when in parts])


def renamed(after: tuple[str, ...], name: Callable[[str], str]) -> tuple[str, ...]:
    """Return dependencies with other names of their jobs."""
    return tuple(str(After(name(job), when)) for job, when in after_of(after))


class JobSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One submission. `manager` is the resource manager that owns the job; empty for jobs that run on our agents."""

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
    """The requestor pattern that chose the queue; None if no pattern did."""
    shape_user: str = ""
    """The user in the shapes of its tasks, set only if the partition may have nodes for named users."""
    preempts: bool = True
    """True if other tasks may be stopped for this job, because of its priority or a guarantee of its queue."""
    done_when: str = ""
    """The job succeeds when this stage, or the task `main[0]`, has; the rest is then stopped. Empty for all stages."""
    hold: bool = False
    """True if it is held from the beginning."""
    begin: int | None = None
    """When it may start, in microseconds since 1970; None for at once."""
    singleton: bool = False
    """True if it waits for the end of all earlier jobs of its user with its name. They were added to `after`."""
    notify: tuple[str, ...] = ()
    """Where its end is told: addresses of webhooks, and `mailto:` addresses."""
    notify_on: NotifyOn = "end"

    @property
    def whole(self) -> bool:
        """True if all stages start together as one gang. False for a job with one stage."""
        return self.gang == "job" and len(self.stages) > 1


pack_spec = msgspec.msgpack.Encoder().encode
"""Packs a specification into bytes, which take about a tenth of the memory of the records."""


@lru_cache(maxsize=1_000)
def unpack_spec(packed: bytes) -> JobSpec:
    return _decode_spec(packed)


_decode_spec = msgspec.msgpack.Decoder(JobSpec).decode


class _Owner(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first fields of a `JobSpec`, which are read without unpacking the others."""

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
"""Members of a generation in spans: the rank of a span's first task, its index, and the index after the last task."""


@lru_cache(maxsize=1_000)
def all_pending(count: int, chosen: Flat = ()) -> Pending:
    """Return `Stage.pending` of a new stage. All stages with these tasks share one object."""
    return (None, None, SharedRanges(chosen or (0, count)) if count else None)


Asks = tuple["Ask | None", ...]
"""The asks of a stage, by kind."""

NO_ASKS: Asks = (None, None, None)


class Ask(msgspec.Struct, eq=False):
    """A demand: the pending tasks of one kind of a stage.

    Its place in the lane never changes; an ask that moves is replaced by another one. `front` is above 0 if an operator
    brought the ask to the front. A `whole` ask is shared by all stages of a job; `stage` is the first of them.
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
    """The earliest time to hold nodes for it again, after a hold that expired."""
    unclaimed_until: Micros = 0
    """The earliest time to stop tasks for it again, after stops that did not help."""
    failed_orders: int = 0
    """The number of failed orders of nodes for it."""
    tie: int = 0
    """The number that orders it among asks of the same time if it has the place of an earlier ask; 0 otherwise."""
    latest: Micros = 0
    """With learned estimates, the latest start that asks behind this one may cause; 0 if there is none yet."""

    @property
    def place(self) -> int:
        """Return the number that orders it among asks of the same time."""
        return self.tie or self.seq

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.stage.job.stages if self.whole else (self.stage,)

    @property
    def count(self) -> int:
        if self.whole:
            return sum(len(stage.wanted(self.kind)) for stage in self.stages)
        return len(self.stage.wanted(self.kind))


class Stage(msgspec.Struct, eq=False):
    """The present state of a stage.

    Each task is in exactly one place: `pending` by kind, `blocked`, `live`, or `ended`.
    """

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
    """The highest attempt of removed tasks. New attempts are above it, so that no attempt is used twice."""
    short_since: Micros | None = None
    """Since when a started stage has had fewer live tasks than it needs."""
    ran: Micros | None = None
    """The measured run time of its tasks, if they are quick enough for chains."""
    below_min: bool = False
    """True if it has started and needs replacements to have `min` live tasks again. Derived; not stored."""
    last_ask: tuple[Micros, Micros] | None = None
    """`asked` and `waiting_since` of its last ask of kind new; None if both are the time of submission."""
    last_place: int = 0
    """`place` of its last ask of kind new."""
    generation: int = 0
    """The number of starts of its gang; 0 before the first start, and without a gang."""
    members: Members = ()
    """The tasks that have been placed in this generation, in the order of their ranks."""
    failures: int = 0
    """The number of generations of its gang that failed, with `on_failure: restart`."""
    earlier: tuple[int, ...] = ()
    """`floor` and `top` when the last era began, and the `floor` that it set; empty if none began since."""

    throttle: int = 0
    """The number of tasks that may run at a time; 0 for no bound."""
    blocked: Flat = ()
    """The tasks that wait until the task with the same index of another job has succeeded. They are not pending."""

    @property
    def spec(self) -> StageSpec:
        return self.own or self.job.spec.stages[self.position]

    @property
    def size(self) -> int:
        """Return the number of tasks, which is less than `count` if its array leaves indices out."""
        return self.count - tasks_in(self.terms.absent) if self.terms.absent else self.count

    @property
    def tasks(self) -> Flat:
        """Return the indices of its tasks."""
        return difference((0, self.count), self.terms.absent) if self.count else ()

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def min(self) -> int:
        """Return the number of tasks that must start together."""
        return min(self.terms.min or self.count, self.count)

    @property
    def needed(self) -> int:
        """Return the number of tasks that must be live together, at most those that have not ended."""
        terms = self.terms
        least = terms.min or self.count
        left = self.size if terms.absent else self.count
        if self.ended:
            left -= self.done()
        return least if least < left else left

    @property
    def needed_before_growth(self) -> int:
        """Return the number of tasks that must be live together if no pending task of kind scale starts."""
        left = self.size - self.done() - len(self.wanted(SCALE))
        return min(self.terms.min or left, left)

    def missing(self) -> int:
        """Return how many replacements a started stage lacks to have enough live tasks."""
        if not self.started or self.pending[REPLACE] is None or self.job.over:
            return 0
        return max(0, self.needed_before_growth - self.running())

    @property
    def strict(self) -> bool:
        """True if its gang cannot continue without one of its tasks. Managers restart their tasks themselves."""
        return self.min == self.count and (self.count > 1 or self.job.whole) and not self.job.manager

    @property
    def on_failure(self) -> Policy:
        """Return what follows when a task fails and has tries left."""
        return self.terms.on_failure or ("restart" if self.strict else "replace")

    @property
    def on_loss(self) -> Policy:
        """Return what follows when a task is lost."""
        return self.terms.on_loss or ("restart" if self.strict else "replace")

    @property
    def starts_whole(self) -> bool:
        """True if each generation runs all its tasks, including those that succeeded in an earlier generation."""
        return self.strict and self.on_failure == self.on_loss == "restart"

    def tries_used(self, index: int) -> int:
        """Return the tries that a task has used. In a gang that restarts whole, all tasks have used the same tries."""
        own = self.past(index).tries_used
        return max(self.failures, own) if self.on_failure == "restart" else own

    def rank(self, index: int) -> int | None:
        """Return the rank of a task in the present generation of its gang; None if it is no member."""
        for rank, start, end in self.members:
            if start <= index < end:
                return rank + index - start
        return None

    def world_size(self) -> int:
        """Return the number of ranks in the present generation of its gang, without removed tasks."""
        ends = [
            rank + min(end, stage.count) - start
            for stage in self.gang()
            for rank, start, end in stage.members
            if start < stage.count
        ]
        return max(ends, default=0)

    def gang(self) -> tuple[Stage, ...]:
        """Return the stages that start together, including this one."""
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
        """Return the pending tasks of a kind as an object that may be altered; shared ranges are copied first."""
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
        """Return `asked` of its last ask of kind new, which tasks that return to that place keep."""
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

    def unstarted(self) -> int:
        """Return the number of tasks that are pending or blocked."""
        return self.waiting() + (tasks_in(self.blocked) if self.blocked else 0)

    def running(self) -> int:
        """Return the number of tasks with a live attempt."""
        return len(self.live) if self.live else 0

    def ended_as(self, outcome: str) -> Ranges:
        return (self.ended.get(outcome) if self.ended else None) or EMPTY

    def done(self) -> int:
        """Return the number of tasks that have ended for good."""
        return sum(map(len, self.ended.values())) if self.ended else 0

    def next_attempt(self, block: tuple[int, ...]) -> int:
        """Return the attempt for tasks that are assigned now, above all earlier attempts of these tasks."""
        if not self.history:
            return self.floor + 1
        return max(self.floor, *(self.past(index).attempt for index in indices(block))) + 1

    def past(self, index: int) -> History:
        return (self.history.get(index) if self.history else None) or NO_HISTORY


EMPTY = Ranges()
"""Stands for a collection of a stage that is None. Must not be altered."""


class HeldBy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The user who holds a job, so that none of its tasks start, and since when."""

    user: str
    level: int
    """The right of the user: as owner of the job, administrator of its queue, or operator."""
    since: Micros
    until: Micros = 0
    """When the job is released by itself, because it should begin then; 0 for never."""


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
    """The number of its live tasks, without tasks that wait in a chain."""
    reason: str = ""
    manager: str = ""
    after: tuple[After, ...] = ()
    whole: bool = False
    """True if all its stages start together: either all of them have started, or none has."""
    throttled: bool = False
    """True if a stage has a throttle."""
    preemptible: bool = True
    preempts: bool = True
    listed: bool = False
    """True if its queue counts it."""
    held_by: HeldBy | None = None
    """Set while a user holds the job. Holds of nodes are something else."""
    done_when: str = ""
    """The stage with whose success it succeeds, or one of its tasks, as `main[0]`; empty for all stages."""

    @property
    def spec(self) -> JobSpec:
        """Return the specification, unpacked on each use."""
        return unpack_spec(self.packed)

    @property
    def owner(self) -> tuple[str, str]:
        """Return the user and the name, without unpacking the whole specification."""
        return _owner_of(self.packed)

    @property
    def user(self) -> str:
        """Return the owner, without unpacking the whole specification."""
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
    """`Stage.floor` when the first of these tasks was found."""
    tasks: dict[int, tuple[int, ...]]
    """Attempt → its tasks as ranges. These attempts are not given again."""


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
    """The kind of its ask. If its launch is taken back, its tasks are pending under this kind again."""
    group: int = 0
    """The number of the first allocation of its gang; 0 for tasks that were placed singly."""
    chain: int = 0
    """The number of the first allocation of its chain; 0 for none."""
    slots: int = 0
    """If above 0, the tasks wait in their chain, which runs this number of tasks at a time. They use no capacity, and
    start as other tasks of the chain end."""
    safe_until: Micros = 0
    """Its tasks are not stopped for a higher priority before this time, because nodes were held for them."""
    overdue: bool = False
    """True if its tasks did not stop in time. Their capacity is then no longer expected to become free."""
    stopped_for: str = ""
    """What its tasks stop for: a job or queue, such as `job 7` or `queue root.ml`; a user who requeued, replaced or
    killed some tasks; the member that ended the generation of their gang; or the stage with which the job is done."""
    expected: Micros | None = None
    """The learned run time that was expected when it was placed, if any."""
    generation: int = 0
    """The generation of its gang; 0 without a gang."""
    known_until: Micros = 0
    """If the data were set back while it was live: the time of their last record, until its node reports it. Then 0."""

    @property
    def began(self) -> Micros:
        """When its tasks started, or were sent if they have not."""
        return self.since if self.started is None else self.started

    @property
    def leaving(self) -> bool:
        """True if its capacity is expected to become free, because its tasks are stopping and not overdue."""
        return self.state == "stopping" and not self.slots and not self.overdue


Place = tuple[int, int, int]
"""A node id, the position of a stage, and the number of its tasks that the node is kept for."""


class Earmark(msgspec.Struct, eq=False, array_like=True):
    """Nodes that are kept for the ask with the number `seq` until it starts."""

    seq: int
    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    since: Micros

    @property
    def nodes(self) -> dict[int, None]:
        return {node_id: None for node_id, _, _ in self.places}

    @property
    def tasks(self) -> int:
        return sum(tasks for _, _, tasks in self.places)


class Hold(Earmark, eq=False):
    """Nodes that take no new work except that of one ask."""

    large: bool = False
    """True if it has more nodes than may be held at once. Then no other starving ask has a hold."""
    recalled: bool = False
    """True if it is for an ask within its queue's entitlement, so that loans end there; False for a starving ask."""


class Promise(Earmark, eq=False):
    """Nodes on which capacity is coming for one ask."""

    victims: tuple[int, ...] = ()
    """The allocations that stop for it."""
    ordered: bool = False
    """True if the nodes were ordered for the ask, have joined, and are kept until the other ordered nodes join."""


RunsKey = tuple[str, str, str]
"""A user, and the name of a job and of a stage; both names are empty for all runs of the user."""


class Runs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The run times of the last two tasks that ended, and when the last one ended."""

    noted: Micros
    last: Micros
    before: Micros | None = None


class Mix(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What jobs usually ask for."""

    requests: tuple[tuple[ShapeKey, int], ...] = ()
    """Shapes without preferences, sorted, and the weight of each: 100 for a task, less for old ones."""
    upto: int = 0
    """Jobs below this number are included."""
    gpu: int = 0
    """The milli-GPUs that all included jobs asked for."""
    ending: int = 0
    """The percentage of what started of them that has ended."""


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
    """The value from which `policy.decay.past_use` computes past use; None if past use does not count."""


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """The limits of one user or group in a queue and below it."""

    limit: Amounts | None = None
    max_jobs: int | None = None
    max_priority: int | None = None


class QueueSettings(msgspec.Struct, frozen=True, array_like=True):
    """A queue as configured. In `limit`, a resource that is not named is unlimited, and 0 allows nothing."""

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
    """None for the value of the parent, or 0 at the root."""
    max_grace: Micros | None = None
    """None for the value of the parent, or `preempt_grace` at the root."""


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
    """The accounts of jobs whose users and groups have no limits; empty until the first such job."""
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
    """A pool as configured: equal nodes, in a number that grows and shrinks.

    `provider` is JSON that the core does not read.
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
    """Amounts that the nodes of the pool together keep free for future work."""


Meant = tuple[str, int, int, int]
"""Tasks that an ordered node is meant for: job, position of the stage, kind, number of tasks."""

OrderCause = Literal["demand", "spare", "hand"]


class Pool(msgspec.Struct, eq=False, array_like=True):
    """The present state of a pool."""

    name: str
    settings: PoolSettings
    paused: bool = False
    """True if an operator paused it: it neither grows nor shrinks."""
    paused_until: Micros = 0
    """The earliest time of the next order, after one that failed."""
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
    """An order of nodes from a pool. It ends when each of its nodes has joined or failed."""

    number: int
    pool: str
    since: Micros
    cause: OrderCause
    coming: dict[str, tuple[Meant, ...]]
    """Name of a node that has not joined yet → the tasks it is meant for."""
    failed: tuple[tuple[str, int, int], ...] = ()
    """The asks (job, stage, kind) for which this order already counts as failed."""

    @property
    def tasks_by_ask(self) -> dict[tuple[str, int, int], int]:
        """Return (job, stage, kind) → the number of tasks that the ordered nodes are meant for."""
        by_ask: dict[tuple[str, int, int], int] = {}
        for meant in self.coming.values():
            for job, stage, kind, tasks in meant:
                by_ask[job, stage, kind] = by_ask.get((job, stage, kind), 0) + tasks
        return by_ask


class Closure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The nodes with some labels are disabled until a time, including nodes that join before then."""

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
    """None if the key expires with its job."""
