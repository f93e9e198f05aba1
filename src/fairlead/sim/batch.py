"""Runs one trace under several policies, or several placements, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.sim.figures import figures
from fairlead.sim.fill import Packed, pack, summary
from fairlead.sim.machines import PROFILES, Outages
from fairlead.sim.policy_files import Policy
from fairlead.sim.record import Record
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace
from fairlead.writer.gc_settings import spared

Watch = Callable[[Simulation], bool]
"""Called before each cycle. If it returns True, the run stops."""


class Run(msgspec.Struct, frozen=True):
    policy: Policy
    record: Record
    result: dict[str, Any]
    whole: bool
    """False if the run was stopped. Then its figures cover the time until it stopped."""


class Faults(msgspec.Struct, frozen=True):
    """The profile and the seed of node outages. Each policy has the same outages."""

    profile: str
    seed: int = 1

    def outages(self, trace: Trace) -> Outages:
        if self.profile not in PROFILES:
            raise Refused("faults", f"there is no profile {self.profile}; write {' or '.join(PROFILES)}")
        return Outages([name for name, _ in trace.nodes], PROFILES[self.profile], self.seed)


def run_policies(
    trace: Trace, policies: Sequence[Policy], until: Micros | None, watch: Watch, faults: Faults | None = None
) -> list[Run]:
    """Run the trace with each policy. If a run is stopped, the remaining policies are left out."""
    runs: list[Run] = []
    for policy in policies:
        began = perf_counter()
        outages = faults.outages(trace) if faults is not None else None
        simulation = Simulation(trace, policy, outages)
        with spared():
            whole = simulation.run(until, watch)
        result = figures(simulation.record, policy.name, perf_counter() - began)
        result |= {"interrupted": not whole, "outages": outages.count if outages is not None else 0}
        runs.append(Run(policy, simulation.record, result, whole))
        if not whole:
            break
    return runs


class Packing(msgspec.Struct, frozen=True):
    """The settings of packing."""

    percent: int
    """Jobs arrive until they have asked for this percentage of all GPUs."""
    shuffles: int = 10
    """The number of random orders of the jobs."""
    seed: int = 42
    """The seed of the first order. The published figures have the seeds 42 to 51."""


PackWatch = Callable[[str, int], bool]
"""Called before each cycle, with the placement and the number of finished shuffles. True stops the run."""


def run_placements(
    trace: Trace, places: Sequence[str], packing: Packing, watch: PackWatch
) -> tuple[list[dict[str, Any]], bool]:
    """Return the results of the placements, and False if the run was stopped.

    The result of a stopped placement covers its finished shuffles.
    """
    results: list[dict[str, Any]] = []
    for place in places:
        began = perf_counter()
        packed: list[Packed] = []
        for seed in range(packing.seed, packing.seed + packing.shuffles):
            shuffle = pack(trace, place, packing.percent, seed, lambda: watch(place, len(packed)))  # noqa: B023
            if shuffle is None:
                break
            packed.append(shuffle)
        whole = len(packed) == packing.shuffles
        if packed:
            result = summary(trace, place, packing.percent, packed)
            results.append({**result, "wall_s": round(perf_counter() - began, 3), "interrupted": not whole})
        if not whole:
            return results, False
    return results, True
