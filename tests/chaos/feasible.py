"""Decides which jobs of a trial could run after all faults are over, on static machines and machines of pools."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.model import Stage
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE
from tests.chaos.faults import Scenario


class Need:
    """The tasks and resources that a stage needs to start."""

    def __init__(self, stage: Stage) -> None:
        asked = dict(stage.shape.amounts)
        self.tasks, self.apart, self.pool = stage.min, stage.spec.apart, stage.shape.key.pool
        self.cpu, self.gpu = asked.get(CPU, 0), asked.get(GPU, 0)
        self.kind = (self.cpu, self.gpu, self.pool, self.apart)


class Empty:
    """A machine without tasks, to be filled."""

    def __init__(self, pool: str, resources: Mapping[str, int]) -> None:
        self.pool = pool
        self.cpu = 1000 * resources["cpu"]
        self.devices = [WHOLE_DEVICE] * resources.get("gpu", 0)

    def take(self, need: Need) -> bool:
        """Place a task; False if it does not fit."""
        fitting = [at for at, free in enumerate(self.devices) if free >= need.gpu]
        if need.pool not in ("", self.pool) or self.cpu < need.cpu or (need.gpu and not fitting):
            return False
        self.cpu -= need.cpu
        if need.gpu:
            self.devices[min(fitting, key=lambda at: self.devices[at])] -= need.gpu
        return True


def could_run(scenario: Scenario, needs: list[Need]) -> bool:
    """True if all stages fit together on empty machines, with every pool at its `max`."""
    machines = [Empty("", has) for has in scenario.nodes.values()]
    for pool, settings in scenario.config.get("pools", {}).items():
        machines += [Empty(pool, settings["node"]) for _ in range(settings["max"])]
    # Place the most demanding stages first, on machines with few GPUs and little free CPU first.
    for need in sorted(needs, key=lambda need: (not need.pool, -need.gpu, -need.cpu, not need.apart)):
        used: set[int] = set()
        for _ in range(need.tasks):
            order = sorted(range(len(machines)), key=lambda at: (len(machines[at].devices), machines[at].cpu))
            machine = next((at for at in order if not (need.apart and at in used) and machines[at].take(need)), None)
            if machine is None:
                return False
            used.add(machine)
    return True
