"""Commands and their answers. Each command is checked by itself; a rejected command does not affect the others.

Documents of jobs, nodes and configurations are parsed before they become commands. Only a resource manager's update
contains unparsed documents, because each item of it is accepted or rejected by itself.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.model import JobSpec, Micros, Pairs
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Counters

ReportState = Literal["running", "refused", "succeeded", "failed", "stopped", "lost"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of commands, with the caller.

    Operators may do everything, users only act on what they own or administer.
    """

    user: str = ""
    groups: tuple[str, ...] = ()
    operator: bool = False
    key: str = ""
    """Idempotency key: a repeated command with the same key gets the same answer and changes nothing."""


# -- configuration -----------------------------------------------------------------------------------------------


class Configure(Command, frozen=True, tag="configure"):
    """Apply a configuration. A configuration equal to the present one changes nothing."""

    config: PartitionConfig
    version: int = 0
    numbers: Counters | None = None
    """The numbers from which a new partition goes on; None if there was no partition of its name before."""


class MoveQueue(Command, frozen=True, tag="move queue"):
    """Stop a queue, so that it accepts no jobs and starts no tasks, or start it again."""

    queue: str
    action: Literal["start", "stop"]


class MarkReady(Command, frozen=True, tag="mark ready"):
    """Declare the partition ready, without waiting for more agents and resource managers."""


class RemovePartition(Command, frozen=True, tag="remove partition"):
    """Remove the partition: release all its jobs, allocations and nodes immediately."""


# -- nodes -------------------------------------------------------------------------------------------------------


class AddNode(Command, frozen=True, tag="add node"):
    """Add a node, or update a node that joins again."""

    name: str
    spec: NodeSpec


class UpdateNode(Command, frozen=True, tag="update node"):
    name: str
    spec: NodeSpec


class MoveNode(Command, frozen=True, tag="move node"):
    """Drain a node (running tasks go on until they end), disable it, enable it again, or declare it lost."""

    name: str
    action: Literal["drain", "disable", "enable", "lose"]
    reason: str = ""
    """Why the node is drained or disabled, for people."""
    lasts: Micros = 0
    """How long it is disabled; 0 for until it is enabled."""


class CloseNodes(Command, frozen=True, tag="close nodes"):
    """Disable the nodes with these labels for a time, also those that join meanwhile. Without a time, enable those that
    were disabled for a time."""

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
    """Order nodes, or give back idle ones, until the pool has `nodes` nodes. Automatic scaling continues from there."""

    pool: str
    nodes: int


# -- jobs --------------------------------------------------------------------------------------------------------


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The request that submitted a job, for observers. No decision depends on it."""

    received: Micros
    traceparent: str = ""
    """The span of the caller, as in the header of this name; empty for none."""


class Submit(Command, frozen=True, tag="submit"):
    """Submit a job. Without an `id`, the scheduler chooses one."""

    spec: JobSpec
    id: str = ""
    origin: Origin | msgspec.UnsetType = msgspec.UNSET
    """Not part of the digest of an idempotency key: a repeated request has another origin."""


class Scale(Command, frozen=True, tag="scale"):
    job: str
    stage: str
    count: int


class Kill(Command, frozen=True, tag="kill"):
    job: str


class HoldJob(Command, frozen=True, tag="hold job"):
    """Hold a job back: running tasks continue, and no other task of the job starts until it is released."""

    job: str


class ReleaseJob(Command, frozen=True, tag="release job"):
    """Release a held job: its tasks may start again and keep their position in the lane."""

    job: str


class Requeue(Command, frozen=True, tag="requeue"):
    """Stop the running tasks of a job, with grace. They wait again at their earlier position, and no try is used up."""

    job: str


TaskAction = Literal["kill", "requeue", "replace"]


class StopTasks(Command, frozen=True, tag="stop tasks"):
    """Stop some tasks of a job. Killed tasks have ended. Requeued ones wait again at their earlier place. Replaced ones
    are asked for at once, before new work. No try is used up."""

    job: str
    stage: str
    indices: tuple[int, ...]
    """As ranges: the first index, the one after the last, and so on."""
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
    """Move this job's ask to the tail of its lane, or cancel the ask.

    Refused unless the ask is the head and blocks the lane.
    """

    queue: str
    job: str
    cancel: bool = False


class Report(Command, frozen=True, tag="report"):
    """An agent's report on a block of tasks under one attempt."""

    node: str
    job: str
    stage: str
    indices: tuple[int, ...]
    attempt: int
    state: ReportState
    exit_code: int | None = None
    reason: str = ""
    number: int = 0
    """The job's number, as in the launch; 0 if it is not known."""
    ran: int = 0
    """The average time in microseconds that the tasks ran, or have run so far; 0 if it is not known."""


# -- resource managers -------------------------------------------------------------------------------------------


class RegisterManager(Command, frozen=True, tag="register manager"):
    name: str


class RemoveManager(Command, frozen=True, tag="remove manager"):
    """Remove a resource manager that does not come back: its jobs are killed and its nodes removed."""

    name: str


class UpdateManager(Command, frozen=True, tag="update manager"):
    """An update from a resource manager, handled in this order: nodes, jobs, recover, asks, releases.

    `more` is True if the manager sends its whole state and further updates follow; the partition waits for the rest.
    """

    name: str
    nodes: tuple[dict[str, Any], ...] = ()
    jobs: tuple[dict[str, Any], ...] = ()
    asks: tuple[dict[str, Any], ...] = ()
    releases: tuple[dict[str, Any], ...] = ()
    recover: tuple[dict[str, Any], ...] = ()
    more: bool = False


# -- answers -----------------------------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one item of a manager's update: `what` is job, ask, node, release or recover."""

    what: str
    name: str
    accepted: bool
    reason: str = ""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The command was carried out. `job` is the id of a submitted job, `note` a remark for people."""

    job: str = ""
    note: str = ""
    items: tuple[Item, ...] = ()


encode_answer = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(Accepted).decode


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The command was refused and altered nothing. Names the field, what is wrong with it, and what to do."""

    field: str
    problem: str
    code: str = "invalid"

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


Answer = Accepted | Rejected

AnyCommand = (
    Configure
    | MoveQueue
    | MarkReady
    | RemovePartition
    | AddNode
    | UpdateNode
    | MoveNode
    | CloseNodes
    | DisconnectNodes
    | RemoveNode
    | FailOrder
    | MovePool
    | ScalePool
    | Submit
    | Scale
    | Kill
    | HoldJob
    | ReleaseJob
    | Requeue
    | StopTasks
    | SetPriority
    | BringToFront
    | ReleaseHold
    | CancelAsk
    | ResetLane
    | Report
    | RegisterManager
    | RemoveManager
    | UpdateManager
)


# -- for observers -----------------------------------------------------------------------------------------------

ActorKind = Literal["user", "operator", "agent", "server"]


class Actor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The caller whose commands made a range of a cycle's changes.

    The range is from the previous actor's `until` to this `until`.
    """

    until: int
    kind: ActorKind
    user: str = ""
    """The name of a user or an operator."""
