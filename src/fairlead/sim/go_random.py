"""The random numbers of Go's `math/rand`, from a seed: published orders of jobs are drawn with them.

The generator adds the numbers 607 and 273 places before, modulo 2⁶⁴. Go mixes its seeds with a table: the state of the
same generator 7.8 × 10¹² steps after a simple start. The table is computed here, as a power of x modulo the generator's
polynomial x⁶⁰⁷ - x³³⁴ - 1, instead of being copied.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from functools import cache
from typing import Any

LENGTH = 607
TAP = 273
TABLE_AT = 7_800_000_000_000
MASK = 2**64 - 1
PRIME = 2**31 - 1
WIDTH = 18
"""Bytes of a coefficient when a polynomial is one integer: enough for a sum of 607 products."""


class GoRandom:
    """The generator that `rand.New(rand.NewSource(seed))` returns."""

    def __init__(self, seed: int) -> None:
        start = _start(seed, 40, 20)
        self._last = _by_time([a ^ b for a, b in zip(start, _table(), strict=True)])
        self._at = 0

    def uint64(self) -> int:
        last, at = self._last, self._at
        drawn = last[at] = (last[at] + last[at - TAP]) & MASK
        self._at = (at + 1) % LENGTH
        return drawn

    def int63(self) -> int:
        """Return what `Int()` returns."""
        return self.uint64() & (MASK >> 1)

    def intn(self, below: int) -> int:
        """Return what `Intn` returns, for numbers up to 2³¹."""
        if below & (below - 1) == 0:
            return self.int63() >> 32 & (below - 1)
        most = PRIME - 2**31 % below
        while (drawn := self.int63() >> 32) > most:
            pass
        return drawn % below

    def permutation(self, count: int) -> list[int]:
        """Return what `Perm` returns."""
        numbers: list[int] = []
        for at in range(count):
            other = self.intn(at + 1)
            numbers.append(at)
            numbers[at], numbers[other] = numbers[other], at
        return numbers

    def shuffle(self, items: MutableSequence[Any]) -> None:
        for at in range(len(items) - 1, 0, -1):
            other = self._below(at + 1)
            items[at], items[other] = items[other], items[at]

    def _below(self, below: int) -> int:
        least = 2**32 % below
        while True:
            product = (self.int63() >> 31) * below
            if product & 0xFFFFFFFF >= least:
                return product >> 32


def _start(seed: int, high: int, middle: int) -> list[int]:
    """Return 607 numbers, each made of three steps of a linear congruential generator."""
    drawn = seed % PRIME or 89_482_311
    numbers: list[int] = []
    for at in range(-20, LENGTH):
        drawn = 48_271 * drawn % PRIME
        if at >= 0:
            number = drawn << high
            drawn = 48_271 * drawn % PRIME
            number ^= drawn << middle
            drawn = 48_271 * drawn % PRIME
            numbers.append((number ^ drawn) & MASK)
    return numbers


def _by_time(state: Sequence[int]) -> list[int]:
    """Return a state in the order in which its numbers were drawn. Go's own order counts down from 333."""
    return [state[(LENGTH - TAP - 1 - at) % LENGTH] for at in range(LENGTH)]


@cache
def _table() -> list[int]:
    drawn = _by_time(_start(1, 20, 10))
    for at in range(LENGTH, 2 * LENGTH):
        drawn.append((drawn[at - LENGTH] + drawn[at - TAP]) & MASK)
    power = [1]
    for bit in f"{TABLE_AT:b}":
        power = _reduced(_product(power, power))
        if bit == "1":
            power = _reduced([0, *power])
    later = _product(power[::-1], drawn)[LENGTH - 1 : 2 * LENGTH - 1]
    return [later[(LENGTH - TAP - 1 - at - TABLE_AT) % LENGTH] for at in range(LENGTH)]


def _product(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Return the product of two polynomials, lowest coefficient first, modulo 2⁶⁴."""
    size = len(a) + len(b) - 1
    packed = _packed(a) * _packed(b)
    digits = packed.to_bytes(size * WIDTH, "little")
    return [int.from_bytes(digits[at : at + 8], "little") for at in range(0, size * WIDTH, WIDTH)]


def _packed(coefficients: Sequence[int]) -> int:
    return int.from_bytes(b"".join(each.to_bytes(WIDTH, "little") for each in coefficients), "little")


def _reduced(coefficients: list[int]) -> list[int]:
    """Return the remainder modulo x⁶⁰⁷ - x³³⁴ - 1."""
    for at in range(len(coefficients) - 1, LENGTH - 1, -1):
        high = coefficients.pop()
        coefficients[at - LENGTH] = (coefficients[at - LENGTH] + high) & MASK
        coefficients[at - TAP] = (coefficients[at - TAP] + high) & MASK
    return coefficients + [0] * (LENGTH - len(coefficients))
