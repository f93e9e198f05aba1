"""Values as Slurm writes them: durations, times, sizes and counts. A wrong one raises ValueError."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from typing import Any

UNLIMITED = ("unlimited", "infinite", "-1")
UNITS = {"": 1, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
DAY = 86_400


def parse_duration(text: str) -> float | None:
    """Return a time limit in seconds; None for an unlimited one."""
    if text.lower() in UNLIMITED:
        return None
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not 1 <= len(parts) <= 3 or min(parts) < 0:
        raise ValueError(text)
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(days) * DAY + hours * 3600 + minutes * 60 + seconds
    if len(parts) == 3:
        return parts[0] * 3600 + parts[1] * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def format_duration(seconds: float, hours: bool = False) -> str:
    """Return a duration as `1-02:03:04`, `2:03:04` or `3:04`; with `hours`, always with hours of two digits."""
    total = max(0, int(seconds))
    days, rest = divmod(total, DAY)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    if days:
        return f"{days}-{clock}"
    if hours:
        return clock
    return f"{rest // 3600}{clock[2:]}" if rest >= 3600 else f"{rest // 60}:{rest % 60:02}"


TIMES = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}
STEPS = {"s": 1, "m": 60, "h": 3600, "d": DAY, "w": 7 * DAY}
NOW = re.compile(r"now(?:([+-])(\d+)([a-z]*))?")
CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?(am|pm)?")
DATES = (
    (re.compile(r"(\d{4})-(\d\d?)-(\d\d?)"), "ymd"),
    (re.compile(r"(\d\d?)[/.](\d\d?)(?:[/.](\d\d))?"), "mdy"),
    (re.compile(r"(\d\d)(\d\d)(\d\d)?"), "mdy"),
)


def parse_time(text: str, past: bool = False) -> float:
    """Return a time in seconds since 1970. A time without a date is the next one; with `past`, that of today."""
    word = text.strip().lower()
    now = datetime.now().replace(microsecond=0)
    relative = NOW.fullmatch(word)
    if relative is not None:
        sign, count, unit = relative.groups()
        step = STEPS.get((unit or "s")[:1], 0)
        if not step:
            raise ValueError(text)
        return time.time() + (int(count or 0) * step * (-1 if sign == "-" else 1) if sign else 0)
    if word in ("today", "tomorrow"):
        return (now.replace(hour=0, minute=0, second=0) + timedelta(days=word == "tomorrow")).timestamp()
    if word in TIMES:
        return _next(now.replace(hour=TIMES[word], minute=0, second=0), now, past)
    match = CLOCK.fullmatch(word)
    if match is not None:
        return _next(now.replace(**_clock(match)), now, past)
    for form, order in DATES:
        match = form.match(word)
        rest = word[match.end() :].lstrip("t-") if match is not None else ""
        at = CLOCK.fullmatch(rest)
        if match is not None and (at is not None or not rest):
            return _date(dict(zip(order, match.groups(), strict=True)), at, now, past).timestamp()
    raise ValueError(text)


def _date(values: dict[str, str | None], at: re.Match[str] | None, now: datetime, past: bool) -> datetime:
    """Return the time of a date with a clock. A date without a year is the next one, with `past` that of this year."""
    year = int(values["y"] or now.year)
    date = datetime(year + 2000 * (year < 100), int(values["m"] or 0), int(values["d"] or 0))
    if at is not None:
        date = date.replace(**_clock(at))
    is_later = values["y"] or past or date >= now
    return date if is_later else date.replace(year=date.year + 1)


def _clock(match: re.Match[str]) -> dict[str, Any]:
    hour, minute, second, half = match.groups()
    hours = int(hour) % 12 + 12 * (half == "pm") if half else int(hour)
    return {"hour": hours, "minute": int(minute), "second": int(second or 0)}


def _next(at: datetime, now: datetime, past: bool) -> float:
    return (at + timedelta(days=not past and at < now)).timestamp()


def format_time(seconds: float | None, missing: str = "Unknown") -> str:
    return missing if seconds is None else datetime.fromtimestamp(int(seconds)).strftime("%Y-%m-%dT%H:%M:%S")


SIZE = re.compile(r"(\d+)([kmgt]?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return a size in MiB, rounded up."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return -int(-int(match[1]) * UNITS[match[2].lower()] // 1)


def format_size(mib: float) -> str:
    """Return a size of MiB as `512M` or `4G`, as squeue and scontrol do."""
    for unit in "MGT":
        if mib < 1024 or mib % 1024 or unit == "T":
            return f"{mib:g}{unit}"
        mib /= 1024
    raise AssertionError


COUNT = re.compile(r"(\d+)(k|m)?", re.IGNORECASE)


def parse_count(text: str) -> int:
    match = COUNT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024 * 1024}[(match[2] or "").lower()]


def listed(text: str) -> list[str]:
    """Return the words of a list with commas."""
    return [word for word in text.replace(" ", ",").split(",") if word]
