"""Converts Kubernetes quantities to the units of the core: bytes of memory, and thousandths of all other resources.

`ephemeral-storage` and huge pages are counted in mebibytes, because a large disk in thousandths of a byte would exceed
the core's range. Requests are rounded up and capacities down, so a pod never gets less than it asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from fairlead.kubernetes.names import resource_name

MEMORY = "memory"
CPU = "cpu"
PODS = "pods"
MOST = 2**50
"""The largest amount that the core accepts, in its units."""

_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{unit: Fraction(10 ** (3 * power)) for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(2 ** (10 * power)) for power, unit in enumerate("KMGTPE", 1)},
}


class NotAQuantity(ValueError):
    """Raised for a text that is not a quantity. The message names the text."""


def read_quantity(value: str | int | float) -> Fraction:
    """Return the exact value of a quantity such as `500m`, `1.5Gi` or `2e3`."""
    text = str(value).strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise NotAQuantity(f'"{text[:64]}" is not a quantity; write a number such as 2, 500m or 4Gi')
    sign, digits, exponent, suffix = match.groups()
    number = Fraction(digits if not digits.endswith(".") else digits + "0")
    number *= Fraction(10) ** int(exponent[1:]) if exponent else _SUFFIXES[suffix or ""]
    return -number if sign == "-" else number


def requests(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Return requested amounts by the core's resource names, rounded up; without zeros."""
    return _amounts(quantities, True)


def capacities(quantities: Mapping[str, str | int | float] | None) -> dict[str, int]:
    """Return a node's amounts by the core's resource names, rounded down; without zeros."""
    return _amounts(quantities, False)


def _amounts(quantities: Mapping[str, str | int | float] | None, up: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in (quantities or {}).items():
        if name.startswith("attachable-volumes-"):
            continue
        amount = _amount(name, str(value), up)
        if amount:
            known = resource_name(name)
            found[known] = found.get(known, 0) + amount
    return found


@lru_cache(maxsize=10_000)
def _amount(name: str, text: str, up: bool) -> int:
    number = max(read_quantity(text), Fraction(0))
    if name == "ephemeral-storage" or name.startswith("hugepages-"):
        number /= 2**20
    if name != MEMORY:
        number *= 1000
    amount = -(-number.numerator // number.denominator) if up else number.numerator // number.denominator
    # A request beyond the core's range stays above every capacity, so it fits no node.
    return min(amount, MOST if up else MOST - 1)


def documented(amounts: Mapping[str, int]) -> dict[str, int | str]:
    """Return amounts as resources of a document; the core reads them back as the same amounts."""
    return {
        name: amount if name == MEMORY else amount // 1000 if amount % 1000 == 0 else f"{amount}m"
        for name, amount in sorted(amounts.items())
        if amount
    }


def add(into: dict[str, int], amounts: Mapping[str, int], times: int = 1) -> None:
    """Add amounts, in place. A resource that reaches 0 is removed."""
    for name, amount in amounts.items():
        total = into.get(name, 0) + amount * times
        if total:
            into[name] = total
        else:
            into.pop(name, None)


def at_least(into: dict[str, int], amounts: Mapping[str, int]) -> None:
    """Raise amounts to at least those given, in place."""
    for name, amount in amounts.items():
        if amount > into.get(name, 0):
            into[name] = amount
