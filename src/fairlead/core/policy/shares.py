"""Shares in whole numbers: the entitlement of each class, the tasks it may start, and the loans it must return.

A class is a queue among its siblings. `start_counts` and `rebalance_counts` count in slots and give the numbers of the
published algorithm; `Measure` and `turn_key` order the classes for turns, in any unit. There are no floats.
docs/shares.md explains the arithmetic with an example.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlead.core.policy.turns import Ladder, Level, count_out

FEW = 10
"""Up to this number of classes with a share, shares are rounded to whole percents as published, and the largest class
gets the remainder. With more classes the remainder would be too large. Then nothing is rounded to percents, and all
slots are given out in turns."""

MAX_SHARE = 1_000_000
FINE = MAX_SHARE**2
"""Two different fractions with denominators up to `MAX_SHARE` differ by at least 1 / `FINE`. So an integer represents a
fraction exactly: the fraction times `FINE`, rounded down."""

ENTITLED, LENT, LAST = range(3)

Key = tuple[int, int, str]


class Claim(NamedTuple):
    """The share of a class, and its running and waiting tasks in slots."""

    name: str
    share: int
    running: int
    waiting: int


# ---- entitlements


def normalised(shares: Mapping[str, int]) -> dict[str, int]:
    """Return shares as whole percents with the sum 100. With many classes, or if all shares are 0, return them as they
    are."""
    for name, share in shares.items():
        _check("share", share, name, MAX_SHARE)
    whole = sum(shares.values())
    if whole in (0, 100) or not _few(shares):
        return dict(shares)
    percents = {name: 100 * share // whole for name, share in shares.items()}
    percents[_largest(shares)] += 100 - sum(percents.values())
    return percents


def entitlements(total: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Divide a total by shares, rounded down.

    The rest goes to the largest class or, among many classes, in parts of 1 to those that lost most by rounding. The
    total may be slots, `Measure.whole`, or the entitlement of the parent.
    """
    _check("total", total)
    return _divide(total, normalised(shares))


