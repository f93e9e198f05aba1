"""Lanes: the ordered asks of one leaf queue and one shape. Only the head of a lane is tried.

A job that starts whole stands in the lane of its set of shapes.

A lane is derived from the asks of the stages. It is kept in runs: asks that differ only in the last part of their key
(mostly the time they were asked for) stand in one list. They mostly arrive in that order, so adding one is an append
and costs eight bytes. An ask that left its stage, or has another place now, stays in its run until the run is passed
over or cleared out. Places change in two cases: under an order `by_running` (`fair`), with the number of tasks that a
job runs; and for replacements, when their stage falls below `min` or reaches it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import islice

from fairlead.core.memory import LaneMemory
from fairlead.core.model import NEW, REPLACE, SCALE, Ask, Job, Queue
from fairlead.core.policy.order import Key, Standing
from fairlead.core.shape import Shape

_SLACK = 32
"""A lane is cleared of dead entries when they outnumber the others by more than this."""

_STIRRED = (-1, -1)
"""Versions that never occur: a lane that fell asleep at these is looked at again."""


LaneKey = tuple[str, Shape | tuple[Shape, ...]]
"""The queue path, and the shape or, if there are several, the sorted shapes."""


def lane_key(ask: Ask) -> LaneKey:
    stage = ask.stage
    return whole_key(stage.job) if ask.whole else (stage.job.queue.path, stage.shape)


def whole_key(job: Job) -> LaneKey:
    """Return the lane of a job that starts whole. If all its stages have one shape, it is the lane of that shape."""
    shapes = tuple(sorted({stage.shape for stage in job.stages}, key=lambda shape: shape.key))
    return job.queue.path, shapes[0] if len(shapes) == 1 else shapes


def text_of(shapes: Shape | tuple[Shape, ...]) -> str:
    """Return the shapes of a lane as text for users."""
    return shapes.text if isinstance(shapes, Shape) else " + ".join(shape.text for shape in shapes)


class Run:
    """Asks that share all of their key but its last part, in the order of this part and of their numbers."""

    __slots__ = ("items", "last", "prefix", "start")

    def __init__(self, prefix: Key) -> None:
        self.prefix = prefix
        self.items: list[Ask] = []
        self.start = 0
        """Asks before this position have left or moved."""
        self.last: Key = ()
        """The last part of the key of the last appended ask. A greater key can be appended too."""


class Lane:
    __slots__ = ("_entries", "_runs", "memory", "queue", "shapes", "size", "text")

    def __init__(self, queue: Queue, shapes: tuple[Shape, ...]) -> None:
        self.queue = queue
        self.shapes = shapes
        self.text = text_of(shapes)
        self.size = 0
        self.memory = LaneMemory()
        self._runs: list[Run] = []
        self._entries = 0

    def add(self, ask: Ask) -> None:
        asleep_at = self.memory.asleep_at
        self.touch(ask)
        if asleep_at is not None and not self.queue.order.by_running:
            self.memory.asleep_at = asleep_at
            self.memory.new_while_asleep.append(ask)
        self.size += 1
        self.queue.asks += 1

    def all_behind(self) -> bool:
        """True if all asks that joined while the lane slept are behind its ask without capacity."""
        if self.memory.no_room is None or not _stands(self.memory.no_room):
            return False
        first = self.key(self.memory.no_room)
        return all(self.key(ask) > first for ask in self.memory.new_while_asleep)

    def drop(self, asks: int = 1) -> None:
        """Count asks that have left their stages. Their entries are removed when they are passed over."""
        self.size -= asks
        self.queue.asks -= asks
        self.memory.asleep_at = None

    def touch(self, ask: Ask) -> None:
        """Give an ask the place it has now. Under some orders it changes with the running tasks of its job."""
        self.memory.asleep_at = None
        if self._entries > 2 * self.size + _SLACK:
            self._clear_out()
        key = self.key(ask)
        run, within = self._run(key[:-3]), key[-3:]
        items = run.items
        if not items or run.last < within:
            items.append(ask)
            run.last = within
            self._entries += 1
            return
        at = bisect_left(items, within, key=self._within)
        run.start = min(run.start, at)
        # An ask that was dropped and is back, as after a rollback, still has its entry. If the creation of an ask was
        # rolled back, the next one takes its number and its entry.
        while at < len(items) and self._within(items[at]) == within:
            if items[at] is ask or not _stands(items[at]):
                items[at] = ask
                return
            at += 1
        items.insert(at, ask)
        self._entries += 1

    def stir(self) -> None:
        """Have the next match look at the lane. Until then, the results of the last look stay."""
        if self.memory.asleep_at is not None:
            self.memory.asleep_at = _STIRRED

    def move(self, ask: Ask) -> None:
        """Give a replacement the place it has now: its stage fell below `min`, or reached it."""
        self.touch(ask)
        self.memory.moved = True

    def head(self) -> Ask | None:
        runs = self._runs
        while runs:
            run = runs[0]
            items, start = run.items, run.start
            while start < len(items):
                if self._is_current(run, items[start]):
                    run.start = start
                    return items[start]
                start += 1
            self._entries -= len(items)
            del runs[0]
        return None

    def after(self, passed: Collection[int]) -> tuple[Key, Ask] | None:
        """Return the place of the first ask that was not passed over, and the ask."""
        if not passed:
            head = self.head()
            return None if head is None else (self.key(head), head)
        for ask in self:
            if id(ask) not in passed:
                return self.key(ask), ask
        return None

    def resort(self) -> None:
        """Sort again after the order of the queue or the priority of a job has changed."""
        standing = {id(ask): ask for run in self._runs for ask in run.items if _stands(ask)}
        self._runs, self._entries = [], 0
        for ask in sorted(standing.values(), key=self.key):
            self.touch(ask)
        self.memory.asleep_at = None

    def __iter__(self) -> Iterator[Ask]:
        """Yield the asks in order."""
        moves = self.queue.order.by_running
        for run in self._runs:
            for ask in islice(run.items, run.start, None):
                if ask.stage.asks[ask.kind] is ask and (
                    (ask.kind != REPLACE and not moves) or self._is_current(run, ask)
                ):
                    yield ask

    def _clear_out(self) -> None:
        """Remove entries that left or moved and were never passed over. Otherwise a lane would grow with time."""
        for run in self._runs:
            run.items = [ask for ask in run.items if self._is_current(run, ask)]
            run.start = 0
        self._runs = [run for run in self._runs if run.items]
        self._entries = sum(len(run.items) for run in self._runs)

    def key(self, ask: Ask, more: int = 0) -> Key:
        """Return the place of an ask, comparable within its queue; the lowest goes first.

        `more` counts that number of further tasks of its job as running.
        """
        stage, kind, seq = ask.stage, ask.kind, ask.seq
        job, queue = stage.job, self.queue
        order = queue.order
        if kind == SCALE and not queue.settings.scale_first:
            kind = NEW
        below_min = kind == REPLACE and order.by_min and stage.below_min
        running = job.live + more if order.by_running else 0
        place = order.key(Standing(kind, job.priority, running, ask.asked, below_min))
        # An ask that was brought to the front goes first in its round, the latest one before earlier ones.
        return (ask.round, -ask.front, *place, ask.tie or seq, seq)

    def _within(self, ask: Ask) -> Key:
        return self.key(ask)[-3:]

    def _run(self, prefix: Key) -> Run:
        runs = self._runs
        if runs and runs[-1].prefix == prefix:
            return runs[-1]
        at = bisect_left(runs, prefix, key=lambda run: run.prefix)
        if at == len(runs) or runs[at].prefix != prefix:
            runs.insert(at, Run(prefix))
        return runs[at]

    def _is_current(self, run: Run, ask: Ask) -> bool:
        """True if the ask of an entry still belongs to its stage and has this place now."""
        if not _stands(ask):
            return False
        if ask.kind != REPLACE and not self.queue.order.by_running:
            return True
        return self.key(ask)[:-3] == run.prefix


def _stands(ask: Ask) -> bool:
    return ask.stage.asks[ask.kind] is ask
