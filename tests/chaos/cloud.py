"""A virtual cloud: ordered machines arrive late, twice or not at all, vanish, and are destroyed.

The server's pools use it as a provider. A call that is under way when the server is killed may or may not take effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol, TypeVar

from fairlead.pools.provider import Machine, PoolKind, ProviderError
from tests.chaos import agents
from tests.chaos.checkers import need
from tests.chaos.faults import CloudFaultKind
from tests.chaos.loop import RUNNING_IN, VirtualLoop

Result = TypeVar("Result")

CALL = 2.0
"""The most seconds that a call takes."""
BOOT, LATE = 30.0, 400.0
"""The most seconds until a machine is up, usually and during the fault `late`."""
LAST_CALLS = 0.5
"""Fraction of the calls under way when the server is killed that take effect."""


class Ground(Protocol):
    """The trial, as the cloud sees it."""

    loop: VirtualLoop

    def log(self, text: str) -> None: ...
    def boot(self, name: str, pool: str) -> agents.Machine: ...
    def unplug(self, name: str) -> None: ...


class Cloud:
    def __init__(self, ground: Ground, seed: int, pools: Iterable[str]) -> None:
        self.rng = Random(f"{seed} cloud")
        self.pools = sorted(pools)
        self.machines: dict[str, str] = {}
        """Existing machine, up or booting → pool."""
        self.booted: dict[str, agents.Machine] = {}
        """Machines that are up, by name."""
        self._ground = ground
        self._loop = ground.loop
        self._until: dict[CloudFaultKind, float] = {}

    def provider(self, kind: PoolKind) -> CloudProvider:
        return CloudProvider(self, kind.pool)

    def inject(self, what: CloudFaultKind, seconds: float) -> None:
        self._until[what] = max(self._until.get(what, 0.0), self._loop.time() + seconds)

    def has(self, fault: CloudFaultKind) -> bool:
        return self._until.get(fault, -1.0) > self._loop.time()

    async def call(self, work: Callable[[], Result]) -> Result:
        """Carry out work in the cloud after a delay, and return its result."""
        process, answer = RUNNING_IN.get(), asyncio.get_running_loop().create_future()

        def arrive() -> None:
            if process is not None and not process.alive and self.rng.random() >= LAST_CALLS:
                return
            try:
                done = work()
            except ProviderError as problem:
                answer.set_exception(problem)
            else:
                answer.set_result(done)

        self._loop.world_at(self._loop.time() + self.rng.random() * CALL, arrive)
        result: Result = await asyncio.shield(answer)
        return result

    def create(self, name: str, pool: str) -> None:
        """Create a machine. Repeated requests for a name have no effect."""
        if name in self.machines:
            return
        now = self._loop.time()
        self._ground.log(f"{name} is being made")
        self.machines[name] = pool
        if self.has("twice"):
            self._loop.world_at(now + self.rng.random() * CALL, self.create, name, pool)
        if not self.has("stuck"):
            takes = self.rng.random() * (LATE if self.has("late") else BOOT)
            self._loop.world_at(now + takes, self._boot, name, pool)

    def _boot(self, name: str, pool: str) -> None:
        if name in self.machines and name not in self.booted:
            self.booted[name] = self._ground.boot(name, pool)

    def destroy(self, name: str) -> None:
        if name in self.machines:
            machine = self.booted.get(name)
            need(machine is None or not machine.running, f"{name} is destroyed and still runs something")
            self.vanish(name)

    def check_failed(self, names: Iterable[str]) -> None:
        """Check that machines whose orders were given up do not exist."""
        for name in names:
            need(name not in self.machines, f"{name} is given up, and is there")

    def vanish(self, name: str) -> None:
        self._ground.log(f"{name} is gone")
        del self.machines[name]
        if self.booted.pop(name, None) is not None:
            self._ground.unplug(name)


class CloudProvider:
    """The provider of one pool."""

    def __init__(self, cloud: Cloud, pool: str) -> None:
        self._cloud = cloud
        self._pool = pool
        self._listed: frozenset[str] = frozenset()
        """Names in the last answer of `list`."""

    async def create(self, names: Sequence[str]) -> None:
        for name in names:
            need(name not in self._listed, f"{name} is asked for, and was listed")

        def work() -> None:
            done = self._done(names)
            for name in done:
                self._cloud.create(name, self._pool)
            self._complain(names[len(done) :])

        await self._cloud.call(work)

    async def destroy(self, names: Sequence[str]) -> None:
        def work() -> None:
            done = self._done(names)
            for name in done:
                self._cloud.destroy(name)
            self._complain(names[len(done) :])

        await self._cloud.call(work)

    async def list(self) -> Sequence[Machine]:
        def work() -> Sequence[Machine]:
            if self._cloud.has("unlisted"):
                raise ProviderError("machines cannot be listed")
            return [Machine(name) for name, pool in self._cloud.machines.items() if pool == self._pool]

        listed = await self._cloud.call(work)
        self._listed = frozenset(machine.name for machine in listed)
        return listed

    async def close(self) -> None:
        """Do nothing: machines stay."""

    def _done(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names for which the call takes effect."""
        if self._cloud.has("unknown") or self._cloud.has("fail"):
            return names[: self._cloud.rng.randint(0, len(names))]
        return names

    def _complain(self, rest: Sequence[str]) -> None:
        if self._cloud.has("unknown"):
            raise ProviderError("no answer came", unknown=True)
        if self._cloud.has("fail") and rest:
            raise ProviderError("no machines", rest)
