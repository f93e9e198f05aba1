"""Read what makes a stage an array: its indices, how many of its tasks run at a time, and the parameters of a sweep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from fairlead.core.errors import Refused
from fairlead.core.model import Parameters
from fairlead.core.ranges import Flat, text
from fairlead.core.ranges import count as tasks_in
from fairlead.core.reader import Reader, check_text, check_variable
from fairlead.core.resources import parse_count, shown

MAX_TASKS = 10_000_000
MAX_PARAMETERS = 20
MAX_ITEMS = 100_000
"""Maximum number of values of parameters and separate spans of indices in all stages of a job."""
MAX_SPANS = 10_000
"""Maximum number of spans of indices in an array that leaves indices out."""

PART = re.compile(r"([0-9]{1,8})(?:-([0-9]{1,8})(?::([0-9]{1,8}))?)?")
DIGITS = re.compile(r"[0-9]{1,8}")
REMEDY = "are allowed; let each task read its line of a file, by $FAIRLEAD_INDEX"
FORM = "write a number of tasks such as 100, or indices such as 0-15:2,20 with an optional %4 for 4 at a time"


class Array(NamedTuple):
    """An array as a document describes it."""

    bound: int | None = None
    """The index after its last one; None if the stage is no array."""
    indices: Flat = ()
    """Its indices, if it leaves some below the bound out."""
    throttle: int = 0


def parse_array(read: Reader, parameters: Parameters) -> Array:
    """Read `array` and `throttle`. A sweep is an array with a task for each combination of its parameters."""
    throttle = read.optional_count("throttle", 1, MAX_TASKS) or 0
    combinations = prod(len(values) for _, values in parameters) if parameters else None
    given, field = read.get("array"), read.at("array")
    if given is None:
        return Array(combinations, throttle=throttle)
    if not isinstance(given, str):
        flat: Flat = (0, parse_count(given, field, 1, MAX_TASKS))
    else:
        chosen, sign, most = given.partition("%")
        if sign and throttle:
            raise Refused(read.at("throttle"), f"{shown(given)} has a throttle too; write only one of them")
        if sign:
            throttle = _number(most, field)
        flat = parse_indices(chosen, field)
    if combinations is not None and flat[-1] > combinations:
        problem = f"the parameters have {combinations} combinations, so the last index is {combinations - 1}"
        raise Refused(field, problem)
    return Array(flat[-1], () if flat == (0, flat[-1]) else flat, throttle)


def parse_indices(given: str, field: str) -> Flat:
    """Read indices such as `0-15:2,20`, or a number of tasks."""
    if given.isdecimal():
        return (0, _number(given, field))
    spans: list[tuple[int, int]] = []
    for part in given.split(","):
        spans += _spans(part, field)
        if len(spans) > MAX_SPANS:
            raise Refused(field, f"more than {MAX_SPANS} separate indices or ranges are too many; split the array")
    bounds: list[int] = []
    for start, end in sorted(spans):
        if bounds and start <= bounds[-1]:
            bounds[-1] = max(bounds[-1], end)
        else:
            bounds += (start, end)
    return tuple(bounds)


def _spans(part: str, field: str) -> list[tuple[int, int]]:
    """Read an index, or a range of indices with an optional step."""
    match = PART.fullmatch(part.strip())
    if match is None:
        raise Refused(field, f"{shown(part)} is not an index or a range of indices; {FORM}")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or step == 0:
        raise Refused(field, f"{shown(part)} has no index; write the lower one first, and a step of at least 1")
    if last >= MAX_TASKS:
        raise Refused(field, f"{last} is too large for an index; the largest is {MAX_TASKS - 1}")
    if step == 1:
        return [(first, last + 1)]
    return [(index, index + 1) for index in range(first, last + 1, step)[: MAX_SPANS + 1]]


def _number(text: str, field: str) -> int:
    return parse_count(int(text) if DIGITS.fullmatch(text) else text, field, 1, MAX_TASKS)


def parse_parameters(read: Reader) -> Parameters:
    """Read the parameters of a sweep: name → list of values."""
    given, field = read.get("parameters"), read.at("parameters")
    if given is None:
        return ()
    if not isinstance(given, Mapping) or not given:
        raise Refused(field, f"{shown(given)} is not a mapping; write name: [value, …]")
    if len(given) > MAX_PARAMETERS:
        raise Refused(field, f"{len(given)} parameters are too many; at most {MAX_PARAMETERS} are allowed")
    parameters: list[tuple[str, tuple[str, ...]]] = []
    for key, values in given.items():
        name = check_variable(key, field)
        if not isinstance(values, list | tuple) or not values:
            raise Refused(f"{field}.{name}", f"{shown(values)} is not a list of values; write [one, two]")
        if len(values) > MAX_ITEMS:
            raise Refused(f"{field}.{name}", f"{len(values):,} values are too many; at most {MAX_ITEMS:,} {REMEDY}")
        parameters.append((name, tuple(_value(value, f"{field}.{name}[{at}]") for at, value in enumerate(values))))
    tasks = prod(len(values) for _, values in parameters)
    if tasks > MAX_TASKS:
        raise Refused(field, f"{tasks} combinations are too many; at most {MAX_TASKS} are allowed")
    return tuple(parameters)


def _value(value: object, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return check_text(value, field)
    return str(value)


def format_array(count: int, indices: Flat) -> int | str:
    """Return an array as a document has it."""
    if not indices:
        return count
    return f"{indices[0]}-{indices[0]}" if tasks_in(indices) == 1 else text(indices)
