"""The virtual machines of a simulation: those of pools join some time after their order, and random outages."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from random import Random
from typing import Literal

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.commands import AddNode, Command, RemoveNode
from fairlead.core.effects import Effect, ForPool
from fairlead.core.model import Micros
from fairlead.core.resources import DAY, HOUR, MINUTE
from fairlead.core.state import Partition


class Machines:
    def __init__(self, boot: Micros = 2 * MINUTE) -> None:
        self.boot = boot
        """The time from the order of a node until it joins."""
        self._coming: list[tuple[Micros, str, str]] = []
        self._going: list[str] = []

    def receive(self, effects: Iterable[Effect], now: Micros) -> None:
        for effect in effects:
            if isinstance(effect, ForPool):
                self._going += effect.unwanted
                for order in effect.orders:
                    for name in order.names:
                        heappush(self._coming, (now + self.boot, name, effect.pool))

    def next_due(self, now: Micros) -> Micros | None:
        if self._going:
            return now
        return self._coming[0][0] if self._coming else None

    def happen(self, partition: Partition, now: Micros) -> list[Command]:
        """Return commands for the nodes that have left or joined by now."""
        commands: list[Command] = [RemoveNode(name=name, operator=True) for name in self._going]
        self._going = []
        while self._coming and self._coming[0][0] <= now:
            _, name, pool = heappop(self._coming)
            configured = partition.pools.get(pool)
            if configured is not None:
                settings = configured.settings
                spec = NodeSpec(settings.node, settings.labels, settings.taints, pool)
                commands.append(AddNode(name=name, spec=spec, operator=True))
        return commands


What = Literal["fails", "returns", "refuses", "accepts"]


class Profile(msgspec.Struct, frozen=True):
    """How often a node has an outage, and for how long."""

    between: Micros
    """The mean time from the end of an outage to the next one."""
    lasts: Micros
    """The mean length of an outage."""
    refusing: int = 0
    """The percentage of outages in which the node stays up but refuses launches."""


PROFILES = {"light": Profile(30 * DAY, HOUR), "heavy": Profile(2 * DAY, 30 * MINUTE, refusing=25)}


class Outages:
    def __init__(self, nodes: list[str], profile: Profile, seed: int) -> None:
        self.profile = profile
        self.count = 0
        self.out: set[str] = set()
        """Nodes with an outage now."""
        self._rng = Random(seed)
        self._due: list[tuple[Micros, str, What]] = []
        for node in nodes:
            self._plan(0, node)

    def next_due(self) -> Micros | None:
        return self._due[0][0] if self._due else None

    def happen(self, now: Micros) -> list[tuple[str, What]]:
        """Return the events that are due, and draw the next event of each of these nodes."""
        events: list[tuple[str, What]] = []
        while self._due and self._due[0][0] <= now:
            when, node, what = heappop(self._due)
            events.append((node, what))
            if what in ("fails", "refuses"):
                self.count += 1
                self.out.add(node)
                over: What = "returns" if what == "fails" else "accepts"
                heappush(self._due, (when + self._draw(self.profile.lasts), node, over))
            else:
                self.out.discard(node)
                self._plan(when, node)
        return events

    def _plan(self, now: Micros, node: str) -> None:
        refuses = self._rng.randrange(100) < self.profile.refusing
        heappush(self._due, (now + self._draw(self.profile.between), node, "refuses" if refuses else "fails"))

    def _draw(self, mean: Micros) -> Micros:
        return max(1, round(self._rng.expovariate(1 / mean)))
