"""Task indices in messages and documents: bounds of spans, as start, end, start, end, …; an end is not in its span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain


def each_index(spans: Sequence[int]) -> Iterator[int]:
    return chain.from_iterable(map(range, spans[::2], spans[1::2]))


def spans_of(numbers: list[int]) -> tuple[int, ...]:
    """Return indices as the bounds of spans, sorted. Sorts the list in place."""
    numbers.sort()
    bounds: list[int] = []
    for number in numbers:
        if bounds and bounds[-1] == number:
            bounds[-1] = number + 1
        else:
            bounds += (number, number + 1)
    return tuple(bounds)


def text_of(spans: Sequence[int]) -> str:
    """Return indices as text, such as `0-3,7`."""
    pairs = zip(spans[::2], spans[1::2], strict=True)
    return ",".join(str(start) if end - start == 1 else f"{start}-{end - 1}" for start, end in pairs)
