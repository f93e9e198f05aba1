"""Sets of task indices as spans: a million waiting tasks take two numbers.

A flat is a strictly increasing tuple (start, end, start, end, …): the first index of each span and the index after its
last one. Spans are sorted, disjoint and never adjacent. Journal records contain flats. `Ranges` is the mutable set; the
functions after it work on flats.

An index is in the set if an odd number of bounds is at or below it. The symmetric difference of two sets is a merge of
their bounds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import lt
from typing import Any, TypeAlias

from fairlead.core.errors import Refused

Flat: TypeAlias = tuple[int, ...]

# Measured: rewriting a bound costs about 50 ns, and changing one span 1 to 3 µs; see `_change`.
_WIDE = 20


class Ranges:
    """A mutable set of indices. Its methods expect valid flats; see `check_flat`."""

    __slots__ = ("_bounds", "_count")

    def __init__(self, flat: Sequence[int] = ()) -> None:
        _expect_flat(flat)
        self._bounds = list(flat)
        self._count = count(flat)

    @classmethod
    def from_indices(cls, numbers: Iterable[int]) -> "Ranges":
        bounds: list[int] = []
        for index in sorted(set(numbers)):
            if bounds and bounds[-1] == index:
                bounds[-1] = index + 1
            else:
                bounds += (index, index + 1)
        return cls(bounds)

    def flat(self) -> Flat:
        return tuple(self._bounds)

    def copy(self) -> "Ranges":
        other = Ranges.__new__(Ranges)
        other._bounds = self._bounds.copy()
        other._count = self._count
        return other

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __contains__(self, index: int) -> bool:
        return bisect_right(self._bounds, index) & 1 == 1

    def __iter__(self) -> Iterator[int]:
        return indices(self._bounds)

    def __eq__(self, other: object) -> bool:
        return self._bounds == other._bounds if isinstance(other, Ranges) else NotImplemented

    # Not hashable, because it is mutable.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return text(self._bounds) or "empty"

    def first_index(self) -> int:
        if not self._bounds:
            raise ValueError("no first index: the ranges are empty")
        return self._bounds[0]

    def first(self, k: int) -> Flat:
        """Return the `k` lowest indices, or all if there are fewer."""
        bounds = self._bounds
        # By far the most common case: the first span is large enough.
        if k > 0 and bounds and k <= bounds[1] - bounds[0]:
            return (bounds[0], bounds[0] + k)
        return _head(bounds, k) if k < self._count else tuple(bounds)

    def overlap(self, flat: Sequence[int]) -> Flat:
        return _intersection(self._bounds, flat)

    def add(self, flat: Sequence[int]) -> None:
        """Add indices. Raise ValueError and change nothing if any of them is already in the set."""
        if len(flat) != 2:
            self._change(flat, 1, "already there")
            return
        start, end = flat
        bounds = self._bounds
        at = bisect_right(bounds, start)
        if at & 1 or not 0 <= start < end or (at < len(bounds) and bounds[at] < end):
            raise self._refusal(flat, "already there")
        joins_before = at > 0 and bounds[at - 1] == start
        if at < len(bounds) and bounds[at] == end:
            if joins_before:
                del bounds[at - 1 : at + 1]
            else:
                bounds[at] = start
        elif joins_before:
            bounds[at - 1] = end
        else:
            bounds[at:at] = flat
        self._count += end - start

    def remove(self, flat: Sequence[int]) -> None:
        """Remove indices. Raise ValueError and change nothing if any of them is not in the set."""
        if len(flat) != 2:
            self._change(flat, -1, "not there")
            return
        start, end = flat
        bounds = self._bounds
        at = bisect_right(bounds, start)
        if not at & 1 or start >= end or bounds[at] < end:
            raise self._refusal(flat, "not there")
        if bounds[at - 1] == start:
            if bounds[at] == end:
                del bounds[at - 1 : at + 1]
            else:
                bounds[at - 1] = end
        elif bounds[at] == end:
            bounds[at] = start
        else:
            bounds[at:at] = flat
        self._count -= end - start

    def discard_from(self, start: int) -> Flat:
        """Remove all indices from `start` on, and return them."""
        bounds = self._bounds
        at = bisect_left(bounds, start)
        if at & 1 and bounds[at] > start:
            removed = (start, *bounds[at:])
            bounds[at:] = (start,)
        else:
            at += at & 1
            removed = tuple(bounds[at:])
            del bounds[at:]
        self._count -= count(removed)
        return removed

    def _change(self, flat: Sequence[int], sign: int, trouble: str) -> None:
        """Add or remove several spans: one by one if they are far apart, otherwise together.

        The symmetric difference adds indices that are not in the set and removes those that are. So the operation is
        valid only if the size changes by the size of `flat`.
        """
        if not flat:
            return
        _expect_flat(flat)
        bounds = self._bounds
        low, high = bisect_left(bounds, flat[0]), bisect_right(bounds, flat[-1])
        if high - low > _WIDE * len(flat):
            if _intersection(bounds, flat) != (() if sign > 0 else tuple(flat)):
                raise self._refusal(flat, trouble)
            change = self.add if sign > 0 else self.remove
            for at in range(0, len(flat), 2):
                change(flat[at : at + 2])
            return
        window = bounds[low:high]
        merged = sorted([*window, *flat])
        meeting = set(flat).intersection(window)
        if meeting:
            merged = [bound for bound in merged if bound not in meeting]
        # If the window begins inside a span, it starts with an end, which inverts the sign of the alternating sum.
        gain = count(window) - count(merged) if low & 1 else count(merged) - count(window)
        if gain != sign * count(flat):
            raise self._refusal(flat, trouble)
        bounds[low:high] = merged
        self._count += gain

    def _refusal(self, flat: Sequence[int], trouble: str) -> ValueError:
        _expect_flat(flat)
        here = _intersection(self._bounds, flat)
        at_fault = here if trouble == "already there" else difference(tuple(flat), here)
        return ValueError(f"{trouble}: {text(at_fault[:20])}{',…' if len(at_fault) > 20 else ''}")


class SharedRanges(Ranges):
    """Immutable ranges that several owners share. A copy is a plain `Ranges`."""

    __slots__ = ()

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError("shared ranges cannot be altered; take a copy")

    add = _refuse
    remove = _refuse
    discard_from = _refuse


def count(flat: Sequence[int]) -> int:
    if len(flat) == 2:
        return flat[1] - flat[0]
    return sum(flat[1::2]) - sum(flat[::2])


def indices(flat: Sequence[int]) -> Iterator[int]:
    return chain.from_iterable(map(range, flat[::2], flat[1::2]))


def split(flat: Sequence[int], k: int) -> tuple[Flat, Flat]:
    """Return the `k` lowest indices (all if there are fewer), and the rest."""
    head = _head(flat, k)
    at = len(head)
    if not head or head[-1] == flat[at - 1]:
        return head, tuple(flat[at:])
    return head, (head[-1], *flat[at - 1 :])


def difference(a: Flat, b: Flat) -> Flat:
    """Return the indices that are in `a` and not in `b`."""
    if a == b:
        return ()
    shared = _intersection(a, b)
    if not shared:
        return a
    rest = Ranges(a)
    rest.remove(shared)
    return rest.flat()


def text(flat: Sequence[int]) -> str:
    """Return a short text such as `0-7,9`."""
    spans = zip(flat[::2], flat[1::2], strict=True)
    return ",".join(str(start) if end - start == 1 else f"{start}-{end - 1}" for start, end in spans)


def check_flat(flat: object, field: str) -> None:
    """Refuse input that is not a valid flat."""
    if type(flat) is tuple and len(flat) == 2 and type(flat[0]) is type(flat[1]) is int and 0 <= flat[0] < flat[1]:
        return  # one span, by far the most common case
    if not isinstance(flat, tuple | list):
        raise Refused(field, "ranges must be a list of numbers: write [start, end, …]")
    if len(flat) % 2:
        raise Refused(field, f"ranges have {len(flat)} numbers: write pairs of start and end")
    previous = -1
    for at, bound in enumerate(flat):
        if isinstance(bound, bool) or not isinstance(bound, int):
            raise Refused(f"{field}[{at}]", "a bound of a range must be a whole number: write 0 or more")
        if bound < 0:
            raise Refused(f"{field}[{at}]", "a bound of a range is negative: write 0 or more")
        if bound <= previous:
            problem = (
                "a range must end after its start: write a larger end"
                if at % 2
                else "ranges must be sorted with a gap between them: sort and join them"
            )
            raise Refused(f"{field}[{at}]", problem)
        previous = bound


def _expect_flat(flat: Sequence[int]) -> None:
    """Raise ValueError for an invalid flat, which only a bug can produce."""
    if len(flat) == 2:
        sound = 0 <= flat[0] < flat[1]
    else:
        sound = not flat or (not len(flat) & 1 and flat[0] >= 0 and all(map(lt, flat, islice(flat, 1, None))))
    if not sound:
        raise ValueError("not sorted disjoint spans with gaps between them")


def _head(flat: Sequence[int], k: int) -> Flat:
    for at in range(0, len(flat), 2):
        if k <= 0:
            return tuple(flat[:at])
        cut = flat[at] + k
        if cut < flat[at + 1]:
            return (*flat[: at + 1], cut)
        k = cut - flat[at + 1]
    return tuple(flat)


def _intersection(bounds: Sequence[int], flat: Sequence[int]) -> Flat:
    # Each span of the shorter list cuts a slice out of the longer one.
    if len(flat) > len(bounds):
        bounds, flat = flat, bounds
    shared: list[int] = []
    for at in range(0, len(flat), 2):
        start, end = flat[at], flat[at + 1]
        low, high = bisect_right(bounds, start), bisect_left(bounds, end)
        if low & 1:
            shared.append(start)
        shared += bounds[low:high]
        if high & 1:
            shared.append(end)
    return tuple(shared)
