"""Lanes: the ordered asks of one leaf queue and one shape. Only the head of a lane is tried.

A job that starts whole is in the lane of its set of shapes.

A lane is derived from the asks of the stages. It consists of runs: a run is a list of asks whose keys differ only in
the last part, which is mostly the time of asking. Asks mostly arrive in this order, so adding one is an append and
costs eight bytes. The entry of an ask that left its stage or moved stays in its run until match passes it or the lane
is cleared. Asks move in two cases: under an order `by_running` (`fair`), when the number of running tasks of a job
changes; and replacements, when their stage falls below `min` or reaches it.

Under an order `by_user` (`fair`) each user has a line of asks, and the lines are ordered by the use of their users, so
no ask moves when a use changes. Under other orders all asks are in one line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from heapq import merge
from itertools import islice

from fairlead.core.memory import UNSEEN, LaneMemory, Verdict
from fairlead.core.model import NEW, REPLACE, SCALE, Account, Ask, Job, Micros, Queue
from fairlead.core.policy.order import Key, Standing
from fairlead.core.shape import Shape

_SLACK = 32
"""A lane is cleared of outdated entries when there are this many more than twice its asks."""

Place = tuple[int | str, ...]
"""The place of an ask in its queue. Places of one queue can be compared."""

LaneKey = tuple[str, Shape | tuple[Shape, ...]]
"""The queue path, and the shape or, if there are several, the sorted shapes."""


def lane_key(ask: Ask) -> LaneKey:
    stage = ask.stage
    return whole_key(stage.job) if ask.whole else (stage.job.queue.path, stage.shape)


def whole_key(job: Job) -> LaneKey:
    """Return the lane key of a job that starts whole."""
    shapes = tuple(sorted({stage.shape for stage in job.stages}, key=lambda shape: shape.key))
    return job.queue.path, shapes[0] if len(shapes) == 1 else shapes


def text_of(shapes: Shape | tuple[Shape, ...]) -> str:
    """Return the shapes of a lane as text for users."""
    return shapes.text if isinstance(shapes, Shape) else " + ".join(shape.text for shape in shapes)


class Run:
    """Asks with equal keys except for the last part, ordered by that part and by their numbers."""

    __slots__ = ("items", "last", "prefix", "running", "start")

    def __init__(self, prefix: Key, running: int) -> None:
        self.prefix = prefix
        self.running = running
        """The number of live tasks that the job of each entry had when it was added; -1 if they differ."""
        self.items: list[Ask] = []
        self.start = 0
        """Asks before this position have left or moved."""
        self.last: Key = ()
        """The last part of the key of the last appended ask."""


Line = list[Run]
"""The asks of one user, or of all users."""


class Lane:
    __slots__ = ("_entries", "_lines", "_use_of", "memory", "queue", "shapes", "size", "text")

    def __init__(self, queue: Queue, shapes: tuple[Shape, ...], use_of: Callable[[Account], int]) -> None:
        self.queue = queue
        self.shapes = shapes
        self.text = text_of(shapes)
        self.size = 0
        self.memory = LaneMemory()
        self._lines: dict[Account | None, Line] = {}
        """User → line. If users do not take turns, there is only the line of None."""
        self._use_of = use_of
        """Returns the use of a user, by which turns are ordered."""
        self._entries = 0

    def add(self, ask: Ask) -> None:
        verdict = self.memory.verdict
        self.touch(ask)
        if verdict is not None and not self.queue.order.moves:
            self.memory.verdict = verdict
            verdict.joined.append(ask)
        self.size += 1
        self.queue.asks += 1

    def no_capacity(self) -> Ask | None:
        """Return the first ask that found no capacity, if the lane sleeps."""
        return None if self.memory.verdict is None else self.memory.verdict.no_capacity

    def all_behind(self, verdict: Verdict) -> bool:
        """True if all asks that joined after a verdict are behind the ask that had no capacity."""
        first = verdict.no_capacity
        if first is None or not _waits(first):
            return False
        place = self.key(first)
        return all(self.key(ask) > place for ask in verdict.joined)

    def drop(self, asks: int = 1) -> None:
        """Count asks that have left their stages. Their entries are removed later."""
        self.size -= asks
        self.queue.asks -= asks
        self.memory.verdict = None

    def touch(self, ask: Ask) -> None:
        """Enter an ask at its present place, which may have changed."""
        self.memory.verdict = None
        if self._entries > 2 * self.size + _SLACK:
            self._clear_out()
        rank = self.rank(ask)
        run, within = self._run(ask, rank[:-3]), rank[-3:]
        if run.running != ask.stage.job.live:
            run.running = -1
        items = run.items
        if not items or run.last < within:
            items.append(ask)
            run.last = within
            self._entries += 1
            return
        at = bisect_left(items, within, key=self._within)
        run.start = min(run.start, at)
        # After a rollback, a restored ask still has its entry, and a new ask may get the number of an undone one.
        while at < len(items) and self._within(items[at]) == within:
            if items[at] is ask or not _waits(items[at]):
                items[at] = ask
                return
            at += 1
        items.insert(at, ask)
        self._entries += 1

    def stir(self) -> None:
        """Let the next match try the lane again. The verdict stays until then."""
        if self.memory.verdict is not None:
            self.memory.verdict.versions = UNSEEN

    def move(self, ask: Ask) -> None:
        """Enter a replacement at its present place, after its stage fell below `min` or reached it."""
        self.touch(ask)
        self.memory.moved = True

    # -- in order ------------------------------------------------------------------------------------------------

    def head(self) -> Ask | None:
        heads = [head for head in [self._head(user) for user in list(self._lines)] if head is not None]
        return heads[0] if len(heads) == 1 else min(heads, key=self.key, default=None)

    def users(self) -> list[Account | None]:
        """Return the accounts of users with asks, or only None if users do not take turns."""
        return [user for user in list(self._lines) if self._head(user) is not None]

    def has_new_order(self, verdict: Verdict, now: Micros) -> bool:
        """True if the order of users has changed since a verdict."""
        if len(self._lines) < 2:
            return False
        before = verdict.turns
        if before is not None and before[:2] == (self.queue.uses, now):
            return False
        places = {user: self.key(head) for user in self.users() if (head := self._head(user)) is not None}
        order = sorted(places, key=places.__getitem__)
        if before is None or before[2] != order:
            return True
        verdict.turns = (self.queue.uses, now, order)
        return False

    def line(self, user: Account | None) -> Iterator[Ask]:
        """Yield the asks of a user in order."""
        moves = self.queue.order.by_running
        for run in self._lines.get(user, ()):
            for ask in islice(run.items, run.start, None):
                if ask.stage.asks[ask.kind] is ask and (
                    (ask.kind != REPLACE and (not moves or ask.stage.job.live == run.running))
                    or self._is_current(run, ask)
                ):
                    yield ask

    def after(self, user: Account | None, passed: Collection[int]) -> Ask | None:
        """Return the first ask of a user that is not in `passed`."""
        if not passed:
            return self._head(user)
        for ask in self.line(user):
            if id(ask) not in passed:
                return ask
        return None

    def __iter__(self) -> Iterator[Ask]:
        """Yield the asks in order. The users are ordered by their present use."""
        lines = [self.line(user) for user in self._lines]
        if len(lines) == 1:
            return lines[0]
        uses = {user: self._use_of(user) for user in self._lines if user is not None}
        return merge(*lines, key=lambda ask: self.key(ask, use=uses[ask.stage.job.accounts[-1]]))

    def resort(self) -> None:
        """Sort again, after a change of the queue's order, a job's priority or users' accounts."""
        runs = [run for line in self._lines.values() for run in line]
        waiting = {id(ask): ask for run in runs for ask in run.items if _waits(ask)}
        self._lines, self._entries = {}, 0
        for ask in sorted(waiting.values(), key=self.rank):
            self.touch(ask)
        self.memory.verdict = None

    def key(self, ask: Ask, more: int = 0, use: int | None = None) -> Place:
        """Return the place of an ask in its queue; the lowest is first.

        `more` is a number of tasks of the job to count as running in addition. `use` is the use of its user, if known.
        """
        rank = self.rank(ask, more)
        user = self.user(ask)
        if user is None:
            return rank
        return (*rank[:2], self._use_of(user) if use is None else use, user.name, *rank[2:])

    def user(self, ask: Ask) -> Account | None:
        """Return the account of an ask's user, if users take turns."""
        return ask.stage.job.accounts[-1] if self.queue.order.by_user else None

    def rank(self, ask: Ask, more: int = 0) -> Key:
        """Return the place of an ask within its line."""
        stage, kind, seq = ask.stage, ask.kind, ask.seq
        job, queue = stage.job, self.queue
        order = queue.order
        if kind == SCALE and not queue.settings.scale_first:
            kind = NEW
        below_min = kind == REPLACE and order.by_min and stage.below_min
        running = job.live + more if order.by_running else 0
        place = order.key(Standing(kind, job.priority, running, ask.asked, below_min))
        # Asks that were brought to the front are first in their round, the latest before earlier ones.
        return (ask.round, -ask.front, *place, ask.tie or seq, seq)

    # -- inside --------------------------------------------------------------------------------------------------

    def _head(self, user: Account | None) -> Ask | None:
        runs = self._lines.get(user, [])
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
        self._lines.pop(user, None)
        return None

    def _clear_out(self) -> None:
        for user, line in list(self._lines.items()):
            for run in line:
                run.items = [ask for ask in run.items if self._is_current(run, ask)]
                run.start = 0
            self._lines[user] = [run for run in line if run.items]
            if not self._lines[user]:
                del self._lines[user]
        self._entries = sum(len(run.items) for line in self._lines.values() for run in line)

    def _within(self, ask: Ask) -> Key:
        return self.rank(ask)[-3:]

    def _run(self, ask: Ask, prefix: Key) -> Run:
        user = self.user(ask)
        runs = self._lines.get(user)
        if runs is None:
            runs = self._lines[user] = []
        if runs and runs[-1].prefix == prefix:
            return runs[-1]
        at = bisect_left(runs, prefix, key=lambda run: run.prefix)
        if at == len(runs) or runs[at].prefix != prefix:
            runs.insert(at, Run(prefix, ask.stage.job.live))
        return runs[at]

    def _is_current(self, run: Run, ask: Ask) -> bool:
        """True if the ask of an entry still belongs to its stage and still has this place."""
        if not _waits(ask):
            return False
        if ask.kind != REPLACE and (ask.stage.job.live == run.running or not self.queue.order.by_running):
            return True
        return self.rank(ask)[:-3] == run.prefix


def _waits(ask: Ask) -> bool:
    return ask.stage.asks[ask.kind] is ask
