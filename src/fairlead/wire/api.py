"""The documents of the HTTP API: requests and answers, for the server, the clients and OpenAPI.

Requests come first, as users write them in YAML. The core's readers check them, and name the wrong field and the
remedy. Answers follow. Times are seconds since 1970, durations are seconds, and amounts are in the units that users
write: CPUs, bytes, GPUs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.wire.index_spans import each_index

Role = Literal["user", "operator", "admin", "join", "manager"]

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}$"
Name = Annotated[str, Meta(pattern=NAME)]
Dependency = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,62}(:(ok|any|failed|started|each))?$")]
Text = Annotated[str, Meta(max_length=131_072)]
Amount = int | float | str
Duration = int | float | str
Count = Annotated[int, Meta(ge=0, le=10_000_000)]
MAX_USES = 100_000
"""Machines that one join token may admit."""
Priority = Annotated[int, Meta(ge=-(2**31), lt=2**31)]


class Request(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base class of request documents. Missing keys have the defaults in docs/settings.md."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of answer documents."""


# -- requests ----------------------------------------------------------------------------------------------------


class StageDocument(Request, kw_only=True):
    """Equal tasks of a job: `array` tasks that start one by one, or `count` tasks that start together. Without
    `resources`, each task takes one CPU; with `{}`, it takes nothing."""

    name: Name | UnsetType = UNSET
    array: Annotated[int, Meta(ge=1, le=10_000_000)] | Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    """A number of tasks, or indices such as `0-15:2,20`. A `%4` after the indices is a `throttle`."""
    parameters: dict[str, list[str | int | float]] | UnsetType = UNSET
    """Parameters of a sweep, each with its values. Each combination is a task of an array; the last parameter varies
    fastest. A `{name}` in the command is the value of the task, and so is its variable FAIRLEAD_PARAM_name."""
    throttle: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    """How many of the tasks may run at a time."""
    pty: bool | UnsetType = UNSET
    """Give each task a terminal, to which a client can connect with a tunnel."""
    stdin: bool | UnsetType = UNSET
    """Let a client write to the standard input of a task through a tunnel. Without it the input is empty."""
    signal: str | UnsetType = UNSET
    """The signal with which a stop of a task begins, such as `USR1`. With `USR1@60s` it is also sent 60 s before
    `time_limit`."""
    grace: Duration | UnsetType = UNSET
    """The time that a stopped task has to end, up to `max_grace` of the queue; without it `preempt_grace`."""
    image: str | UnsetType = UNSET
    """The container image in which the tasks run: `docker://NAME`, `oras://NAME`, or the absolute path of a `.sif` file
    or of an unpacked root folder on the nodes."""
    mounts: Annotated[list[Annotated[str, Meta(min_length=1, max_length=1_000)]], Meta(max_length=100)] | UnsetType = (
        UNSET
    )
    """Folders and files of the node in the container, as `SOURCE:TARGET` or `SOURCE:TARGET:ro`. The home and the
    working directory are there without being named."""
    snapshot: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] | UnsetType = UNSET
    """The SHA-256 of a gzipped tar archive that was stored with `PUT /contents`. It is unpacked on the nodes, as the
    working directory."""
    count: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    min: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    resources: dict[str, Amount] | UnsetType = UNSET
    selectors: dict[str, str | list[str]] | UnsetType = UNSET
    where: str | list[str] | UnsetType = UNSET
    """Expressions on node labels, such as `zone in (a, b), !spot`. Of a list, at least one must hold."""
    prefer: dict[str, int] | UnsetType = UNSET
    """Expressions on node labels → weights. Nodes with the highest sum of weights are used first."""
    tolerations: list[str] | UnsetType = UNSET
    pool: Name | UnsetType = UNSET
    command: list[Text] | UnsetType = UNSET
    environment: dict[str, Text] | UnsetType = UNSET
    estimate: Duration | UnsetType = UNSET
    time_limit: Duration | UnsetType = UNSET
    tries: Annotated[int, Meta(ge=1, le=1_000)] | UnsetType = UNSET
    on_failure: Literal["replace", "restart", "fail"] | UnsetType = UNSET
    """What to do when a task fails: `replace` it, `restart` its gang, which uses one try, or `fail` the job. The
    default is `restart` if `min` equals `count` and the gang has more than one task, else `replace`."""
    on_loss: Literal["replace", "restart", "fail"] | UnsetType = UNSET
    """What to do when a task is lost, with the same values and default. A loss uses no try."""
    scaling: Literal["strict", "partial"] | UnsetType = UNSET
    near: str | UnsetType = UNSET
    apart: bool | UnsetType = UNSET
    directory: str | UnsetType = UNSET
    secrets: dict[str, Name] | UnsetType = UNSET
    """Environment variable → the name of the secret whose value it gets."""
    output: str | UnsetType = UNSET
    """File for standard output, and for standard error unless `error` is given. %j is the job, %s the stage, %a the
    index, %r the attempt. Existing files are appended to."""
    error: str | UnsetType = UNSET
    results: Annotated[list[Annotated[str, Meta(min_length=1, max_length=1_000)]], Meta(max_length=100)] | UnsetType = (
        UNSET
    )
    """Files to collect when a task ends by itself: patterns relative to the working directory, with `*`, `?`, `[abc]`,
    `**` for any number of folders, and the codes of `output`."""


class DoneWhen(Request, kw_only=True):
    """Names the stage whose success ends a job, or one of its tasks."""

    stage: Name
    task: Annotated[int, Meta(ge=0, lt=10_000_000)] | UnsetType = UNSET


class JobDocument(Request, kw_only=True):
    """A job. Its user is the caller, unless an operator names another user."""

    stages: Annotated[list[StageDocument], Meta(min_length=1, max_length=1_000)]
    id: Name | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    groups: list[Name] | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    after: list[Dependency] | UnsetType = UNSET
    """Jobs that this one comes after. `7` or `7:ok` waits for the success of job 7, `7:any` for its end, `7:failed` for
    its end without success, `7:started` for the start of its first task. With `7:each`, each task of an array waits for
    the success of the task of job 7 with the same index."""
    singleton: bool | UnsetType = UNSET
    """Wait for the end of all earlier jobs of the same user with the same name."""
    notify: Annotated[list[Annotated[str, Meta(max_length=1_000)]], Meta(max_length=10)] | UnsetType = UNSET
    """Where to tell the end of the job: addresses such as `https://host/path` or `mailto:ann@example.org`."""
    notify_on: Literal["end", "failure"] | UnsetType = UNSET
    """Tell every end, or only one without success."""
    gang: Literal["stage", "job"] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    preempts: bool | UnsetType = UNSET
    done_when: DoneWhen | UnsetType = UNSET
    """The stage or the task whose success ends the job: its other tasks are then stopped. Without it, all stages have
    to succeed."""
    hold: bool | UnsetType = UNSET
    """Hold the job from the beginning, until it is released."""
    begin: Annotated[float, Meta(ge=0, le=2**40)] | UnsetType = UNSET
    """Start no task before this time, in seconds since 1970."""


class BatchDocument(Request, kw_only=True):
    """Many jobs in one call. Each is accepted or refused separately."""

    jobs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=10_000)]


MAX_PIPELINE = 1_000
"""The most jobs that a pipeline may have."""


