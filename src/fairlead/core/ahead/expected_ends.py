"""`Forecast`: the expected ends of running tasks, in order, updated as tasks start and end.

A forecast is derived from the state and exists only while backfill needs it. It leaves out tasks without an estimate or
time limit, because their end is unknown.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from fairlead.core.model import Allocation, Micros, Terms
from fairlead.core.policy.run_times import expected_end, learned_end


def guess(terms: Terms) -> Micros | None:
    """Return the expected run time of a task of a stage; None if it is unknown."""
    return terms.estimate if terms.estimate is not None else terms.time_limit


def end_of(allocation: Allocation, now: Micros) -> Micros | None:
    """Return the expected end of an allocation; None if it is unknown."""
    if allocation.expected is None:
        return given_end_of(allocation, now)
    return learned_end(allocation.began, allocation.expected, guess(allocation.stage.terms), now)


def given_end_of(allocation: Allocation, now: Micros) -> Micros | None:
    """Return the end of an allocation by its submitted estimate or time limit; None if it is unknown."""
    return expected_end(allocation.began, guess(allocation.stage.terms), now)


class Forecast:
    def __init__(
        self,
        allocations: Iterable[Allocation],
        now: Micros,
        learned: bool = False,
        ends: Callable[[Allocation, Micros], Micros | None] = end_of,
    ) -> None:
        """With `learned`, also keep a second forecast, which uses only submitted estimates and time limits."""
        self.given: Forecast | None = Forecast((), now, ends=given_end_of) if learned else None
        self._end_of = ends
        self._ends: list[tuple[Micros, int]] = []
        self._known: dict[int, tuple[Micros, Allocation]] = {}
        self.version = 0
        """Grows with every change of the forecast."""
        for allocation in allocations:
            self.add(allocation, now)

    def add(self, allocation: Allocation, now: Micros) -> None:
        terms = allocation.stage.terms
        if terms.estimate is None and terms.time_limit is None and allocation.expected is None:
            return  # the end is unknown
        if self.given is not None:
            self.given.add(allocation, now)
        self._add(allocation, now)

    def _add(self, allocation: Allocation, now: Micros) -> None:
        end = self._end_of(allocation, now)
        if end is not None and not allocation.slots:
            self._known[allocation.id] = (end, allocation)
            insort(self._ends, (end, allocation.id))
            self.version += 1

    def drop(self, allocation: Allocation) -> None:
        if self.given is not None:
            self.given.drop(allocation)
        self._drop(allocation)

    def _drop(self, allocation: Allocation) -> None:
        entry = self._known.pop(allocation.id, None)
        if entry is not None:
            del self._ends[bisect_left(self._ends, (entry[0], allocation.id))]
            self.version += 1

    def __len__(self) -> int:
        return len(self._ends)

    def is_late(self, now: Micros) -> bool:
        """True if an allocation should have ended already."""
        return bool(self._ends) and self._ends[0][0] <= now

    def move(self, allocation: Allocation, now: Micros) -> bool:
        """Update an allocation whose state changed. True if its expected end changed."""
        before = self._known.get(allocation.id)
        if self.given is not None:
            self.given.move(allocation, now)
        if before is not None and before[0] == self._end_of(allocation, now) and not allocation.slots:
            self._known[allocation.id] = (before[0], allocation)
            return False
        self._drop(allocation)
        self._add(allocation, now)
        after = self._known.get(allocation.id)
        return (before and before[0]) != (after and after[0])

    def first(self, now: Micros) -> Micros | None:
        """Return the earliest expected end."""
        self._put_off_late(now)
        return self._ends[0][0] if self._ends else None

    def in_order(self, now: Micros) -> Iterator[tuple[Micros, Allocation]]:
        """Yield the allocations with their expected ends, the earliest first."""
        self._put_off_late(now)
        for end, number in self._ends:
            yield end, self._known[number][1]

    def _put_off_late(self, now: Micros) -> None:
        """Give each allocation that runs beyond its expected end a later one."""
        if not self.is_late(now):
            return
        late = [self._known[number][1] for _, number in self._ends[: bisect_left(self._ends, (now + 1, 0))]]
        for allocation in late:
            self._drop(allocation)
        for allocation in late:
            self._add(allocation, now)
