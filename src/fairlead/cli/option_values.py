"""Parses and checks values of options: durations, times, amounts of memory, and key=value pairs."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import datetime

import typer


def wrong(option: str, problem: str) -> typer.BadParameter:
    """Return an error about the value of an option, for the caller to raise."""
    return typer.BadParameter(problem, param_hint=option)


UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "m": 60, "s": 1}
DURATION = re.compile(r"(?:[0-9]{1,6}(?:w|d|h|min|m|s))+")


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration such as 1h30m; None if the text is not a duration."""
    if not DURATION.fullmatch(text):
        return None
    return float(sum(int(number) * UNITS[unit] for number, unit in re.findall(r"([0-9]+)([a-z]+)", text)))


EPOCH = re.compile(r"[0-9]{9,12}(\.[0-9]+)?")


def moment(text: str, option: str) -> float | None:
    """Return the time that an option names, in seconds since 1970; None if the option is empty."""
    if not text:
        return None
    if EPOCH.fullmatch(text):
        return float(text)
    age = seconds_of(text)
    if age is not None:
        return time.time() - age
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        problem = f"{text!r} is not a time; write 2026-11-30, 2026-11-30T12:00, or an age such as 7d or 12h"
        raise wrong(option, problem) from None


MIB = 2**20
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
ZERO = re.compile(r"0+(\.0+)?[A-Za-z]*")


def check_memory(text: str, option: str, none: bool = False) -> None:
    """Refuse a memory size below 1 MiB without a unit, and without `none` the size 0."""
    if ZERO.fullmatch(text):
        if none:
            return
        raise wrong(option, f"a task needs more memory than {text}; write a size such as 512Mi, or leave it out")
    if NUMBER.fullmatch(text) and float(text) < MIB:
        raise wrong(option, f"memory {text} is {text} bytes; write {text}Gi for gibibytes, or {text}Mi for mebibytes")


def amounts_of(
    resources: list[str] | None, cpu: str | None, memory: str | None, gpu: str | None, none: bool = False
) -> dict[str, str]:
    """Return the amounts that the options of resources give. With `none`, no memory at all may be asked for."""
    amounts = pairs(resources, "--resource")
    for name, amount in (("cpu", cpu), ("memory", memory), ("gpu", gpu)):
        if amount is not None:
            if name in amounts:
                raise wrong("--resource", f"{name} is given twice; drop it, or --{name}")
            amounts[name] = amount
    check_memory(amounts.get("memory", ""), "--resource" if memory is None else "--memory", none)
    return amounts


def check_duration(text: str | None, option: str) -> None:
    """Refuse a duration without a unit, because users may mean seconds, minutes or hours."""
    if text is not None and NUMBER.fullmatch(text):
        raise wrong(
            option, f"{text} has no unit; write {text}h for hours, {text}min for minutes, or {text}s for seconds"
        )


def pairs(values: list[str] | None, option: str, form: str = "key=value", separator: str = "=") -> dict[str, str]:
    """Return the texts of a repeated option, by default `key=value`, as a dict."""
    result: dict[str, str] = {}
    for text in values or ():
        key, found, value = text.partition(separator)
        if not found or not key:
            raise wrong(option, f"{text!r} is not {form}")
        if key in result:
            raise wrong(option, f"{key} is given twice; drop one of them")
        result[key] = value
    return result


def seconds_until(begin: str, flag: str) -> float:
    """Return the seconds until a time, given as a duration or as a date; 0 if it is not given."""
    if not begin:
        return 0.0
    seconds = seconds_of(begin)
    if seconds is None:
        with suppress(ValueError, OverflowError):
            seconds = datetime.fromisoformat(begin).timestamp() - time.time()
    if seconds is None or seconds <= 0:
        raise wrong(flag, f"{begin!r} is not a later time; write a duration such as 2h, or 2026-11-30T18:00")
    return seconds