class PipelineDocument(Request, kw_only=True):
    """Several jobs that are submitted at once: all of them, or none. In `after`, the name of one of them means that
    job."""

    jobs: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_PIPELINE)]
    name: Name | UnsetType = UNSET
    """The name of the pipeline; `pipeline` by default."""


class ChangesDocument(Request, kw_only=True):
    """Changes of a job. What is not given stays. Queue, dependencies, resources, time limit and estimate can be changed
    while no task of the job runs."""

    queue: str | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    after: list[Dependency] | UnsetType = UNSET
    """The dependencies instead of the earlier ones; an empty list for none."""
    labels: dict[str, str | None] | UnsetType = UNSET
    """Labels to add or to change; null removes a label."""
    stage: Name | UnsetType = UNSET
    """The stage of the following values. It may be left out if the job has only one."""
    resources: dict[str, Amount] | UnsetType = UNSET
    """New amounts of some resources of each task; 0 for none."""
    time_limit: Duration | UnsetType = UNSET
    """`none` for no limit."""
    estimate: Duration | UnsetType = UNSET
    """`none` for no estimate."""
    throttle: Annotated[int, Meta(ge=1, le=10_000_000)] | Literal["none"] | UnsetType = UNSET


class RerunDocument(Request, kw_only=True):
    """How a job runs again. Without any key, it runs again as it was."""

    failed: bool | UnsetType = UNSET
    """Run only the tasks that have not succeeded. A gang runs whole."""
    environment: dict[str, Text] | UnsetType = UNSET
    """Environment variables to add or to change, in all stages."""
    name: Name | UnsetType = UNSET
    queue: str | UnsetType = UNSET


class ScaleDocument(Request, kw_only=True):
    count: Count
    stage: Name | UnsetType = UNSET


class ClosureDocument(Request, kw_only=True):
    """Disables all nodes with these labels for a time, including those that join during it."""

    labels: Annotated[dict[str, str], Meta(min_length=1, max_length=100)]
    lasts: Duration
    reason: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET


class OpeningDocument(Request, kw_only=True):
    """Ends a closure, given by the labels of its nodes."""

    labels: Annotated[dict[str, str], Meta(min_length=1, max_length=100)]


TaskAction = Literal["kill", "requeue", "replace"]
MAX_STOPPED = 10_000
"""The most tasks that one request may stop."""


class TasksDocument(Request, kw_only=True):
    """Some tasks of a stage. The stage may be left out if the job has only one."""

    indices: Annotated[list[Annotated[int, Meta(ge=0, lt=10_000_000)]], Meta(min_length=1, max_length=MAX_STOPPED)]
    stage: Name | UnsetType = UNSET


class PoolSizeDocument(Request, kw_only=True):
    """The number of nodes that a pool should have, within its limits."""

    nodes: Annotated[int, Meta(ge=0, le=100_000)]


class EtaDocument(Request, kw_only=True):
    jobs: Annotated[list[str], Meta(min_length=1, max_length=1_000)]


class ExplainDocument(Request, kw_only=True):
    jobs: Annotated[list[str], Meta(min_length=1, max_length=200)]


class WhatIfDocument(Request, kw_only=True):
    """A supposed change. With `replay`, it is tried on the jobs of that last period, else on the present state."""

    add_nodes: dict[str, int] | UnsetType = UNSET
    """A pool, or a node as an example → the number of such nodes to add."""
    remove_nodes: list[Name] | UnsetType = UNSET
    shares: dict[str, int] | UnsetType = UNSET
    """Queue → its supposed share."""
    priorities: dict[str, int] | UnsetType = UNSET
    """Job → its supposed priority."""
    policy: str | dict[str, Any] | UnsetType = UNSET
    """`fcfs`, `easy`, `shortest`, `conservative`, `learned`, or a configuration."""
    replay: Duration | UnsetType = UNSET
    without: list[str] | UnsetType = UNSET
    """Users and queues whose jobs are left out; only with `replay`."""


class PriorityDocument(Request, kw_only=True):
    priority: Priority


class AskDocument(Request, kw_only=True):
    job: Name
    stage: Name


class HoldDocument(Request, kw_only=True):
    """Selects the nodes that are held for a job, or for one of its stages."""

    job: Name
    stage: Name | UnsetType = UNSET


class ResetDocument(Request, kw_only=True):
    """Names a queue and a job. If the job is first in one of the queue's lanes, it moves to the end there, or, with
    `cancel`, its waiting tasks are cancelled."""

    queue: str
    job: Name
    cancel: bool | UnsetType = UNSET


class ConfigDocument(Request, kw_only=True):
    """A configuration as in fairlead.yaml; docs/settings.md has every key."""

    partitions: Annotated[dict[str, dict[str, Any]], Meta(min_length=1)] | UnsetType = UNSET


class PartitionDocument(Request, kw_only=True, forbid_unknown_fields=False):
    """Settings, queues and pools of one partition, as under `partitions.NAME` of a configuration."""

    queues: dict[str, Any] | UnsetType = UNSET
    pools: dict[str, Any] | UnsetType = UNSET


class ManagerNodeDocument(Request, kw_only=True):
    """A node of a resource manager. Without `action` it is added or updated; a `reason` says why it is drained or
    disabled."""

    name: Name
    action: Literal["add", "update", "drain", "disable", "enable", "lose", "remove"] | UnsetType = UNSET
    resources: dict[str, Amount] | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    taints: list[str] | UnsetType = UNSET
    pool: str | UnsetType = UNSET
    users: list[str] | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ManagerJobDocument(Request, kw_only=True):
    """A job of a resource manager. Stages can be given here, and each ask adds one. With `remove` the job ends."""

    job: Name
    name: Name | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    groups: list[str] | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    labels: dict[str, str] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    preempts: bool | UnsetType = UNSET
    stages: list[StageDocument] | UnsetType = UNSET
    gang: Literal["stage", "job"] | UnsetType = UNSET
    remove: bool | UnsetType = UNSET


class ManagerAskDocument(Request, kw_only=True):
    """An ask: `count` equal tasks of a job, with the keys of a stage. An ask that is sent again with another count is
    scaled. With `withdraw`, its waiting tasks are withdrawn. With `index`, only that task is meant, and is asked for
    again if it has ended."""

    job: Name
    ask: Name
    index: Annotated[int, Meta(ge=0, lt=10_000_000)] | UnsetType = UNSET
    count: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    min: Annotated[int, Meta(ge=1, le=10_000_000)] | UnsetType = UNSET
    resources: dict[str, Amount] | UnsetType = UNSET
    selectors: dict[str, str | list[str]] | UnsetType = UNSET
    where: str | list[str] | UnsetType = UNSET
    """Expressions on node labels, such as `zone in (a, b), !spot`. Of a list, at least one must hold."""
    prefer: dict[str, int] | UnsetType = UNSET
    """Expressions on node labels → weights. Nodes with the highest sum of weights are used first."""
    tolerations: list[str] | UnsetType = UNSET
    pool: Name | UnsetType = UNSET
    estimate: Duration | UnsetType = UNSET
    scaling: Literal["strict", "partial"] | UnsetType = UNSET
    on_loss: Literal["replace", "restart", "fail"] | UnsetType = UNSET
    near: str | UnsetType = UNSET
    apart: bool | UnsetType = UNSET
    withdraw: bool | UnsetType = UNSET


