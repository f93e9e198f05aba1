"""Garbage collector tuning for large states."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG, MIDDLE, OLD = 50_000, 20, 100


def spare_the_collector() -> None:
    """Exclude all current objects from garbage collection, and collect later ones less often. Call it after loading.

    The state has reference cycles, so each full collection visits all of it, in half a second for a million jobs. It
    finds nothing, because changes break the cycles of objects that leave the state.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextmanager
def spared() -> Iterator[None]:
    """Do the same for the duration of a block."""
    before = gc.get_threshold()
    spare_the_collector()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
