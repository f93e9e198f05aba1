"""A progress bar on standard error, shown only if that is a terminal."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

REFRESH = 0.1
"""Seconds between two updates of the bar."""


class Bar:
    """A progress bar with a name, a part done and details. Another name replaces the bar by a new one."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._name = ""
        self._due = 0.0

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            text, details = TextColumn("{task.description}"), TextColumn("{task.fields[details]}")
            columns = (text, BarColumn(), TaskProgressColumn(), details, TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
        return self

    def show(self, name: str, done: int, total: int, details: str = "") -> None:
        if self._bar is None or (name == self._name and monotonic() < self._due):
            return
        self._due = monotonic() + REFRESH
        if name != self._name:
            for task in self._bar.tasks:
                self._bar.update(task.id, visible=False)
            self._name = name
            self._bar.add_task(name, details="")
        self._bar.update(self._bar.tasks[-1].id, completed=done, total=total, details=details)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
