"""Requestor patterns, which choose the queue of a job that names none.

RE2 matches them in linear time, so that no pattern can block the writer. Features that RE2 lacks, such as
backreferences, are refused when the configuration is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import re2  # type: ignore[import-untyped]

from fairlead.core.settings import Requestor

_QUIET = re2.Options()
_QUIET.log_errors = False

MAX_CACHED = 10_000
"""Maximum number of users in the cache."""


def problem_of(pattern: str) -> str:
    """Return why a pattern is invalid; empty if it is valid."""
    try:
        re2.compile(pattern, _QUIET)
    except re2.error as problem:
        text = problem.args[0] if problem.args else problem
        return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return ""


class Requestors:
    """All patterns of a partition, matched at once. The first matching pattern counts."""

    def __init__(self, requestors: Sequence[Requestor]) -> None:
        self._requestors = requestors
        self._patterns = re2.Set.SearchSet(_QUIET)
        for requestor in requestors:
            self._patterns.Add(requestor.match)
        if requestors:
            self._patterns.Compile()
        self._cache: dict[str, Requestor | None] = {}

    def find(self, user: str) -> Requestor | None:
        """Return the first requestor that matches a user; None if none does."""
        if user in self._cache:
            return self._cache[user]
        matches = self._patterns.Match(user) if self._requestors else []
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        requestor = self._cache[user] = self._requestors[min(matches)] if matches else None
        return requestor
