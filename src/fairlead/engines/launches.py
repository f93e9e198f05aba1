"""Turns effects into orders for agents, with data from the state: specifications, users and gangs."""

from __future__ import annotations

import hmac
import signal
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fairlead.core import effects
from fairlead.core.effects import ForNode
from fairlead.core.model import Job, Stage, StageSpec
from fairlead.core.outcomes import live_of
from fairlead.core.ranges import Flat, Ranges, indices
from fairlead.core.resources import CPU, MEMORY, parse_duration
from fairlead.core.state import Partition
from fairlead.engines.engine import Secrets
from fairlead.wire.agent_messages import Gang, Launch, Meeting, Place, Spec, Stop, Tasks, Work
from fairlead.wire.task_token import TaskToken, seal

FIRST_PORT, PORTS = 20_000, 6_000
"""Ports for the rendezvous of gangs, below the range that systems assign by themselves."""
STEP = 1_009
"""Each generation of a gang uses the pair of ports that is this number of pairs after the last one."""

MAX_WORK = 8 << 20
"""Bytes of orders of one message. The last task in it may add a whole specification to them."""
REMEMBERED = 10_000
"""Gangs whose ports are remembered, and gangs that may wait for their ports."""

MAX_ENDS = 20

Address = Callable[[str], str]
"""Node name → address of the node."""
Chooses = Callable[[str], bool | None]
"""Node name → True if its agent chooses the ports of gangs; None if it has not connected yet."""


