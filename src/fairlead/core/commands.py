"""Commands and their answers. A rejected command changes nothing and does not affect other commands.

Documents of jobs, nodes and configurations are parsed before they become commands. Only the update of a resource
manager contains unparsed documents, because each of its items is accepted or rejected separately.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.model import Amounts, JobSpec, JobState, Micros, Pairs
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Counters

ReportState = Literal["running", "refused", "succeeded", "failed", "stopped", "lost"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of commands, with the caller.

    Operators may do everything. Users may act on jobs that they own and on queues that they administer.
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    operator: bool = False
    within: str = ""
    """The only queue, with the queues below it, in which the caller may change jobs; empty for all."""
    key: str = ""
    """Idempotency key: a repeated command with the same key gets the same answer and changes nothing."""


# -- configuration -----------------------------------------------------------------------------------------------


class Configure(Command, frozen=True, tag="configure"):
    """Apply a configuration."""

    config: PartitionConfig
    version: int = 0
    numbers: Counters | None = None
    """The first numbers of a new partition whose name a removed partition had; None if there was none."""


class BeginEra(Command, frozen=True, tag="begin era"):
    """Skip the numbers that lost records may have used, because older data were restored."""

    era: int
    reached: Micros = 0
    """The time of the last record that was kept."""


class MoveQueue(Command, frozen=True, tag="move queue"):
    """Stop or start a queue. A stopped queue accepts no jobs and starts no tasks."""

    queue: str
    action: Literal["start", "stop"]


class MarkReady(Command, frozen=True, tag="mark ready"):
    """Declare the partition ready, without waiting for the remaining agents and resource managers."""


class RemovePartition(Command, frozen=True, tag="remove partition"):
    """Remove the partition with all its jobs, allocations and nodes, immediately."""


# -- nodes -------------------------------------------------------------------------------------------------------


class AddNode(Command, frozen=True, tag="add node"):
    """Add a node, or update a node that joins again."""

    name: str
    spec: NodeSpec


class UpdateNode(Command, frozen=True, tag="update node"):
    name: str
    spec: NodeSpec


class MoveNode(Command, frozen=True, tag="move node"):
    """Drain, disable or enable a node, or declare it lost. A drained node takes no new tasks; running ones may end."""

    name: str
    action: Literal["drain", "disable", "enable", "lose"]
    reason: str = ""
    """Why the node is drained or disabled, for people."""
    lasts: Micros = 0
    """How long the node is drained or disabled; 0 for no time limit."""
    delay: Micros = 0
    """After which time the node is drained. Until then it takes tasks whose time limit ends before."""


class CloseNodes(Command, frozen=True, tag="close nodes"):
    """Disable all nodes with these labels for a time, including nodes that join before it ends.

    If `lasts` is 0, end an earlier closure of these labels.
    """

    labels: Pairs
    lasts: Micros = 0
    reason: str = ""


class DisconnectNodes(Command, frozen=True, tag="disconnect nodes"):
    """Report that the agents of nodes are not connected. A node gets no new work until its agent joins again."""

    names: tuple[str, ...]


class RemoveNode(Command, frozen=True, tag="remove node"):
    """Remove a node. Its tasks are lost immediately."""

    name: str


# -- pools -------------------------------------------------------------------------------------------------------


class FailOrder(Command, frozen=True, tag="fail order"):
    """Report that ordered nodes will not join: the given ones, or all nodes of the order that have not joined yet."""

    pool: str
    order: int
    reason: str
    names: tuple[str, ...] = ()


class MovePool(Command, frozen=True, tag="move pool"):
    """Pause a pool, so that it neither grows nor shrinks by itself, or resume it."""

    pool: str
    action: Literal["pause", "resume"]


class ScalePool(Command, frozen=True, tag="scale pool"):
    """Order nodes, or give back idle ones, until the pool has `nodes` nodes. Automatic scaling continues afterwards."""

    pool: str
    nodes: int


# -- jobs --------------------------------------------------------------------------------------------------------


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The request that submitted a job, for logs and traces. No decision depends on it."""

    received: Micros
    traceparent: str = ""
    """The caller's span, from the header `traceparent`; empty for none."""


Past = tuple[tuple[str, JobState], ...]
"""Jobs in `after` that the scheduler has forgotten, with the states in which they ended."""


class Submit(Command, frozen=True, tag="submit"):
    """Submit a job. If `id` is empty, the scheduler chooses one."""

    spec: JobSpec
    id: str = ""
    origin: Origin | msgspec.UnsetType = msgspec.UNSET
    """Ignored when a request is compared with an earlier one of the same key: a repeated request has another origin."""
    past: Past = ()
    """Ignored likewise."""


class SubmitPipeline(Command, frozen=True, tag="submit pipeline"):
    """Submit several jobs, all or none. In `after`, the name of one of them means that job."""

    name: str
    specs: tuple[JobSpec, ...]
    past: Past = ()


