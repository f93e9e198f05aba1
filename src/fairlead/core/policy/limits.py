"""Limits: arithmetic on (name, limit, used) triples of accounts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.core.why.reasons import OverLimit, TooManyJobs, first_over


def allowed(
    accounts: Iterable[tuple[str, Mapping[str, int] | None, Mapping[str, int]]], asked: Mapping[str, int]
) -> OverLimit | None:
    """Return None if `asked` fits under the limit of every account, otherwise the first limit that it exceeds."""
    for name, limit, used in accounts:
        if limit is not None:
            resource = first_over(limit, used, asked)
            if resource is not None:
                return OverLimit(name, resource, limit[resource], used.get(resource, 0), asked[resource])
    return None


def may_run(accounts: Iterable[tuple[str, int | None, int]]) -> TooManyJobs | None:
    """Return None if every account may have one more running job, otherwise the first that may not."""
    for name, most, running in accounts:
        if most is not None and running >= most:
            return TooManyJobs(name, most)
    return None
