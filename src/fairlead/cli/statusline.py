"""The progress of a job as one line at the end of a terminal: tasks done, running and failed, and the time left.

The line goes to standard error, and only if that is a terminal.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING

from fairlead.cli.output import lasted, plain

if TYPE_CHECKING:
    from fairlead.client import Client
    from fairlead.wire import api as wire

REFRESH = 1.0
"""Seconds between two refreshes."""
MINUTE = 60.0
ERASE = "\r\x1b[K"


class Pace:
    """Predicts the end of a job from the number of tasks that ended since the first call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def left(self, ended: int, tasks: int) -> float | None:
        """Return the seconds until all tasks have ended; None while no task has ended since the first call."""
        now = self._clock()
        if self._first is None:
            self._first = now, ended
        began, before = self._first
        if ended == before:
            return None
        return (now - began) / (ended - before) * (tasks - ended)


def line_of(job: wire.Job, pace: Pace) -> str:
    """Return the progress of a job."""
    tasks = sum(stage.count for stage in job.stages)
    running = sum(stage.running + stage.assigned for stage in job.stages)
    failed = sum(number for stage in job.stages for end, number in stage.ended.items() if end != "succeeded")
    ended = sum(number for stage in job.stages for number in stage.ended.values())
    parts = [f"{ended:,} of {tasks:,} tasks done", f"{running:,} running", f"{failed:,} failed"]
    left = pace.left(ended, tasks)
    if left is not None:
        parts.append(f"about {f'{ceil(left)}s' if left < MINUTE else lasted(left)} left")
    if not running and not ended and job.waits_for:
        parts.append(f"waits: {job.waits_for}")
    return f"job {job.id}: {', '.join(parts)}"


class StatusLine:
    """A line that stays at the end of the terminal. A thread that prints something hides the line meanwhile."""

    def __init__(self) -> None:
        self.shown = sys.stderr.isatty()
        """True if standard error is a terminal; otherwise nothing is drawn."""
        self._text = ""
        self._lock = threading.Lock()

    def draw(self, text: str) -> None:
        """Replace the line; an empty text removes it."""
        if self.shown:
            with self._lock:
                self._text = plain(text).replace("\n", " ")[: shutil.get_terminal_size().columns - 1]
                self._write(self._text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the line while lines are printed."""
        if not self.shown:
            yield
            return
        with self._lock:
            if self._text:
                self._write("")
            yield
            if self._text:
                self._write(self._text)

    def _write(self, text: str) -> None:
        sys.stderr.write(ERASE + text)
        sys.stderr.flush()


def wait_for(client: Client, job: str, deadline: float | None = None, before: str = "") -> wire.Job:
    """Wait until a job is over, with its progress on a terminal. Raise `TimeoutError` at the deadline.

    `before` is shown before the progress.
    """
    status = StatusLine()
    if not status.shown:
        return client.wait(job, None if deadline is None else max(0.0, deadline - time.monotonic()))
    pace = Pace()
    try:
        while True:
            seconds = REFRESH if deadline is None else max(0.0, min(REFRESH, deadline - time.monotonic()))
            view = client.job(job, seconds)
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")
            status.draw(before + line_of(view, pace))
    finally:
        status.draw("")


@contextmanager
def following(client: Client, job: str, status: StatusLine) -> Iterator[None]:
    """Show the progress of a job while its output is printed."""
    over = threading.Event()

    def refresh() -> None:
        from fairlead.client import Problem

        pace = Pace()
        while not over.wait(REFRESH):
            try:
                status.draw(line_of(client.job(job), pace))
            except Problem:
                return  # the command that waits for the job prints what is wrong

    thread = threading.Thread(target=refresh, daemon=True)
    if status.shown:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(REFRESH)
        status.draw("")
