"""Shares in whole numbers: what each class is entitled to, what it may start, and what it has to give back.

A class is a queue among its siblings. `start_counts` and `rebalance_counts` count in slots and give the published
numbers; `Measure` and `turn_key` say whose turn it is, in any unit. Nothing here is a float. docs/shares.md explains
the arithmetic and works an example.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

FEW = 10
"""Up to so many classes with a share, the published rounding holds: whole percents, and what rounding leaves over goes
to the largest. Among more it would hand the largest a good part of what the others are owed. There, nothing is rounded
to percents, and all starts are turns."""

MOST_SHARE = 1_000_000
FINE = MOST_SHARE**2
"""Two different fractions with denominators up to `MOST_SHARE` are at least 1 / `FINE` apart. So they stay different,
and equal ones equal, when they are multiplied by `FINE` and rounded down: one integer stands for a fraction."""

ENTITLED, LENT, LAST = range(3)

Key = tuple[int, int, str]


class Claim(NamedTuple):
    """What a class has and wants, in slots."""

    name: str
    share: int
    running: int
    waiting: int


# ---- entitlements


def normalised(shares: Mapping[str, int]) -> dict[str, int]:
    """Shares as whole percents that add up to 100; among many classes, or if nobody has a share, as they are."""
    for name, share in shares.items():
        _check("share", share, name, MOST_SHARE)
    whole = sum(shares.values())
    if whole in (0, 100) or not _few(shares):
        return dict(shares)
    percents = {name: 100 * share // whole for name, share in shares.items()}
    percents[_largest(shares)] += 100 - sum(percents.values())
    return percents


def entitlements(total: int, shares: Mapping[str, int]) -> dict[str, int]:
    """A total divided by shares, rounded down. The largest class gets the rest; among many, each one at most.

    The total may be slots, or `Measure.whole`, or what the parent of these classes is entitled to.
    """
    _check("total", total)
    return _divide(total, normalised(shares))


def spread(total: int, classes: Iterable[Mapping[str, Any] | Claim]) -> int:
    """How far apart the classes are from their shares, in percents of the total: the most above plus the most below.

    A class that is below its share counts only if it has work waiting.
    """
    _check("total", total)
    claims = _claims(classes)
    weights = normalised({claim.name: claim.share for claim in claims})
    whole = sum(weights.values())
    if len(claims) < 2 or not whole or not total:
        return 0
    missing = [0]
    for claim in claims:
        short = 100 * weights[claim.name] // whole - 100 * claim.running // total
        if claim.share and (short < 0 or claim.waiting):
            missing.append(short)
    return max(missing) - min(missing)


# ---- starts


def start_counts(total: int, idle: int, classes: Iterable[Mapping[str, Any] | Claim]) -> dict[str, int]:
    """How many tasks each class starts on the idle slots of a total: by entitlement, then on loan.

    The sum is what is idle or what waits, whichever is less. Classes with share 0 are not counted in either and start
    nothing here: what the others leave is theirs, in turns (`turn_key`).
    """
    _check("idle", idle)
    claims = _claims(classes)
    rows = _rows(total, claims)
    if len(rows) <= FEW:
        idle = _lend(rows, _entitle(rows, idle))
    _take_turns(rows, idle)
    return dict.fromkeys((claim.name for claim in claims), 0) | {row.name: row.started for row in rows}


def rebalance_counts(total: int, idle: int, classes: Iterable[Mapping[str, Any] | Claim]) -> dict[str, tuple[int, int]]:
    """How many tasks each class starts and stops to come to its entitlement. What is then left over is lent once.

    A loan to a class that should stop some keeps these running. Among few classes the loan is rounded down, as
    published, and may leave slots idle until the next starts. A class with share 0 has nothing but loans: it stops
    what the others' starts need beyond what is idle and what they stop themselves.
    """
    _check("idle", idle)
    claims = _claims(classes)
    rows = _rows(total, claims)
    for row in rows:
        row.started = min(0, row.entitled - row.running)  # below 0: to be stopped
    room = idle - sum(row.started for row in rows) + sum(claim.running for claim in claims if not claim.share)
    if len(rows) <= FEW:
        _lend_once(rows, _entitle(rows, room))
    else:
        _take_turns(rows, room)
    moved = {row.name: row.started for row in rows}
    needed = sum(moved.values()) - idle
    for claim in sorted(claims, key=lambda claim: (-claim.running, claim.name)):
        if not claim.share:
            moved[claim.name] = -min(claim.running, max(0, needed))
            needed += moved[claim.name]
    return {claim.name: (max(0, moved[claim.name]), max(0, -moved[claim.name])) for claim in claims}


# ---- whose turn it is


class Measure:
    """Dominant shares of one capacity, as whole numbers that can be compared and subtracted: parts of `whole`.

    `whole` is a common multiple of all capacities, so that nothing is rounded, and a share costs one multiplication a
    resource and no division. Make a new one when the capacity changes.
    """

    def __init__(self, capacity: Mapping[str, int]) -> None:
        for resource, amount in capacity.items():
            _check("capacity", amount, resource)
        self.whole = math.lcm(*filter(None, capacity.values()))
        self._each = {resource: self.whole // amount for resource, amount in capacity.items() if amount}

    def dominant_share(self, used: Mapping[str, int]) -> int:
        """The largest part that a summed vector is of any resource. Using what there is none of counts as all of it."""
        largest = 0
        for resource, amount in used.items():
            largest = max(largest, amount * self._each.get(resource, self.whole))
        return largest


def turn_key(use: int, share: int, entitled: int, name: str) -> Key:
    """The place of a class among its siblings, lowest first: below its entitlement, on loan, or without a share; then
    by use ÷ share, then by name. Use and entitlement are in one unit: tasks, or parts of `Measure.whole`.

    Keys are plain tuples without ties, fit for a heap. It is called for every turn and trusts its arguments.
    """
    if not share:
        return (LAST, use, name)
    return (ENTITLED if use < entitled else LENT, use * FINE // share, name)


# ---- inside


class _Row(msgspec.Struct, eq=False):
    """A class with a share, while it is being counted."""

    name: str
    share: int
    weight: int
    entitled: int
    running: int
    waiting: int
    started: int = 0

    def unused(self) -> int:
        return max(0, self.entitled - self.running - self.started) if self.waiting else 0

    def loaned(self) -> int:
        """What it has on loan already. What is stopped is not; what it starts now does not count, as published."""
        return max(0, self.running + min(0, self.started) - self.entitled)

    def start(self, count: int) -> None:
        self.started += count
        self.waiting -= count

    def use(self) -> int:
        return self.running + self.started

    def key(self) -> Key:
        return turn_key(self.use(), self.share, self.entitled, self.name)


def _rows(total: int, claims: Sequence[Claim]) -> list[_Row]:
    """The classes with a share, the largest first."""
    _check("total", total)
    shares = {claim.name: claim.share for claim in claims}
    weights = normalised(shares)
    entitled = _divide(total, weights)
    rows = [
        _Row(claim.name, claim.share, weights[claim.name], entitled[claim.name], claim.running, claim.waiting)
        for claim in claims
        if claim.share
    ]
    rows.sort(key=lambda row: (-row.share, row.name))
    return rows


def _entitle(rows: Sequence[_Row], idle: int) -> int:
    """Idle slots to the classes below their entitlement, by what each lacks; what is left over.

    It ends: of at most `FEW` classes one lacks a tenth of all that is lacking, and a tenth is rounded up.
    """
    while idle:
        unused = [row.unused() for row in rows]
        whole = sum(unused)
        if not whole:
            break
        percents = [100 * each // whole for each in unused]
        percents[0] += 100 - sum(percents)
        idle -= _hand_out(rows, min(idle, whole), percents, unused)
    return idle


def _lend(rows: Sequence[_Row], idle: int) -> int:
    """Idle slots on loan, as long as they are enough to be divided by share; what is left over."""
    while idle:
        lent = _lend_once(rows, idle)
        if not lent:
            break
        idle -= lent
    return idle


def _lend_once(rows: Sequence[_Row], idle: int) -> int:
    """Everything on loan, old and new, divided by share among those that wait; each gets what it then lacks."""
    whole = sum(row.weight for row in rows if row.waiting)
    if not whole:
        return 0
    lent = idle + sum(row.loaned() for row in rows)
    lacking = [max(0, row.weight * lent // whole - row.loaned()) if row.waiting else 0 for row in rows]
    lacking_all = sum(lacking)
    if not lacking_all:
        return 0
    percents = [100 * each // lacking_all for each in lacking]
    return _hand_out(rows, idle, percents, [row.waiting for row in rows])


def _hand_out(rows: Sequence[_Row], slots: int, percents: Sequence[int], most: Sequence[int]) -> int:
    """Slots by percents, rounded up, the largest class first, until they are gone; how many were taken."""
    left = slots
    for row, percent, limit in zip(rows, percents, most, strict=True):
        count = min(-(-slots * percent // 100), limit, row.waiting, left)
        row.start(count)
        left -= count
    return slots - left


def _take_turns(rows: Sequence[_Row], slots: int) -> None:
    """One slot after another to the class whose turn it is."""
    slots -= _fill(rows, slots, [min(row.waiting, row.unused()) for row in rows])
    _fill(rows, slots, [row.waiting for row in rows])


def _fill(rows: Sequence[_Row], slots: int, most: Sequence[int]) -> int:
    """One slot after another to the class lowest in use ÷ share, up to a number each; how many were taken."""
    slots = min(slots, sum(most))
    if not slots:
        return 0
    counts = most if slots == sum(most) else _at_once(rows, slots, most)
    for row, count in zip(rows, counts, strict=True):
        row.start(count)
    open_rows = [(row, limit - count) for row, limit, count in zip(rows, most, counts, strict=True) if limit > count]
    heap = [(row.key(), left, row) for row, left in open_rows]
    heapq.heapify(heap)
    for _ in range(slots - sum(counts)):
        _, left, row = heapq.heappop(heap)
        row.start(1)
        if left > 1:
            heapq.heappush(heap, (row.key(), left - 1, row))
    return slots


def _at_once(rows: Sequence[_Row], slots: int, most: Sequence[int]) -> list[int]:
    """The turns of each class, but for the last few, at most as many as there are classes.

    The level that so many turns fill the classes to is found by halving, so that many slots cost no more than few.
    """
    counts = [0] * len(rows)
    low, high = 0, 1 + max((row.use() + limit) * FINE // row.share for row, limit in zip(rows, most, strict=True))
    while slots - sum(counts) > len(rows):
        level = (low + high) // 2
        below = [-(-level * row.share // FINE) - row.use() for row in rows]
        below = [max(0, min(count, limit)) for count, limit in zip(below, most, strict=True)]
        if sum(below) > slots:
            high = level
        else:
            low, counts = level, below
    return counts


def _divide(total: int, weights: Mapping[str, int]) -> dict[str, int]:
    whole = sum(weights.values())
    if not whole:
        return dict.fromkeys(weights, 0)
    parts = {name: total * weight // whole for name, weight in weights.items()}
    rest = total - sum(parts.values())
    if _few(weights):
        parts[_largest(weights)] += rest
    else:
        for name in sorted(weights, key=lambda name: (-(total * weights[name] % whole), name))[:rest]:
            parts[name] += 1
    return parts


def _few(shares: Mapping[str, int]) -> bool:
    return sum(1 for share in shares.values() if share) <= FEW


def _largest(shares: Mapping[str, int]) -> str:
    return min(shares, key=lambda name: (-shares[name], name))


def _claims(classes: Iterable[Mapping[str, Any] | Claim]) -> list[Claim]:
    claims = [each if isinstance(each, Claim) else Claim(*map(each.__getitem__, Claim._fields)) for each in classes]
    for claim in claims:
        _check("running", claim.running, claim.name)
        _check("waiting", claim.waiting, claim.name)
    if len({claim.name for claim in claims}) < len(claims):
        raise ValueError("classes: a name stands there twice: give each class a name of its own")
    return claims


def _check(argument: str, value: object, of: str | None = None, most: int | None = None) -> None:
    if not isinstance(value, int) or value < 0 or (most is not None and value > most):
        named = argument if of is None else f"{argument} of {of!r}"
        limits = "0 or more" if most is None else f"from 0 to {most}"
        raise ValueError(f"{named} is {value!r}: give a whole number, {limits}")
