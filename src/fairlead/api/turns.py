"""Work of requests that waits for a disk: in threads of its own, and little of one user at a time.

Many slow requests of one user delay only that user. The server's own work has other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from fairlead.api.service import REQUEST_USER

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

THREADS = 32
EACH = 2
"""Threads that one user has at a time. Operators have no limit."""


class Turns:
    """Lets each user do a number of things at a time; further ones wait."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._users: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}
        """User → what limits it, and an entry for each of its requests here."""

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Wait for a turn of the user of this request, and keep it."""
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
    """Runs functions that wait for a disk."""

    def __init__(self) -> None:
        self._turns = Turns(EACH)
        self._threads = ThreadPoolExecutor(THREADS, "requests")

    async def run(self, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Return the result of a function, called in a thread."""
        async with self._turns.take():
            return await asyncio.wrap_future(self._threads.submit(work, *args, **kwargs))
