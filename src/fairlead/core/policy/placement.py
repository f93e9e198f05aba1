"""Placements: each scores the nodes that fit a task, and chooses the devices of the task there.

The node with the lowest score is taken. Of nodes with equal scores it is the one that joined first, or a random one if
the placement is `drawn`. A placement sees a node only as a `Node`, so one score serves all nodes in an equal state.

To add a placement, write a `Score` function and a row in `PLACEMENTS`. All values are integers; fractions are in
millionths, rounded down. The default, `pack`, is not in this file: it is built into `core/index/pack.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import log
from operator import sub
from typing import NamedTuple

from fairlead.core.policy.expected_loss import Prices
from fairlead.core.policy.fit import WHOLE, choose_devices
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.registry import Registry

Key = tuple[int, ...]

MILLION = 1_000_000
PRICE_STEP = 2_000
"""Millionths of a GPU. `priced` rounds losses to multiples of it."""
FRAGMENTED_STEPS = [round(MILLION * log((50 + half) / (50 - half))) for half in range(1, 50)]
"""Millionths of a GPU. `fgd` distinguishes 50 losses and 50 gains: the percents of a logistic curve over the fragmented
capacity. Rounded, so that the values are the same on every machine; a test compares them."""


class Node(NamedTuple):
    """A node as a placement sees it. Resources are in the order of `Task.amounts`."""

    capacity: tuple[int, ...]
    free: tuple[int, ...]
    device_use: tuple[int, ...]
    """Use of each device, in milli-GPU."""

    def after(self, task: Task, devices: Sequence[int]) -> Node:
        """Return the node with one more task, on these devices."""
        used = list(self.device_use)
        for device in devices:
            used[device] += task.milli
        free = [have - amount for have, amount in zip(self.free, task.amounts, strict=True)]
        return Node(self.capacity, tuple(free), tuple(used))

    @property
    def gpu(self) -> int:
        """Return the free capacity of all devices together, in milli-GPU."""
        return WHOLE * len(self.device_use) - sum(self.device_use)


class Fleet(NamedTuple):
    """All nodes as a placement sees them."""

    cpu: int
    """The most CPU of one node."""
    devices: int
    """The most devices of one node."""
    workload: Workload
    """The usual tasks."""
    prices: Prices | None = None
    """What is expected to be lost on nodes of this kind."""


Score = Callable[[Node, Task, Fleet], Key]
Devices = Callable[[Node, Task, Fleet], tuple[int, ...]]


# ---- scores, lowest first


def spread(node: Node, task: Task, fleet: Fleet) -> Key:
    """Prefer the node with the lowest use after the placement, measured by its most used resource."""
    used = [
        (capacity - free + asked) * MILLION // capacity
        for capacity, free, asked in zip(node.capacity, node.free, task.amounts, strict=True)
        if capacity
    ]
    if node.device_use:
        used.append((sum(node.device_use) + task.gpu) * MILLION // (WHOLE * len(node.device_use)))
    return (max(used, default=0),)


def bestfit(node: Node, task: Task, fleet: Fleet) -> Key:
    """Prefer the node with the least CPU and GPU left over, each relative to the largest node."""
    return (_left_over(node, task, fleet),)


def dotprod(node: Node, task: Task, fleet: Fleet) -> Key:
    """Prefer the node with the smallest dot product of free and asked resources, in whole percent."""
    product = node.free[0] * task.amounts[0] * MILLION // max(1, fleet.cpu) ** 2
    product += node.gpu * task.gpu * MILLION // max(1, WHOLE * fleet.devices) ** 2
    # In measurements, finer scores allocated less; see docs/placement.md.
    return (product * 100 // (2 * MILLION),)


def gpu_packing(node: Node, task: Task, fleet: Fleet) -> Key:
    """Prefer the fullest device that is used in part; then a node in use; then the smallest empty node."""
    if not task.devices:
        return (0,)
    if not any(node.device_use):
        return (2, len(node.device_use))
    fullest = max((used for used in node.device_use if used and used + task.milli <= WHOLE), default=0)
    return (0, WHOLE - fullest) if fullest else (1, 0)


def gpu_clustering(node: Node, task: Task, fleet: Fleet) -> Key:
    """Separate tasks with whole GPUs from tasks with parts of GPUs.

    Prefer nodes with tasks of the same kind only, then nodes with both kinds, empty nodes, nodes with the other kind.
    """
    if not task.devices:
        return (0,)
    split = any(0 < used < WHOLE for used in node.device_use)
    whole = any(used >= WHOLE for used in node.device_use)
    like, unlike = (whole, split) if task.milli == WHOLE else (split, whole)
    rank = (0 if not unlike else 1) if like else (2 if not unlike else 3)
    return (rank, node.gpu)


def fgd(node: Node, task: Task, fleet: Fleet) -> Key:
    """Prefer the node where usual tasks lose the least usable GPU capacity."""
    return (_least_fragmented(node, task, fleet)[0],)


def priced(node: Node, task: Task, fleet: Fleet) -> Key:
    """Prefer the node where the placement is expected to leave the fewest GPUs unusable."""
    return (_least_lost(node, task, fleet)[0],)


def any_node(node: Node, task: Task, fleet: Fleet) -> Key:
    return ()


# ---- devices


def tightest(node: Node, task: Task, fleet: Fleet) -> tuple[int, ...]:
    """Choose whole devices in order; for a part of a device, the fullest device that fits."""
    if not task.devices:
        return ()
    return choose_devices(node.device_use, len(node.device_use), task.devices, task.milli, 1)


def least_fragmented(node: Node, task: Task, fleet: Fleet) -> tuple[int, ...]:
    """Choose the devices that `fgd` scored."""
    return _least_fragmented(node, task, fleet)[1]


def least_lost(node: Node, task: Task, fleet: Fleet) -> tuple[int, ...]:
    """Choose the devices that `priced` scored."""
    return _least_lost(node, task, fleet)[1]


# ---- table


class Placement(NamedTuple):
    score: Score
    devices: Devices = tightest
    drawn: bool = False
    """True if a random one of the nodes with the best score is taken."""
    weighs: bool = False
    """True if the placement uses `Fleet.workload`, which is empty otherwise."""
    prices: bool = False
    """True if the placement uses `Fleet.prices`, which is None otherwise. Then only nodes with GPUs are scored; the
    others are ordered as for `pack`."""


PACK = "pack"

PLACEMENTS: Registry[Placement] = Registry(
    "placement",
    {
        "spread": Placement(spread),
        "bestfit": Placement(bestfit),
        "dotprod": Placement(dotprod),
        "gpu_packing": Placement(gpu_packing),
        "gpu_clustering": Placement(gpu_clustering),
        "fgd": Placement(fgd, least_fragmented, weighs=True),
        "priced": Placement(priced, least_lost, prices=True),
        "random": Placement(any_node, drawn=True),
    },
    reserved=(PACK,),
)

MISSING = Placement(any_node)
"""Used during replay if the placement is not installed. Replay evaluates no policy."""


def placement_names() -> tuple[str, ...]:
    """Return the names that the setting `place` accepts."""
    return (PACK, *PLACEMENTS)


def draw(seed: int, number: int, counts: Sequence[int]) -> int:
    """Draw a node, each with equal probability, and return the position of its group. `counts` has the sizes of groups.

    The result depends on the arguments only, so it is the same after a restart.
    """
    drawn = blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    ends = list(accumulate(counts))
    return bisect_right(ends, int.from_bytes(drawn, "big") % ends[-1])


# ---- inside


def _left_over(node: Node, task: Task, fleet: Fleet) -> int:
    cpu = (node.free[0] - task.amounts[0]) * MILLION // max(1, fleet.cpu)
    return cpu + (node.gpu - task.gpu) * MILLION // max(1, WHOLE * fleet.devices)


def _least_fragmented(node: Node, task: Task, fleet: Fleet) -> tuple[int, tuple[int, ...]]:
    """Return the smallest step of lost usable capacity, and the first devices with it."""
    workload = fleet.workload
    idle, total = node.gpu, max(1, workload.total)
    before = workload.usable(node.free, node.device_use)
    free = tuple(map(sub, node.free, task.amounts))
    best: tuple[int, tuple[int, ...]] | None = None
    for devices in _ways(node, task, fleet):
        usable = workload.usable(free, _with(node.device_use, devices, task.milli))
        # Fragmented is what is idle and not usable.
        more = (idle - task.gpu) * total - usable - (idle * total - before)
        step = _fragmented_step(more * 1_000, total)
        if best is None or step < best[0]:
            best = (step, devices)
    assert best is not None
    return best


def _fragmented_step(more: int, total: int) -> int:
    """Return the step of a growth of fragmented capacity by `more` ÷ `total` millionths of a GPU."""
    if more <= 0:
        return -bisect_right(FRAGMENTED_STEPS, -more // total)
    return 1 + bisect_left(FRAGMENTED_STEPS, -(-more // total))


def _least_lost(node: Node, task: Task, fleet: Fleet) -> tuple[int, tuple[int, ...]]:
    """Return the smallest expected loss by the placement, in steps, and the first devices with it."""
    prices = fleet.prices
    assert prices is not None
    before = prices.lost(node.free, node.device_use)
    free = tuple(map(sub, node.free, task.amounts))
    best: tuple[int, tuple[int, ...]] | None = None
    for devices in _ways(node, task, fleet):
        lost = prices.lost(free, _with(node.device_use, devices, task.milli))
        step = -((before - lost) // PRICE_STEP)
        if best is None or step < best[0]:
            best = (step, devices)
    assert best is not None
    return best


def _ways(node: Node, task: Task, fleet: Fleet) -> Iterator[tuple[int, ...]]:
    if task.milli in (0, WHOLE):
        yield tightest(node, task, fleet)
        return
    first = {used: device for device, used in reversed(list(enumerate(node.device_use)))}
    for used in sorted(first, reverse=True):
        if used + task.milli <= WHOLE:
            yield (first[used],)


def _with(used: Sequence[int], devices: Sequence[int], milli: int) -> tuple[int, ...]:
    after = list(used)
    for device in devices:
        after[device] += milli
    return tuple(after)
