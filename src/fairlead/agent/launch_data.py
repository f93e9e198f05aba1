"""Turns a launch into data for the spawner: environment, gang, GPUs and working directory of the tasks."""

from __future__ import annotations

import os
import pwd
from bisect import bisect_right
from collections.abc import Mapping
from itertools import chain

import msgspec

from fairlead.wire.agent_messages import Flat, Gang, Launch, Spec

KEPT = frozenset("PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR LD_LIBRARY_PATH".split())
"""Variables of the agent that its tasks inherit. All others, such as tokens, are hidden from tasks."""
PERSONAL = frozenset("HOME USER LOGNAME SHELL TMPDIR".split())
"""Inherited variables that differ between users."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables from which libraries take their number of threads. An unset one follows the first."""


class Surroundings(msgspec.Struct, frozen=True):
    """Settings that all tasks of a node share."""

    node: str
    directory: str
    """Working directory of tasks that name none; empty for the home of their user."""
    environment: dict[str, str]
    gpus: tuple[str, ...] = ()


def personal_variables() -> dict[str, str]:
    """Return the variables of this process's user, for an agent that was started without them."""
    try:
        person = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {}
    return {"HOME": person.pw_dir, "USER": person.pw_name, "LOGNAME": person.pw_name, "SHELL": person.pw_shell}


def surroundings(node: str, gpus: tuple[str, ...], inherited: Mapping[str, str], as_users: bool) -> Surroundings:
    """Return the shared settings. With `as_users`, tasks run as their users, and their spawners set home and shell."""
    kept = {name: value for name, value in inherited.items() if name in KEPT or name.startswith("LC_")}
    if as_users:
        return Surroundings(node, "", {name: value for name, value in kept.items() if name not in PERSONAL}, gpus)
    home = kept.get("HOME", "/")
    return Surroundings(node, home if os.path.isdir(home) else "/", kept, gpus)


ResultSpec = tuple[tuple[str, ...], int, int]
SpawnerSpec = tuple[tuple[str, ...], dict[str, str], str, int, int, str, str, ResultSpec | None]


def spawner_spec(around: Surroundings, launch: Launch, spec: Spec) -> SpawnerSpec:
    """Return the data shared by the tasks of a launch, and by other launches with the same specification.

    Our variables come last, so that a job cannot give itself a GPU. The spawner adds the variables that identify the
    task.
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
    """Return thread variables that match the CPUs of a task, unless the job has chosen one for all libraries."""
    if THREADS[0] in chosen:
        return {}
    return dict.fromkeys(THREADS, str(max(1, -(-milli_cpu // 1000))))


def own_variables(around: Surroundings, launch: Launch) -> list[dict[str, str]] | None:
    """Return the variables of each task of a launch; None if all tasks have the same."""
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
        ranks = launch.gang.ranks or [launch.gang.first + index for index in indices]
        for rank, variables in zip(ranks, own, strict=True):
            variables.update(rank_variables(launch.gang, rank, around.node, alone=bool(launch.devices)))
    return own


def gang_variables(gang: Gang) -> dict[str, str]:
    """Return the variables with the members' addresses and the rendezvous: the first member's node and a port."""
    peers = [""] * gang.size
    for place in gang.places:
        for rank in each_of(place.ranks):
            if rank < gang.size:
                peers[rank] = place.address
    first = peers[0] or (gang.places[0].address if gang.places else "")
    generation = {"FAIRLEAD_GENERATION": str(gang.generation)} if gang.generation else {}
    return generation | {
        "FAIRLEAD_GANG_KEY": gang.key,
        "FAIRLEAD_PEERS": ",".join(peers),
        "FAIRLEAD_PORT": str(gang.port + 1),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(gang.port),
        "WORLD_SIZE": str(gang.size),
        "OMPI_COMM_WORLD_SIZE": str(gang.size),
    }


def rank_variables(gang: Gang, rank: int, node: str, alone: bool) -> dict[str, str]:
    """Return the variables that identify a member.

    `alone` is True if the member has its own GPUs. It sees only those, so its local rank is 0.
    """
    here: Flat = next((place.ranks for place in gang.places if place.node == node), ())
    beside = list(each_of(here))
    local = bisect_right(beside, rank - 1)
    which = next((at for at, place in enumerate(gang.places) if place.node == node), 0)
    local_rank, local_size = ("0", "1") if alone else (str(local), str(max(1, len(beside))))
    return {
        "RANK": str(rank),
        "FAIRLEAD_RANK": str(rank),
        "FAIRLEAD_LOCAL_RANK": str(local),
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": str(which),
        "NODE_RANK": str(which),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
    }


def _gpu_name(around: Surroundings, device: int) -> str:
    """Return the name of a GPU. GPUs that an operator added to the detected ones are named by number."""
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
    """Return indices as spans. Sorts the list in place."""
    numbers.sort()
    bounds: list[int] = []
    for number in numbers:
        if bounds and bounds[-1] == number:
            bounds[-1] = number + 1
        else:
            bounds += (number, number + 1)
    return tuple(bounds)
