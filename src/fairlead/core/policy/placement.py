"""Which of the nodes that fit a task should take it.

A placement gives a node a score for a task, and the node with the lowest score is taken; it also says which devices the
task gets there. It may look at a `Node`, which holds all that matters of it, so that nodes in an equal state have equal
scores and one of them stands for all. Whether a node fits has been asked before. Of nodes with equal scores the one
that joined first is taken, or one is drawn, if the placement says so.

Another placement is another function of this signature and a row in `PLACEMENTS`. Everything is an integer: fractions
are in millionths, rounded down. `pack`, the default, is not here: the index of fitting nodes has its order built in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from operator import itemgetter, sub
from typing import NamedTuple

from fairlead.core.policy.fit import WHOLE, choose_devices
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.registry import Registry

Key = tuple[int, ...]

MILLION = 1_000_000
STEP = 40
"""Milli-GPU: losses that differ by less are equal to `fgd`."""


class Node(NamedTuple):
    """All that a placement may know of a node. Resources are in the order of `Task.amounts`."""

    capacity: tuple[int, ...]
    free: tuple[int, ...]
    used: tuple[int, ...]
    """What is used of each device, in milli-GPU."""

    @property
    def gpu(self) -> int:
        """What is free of all its devices together."""
        return WHOLE * len(self.used) - sum(self.used)


class Fleet(NamedTuple):
    """What a placement may know beyond the node: the largest node, by CPU and by devices, and the usual work."""

    cpu: int
    devices: int
    workload: Workload


Score = Callable[[Node, Task, Fleet], Key]
Devices = Callable[[Node, Task, Fleet], tuple[int, ...]]


# ---- the scores, lowest first


def spread(node: Node, task: Task, fleet: Fleet) -> Key:
    """The node of which the least will be used, by the resource of which the most will be."""
    used = [
        (capacity - free + asked) * MILLION // capacity
        for capacity, free, asked in zip(node.capacity, node.free, task.amounts, strict=True)
        if capacity
    ]
    if node.used:
        used.append((sum(node.used) + task.gpu) * MILLION // (WHOLE * len(node.used)))
    return (_wasteful(node, task), max(used, default=0))


def bestfit(node: Node, task: Task, fleet: Fleet) -> Key:
    """The node with the least CPU and GPU left over, each as a part of the largest node's."""
    return (_wasteful(node, task), _left_over(node, task, fleet))


