"""Periodic work of a server: removes old output and old history, and reads documents that other servers changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from structlog.typing import FilteringBoundLogger

from fairlead.core.model import Micros
from fairlead.history.outputs import OutputStore
from fairlead.history.store import History
from fairlead.identity.smallfile import FileProblem
from fairlead.journal.journal import JournalError

REFRESH = 2.0
"""Seconds between two checks for changes by other servers."""
SWEEP = 3600.0
"""Seconds between two removals of old output."""


async def refresh(documents: Sequence[Callable[[], None]]) -> None:
    """Reload tokens, keys and secrets from time to time, because other servers change them."""
    while True:
        await asyncio.sleep(REFRESH)
        for reload in documents:
            with suppress(FileProblem):  # the database does not answer
                await asyncio.to_thread(reload)


async def sweep(
    outputs: OutputStore, history: History, now: Callable[[], Micros], age: Micros, log: FilteringBoundLogger
) -> None:
    """Remove old output, and history older than `age`, at the start and from time to time. 0 is no age limit."""
    while True:
        try:
            await asyncio.to_thread(outputs.shrink)
        except OSError as problem:
            log.warning("old output not removed", problem=str(problem))
        try:
            oldest = now() - age if age else 0
            dropped = await asyncio.to_thread(history.drop_before, oldest) if oldest > 0 else 0
            if dropped:
                log.info("old history removed", jobs=dropped)
        except JournalError as problem:
            log.warning("old history not removed", problem=str(problem))
        await asyncio.sleep(SWEEP)
