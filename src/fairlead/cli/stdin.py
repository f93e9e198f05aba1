"""Refuses input to `fairlead run`: no task reads standard input, so waiting input would be lost."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import termios

STDIN = 0
REMEDY = "a task reads no standard input; pass a file in its arguments, or add `< /dev/null`"


def has_input() -> bool:
    """True if standard input is a file, a pipe or a socket with unread bytes."""
    try:
        mode = os.fstat(STDIN).st_mode
        if stat.S_ISREG(mode):
            return os.fstat(STDIN).st_size > os.lseek(STDIN, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            (waiting,) = struct.unpack("i", fcntl.ioctl(STDIN, termios.FIONREAD, b"\0" * 4))
            return bool(waiting)
    except OSError:  # closed, or a kind of file that cannot be polled
        pass
    return False
