"""Bursts on pools: compares the nodes that are ordered for a burst of work with the fewest that would be enough.

    python -m bench.bursts [WORLDS]

Each world comes from a seed, and has partly used nodes and a burst of tasks and gangs of mixed sizes. Nodes are ordered
for tasks without capacity; then nodes arrive late, twice or not at all. The benchmark prints the mean ratio, and stops
at the first world in which a node was ordered for tasks that fit, or twice for the same tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from fairlead.core.effects import ForPool
from fairlead.testing import World

GI = 2**30
PROMISE = 60
"""Seconds after which an ordered node is late."""


Task = tuple[int, int]
"""CPUs and bytes."""


class Burst(NamedTuple):
    ordered: int
    """Nodes ordered at once."""
    fewest: int
    """A lower bound of the nodes needed by the tasks without capacity."""
    orders: int
    """All orders, with those that replace nodes that did not arrive."""
    came: int
    """Nodes that joined in the end."""


def burst(seed: int, mixed: bool = False) -> Burst:
    """Run one world to its end, and check after each step that no needless node is ordered."""
    random = Random(seed)
    cpus = random.choice([8, 16, 32, 64])
    node = {"cpu": cpus, "memory": cpus * random.choice([2, 4]) * GI}
    w = World({"promise_for": f"{PROMISE}s", "max_orders": 1_000})
    for at in range(random.randint(0, 20)):
        w.node(f"w{at}", cpu=random.randint(1, cpus), memory=random.randint(2, cpus * 4) * GI)
    w.pool("p", node=node, idle_for="10d")
    w.cycle()
    flavours = _flavours(random, node, mixed)
    jobs = [_submit(w, random, flavours, mixed) for _ in range(random.randint(20, 120))]
    w.cycle()
    first = _ordered(w)
    left = _waiting(w, jobs)
    assert any(left) or not first, f"seed {seed}: {first} nodes were ordered, and nothing waits"
    fewest = _fewest(*left, node, _free(w))
    assert fewest <= first, f"seed {seed}: {first} nodes were ordered, and {fewest} are the fewest that could do"
    orders, more = 1, 0
    while w.partition().orders or any(_waiting(w, jobs)):
        more += _trouble(w, random)
        newly_ordered = _ordered(w)
        orders += bool(newly_ordered)
        partition = w.partition()
        present = sum(name.startswith("p-") for name in partition.nodes.joins)
        assert present + len(partition.order_of) <= first + more, (
            f"seed {seed}: nodes were ordered twice for the same work"
        )
        assert orders < 500, f"seed {seed}: it does not come to an end"
    return Burst(first, fewest, orders, present if first else 0)


def _flavours(random: Random, node: dict[str, int], mixed: bool) -> list[Task]:
    """Return the sizes of tasks: a few round ones; with `mixed`, a different one for each task."""
    if not mixed:
        cpus = [cpus for cpus in (1, 2, 3, 4, 6, 8, 12, 16) if 2 * cpus <= node["cpu"]]
        per_cpu = node["memory"] // node["cpu"] // GI
        drawn = [(random.choice(cpus), random.choice([1, 2, per_cpu])) for _ in range(random.randint(1, 5))]
        return [(cpus, cpus * memory * GI) for cpus, memory in drawn]
    sizes: list[Task] = []
    for _ in range(120):
        part = 8 if random.random() < 0.7 else 2
        most = node["memory"] // GI // part
        sizes.append((random.randint(1, max(1, node["cpu"] // part)), random.randint(1, max(1, most)) * GI))
    return sizes


def _submit(w: World, random: Random, flavours: list[Task], gangs: bool) -> str:
    """Submit a task or, with `gangs`, now and then a gang."""
    cpu, memory = random.choice(flavours)
    count = random.choice([2, 3, 5]) if gangs and random.random() < 0.1 else 1
    return w.submit(stages=[{"name": "w", "count": count, "resources": {"cpu": cpu, "memory": memory}}])


def _trouble(w: World, random: Random) -> int:
    """Let nodes arrive, sometimes twice, or let an order fail or be late.

    Returns the number of additional nodes that are allowed: nodes that arrive after their order was given up, and one
    for each failed order, because tasks that would have shared a node are packed again and may need one more.
    """
    more = 0
    what = random.random()
    if w.partition().orders and what < 0.6:
        names = w.arrive("p", random.randint(1, min(5, len(w.partition().order_of))))
        w.cycle()
        if random.random() < 0.3:
            _join(w, names[0])
    elif w.partition().orders and what < 0.8:
        w.fail_order("p")
        more = 1
    elif w.partition().orders:
        given_up = list(w.partition().order_of)
        w.advance(PROMISE + 1)
        more = 1
        if random.random() < 0.5:
            _join(w, given_up[0])
            more = 2
    w.advance(random.choice([0, 1, 6]))
    return more


def _join(w: World, name: str) -> None:
    node = dict(w.partition().pools["p"].settings.node)
    w.node(name, pool="p", cpu=node["cpu"] // 1000, memory=node["memory"])


def _ordered(w: World) -> int:
    effects = [effect for effect in w.effects() if isinstance(effect, ForPool)]
    return sum(len(order.names) for effect in effects for order in effect.orders)


def _waiting(w: World, jobs: Sequence[str]) -> tuple[list[Task], list[Task]]:
    """Return the sizes of waiting tasks: single tasks, and members of gangs."""
    singles: list[Task] = []
    gangs: list[Task] = []
    for name in jobs:
        stage = w.partition().jobs[name].stages[0]
        asked = dict(stage.shape.amounts)
        (gangs if stage.count > 1 else singles).extend([(asked["cpu"] // 1000, asked["memory"])] * stage.waiting())
    return singles, gangs


def _free(w: World) -> Task:
    nodes = w.partition().nodes
    free = [nodes.free(row) for row in nodes.rows.values()]
    return sum(amounts.get("cpu", 0) for amounts in free) // 1000, sum(amounts.get("memory", 0) for amounts in free)


def _fewest(singles: Sequence[Task], gangs: Sequence[Task], node: dict[str, int], free: Task) -> int:
    """Return a lower bound of the nodes needed: by sums, and by tasks too large to share a node.

    Only gangs can use free capacity of existing nodes: a waiting single task fits none of them.
    """
    fewest = 0
    for at, name in enumerate(("cpu", "memory")):
        alone = sum(task[at] for task in singles)
        together = max(0, sum(task[at] for task in gangs) - free[at])
        fewest = max(fewest, -(-(alone + together) // node[name]), _by_size([task[at] for task in singles], node[name]))
    return fewest


def _by_size(sizes: Sequence[int], most: int) -> int:
    """Return the bound of Martello and Toth: large tasks have a node each, and small tasks fill those nodes."""
    best = 0
    for least in sorted({size for size in sizes if 2 * size <= most} | {0}):
        huge = sum(size > most - least for size in sizes)
        large = [size for size in sizes if most - least >= size > most / 2]
        small = sum(size for size in sizes if most / 2 >= size >= least)
        beside = len(large) * most - sum(large)
        best = max(best, huge + len(large) + max(0, -(-(small - beside) // most)))
    return best


def main(worlds: int) -> None:
    for mixed in (False, True):
        played = [burst(seed, mixed) for seed in range(worlds)]
        ordered, fewest = sum(world.ordered for world in played), sum(world.fewest for world in played)
        grew = [world for world in played if world.fewest]
        mean = sum(world.ordered / world.fewest for world in grew) / len(grew)
        exact = sum(world.ordered == world.fewest for world in grew)
        print(f"{worlds} worlds, {'every task of its own size' if mixed else 'a few sizes in each'}:")
        print(f"  {len(grew)} had too few nodes: {ordered} ordered, {fewest} is the bound, met by {exact}")
        print(f"  {ordered / fewest:.3f} times the bound over all, {mean:.3f} on the average of the worlds")
        orders, came = sum(world.orders for world in played), sum(world.came for world in played)
        print(f"  with nodes that come late, twice or not at all: {orders} orders, {came} nodes came", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
