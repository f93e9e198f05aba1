"""A wall clock without jumps: the server's time advances steadily, whatever happens to the machine's clock.

A jump of years would wrongly expire kept jobs and the time limits of running tasks. The difference between the wall
clock and the time since boot is stored in a file, so that restarts of the server cause no jump either. After a reboot
the server starts from the machine's clock.
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
    """The stored offset between the two clocks."""

    boot: str
    """The boot id for which `offset` is valid."""
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
    """Return a clock like `steady_wall` that also stays steady over restarts of the server.

    At a restart it adopts corrections of the wall clock of up to one hour.
    """
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