class ManagerReleaseDocument(Request, kw_only=True):
    """Reports that allocated tasks have ended: one, those of an ask, or those of a job. With `lost` they were lost or
    could not start, and follow `on_loss`; `reason` says why. Preempted tasks wait again, unless `withdraw` is true."""

    job: Name
    ask: Name | UnsetType = UNSET
    index: Annotated[int, Meta(ge=0, lt=10_000_000)] | UnsetType = UNSET
    lost: bool | UnsetType = UNSET
    withdraw: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ManagerRecoveryDocument(Request, kw_only=True):
    """Reports that a task runs on a node of the manager. It is booked there, also if the partition does not know it."""

    job: Name
    ask: Name
    node: Name
    index: Annotated[int, Meta(ge=0, lt=10_000_000)] | UnsetType = UNSET
    resources: dict[str, Amount] | UnsetType = UNSET


class UpdateDocument(Request, kw_only=True):
    """An update of a resource manager. Its lists are applied in this order: nodes, jobs, recover, asks, releases. With
    `more`, further updates follow before the manager's state is complete. `spare` replaces the list of its jobs that
    must not be stopped for others now."""

    nodes: list[ManagerNodeDocument] | UnsetType = UNSET
    jobs: list[ManagerJobDocument] | UnsetType = UNSET
    recover: list[ManagerRecoveryDocument] | UnsetType = UNSET
    asks: list[ManagerAskDocument] | UnsetType = UNSET
    releases: list[ManagerReleaseDocument] | UnsetType = UNSET
    more: bool | UnsetType = UNSET
    spare: list[str] | UnsetType = UNSET


class WaitingJobsDocument(Request, kw_only=True):
    """Jobs of a resource manager, by id."""

    jobs: Annotated[list[str], Meta(max_length=1_000)]


class RequestorDocument(Request, kw_only=True):
    match: str
    queue: str


class SharesDocument(Request, kw_only=True):
    """New shares. Keys that are not given keep their value. `shares` maps queues to percentages; null removes a
    share."""

    shares: dict[str, int | None] | UnsetType = UNSET
    requestors: list[RequestorDocument] | UnsetType = UNSET
    rebalance_threshold: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    rebalance_after: Duration | UnsetType = UNSET


class SecretDocument(Request, kw_only=True):
    """The value of a secret. With `expires_in` it is removed after that time."""

    value: Annotated[str, Meta(max_length=65_536)]
    expires_in: Duration | UnsetType = UNSET


MAX_CONTENT = 1 << 30
"""The most bytes of content that a user stores under one digest."""


class ContentDocument(Request, kw_only=True):
    """A piece of content, in base64. Without data, nothing is written."""

    size: Annotated[int, Meta(ge=0, le=MAX_CONTENT)]
    """The size of the whole content."""
    offset: Annotated[int, Meta(ge=0, le=MAX_CONTENT)] = 0
    """Where the piece begins."""
    data: bytes = b""


class TokenDocument(Request, kw_only=True):
    """A new token. A token of role `join` admits machines as nodes: `uses` machines, or only the one that `node` names.
    If `users` is given, the nodes take only tasks of these users. A join token has no user and no groups, and expires
    after one hour unless `expires_in` is given."""

    role: Role
    user: Name | UnsetType = UNSET
    groups: list[Name] | UnsetType = UNSET
    partition: str | UnsetType = UNSET
    pool: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    users: list[Name] | UnsetType = UNSET
    uses: Annotated[int, Meta(ge=1, le=MAX_USES)] | UnsetType = UNSET
    note: Annotated[str, Meta(max_length=200)] | UnsetType = UNSET
    expires_in: Duration | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET
    """True for a token that may change nothing."""
    queue: str | UnsetType = UNSET
    """The only queue, with the queues below it, in which the token may change jobs."""
    budget: dict[str, Duration] | UnsetType = UNSET
    """Resource → for how long its jobs may use one unit of it, all together: 10h of cpu is 10 CPU hours."""
    confirm: bool | UnsetType = UNSET
    """True if a change that affects the work of other users is first refused, with the code that confirms it."""


# -- jobs --------------------------------------------------------------------------------------------------------


class TaskGroup(Answer, frozen=True, kw_only=True):
    """Tasks of a stage in the same state. Those that are assigned, running or stopping are on the same node."""

    indices: list[int]
    """The tasks as ranges: the first index, the one after the last, and so on."""
    state: str
    """As in `Task`."""
    attempt: int = 0
    node: str = ""
    started: float | None = None
    exit_code: int | None = None
    reason: str = ""


class Stage(Answer, frozen=True, kw_only=True):
    name: str
    count: int
    min: int
    resources: dict[str, int | float]
    command: list[str]
    waiting: int
    assigned: int = 0
    """Tasks that were sent to a node, and whose start its agent has not confirmed yet."""
    running: int
    stopping: int = 0
    """Tasks that were told to stop and whose processes may still run."""
    ended: dict[str, int]
    array: str = ""
    """The indices of an array that leaves some out."""
    parameters: list[str] = []
    """The names of the parameters of a sweep."""
    throttle: int | None = None
    """How many tasks may run at a time."""
    time_limit: float | None = None
    """In seconds."""
    tasks: list[TaskGroup] = []
    """The tasks in groups, if they were asked for."""
    pty: bool = False
    """True if its tasks have terminals."""


class Job(Answer, frozen=True, kw_only=True):
    id: str
    number: int
    partition: str
    name: str
    user: str
    queue: str
    state: str
    """`pending`, `running`, `stopping`, `succeeded`, `failed` or `killed`. A job that was killed or has failed stays
    `stopping` until its last process has ended."""
    priority: int
    labels: dict[str, str]
    after: list[str]
    submitted: float
    waiting_since: float | None
    ended: float | None
    reason: str
    """Why the job ended."""
    waits_for: str = ""
    """Why the first of the job's waiting tasks wait, in a few words; `GET /jobs/ID/explain` has the details."""
    stages: list[Stage]
    matched: str | None = None
    """The requestor pattern that chose the queue, if any."""
    forgotten: bool = False
    """True if only the history has the job: its stages, priority and `after` are no longer known."""
    held_by: str = ""
    """The user that holds the job back, so that none of its tasks start; empty if it is not held."""

    @property
    def over(self) -> bool:
        return self.ended is not None


class JobPage(Answer, frozen=True, kw_only=True):
    """A page of jobs. `next` is the cursor of the next page; empty on the last page."""

    jobs: list[Job]
    next: str


class Task(Answer, frozen=True, kw_only=True):
    stage: str
    index: int
    state: str
    attempt: int
    tries_used: int
    node: str | None
    devices: list[int]
    exit_code: int | None
    reason: str
    note: str
    started: float | None = None
    """When a live attempt started; `Attempt` has the times of ended attempts."""
    parameters: dict[str, str] = {}
    """The values of the parameters of a sweep."""


class TaskPage(Answer, frozen=True, kw_only=True):
    tasks: list[Task]
    next: str


class TableRow(Answer, frozen=True, kw_only=True):
    """A task with its parameters, times and the last line of its output."""

    stage: str
    index: int
    parameters: dict[str, str]
    state: str
    attempt: int
    node: str
    exit_code: int | None
    reason: str
    started: float | None
    """When its last attempt started."""
    ended: float | None
    """When its last attempt ended; null while it runs."""
    line: str


class Table(Answer, frozen=True, kw_only=True):
    parameters: list[str]
    """The names of the parameters, in order."""
    rows: list[TableRow]
    next: str


