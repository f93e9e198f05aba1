"""Nodes in hand: where a long lane of small jobs would fill a node by itself, it gets the node for a while.

A flood of jobs of one task each must not cost a search and a change each. The lane takes the fullest node that fits
out of the index, its next heads are set down there as their turns come, and all of them become one change when the
node is full. Nobody is overlooked: before any head is told that there is no room, the hands are emptied, and what was
not used is there for everybody.
"""

from __future__ import annotations

from fairlead.core.changes import SinglesPlaced
from fairlead.core.fitindex import FitIndex
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, Account, Reservation
from fairlead.core.phases.turn import is_firm
from fairlead.core.plan import Plan

FEW = 8
"""A lane with fewer reservations is not worth a node of its own."""


class Hand:
    """A node out of the index, and whose tasks it gets."""

    __slots__ = ("devices", "join", "reservations", "room")

    def __init__(self, join: int, room: int, devices: tuple[int, ...]) -> None:
        self.join = join
        self.room = room
        self.devices = devices
        self.reservations: list[Reservation] = []


class Hands:
    def __init__(self, plan: Plan, index: FitIndex) -> None:
        self.plan = plan
        self.index = index
        self._hands: dict[Lane, Hand | None] = {}
        """None for a lane that is too short for the nodes it would get."""
        self._unlimited: dict[int, bool] = {}
        """A tuple of accounts, which many jobs share, by its address → whether none of them bounds anything."""

    def give(self, lane: Lane, reservation: Reservation) -> bool:
        """Set a head down on the node that its lane has in hand, if it is such a lane and such a head."""
        stage = reservation.stage
        job = stage.job
        # The only task of a stage, asked for the first time, under no limit that would have to be looked at.
        if stage.count != 1 or stage.started or reservation.kind != NEW or stage.history or stage.floor:
            return False
        if reservation.whole or job.manager or self.plan.partition.stopped or is_firm(self.plan.partition, job):
            return False
        if not (self._unlimited.get(id(job.accounts)) or self._is_unlimited(job.accounts)):
            return False
        hand = self._hands.get(lane)
        if hand is None:
            if lane.size < FEW or lane in self._hands:
                return False
            hand = self._hands[lane] = self._take(lane)
            if hand is None:
                return False
        hand.reservations.append(reservation)
        if len(hand.reservations) == hand.room:
            del self._hands[lane]
            self._place(hand)
        return True

    def empty(self) -> bool:
        """Place what is in hand, and put the nodes back. Returns whether there were any."""
        standing = [hand for hand in self._hands.values() if hand is not None]
        self._hands = {lane: hand for lane, hand in self._hands.items() if hand is None}
        for hand in standing:
            self._place(hand)
        return bool(standing)

    def _is_unlimited(self, accounts: tuple[Account, ...]) -> bool:
        known = self._unlimited.get(id(accounts))
        if known is None:
            known = all(each.limit is None and each.max_jobs is None for each in accounts)
            self._unlimited[id(accounts)] = known
        return known

    def _take(self, lane: Lane) -> Hand | None:
        (shape,) = lane.shapes
        join = self.index.take(shape)
        if join is None:
            return None
        fitting, devices = self.index.room_on(join, shape, lane.size + 1)
        if fitting > lane.size:
            self.index.put_back((join,))
            return None
        return Hand(join, fitting, devices)

    def _place(self, hand: Hand) -> None:
        p = self.plan.partition
        per_task = len(hand.devices) // hand.room
        tasks = tuple([(each.stage.job.id, each.stage.position) for each in hand.reservations])
        devices = hand.devices[: per_task * len(tasks)]
        self.plan.do(SinglesPlaced(hand.join, p.counters.allocation, tasks, devices))
        self.index.put_back((hand.join,))
