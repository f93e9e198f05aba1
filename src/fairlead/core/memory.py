"""What phases remember between cycles, to save work: verdicts on lanes, failed claims and holds, the next outlook.

It comes from earlier searches of the state and is never stored. Clearing it changes no decision. An abandoned plan
clears it, because those searches saw changes that were taken back.
"""

from __future__ import annotations

from fairlead.core.model import FAR, Account, Ask, Micros
from fairlead.core.resources import Vector

UNSEEN = (-1, -1)
"""Versions of capacity and nodes that never occur."""


class Verdict:
    """What match found about a lane in which nothing can start. The lane sleeps until something it rests on changes."""

    __slots__ = ("bounded", "joined", "limited", "no_capacity", "turns", "versions")

    def __init__(self) -> None:
        self.versions: tuple[int, int] = UNSEEN
        """The versions of capacity and nodes at which it holds."""
        self.no_capacity: Ask | None = None
        """The first ask that was allowed to start and found no capacity."""
        self.bounded = False
        """True if a limit may refuse that ask by now, so that the asks behind it can start."""
        self.limited: Ask | None = None
        """The first ask that was over a limit."""
        self.turns: tuple[int, Micros, list[Account | None]] | None = None
        """The users in the order of turns; with it the version of use in the leaf queue, and the time."""
        self.joined: list[Ask] = []
        """Asks that joined the lane since."""


class LaneMemory:
    """What match, holds and preempt remember about a lane."""

    __slots__ = ("claim_attempts", "hold_attempt", "look_at", "moved", "verdict")

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        """None while the lane is awake: match has to try it."""
        self.look_at: Micros | None = None
        """When match looks again, whatever the verdict: an ask of the lane may claim then."""
        self.moved = False
        """True if asks may have changed places since match began, so that iterators over the lane are void."""
        self.hold_attempt: tuple[object, bool] | None = None
        """State versions at the last attempt to hold nodes, and True if no other ask may get a hold before this one."""
        self.claim_attempts: dict[int, tuple[tuple[int, ...], Micros]] = {}
        """Number of an ask → the state versions at which no tasks could be stopped for it, and when to try again."""


class DemandMemory:
    """What the demand phase remembers about its last run."""

    __slots__ = ("dirty", "next_look", "paused", "pools", "shrink_at")

    def __init__(self) -> None:
        self.dirty = True
        """True if the state changed since the last run."""
        self.next_look: Micros | None = None
        """No run before this time, because the last one took long; None if it may run at any time."""
        self.shrink_at: Micros | None = None
        """When the next node will have been idle for long enough."""
        self.paused: list[str] = []
        """Pools that got no order because an earlier order had failed."""
        self.pools = -1
        """The version of the pools at which all nodes were examined."""


class Memory:
    """What phases remember about a partition. What they remember about a lane is stored on the lane."""

    __slots__ = (
        "backfill",
        "claims_at",
        "ever",
        "next_recall_at",
        "next_starving_at",
        "replan_at",
        "scaling",
        "unheld_starving",
    )

    def __init__(self) -> None:
        self.unheld_starving = True
        """True if a starving ask may have no hold yet."""
        self.next_starving_at: Micros = 0
        """No other ask can start starving before this time."""
        self.next_recall_at: Micros = 0
        """No owner is due for a look before this time, if no other ask loses its capacity."""
        self.claims_at: Micros = 0
        """No ask for which stopping tasks did not help may claim again before this time."""
        self.replan_at: Micros = FAR
        """With backfill, when a task will have overrun an estimate that a planned start depends on."""
        self.backfill: object = None
        """With backfill, the results of the last match."""
        self.scaling = DemandMemory()
        self.ever: tuple[tuple[int, int, str], Vector] | None = None
        """The capacity that `never.capacity_ever` found, and the versions of nodes and pools and the manager."""
