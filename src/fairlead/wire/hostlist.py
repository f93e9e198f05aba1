"""Lists of node names as Slurm writes them: `n[1-3,07],gpu1` stands for n1, n2, n3, n07 and gpu1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_NAMES = 1_000_000
PART = re.compile(r"[^\[\],]*(?:\[[^\[\]]*\][^\[\],]*)*")
RANGES = re.compile(r"\[([^\[\]]*)\]")
NUMBER = re.compile(r"\d{1,18}")
LAST_NUMBER = re.compile(r"(.*?)(\d{1,18})")


def expand_hosts(text: str) -> list[str]:
    """Return the names of a list, in its order. Raise ValueError if it is none."""
    names: list[str] = []
    at = 0
    while at < len(text):
        match = PART.match(text, at)
        assert match is not None
        if match.end() < len(text) and text[match.end()] != ",":
            raise ValueError(
                f"{text[:80]!r} is not a list of nodes; write names and numbers in brackets, such as n[1-3,5]"
            )
        if match[0].strip():
            names += _expand_part(match[0].strip())
            if len(names) > MAX_NAMES:
                raise ValueError(f"{text[:80]!r} stands for more than {MAX_NAMES:,} nodes")
        at = match.end() + 1
    return names


def fold_hosts(names: Iterable[str]) -> str:
    """Return the list of these names, with the numbers at their ends in brackets."""
    groups: dict[tuple[str, int], list[int]] = {}
    """(Text before the number, its digits if it has leading zeros) → the numbers; none for a name without a number."""
    plain: list[tuple[str, str]] = []
    for name in dict.fromkeys(names):
        match = LAST_NUMBER.fullmatch(name)
        if match is None:
            groups[name, -1] = []
        elif match[2].startswith("0") and len(match[2]) > 1:
            groups.setdefault((match[1], len(match[2])), []).append(int(match[2]))
        else:
            plain.append((match[1], match[2]))
    for before, digits in plain:  # n10 follows n09
        width = len(digits) if (before, len(digits)) in groups else 0
        groups.setdefault((before, width), []).append(int(digits))
    return ",".join(_fold_group(before, width, sorted(numbers)) for (before, width), numbers in groups.items())


def _expand_part(part: str) -> Iterator[str]:
    match = RANGES.search(part)
    if match is None:
        yield part
        return
    count = 0
    for number in _numbers(match[1]):
        for rest in _expand_part(part[match.end() :]):
            yield part[: match.start()] + number + rest
            count += 1
            if count > MAX_NAMES:
                raise ValueError(f"{part[:80]!r} stands for more than {MAX_NAMES:,} nodes")


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        low, dash, high = part.partition("-")
        if not NUMBER.fullmatch(low) or (dash and not NUMBER.fullmatch(high)) or (dash and int(high) < int(low)):
            raise ValueError(f"[{ranges[:80]}] is not a list of numbers; write such as [1-3,5]")
        for number in range(int(low), int(high or low) + 1):
            yield f"{number:0{len(low)}}" if low.startswith("0") else str(number)


def _fold_group(prefix: str, width: int, numbers: list[int]) -> str:
    if not numbers:
        return prefix
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}" for low, high in runs]
    inner = ",".join(texts)
    return prefix + inner if len(numbers) == 1 else f"{prefix}[{inner}]"