class Submitted(Answer, frozen=True, kw_only=True):
    job: str
    partition: str
    warning: str = ""
    """Why the job cannot run until the cluster changes, such as that no node is large enough; empty if it can run."""


class Pipeline(Answer, frozen=True, kw_only=True):
    """The jobs of a pipeline that was submitted."""

    pipeline: str
    """The value of the label `pipeline`, which all its jobs have."""
    partition: str
    jobs: dict[str, str]
    """Name → id."""
    warnings: dict[str, str] = {}
    """Name → why the job cannot run until the cluster changes."""


class BatchItem(Answer, frozen=True, kw_only=True):
    """The id and the warning of a submitted job as in `Submitted`, or the problem of a refused one."""

    job: str = ""
    problem: Problem | None = None
    warning: str = ""


class Batch(Answer, frozen=True, kw_only=True):
    items: list[BatchItem]


class Step(Answer, frozen=True, kw_only=True):
    """A step of a remedy. `code` says what to do; which other fields have a value depends on it."""

    code: str
    """`end tasks`, `add nodes`, `enable node`, `bring node back`, `release hold`, `release job`, `ready`,
    `raise limit`, `raise max jobs`, `raise share`, `raise throttle`, `start queue`, `move to front`, `jobs succeed`;
    or, for another submission of the job, `drop selector`, `drop where`, `drop pool`, `tolerate`, `ask less`,
    `fewer tasks`, `allow preemption`, `drop after`."""
    text: str
    operator: bool
    """True if only an operator may do it."""
    node: str = ""
    nodes: int = 0
    """The number of nodes to add."""
    tasks: int = 0
    """Depending on `code`: the tasks that have to end, that fit on the new nodes, or that remain in the gang."""
    jobs: list[str] = []
    """Jobs, of those that the caller may see. Depending on `code`: their tasks have to end, they have to succeed, or
    they or their holds have to be released."""
    stage: str = ""
    resources: dict[str, int | float] = {}
    """Depending on `code`: the resources of each new node, the new limit, or the most that a task may ask for."""
    labels: dict[str, str] = {}
    """The labels of new nodes, or the selector to drop."""
    pool: str = ""
    taint: str = ""
    queue: str = ""
    user: str = ""
    """For a limit on users: the user, or `*` for each user."""
    group: str = ""
    value: int | None = None
    """The new `max_jobs` or share."""


class Remedy(Answer, frozen=True, kw_only=True):
    """Steps that together let the tasks start in the next cycle. Without steps, they start in the next cycle anyway."""

    text: str
    operator: bool
    """True if an operator is needed for at least one step."""
    steps: list[Step]


class Cause(Answer, frozen=True, kw_only=True):
    """Where and why tasks run, start or stop, or how they ended. `code` is `runs on`, `on loan`, `launching`,
    `stopping`, `last attempt` or `over`."""

    code: str
    text: str
    stage: str
    tasks: int
    nodes: list[str] = []
    """The first few of the nodes."""
    stops_for: str = ""
    """The job or queue that tasks stop for."""


class Waiting(Answer, frozen=True, kw_only=True):
    """Why tasks of a stage wait. `position` 0 is the first in its lane; `code` is the machine-readable reason."""

    stage: str
    kind: str
    count: int
    position: int | None
    code: str
    """Empty if the tasks were not tried yet, because other tasks go first."""
    reason: str
    jobs_ahead: int = 0
    tasks_ahead: int = 0
    """Number of other jobs, and of their tasks, that come before in the lane."""
    then_code: str = ""
    then: str = ""
    """What will hold the tasks up once the jobs ahead have started, or those in `after` have ended, if known."""
    text: str = ""
    """The whole explanation as one line, as `fairlead explain` prints it."""
    at_least: bool = False
    """True if the lane is so long that `position`, `jobs_ahead` and `tasks_ahead` are lower bounds."""
    remedies: list[Remedy] = []
    """At most three remedies, the cheapest first. Each alone would be enough to start the tasks in the next cycle."""
    comes: list[str] = []
    """What will free capacity without any remedy, such as tasks that reach their time limit, ordered nodes, or nodes
    that are held for the tasks."""
    no_hold: str = ""
    """Why nodes are never held for the tasks, however long they wait, and what an operator can change; empty if nodes
    can be held."""


class Explanation(Answer, frozen=True, kw_only=True):
    job: str
    state: str
    waiting: list[Waiting]
    sentence: str = ""
    """The explanation in one sentence."""
    causes: list[Cause] = []
    """Why the job's other tasks run or stop, how earlier attempts of waiting tasks ended, or why the job ended."""


class Sentences(Answer, frozen=True, kw_only=True):
    """Job → the sentence of its explanation. Jobs that are unknown to the caller are left out."""

    sentences: dict[str, str]


class Placement(Answer, frozen=True, kw_only=True):
    """Tasks of a stage that would start on a node."""

    stage: str
    node: str
    tasks: int


class Eta(Answer, frozen=True, kw_only=True):
    """The predicted start of a job, from several simulated futures with random run times and arrivals."""

    job: str
    state: str
    """As in `Job`."""
    started: float | None
    """When the job started; None if it has not."""
    start: float | None
    """The likely start: the middle of the shortest period with half of the predicted starts. None if the job has
    started or ended, or if the start is not predictable."""
    median: float | None
    """The median of the predicted starts."""
    earliest: float | None
    latest: float | None
    """Bounds of a 90 % interval for the start. `latest` is None if it is not predictable."""
    not_before: float | None
    """If `start` is not predictable: the job does not start before this time. None if that is not known either, or if
    the job cannot start as the cluster is now."""
    note: str
    """What the prediction lacks, such as estimates of running tasks."""
    text: str
    """The whole answer as one line, as `fairlead eta` prints it."""


class DryRun(Answer, frozen=True, kw_only=True):
    """What the next cycle would do with a job, if it were submitted."""

    partition: str
    queue: str
    starts: bool
    """True if at least the tasks that have to start together would start at once."""
    never: str = ""
    """Why the job cannot run until the cluster changes, such as that no node is large enough; empty if it can run."""
    sentence: str
    placements: list[Placement]
    waiting: list[Waiting]
    """Why tasks would wait, what is ahead of them, and which remedies would start them."""
    eta: Eta | None = None
    """The predicted start, if it was requested and the job would wait."""


class StoppedTasks(Answer, frozen=True, kw_only=True):
    """Running tasks of a job that would be stopped on a node."""

    job: str
    name: str
    user: str
    stage: str
    node: str
    tasks: int


class PriorityStops(Answer, frozen=True, kw_only=True):
    """The running tasks that would be stopped at once for a job, if it had another priority."""

    tasks: int
    """Number of all tasks, including those of jobs that the caller may not see."""
    stops: list[StoppedTasks]


class Etas(Answer, frozen=True, kw_only=True):
    etas: list[Eta]


class StoryLine(Answer, frozen=True, kw_only=True):
    at: float
    event: str
    """What happened; docs/metrics.md lists the events."""
    fields: dict[str, Any]
    text: str


class Story(Answer, frozen=True, kw_only=True):
    """What happened to a job, the earliest first."""

    job: str
    lines: list[StoryLine]
    complete_since: float
    """The story has all decisions from this time on. Before it, only the submission and the attempts are known."""


