"""Requestor patterns, which choose the queue of a job that names none.

A pattern is a regular expression without backreferences, in which no group is repeated. Repetitions and groups are at
most `MAX_CHOICES`, so that matching a name takes little time and no pattern can block the writer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from fairlead.core.settings import Requestor

MAX_CHOICES = 2
"""Matching takes at most n ** (MAX_CHOICES + 1) steps, where n is the length of the name."""

MAX_CACHED = 10_000
"""Maximum number of users in the cache."""

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[*+?][+?]?|\{\d*,?\d*\}|.", re.DOTALL)
_REPEATS = ("*", "+", "?", "{")


def problem_of(pattern: str) -> str:
    """Return why a pattern is invalid; empty if it is valid."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as problem:
        return str(problem)
    tokens = _TOKEN.findall(pattern)
    repeats = [before for before, token in pairwise(tokens) if token.startswith(_REPEATS)]
    if "(" in repeats or re.search(r"\\\d", pattern):
        return "(? and backreferences are not supported"
    if ")" in repeats:
        return "a group cannot be repeated"
    choices = len(repeats) + tokens.count("(")
    return f"it has {choices} repetitions and groups, at most {MAX_CHOICES}" if choices > MAX_CHOICES else ""


class Requestors:
    """All patterns of a partition. The first matching pattern counts."""

    def __init__(self, requestors: Sequence[Requestor]) -> None:
        # Patterns of earlier versions, in an old journal, may not be valid.
        self._requestors = [(re.compile(each.match), each) for each in requestors if not problem_of(each.match)]
        self._cache: dict[str, Requestor | None] = {}

    def find(self, user: str) -> Requestor | None:
        """Return the first requestor that matches a user; None if none does."""
        if user not in self._cache:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            found = (requestor for pattern, requestor in self._requestors if pattern.search(user))
            self._cache[user] = next(found, None)
        return self._cache[user]
