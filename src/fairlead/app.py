"""Names the concrete classes together: what the command line starts, in terms that it may know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from fairlead.core.config import parse_config
from fairlead.core.errors import Refused
from fairlead.journal.base import JournalError
from fairlead.journal.sql import SqliteJournal
from fairlead.journal.verify import Progress, StreamReport, verify
from fairlead.views.config import config_view

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["Failed", "Progress", "StreamReport", "logger_to", "told", "understood", "verify_journal"]


class Failed(Exception):
    """What was asked for cannot be done; `field` is where in a document, if it is about one."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem, field)
        self.problem = problem
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


def verify_journal(path: str | os.PathLike[str], progress: Progress) -> Iterator[StreamReport]:
    """Check a journal, stream by stream."""
    try:
        with SqliteJournal(path, read_only=True) as journal:
            yield from verify(journal, progress)
    except JournalError as problem:
        raise Failed(str(problem)) from problem


@contextmanager
def told() -> Iterator[None]:
    """What is refused inside is told in terms that the command line knows."""
    try:
        yield
    except Refused as refusal:
        raise Failed(refusal.problem, refusal.field) from refusal


def understood(document: object, defaults: bool) -> dict[str, Any]:
    """A configuration as it is understood, in the form in which it is written."""
    with told():
        return config_view(parse_config(document), defaults)


def logger_to(
    out: TextIO, form: Literal["json", "console"], level: Literal["debug", "info", "warning", "error"] = "info"
) -> FilteringBoundLogger:
    """A logger for `views.logs`, for machines to read or for people. Nothing global is set by it."""
    import structlog  # takes a while, and most commands log nothing

    render: Any = structlog.processors.JSONRenderer()
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=out.isatty())
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(out),
        [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True), render],
        structlog.make_filtering_bound_logger(level),
        dict,
    )
    return logger
