"""What phases remember between cycles, to save work.

It comes from earlier searches of the state and is never stored. Clearing it changes no decision. An abandoned plan
clears it, because those searches saw changes that were taken back.
"""

from __future__ import annotations

from fairlead.core.model import FAR, Account, Ask, Micros
from fairlead.core.resources import Vector


class LaneMemory:
    """What match, holds and preempt remember about a lane."""

    __slots__ = (
        "asleep_at",
        "blocked",
        "claims_at",
        "limited",
        "moved",
        "new_while_asleep",
        "no_room",
        "unclaimed",
        "unheld",
        "users",
        "woken_by_room",
    )

    def __init__(self) -> None:
        self.asleep_at: tuple[int, int] | None = None
        """The versions at which nothing of the lane could be placed; the lane sleeps while they stay the same."""
        self.new_while_asleep: list[Ask] = []
        """Asks that arrived while the lane slept."""
        self.woken_by_room = False
        """True if only new capacity can have woken the lane. If its head finds none, its reason still holds."""
        self.blocked: Ask | None = None
        """The head without capacity; it blocks the lane while it is within its limits."""
        self.no_room: Ask | None = None
        """In the last match, the first ask that was allowed to start and found no capacity."""
        self.limited: Ask | None = None
        """In the last match, the first ask that was over a limit."""
        self.unheld: tuple[object, bool] | None = None
        """State versions at the last hold attempt, and True if no other ask may get a hold before this one."""
        self.moved = False
        """True if asks may have changed places since match began, so that iterators over the lane are void."""
        self.unclaimed: dict[int, tuple[tuple[int, ...], int]] = {}
        """Number of an ask → the state versions at which no tasks could be stopped for it, and when to try again."""
        self.users: tuple[int, Micros, list[Account | None]] | None = None
        """When the lane fell asleep: the version of use in its leaf queue, the time, and its users in the order of
        turns."""
        self.claims_at: Micros | None = None
        """When an ask of the lane that may not claim yet will be allowed to: after a pause, or when protection ends."""


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
        self.claims_at: Micros = 0
        """No ask for which stopping tasks did not help may claim again before this time."""
        self.replan_at: Micros = FAR
        """With backfill, when a task will have overrun an estimate that a planned start depends on."""
        self.backfill: object = None
        """With backfill, the results of the last match."""
        self.scaling = DemandMemory()
        self.ever: tuple[tuple[int, int], Vector] | None = None
        """The capacity that `never.capacity_ever` found, and the versions of nodes and pools it is for."""
