"""The ways to alter a partition's state, each with its undo beside it. One file a noun.

Records are journaled as arrays led by their tag: a new field goes to the end, with a default, or the journal's
format version rises.
"""

from __future__ import annotations

from fairlead.core.changes import chains, config, gangs, holds, jobs, ledger, nodes, pools, shares, singles, tasks
from fairlead.core.changes.base import Change
from fairlead.core.changes.chains import CalledBack, Chained, Measured, RoomPassed
from fairlead.core.changes.config import (
    ConfigVersioned,
    PartitionRemoved,
    PoolsSet,
    QueueMoved,
    QueuesAdded,
    QueuesRemoved,
    QueuesSet,
    SettingsSet,
)
from fairlead.core.changes.gangs import Began, Regrouped
from fairlead.core.changes.holds import Held, Promised, Released, Trimmed
from fairlead.core.changes.jobs import (
    Asked,
    JobAdded,
    JobForgotten,
    JobMoved,
    JobPrioritised,
    StageAdded,
    StageScaled,
)
from fairlead.core.changes.ledger import KeyKept, KeysForgotten, ManagerRegistered
from fairlead.core.changes.nodes import (
    NodeAdded,
    NodeAvoided,
    NodeMoved,
    NodeRemoved,
    NodeSet,
    NodeSpec,
    as_added,
    spec_of,
)
from fairlead.core.changes.pools import Arrived, GivenBack, Idled, Ordered, OrderFailed, PoolMoved
from fairlead.core.changes.shares import SpreadSeen
from fairlead.core.changes.singles import SinglesEnded, SinglesPlaced
from fairlead.core.changes.tasks import (
    NOT_AGAIN,
    Acknowledged,
    Ended,
    Part,
    PendingEnded,
    Placed,
    Revived,
    StopOverdue,
    Stopped,
)

ALL_CHANGES: tuple[type[Change], ...] = (
    *config.CHANGES,
    *nodes.CHANGES,
    *jobs.CHANGES,
    *tasks.CHANGES,
    *singles.CHANGES,
    *shares.CHANGES,
    *gangs.CHANGES,
    *chains.CHANGES,
    *holds.CHANGES,
    *pools.CHANGES,
    *ledger.CHANGES,
)

__all__ = [
    "ALL_CHANGES",
    "NOT_AGAIN",
    "Acknowledged",
    "Arrived",
    "Asked",
    "Began",
    "CalledBack",
    "Chained",
    "Change",
    "ConfigVersioned",
    "Ended",
    "GivenBack",
    "Held",
    "Idled",
    "JobAdded",
    "JobForgotten",
    "JobMoved",
    "JobPrioritised",
    "KeyKept",
    "KeysForgotten",
    "ManagerRegistered",
    "Measured",
    "NodeAdded",
    "NodeAvoided",
    "NodeMoved",
    "NodeRemoved",
    "NodeSet",
    "NodeSpec",
    "OrderFailed",
    "Ordered",
    "Part",
    "PartitionRemoved",
    "PendingEnded",
    "Placed",
    "PoolMoved",
    "PoolsSet",
    "Promised",
    "QueueMoved",
    "QueuesAdded",
    "QueuesRemoved",
    "QueuesSet",
    "Regrouped",
    "Released",
    "Revived",
    "RoomPassed",
    "SettingsSet",
    "SinglesEnded",
    "SinglesPlaced",
    "SpreadSeen",
    "StageAdded",
    "StageScaled",
    "StopOverdue",
    "Stopped",
    "Trimmed",
    "as_added",
    "spec_of",
]
