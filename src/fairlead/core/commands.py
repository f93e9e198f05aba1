"""What arrives: commands, and the answers to them. A command is checked alone and disturbs no other.

Documents (of jobs, nodes, configurations) have been read into specifications before; only a resource manager's
update carries documents, because each of its items is accepted or rejected for itself.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.model import JobSpec
from fairlead.core.settings import PartitionConfig

ReportState = Literal["running", "refused", "succeeded", "failed", "stopped", "lost"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks. An operator may do everything; others what they own or administer."""

    user: str = ""
    groups: tuple[str, ...] = ()
    operator: bool = False
    key: str = ""
    """Idempotency key: the same one again gets the same answer and changes nothing."""


# -- configuration -----------------------------------------------------------------------------------------------


class Configure(Command, frozen=True, tag="configure"):
    """Follow this configuration. An equal one is a no-op."""

    config: PartitionConfig
    version: int = 0


class MoveQueue(Command, frozen=True, tag="move queue"):
    """Stop a queue (it accepts and starts nothing) or start it again."""

    queue: str
    action: Literal["start", "stop"]


class MarkReady(Command, frozen=True, tag="mark ready"):
    """Everybody who should report after a start has reported."""


class RemovePartition(Command, frozen=True, tag="remove partition"):
    """Release everything under the partition, at once."""


# -- nodes -------------------------------------------------------------------------------------------------------


class AddNode(Command, frozen=True, tag="add node"):
    """A node joins, or a known one comes back with what it has now."""

    name: str
    spec: NodeSpec


class UpdateNode(Command, frozen=True, tag="update node"):
    name: str
    spec: NodeSpec


class MoveNode(Command, frozen=True, tag="move node"):
    """Drain (what runs ends by itself), disable, bring back, or declare lost."""

    name: str
    action: Literal["drain", "disable", "enable", "lose"]


class RemoveNode(Command, frozen=True, tag="remove node"):
    """The node leaves; what runs there is lost at once."""

    name: str


# -- pools -------------------------------------------------------------------------------------------------------


class FailOrder(Command, frozen=True, tag="fail order"):
    """Ordered nodes will not come: those named, or all that have yet to come."""

    pool: str
    order: int
    reason: str
    names: tuple[str, ...] = ()


class MovePool(Command, frozen=True, tag="move pool"):
    """Pause a pool, so that it neither grows nor shrinks by itself, or let it go on at once."""

    pool: str
    action: Literal["pause", "resume"]


class ScalePool(Command, frozen=True, tag="scale pool"):
    """Order nodes, or give back those that are idle, until the pool has so many. It goes on by itself from there."""

    pool: str
    nodes: int


# -- jobs --------------------------------------------------------------------------------------------------------


class Submit(Command, frozen=True, tag="submit"):
    """Start a job. Its id is chosen here if the submitter did not choose one."""

    spec: JobSpec
    id: str = ""


class Scale(Command, frozen=True, tag="scale"):
    job: str
    stage: str
    count: int


class Kill(Command, frozen=True, tag="kill"):
    job: str


class SetPriority(Command, frozen=True, tag="set priority"):
    job: str
    priority: int


class BringToFront(Command, frozen=True, tag="bring to front"):
    """A stage's asks go before the others of their lanes."""

    job: str
    stage: str


class ReleaseHold(Command, frozen=True, tag="release hold"):
    """The nodes that are held for a job, or for one stage of it, are open to other work again."""

    job: str
    stage: str = ""


class CancelAsk(Command, frozen=True, tag="cancel ask"):
    """A stage's pending tasks are given up."""

    job: str
    stage: str


class ResetLane(Command, frozen=True, tag="reset lane"):
    """A stuck lane: its head, if it is this job's, goes to the tail or is cancelled."""

    queue: str
    job: str
    cancel: bool = False


class Report(Command, frozen=True, tag="report"):
    """What an agent says of a block of tasks under one attempt."""

    node: str
    job: str
    stage: str
    indices: tuple[int, ...]
    attempt: int
    state: ReportState
    exit_code: int | None = None
    reason: str = ""
    number: int = 0
    """The job's number as the launch gave it; 0 where it is not known."""
    ran: int = 0
    """How long each of the tasks ran, or has run, on the average, in microseconds; 0 where it is not known."""


# -- resource managers -------------------------------------------------------------------------------------------


class RegisterManager(Command, frozen=True, tag="register manager"):
    name: str


class UpdateManager(Command, frozen=True, tag="update manager"):
    """A batch of a resource manager's news, taken in this order: nodes, jobs, recover, asks, releases."""

    name: str
    nodes: tuple[dict[str, Any], ...] = ()
    jobs: tuple[dict[str, Any], ...] = ()
    asks: tuple[dict[str, Any], ...] = ()
    releases: tuple[dict[str, Any], ...] = ()
    recover: tuple[dict[str, Any], ...] = ()


# -- answers -----------------------------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True, array_like=True):
    """What became of one item of a manager's update: `what` is job, ask, node, release or recover."""

    what: str
    name: str
    accepted: bool
    reason: str = ""


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """Done. `job` is the id of a submitted job, `note` what a person may want to know."""

    job: str = ""
    note: str = ""
    items: tuple[Item, ...] = ()


encode_answer = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(Accepted).decode


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """Not done, and nothing was altered: which field, what is wrong and what to do."""

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
    | RemoveNode
    | FailOrder
    | MovePool
    | ScalePool
    | Submit
    | Scale
    | Kill
    | SetPriority
    | BringToFront
    | ReleaseHold
    | CancelAsk
    | ResetLane
    | Report
    | RegisterManager
    | UpdateManager
)
