"""Past use with a half-life, in whole numbers: the weights of `share_memory`.

Each moment counts twice as much as the moment one half-life before it. At k half-lives and a rest r after a landmark,
the weight is 2^k × (1 + r ÷ half-life). Only ratios of weights matter, so the landmark may be moved by whole half-lives
at any time. docs/shares.md has a worked example.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.resources import Vector

TASKS = ""
"""The key for the number of tasks, beside the names of resources."""


def total_weight(elapsed: int, half_life: int) -> int:
    """Return the total weight of all time until `elapsed` after the landmark, including all time before the landmark.

    It is multiplied by 2 × half-life to be a whole number. `elapsed` is not below 0.
    """
    doublings, rest = divmod(elapsed, half_life)
    return (3 * half_life * half_life + (2 * half_life + rest) * rest) << doublings


def past_use(used: Mapping[str, int], booked: Mapping[str, int], weight: int) -> Vector:
    """Return the weighted past use of an account by resource, without zeros.

    `booked` is the sum of amount × total weight at the begin of each use, minus the same at the end of each use. So a
    use that began at weight a counts as amount × (weight - a) and, once it ended at weight b, as amount × (b - a).
    """
    past = {name: weight * used.get(name, 0) - booked.get(name, 0) for name in {**used, **booked}}
    return {name: amount for name, amount in past.items() if amount}


def booked_use(used: Mapping[str, int], past: Mapping[str, int], weight: int) -> Vector:
    """Return the `booked` for which `past_use` returns `past`."""
    return past_use(used, past, weight)


def after_shift(booked: Mapping[str, int], doublings: int) -> Vector:
    """Return `booked` for a landmark that is `doublings` half-lives later. Past use is rounded down."""
    shifted = {name: -(-amount >> doublings) for name, amount in booked.items()}
    return {name: amount for name, amount in shifted.items() if amount}


def rescaled(past: Mapping[str, int], before: int, after: int) -> Vector:
    """Return past use that is the same part of the total weight `after` as `past` is of `before`, rounded down."""
    scaled = {name: amount * after // before for name, amount in past.items()}
    return {name: amount for name, amount in scaled.items() if amount}
