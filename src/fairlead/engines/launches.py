"""From effects to orders for an agent, with what only the state knows: specifications, users and gangs."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable

import msgspec

from fairlead.core import effects
from fairlead.core.effects import ForNode
from fairlead.core.model import Job, Stage
from fairlead.core.outcomes import live_of
from fairlead.core.ranges import Flat, Ranges, indices
from fairlead.core.resources import CPU, MEMORY
from fairlead.core.state import Partition
from fairlead.engines.base import Secrets
from fairlead.wire.agent import Gang, Launch, Place, Spec, Stop, Tasks, Work

FIRST_PORT, PORTS = 20_000, 6_000
"""Where gangs meet: below what systems give out by themselves."""

Address = Callable[[str], str]
"""A node's name → where it is reached."""


class Orders:
    """Turns messages to nodes of one partition into work for their agents."""

    def __init__(self, epoch: int, address: Address, secrets: Secrets, gang_seed: bytes) -> None:
        self._epoch = epoch
        self._address = address
        self._secrets = secrets
        self._gang_seed = gang_seed

    def work(self, partition: Partition, message: ForNode, gangs: dict[int, Gang], standing: bool = False) -> Work:
        """`gangs` keeps those that were worked out already, by the `id` of their first stage."""
        specs: dict[Spec, int] = {}
        """Each once, in the order of their numbers: in a flood many jobs run the same."""
        known: dict[tuple[int, str], int] = {}
        launches: list[Launch] = []
        for each in message.launches:
            job = partition.jobs.get(each.job)
            stage = job.stage(each.stage) if job is not None and job.number == each.number else None
            if job is None or stage is None:
                continue  # it went in the same cycle
            at = known.get((each.number, each.stage))
            if at is None:
                at = known[each.number, each.stage] = specs.setdefault(self._spec(job, stage), len(specs))
            launch = Launch(
                _tasks(each),
                at,
                each.devices,
                each.chain,
                each.rooms,
                self._gang(partition, stage, gangs) if _is_gang(stage) else None,
            )
            if launches and _alike(launches[-1], launch):
                launches[-1] = _joined(launches[-1], launch)
            else:
                launches.append(launch)
        return Work(self._epoch, tuple(specs), tuple(launches), stops_of(message), standing)

    def _spec(self, job: Job, stage: Stage) -> Spec:
        spec = stage.spec
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
        )

    def _gang(self, partition: Partition, stage: Stage, gangs: dict[int, Gang]) -> Gang:
        """Ranks go by stage and index, so that one who comes in another's place has its rank."""
        stages = stage.gang()
        whole = gangs.get(id(stages[0]))
        if whole is None:
            places: dict[int, list[int]] = {}
            first = 0
            for each in stages:
                for allocation in live_of(each):
                    if allocation.state != "stopping":
                        ranks = (first + index for index in indices(allocation.indices))
                        places.setdefault(allocation.node, []).extend(ranks)
                first += each.count
            port = FIRST_PORT + 2 * ((stage.job.number * 31 + stages[0].position) % PORTS)
            key = self._gang_key(partition.name, stage.job.number, stages[0].position)
            whole = gangs[id(stages[0])] = Gang(first, 0, port, tuple(self._places(partition, places)), key)
        before = sum(each.count for each in stages[: stages.index(stage)])
        return msgspec.structs.replace(whole, first=before) if before else whole

    def _gang_key(self, partition: str, number: int, position: int) -> str:
        """Return the key of a gang: derived, so that a member that comes after a restart has the same one."""
        name = f"{partition}\0{number}\0{position}".encode()
        return hmac.new(self._gang_seed, name, "sha256").hexdigest()

    def _places(self, partition: Partition, places: dict[int, list[int]]) -> Iterable[Place]:
        for join, ranks in sorted(places.items(), key=lambda item: min(item[1])):
            name = partition.nodes.name[partition.nodes.rows[join]]
            yield Place(name, self._address(name), Ranges.from_indices(ranks).flat())


def stops_of(message: ForNode) -> tuple[Stop, ...]:
    return tuple(Stop(_tasks(each), each.cause) for each in message.stops)


def _is_gang(stage: Stage) -> bool:
    return stage.job.whole or stage.min > 1


def _tasks(of: effects.Launch | effects.Stop) -> Tasks:
    return Tasks(of.job, of.number, of.stage, of.attempt, of.indices)


def _alike(one: Launch, other: Launch) -> bool:
    """Whether two launches can be one. An array that is placed task by task has many of these."""
    a, b = one.tasks, other.tasks
    return (
        (a.number, a.stage, a.attempt, one.chain, one.rooms) == (b.number, b.stage, b.attempt, other.chain, other.rooms)
        and not one.devices
        and not other.devices
        and one.gang is None
        and a.indices[-1] <= b.indices[0]
    )


def _joined(one: Launch, other: Launch) -> Launch:
    return msgspec.structs.replace(
        one, tasks=msgspec.structs.replace(one.tasks, indices=join(one.tasks.indices, other.tasks.indices))
    )


def join(a: Flat, b: Flat) -> Flat:
    """Two sets of which all of the second lies behind the first."""
    return (*a[:-1], *b[1:]) if a[-1] == b[0] else a + b
