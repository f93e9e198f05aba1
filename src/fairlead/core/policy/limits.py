"""Arithmetic of the limits of accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.why.reasons import OverLimit, TooManyJobs, first_over


def allowed(
    accounts: Iterable[tuple[str, Mapping[str, int] | None, Mapping[str, int]]], asked: Mapping[str, int]
) -> OverLimit | None:
    """Return the first limit that `asked` exceeds, or None. An account is given as its name, limit and use."""
    for name, limit, used in accounts:
        if limit is not None:
            resource = first_over(limit, used, asked)
            if resource is not None:
                return OverLimit(name, resource, limit[resource], used.get(resource, 0), asked[resource])
    return None


def may_run(accounts: Iterable[tuple[str, int | None, int]]) -> TooManyJobs | None:
    """Return the first `max_jobs` that one more running job exceeds, or None. An account is given as its name,
    `max_jobs` and number of running jobs."""
    for name, most, running in accounts:
        if most is not None and running >= most:
            return TooManyJobs(name, most)
    return None
