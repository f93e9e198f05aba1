"""Single tasks as machines run them, without the core's arithmetic of index ranges."""

from __future__ import annotations

import msgspec

Micros = int


class Task(msgspec.Struct, frozen=True):
    """A task of a job, regardless of its attempt. `number` distinguishes successive jobs of the same id."""

    job: str
    number: int
    stage: str
    index: int


class Live(msgspec.Struct):
    """A running attempt of a task."""

    task: Task
    attempt: int
    devices: tuple[int, ...]


def indices(block: tuple[int, ...]) -> list[int]:
    """Return the indices in flat half-open spans: (0, 2, 5, 6) gives 0, 1 and 5."""
    return [index for start, end in zip(block[::2], block[1::2], strict=True) for index in range(start, end)]


def flat(numbers: list[int]) -> tuple[int, ...]:
    """Return indices as flat half-open spans, the reverse of `indices`."""
    spans: list[int] = []
    for number in sorted(numbers):
        if spans and spans[-1] == number:
            spans[-1] += 1
        else:
            spans += (number, number + 1)
    return tuple(spans)
