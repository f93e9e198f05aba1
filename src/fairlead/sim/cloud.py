"""A cloud beside a trial: machines that are ordered, come late, twice or not at all, vanish, and are taken away.

Whoever tends a pool does as the real tender: it looks which machines there are, then at the state, and does what is
missing. It dies with the server; a call that is under way then may be done or not. The next one begins by looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from fairlead.core.commands import AnyCommand, FailOrder, RemoveNode
from fairlead.core.effects import standing_pools
from fairlead.core.state import Partition
from fairlead.sim.agents import SECOND, Agent, Micros
from fairlead.sim.checkers import need
from fairlead.sim.faults import CloudFault

BUSY, QUIET = 3 * SECOND, 30 * SECOND
GONE = 5 * SECOND
"""For so long a machine has to be missing to be gone."""
CALL = 2 * SECOND
"""The longest that a call takes."""
BOOT, LATE = 30 * SECOND, 400 * SECOND
"""The longest that a machine takes to come, usually and in bad times."""
LAST_CALLS = 0.5
"""So many of the calls that are under way when the server is killed are done."""


class Ground(Protocol):
    """Where the machines stand."""

    now: Micros

    def at(self, when: Micros, what: Callable[[], None]) -> None: ...
    def log(self, text: str) -> None: ...
    def reigning(self) -> Partition | None: ...
    def tell(self, command: AnyCommand) -> None: ...
    def boot(self, name: str, pool: str) -> Agent: ...
    def unplug(self, name: str) -> None: ...


class Cloud:
    def __init__(self, ground: Ground, seed: int, pools: Iterable[str]) -> None:
        self.ground = ground
        self.rng = Random(f"{seed} cloud")
        self.pools = sorted(pools)
        self.machines: dict[str, str] = {}
        """Those that there are, up or not yet → their pool."""
        self.agents: dict[str, Agent] = {}
        """Those that are up."""
        self._until: dict[CloudFault, Micros] = {}
        self._tenders: dict[str, Tender] = {}

    def begin(self) -> None:
        """A server is up."""
        for tender in self._tenders.values():
            tender.over = True
        self._tenders = {pool: Tender(self, pool) for pool in self.pools}

    def wake(self, pool: str) -> None:
        """Something was ordered, is not wanted any more, or is lost."""
        self._tenders[pool].wake()

    def trouble(self, what: CloudFault, lasts: Micros) -> None:
        self._until[what] = max(self._until.get(what, 0), self.ground.now + lasts)

    def has(self, trouble: CloudFault) -> bool:
        return self._until.get(trouble, -1) > self.ground.now

    def take_time(self, what: Callable[[], None]) -> Micros:
        """Do it after a while; returns when."""
        when = self.ground.now + self.rng.randrange(CALL)
        self.ground.at(when, what)
        return when

    # -- the provider --------------------------------------------------------------------------------------------

    def create(self, name: str, pool: str) -> None:
        """Of a name there is one machine, however often it is asked for."""
        if name in self.machines:
            return
        ground = self.ground
        ground.log(f"{name} is being made")
        self.machines[name] = pool
        if self.has("twice"):
            self.take_time(lambda: self.create(name, pool))
        if not self.has("stuck"):
            ground.at(
                ground.now + self.rng.randrange(LATE if self.has("late") else BOOT), lambda: self._boot(name, pool)
            )

    def _boot(self, name: str, pool: str) -> None:
        if name in self.machines and name not in self.agents:
            self.agents[name] = self.ground.boot(name, pool)

    def destroy(self, name: str, pool: str) -> None:
        if name in self.machines:
            agent = self.agents.get(name)
            need(agent is None or not agent.running, f"{name} is destroyed and still runs something")
            self.vanish(name)

    def vanish(self, name: str) -> None:
        self.ground.log(f"{name} is gone")
        del self.machines[name]
        if self.agents.pop(name, None) is not None:
            self.ground.unplug(name)


class Tender:
    """Who tends one pool while one server reigns."""

    def __init__(self, cloud: Cloud, pool: str) -> None:
        self.over = False
        self._cloud = cloud
        self._pool = pool
        self._passing = False
        self._woken = False
        self._next: Micros = 0
        """When the next pass is to be."""
        self._asked: set[str] = set()
        """Nodes that have yet to come, whose machines were asked for or seen."""
        self._tried: set[int] | None = None
        """Orders that the cloud may have had, from an earlier server or from us."""
        self._missing: dict[str, Micros] = {}
        self._destroyed: set[str] = set()
        self._plan(cloud.ground.now)

    def wake(self) -> None:
        if self._passing:
            self._woken = True
        else:
            self._plan(self._cloud.ground.now)

    def _plan(self, when: Micros) -> None:
        self._next = when
        self._cloud.ground.at(when, lambda: self._look(when))

    def _look(self, planned: Micros) -> None:
        """First at the machines, and a little later at the state."""
        cloud = self._cloud
        if self.over or self._passing or planned != self._next:
            return
        self._passing, self._woken = True, False
        if self._tried is None:
            partition = cloud.ground.reigning()
            self._tried = set() if partition is None else set(_orders(partition, self._pool))
        listed = None
        if not cloud.has("unlisted"):
            listed = {name for name, pool in cloud.machines.items() if pool == self._pool}
        cloud.take_time(lambda: self._pass(listed))

    def _pass(self, listed: set[str] | None) -> None:
        cloud, now = self._cloud, self._cloud.ground.now
        partition = cloud.ground.reigning()
        if self.over or partition is None:
            return
        if self._pool not in partition.pools:
            self._passing = False
            self._plan(now + QUIET)
            return
        done = now
        orders = _orders(partition, self._pool)
        unwanted, lost = _to_go(partition, self._pool)
        if listed is None:
            for order, names in orders.items():
                if order not in (self._tried or ()):
                    self._fail(order, names, "nobody can look which machines there are")
        else:
            coming = {name for names in orders.values() for name in names}
            self._asked = (self._asked & coming) | (listed & coming)
            done = self._create(orders)
            for order, names in orders.items():
                self._fail(order, self._gone([name for name in names if name in self._asked], listed), "it went away")
            done = max(done, self._destroy(unwanted, listed))
            ended = [name for name in unwanted if name in self._destroyed and name not in listed]
            rest = [name for name in unwanted if name not in self._destroyed]
            for name in dict.fromkeys([*ended, *self._gone(rest, listed), *self._gone(lost, listed)]):
                self._missing.pop(name, None)
                cloud.ground.tell(RemoveNode(name=name, operator=True))
            expected = {*self._asked, *unwanted, *lost}
            self._missing = {name: since for name, since in self._missing.items() if name in expected}
        self._passing = False
        self._plan(max(done, now if self._woken else now + (BUSY if orders or unwanted or lost else QUIET)))

    def _create(self, orders: dict[int, tuple[str, ...]]) -> Micros:
        cloud, done = self._cloud, self._cloud.ground.now
        assert self._tried is not None
        self._tried &= orders.keys()
        for order, names in orders.items():
            wanted = [name for name in names if name not in self._asked]
            if not wanted:
                continue
            self._tried.add(order)
            some = wanted
            if cloud.has("unknown"):
                # Nobody says what came of it: what is not there at the next look is asked for again.
                some = wanted[: cloud.rng.randint(0, len(wanted))]
            elif cloud.has("fail"):
                some = wanted[: cloud.rng.randint(0, len(wanted))]
                self._fail(order, wanted[len(some) :], "no machines")
                self._asked.update(some)
            else:
                self._asked.update(wanted)
            if some:
                done = self._call(cloud.create, some)
        return done

    def _destroy(self, unwanted: list[str], listed: set[str]) -> Micros:
        cloud = self._cloud
        self._destroyed.intersection_update(unwanted)
        there = [name for name in unwanted if name in listed and name not in self._destroyed]
        if not there or cloud.has("fail"):
            return cloud.ground.now
        if not cloud.has("unknown"):
            self._destroyed.update(there)
        return self._call(cloud.destroy, there)

    def _call(self, what: Callable[[str, str], None], names: list[str]) -> Micros:
        cloud = self._cloud

        def arrive() -> None:
            alive = not self.over and cloud.ground.reigning() is not None
            if alive or cloud.rng.random() < LAST_CALLS:
                for name in names:
                    what(name, self._pool)

        return cloud.take_time(arrive)

    def _fail(self, order: int, names: Iterable[str], reason: str) -> None:
        names = tuple(names)
        if names:
            self._cloud.ground.log(f"order {order} of {self._pool} fails for {', '.join(names)}: {reason}")
            command = FailOrder(pool=self._pool, order=order, reason=reason, names=names, operator=True)
            self._cloud.ground.tell(command)

    def _gone(self, names: Iterable[str], listed: set[str]) -> list[str]:
        now, gone = self._cloud.ground.now, []
        for name in names:
            if name in listed:
                self._missing.pop(name, None)
            elif now - self._missing.setdefault(name, now) >= GONE:
                gone.append(name)
        return gone


def _orders(partition: Partition, pool: str) -> dict[int, tuple[str, ...]]:
    return {
        order.order: order.names for each in standing_pools(partition) if each.pool == pool for order in each.orders
    }


def _to_go(partition: Partition, pool: str) -> tuple[list[str], list[str]]:
    """The nodes of a pool that are given back, and those that are lost."""
    if not partition.reign.ready:
        return [], []
    unwanted = [name for each in standing_pools(partition) if each.pool == pool for name in each.unwanted]
    nodes = partition.nodes
    lost = [nodes.name[row] for row in nodes.rows.values() if nodes.pool[row] == pool and nodes.state[row] == "lost"]
    return unwanted, lost