class Orders:
    """Turns messages to nodes of one partition into work for their agents."""

    def __init__(
        self,
        epoch: int,
        address: Address,
        secrets: Secrets,
        gang_seed: bytes,
        chooses: Chooses = lambda node: False,
    ) -> None:
        self._epoch = epoch
        self._address = address
        self._secrets = secrets
        self._gang_seed = gang_seed
        self._chooses = chooses
        self._meetings: dict[str, Meeting] = {}
        """Key of a generation of a gang → its ports."""
        self._waiting: dict[str, dict[str, None]] = {}
        """Key of a generation of a gang → nodes that get its launches when its ports are known."""

    def meet(self, meeting: Meeting) -> None:
        """Remember the ports of a gang. The first that are reported count."""
        self._meetings.setdefault(meeting.key, meeting)
        _forget_first(self._meetings)

    def waits_for_ports(self, node: str) -> bool:
        """True if launches for a node wait for the ports of their gang."""
        return any(node in nodes for nodes in self._waiting.values())

    def take_waiting(self) -> list[str]:
        """Return the nodes whose launches of gangs wait for ports, and forget them."""
        nodes = list(dict.fromkeys(node for nodes in self._waiting.values() for node in nodes))
        self._waiting.clear()
        return nodes

    def work(self, partition: Partition, message: ForNode, gangs: dict[int, Gang], standing: bool = False) -> Work:
        """Return the message for an agent. `gangs` caches gangs by the `id` of their first stage."""
        specs: dict[Spec, int] = {}
        """Distinct specifications in the order of their numbers. Many jobs may have the same specification."""
        spec_numbers: dict[tuple[int, str], int] = {}
        tokens: dict[int, str] = {}
        """Job number → the token of its tasks."""
        launches: list[Launch] = []
        texts: dict[str, int] = {}
        for effect in message.launches:
            job = partition.jobs.get(effect.job)
            stage = job.stage(effect.stage) if job is not None and job.number == effect.number else None
            if job is None or stage is None:
                continue  # the job was removed in the same cycle
            at = spec_numbers.get((effect.number, effect.stage))
            if at is None:
                at = spec_numbers[effect.number, effect.stage] = specs.setdefault(
                    self._spec(partition, job, stage), len(specs)
                )
            gang = self._gang(partition, stage, effect.indices, gangs) if _is_gang(stage) else None
            if gang is not None and not gang.port and not (gang.places and gang.places[0].node == message.node):
                self._waiting.setdefault(gang.key, {})[message.node] = None
                _forget_first(self._waiting)
                continue
            chosen = map(stage.spec.values, indices(effect.indices)) if stage.spec.parameters else ()
            values = tuple(tuple(texts.setdefault(value, len(texts)) for value in of_task) for of_task in chosen)
            token = tokens.get(job.number, "")
            if not token:
                token = tokens[job.number] = seal(self._gang_seed, TaskToken(partition.name, job.number, job.id))
            before = _ends_before(stage, effect.indices) if effect.attempt > 1 else ()
            launch = Launch(
                tasks_of(effect), at, effect.devices, effect.chain, effect.slots, gang, values, token, before
            )
            if launches and _can_join(launches[-1], launch):
                launches[-1] = _joined(launches[-1], launch)
            else:
                launches.append(launch)
        return Work(
            self._epoch, tuple(specs), tuple(launches), stops_of(partition, message), standing, texts=tuple(texts)
        )

    def _spec(self, partition: Partition, job: Job, stage: Stage) -> Spec:
        spec, settings = stage.spec, partition.settings
        needs = dict(spec.resources)
        values = self._secrets(job.spec.user, tuple(name for _, name in spec.secrets)) if spec.secrets else {}
        return Spec(
            spec.command,
            spec.environment,
            spec.directory,
            needs.get(CPU, 0),
            needs.get(MEMORY, 0),
            tuple((variable, values[name]) for variable, name in spec.secrets if name in values),
            job.spec.user,
            spec.output,
            spec.error,
            spec.results,
            settings.max_result_files if spec.results else 0,
            settings.max_result_bytes if spec.results else 0,
            tuple(name for name, _ in spec.parameters),
            "pty" if spec.pty else "pipe" if spec.stdin else "",
            *_signal_of(spec),
            spec.image,
            spec.mounts,
            spec.snapshot,
        )

    def _gang(self, partition: Partition, stage: Stage, block: Flat, gangs: dict[int, Gang]) -> Gang:
        """Return the gang of a launch, with the ranks of its tasks. A replacement task has the rank of the lost one.

        Ports and key are those of the generation, so that members of an earlier one cannot meet those of this one. The
        ports are chosen by the agent of the first member when it starts, because other users could bind them earlier.
        They are derived from the job's number if that agent is of a version that does not choose.
        """
        stages = stage.gang()
        whole = gangs.get(id(stages[0]))
        if whole is None:
            places: dict[int, list[int]] = {}
            first_node = ""
            for member in stages:
                for allocation in live_of(member):
                    if allocation.state != "stopping":
                        ranks = ranks_of(member, allocation.indices)
                        places.setdefault(allocation.node, []).extend(ranks)
                        if allocation.state == "assigned" and 0 in ranks:
                            first_node = partition.nodes.name[partition.nodes.rows[allocation.node]]
            number, position, generation = stage.job.number, stages[0].position, stage.generation
            turn = number * 31 + position + STEP * max(0, generation - 1)
            port = FIRST_PORT + 2 * (turn % PORTS)
            key = self._gang_key(partition.name, number, position, generation)
            size = stage.world_size() if generation else sum(member.count for member in stages)
            barrier = 0
            if key in self._meetings:
                _, port, barrier = msgspec.structs.astuple(self._meetings[key])
            elif first_node and self._chooses(first_node) is not False:
                port = 0
            whole = Gang(size, 0, port, tuple(self._places(partition, places)), key, generation, (), barrier)
            gangs[id(stages[0])] = whole
        ranks = ranks_of(stage, block)
        first = ranks[0] - block[0]
        dense = ranks == [first + index for index in indices(block)]
        if dense and not first:
            return whole
        return msgspec.structs.replace(whole, first=first, ranks=() if dense else tuple(ranks))

    def _gang_key(self, partition: str, number: int, position: int, generation: int) -> str:
        """Return the key of a gang. It is derived, so a member that starts after a server restart has the same key."""
        name = f"{partition}\0{number}\0{position}" + (f"\0{generation}" if generation else "")
        return hmac.new(self._gang_seed, name.encode(), "sha256").hexdigest()

    def _places(self, partition: Partition, places: dict[int, list[int]]) -> Iterable[Place]:
        for node_id, ranks in sorted(places.items(), key=lambda item: min(item[1])):
            name = partition.nodes.name[partition.nodes.rows[node_id]]
            yield Place(name, self._address(name), Ranges.from_indices(ranks).flat())


def parts_of(work: Work, most: int = MAX_WORK) -> list[Work]:
    """Return orders as messages of about `most` bytes, because an agent accepts none that is too large.

    Standing orders name all tasks once more at the end, without their specifications, which the agent has by then.
    """
    if sum(map(_size, work.specs)) + sum(map(len, work.texts)) <= most:
        return [work]
    parts: list[Work] = []
    specs: dict[int, int] = {}
    texts: dict[int, int] = {}
    launches: list[Launch] = []
    size = 0

    def close() -> None:
        nonlocal size
        chosen = tuple(work.specs[at] for at in specs), tuple(launches)
        parts.append(Work(work.epoch, *chosen, texts=tuple(work.texts[at] for at in texts)))
        specs.clear()
        texts.clear()
        launches.clear()
        size = 0

    for launch in work.launches:
        for piece in _single_tasks(launch) if launch.values and launch.gang is None else (launch,):
            if size > most:
                close()
            size += _size(work.specs[piece.spec]) * (piece.spec not in specs)
            size += sum(len(work.texts[at]) for values in piece.values for at in values if at not in texts)
            values = tuple(tuple(texts.setdefault(at, len(texts)) for at in of_task) for of_task in piece.values)
            spec = specs.setdefault(piece.spec, len(specs))
            launches.append(msgspec.structs.replace(piece, spec=spec, values=values))
    close()
    parts[0] = msgspec.structs.replace(parts[0], stops=work.stops, confirmed=work.confirmed)
    if work.standing:
        users = dict.fromkeys(spec.user for spec in work.specs)
        at_user = {user: at for at, user in enumerate(users)}
        named = [
            msgspec.structs.replace(launch, spec=at_user[work.specs[launch.spec].user], values=())
            for launch in work.launches
        ]
        parts.append(Work(work.epoch, tuple(Spec((), user=user) for user in users), tuple(named), standing=True))
    return parts


