"""Amounts of resources and time: parses, formats and adds them.

All amounts are ints: milli-units of cpu, gpu and custom resources, bytes of memory, microseconds of time.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from fairlead.core.errors import Refused

CPU = "cpu"
MEMORY = "memory"
GPU = "gpu"
BUILT_IN = (CPU, GPU, MEMORY)

MILLI = 1000
MAX_QUANTITY = 2**50
MAX_DEVICES = 1024
MAX_RESOURCES = 100

MILLISECOND = 1000
SECOND = 1000 * MILLISECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MAX_DURATION = 36_525 * DAY

Vector: TypeAlias = dict[str, int]
"""Amounts by resource name. A missing resource is 0, and a 0 is not stored.

Limits and guarantees are the exception: there a missing resource is unlimited or not guaranteed, so a 0 is stored. Of
the functions in this file, only `scale` keeps a 0.
"""

_LONGEST = 40
_MILLI_UNITS = {"": MILLI, "m": 1}
_BINARY = {"Pi": 2**50, "Ti": 2**40, "Gi": 2**30, "Mi": 2**20, "Ki": 2**10}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BYTE_UNITS = {
    "": 1,
    "KB": 10**3,
    **_DECIMAL,
    **_BINARY,
    **{f"{unit}B": size for unit, size in (*_DECIMAL.items(), *_BINARY.items())},
}
_TIME_UNITS = {"d": DAY, "h": HOUR, "min": MINUTE, "s": SECOND, "ms": MILLISECOND, "us": 1}
_READ_TIME_UNITS = {**_TIME_UNITS, "m": MINUTE}

_NAME = re.compile(r"[a-z][a-z0-9._/-]{0,62}")
_AMOUNT = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(d|h|min|ms|m|us|s)")
_CLOCK = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-5]?[0-9]))?(?::([0-5]?[0-9]))?")


class _Measure(NamedTuple):
    """A kind of quantity, in words for error messages."""

    noun: str
    example: str
    step: str
    most: int
    most_text: str


# ---- parsing amounts


def parse_quantity(name: str, value: object, field: str) -> int:
    """Return the exact amount of a resource that a value of a document stands for."""
    units = _BYTE_UNITS if name == MEMORY else _MILLI_UNITS
    if type(value) is int and 0 <= value <= MAX_QUANTITY // units[""]:
        return value * units[""]
    measure = _measure_of(name)
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(_not_too_long(value, field))
        unit = units.get(match[2]) if match else None
        if match is None or unit is None:
            raise _no_amount(value, field, measure)
        return _settle(value, _from_text(match[1]), unit, field, measure)
    return _settle(value, _from_number(value, field, measure), units[""], field, measure)


def parse_gpu_request(value: object, field: str) -> int:
    """Parse the GPUs of a task: a part of one device, or whole devices."""
    amount = _not_too_many(parse_quantity(GPU, value, field), value, field)
    if amount > MILLI and amount % MILLI:
        raise Refused(field, "a task takes whole GPUs or a part of one: write 1, 2 or a fraction below 1")
    return amount


def _parse_gpu_capacity(value: object, field: str) -> int:
    amount = _not_too_many(parse_quantity(GPU, value, field), value, field)
    if amount % MILLI:
        raise Refused(field, "a node has whole GPUs: write 1, 2 or 8")
    return amount


def _not_too_many(amount: int, value: object, field: str) -> int:
    # Each device of a node is tracked separately.
    if amount > MAX_DEVICES * MILLI:
        raise Refused(field, f"{shown(value)} is more than one node can have; write at most {MAX_DEVICES}")
    return amount


def _measure_of(name: str) -> _Measure:
    noun = f"an amount of {name}"
    if name == MEMORY:
        return _Measure(noun, "bytes or a size such as 512Mi, 8Gi or 5GB", "1 byte", MAX_QUANTITY, "1Pi")
    example = "a number such as 1, 2 or 0.5" if name == GPU else "a number such as 2, 0.5 or 500m"
    return _Measure(noun, example, "0.001", MAX_QUANTITY, "1125899906842.624")


def _not_too_long(text: str, field: str) -> str:
    if len(text) > _LONGEST:
        raise Refused(field, f"{shown(text)} is too long; write at most {_LONGEST} characters")
    return text


def _no_amount(value: object, field: str, measure: _Measure) -> Refused:
    return Refused(field, f"{shown(value)} is not {measure.noun}; write {measure.example}")


def _from_text(number: str) -> tuple[int, int]:
    whole, _, part = number.partition(".")
    return int(whole + part), -len(part)


def _from_number(value: object, field: str, measure: _Measure) -> tuple[int, int]:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _no_amount(value, field, measure)
    if isinstance(value, int):
        return int(value), 0
    # The repr of a float is what its author wrote: 0.1 is a tenth, not the nearest binary fraction.
    decimal = Decimal(float.__repr__(value)) if isinstance(value, float) else value
    sign, digits, power = decimal.as_tuple()
    if not isinstance(power, int) or len(digits) > _LONGEST:
        raise _no_amount(value, field, measure)
    number = int("".join(map(str, digits)))
    return (-number if sign else number), power


def _settle(value: object, number: tuple[int, int], unit: int, field: str, measure: _Measure) -> int:
    digits, power = number
    if digits < 0:
        raise Refused(field, f"{shown(value)} is negative; write 0 or more")
    # The cap saves time for numbers such as 1E+999999999, which are too large or too fine in any case.
    ten: int = 10 ** min(abs(power), 100)
    amount, rest = (digits * unit * ten, 0) if power >= 0 else divmod(digits * unit, ten)
    if amount > measure.most:
        raise Refused(field, f"{shown(value)} is too large; write at most {measure.most_text}")
    if rest:
        step = measure.step
        raise Refused(field, f"{shown(value)} is finer than {step}; round it to a multiple of {step}")
    return amount


def printable(text: str, most: int = _LONGEST) -> str:
    """Return a text for a message: shortened, with `?` for characters that do not print."""
    return "".join(c if c.isprintable() else "?" for c in text[:most]) + ("…" if len(text) > most else "")


def shown(value: object) -> str:
    """Return any value for a message: texts in quotes, and only the type of nested values."""
    if isinstance(value, str):
        return f'"{printable(value)}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # Python refuses to print ints with thousands of digits.
        return str(int(value)) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, Decimal):
        text = str(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a {type(value).__name__[:_LONGEST]}"


# ---- parsing documents


def parse_request(doc: object, field: str) -> Vector:
    """Parse the request of one task. Amounts of 0 are left out."""
    return {name: amount for name, amount in _parse(doc, field, parse_gpu_request).items() if amount}


def parse_capacity(doc: object, field: str) -> Vector:
    """Parse the capacity of a node. Amounts of 0 are left out."""
    _refuse_near_misses(doc, field)
    return {name: amount for name, amount in _parse(doc, field, _parse_gpu_capacity).items() if amount}


def parse_limits(doc: object, field: str) -> Vector:
    """Parse a limit or a guarantee. Amounts of 0 are kept, because a missing resource means something else."""
    _refuse_near_misses(doc, field)
    return _parse(doc, field, None)


_NEAR_MISSES = {"cpus": CPU, "core": CPU, "cores": CPU, "gpus": GPU, "mem": MEMORY, "ram": MEMORY}


def _refuse_near_misses(doc: object, field: str) -> None:
    # A request for an unknown resource is refused later, but a limit on one would be accepted and limit nothing.
    for name in doc if isinstance(doc, Mapping) else ():
        if isinstance(name, str) and name in _NEAR_MISSES:
            inner = f"{field}.{name}" if field else name
            raise Refused(inner, f"there is no resource {name}; write {_NEAR_MISSES[name]}")


def _parse(doc: object, field: str, gpu: Callable[[object, str], int] | None) -> Vector:
    if not isinstance(doc, Mapping):
        problem = f"{shown(doc)} is not a set of resources; write names with amounts such as cpu: 2"
        raise Refused(field, problem)
    if len(doc) > MAX_RESOURCES:
        raise Refused(field, f"{len(doc)} resources are too many; write at most {MAX_RESOURCES}")
    vector: Vector = {}
    for name, value in doc.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise Refused(
                field,
                f"{shown(name)} is not a resource name; write a lower-case letter, then up to 62"
                " of a-z, 0-9, '.', '_', '/' and '-'",
            )
        inner = f"{field}.{name}" if field else name
        vector[name] = gpu(value, inner) if gpu and name == GPU else parse_quantity(name, value, inner)
    return vector


# ---- formatting amounts


def format_quantity(name: str, amount: int) -> str:
    """Return a short text of an amount, which `parse_quantity` reads as the same amount.

    Differences may be below 0; they are written with their sign.
    """
    if amount < 0:
        return "-" + format_quantity(name, -amount)
    if name == MEMORY:
        for suffix, unit in _BINARY.items():
            if amount >= unit and (number := _thousandths(amount, unit)):
                return number + suffix
        return str(amount)
    number = _thousandths(amount, MILLI)
    return number if len(number) <= len(str(amount)) + 1 else f"{amount}m"


_NOUNS = {CPU: ("CPU", "CPUs"), GPU: ("GPU", "GPUs")}


def noun_of(name: str, amount: int = 0) -> str:
    """Return the word for an amount of a resource in a sentence, such as "CPU" or "CPUs"."""
    return _NOUNS[name][not 0 < amount <= MILLI] if name in _NOUNS else name


def format_amount(name: str, amount: int) -> str:
    """Return an amount of a resource in words, such as "2 CPUs", "0.5 GPU" or "64Gi of memory"."""
    of = "of " if name == MEMORY else ""
    return f"{format_quantity(name, amount)} {of}{noun_of(name, amount)}"


def format_amounts(amounts: Iterable[tuple[str, int]]) -> str:
    """Return amounts in words, such as "2 CPUs, 1 GPU and 64Gi of memory"."""
    *first, last = [format_amount(name, amount) for name, amount in amounts]
    return f"{', '.join(first)} and {last}" if first else last


def format_vector(vector: Vector) -> str:
    return " ".join(f"{name}={format_quantity(name, amount)}" for name, amount in sorted(vector.items()))


def _thousandths(amount: int, unit: int) -> str:
    """Return an amount in a unit with at most three decimals; empty if these are not enough."""
    thousandths, rest = divmod(amount * 1000, unit)
    if rest:
        return ""
    whole, part = divmod(thousandths, 1000)
    return f"{whole}.{part:03}".rstrip("0") if part else str(whole)


# ---- vectors


def add(into: Vector, vector: Vector, times: int = 1) -> None:
    """Add `times` × `vector` to `into`. A resource that reaches 0 is removed; amounts may be below 0."""
    for name, amount in vector.items():
        total = into.get(name, 0) + amount * times
        if total:
            into[name] = total
        else:
            into.pop(name, None)


def scale(vector: Vector, factor: int) -> Vector:
    """Return `factor` × `vector`, empty for 0. Amounts of 0 stay, so that a limit of 0 remains a limit."""
    return {name: amount * factor for name, amount in vector.items()} if factor else {}


# ---- durations


def parse_duration(value: object, field: str) -> int:
    """Parse a duration into microseconds: `90s`, `1h30min` with larger units first, or a number of seconds.

    `05:00`, `01:00:00` and `1-12:00:00` mean the same as in Slurm.
    """
    if not isinstance(value, str):
        return _settle(value, _from_number(value, field, _DURATION), SECOND, field, _DURATION)
    text = _not_too_long(value, field)
    match = _AMOUNT.fullmatch(text)
    if match and (match[2] or "s") in _READ_TIME_UNITS:
        return _settle(value, _from_text(match[1]), _READ_TIME_UNITS[match[2] or "s"], field, _DURATION)
    clock = _CLOCK.fullmatch(text)
    if clock:
        return _settle(value, (_clock_seconds(*clock.groups()), 0), SECOND, field, _DURATION)
    total, at, last = 0, 0, MAX_DURATION
    while at < len(text):
        match = _DURATION_PART.match(text, at)
        if match is None or (unit := _READ_TIME_UNITS[match[2]]) >= last:
            raise _no_amount(value, field, _DURATION)
        total += _settle(value, _from_text(match[1]), unit, field, _DURATION)
        at, last = match.end(), unit
    if not text:
        raise _no_amount(value, field, _DURATION)
    return _settle(value, (total, 0), 1, field, _DURATION)


def _clock_seconds(days: str | None, first: str, second: str | None, third: str | None) -> int:
    if days is None and third is None:
        return 60 * int(first) + int(second or 0)
    return 86_400 * int(days or 0) + 3_600 * int(first) + 60 * int(second or 0) + int(third or 0)


def format_duration(us: int) -> str:
    """Return the shortest text of a duration, such as 90s, 1.5h or 1d1ms, that does not start with "0."."""
    if us < 0:
        return "-" + format_duration(-us)
    if us == 0:
        return "0s"
    plain, compound, rest = [], "", us
    for suffix, unit in _TIME_UNITS.items():
        if us >= unit and (number := _thousandths(us, unit)):
            plain.append(number + suffix)
        many, rest = divmod(rest, unit)
        if many:
            compound += f"{many}{suffix}"
    # Of equally short texts, the one with the larger unit is taken, and the compound one last.
    return min(*plain, compound, key=len)


def format_moment(us: int) -> str:
    """Return a time as a date in UTC or, for a clock that starts at 0, as seconds."""
    days, second = divmod(us // SECOND, 86_400)
    if days < 10_000:
        return f"{round(us / SECOND, 3):.12g} s"
    # Years begin in March here, so that a leap day is the last day of its year.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    date = (era * 400 + year + (month > 9), month + 3 if month < 10 else month - 9, day - (153 * month + 2) // 5 + 1)
    clock = (second // 3_600, second // 60 % 60, second % 60)
    return "{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC".format(*date, *clock)


_DURATION = _Measure(
    noun="a duration",
    example="seconds, numbers with us, ms, s, min, h or d such as 50ms, 5min or 1h30min, or hours as 01:30:00",
    step="1us",
    most=MAX_DURATION,
    most_text=format_duration(MAX_DURATION),
)


# ---- counts


def parse_count(value: object, field: str, low: int, high: int) -> int:
    """Parse a whole number within bounds. Only ints are accepted, because "3" or 3.0 is likely a mistake."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Refused(field, f"{shown(value)} is not accepted; write a whole number from {low} to {high}")
    return int(value)
