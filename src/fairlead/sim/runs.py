"""One trace under several policies, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from fairlead.core.model import Micros
from fairlead.sim.figures import figures
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
