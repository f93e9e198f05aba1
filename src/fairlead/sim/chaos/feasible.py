"""Whether a job of a trial could run when all trouble is over: on the machines there are, and on those of pools."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.core.model import Stage
from fairlead.core.resources import CPU, GPU
from fairlead.core.shape import WHOLE_DEVICE
from fairlead.sim.chaos.faults import Scenario


class Need:
    """What a stage needs to start."""

    def __init__(self, stage: Stage) -> None:
        asked = dict(stage.shape.amounts)
        self.tasks, self.apart, self.pool = stage.min, stage.spec.apart, stage.shape.key.pool
        self.cpu, self.gpu = asked.get(CPU, 0), asked.get(GPU, 0)
        self.kind = (self.cpu, self.gpu, self.pool, self.apart)


class Empty:
    """A machine with nothing on it yet."""

    def __init__(self, pool: str, resources: Mapping[str, int]) -> None:
        self.pool = pool
        self.cpu = 1000 * resources["cpu"]
        self.devices = [WHOLE_DEVICE] * resources.get("gpu", 0)

    def take(self, need: Need) -> bool:
        """Set a task down, if there is room."""
        fitting = [at for at, free in enumerate(self.devices) if free >= need.gpu]
        if need.pool not in ("", self.pool) or self.cpu < need.cpu or (need.gpu and not fitting):
            return False
        self.cpu -= need.cpu
        if need.gpu:
            self.devices[min(fitting, key=lambda at: self.devices[at])] -= need.gpu
        return True


def could_run(scenario: Scenario, needs: list[Need]) -> bool:
    """Whether all stages together would fit on empty machines, with pools as large as they may be."""
    machines = [Empty("", has) for has in scenario.nodes.values()]
    for pool, settings in scenario.config.get("pools", {}).items():
        machines += [Empty(pool, settings["node"]) for _ in range(settings["max"])]
    # The hardest to place go first, and machines without GPUs, or with little left, are used first.
    for need in sorted(needs, key=lambda each: (not each.pool, -each.gpu, -each.cpu, not each.apart)):
        used: set[int] = set()
        for _ in range(need.tasks):
            order = sorted(range(len(machines)), key=lambda at: (len(machines[at].devices), machines[at].cpu))
            found = next((at for at in order if not (need.apart and at in used) and machines[at].take(need)), None)
            if found is None:
                return False
            used.add(found)
    return True
