"""One trace under several policies, or several placements, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from fairlead.core.model import Micros
from fairlead.sim.figures import figures
from fairlead.sim.packing import Packed, pack, summary
from fairlead.sim.policies import Policy
from fairlead.sim.record import Record
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace

Watch = Callable[[Simulation], bool]
"""Asked before each cycle: whether to stop."""


class Run(msgspec.Struct, frozen=True):
    policy: Policy
    record: Record
    result: dict[str, Any]
    whole: bool
    """Whether it came to its end; else its figures are of what there was until then."""


def run_policies(trace: Trace, policies: Sequence[Policy], until: Micros | None, watch: Watch) -> list[Run]:
    """If one is stopped, those after it are not begun."""
    runs: list[Run] = []
    for policy in policies:
        began = perf_counter()
        simulation = Simulation(trace, policy)
        whole = simulation.run(until, watch)
        result = figures(simulation.record, policy.name, perf_counter() - began)
        runs.append(Run(policy, simulation.record, {**result, "interrupted": not whole}, whole))
        if not whole:
            break
    return runs


class Packing(msgspec.Struct, frozen=True):
    """How full the GPUs of a fleet become: what share of them is asked for, and in how many random orders."""

    percent: int
    shuffles: int = 10
    seed: int = 1


PackWatch = Callable[[str, int], bool]
"""Asked before each cycle, with the placement and how many shuffles are done: whether to stop."""


def run_placements(
    trace: Trace, places: Sequence[str], packing: Packing, watch: PackWatch
) -> tuple[list[dict[str, Any]], bool]:
    """The result of each placement, and whether it came to its end; what was stopped has those shuffles that were."""
    results: list[dict[str, Any]] = []
    for place in places:
        began = perf_counter()
        packed: list[Packed] = []
        for seed in range(packing.seed, packing.seed + packing.shuffles):
            one = pack(trace, place, packing.percent, seed, lambda: watch(place, len(packed)))  # noqa: B023
            if one is None:
                break
            packed.append(one)
        whole = len(packed) == packing.shuffles
        if packed:
            result = summary(trace, place, packing.percent, packed)
            results.append({**result, "wall_s": round(perf_counter() - began, 3), "interrupted": not whole})
        if not whole:
            return results, False
    return results, True
