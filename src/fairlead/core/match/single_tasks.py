"""Batches of single tasks: one-task jobs that start on the same node become one change.

This saves a search for a node and a change for each job. Each job is still admitted in its own turn, like every other
ask. If a lane is long enough to fill the node that fits best, it takes this node out of the index, and the next starts
of the lane go there. They are booked together when the node is full, or earlier if a check needs the present use or an
ask finds no capacity. See decision 0014.
"""

from __future__ import annotations

from fairlead.core.changes import SinglesPlaced
from fairlead.core.index.pack import FitIndex
from fairlead.core.lanes import Lane
from fairlead.core.model import NEW, Ask
from fairlead.core.plan import Plan

FEW = 8
"""A lane with fewer asks starts its tasks one by one."""


class Batch:
    """Asks that start together on one node, which is out of the index."""

    __slots__ = ("asks", "capacity", "devices", "node_id")

    def __init__(self, node_id: int, capacity: int, devices: tuple[int, ...]) -> None:
        self.node_id = node_id
        self.capacity = capacity
        self.devices = devices
        self.asks: list[Ask] = []


class Singles:
    """The open batches of one round of match, one per lane."""

    def __init__(self, plan: Plan, index: FitIndex) -> None:
        self.plan = plan
        self.index = index
        self._batches: dict[Lane, Batch | None] = {}
        """None for a lane that starts its tasks one by one."""
        self._open_batches = 0

    def add(self, lane: Lane, ask: Ask) -> bool:
        """Add an admitted ask to the batch of its lane. False if the ask must be placed by itself."""
        batch = self._batches.get(lane)
        if batch is None and lane in self._batches:
            return False
        stage = ask.stage
        # `SinglesPlaced` can record only the first start of a one-task stage. A lane in which asks have moved is walked
        # from its beginning, so each start must be booked at once.
        if lane.memory.moved or stage.count != 1 or stage.started or ask.kind != NEW or stage.history or stage.floor:
            return False
        if len(stage.job.stages) > 1 and lane.queue.order.by_running:
            return False  # the start gives other asks of the job new places
        if batch is None:
            if lane.size < FEW:
                return False
            batch = self._batches[lane] = self._open(lane)
            if batch is None:
                return False
            self._open_batches += 1
        asks = batch.asks
        asks.append(ask)
        if len(asks) == batch.capacity:
            del self._batches[lane]
            self._open_batches -= 1
            self._book(batch)
        return True

    def flush(self) -> bool:
        """Book all open batches and put their nodes back into the index. True if there were open batches."""
        if not self._open_batches:
            return False
        self._open_batches = 0
        batches = [batch for batch in self._batches.values() if batch is not None]
        self._batches = {lane: batch for lane, batch in self._batches.items() if batch is None}
        for batch in batches:
            self._book(batch)
        return bool(batches)

    def _open(self, lane: Lane) -> Batch | None:
        # Tasks of a manager count as running at once, which `SinglesPlaced` cannot record.
        (shape,) = lane.shapes
        if shape.key.manager:
            return None
        node_id = self.index.take(shape)
        if node_id is None:
            return None
        fitting, devices = self.index.fitting_on(node_id, shape, lane.size + 1)
        if fitting > lane.size:
            self.index.put_back((node_id,))
            return None
        return Batch(node_id, fitting, devices)

    def _book(self, batch: Batch) -> None:
        partition = self.plan.partition
        per_task = len(batch.devices) // batch.capacity
        tasks = tuple([(ask.stage.job.id, ask.stage.position) for ask in batch.asks])
        devices = batch.devices[: per_task * len(tasks)]
        self.plan.do(SinglesPlaced(batch.node_id, partition.counters.allocation, tasks, devices))
        self.index.put_back((batch.node_id,))