class RecordedTrace(Answer, frozen=True, kw_only=True):
    """Jobs of the past as a trace for `fairlead simulate`."""

    trace: dict[str, Any]
    since: float
    """The time of the first submission, which is time 0 of the trace."""
    not_ended: int
    never_ran: int
    """Numbers of jobs left out of the trace, because they have not ended or never ran a task."""
    after_left_out: int
    """Number of jobs in the trace that waited for a job that is not in it. That dependency is dropped."""


class MovedStart(Answer, frozen=True, kw_only=True):
    """A job with another predicted start. A wait is None if the job does not start or its start is not predictable."""

    job: str
    name: str
    user: str
    queue: str
    wait_before: float | None
    wait_after: float | None
    never_before: bool
    never_after: bool
    """True if the job does not start within the simulated time, before and after the change."""


class WhatIf(Answer, frozen=True, kw_only=True):
    """The effect of a supposed change. Waits are in seconds: from now, or since the submission in a replay."""

    compared: int
    """Number of jobs compared."""
    earlier: int
    later: int
    same: int
    """Numbers of jobs that start earlier, later, or at the same time."""
    no_longer: int
    never: int
    unknown: int
    """Numbers of jobs that start only without the change, in neither case, or at an unknown time."""
    jobs: list[MovedStart]
    """The jobs that start earlier, later or no longer; at most 1,000."""
    mean_wait_before: float | None
    mean_wait_after: float | None
    """Mean waits of the jobs whose start is known in both cases; if there are none, of those with one known start."""
    utilisation_before: float | None
    utilisation_after: float | None
    """Used part of the GPUs; of the CPUs if there are no GPUs."""
    note: str
    waits_before: list[WaitedFor] = []
    waits_after: list[WaitedFor] = []
    """In a replay: for what the jobs waited how long, all together."""


class Done(Answer, frozen=True, kw_only=True):
    """The change is done and durable. `note` is a remark for people, for example if nothing had to change."""

    note: str = ""


# -- the cluster -------------------------------------------------------------------------------------------------


class Node(Answer, frozen=True, kw_only=True):
    name: str
    state: str
    """`up`, `draining`, `disabled` or `lost`; `disconnected` if it is up and its agent is not connected."""
    pool: str
    manager: str
    labels: dict[str, str]
    taints: list[str]
    users: list[str]
    """The users whose tasks the node takes; empty for all."""
    resources: dict[str, int | float]
    used: dict[str, int | float]
    devices: list[float]
    """The used part of each GPU."""
    tasks: int
    avoided: bool
    """True if the node gets no work for a while because launches failed there."""
    disconnected: float | None = None
    """Since when the agent is not connected. The node gets no new work, and is lost when its lease expires."""
    credential: Literal["", "valid", "expired", "revoked"] = ""
    """State of the node's key; empty for a node without an agent."""
    credential_expires: float | None = None
    reason: str = ""
    """Why an operator drained or disabled the node."""
    until: float | None = None
    """When the node is enabled again, if it is drained or disabled for a time."""
    closes: float | None = None
    """If it is drained from a time on, that time: until then it takes tasks that a time limit ends before."""
    held_for: list[str] = []
    """Jobs that the node is held for or promised to, of those that the caller may see. It takes no other new work."""
    held_for_others: int = 0
    """Number of such jobs that the caller may not see."""
    held: dict[str, int | float] = {}
    """What the tasks of all these jobs need of the node. Even if this is less than the whole node, it takes no other
    new work."""


class Closure(Answer, frozen=True, kw_only=True):
    """Nodes with all of these labels are disabled until a time."""

    labels: dict[str, str]
    until: float
    reason: str = ""


class Closures(Answer, frozen=True, kw_only=True):
    closures: list[Closure]


class Nodes(Answer, frozen=True, kw_only=True):
    nodes: list[Node]
    next: str


class QueueUser(Answer, frozen=True, kw_only=True):
    """The use of one user in a queue where users take turns, as parts of the partition."""

    user: str
    use_percent: float
    past_percent: float
    """Average of past use; 0 unless `share_memory` is set."""


class Queue(Answer, frozen=True, kw_only=True):
    path: str
    state: str
    leaf: bool
    order: str
    share: int | None
    guarantee: dict[str, int | float]
    limit: dict[str, int | float] | None
    used: dict[str, int | float]
    jobs: int
    running: int
    """Jobs with a live task."""
    asks: int
    entitlement_percent: float
    """The entitlement as a part of the partition."""
    use_percent: float
    """The largest part that the queue uses of any resource of the partition."""
    loan_percent: float
    """The use beyond the entitlement."""
    past_percent: float = 0.0
    """Average of past use; 0 unless `share_memory` is set."""
    users: list[QueueUser] = []
    """With order `fair`: users with present or past use, in the order of turns. Users see only themselves here."""


class Queues(Answer, frozen=True, kw_only=True):
    queues: list[Queue]


class LoanReturn(Answer, frozen=True, kw_only=True):
    """How much of a loan will have returned by a time, in percent of the partition."""

    at: float
    percent: float


class Loan(Answer, frozen=True, kw_only=True):
    """The use of a leaf queue beyond its entitlement, in percent of the partition, and when it returns if no other task
    of the queue starts: by the estimates and time limits of its running tasks."""

    queue: str
    percent: float
    returns: list[LoanReturn]
    """At most four times, the earliest first. At the last one, all has returned whose time is known."""
    unknown_percent: float
    """The part that returns at an unknown time, because its tasks have neither an estimate nor a time limit."""


class Loans(Answer, frozen=True, kw_only=True):
    loans: list[Loan]


class Requestor(Answer, frozen=True, kw_only=True):
    """A pattern of users and a queue. Jobs of matching users go to the queue, unless they name another one."""

    match: str
    queue: str


class Shares(Answer, frozen=True, kw_only=True):
    """The shares of queues in a partition. `rebalance_after` is in seconds."""

    shares: dict[str, int | None]
    requestors: list[Requestor]
    rebalance_threshold: int | None
    rebalance_after: float


class Ask(Answer, frozen=True, kw_only=True):
    job: str
    stage: str
    kind: str
    count: int
    asked: float
    waiting_since: float
    name: str = ""
    user: str = ""
    reason: str = ""
    """Why the first waiting tasks of the job wait, in a few words."""


class Lane(Answer, frozen=True, kw_only=True):
    """A lane. `first` has the asks at its head that the caller may see."""

    queue: str
    shape: str
    asks: int
    tasks: int
    first: list[Ask]


class Lanes(Answer, frozen=True, kw_only=True):
    """All lanes. `ready` is false until the partition is ready; before that no waiting task is placed."""

    lanes: list[Lane]
    ready: bool


class Hold(Answer, frozen=True, kw_only=True):
    """Nodes kept free of new work for a job: it has waited too long, or loans are to return to its queue there."""

    job: str
    stage: str
    tasks: int
    """Number of tasks that the nodes are held for."""
    nodes: list[str]
    since: float
    until: float | None
    """When the hold ends, if the job has not started before; null if it lasts until the loans there have ended."""
    held: dict[str, dict[str, int | float]] = {}
    """Node → what these tasks need of it."""


class Promise(Answer, frozen=True, kw_only=True):
    """Nodes reserved for one job while its capacity arrives: other tasks stop for it there, or the nodes were ordered
    for it and it waits for the other nodes of the order."""

    job: str
    stage: str
    tasks: int
    """Number of tasks that the nodes are promised to."""
    nodes: list[str]
    since: float
    stopping: int
    """Number of tasks that are still stopping for the job."""
    ordered: bool
    """True if the nodes were ordered for the job."""
    held: dict[str, dict[str, int | float]] = {}
    """Node → what these tasks need of it."""


