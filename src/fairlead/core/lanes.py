"""Lanes: the ordered asks of one leaf queue and one shape. Only the head of a lane is tried.

A job that starts whole stands in the lane of its set of shapes.

A lane is derived from the asks of the stages. It is kept in runs: asks that differ only in the last
part of their key (mostly when they were asked for) stand in one list, and since they arrive in that order, adding one
is an append and costs eight bytes. An ask that left its stage, or has another place now, stays in its run until
the run is passed over or cleared out. Two kinds of places change: under an order `by_running` (`fair`) all, with what a
job runs, and those of replacements, when their stage falls below `min` or reaches it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from itertools import islice

from fairlead.core.model import NEW, REPLACE, SCALE, Ask, Job, Queue
from fairlead.core.policy.order import Key
from fairlead.core.shape import Shape

# A lane is cleared of dead entries when they are more than half of it, and at least so many.
_SLACK = 32

_STIRRED = (-1, -1)
"""What no lane has seen when it fell asleep."""


LaneKey = tuple[str, Shape | tuple[Shape, ...]]
"""The queue and the shape; or the shapes in their order, if there are several."""


def lane_key(ask: Ask) -> LaneKey:
    stage = ask.stage
    return whole_key(stage.job) if ask.whole else (stage.job.queue.path, stage.shape)


def whole_key(job: Job) -> LaneKey:
    """Where a job that starts whole waits. If its stages have one shape, that is among all others of that shape."""
    shapes = tuple(sorted({stage.shape for stage in job.stages}, key=lambda shape: shape.key))
    return job.queue.path, shapes[0] if len(shapes) == 1 else shapes


def text_of(shapes: Shape | tuple[Shape, ...]) -> str:
    """What a lane is of, for people."""
    return shapes.text if isinstance(shapes, Shape) else " + ".join(shape.text for shape in shapes)


class Run:
    """Asks that share all of their key but its last part, in the order of that and of their numbers."""

    __slots__ = ("items", "last", "prefix", "start")

    def __init__(self, prefix: Key) -> None:
        self.prefix = prefix
        self.items: list[Ask] = []
        self.start = 0
        """What stands before this has left or moved."""
        self.last: Key = ()
        """The rest of the key of the last one that was appended: whoever is beyond it can be appended too."""


class Lane:
    __slots__ = (
        "_entries",
        "_runs",
        "asleep_at",
        "blocked",
        "claims_at",
        "limited",
        "moved",
        "new_while_asleep",
        "no_room",
        "queue",
        "shapes",
        "size",
        "text",
        "unclaimed",
        "unheld",
        "woken_by_room",
    )

    def __init__(self, queue: Queue, shapes: tuple[Shape, ...]) -> None:
        self.queue = queue
        self.shapes = shapes
        self.text = text_of(shapes)
        self.size = 0
        self.asleep_at: tuple[int, int] | None = None
        """What the lane saw when nothing of it could be placed: it sleeps while that stands."""
        self.new_while_asleep: list[Ask] = []
        """Who came while it slept; to those who were there before, that makes no difference."""
        self.woken_by_room = False
        """Whether nothing but room may have woken it: what was said of its first one is still right, without room."""
        self.blocked: Ask | None = None
        """Who found no room, and holds up those behind it only for as long as its limits would let it start."""
        self.no_room: Ask | None = None
        """Who found no room when the lane was last looked at: the first one that is allowed to start."""
        self.limited: Ask | None = None
        """Likewise, who would have been beyond a limit: the first one."""
        self.unheld: tuple[object, bool] | None = None
        """What there was when nodes were last looked for, and whether nobody else may have any meanwhile."""
        self.moved = False
        """True if asks may have got other places since the turns of a match began: walks through the lane are void."""
        self.unclaimed: dict[int, tuple[tuple[int, ...], int]] = {}
        """By the numbers of asks: the state when no tasks were found to stop, and when to look again anyway."""
        self.claims_at: int | None = None
        """When an ask of the lane may claim that could not when it was looked at: after a pause, or protection."""
        self._runs: list[Run] = []
        self._entries = 0

    def add(self, ask: Ask) -> None:
        asleep_at = self.asleep_at
        self.touch(ask)
        if asleep_at is not None and not self.queue.order.by_running:
            self.asleep_at = asleep_at
            self.new_while_asleep.append(ask)
        self.size += 1
        self.queue.asks += 1

    def all_behind(self) -> bool:
        """Whether all who came while it slept stand behind who found no room, and so are not tried before that is."""
        if self.no_room is None or not _stands(self.no_room):
            return False
        first = self.key(self.no_room)
        return all(self.key(each) > first for each in self.new_while_asleep)

    def drop(self, asks: int = 1) -> None:
        """Say that so many asks have left their stages; their entries go when they are passed over."""
        self.size -= asks
        self.queue.asks -= asks
        self.asleep_at = None

    def touch(self, ask: Ask) -> None:
        """Give an ask the place it has now. Under some orders that changes with what its job runs."""
        self.asleep_at = None
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
        # One that was dropped and is back, as after a rollback, never lost its entry; and one that was rolled back for
        # good leaves its number, and its entry, to the next.
        while at < len(items) and self._within(items[at]) == within:
            if items[at] is ask or not _stands(items[at]):
                items[at] = ask
                return
            at += 1
        items.insert(at, ask)
        self._entries += 1

    def stir(self) -> None:
        """Have the next match look at the lane. Until then, what was found out about its asks stands."""
        if self.asleep_at is not None:
            self.asleep_at = _STIRRED

    def move(self, ask: Ask) -> None:
        """Give a replacement the place it has now: its stage fell below `min`, or reached it."""
        self.touch(ask)
        self.moved = True

    def head(self) -> Ask | None:
        runs = self._runs
        while runs:
            run = runs[0]
            items, start = run.items, run.start
            while start < len(items):
                if self._counts(run, items[start]):
                    run.start = start
                    return items[start]
                start += 1
            self._entries -= len(items)
            del runs[0]
        return None

    def after(self, passed: Collection[int]) -> tuple[Key, Ask] | None:
        """The first ask that is not among those passed over, and its place."""
        if not passed:
            head = self.head()
            return None if head is None else (self.key(head), head)
        for ask in self:
            if id(ask) not in passed:
                return self.key(ask), ask
        return None

    def resort(self) -> None:
        """Take up a new order of the queue, or a new priority of a job."""
        standing = {id(each): each for run in self._runs for each in run.items if _stands(each)}
        self._runs, self._entries = [], 0
        for each in sorted(standing.values(), key=self.key):
            self.touch(each)
        self.asleep_at = None

    def __iter__(self) -> Iterator[Ask]:
        """The asks in order."""
        moves = self.queue.order.by_running
        for run in self._runs:
            for each in islice(run.items, run.start, None):
                if each.stage.asks[each.kind] is each and (
                    (each.kind != REPLACE and not moves) or self._counts(run, each)
                ):
                    yield each

    def _clear_out(self) -> None:
        """Drop what left or moved but was never passed over, so that a lane grows with what waits and not with time."""
        for run in self._runs:
            run.items = [each for each in run.items if self._counts(run, each)]
            run.start = 0
        self._runs = [run for run in self._runs if run.items]
        self._entries = sum(len(run.items) for run in self._runs)

    def key(self, ask: Ask, more: int = 0) -> Key:
        """The place of an ask, to compare with others of the same queue; the lowest goes first.

        With `more`, as if this number of tasks of its job ran beside those that do.
        """
        stage, kind, seq = ask.stage, ask.kind, ask.seq
        job, queue = stage.job, self.queue
        order = queue.order
        if kind == SCALE and not queue.settings.scale_first:
            kind = NEW
        below_min = kind == REPLACE and order.by_min and stage.below_min
        running = job.live + more if order.by_running else 0
        place = order.key(kind, job.priority, running, ask.asked, below_min)
        # Who was brought to the front goes first in its round, the last one brought before the others.
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

    def _counts(self, run: Run, ask: Ask) -> bool:
        """Whether an entry is of an ask that stands, and at the place it has now."""
        if not _stands(ask):
            return False
        if ask.kind != REPLACE and not self.queue.order.by_running:
            return True
        return self.key(ask)[:-3] == run.prefix


def _stands(ask: Ask) -> bool:
    return ask.stage.asks[ask.kind] is ask
