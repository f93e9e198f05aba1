"""What phases remember between cycles, to save work.

It is derived from earlier looks at the state, is never written down, and can be cleared at any time without changing a
decision. An abandoned plan clears it: its looks saw changes that were taken back.
"""

from __future__ import annotations

from fairlead.core.model import FAR, Account, Ask, Micros
from fairlead.core.resources import Vector


class LaneMemory:
    """What match, holds and preempt remember of a lane."""

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
        """The state versions at which nothing of the lane could be placed; the lane sleeps while they stand."""
        self.new_while_asleep: list[Ask] = []
        """Asks that arrived while the lane slept."""
        self.woken_by_room = False
        """True if only new capacity may have woken the lane: the reason of its head still holds if it finds none."""
        self.blocked: Ask | None = None
        """The head without capacity; it blocks the lane while it is within its limits."""
        self.no_room: Ask | None = None
        """The first ask that may start and found no capacity at the last look."""
        self.limited: Ask | None = None
        """The first ask that was over a limit at the last look."""
        self.unheld: tuple[object, bool] | None = None
        """State versions at the last hold attempt, and True if no other ask may get holds before it."""
        self.moved = False
        """True if asks may have changed places since match began; walks through the lane are void."""
        self.unclaimed: dict[int, tuple[tuple[int, ...], int]] = {}
        """Number of an ask → the state versions when no tasks could be stopped for it, and when to look again."""
        self.users: tuple[int, Micros, list[Account | None]] | None = None
        """When the lane fell asleep: the version of uses in its leaf, the time, and its users in the order of turns."""
        self.claims_at: Micros | None = None
        """When an ask of the lane that cannot claim yet may claim: after a pause, or after protection ends."""


class DemandMemory:
    """What the demand phase found at its last look."""

    __slots__ = ("dirty", "next_look", "paused", "pools", "shrink_at")

    def __init__(self) -> None:
        self.dirty = True
        """True if the state changed since."""
        self.next_look: Micros | None = None
        """No look before this time, because the last one was long; None if any time will do."""
        self.shrink_at: Micros | None = None
        """When the next node will have been idle for long enough."""
        self.paused: list[str] = []
        """Pools that were not asked because an order had failed."""
        self.pools = -1
        """The version of the pools at which all nodes were looked at."""


class Memory:
    """What phases remember of a partition. What they remember of a lane hangs on the lane."""

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
        """With backfill, when a task will have overrun an estimate that a planned start counts on."""
        self.backfill: object = None
        """With backfill, what the last look found out."""
        self.scaling = DemandMemory()
        self.ever: tuple[tuple[int, int], Vector] | None = None
        """The capacity that `never.capacity_ever` found, and the versions of nodes and pools it is for."""
