"""Waiting for another thread or process."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 60.0
"""The longest wait of a test. No result depends on it."""


def until(true: Callable[[], Found], seconds: float = SECONDS, pause: float = 0.02) -> Found:
    """Call a function again and again until its result is true, and return that result."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s"
        time.sleep(pause)
    return found
