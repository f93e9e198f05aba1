"""The error that functions of the server package raise, and conversions of other errors to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.core.errors import Refused
from fairlead.identity.smallfile import FileProblem
from fairlead.journal.journal import JournalError


class Failed(Exception):
    """Raised if an operation failed. `field` is the field of a document, if the problem is in one."""

    def __init__(self, problem: str, field: str = "") -> None:
        super().__init__(problem, field)
        self.problem = problem
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" if self.field else self.problem


@contextmanager
def refusals_as_failed() -> Iterator[None]:
    """Convert refusals of the core to `Failed`, which the command line prints."""
    try:
        yield
    except Refused as refusal:
        raise Failed(refusal.problem, refusal.field) from refusal


@contextmanager
def storage_problems_as_failed() -> Iterator[None]:
    """Convert problems of journals and files to `Failed`."""
    try:
        yield
    except (JournalError, FileProblem) as problem:
        raise Failed(str(problem)) from problem
