"""Values that are derived from the state of a partition: the node index, shapes, deadlines, versions, sums.

Changes keep these values up to date. A dump does not contain them; loading a dump computes them again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fairlead.core.ahead.expected_ends import Forecast
from fairlead.core.entitlement import Entitlements
from fairlead.core.index.pack import FitIndex
from fairlead.core.model import Allocation, Job, Micros, RunsKey
from fairlead.core.node_table import NodeTable
from fairlead.core.policy.placement import PACK
from fairlead.core.requestors import Requestors
from fairlead.core.shape import Shape, ShapeKey


class QueueFacts(NamedTuple):
    """Properties of the queue tree at one version. A flag is True if at least one queue has the property."""

    queue_version: int
    guarantees: bool
    firm: bool
    """The tasks of a queue cannot be preempted."""
    limits: bool
    """A queue has a limit, for itself or for its users or groups."""
    shares: bool
    """A queue has a share, and siblings to divide with."""
    checks: dict[object, tuple[Any, object]]
    """For admission: kind of job → the checks that can refuse it, and its accounts. Keeping the accounts keeps their id
    unique."""


class Derived:
    __slots__ = (
        "begins",
        "chains",
        "draining_queues",
        "entitlements",
        "expiring",
        "facts",
        "followers",
        "forecast",
        "forgetting",
        "holds_version",
        "index",
        "indexed",
        "key_of",
        "old_runs",
        "openings",
        "overdue",
        "pools_version",
        "priorities",
        "queue_version",
        "requestors",
        "runs_version",
        "shapes",
        "short",
        "stopped_queues",
        "stops_version",
        "timers",
    )

    def __init__(self, nodes: NodeTable) -> None:
        # -- versions: each grows with certain changes, so that a search in vain is repeated only after one of them
        self.openings = 0
        """Grows when capacity may have become free or a limit may have risen. Sleeping lanes wake then."""
        self.queue_version = 0
        """Grows when a queue is added, removed or altered, or the setting `checks` changes."""
        self.holds_version = 0
        """Grows when a hold or promise is added or ends."""
        self.stops_version = 0
        """Grows when tasks begin to stop, and when a stop becomes overdue."""
        self.pools_version = 0
        """Grows when a pool is added, removed or altered."""
        self.runs_version = 0
        """Grows when the last run times of a user or job name change."""
        # -- of settings and queues
        self.requestors = Requestors(())
        self.entitlements: tuple[int, Entitlements] | None = None
        """The version of the queues, and the entitlements computed at that version."""
        self.facts = QueueFacts(-1, False, False, False, False, {})
        self.stopped_queues: set[str] = set()
        """Queues that start nothing."""
        self.draining_queues: set[str] = set()
        """Queues that are removed when they are empty."""
        # -- of jobs
        self.shapes: dict[ShapeKey, Shape] = {}
        self.priorities: dict[int, int] = {}
        """Priority → the number of jobs that have it."""
        self.followers: dict[str, list[str]] = {}
        """Job → the jobs that depend on it and wait for it."""
        self.begins: dict[str, Micros] = {}
        """Job that is held until its time to begin → that time."""
        self.short: dict[tuple[str, int], Micros] = {}
        """(Job, stage) → since when a started stage with `on_loss: replace` has had fewer than `min` live tasks."""
        self.forgetting: list[tuple[Micros, int, str]] = []
        """A heap of ended jobs by time of end. Entries of jobs that are already forgotten are skipped."""
        self.expiring: list[tuple[Micros, str, str]] = []
        """A heap of idempotency keys by expiry. Entries with an outdated time are skipped."""
        self.key_of: dict[str, tuple[str, str]] = {}
        """Job → the idempotency key of its submission."""
        # -- of allocations and nodes
        self.index: FitIndex = FitIndex(nodes)
        """The index of nodes for the placement policy in the settings."""
        self.indexed = (PACK, 0)
        """The placement and the seed for which the index was made."""
        self.timers: list[tuple[Micros, int]] = []
        """A heap of deadlines of allocations, for acknowledgement, time limit or stop, with their numbers."""
        self.overdue: dict[int, Allocation] = {}
        """Allocations that did not stop in time."""
        self.chains: dict[int, dict[int, Allocation]] = {}
        """Chain → its allocations, running or waiting for a slot of the chain."""
        self.forecast: Forecast | None = None
        """The expected ends of running tasks; only with backfill."""
        self.old_runs: list[tuple[Micros, RunsKey]] = []
        """A heap of the last run times by the time of their note. Entries with an outdated time are skipped."""

    def note_begin(self, job: Job) -> None:
        """Note when a job begins, if it is held until then."""
        self.begins.pop(job.id, None)
        if job.held_by is not None and job.held_by.until:
            self.begins[job.id] = job.held_by.until