def dotprod(node: Node, task: Task, fleet: Fleet) -> Key:
    """The node with the smallest product of what is free and what is asked, in whole percents."""
    product = node.free[0] * task.amounts[0] * MILLION // max(1, fleet.cpu) ** 2
    product += node.gpu * task.gpu * MILLION // max(1, WHOLE * fleet.devices) ** 2
    # Finer differences were measured to allocate less; see docs/placement.md.
    return (_wasteful(node, task), product * 100 // (2 * MILLION))


def gpu_packing(node: Node, task: Task, fleet: Fleet) -> Key:
    """A device that is split already, the fullest first; then a node in use; then an empty one, the smallest first."""
    if not task.devices:
        return (_wasteful(node, task), 0)
    if not any(node.used):
        return (2, len(node.used))
    fullest = max((used for used in node.used if used and used + task.milli <= WHOLE), default=0)
    return (0, WHOLE - fullest) if fullest else (1, 0)


def gpu_clustering(node: Node, task: Task, fleet: Fleet) -> Key:
    """Parts of GPUs beside parts, whole ones beside whole ones: a node with such alone, mixed, empty, with others."""
    if not task.devices:
        return (_wasteful(node, task), 0)
    split = any(0 < used < WHOLE for used in node.used)
    whole = any(used >= WHOLE for used in node.used)
    like, unlike = (whole, split) if task.milli == WHOLE else (split, whole)
    rank = (0 if not unlike else 1) if like else (2 if not unlike else 3)
    return (rank, node.gpu)


def fgd(node: Node, task: Task, fleet: Fleet) -> Key:
    """The node where the usual work loses the least GPU that it could have used; of those, as `bestfit`."""
    lost, _ = _least_loss(node, task, fleet)
    return (_wasteful(node, task), lost, _left_over(node, task, fleet))


def any_node(node: Node, task: Task, fleet: Fleet) -> Key:
    return ()


# ---- the devices


def tightest(node: Node, task: Task, fleet: Fleet) -> tuple[int, ...]:
    """Whole devices in their order; a part where the least is left over."""
    if not task.devices:
        return ()
    return choose_devices(node.used, len(node.used), task.devices, task.milli, 1)


def least_lost(node: Node, task: Task, fleet: Fleet) -> tuple[int, ...]:
    """The devices that `fgd` counted with."""
    return _least_loss(node, task, fleet)[1]


# ---- the table


class Placement(NamedTuple):
    score: Score
    devices: Devices = tightest
    drawn: bool = False
    """Whether one of the nodes with the best score is drawn, by `draw`; else the first of them is taken."""
    weighs: bool = False
    """True if it looks at `Fleet.workload`, which has no tasks otherwise."""


PACK = "pack"

PLACEMENTS: Registry[Placement] = Registry(
    "placement",
    {
        "spread": Placement(spread),
        "bestfit": Placement(bestfit),
        "dotprod": Placement(dotprod),
        "gpu_packing": Placement(gpu_packing),
        "gpu_clustering": Placement(gpu_clustering),
        "fgd": Placement(fgd, least_lost, weighs=True),
        "random": Placement(any_node, drawn=True),
    },
    reserved=(PACK,),
)

MISSING = Placement(any_node)
"""Stands in for a placement that is not installed while a journal is replayed, which asks no policy."""


def placement_names() -> tuple[str, ...]:
    """Return the names that the setting `place` takes."""
    return (PACK, *PLACEMENTS)


def draw(seed: int, number: int, counts: Sequence[int]) -> int:
    """Which of several groups has the node drawn in this draw, from how many nodes each has.

    Every node is as likely as another. The same arguments give the same group: the order of the groups must not depend
    on anything that a restart forgets.
    """
    drawn = blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    ends = list(accumulate(counts))
    return bisect_right(ends, int.from_bytes(drawn, "big") % ends[-1])


# ---- inside


def _wasteful(node: Node, task: Task) -> int:
    """Work without GPUs goes where there are none, if it can."""
    return 1 if node.used and not task.devices else 0


def _left_over(node: Node, task: Task, fleet: Fleet) -> int:
    """CPU and GPU that will be free, as parts of the largest node's. Memory has to fit, and does not count."""
    cpu = (node.free[0] - task.amounts[0]) * MILLION // max(1, fleet.cpu)
    return cpu + (node.gpu - task.gpu) * MILLION // max(1, WHOLE * fleet.devices)


def _least_loss(node: Node, task: Task, fleet: Fleet) -> tuple[int, tuple[int, ...]]:
    """How many steps of usable GPU the usual work loses at least on a node, and with which devices."""
    workload = fleet.workload
    before = workload.usable(node.free, node.used)
    free = tuple(map(sub, node.free, task.amounts))
    step = max(1, STEP * workload.total)
    losses = (
        ((before - workload.usable(free, _with(node.used, devices, task.milli))) // step, devices)
        for devices in _ways(node, task, fleet)
    )
    return min(losses, key=itemgetter(0))


def _ways(node: Node, task: Task, fleet: Fleet) -> Iterator[tuple[int, ...]]:
    """The devices that a task could get, but for those that come to the same; the tightest first."""
    if task.milli in (0, WHOLE):
        yield tightest(node, task, fleet)
        return
    first = {used: device for device, used in reversed(list(enumerate(node.used)))}
    for used in sorted(first, reverse=True):
        if used + task.milli <= WHOLE:
            yield (first[used],)


def _with(used: Sequence[int], devices: Sequence[int], milli: int) -> list[int]:
    after = list(used)
    for device in devices:
        after[device] += milli
    return after