class Holds(Answer, frozen=True, kw_only=True):
    holds: list[Hold]
    promises: list[Promise]


class NodeRow(msgspec.Struct, frozen=True, array_like=True):
    """The changing properties of a node of a map, as an array."""

    state: int
    """Position in `states` of the map."""
    flags: int
    """Sum of 1 if the node is held or promised, and 2 if it gets no work for a while because launches failed there."""
    cpu: int
    """The used part of the CPUs, in percent."""
    memory: int
    """The used part of the memory, in percent."""
    tasks: int
    devices: str
    """One character per GPU: the used part in tenths, from 0 to 9, or A if fully used."""


class NodeGroups(Answer, frozen=True, kw_only=True):
    """The values of a label, and for each node the index of its value; -1 if the node lacks the label."""

    values: list[str]
    of: list[int]


class NodeMap(Answer, frozen=True, kw_only=True):
    """All nodes of a partition, in columns, and the queue tree. Pass `at` to `GET /live` for later changes."""

    at: str
    partition: str
    now: float
    ready: bool
    states: list[str]
    names: list[str]
    cpus: list[float]
    memory: list[int]
    pools: NodeGroups
    labels: dict[str, NodeGroups]
    """Labels by which nodes can be grouped: those with at most 200 values."""
    rows: list[NodeRow]
    queues: list[Queue]


class NodeTasks(Answer, frozen=True, kw_only=True):
    """The live tasks of one stage on one node that are in the same state. `job`, `name`, `stage` and `user` are empty
    if the caller may not see the job."""

    node: str
    job: str
    name: str
    stage: str
    user: str
    state: str
    """`assigned`, `running` or `stopping`."""
    tasks: int
    indices: list[int]
    """The indices of at most 20 of the tasks, the lowest; empty if the caller may not see the job."""
    resources: dict[str, int | float]
    """Resources of each task."""
    devices: list[int]
    """The GPUs of the tasks. A GPU that several of them share is listed once for each."""
    since: float
    """When the first of these tasks started. If none has started: when the first was sent to the node."""
    ends: float | None
    """When all of these tasks should have ended by their estimates or time limits; null if a task has neither, or if
    the caller may not see the job."""


class MapTasks(Answer, frozen=True, kw_only=True):
    """Live tasks by node. `more` is true if some nodes have tasks of further stages."""

    tasks: list[NodeTasks]
    more: bool


class PastMap(Answer, frozen=True, kw_only=True):
    """A map at a time in the past. `map` is missing for times before `since`, where the journal begins."""

    since: float
    map: NodeMap | None


class QueuePast(Answer, frozen=True, kw_only=True):
    """A queue at several times: its share, and entitlement, use and loan in percent of the partition."""

    times: list[float]
    share: list[int | None]
    entitlement: list[float]
    use: list[float]
    loan: list[float]


class PastQueues(Answer, frozen=True, kw_only=True):
    """Queues at several times, by path, from `since` on, where the journal begins."""

    since: float
    queues: dict[str, QueuePast]


class MapChange(Answer, frozen=True, kw_only=True):
    """Changes of a map: rows by the index of their node, and queues."""

    at: str
    now: float
    ready: bool
    rows: list[tuple[int, NodeRow]]
    queues: list[Queue]


class Bar(Answer, frozen=True, kw_only=True):
    """Tasks of one attempt on a node, with their start and their end; `ended` is null while they run."""

    node: str
    job: str
    name: str
    stage: str
    user: str
    queue: str
    tasks: int
    resources: dict[str, int | float]
    """Resources of each task."""
    started: float
    ended: float | None
    outcome: str


class Timeline(Answer, frozen=True, kw_only=True):
    """Tasks that ran in a period. `complete` is false if there were too many: then the oldest are left out."""

    since: float
    until: float
    bars: list[Bar]
    complete: bool


class PoolUse(Answer, frozen=True, kw_only=True):
    """Numbers of nodes. `available` nodes are empty and accept any work, so disabled, held and promised nodes do not
    count. `pending` is the number that waiting work needs. `idle` is the difference, negative if nodes are missing.
    `ordered` nodes have not arrived yet."""

    ready: bool
    total: int
    available: int
    pending: int
    idle: int
    ordered: int
    disabled: int


class Usage(Answer, frozen=True, kw_only=True):
    """The use of all nodes. Empty until the partition is ready, because running tasks are unknown before."""

    partition: str
    ready: bool
    pools: dict[str, PoolUse]
    without_pool: PoolUse | None = None
    """The use of the nodes that are in no pool and belong to no resource manager; null until the partition is ready."""


class OrderedFor(Answer, frozen=True, kw_only=True):
    job: str
    stage: str
    tasks: int


class PoolOrder(Answer, frozen=True, kw_only=True):
    """Ordered nodes. `jobs` are the jobs that need them, of those that the caller may see."""

    order: int
    cause: str
    """`demand` (tasks wait for the nodes), `spare` (to keep idle nodes ready) or `hand` (requested by a person)."""
    since: float
    nodes: list[str]
    tasks: int
    """Number of tasks, of all jobs, that the nodes are for."""
    jobs: list[OrderedFor]


class Orphan(Answer, frozen=True, kw_only=True):
    """A machine of the provider that is neither a node nor ordered. Fairlead does not remove it; an operator must."""

    name: str
    note: str


class Server(Answer, frozen=True, kw_only=True):
    """A server that is up."""

    id: str
    url: str
    """The URL at which agents and users reach the server."""
    state: str
    """`up`, `draining`, or `drained`: the server leads nothing and can be stopped."""
    leads: list[str]
    """The partitions that the server leads."""
    version: str = ""
    """The version of its program; empty if it is not known."""


class Servers(Answer, frozen=True, kw_only=True):
    servers: list[Server]


class Pool(Answer, frozen=True, kw_only=True):
    """A pool. `use` is null until the partition is ready."""

    name: str
    partition: str
    provider: str
    """`local` or `command`; empty for a pool without a provider."""
    resources: dict[str, int | float]
    """Resources of each node."""
    labels: dict[str, str]
    taints: list[str]
    min: int
    max: int | None
    min_idle: int
    max_idle: int
    idle_for: float
    cost: int
    min_free: dict[str, int | float]
    """What the pool keeps free for future work."""
    use: PoolUse | None
    paused: bool
    paused_until: float | None
    """No nodes are ordered before this time, because an order failed."""
    problem: str
    """Why the last order failed, or what is wrong with the provider."""
    grew: float | None
    shrank: float | None
    """When nodes were last ordered, and when nodes were last given back."""
    orders: list[PoolOrder]
    leaving: list[str]
    """Unneeded nodes that are being removed."""
    orphans: list[Orphan]


class Pools(Answer, frozen=True, kw_only=True):
    partition: str
    pools: list[Pool]


class Partition(Answer, frozen=True, kw_only=True):
    name: str
    ready: bool | None
    """null if another server leads the partition."""
    nodes: int
    jobs: int
    waiting_for: list[str]
    """The first few of the agents and resource managers that have not reported since the start of the server."""
    leader: str = ""
    """The URL of the server that leads the partition, if several servers share a database."""


