"""Machines that come some time after they are ordered, and go when they are not wanted: for simulations of pools."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from fairlead.core.changes import NodeSpec
from fairlead.core.commands import AddNode, AnyCommand, RemoveNode
from fairlead.core.effects import Effect, ForPool
from fairlead.core.model import Micros
from fairlead.core.resources import MINUTE
from fairlead.core.state import Partition


class Machines:
    def __init__(self, boot: Micros = 2 * MINUTE) -> None:
        self.boot = boot
        """How long an ordered node takes to come."""
        self._coming: list[tuple[Micros, str, str]] = []
        self._going: list[str] = []

    def hear(self, effects: Iterable[Effect], now: Micros) -> None:
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

    def happen(self, partition: Partition, now: Micros) -> list[AnyCommand]:
        """The nodes that have gone and come by now."""
        commands: list[AnyCommand] = [RemoveNode(name=name, operator=True) for name in self._going]
        self._going = []
        while self._coming and self._coming[0][0] <= now:
            _, name, pool = heappop(self._coming)
            known = partition.pools.get(pool)
            if known is not None:
                settings = known.settings
                spec = NodeSpec(settings.node, settings.labels, settings.taints, pool)
                commands.append(AddNode(name=name, spec=spec, operator=True))
        return commands
