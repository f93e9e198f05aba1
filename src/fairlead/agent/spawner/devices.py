"""Denies tasks the GPUs that are not assigned to them.

A cgroup v2 can have a BPF program that the kernel runs for every device file that a process in the cgroup opens. Ours
denies only these GPUs.
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
"""The major number of /dev/nvidia0, /dev/nvidia1 and so on."""
CALL = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 0)
LOAD, ATTACH, DETACH = 5, 8, 9
DEVICE_PROGRAM, DEVICE_HOOK, ALLOW_MULTI = 15, 6, 2
READ_WORD, SKIP_UNLESS, SET, END = 0x61, 0x55, 0xB7, 0x95

_libc = ctypes.CDLL(None, use_errno=True)


def gpus() -> tuple[Numbers, ...]:
    """Return the device files of the GPUs in the order of their bus addresses, which is that of GPU numbers."""
    devices: list[Numbers] = []
    try:
        for place in sorted(os.listdir(DRIVER)):
            with open(f"{DRIVER}/{place}/information") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
            devices.append((MAJOR, int(fields["Device Minor"])))
    except (OSError, KeyError, ValueError):
        names = [name[6:] for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
        return tuple((MAJOR, number) for number in sorted(map(int, names)))
    return tuple(devices)


class Guard:
    def __init__(self, folder: str) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._program = -1

    def deny(self, devices: Iterable[Numbers]) -> None:
        """Deny these devices, in place of those of the last call."""
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
    """Return a BPF program that returns 0 for a denied device, and 1 for any other.

    The kernel passes the major and minor numbers at offsets 4 and 8.
    """
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


def _bpf(command: int, attributes: bytes) -> int:
    if not CALL:
        raise OSError(f"BPF programs are not supported on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = int(_libc.syscall(CALL, command, buffer, 128))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"bpf: {os.strerror(number)}")
    return result
