"""Time series, reduced to the number of points of a chart."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.model import Micros


def means(
    times: Sequence[Micros], values: Sequence[int], start: Micros, end: Micros, buckets: int
) -> list[tuple[float, float]]:
    """Return the mean of a step function in each of `buckets` equal parts of a span.

    Points are (middle of the part, mean). The value is 0 before the first change.
    """
    length = max(1, end - start) / buckets
    points: list[tuple[float, float]] = []
    at, value = 0, 0
    while at < len(times) and times[at] <= start:
        value = values[at]
        at += 1
    now = float(start)
    for number in range(buckets):
        until = start + length * (number + 1)
        total = 0.0
        while at < len(times) and times[at] < until:
            total += value * (times[at] - now)
            now, value = float(times[at]), values[at]
            at += 1
        total += value * (until - now)
        now = until
        points.append((start + length * (number + 0.5), total / length))
    return points
