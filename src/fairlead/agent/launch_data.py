"""Turns a launch into data for the spawner: environment, gang, GPUs and working directory of the tasks."""

from __future__ import annotations

import os
import pwd
from bisect import bisect_right
from collections.abc import Mapping

import msgspec

from fairlead.agent.spawner.records import OWN_FOLDER, PARAMETER, Spec
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import Gang, Launch
from fairlead.wire.index_spans import each_index

KEPT = frozenset("PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR LD_LIBRARY_PATH".split())
"""Variables of the agent that its tasks inherit. All others, such as tokens, are hidden from tasks."""
PERSONAL = frozenset("HOME USER LOGNAME SHELL TMPDIR".split())
"""Inherited variables that differ between users."""
OF_NODE = frozenset(("PATH", "LD_LIBRARY_PATH", "SHELL"))
"""Inherited variables that mean nothing in a container."""
NOWHERE: Mapping[str, str] = {}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables from which libraries take their number of threads. Most libraries read the first if their own is not
set."""


SERVER = ("FAIRLEAD_URL", "FAIRLEAD_TOKEN")
NO_SPEC = wire.Spec(())


class Surroundings(msgspec.Struct, frozen=True):
    node: str
    directory: str
    """Working directory of tasks that name none; empty for the home of their user."""
    environment: dict[str, str]
    gpus: tuple[str, ...] = ()
    server: dict[str, str] = {}
    """The variables with which tasks find the server, without the token."""
    checkpoints: str = ""
    """A folder for checkpoints of tasks that the nodes of a site share; empty if there is none."""


def personal_variables() -> dict[str, str]:
    """Return the variables that describe the user of this process, from the user database."""
    try:
        person = pwd.getpwuid(os.geteuid())
    except KeyError:
        return {}
    return {"HOME": person.pw_dir, "USER": person.pw_name, "LOGNAME": person.pw_name, "SHELL": person.pw_shell}


def surroundings(
    node: str, gpus: tuple[str, ...], inherited: Mapping[str, str], as_users: bool, server: Mapping[str, str] = NOWHERE
) -> Surroundings:
    """Return the settings that all tasks of a node share. `server` are the variables with which they find the server.

    With `as_users`, tasks run as their users. Then the personal variables are left out, because the spawner of each
    user sets them.
    """
    kept = {name: value for name, value in inherited.items() if name in KEPT or name.startswith("LC_")}
    if as_users:
        shared = {name: value for name, value in kept.items() if name not in PERSONAL}
        return Surroundings(node, "", shared, gpus, dict(server))
    home = kept.get("HOME", "/")
    return Surroundings(node, home if os.path.isdir(home) else "/", kept, gpus, dict(server))


def spawner_spec(around: Surroundings, launch: Launch, spec: wire.Spec) -> Spec:
    """Return the data shared by the tasks of a launch, and by other launches with the same specification.

    Variables of GPUs and gangs override those of the job, so that a job cannot give itself a GPU. The spawner adds the
    variables that identify the task.
    """
    chosen = dict(spec.environment) | dict(spec.secrets)
    # The thread variables follow the CPUs of the task, unless the job sets the one that all libraries read.
    threads = {} if THREADS[0] in chosen else dict.fromkeys(THREADS, str(max(1, -(-spec.cpu // 1000))))
    environment = around.environment | around.server | threads | chosen
    environment["FAIRLEAD_NODE"] = around.node
    if around.gpus and not launch.devices:
        environment |= _gpu_variables("")
    if launch.gang is not None:
        environment |= gang_variables(launch.gang)
    directory = spec.directory or around.directory
    results = (spec.results, spec.max_result_files, spec.max_result_bytes) if spec.results else None
    if around.checkpoints and "FAIRLEAD_CHECKPOINT" not in chosen:
        environment["FAIRLEAD_CHECKPOINT"] = f"{around.checkpoints}/{OWN_FOLDER}"
    signals = (spec.signal, spec.signal_after, spec.time_limit)
    files = (spec.output, spec.error, results)
    if spec.image:
        for name in OF_NODE - chosen.keys():
            environment.pop(name, None)
    inside = (spec.image, spec.mounts, spec.snapshot)
    return spec.command, environment, directory, spec.cpu, spec.memory, *files, spec.stdin, signals, inside


def own_variables(
    around: Surroundings, launch: Launch, spec: wire.Spec = NO_SPEC, texts: tuple[str, ...] = ()
) -> list[dict[str, str]] | None:
    """Return the variables of each task of a launch; None if there are none beside those of its specification.

    The token is one of them, because launches of different jobs share a specification. A job with a token or a server
    of its own gets none.
    """
    token: dict[str, str] = {}
    if launch.token and around.server and not any(name in SERVER for name, _ in (*spec.environment, *spec.secrets)):
        token = {"FAIRLEAD_TOKEN": launch.token}
    indices = list(each_index(launch.tasks.indices))
    parts = (
        _last_ends(launch, indices),
        [{PARAMETER + name: texts[at] for name, at in zip(spec.parameters, of, strict=True)} for of in launch.values],
        _gpus(launch, around, len(indices)),
        _ranks(launch, around, indices),
    )
    if not any(parts):
        return [token] * len(indices) if token else None
    own = [dict(token) for _ in indices]
    for part in filter(None, parts):
        for variables, more in zip(own, part, strict=True):
            variables.update(more)
    return own


def _last_ends(launch: Launch, indices: list[int]) -> list[dict[str, str]]:
    ends = {index: {"FAIRLEAD_LAST_END": reason} for reason, block in launch.before for index in each_index(block)}
    return [ends.get(index, {}) for index in indices] if ends else []


def _gpus(launch: Launch, around: Surroundings, tasks: int) -> list[dict[str, str]]:
    if not launch.devices:
        return []
    # GPUs that an operator added to the detected ones are named by number.
    names = [around.gpus[gpu] if gpu < len(around.gpus) else str(gpu) for gpu in launch.devices]
    per_task = len(names) // tasks
    return [_gpu_variables(",".join(names[at * per_task : (at + 1) * per_task])) for at in range(tasks)]


def _ranks(launch: Launch, around: Surroundings, indices: list[int]) -> list[dict[str, str]]:
    gang = launch.gang
    if gang is None:
        return []
    ranks = gang.ranks or [gang.first + index for index in indices]
    return [rank_variables(gang, rank, around.node, alone=bool(launch.devices)) for rank in ranks]


def gang_variables(gang: Gang) -> dict[str, str]:
    """Return the variables with the addresses of all members, and the address and port where they meet."""
    peers, nodes = [""] * gang.size, [""] * gang.size
    for place in gang.places:
        for rank in each_index(place.ranks):
            if rank < gang.size:
                peers[rank], nodes[rank] = place.address, place.node
    first = peers[0] or (gang.places[0].address if gang.places else "")
    generation = {"FAIRLEAD_GENERATION": str(gang.generation)} if gang.generation else {}
    return generation | {
        "FAIRLEAD_GANG_KEY": gang.key,
        "FAIRLEAD_PEERS": ",".join(peers),
        "FAIRLEAD_NODES": ",".join(nodes),
        "FAIRLEAD_PORT": str(gang.barrier or gang.port + 1),
        "MASTER_ADDR": first,
        "MASTER_PORT": str(gang.port),
        "WORLD_SIZE": str(gang.size),
        "OMPI_COMM_WORLD_SIZE": str(gang.size),
    }


def rank_variables(gang: Gang, rank: int, node: str, alone: bool) -> dict[str, str]:
    """Return the variables that identify a member.

    `alone` is True if the member has its own GPUs. It sees only those, so its local rank is 0.
    """
    which, here = next(((at, place.ranks) for at, place in enumerate(gang.places) if place.node == node), (0, ()))
    beside = list(each_index(here))
    local = bisect_right(beside, rank - 1)
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


def _gpu_variables(names: str) -> dict[str, str]:
    return {
        "CUDA_VISIBLE_DEVICES": names,
        "NVIDIA_VISIBLE_DEVICES": names or "void",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