def spread(total: int, classes: Iterable[Mapping[str, Any] | Claim]) -> int:
    """Return the spread in percent of the total: the largest excess over a share plus the largest shortfall below one.

    A class below its share counts only if it has waiting work.
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
    """Return how many tasks each class starts on the idle slots of a total: by entitlement, then on loan.

    Slots stay idle only if no class with a share has waiting tasks. Classes with share 0 start nothing here; turns
    (`turn_key`) give them the slots that are left.
    """
    _check("idle", idle)
    claims = _claims(classes)
    rows = _rows(total, claims)
    if len(rows) <= FEW:
        idle = _lend(rows, _entitle(rows, idle))
    _take_turns(rows, idle)
    return dict.fromkeys((claim.name for claim in claims), 0) | {row.name: row.started for row in rows}


def rebalance_counts(total: int, idle: int, classes: Iterable[Mapping[str, Any] | Claim]) -> dict[str, tuple[int, int]]:
    """Return how many tasks each class starts and stops to reach its entitlement. Remaining slots are lent once.

    A loan to a class above its entitlement lets that number of its tasks run on. Among few classes, loans are rounded
    down as published, so some slots may stay idle. A class with share 0 has only loans; it stops tasks if the starts of
    other classes need more than the idle slots and the stops of those classes.
    """
    _check("idle", idle)
    claims = _claims(classes)
    rows = _rows(total, claims)
    for row in rows:
        row.started = min(0, row.entitled - row.running)  # below 0: tasks to stop
    free = idle - sum(row.started for row in rows) + sum(claim.running for claim in claims if not claim.share)
    if len(rows) <= FEW:
        _lend_once(rows, _entitle(rows, free))
    else:
        _take_turns(rows, free)
    moved = {row.name: row.started for row in rows}
    needed = sum(moved.values()) - idle
    for claim in sorted(claims, key=lambda claim: (-claim.running, claim.name)):
        if not claim.share:
            moved[claim.name] = -min(claim.running, max(0, needed))
            needed += moved[claim.name]
    return {claim.name: (max(0, moved[claim.name]), max(0, -moved[claim.name])) for claim in claims}


# ---- turns


class Measure:
    """Measures dominant shares of a capacity, as integer parts of `whole` that can be compared and subtracted.

    `whole` is a common multiple of all capacities, so that nothing is rounded and no division is needed.
    """

    def __init__(self, capacity: Mapping[str, int]) -> None:
        for resource, amount in capacity.items():
            _check("capacity", amount, resource)
        self.whole = math.lcm(*filter(None, capacity.values()))
        self._factors = {resource: self.whole // amount for resource, amount in capacity.items() if amount}

    def parts(self, used: Mapping[str, int]) -> dict[str, int]:
        """Return the part of each resource that a vector uses."""
        return {resource: amount * self._factors.get(resource, self.whole) for resource, amount in used.items()}

    def dominant_share(self, used: Mapping[str, int]) -> int:
        """Return the largest part of a resource that a vector uses. Any use of a resource without capacity is at least
        the whole."""
        largest = 0
        for resource, amount in used.items():
            largest = max(largest, amount * self._factors.get(resource, self.whole))
        return largest


def turn_key(use: int, share: int, entitled: int, name: str, counted: int | None = None) -> Key:
    """Return the sort key of a class among its siblings; the lowest is next.

    Classes below their entitlement come first, then those on loan, then those without a share. Each group is ordered by
    use ÷ share, then by name. Use and entitlement are in one unit: tasks, or parts of `Measure.whole`. If past use
    counts, `counted` is the sum of present and past use, which is then divided by the share.
    """
    if counted is None:
        counted = use
    if not share:
        return (LAST, counted, name)
    return (ENTITLED if use < entitled else LENT, counted * FINE // share, name)


# ---- inside


class _Row(msgspec.Struct, eq=False):
    """A class with a share, during the computation."""

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
        """Return the slots on loan, without tasks that stop and, as published, without tasks that start now."""
        return max(0, self.running + min(0, self.started) - self.entitled)

    def start(self, count: int) -> None:
        self.started += count
        self.waiting -= count


class _ShareLadder(Ladder):
    """The use of a class ÷ its share after each of its next starts."""

    __slots__ = ("_share", "_use")

    def __init__(self, row: _Row, most: int) -> None:
        super().__init__(row.name, most)
        self._use, self._share = row.running + row.started, row.share

    def level(self, turns: int) -> Level:
        return (self._use + turns) * FINE // self._share, self.name

    def turns_before(self, level: Level) -> int:
        bound = level[0] + (self.name < level[1])
        return max(0, min(-(-bound * self._share // FINE) - self._use, self.most))


def _rows(total: int, claims: Sequence[Claim]) -> list[_Row]:
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
    """Give idle slots to classes below their entitlement, in proportion to what each lacks; return the rest.

    The loop ends: of at most `FEW` classes, one lacks at least a tenth of the sum, so each pass gives it a slot.
    """
    while idle:
        unused = [row.unused() for row in rows]
        whole = sum(unused)
        if not whole:
            break
        percents = [100 * slots // whole for slots in unused]
        percents[0] += 100 - sum(percents)
        idle -= _hand_out(rows, min(idle, whole), percents, unused)
    return idle


def _lend(rows: Sequence[_Row], idle: int) -> int:
    while idle:
        lent = _lend_once(rows, idle)
        if not lent:
            break
        idle -= lent
    return idle


def _lend_once(rows: Sequence[_Row], idle: int) -> int:
    """Divide all old and new loans by share among classes with waiting work; return the number of slots given."""
    whole = sum(row.weight for row in rows if row.waiting)
    if not whole:
        return 0
    lent = idle + sum(row.loaned() for row in rows)
    missing = [max(0, row.weight * lent // whole - row.loaned()) if row.waiting else 0 for row in rows]
    total_missing = sum(missing)
    if not total_missing:
        return 0
    percents = [100 * slots // total_missing for slots in missing]
    return _hand_out(rows, idle, percents, [row.waiting for row in rows])


def _hand_out(rows: Sequence[_Row], slots: int, percents: Sequence[int], most: Sequence[int]) -> int:
    left = slots
    for row, percent, limit in zip(rows, percents, most, strict=True):
        count = min(-(-slots * percent // 100), limit, row.waiting, left)
        row.start(count)
        left -= count
    return slots - left


def _take_turns(rows: Sequence[_Row], slots: int) -> None:
    """Give out slots one at a time, first to classes below their entitlement, then on loan."""
    slots -= _fill(rows, slots, [min(row.waiting, row.unused()) for row in rows])
    _fill(rows, slots, [row.waiting for row in rows])


def _fill(rows: Sequence[_Row], slots: int, most: Sequence[int]) -> int:
    """Give each slot to the class with the lowest use ÷ share, up to `most` each; return the number given."""
    slots = min(slots, sum(most))
    if not slots:
        return 0
    ladders = [_ShareLadder(row, limit) for row, limit in zip(rows, most, strict=True)]
    count_out(ladders, slots)
    for row, ladder in zip(rows, ladders, strict=True):
        row.start(ladder.done)
    return slots


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
    claims = [given if isinstance(given, Claim) else Claim(*map(given.__getitem__, Claim._fields)) for given in classes]
    for claim in claims:
        _check("running", claim.running, claim.name)
        _check("waiting", claim.waiting, claim.name)
    if len({claim.name for claim in claims}) < len(claims):
        raise ValueError("classes: two classes have the same name: give each class its own name")
    return claims


def _check(argument: str, value: object, of: str | None = None, most: int | None = None) -> None:
    if not isinstance(value, int) or value < 0 or (most is not None and value > most):
        named = argument if of is None else f"{argument} of {of!r}"
        limits = "0 or more" if most is None else f"from 0 to {most}"
        raise ValueError(f"{named} is {value!r}: give a whole number, {limits}")
