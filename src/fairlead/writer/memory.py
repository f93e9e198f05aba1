"""How a process that holds a large state should treat Python's cycle collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG, MIDDLE, OLD = 50_000, 20, 100


def spare_the_collector() -> None:
    """Keep the collector from walking through the state over and over; to be called once all of it is there.

    The state refers to itself, so each full collection visits all of it, half a second for a million jobs, and finds
    nothing: changes untie what leaves. What is there now is never visited again, and what comes later less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextmanager
def spared() -> Iterator[None]:
    """The same for as long as something lasts."""
    before = gc.get_threshold()
    spare_the_collector()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
