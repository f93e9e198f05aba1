"""When what runs is expected to end. An estimate that was overrun doubles, until it lies ahead again."""

from __future__ import annotations


def expected_end(began: int, estimate: int | None, now: int) -> int | None:
    """None if nothing is known. What is estimated to take no time at all ends as soon as it can."""
    if estimate is None:
        return None
    overrun = now - began
    if not estimate:
        return now if overrun <= 0 else now + 1
    while estimate <= overrun:
        estimate *= 2
    return began + estimate
