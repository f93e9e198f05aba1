"""The virtual machines of pools: a machine joins some time after its order, and leaves when it is given back."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from fairlead.core.changes import NodeSpec
from fairlead.core.commands import AddNode, Command, RemoveNode
from fairlead.core.effects import Effect, ForPool
from fairlead.core.model import Micros
from fairlead.core.resources import MINUTE
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