class UpdateJob(Command, frozen=True, tag="update job"):
    """Change a job. What decides where its tasks run can only be changed while none of them runs.

    None, or unset, leaves a value as it is. `resources` and `labels` change the named entries only.
    """

    job: str
    stage: str = ""
    """The stage of resources, limits, estimate and throttle; may be empty if the job has only one."""
    queue: str | None = None
    priority: int | None = None
    after: tuple[str, ...] | None = None
    labels: Pairs = ()
    unlabel: tuple[str, ...] = ()
    """Labels to remove."""
    resources: Amounts = ()
    time_limit: Micros | msgspec.UnsetType | None = msgspec.UNSET
    estimate: Micros | msgspec.UnsetType | None = msgspec.UNSET
    throttle: int | None = None
    """0 for no throttle."""
    past: Past = ()


class Scale(Command, frozen=True, tag="scale"):
    job: str
    stage: str
    count: int


class Kill(Command, frozen=True, tag="kill"):
    job: str


class HoldJob(Command, frozen=True, tag="hold job"):
    """Hold a job: running tasks continue, and no other task of the job starts until it is released."""

    job: str


class ReleaseJob(Command, frozen=True, tag="release job"):
    """Release a held job. Its asks have kept their places in the lane."""

    job: str


class Requeue(Command, frozen=True, tag="requeue"):
    """Stop the running tasks of a job, with grace. They wait again at their earlier place, and no try is used up."""

    job: str


TaskAction = Literal["kill", "requeue", "replace"]


class StopTasks(Command, frozen=True, tag="stop tasks"):
    """Stop some tasks of a job. No try is used up.

    Killed tasks end. Requeued tasks wait again at their earlier place. Replaced tasks wait in front of new work.
    """

    job: str
    stage: str
    indices: tuple[int, ...]
    """Tasks as ranges: the first index of a span, the index after its last, then the next span."""
    action: TaskAction


class SetPriority(Command, frozen=True, tag="set priority"):
    job: str
    priority: int


class BringToFront(Command, frozen=True, tag="bring to front"):
    """Move the asks of a stage to the front of their lanes."""

    job: str
    stage: str


class ReleaseHold(Command, frozen=True, tag="release hold"):
    """Release the nodes that are held for a job, or for one of its stages."""

    job: str
    stage: str = ""


class CancelAsk(Command, frozen=True, tag="cancel ask"):
    """Cancel the pending tasks of a stage."""

    job: str
    stage: str


class ResetLane(Command, frozen=True, tag="reset lane"):
    """Move the ask of a job that blocks its lane to the tail of the lane, or cancel the ask.

    Refused unless the ask is the head of the lane and blocks it.
    """

    queue: str
    job: str
    cancel: bool = False


class Report(Command, frozen=True, tag="report"):
    """An agent's report on tasks of one stage and attempt that are now in one state."""

    node: str
    job: str
    stage: str
    indices: tuple[int, ...]
    attempt: int
    state: ReportState
    exit_code: int | None = None
    reason: str = ""
    number: int = 0
    """The number of the job, from the launch; 0 if it is not known."""
    ran: int = 0
    """For how long the tasks ran or have run, in microseconds on average; 0 if it is not known."""
    confined: bool = False
    """True if the node was admitted for some users only. It can then raise no alarm and take no numbers of jobs."""


# -- resource managers -------------------------------------------------------------------------------------------


class RegisterManager(Command, frozen=True, tag="register manager"):
    name: str


class RemoveManager(Command, frozen=True, tag="remove manager"):
    """Remove a resource manager: its jobs are killed and its nodes removed."""

    name: str


class UpdateManager(Command, frozen=True, tag="update manager"):
    """An update from a resource manager. Its items are handled in this order: nodes, jobs, recover, asks, releases.

    `more` is True if the manager sends its whole state in several updates and this is not the last of them. `spare`
    replaces the list of the manager's jobs that must not be stopped for others now; None leaves it as it is.
    """

    name: str
    nodes: tuple[dict[str, Any], ...] = ()
    jobs: tuple[dict[str, Any], ...] = ()
    asks: tuple[dict[str, Any], ...] = ()
    releases: tuple[dict[str, Any], ...] = ()
    recover: tuple[dict[str, Any], ...] = ()
    more: bool = False
    spare: tuple[str, ...] | None = None


# -- answers -----------------------------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one item of a manager's update: `what` is job, ask, node, release or recover."""

    what: str
    name: str
    accepted: bool
    reason: str = ""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The command was carried out. `job` is the id of a submitted job, `note` is a remark for people."""

    job: str = ""
    note: str = ""
    items: tuple[Item, ...] = ()


encode_answer = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(Accepted).decode


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The command was refused and changed nothing. `problem` says what is wrong with the field and what to do."""

    field: str
    problem: str
    code: str = "invalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


Answer = Accepted | Rejected


# -- for observers -----------------------------------------------------------------------------------------------

ActorKind = Literal["user", "operator", "agent", "server"]


class Actor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The caller whose commands made some consecutive changes of a cycle.

    The changes start at the previous actor's `until` and end before this `until`.
    """

    until: int
    kind: ActorKind
    user: str = ""
    """The name of a user or an operator."""
