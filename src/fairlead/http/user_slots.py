"""Runs blocking work of requests in threads, with a limit for each user.

Slow requests of one user thus delay only that user. The server's own work has other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from fairlead.control.partition import REQUEST_USER

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

THREADS = 32
EACH = 2
"""Largest number of threads for one user at a time. Operators have no limit."""


class Turns:
    """Lets at most `each` requests of a user run at a time. Further requests wait."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._users: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}
        """User → a semaphore, and a list with an entry for each request that runs or waits."""

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for one of the user's slots, and hold it."""
        user = REQUEST_USER.get()
        if not user:
            yield
            return
        turn, here = self._users.setdefault(user, (asyncio.Semaphore(self._each), []))
        here.append(None)
        try:
            async with turn:
                yield
        finally:
            here.pop()
            if not here:
                del self._users[user]


class Threads:
    """Runs blocking functions in threads."""

    def __init__(self) -> None:
        self._turns = Turns(EACH)
        self._threads = ThreadPoolExecutor(THREADS, "requests")

    async def run(self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Call a function in a thread and return its result."""
        async with self._turns.take():
            return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))
