"""Waiting for what another thread or process does. No result depends on the longest wait."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 60.0


def until(true: Callable[[], Found], seconds: float = SECONDS) -> Found:
    """Ask again until the answer is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
    return found