class Partitions(Answer, frozen=True, kw_only=True):
    partitions: list[Partition]


class Config(Answer, frozen=True, kw_only=True):
    """The configuration. `version` grows with each configuration that is applied."""

    version: int
    partitions: dict[str, dict[str, Any]]


class Difference(Answer, frozen=True, kw_only=True):
    """A changed key of the configuration, with its old and its new value; null where the key is absent."""

    key: str
    before: Any
    after: Any
    what: Literal["partition", "queue", "pool", "setting"] = "setting"
    """What the key names. An absent setting has its default value; an absent partition, queue or pool does not
    exist."""


class Loss(Answer, frozen=True, kw_only=True):
    """Jobs and nodes of a partition or pool that is removed from the configuration.

    The jobs of a partition are killed and its nodes removed. The nodes of a pool stay, but are never given back.
    """

    key: str
    jobs: int | None
    """Number of jobs that have not ended; null if the partition has no leader now."""
    nodes: int | None
    """Number of nodes, including ordered ones; null if the partition has no leader now."""


class LeftMachine(Answer, frozen=True, kw_only=True):
    """A machine of a removed partition that was not destroyed, for the `reason`. It has to be removed by hand."""

    partition: str
    pool: str
    name: str
    reason: str


class Applied(Answer, frozen=True, kw_only=True):
    """What a configuration changes."""

    version: int
    differences: list[Difference]
    losses: list[Loss] = []
    """Removed partitions with jobs or nodes, and removed pools with nodes."""
    machines: list[LeftMachine] = []
    """Machines of removed partitions that were not destroyed."""


# -- resource managers -------------------------------------------------------------------------------------------


class Manager(Answer, frozen=True, kw_only=True):
    name: str
    registered: float
    nodes: int
    jobs: int
    """Number of the manager's jobs that have not ended."""
    reported: bool
    """True if the manager has sent an update since the server started. Until then the partition waits for it."""


class Managers(Answer, frozen=True, kw_only=True):
    managers: list[Manager]


class UpdateItem(Answer, frozen=True, kw_only=True):
    """The result of one item of an update."""

    what: str
    name: str
    accepted: bool
    reason: str


class Updated(Answer, frozen=True, kw_only=True):
    items: list[UpdateItem]


class ManagerNode(Answer, frozen=True, kw_only=True):
    name: str
    state: str
    reason: str


class ManagerTasks(Answer, frozen=True, kw_only=True):
    """Live tasks of an ask on one node that run, or that stop for the `cause`. `indices` are ranges."""

    node: str
    indices: list[int]
    state: str
    cause: str


class ManagerAsk(Answer, frozen=True, kw_only=True):
    """The tasks of an ask, of which `min` start together: `waiting` and `ended` are ranges of indices."""

    ask: str
    count: int
    min: int
    live: list[ManagerTasks]
    waiting: list[int]
    ended: list[int]


class ManagerJob(Answer, frozen=True, kw_only=True):
    job: str
    over: bool
    """True if the job has ended. Some of its tasks may still have to stop."""
    asks: list[ManagerAsk]


class ManagerState(Answer, frozen=True, kw_only=True):
    """What the partition knows of a resource manager. Read the events after `seq` next; the state may include some."""

    seq: int
    nodes: list[ManagerNode]
    jobs: list[ManagerJob]


class WaitingJob(Answer, frozen=True, kw_only=True):
    """Why a job of a resource manager waits."""

    job: str
    code: str
    """The machine-readable reason, such as "no capacity"; empty if the job was not tried yet."""
    reason: str
    missing: bool
    """True if more nodes would help, because the job does not wait for a limit, a share or tasks that stop for it."""


class WaitingJobs(Answer, frozen=True, kw_only=True):
    jobs: list[WaitingJob]


# -- history and watching ----------------------------------------------------------------------------------------


class Attempt(Answer, frozen=True, kw_only=True):
    """The end of an attempt of some tasks. In Python, `tasks` are their indices one by one."""

    stage: str
    indices: list[int]
    """The tasks as ranges: the first index, the one after the last, and so on. Task 3 alone is `[3, 4]`."""
    attempt: int
    outcome: str
    node: str
    exit_code: int | None
    reason: str
    started: float | None
    ended: float
    cpu_seconds: float | None = None
    most_memory: int | None = None
    """The CPU time of the tasks, and the most memory of one of them in bytes; null if unknown, or not asked for."""

    @property
    def tasks(self) -> list[int]:
        """The indices of the tasks."""
        return list(each_index(self.indices))

    def __repr__(self) -> str:
        names = ["tasks" if name == "indices" else name for name in self.__struct_fields__]
        return f"Attempt({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class PastStage(Answer, frozen=True, kw_only=True):
    """What each task of a stage of a finished job asked for."""

    name: str
    count: int
    resources: dict[str, int | float]
    time_limit: float | None = None


class PastJob(Answer, frozen=True, kw_only=True):
    """A finished job. `tasks` counts its tasks by outcome."""

    id: str
    number: int
    partition: str
    name: str
    user: str
    queue: str
    state: str
    reason: str
    submitted: float
    ended: float
    tasks: dict[str, int]
    started: float | None = None
    """When the job's first task started; null if none did."""
    cpu_seconds: float | None = None
    """The measured CPU time of all its attempts; null if none was measured."""
    ran_seconds: float | None = None
    """The run time of these attempts together."""
    most_memory: int | None = None
    """The highest measured memory of one of its tasks, in bytes."""
    labels: dict[str, str] = {}
    attempts: list[Attempt] = []
    """The job's ended attempts with their use, if they were asked for; at most 10,000."""
    stages: list[PastStage] = []
    """The job's stages, if attempts were asked for."""


class HistoryPage(Answer, frozen=True, kw_only=True):
    jobs: list[PastJob]
    next: str


class StageUse(Answer, frozen=True, kw_only=True):
    """The resources used by all attempts of a stage, as far as agents reported them."""

    attempts: int
    cpu_seconds: float
    most_memory: int
    ran_seconds: float = 0.0
    """The run time of these attempts together."""
    asked: dict[str, float] = {}
    """What each task asked for."""
    hint: str = ""
    """That its tasks ask for much more than they use, and what would be enough; empty if they do not."""


class TaskUse(Answer, frozen=True, kw_only=True):
    """The resources that one attempt of a task used."""

    stage: str
    index: int
    attempt: int
    ran: float
    """In seconds."""
    cpu_seconds: float
    memory: int
    """The highest use, in bytes."""


class JobUsage(Answer, frozen=True, kw_only=True):
    """The resources that the tasks of a job used, as far as agents reported them, beside what they asked for."""

    stages: dict[str, StageUse]
    tasks: list[TaskUse]
    next: str


class ResultFile(Answer, frozen=True, kw_only=True):
    """A result file of a task."""

    name: str
    """Path below the working directory of the task."""
    size: int
    """In bytes."""


class TaskResults(Answer, frozen=True, kw_only=True):
    """The result files of one attempt of a task."""

    stage: str
    index: int
    attempt: int
    files: list[ResultFile]
    warning: str
    """What was not collected, and why; empty if everything was."""


class Results(Answer, frozen=True, kw_only=True):
    """The result files of a job, by task."""

    tasks: list[TaskResults]
    waiting: int
    """Number of ended tasks whose result files have not arrived from the nodes yet."""
    next: str


