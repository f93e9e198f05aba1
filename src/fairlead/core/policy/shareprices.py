"""Prices of shares of a GPU: what the requests for parts and for whole GPUs can make of one device.

The prices are the highest ones for which no set of requests that fits on one device costs more than the device. They
solve a linear programme, the dual of packing all requests onto the fewest devices. It is solved exactly in integers:
a basis has one set of requests per share, and a set that costs more than the device replaces another one until there is
none.
"""

from __future__ import annotations

from collections.abc import Mapping

UNITS = 100
"""The parts of a device that are distinguished."""
MAX_STEPS = 2_000


def values_of_room(asked: Mapping[int, int], scale: int) -> list[int]:
    """Return for 0 to 100 units of a device what the best requests for them are worth; a device is worth `scale`.

    `asked` has the number of requests for each share, in units.
    """
    shares = sorted(asked)
    basis = _Basis(shares, [asked[share] for share in shares])
    for _ in range(MAX_STEPS):
        value, chosen = _best_sets(shares, basis.prices)
        negative = next((at for at, price in enumerate(basis.prices) if price < 0), None)
        if negative is not None:
            basis.enter([-(at == negative) for at in range(len(shares))], 0)
        elif value[UNITS] > basis.scale:
            basis.enter(_counts(shares, chosen), 1)
        else:
            break
    # If the steps did not suffice, the prices are too high; they are lowered so that a device costs what it is worth.
    whole = max(basis.scale, value[UNITS])
    return [each * scale // whole for each in value]


class _Basis:
    """Sets of requests, one for each share, that cover all requests; with the inverse of their matrix.

    The inverse is kept as integers over a common denominator `scale`, which is the determinant of the matrix. So all
    divisions are exact.
    """

    def __init__(self, shares: list[int], wanted: list[int]) -> None:
        # The first sets have one share as often as it fits.
        most = [UNITS // share for share in shares]
        self.scale = 1
        for each in most:
            self.scale *= each
        self._wanted = wanted
        self._inverse = [
            [self.scale // most[row] if row == column else 0 for column in range(len(shares))]
            for row in range(len(shares))
        ]
        self._costs = [1] * len(shares)
        self.prices = [sum(column) for column in zip(*self._inverse, strict=True)]
        """The price of each share, multiplied by `scale`."""

    def enter(self, counts: list[int], cost: int) -> None:
        """Replace a set of the basis by the set with these counts; by the one that runs out first."""
        weights = [sum([a * b for a, b in zip(row, counts, strict=True) if b]) for row in self._inverse]
        amounts = [sum([a * b for a, b in zip(row, self._wanted, strict=True)]) for row in self._inverse]
        leaving, *others = [at for at, weight in enumerate(weights) if weight > 0]
        for at in others:
            if amounts[at] * weights[leaving] < amounts[leaving] * weights[at]:
                leaving = at
        row, by = self._inverse[leaving], weights[leaving]
        for at, other in enumerate(self._inverse):
            if at != leaving:
                weight = weights[at]
                self._inverse[at] = [(a * by - b * weight) // self.scale for a, b in zip(other, row, strict=True)]
        self.scale = by
        self._costs[leaving] = cost
        costing = [line for line, cost in zip(self._inverse, self._costs, strict=True) if cost]
        self.prices = [sum(column) for column in zip(*costing, strict=True)]


def _best_sets(shares: list[int], prices: list[int]) -> tuple[list[int], list[int]]:
    """Return for 0 to 100 units the highest price of a set of requests that fits, and the set's last share or -1."""
    value, chosen = [0], [-1]
    for room in range(1, UNITS + 1):
        best, last = value[-1], -1
        for at, share in enumerate(shares):
            if share > room:
                break
            worth = value[room - share] + prices[at]
            if worth > best:
                best, last = worth, at
        value.append(best)
        chosen.append(last)
    return value, chosen


def _counts(shares: list[int], chosen: list[int]) -> list[int]:
    counts, room = [0] * len(shares), UNITS
    while room:
        at = chosen[room]
        if at >= 0:
            counts[at] += 1
        room -= shares[at] if at >= 0 else 1
    return counts
