"""Past use with a half-life, in whole numbers: the weights of `share_memory`.

A moment counts twice as much as one a half-life before it. At `elapsed` after a landmark, k half-lives and a rest r,
the weight is 2^k × (1 + r ÷ half-life): it doubles exactly with every half-life and grows evenly between. Only ratios
of weights matter, so the landmark can be moved by whole half-lives at any time. docs/shares.md has a worked example.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.resources import Vector

TASKS = ""
"""The key for the number of tasks, beside the names of resources."""


def total_weight(elapsed: int, half_life: int) -> int:
    """Return the total weight of all time up to `elapsed` after the landmark, multiplied so that it is a whole number.

    The factor is 2 × half-life. Time before the landmark counts too, back to the infinite past. `elapsed` is not below
    0.
    """
    doublings, rest = divmod(elapsed, half_life)
    return (3 * half_life * half_life + (2 * half_life + rest) * rest) << doublings


def past_use(used: Mapping[str, int], booked: Mapping[str, int], weight: int) -> Vector:
    """Return the weighted past use of an account by resource, leaving out zeros.

    `booked` is the sum of each use that began, times the total weight at that time, less the same for each use that
    ended. So a use that began at weight a counts its amount × (weight - a), and one that ended at weight b, its amount
    × (b - a).
    """
    past = {name: weight * used.get(name, 0) - booked.get(name, 0) for name in {**used, **booked}}
    return {name: amount for name, amount in past.items() if amount}


def booked_use(used: Mapping[str, int], past: Mapping[str, int], weight: int) -> Vector:
    """Return the `booked` for which `past_use` gives this past."""
    return past_use(used, past, weight)


def after_shift(booked: Mapping[str, int], doublings: int) -> Vector:
    """Return `booked` for a landmark that is this number of half-lives later. The past is rounded down."""
    shifted = {name: -(-amount >> doublings) for name, amount in booked.items()}
    return {name: amount for name, amount in shifted.items() if amount}


def rescaled(past: Mapping[str, int], before: int, after: int) -> Vector:
    """Return past use as the same part of another total weight, rounded down."""
    scaled = {name: amount * after // before for name, amount in past.items()}
    return {name: amount for name, amount in scaled.items() if amount}
