"""GPUs that only the tasks they were given to can open.

A cgroup of version 2 has a small program in the kernel that is asked for every device file that a process in it opens.
Ours denies the GPUs that the task was not given, and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    Numbers = tuple[int, int]
    """The major and minor number of a device file."""

DRIVER = "/proc/driver/nvidia/gpus"
MAJOR = 195
"""That of the files /dev/nvidia0 and so on; the files that all of them share are at the end of its minor numbers."""
CALL = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 0)
LOAD, ATTACH, DETACH = 5, 8, 9
DEVICE_PROGRAM, DEVICE_HOOK, ALLOW_MULTI = 15, 6, 2
READ_WORD, SKIP_UNLESS, SET, END = 0x61, 0x55, 0xB7, 0x95

_libc = ctypes.CDLL(None, use_errno=True)


def gpus() -> tuple[Numbers, ...]:
    """The device files of the GPUs, in the order of their places on the bus, by which tasks are given them."""
    found: list[Numbers] = []
    try:
        for place in sorted(os.listdir(DRIVER)):
            with open(f"{DRIVER}/{place}/information") as file:
                about = dict(line.split(":", 1) for line in file if ":" in line)
            found.append((MAJOR, int(about["Device Minor"])))
    except (OSError, KeyError, ValueError):
        names = [name[6:] for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
        return tuple((MAJOR, number) for number in sorted(map(int, names)))
    return tuple(found)


class Guard:
    """Denies devices to the processes of one cgroup."""

    def __init__(self, folder: str) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._program = -1

    def deny(self, devices: Iterable[Numbers]) -> None:
        """Deny these devices, and no longer those of before."""
        program = _load(_code(devices))
        _bpf(ATTACH, struct.pack("<IIII", self._folder, program, DEVICE_HOOK, ALLOW_MULTI))
        if self._program >= 0:
            _bpf(DETACH, struct.pack("<IIII", self._folder, self._program, DEVICE_HOOK, 0))
            os.close(self._program)
        self._program = program

    def close(self) -> None:
        for fd in (self._folder, self._program):
            if fd >= 0:
                os.close(fd)


def _code(denied: Iterable[Numbers]) -> bytes:
    """Returns 0 for a device that is denied, and 1 for any other. The kernel gives the numbers at 4 and 8."""
    code = _step(READ_WORD, 2, 1, 4) + _step(READ_WORD, 3, 1, 8)
    for major, minor in denied:
        code += _step(SKIP_UNLESS, 2, 0, 3, major) + _step(SKIP_UNLESS, 3, 0, 2, minor) + _step(SET) + _step(END)
    return code + _step(SET, 0, 0, 0, 1) + _step(END)


def _step(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


def _load(code: bytes) -> int:
    text = ctypes.create_string_buffer(code)
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    return _bpf(
        LOAD,
        struct.pack("<IIQQ", DEVICE_PROGRAM, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence)),
    )


def _bpf(what: int, about: bytes) -> int:
    if not CALL:
        raise OSError(f"programs for cgroups are not known for {platform.machine()}")
    given = ctypes.create_string_buffer(about.ljust(128, b"\0"), 128)
    result = int(_libc.syscall(CALL, what, given, 128))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf: {os.strerror(number)}")
    return result
