"""The wall clock without leaps: a server's time goes on steadily, whatever is done to the clock of its machine.

What a leap of years would end wrongly (jobs that are kept for a day, time limits of tasks that run) goes on. The
difference between the wall and the time since the machine's start is kept in a file, so that a restart of the server
does not leap either. A machine that was started anew has only its clock to go by.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime_ns, time_ns

import msgspec

from fairlead.api.smallfile import read_small, write_small
from fairlead.wire.agent import this_machine

HOUR = 3_600 * 10**9
Nanoseconds = Callable[[], int]
Seconds = Callable[[], float]


class Anchor(msgspec.Struct, frozen=True):
    boot: str
    """The start of the machine that `offset` is about."""
    offset: int
    """What the wall had and the time since the machine's start had not, in nanoseconds."""


def since_boot() -> int:
    return clock_gettime_ns(CLOCK_BOOTTIME)


def steady_wall(wall: Nanoseconds = time_ns, steady: Nanoseconds = since_boot) -> Nanoseconds:
    """A clock that begins with the wall's time and then goes on by itself."""
    offset = wall() - steady()
    return lambda: steady() + offset


def in_seconds(clock: Nanoseconds) -> Seconds:
    return lambda: clock() / 10**9


def kept_wall(
    path: Path,
    note: Callable[[str], None],
    wall: Nanoseconds = time_ns,
    steady: Nanoseconds = since_boot,
    boot: str | None = None,
) -> Nanoseconds:
    """A clock as `steady_wall`, that also goes on over restarts of the server. It follows the wall up to an hour."""
    boot = this_machine() if boot is None else boot
    offset = wall() - steady()
    kept = read_small(path, Anchor, "remove it")
    if kept is not None and boot and kept.boot == boot:
        leap = offset - kept.offset
        if abs(leap) > HOUR:
            note(
                f"the clock of this machine leapt by {leap / HOUR:.0f} hours; the server's time goes on without "
                f"that leap. If the clock is right now, stop the server, remove {path} and start it again"
            )
            offset = kept.offset
    write_small(path, msgspec.json.encode(Anchor(boot, offset)))
    return lambda: steady() + offset
