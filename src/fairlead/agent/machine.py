"""Detects the CPUs, memory and GPUs that this process may use."""

from __future__ import annotations

import errno
import os
import re
import socket
from itertools import islice
from pathlib import Path
from random import SystemRandom

import msgspec

CGROUPS = Path("/sys/fs/cgroup")
NVIDIA = Path("/proc/driver/nvidia/gpus")
PORTS = range(20_000, 32_000)
"""Ports at which gangs meet."""
UNLIMITED = 1 << 60
"""Cgroups v1 report a number above this if there is no limit."""


class Machine(msgspec.Struct, frozen=True):
    cpus: float
    memory: int
    gpus: tuple[str, ...] = ()
    """The name of each GPU, as in the environment of a task to which it is assigned."""
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def resources(self) -> dict[str, int | float | str]:
        resources: dict[str, int | float | str] = {"cpu": self.cpus, "memory": self.memory}
        return resources | {"gpu": len(self.gpus)} if self.gpus else resources


def this_machine() -> Machine:
    gpus, model = _gpus()
    return Machine(_cpus(), _memory(), gpus, (("gpu_model", model),) if model else ())


def host_name() -> str:
    name = re.sub(r"[^A-Za-z0-9._@+-]", "-", socket.gethostname().split(".")[0])[:63].lstrip("._@+-")
    return name or "node"


def free_ports(taken: set[int]) -> tuple[int, int]:
    """Return two different ports outside of `taken` that no process has bound, drawn at random.

    They are below the range from which systems assign ports by themselves, so that no outgoing connection takes them.
    If all are bound, they are not free.
    """
    drawn = SystemRandom().sample(PORTS, len(PORTS))
    first, second = [*islice(filter(lambda port: port not in taken and _is_free(port), drawn), 2), *drawn][:2]
    return first, second


def _is_free(port: int) -> bool:
    for family, every in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((every, port))
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                return False
    return True


def _cpus() -> float:
    cpus: float = len(os.sched_getaffinity(0))
    version_1 = f"{_read(CGROUPS / 'cpu/cpu.cfs_quota_us')} {_read(CGROUPS / 'cpu/cpu.cfs_period_us')}"
    for limit in (_read(CGROUPS / "cpu.max"), version_1):
        quota, _, period = limit.partition(" ")
        if quota.isdigit() and period.isdigit():
            cpus = min(cpus, int(quota) / int(period))
    return max(1, int(cpus)) if cpus >= 1 else round(cpus, 3)


def _memory() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in (CGROUPS / "memory.max", CGROUPS / "memory/memory.limit_in_bytes"):
        limit = _read(path)
        if limit.isdigit() and int(limit) < UNLIMITED:
            total = min(total, int(limit))
    return total


def _gpus() -> tuple[tuple[str, ...], str]:
    """Return the names of the GPUs, in the order of their bus addresses, and the model of the first."""
    names, model = _by_nvml()
    if not names and NVIDIA.is_dir():
        names = tuple(str(number) for number in range(len(list(NVIDIA.iterdir()))))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names and visible is not None:
        # This process may use only these GPUs: pass on their names.
        names = tuple(name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1")
    return names, model if names else ""


def _by_nvml() -> tuple[tuple[str, ...], str]:
    try:
        import pynvml
    except ImportError:
        return (), ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), ""  # no driver, so no GPUs
    try:
        count = pynvml.nvmlDeviceGetCount()
        model = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) if count else ""
    except pynvml.NVMLError:
        return (), ""
    finally:
        pynvml.nvmlShutdown()
    return tuple(map(str, range(count))), re.sub(r"[^A-Za-z0-9._@+-]+", "-", model)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
