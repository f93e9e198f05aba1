"""Results of searches that phases remember between cycles to save work: verdicts on lanes, failed claims and holds.

They are never journaled, and clearing them changes no decision. They are cleared when a plan is abandoned, because the
searches saw changes that were then undone.
"""

from __future__ import annotations

from fairlead.core.model import FAR, Account, Ask, Micros
from fairlead.core.resources import Vector

UNSEEN = (-1, -1)
"""Versions of capacity and nodes that never occur."""


class Verdict:
    """The result of match for a lane in which nothing can start. The lane sleeps until the result may change."""

    __slots__ = ("bounded", "closed", "joined", "limited", "no_capacity", "turns", "versions")

    def __init__(self) -> None:
        self.versions: tuple[int, int] = UNSEEN
        """The versions of capacity and nodes for which the verdict is valid."""
        self.no_capacity: Ask | None = None
        """The first ask that was allowed to start and found no capacity."""
        self.bounded = False
        """True if a limit may refuse that ask later, so that asks behind it can start."""
        self.closed = False
        """True if asks behind the one without capacity were not tried."""
        self.limited: Ask | None = None
        """The first ask that was over a limit."""
        self.turns: tuple[int, Micros, list[Account | None]] | None = None
        """The version of use in the leaf queue, the time, and the users in the order of turns at that time."""
        self.joined: list[Ask] = []
        """Asks that joined the lane after the verdict."""


class LaneMemory:
    """What match, holds and preempt remember about a lane."""

    __slots__ = ("claim_attempts", "hold_attempt", "look_at", "moved", "verdict")

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        """None while the lane is awake: match has to try it."""
        self.look_at: Micros | None = None
        """When match tries the lane again even if it sleeps, because one of its asks may claim then."""
        self.moved = False
        """True if asks may have changed places since match began. Iterators over the lane are then invalid."""
        self.hold_attempt: tuple[object, bool] | None = None
        """State versions at the last attempt to hold nodes, and True if no other ask may get a hold before this one."""
        self.claim_attempts: dict[int, tuple[tuple[int, ...], Micros]] = {}
        """Number of an ask for which no tasks could be stopped → the state versions, and when to try again."""


class DemandMemory:
    """Results of the last run of the demand phase."""

    __slots__ = ("dirty", "next_look", "paused", "pools", "shrink_at")

    def __init__(self) -> None:
        self.dirty = True
        """True if the state changed since the last run."""
        self.next_look: Micros | None = None
        """The earliest time of the next run, set if the last run took long; None for any time."""
        self.shrink_at: Micros | None = None
        """When a node will next have been idle for long enough to be given back."""
        self.paused: list[str] = []
        """Pools that got no order because an earlier order had failed."""
        self.pools = -1
        """The version of the pools when all nodes were last examined."""


class Memory:
    """Results about a partition. Results about a lane are stored on the lane."""

    __slots__ = (
        "backfill",
        "backfilled",
        "checked_earmarks",
        "claims_at",
        "ever",
        "lent",
        "next_recall_at",
        "next_starving_at",
        "replan_at",
        "scaling",
        "unheld_starving",
    )

    def __init__(self) -> None:
        self.checked_earmarks: dict[int, int] = {}
        """Number of an ask → the version of the nodes at which its hold or promise was last found valid."""
        self.unheld_starving = True
        """True if a starving ask may have no hold yet."""
        self.next_starving_at: Micros = 0
        """No further ask can start starving before this time."""
        self.next_recall_at: Micros = 0
        """No nodes are set aside for an ask before this time, unless another ask loses its capacity."""
        self.claims_at: Micros = 0
        """Asks for which stopping tasks did not help claim again after this time at the earliest."""
        self.replan_at: Micros = FAR
        """With backfill, the next time at which a task overruns an estimate that a planned start depends on."""
        self.lent: dict[int, Micros] = {}
        """Held node → until when the last match lent it to tasks that end in time."""
        self.backfill: object = None
        """With backfill, data of the last match that the next one can use."""
        self.backfilled = False
        """True if asks were allowed to pass one without capacity in the last match."""
        self.scaling = DemandMemory()
        self.ever: tuple[tuple[int, int, str], Vector] | None = None
        """The versions of nodes and pools and the manager, and the result of `never.capacity_ever` for them."""