class Attempts(Answer, frozen=True, kw_only=True):
    """The attempts of a job in the order in which they ended, and the use of its stages."""

    attempts: list[Attempt]
    used: dict[str, StageUse]
    next: str


class Used(Answer, frozen=True, kw_only=True):
    """Resources used in a period, by one group of a report or in total."""

    group: dict[str, str]
    """The user, queue, partition or job; empty for the total."""
    jobs: int
    """Number of jobs with a task that ran in the period."""
    attempts: int
    """Number of attempts of tasks that ran in the period: a task that was tried twice counts twice."""
    preempted: int
    """Number of attempts that were stopped in the period for other work, or to restart their gang."""
    hours: dict[str, float]
    """Resource → hours: CPU-hours, GPU-hours, and for memory bytes times hours."""
    wait_mean: float | None
    """Seconds from the submission of a job to the start of its first task, for jobs that started in the period; null if
    there are none."""
    wait_median: float | None
    wait_95: float | None
    """The wait that 95 % of the jobs did not exceed."""
    cpu_hours_used: float = 0.0
    """With `used`: the measured CPU time of ended attempts."""
    cpu_hours_had: float = 0.0
    """With `used`: the CPU time that these attempts had."""


class Wasteful(Answer, frozen=True, kw_only=True):
    """A job that asked for much more than it used."""

    job: str
    partition: str
    user: str
    cpu_hours: float
    """The CPU-hours that its tasks had and did not use."""
    text: str


class UsageReport(Answer, frozen=True, kw_only=True):
    """Resources allocated to tasks, from their start to their end or to `until`, whether or not they used them."""

    by: list[str]
    since: float | None
    until: float
    rows: list[Used]
    total: Used
    wasteful: list[Wasteful] = []
    """With `used`: the jobs with the most unused CPU-hours."""


class PromisedStarts(Answer, frozen=True, kw_only=True):
    """What came of the starts that were foretold. The first promise for each job counts, unless a field says "last"."""

    since: float
    scored: int
    """The number of jobs that started, or `kept`, `earlier` and `later` together."""
    kept: int
    earlier: int
    later: int
    """Jobs that started within the promised interval, before it and after it."""
    changed: int
    ended: int
    """Jobs that were changed or held, or ended, before they started. Their promises are not scored."""
    open: int
    """Jobs with a promise that have not started yet, in all partitions."""
    median_error: float | None
    """The median distance between the likely and the real start, in seconds."""
    last_kept: int
    last_median_error: float | None
    """The same for the last promise before the start."""
    stretch: float
    """How much wider than the simulated interval the next ones are, so that 9 of 10 are kept."""
    text: str


class WaitedFor(Answer, frozen=True, kw_only=True):
    """A part of a wait."""

    cause: str
    """One word or two, such as `loans`, `behind` or `limit`."""
    of: str
    """The queue, account, user or job that the cause is about; empty for none."""
    text: str
    """The cause as the end of a sentence, such as "for loans of queue root.ads that were not yet returned"."""
    seconds: float


class Bill(Answer, frozen=True, kw_only=True):
    """How long a job waited for what. The parts add up to the wait, to the microsecond."""

    job: str
    submitted: float
    since: float
    """The journal has nothing before this time, so an earlier wait is not in the bill."""
    waited: float
    """Seconds in which tasks of the job waited and none of its tasks ran."""
    causes: list[WaitedFor]
    partly: list[WaitedFor]
    """For the time in which some tasks ran, and others waited."""


class Waited(Answer, frozen=True, kw_only=True):
    """The waits of a group of jobs."""

    group: dict[str, str]
    waited: float
    """The sum of the seconds for which its jobs waited, while none of their tasks ran."""
    causes: list[WaitedFor]


class Waits(Answer, frozen=True, kw_only=True):
    by: list[str]
    since: float
    """The beginning of the period, or that of the journal if it is later."""
    until: float
    rows: list[Waited]


class Event(Answer, frozen=True, kw_only=True):
    """An event. `what` is submitted, state, placed, running, stopping, ended or node; unused fields are empty."""

    what: str
    at: float
    job: str = ""
    number: int = 0
    """The number of the job. A later job may reuse its id, but never its number."""
    stage: str = ""
    indices: list[int] = []
    attempt: int = 0
    node: str = ""
    state: str = ""
    reason: str = ""


class ManagerEvent(Answer, frozen=True, kw_only=True):
    """An event for a resource manager.

    `what` is `allocated`, `release` (stop these tasks), `released`, `ended` (of a job) or `node` (a node has changed).
    """

    what: str
    job: str = ""
    ask: str = ""
    indices: list[int] = []
    attempt: int = 0
    node: str = ""
    devices: list[int] = []
    reason: str = ""


# -- access and health -------------------------------------------------------------------------------------------


class Scope(Answer, frozen=True, kw_only=True):
    """What a token may not do, though its user may."""

    read_only: bool = False
    queue: str = ""
    """The only queue, with the queues below it, in which it may change jobs; empty for all."""
    budget: dict[str, float] = {}
    """Resource → the hours of it that jobs submitted with this token may use, all together."""
    left: dict[str, float] = {}
    """What is left of the budget."""
    confirm: bool = False
    """True if changes that affect the work of other users need a confirmation."""


class Token(Answer, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    role: Role
    user: str
    groups: list[str]
    partition: str
    """For a join token: the only partition, pool and node for which it admits machines; empty for any."""
    pool: str
    node: str
    users: list[str]
    """For a join token: the only users whose tasks the admitted nodes may take; empty for all."""
    uses: int
    """For a join token: how many more machines it admits."""
    note: str
    created: float
    expires: float | None
    scope: Scope = Scope()


class Secrets(Answer, frozen=True, kw_only=True):
    """The names of the caller's secrets, without their values."""

    secrets: list[str]


class Content(Answer, frozen=True, kw_only=True):
    """Content of a user, by its SHA-256."""

    digest: str
    size: int
    stored: int
    """How many of its bytes are stored, from its beginning. The next piece begins there."""


class Tokens(Answer, frozen=True, kw_only=True):
    tokens: list[Token]


class NewToken(Answer, frozen=True, kw_only=True):
    """A new token. `secret` is the text to send with requests. It is shown once and not stored."""

    secret: str
    token: Token


class Caller(Answer, frozen=True, kw_only=True):
    """User, groups, role and scope of the caller's token."""

    user: str
    groups: list[str]
    role: Role
    scope: Scope = Scope()


class Session(Answer, frozen=True, kw_only=True):
    """A session of the web page. Requests carry its cookie, and `key` in the header Fairlead-Session."""

    user: str
    groups: list[str]
    role: Role
    key: str
    expires: float


class Health(Answer, frozen=True, kw_only=True):
    version: str
    ready: bool
    partitions: dict[str, bool]
    """Readiness of each partition."""
    problem: str = ""
    failing: list[str] = []
    """Parts of the server that fail and are retried, such as `history`. Tasks are placed nevertheless."""
    alarms: list[str] = []
    """Problems that an operator must solve, such as nodes that run tasks which are not in the journal."""


class Problem(Answer, frozen=True, kw_only=True):
    """A problem as in RFC 9457. `field` is the field of the request, `code` a machine-readable cause."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str = ""
    leader: str = ""
    """With the code `standby`: the address of the server that leads the partition."""
    confirm: str = ""
    """With the code `unconfirmed`: what confirms the request, if it is sent again with this as `Fairlead-Confirm`."""
