"""Garbage collector tuning for large states."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG, MIDDLE, OLD = 50_000, 20, 100


def spare_the_collector() -> None:
    """Exclude all current objects from garbage collection, and collect later ones less often.

    Call it when the state is loaded. The state has reference cycles, so each full collection would visit all of it:
    half a second for a million jobs. It would find nothing, because objects that leave the state have their reference
    cycles broken.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)


@contextmanager
def spared() -> Iterator[None]:
    """Context manager: apply `spare_the_collector` within a block, and undo it afterwards."""
    before = gc.get_threshold()
    spare_the_collector()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
