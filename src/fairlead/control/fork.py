"""Runs a long computation on a copy of the state, in a forked process, while the writer goes on.

The forked process has the whole state as of its start and may change its copy. Only the bytes that it writes to a pipe
reach this process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress

MARGIN = 1.0
"""Seconds beyond its limit after which a forked process is killed."""


def fork(work: Callable[[], bytes], seconds: float) -> tuple[int, int]:
    """Fork a process that calls `work`. Return its pid, and the pipe with its result."""
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        # The child has no other threads, and uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        os.close(writable)
        os.set_blocking(readable, False)
        return pid, readable
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + MARGIN)
        gc.disable()  # a collection would touch, and so copy, all pages
        os.close(readable)
        _write(writable, work())
        status = 0
    finally:
        os._exit(status)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


async def result_of(pid: int, pipe: int, seconds: float) -> bytes:
    """Return all bytes that the process wrote; empty if it failed or took too long."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    parts: list[bytes] = []

    def arrived() -> None:
        with suppress(BlockingIOError):
            part = os.read(pipe, 65_536)
            parts.append(part)
            if not part and not over.done():
                over.set_result(None)

    loop.add_reader(pipe, arrived)
    try:
        async with asyncio.timeout(seconds + MARGIN):
            await over
    except TimeoutError:
        parts.clear()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)
        if not over.done():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        loop.run_in_executor(None, os.waitpid, pid, 0)
    return b"".join(parts)
