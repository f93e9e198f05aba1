"""Priced packing: how many GPUs are expected to be lost on a node in a given state. docs/packing.md explains the rule.

A node loses the parts of its GPUs that no mix of the usual requests can fill, and the GPUs that will idle because its
CPU or another resource runs out first. Room that few nodes have, for several GPUs at once or for tasks that may not run
everywhere, counts against the loss. Where tasks end, so does room that a node will have when a few of them have ended.
All amounts are integers; losses are in millionths of a GPU.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import erfc, exp, isqrt, pi, sqrt
from typing import Any, Literal, NamedTuple, TypeVar

from fairlead.core.policy.fit import WHOLE
from fairlead.core.policy.fragmentation import Task
from fairlead.core.policy.shareprices import UNITS, values_of_room

MICRO = 1_000_000
"""A GPU."""
UNIT = WHOLE // UNITS

# The constants of the rule, in percent.
LACK = 35
"""The part of a GPU that counts as lost if it is expected to idle for lack of another resource."""
NEED = 55
"""The part of the usual need of other resources that is reckoned with."""
SPREAD = 30
"""The part of the usual deviation from that need."""
SCARCE = 2
"""The value of room that few nodes have, where tasks do not end."""
SCARCE_ENDING = 10
"""The same where all tasks end: the GPUs of a node without room would idle while it is emptied for a large task."""

TIGHT = 80
"""A resource other than CPU counts if the usual requests for all GPUs would take this part of it."""

MAX_SHARES = 50
MAX_SCARCE = 500
MAX_KEPT = 100_000

BINS = 32
BOUND = 5
EXCESS = [
    round(MICRO * (z * erfc(-z / sqrt(2)) / 2 + exp(-z * z / 2) / sqrt(2 * pi)))
    for z in [at / BINS for at in range(-BOUND * BINS, BOUND * BINS + 1)]
]
"""By what a normal variable is expected to exceed a bound: for each 32nd of a deviation from -5 to 5 above the bound,
in millionths of the deviation. Rounded, so that the values are the same on every machine; a test compares them."""


SMALL = MICRO // 100
"""A loss that does not count in explanations."""

Good = Literal["full", "parts", "others", "least"]
"""What is good about a node that was chosen: no idle GPU, no useless part, enough of other resources, or the least
expected loss."""

Value = TypeVar("Value")


class Usual(NamedTuple):
    """A usual request, with the number of its tasks."""

    task: Task
    weight: int
    kinds: frozenset[int]
    """The kinds of nodes with GPUs that accept it, by their number."""


Capacities = Mapping[tuple[tuple[int, ...], int], int]
"""The nodes of one kind when they are empty: resources and number of GPUs → number of nodes."""


class Need(NamedTuple):
    """The need of one resource beside GPUs, for nodes of one kind."""

    mean: int
    """What tasks with GPUs ask for, in millionths of a unit for each GPU."""
    square: int
    """The mean square of what they ask for, for each GPU."""
    steps: tuple[int, ...]
    """Amounts that tasks without GPUs ask for, sorted."""
    others: tuple[int, ...]
    """What tasks without GPUs ask for in total, up to each of the steps; as `mean`."""


class Room(NamedTuple):
    """The room that the devices of a node have for a request."""

    tasks: int
    missing: int
    """The devices that tasks must leave before there is room for another one; 0 if there never is."""


class Scarce(NamedTuple):
    """Usual requests for the same GPUs, which few nodes have room for: their other amounts, and the value of room."""

    devices: int
    milli: int
    rows: list[tuple[tuple[int, ...], int]]
    ready: Sequence[int] = ()
    """For each number of devices that are missing, the part of its value that room has, in millionths; empty if tasks
    do not end."""

    def room(self, used: Sequence[int]) -> Room:
        if self.milli < WHOLE:
            return Room(sum([(WHOLE - device) // self.milli for device in used]), 0)
        tasks, rest = divmod(used.count(0), self.devices)
        return Room(tasks, self.devices - rest if self.devices * (tasks + 1) <= len(used) else 0)

    def value(self, room: Room, free: Sequence[int]) -> int:
        total = 0
        for amounts, value in self.rows:
            tasks = room.tasks
            for amount, available in zip(amounts, free, strict=True):
                if amount * tasks > available:
                    tasks = max(0, available // amount)
            total += value * tasks
            if self.ready and (room.missing or tasks < room.tasks):
                missing = room.missing if tasks == room.tasks else 0
                for amount, available in zip(amounts, free, strict=True):
                    lacking = amount * (tasks + 1) - available
                    if lacking > 0:  # a device comes with its part of the other resources
                        missing = max(missing, -(-lacking * self.devices // amount))
                total += value * self.ready[min(missing, len(self.ready) - 1)] // MICRO
        return total


class Prices:
    """What is expected to be lost on nodes of one kind. `names` are the resources that count, by their positions."""

    def __init__(
        self, names: Sequence[int], waste: Sequence[int], needs: Sequence[Need], scarce: Sequence[Scarce]
    ) -> None:
        self._names = names
        self._waste = waste
        """Free units of a device → the part of them that nothing can fill."""
        self._needs = needs
        self._scarce = scarce
        self._of_state: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        # The parts of a loss depend on few values each, so they are found again more often than whole states.
        self._of_devices: dict[tuple[int, ...], tuple[int, int, tuple[Room, ...]]] = {}
        self._of_lack: dict[tuple[int, tuple[int, ...]], int] = {}
        self._of_room: list[dict[tuple[Room, tuple[int, ...]], int]] = [{} for _ in scarce]

    def lost(self, free: Sequence[int], used: tuple[int, ...]) -> int:
        """Return what is expected to be lost on a node with these free amounts and this use of its devices."""
        at = (used, self._counting(free))
        lost = self._of_state.get(at)
        if lost is None:
            waste, lack, room = self.parts(free, used)
            lost = _keep(self._of_state, at, waste + lack - room)
        return lost

    def parts(self, free: Sequence[int], used: tuple[int, ...]) -> tuple[int, int, int]:
        """Return unusable parts of GPUs, GPUs that lack another resource, and the value of scarce room."""
        devices = self._of_devices.get(used)
        if devices is None:
            devices = self._see_devices(used)
        waste, idle, rooms = devices
        if not idle:
            return 0, 0, 0
        counting = self._counting(free)
        at = (idle, counting)
        lack = self._of_lack.get(at)
        if lack is None:
            missing = [_lacking(need, amount, idle) for need, amount in zip(self._needs, counting, strict=True)]
            lack = _keep(self._of_lack, at, LACK * max(missing) // 100)
        total = 0
        for scarce, room, values in zip(self._scarce, rooms, self._of_room, strict=True):
            if room.tasks or room.missing:
                key = (room, counting)
                value = values.get(key)
                total += _keep(values, key, scarce.value(room, counting)) if value is None else value
        return waste, lack, total

    def good(self, free: Sequence[int], used: tuple[int, ...], split: Sequence[int]) -> Good:
        """Return what is good about a node in a state; `split` has the use of devices of which a task has a part."""
        if all(device >= WHOLE for device in used):
            return "full"
        if split and all(self._waste[max(0, WHOLE - device) // UNIT] <= SMALL for device in split):
            return "parts"
        return "others" if self.parts(free, used)[1] <= SMALL else "least"

    def _counting(self, free: Sequence[int]) -> tuple[int, ...]:
        return (free[0],) if len(self._names) == 1 else tuple([free[name] for name in self._names])

    def _see_devices(self, used: tuple[int, ...]) -> tuple[int, int, tuple[Room, ...]]:
        waste = sum([self._waste[max(0, WHOLE - device) // UNIT] for device in used])
        rooms = tuple([scarce.room(used) for scarce in self._scarce])
        return _keep(self._of_devices, used, (waste, WHOLE * len(used) - sum(used), rooms))


def _keep(values: dict[Any, Value], key: object, value: Value) -> Value:
    if len(values) >= MAX_KEPT:
        values.clear()
    values[key] = value
    return value


def prices_of(mix: Sequence[Usual], kinds: Sequence[Capacities], waste: Sequence[int], ending: int) -> list[Prices]:
    """Return the prices for nodes of each kind.

    `waste` is the result of `waste_of` for the mix; `ending` is the percentage of the GPUs whose tasks end.
    """
    asking = [usual for usual in mix if usual.task.devices]
    gpu = sum([usual.weight * usual.task.gpu for usual in asking])
    names = _counting(mix, kinds, gpu)
    others = [_others(mix, name, gpu) for name in names]
    scarce = _scarce(asking, kinds, names, SCARCE * 100 + (SCARCE_ENDING - SCARCE) * ending)
    most = max([devices for kind in kinds for _, devices in kind], default=0)
    # Each of the missing devices is free in time with half of the probability that its task ends at all.
    ready = tuple([MICRO * ending**missing // 200**missing for missing in range(most + 1)]) if ending else ()
    prices: list[Prices] = []
    for kind in range(len(kinds)):
        here = [usual for usual in asking if kind in usual.kinds]
        needs = [_need(here, name, *other) for name, other in zip(names, others, strict=True)]
        prices.append(Prices(names, waste, needs, _by_devices(scarce, kind, ready)))
    return prices


def _counting(mix: Sequence[Usual], kinds: Sequence[Capacities], gpu: int) -> list[int]:
    """Return the positions of CPU and of the other resources that may run out before the GPUs."""
    devices = sum([count * nodes for kind in kinds for (_, count), nodes in kind.items()])
    names = [0]
    for name in range(1, len(mix[0].task.amounts) if mix else 0):
        asked = sum([usual.weight * usual.task.amounts[name] for usual in mix])
        capacity = sum([amounts[name] * nodes for kind in kinds for (amounts, _), nodes in kind.items()])
        if 100 * asked * WHOLE * devices > TIGHT * capacity * gpu:
            names.append(name)
    return names


# ---- unusable shares


def waste_of(mix: Sequence[tuple[Task, int]]) -> list[int]:
    """Return for 0 to 100 free units of a device the part that no usual requests can fill. It is below 0 for parts that
    are worth more than their size, because they fill a device well together with others."""
    asked: dict[int, int] = {}
    for task, weight in mix:
        if not task.devices:
            continue
        share = -(-task.milli // UNIT)
        asked[share] = asked.get(share, 0) + weight * task.devices
    most = sorted(asked, key=lambda share: (-asked[share], share))[:MAX_SHARES]
    values = values_of_room({share: asked[share] for share in most}, MICRO)
    return [MICRO * room // UNITS - value for room, value in enumerate(values)]


# ---- lack of other resources


def _others(mix: Sequence[Usual], name: int, gpu: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    asked: dict[int, int] = {}
    for task, weight, _ in mix:
        if not task.devices:
            asked[task.amounts[name]] = asked.get(task.amounts[name], 0) + weight * task.amounts[name]
    steps = tuple(sorted(asked))
    sums = accumulate([asked[step] for step in steps], initial=0)
    return steps, tuple([amount * WHOLE * MICRO // max(1, gpu) for amount in sums])


def _need(here: Sequence[Usual], name: int, steps: tuple[int, ...], others: tuple[int, ...]) -> Need:
    gpu = sum([weight * task.gpu for task, weight, _ in here])
    if not gpu:
        return Need(0, 0, (), (0,))
    total = sum([weight * task.amounts[name] for task, weight, _ in here])
    squares = sum([weight * task.amounts[name] ** 2 for task, weight, _ in here])
    return Need(total * WHOLE * MICRO // gpu, squares * WHOLE // gpu, steps, others)


def _lacking(need: Need, available: int, idle: int) -> int:
    """Return the part of the idle GPU for which a resource is expected to be missing."""
    mean = NEED * (need.mean + need.others[bisect_right(need.steps, available)]) // 100
    if not mean:
        return 0
    deviation = SPREAD * isqrt(need.square * idle // WHOLE) // 100 + 1
    above = mean * idle // (WHOLE * MICRO) - available
    at, rest = divmod(above * BINS, deviation)
    at += BOUND * BINS
    if at < 0:
        return 0
    if at >= len(EXCESS) - 1:
        return above * MICRO * MICRO // mean
    excess = EXCESS[at] * (deviation - rest) + EXCESS[at + 1] * rest  # millionths of a unit
    return excess * MICRO // mean


# ---- scarce room


class Rare(NamedTuple):
    task: Task
    value: int
    kinds: frozenset[int]


def _scarce(asking: Sequence[Usual], kinds: Sequence[Capacities], names: Sequence[int], part: int) -> list[Rare]:
    """Return the requests that not every node with GPUs has room for, each with the value of room for one task.

    All room for a request together is worth `part` ten-thousandths of what the request usually asks for."""
    everywhere = frozenset(range(len(kinds)))
    gpus = sum([devices * nodes for kind in kinds for (_, devices), nodes in kind.items()])
    asked = sum([usual.weight * usual.task.gpu for usual in asking])
    rare = [usual for usual in asking if usual.kinds and (usual.task.devices > 1 or usual.kinds != everywhere)]
    rare.sort(key=lambda usual: (-usual.weight * usual.task.gpu, usual.task, sorted(usual.kinds)))
    scarce: list[Rare] = []
    for task, weight, where in rare[:MAX_SCARCE]:
        amounts = tuple([task.amounts[name] for name in names])
        row = Scarce(task.devices, task.milli, [(amounts, 1)])
        room = 0
        for kind in sorted(where):
            for (capacity, devices), nodes in kinds[kind].items():
                room += nodes * row.value(row.room((0,) * devices), [capacity[name] for name in names])
        value = part * MICRO * weight * task.gpu * gpus // (10_000 * asked * max(1, room))
        scarce.append(Rare(Task(amounts, task.devices, task.milli), value, where))
    return scarce


def _by_devices(scarce: Sequence[Rare], kind: int, ready: Sequence[int]) -> list[Scarce]:
    groups: dict[tuple[int, int], dict[tuple[int, ...], int]] = {}
    for task, value, where in scarce:
        if kind in where:
            rows = groups.setdefault((task.devices, task.milli), {})
            rows[task.amounts] = rows.get(task.amounts, 0) + value
    return [Scarce(*demand, list(rows.items()), ready) for demand, rows in groups.items()]
