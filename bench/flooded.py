"""How often foretold starts are within their interval in random worlds in which users submit floods of jobs.

    python -m bench.flooded [--worlds 100] [--every 12]

Each world has random nodes, users and run times, and floods of jobs of one user. It runs in the simulator, and starts
are foretold as by a server (see `bench.eta`). The ledger of promises corrects the intervals. It goes on from world to
world, as that of a cluster whose load changes does; a start counts as known when it has come.
"""

from __future__ import annotations

import argparse
import json
from random import Random

from bench.eta import Ledger, predict
from fairlead.core.changes import NodeSpec
from fairlead.core.model import JobSpec, StageSpec
from fairlead.core.resources import CPU, MILLI, MINUTE, SECOND
from fairlead.forecast.eta import SAMPLES
from fairlead.history.promised_starts import NEWEST_SCORES, stretch_of
from fairlead.sim.policy_files import NAMED
from fairlead.sim.traces import Arrival, LeftOut, Trace
from fairlead.sim.traces.generate import Workload, generate


def world(seed: int) -> tuple[Trace, str]:
    rng = Random(seed)
    nodes = [(f"n{at}", NodeSpec(((CPU, rng.choice((4, 8)) * MILLI),))) for at in range(rng.randint(2, 8))]
    workload = Workload(
        jobs=150,
        seed=seed,
        load=rng.choice((50, 70, 90)),
        users=rng.randint(3, 12),
        singles=rng.choice((25, 60, 90)),
        shortest=10 * SECOND,
        longest=rng.choice((5, 20, 60)) * MINUTE,
        rhythm=False,
    )
    arrivals = generate(workload, nodes, "extend")
    last = arrivals[-1].at
    for flood in range(rng.randint(1, 4)):
        at, ran, user = rng.randint(last // 4, last), rng.randint(1, 10) * MINUTE, f"u{rng.randint(1, 12)}"
        for number in range(rng.randint(20, 80)):
            took = max(SECOND, round(ran * rng.lognormvariate(0, 0.3)))
            stage = StageSpec("main", 1, 0, workload.task, estimate=rng.choice((2, 4)) * ran)
            name = f"flood{flood}-{number}"
            arrivals.append(Arrival(at, name, JobSpec(f"f{flood}", user, "", (stage,)), (took,)))
    return Trace(f"world {seed}", sorted(arrivals, key=lambda arrival: arrival.at), nodes, LeftOut()), rng.choice(
        ("learned", "easy", "fair", "shortest")
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.flooded")
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--every", type=int, default=12, help="foretell the start of each N-th waiting job")
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    given = parser.parse_args()
    ledger = Ledger()
    for seed in range(given.first, given.first + given.worlds):
        trace, policy = world(seed)
        every = {"submitted": given.every, "head": 0}
        asked, simulation, _ = predict(trace, NAMED[policy](trace), every, 1, SAMPLES, 30)
        records = {arrival.job: simulation.record.job(at).started for at, arrival in enumerate(trace.arrivals)}
        starts = {job: start for job, start in records.items() if start is not None}
        ledger.add([one for one in asked if one.job in starts], starts)
        figures = {"world": seed, "policy": policy, "promises": len(ledger.simulated), "stretch": 0.0}
        if ledger.simulated:
            figures["simulated"] = round(100 * sum(ledger.simulated) / len(ledger.simulated), 1)
            figures["corrected"] = round(100 * sum(ledger.corrected) / len(ledger.corrected), 1)
            figures["stretch"] = round(stretch_of(ledger.scores[-NEWEST_SCORES:]), 2)
        print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
