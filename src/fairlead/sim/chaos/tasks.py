"""Tasks as machines run them: taken one by one, on the other side of the wire, by none of the core's arithmetic."""

from __future__ import annotations

import msgspec

Micros = int


class Task(msgspec.Struct, frozen=True):
    """A task of a job, whatever its attempt. The number tells jobs apart that had one id after another."""

    job: str
    number: int
    stage: str
    index: int


class Live(msgspec.Struct):
    """A process."""

    task: Task
    attempt: int
    devices: tuple[int, ...]


def indices(block: tuple[int, ...]) -> list[int]:
    """The numbers of half-open spans."""
    return [index for start, end in zip(block[::2], block[1::2], strict=True) for index in range(start, end)]


def flat(numbers: list[int]) -> tuple[int, ...]:
    """The reverse."""
    spans: list[int] = []
    for number in sorted(numbers):
        if spans and spans[-1] == number:
            spans[-1] += 1
        else:
            spans += (number, number + 1)
    return tuple(spans)