def _single_tasks(launch: Launch) -> Iterable[Launch]:
    """Return a launch of tasks with parameters as one for each task."""
    tasks, devices = launch.tasks, len(launch.devices) // len(launch.values)
    for at, index in enumerate(indices(tasks.indices)):
        yield msgspec.structs.replace(
            launch,
            tasks=msgspec.structs.replace(tasks, indices=(index, index + 1)),
            devices=launch.devices[at * devices : (at + 1) * devices],
            values=launch.values[at : at + 1],
        )


def _size(spec: Spec) -> int:
    """Return about how many bytes a specification has in a message."""
    return sum(map(len, spec.command)) + sum(len(name) + len(value) for name, value in spec.environment)


def _forget_first(remembered: dict[str, Any]) -> None:
    while len(remembered) > REMEMBERED:
        del remembered[next(iter(remembered))]


def stops_of(partition: Partition, message: ForNode) -> tuple[Stop, ...]:
    return tuple(Stop(tasks_of(stop), stop.cause, _grace_of(partition, stop)) for stop in message.stops)


def _grace_of(partition: Partition, stop: effects.Stop) -> int:
    """Return the grace of a stage; 0 if it names none, or its job is gone."""
    job = partition.jobs.get(stop.job)
    stage = job.stage(stop.stage) if job is not None and job.number == stop.number else None
    return 0 if stage is None else stage.terms.grace or 0


def ranks_of(stage: Stage, block: Flat) -> list[int]:
    """Return the ranks of tasks in their gang. In gangs from before there were generations, they follow the indices."""
    before = sum(member.count for member in stage.gang()[: stage.gang().index(stage)]) if stage.job.whole else 0
    ranks = ((index, stage.rank(index)) for index in indices(block))
    return [before + index if rank is None else rank for index, rank in ranks]


def _signal_of(spec: StageSpec) -> tuple[int, int, int]:
    """Return the number of the signal of a stage, the run time after which its tasks get it, and their time limit.

    0 stands for none.
    """
    limit = spec.time_limit or 0
    if not spec.signal:
        return 0, 0, limit
    name, _, before = spec.signal.partition("@")
    after = max(1, limit - parse_duration(before, "signal")) if before and limit else 0
    return signal.Signals[f"SIG{name}"].value, after, limit


def _ends_before(stage: Stage, block: Flat) -> tuple[tuple[str, Flat], ...]:
    """Return how the last attempts of tasks ended: at most `MAX_ENDS` outcomes, each with its tasks."""
    ended: dict[str, list[int]] = {}
    for index in indices(block):
        if (reason := stage.past(index).reason) and (reason in ended or len(ended) < MAX_ENDS):
            ended.setdefault(reason, []).append(index)
    return tuple((reason, Ranges.from_indices(found).flat()) for reason, found in ended.items())


def _is_gang(stage: Stage) -> bool:
    return stage.job.whole or stage.min > 1


def tasks_of(effect: effects.Launch | effects.Stop) -> Tasks:
    return Tasks(effect.job, effect.number, effect.stage, effect.attempt, effect.indices)


def _can_join(first: Launch, second: Launch) -> bool:
    """True if two launches can be sent as one. An array that is placed task by task has many such launches."""
    before, after = first.tasks, second.tasks
    return (
        (before.number, before.stage, before.attempt) == (after.number, after.stage, after.attempt)
        and (first.chain, first.slots) == (second.chain, second.slots)
        and not first.devices
        and not second.devices
        and first.gang is None
        and not (first.before or second.before)
        and before.indices[-1] <= after.indices[0]
    )


def _joined(first: Launch, second: Launch) -> Launch:
    tasks = msgspec.structs.replace(first.tasks, indices=join(first.tasks.indices, second.tasks.indices))
    return msgspec.structs.replace(first, tasks=tasks, values=first.values + second.values)


def join(first: Flat, second: Flat) -> Flat:
    """Return the union of two sets of indices. All indices of `second` are above those of `first`."""
    return (*first[:-1], *second[1:]) if first[-1] == second[0] else first + second
