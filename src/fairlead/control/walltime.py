"""A wall clock without jumps: the server's time advances steadily, also if the machine's clock is set.

A jump of years would expire jobs of the history and time limits of running tasks. A file stores the difference between
the wall clock and the time since boot, so that there is no jump after a restart of the server either. After a reboot
the server takes the time of the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime_ns, time_ns

import msgspec

from fairlead.identity.smallfile import read_small, write_small
from fairlead.wire.agent_messages import this_machine
from fairlead.writer.clock import Seconds

HOUR = 3_600 * 10**9
Nanoseconds = Callable[[], int]


class Anchor(msgspec.Struct, frozen=True):
    """The stored difference between the wall clock and the time since boot."""

    boot: str
    """The id of the boot during which `offset` is valid."""
    offset: int
    """Wall clock minus time since boot, in nanoseconds."""


def since_boot() -> int:
    return clock_gettime_ns(CLOCK_BOOTTIME)


def steady_wall(wall: Nanoseconds = time_ns, steady: Nanoseconds = since_boot) -> Nanoseconds:
    """Return a clock that starts at the wall time and then follows the steady clock."""
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
    """Return a clock like `steady_wall` that has no jumps at restarts of the server either.

    Corrections of the wall clock by up to one hour are adopted at a restart.
    """
    boot = this_machine() if boot is None else boot
    offset = wall() - steady()
    kept = read_small(path, Anchor, "remove it")
    if kept is not None and boot and kept.boot == boot and abs(offset - kept.offset) > HOUR:
        note(
            f"the clock of this machine leapt by {(offset - kept.offset) / HOUR:.0f} hours; the server's time goes on "
            f"without that leap. If the clock is right now, stop the server, remove {path} and start it again"
        )
        offset = kept.offset
    write_small(path, msgspec.json.encode(Anchor(boot, offset)))
    return lambda: steady() + offset
