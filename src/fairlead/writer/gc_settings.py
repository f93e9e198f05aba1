"""Garbage collector tuning for large states."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG, MIDDLE, OLD = 50_000, 20, 100


def spare_the_collector() -> None:
    """Exclude all existing objects from garbage collection, and collect later objects less often.

    Call it after the state was loaded. A full collection would visit the whole state, half a second for a million jobs,
    and find nothing: the reference cycles of objects are broken when they leave the state.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextmanager
def spared() -> Iterator[None]:
    """Apply `spare_the_collector` within a block, and undo it afterwards."""
    before = gc.get_threshold()
    spare_the_collector()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
