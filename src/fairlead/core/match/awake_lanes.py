"""Chooses the lanes that match tries: lanes without a verdict, and lanes with a relevant change since their verdict.

A verdict is the result of the last match that tried the lane.
"""

from __future__ import annotations

from typing import Literal

from fairlead.core.admission import refusal
from fairlead.core.asks import gang_size, minimum_by_stage
from fairlead.core.lanes import Lane, LaneKey
from fairlead.core.match.queue_cursor import order_time
from fairlead.core.memory import Verdict
from fairlead.core.model import Ask
from fairlead.core.plan import Plan
from fairlead.core.preempt.preempt import Claims
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.why.reasons import NoCapacity

Sleep = Literal["asleep", "awake", "capacity"]
"""`capacity`: the lane is awake only because there might be capacity now for the ask that found none."""


class AwakeLanes:
    """The lanes that match tries in a round."""

    def __init__(self, plan: Plan, look_at_all: bool, claims: Claims | None) -> None:
        """With `look_at_all`, lanes are awake even if no capacity was freed since their verdict."""
        self.by_queue: dict[str, list[Lane]] = {}
        """The lanes that had no turn yet, by the path of their leaf queue."""
        self._plan = plan
        self._partition = plan.partition
        self._look_at_all = look_at_all
        self._claims = claims
        self._for_capacity: dict[Lane, None] = {}
        """The lanes that are awake only in case there is capacity. Without capacity, their verdicts still hold."""
        self._fits: dict[Shape, bool] = {}
        """Shape → True if a single task of it fits now."""
        asleep: list[tuple[LaneKey, Lane]] = []
        for key, lane in self._partition.lanes.items():
            sleep = self._sleep(lane, key in plan.looked)
            if sleep == "asleep":
                asleep.append((key, lane))
                continue
            if sleep == "capacity":
                self._for_capacity[lane] = None
            self._wake(key, lane)
        if not self.by_queue:
            return
        if self._partition.backfills:
            self._wake_all()
        elif self._partition.nodes.held or claims is not None:
            # Nodes released and claims made during this match can let an ask of a sleeping lane start.
            for key, lane in asleep:
                if self._partition.nodes.held or (claims is not None and claims.may_make(lane)):
                    self._wake(key, lane)

    def let_sleep(self, shape: Shape) -> int:
        """Put the lanes to sleep that are awake only because a task of a shape might fit. Returns their number."""
        removed = 0
        for path, lanes in self.by_queue.items():
            left: list[Lane] = []
            for lane in lanes:
                verdict = lane.memory.verdict
                if verdict is None or lane not in self._for_capacity or lane.shapes != (shape,):
                    left.append(lane)
                    continue
                verdict.versions = self._partition.capacity_versions()
                self._plan.looked.discard((path, shape))
            removed += len(lanes) - len(left)
            self.by_queue[path] = left
        return removed

    def _wake(self, key: LaneKey, lane: Lane) -> None:
        self.by_queue.setdefault(lane.queue.path, []).append(lane)
        self._plan.looked.add(key)

    def _wake_all(self) -> None:
        """Wake all lanes, because each may have the ask that backfill plans first. They stay awake until their turn."""
        self.by_queue.clear()
        self._for_capacity.clear()
        for key, lane in self._partition.lanes.items():
            lane.memory.verdict = None
            self._wake(key, lane)

    def _sleep(self, lane: Lane, tried: bool) -> Sleep:
        """Return whether a lane sleeps. `tried` is True if an earlier round of this cycle tried it."""
        partition, verdict = self._partition, lane.memory.verdict
        if verdict is None or _is_void(partition, lane, verdict):
            return "awake"
        if verdict.joined and verdict.closed and not partition.nodes.closing and lane.all_behind(verdict):
            verdict.joined.clear()
        may_claim = self._claims is not None and self._claims.may_make(lane, untried=True)
        if may_claim or verdict.joined:
            return "awake"
        versions = partition.capacity_versions()
        if verdict.versions == versions and not self._look_at_all:
            return "asleep"
        ask = verdict.no_capacity
        # If the ask without capacity is not the head, the asks before it may be allowed to start by now.
        if ask is None or verdict.versions[1] != versions[1] or ask is not lane.head():
            return "awake"
        if partition.backfills or not self._is_full(lane, ask):
            return "capacity"
        if tried:  # one of its tasks started in this cycle, which removed its reason
            self._plan.note_reason(ask, NoCapacity(gang_size(ask), 0))
        return "asleep"

    def _is_full(self, lane: Lane, ask: Ask) -> bool:
        """True if there still is no capacity for a single task of an ask."""
        if self._partition.nodes.aside:  # such nodes are not in the index, but some asks may use them
            return False
        index = self._partition.derived.index
        if not self._fits:
            index.put_all_back()
        # Some stages of a whole job may need no task.
        shapes = tuple(stage.shape for stage, _ in minimum_by_stage(ask)) if ask.whole else lane.shapes
        for shape in shapes:
            if shape not in self._fits:
                self._fits[shape] = index.fits(shape)
            if not self._fits[shape]:
                return True
        return False


def _is_void(partition: Partition, lane: Lane, verdict: Verdict) -> bool:
    """True if a verdict no longer holds although no capacity was freed and no ask joined the lane."""
    ask, look_at = verdict.no_capacity, lane.memory.look_at
    return (
        (verdict.bounded and ask is not None and refusal(partition, ask) is not None)
        or (look_at is not None and look_at <= partition.now)
        or (lane.queue.order.by_user and lane.has_new_order(verdict, order_time(partition)))
    )
