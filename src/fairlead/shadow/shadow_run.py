"""The past of a cluster beside what Fairlead would have done with the same jobs on the same nodes.

First the trace runs under each policy (`shadow/contenders.py`), in one of them with predictions of start times
(`shadow/predictions.py`); then users, queues and sizes are compared with what really happened (`shadow/gains.py`), and
`shadow/shadow_page.py` draws it all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import msgspec

from fairlead.core.errors import Refused
from fairlead.shadow.contenders import RECORDED, contenders
from fairlead.shadow.gains import Gain, compare
from fairlead.shadow.predictions import Predictions, Predictor
from fairlead.sim.batch import Run
from fairlead.sim.figures import figures
from fairlead.sim.policy_files import Policy
from fairlead.sim.record import Record
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Trace
from fairlead.writer.gc_settings import spared

Watch = Callable[[Simulation], bool]
"""Called before each cycle. If it returns True, the run stops."""


class Shadow(msgspec.Struct):
    trace: Trace
    runs: list[Run]
    """The recorded past, then a run for each policy."""
    gains: dict[str, list[Gain]]
    """user, queue or size → how each of them fared."""
    predictions: Predictions
    whole: bool
    """False if a run was stopped."""

    def document(self) -> dict[str, Any]:
        """Return everything as figures."""
        return {
            "trace": self.trace.name,
            "nodes": len(self.trace.nodes),
            "runs": [run.result for run in self.runs],
            **{f"by_{kind}": [gain.document() for gain in gains] for kind, gains in self.gains.items()},
            "predictions": self.predictions.document(),
        }


def shadow(trace: Trace, config: Mapping[str, Any] | None, watch: Watch, seconds: float) -> Shadow:
    """Run the jobs of a trace under Fairlead. Predictions of starts take about this many `seconds`."""
    untold = sum(1 for arrival in trace.arrivals if arrival.started is None)
    if untold:
        raise Refused(trace.name, f"{untold} jobs have no start time; name a file that tells when jobs started")
    policies = contenders(trace, config)
    runs = [_recorded(trace)]
    predictor = Predictor(trace, seconds)
    for policy in policies:
        run = _run(trace, policy, predictor if policy is policies[-1] else None, watch)
        runs.append(run)
        if not run.whole:
            break
    whole = all(run.whole for run in runs)
    return Shadow(trace, runs, compare(trace, runs), predictor.score(runs[-1].record), whole)


def _recorded(trace: Trace) -> Run:
    record = Record.of_past(trace)
    result = figures(record, RECORDED.name, 0.0)
    return Run(RECORDED, record, {**result, "interrupted": False, "outages": 0}, True)


def _run(trace: Trace, policy: Policy, predictor: Predictor | None, watch: Watch) -> Run:
    began = perf_counter()
    simulation = Simulation(trace, policy, observers=[predictor.known] if predictor is not None else [])

    def each(now: Simulation) -> bool:
        if predictor is not None:
            predictor.look(now)
        return watch(now)

    with spared():
        whole = simulation.run(None, each)
    result = figures(simulation.record, policy.name, perf_counter() - began)
    return Run(policy, simulation.record, {**result, "interrupted": not whole, "outages": 0}, whole)
