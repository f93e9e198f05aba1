"""Turns a launch into data for the spawner: environment, gang, GPUs and directory of tasks."""

from __future__ import annotations

import os
import pwd
from bisect import bisect_right
from collections.abc import Mapping
from itertools import chain

import msgspec

from fairlead.wire.agent import Flat, Gang, Launch, Spec

KEPT = frozenset("PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR LD_LIBRARY_PATH".split())
"""Variables of the agent that its tasks inherit. Tasks must not see other variables, such as tokens."""
PERSONAL = frozenset("HOME USER LOGNAME SHELL TMPDIR".split())
"""Inherited variables that differ between users."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables by which libraries choose their number of threads. Without its own, each follows the first one."""


class Surroundings(msgspec.Struct, frozen=True):
    """Settings that all tasks of a node share."""

    node: str
    directory: str
    """Directory of tasks that name none; empty for the home of their user."""
    environment: dict[str, str]
    gpus: tuple[str, ...] = ()


def personal_variables() -> dict[str, str]:
    """Return the variables of the user that this process runs as, for tasks of an agent that was started without."""
    try:
        person = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {}
    return {"HOME": person.pw_dir, "USER": person.pw_name, "LOGNAME": person.pw_name, "SHELL": person.pw_shell}


def surroundings(node: str, gpus: tuple[str, ...], inherited: Mapping[str, str], as_users: bool) -> Surroundings:
    """Return the shared settings. With `as_users`, tasks run as their users and their spawners set home and shell."""
    kept = {name: value for name, value in inherited.items() if name in KEPT or name.startswith("LC_")}
    if as_users:
        return Surroundings(node, "", {name: value for name, value in kept.items() if name not in PERSONAL}, gpus)
    home = kept.get("HOME", "/")
    return Surroundings(node, home if os.path.isdir(home) else "/", kept, gpus)


ResultSpec = tuple[tuple[str, ...], int, int]
SpawnerSpec = tuple[tuple[str, ...], dict[str, str], str, int, int, str, str, ResultSpec | None]


def spawner_spec(around: Surroundings, launch: Launch, spec: Spec) -> SpawnerSpec:
    """Return the data that the tasks of a launch share, also with tasks of other jobs with the same specification.

    Our variables come last, so a job cannot give itself a GPU. The spawner adds the variables that identify the task.
    """
    chosen = dict(spec.environment) | dict(spec.secrets)
    environment = around.environment | _thread_variables(spec.cpu, chosen) | chosen
    environment["FAIRLEAD_NODE"] = around.node
    if around.gpus and not launch.devices:
        environment |= _gpu_variables("")
    if launch.gang is not None:
        environment |= gang_variables(launch.gang)
    directory = spec.directory or around.directory
    results = (spec.results, spec.max_result_files, spec.max_result_bytes) if spec.results else None
    return spec.command, environment, directory, spec.cpu, spec.memory, spec.output, spec.error, results


def _thread_variables(milli_cpu: int, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the number of threads that fits the CPUs of a task, unless the job has chosen one for all libraries."""
    if THREADS[0] in chosen:
        return {}
    return dict.fromkeys(THREADS, str(max(1, -(-milli_cpu // 1000))))


def own_variables(around: Surroundings, launch: Launch) -> list[dict[str, str]] | None:
    """Return the variables of each task of a launch; None if they do not differ."""
    if not launch.devices and launch.gang is None:
        return None
    indices = list(each_of(launch.tasks.indices))
    own: list[dict[str, str]] = [{} for _ in indices]
    if launch.devices:
        per_task = len(launch.devices) // len(indices)
        for at, variables in enumerate(own):
            devices = launch.devices[at * per_task : (at + 1) * per_task]
            variables.update(_gpu_variables(",".join(_gpu_name(around, device) for device in devices)))
    if launch.gang is not None:
        for index, variables in zip(indices, own, strict=True):
            variables.update(rank_variables(launch.gang, index, around.node, alone=bool(launch.devices)))
    return own


def gang_variables(gang: Gang) -> dict[str, str]:
    """Return the addresses of the members and their rendezvous: the node of the first member and a common port."""
    peers = [""] * gang.size
    for place in gang.places:
        for rank in each_of(place.ranks):
            if rank < gang.size:
                peers[rank] = place.address
    first = peers[0] or (gang.places[0].address if gang.places else "")
    return {
        "FAIRLEAD_GANG_KEY": gang.key,
        "FAIRLEAD_PEERS": ",".join(peers),
        "FAIRLEAD_PORT": str(gang.port + 1),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(gang.port),
        "WORLD_SIZE": str(gang.size),
        "OMPI_COMM_WORLD_SIZE": str(gang.size),
    }


def rank_variables(gang: Gang, index: int, node: str, alone: bool) -> dict[str, str]:
    """Return the variables that identify a member.

    `alone` means that the member has its own GPUs. It sees only these, so its local rank is 0.
    """
    rank = str(gang.first + index)
    here: Flat = next((place.ranks for place in gang.places if place.node == node), ())
    beside = list(each_of(here))
    local = bisect_right(beside, gang.first + index - 1)
    which = next((at for at, place in enumerate(gang.places) if place.node == node), 0)
    local_rank, local_size = ("0", "1") if alone else (str(local), str(max(1, len(beside))))
    return {
        "RANK": rank,
        "FAIRLEAD_RANK": rank,
        "FAIRLEAD_LOCAL_RANK": str(local),
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": str(which),
        "NODE_RANK": str(which),
        "OMPI_COMM_WORLD_RANK": rank,
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
    }


def _gpu_name(around: Surroundings, device: int) -> str:
    """Return the name of a GPU. An operator may set more GPUs than were detected: these are named by number."""
    return around.gpus[device] if device < len(around.gpus) else str(device)


def _gpu_variables(names: str) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": names,
        "NVIDIA_VISIBLE_DEVICES": names or "void",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def each_of(flat: Flat) -> chain[int]:
    return chain.from_iterable(map(range, flat[::2], flat[1::2]))


def flat_of(numbers: list[int]) -> Flat:
    """Return indices as spans. Sorts the list."""
    numbers.sort()
    bounds: list[int] = []
    for number in numbers:
        if bounds and bounds[-1] == number:
            bounds[-1] = number + 1
        else:
            bounds += (number, number + 1)
    return tuple(bounds)
