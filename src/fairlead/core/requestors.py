"""Requestor patterns: which queue a job goes to that names none.

They are matched by RE2, in time that grows with the name and never explodes, so that no pattern can hold up the writer.
What RE2 does not have, such as references back, is refused when the configuration is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import re2  # type: ignore[import-untyped]

from fairlead.core.settings import Requestor

_QUIET = re2.Options()
_QUIET.log_errors = False

MANY = 10_000
"""What was found for so many users is kept."""


def problem_of(pattern: str) -> str:
    """Why a pattern cannot be used; empty if it can."""
    try:
        re2.compile(pattern, _QUIET)
    except re2.error as problem:
        text = problem.args[0] if problem.args else problem
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return ""


class Requestors:
    """All patterns of a partition, tried at once; the first that matches counts."""

    def __init__(self, requestors: Sequence[Requestor]) -> None:
        self._requestors = requestors
        self._patterns = re2.Set.SearchSet(_QUIET)
        for each in requestors:
            self._patterns.Add(each.match)
        if requestors:
            self._patterns.Compile()
        self._found: dict[str, Requestor | None] = {}

    def find(self, user: str) -> Requestor | None:
        if user in self._found:
            return self._found[user]
        matches = self._patterns.Match(user) if self._requestors else []
        if len(self._found) >= MANY:
            self._found.clear()
        found = self._found[user] = self._requestors[min(matches)] if matches else None
        return found
