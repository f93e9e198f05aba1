"""Accuracy of drawn run times: each job of a public log is compared with the run times drawn for it.

    python -m bench.runtimes LOG [--jobs 6000] [--no-estimates]

Jobs start when they are submitted, so nothing is simulated. Run times are drawn for each job at its start, and for all
running jobs when every tenth job is submitted, above the time that they have run. If the draws are accurate, the real
run time is among the lowest 5 % of them in 5 % of the cases, and among the highest 5 % in 5 %. The score is the CRPS of
log(1 + remaining seconds): the lower, the better. `alike` is the correlation of the ranks of two running jobs, by what
the jobs have in common.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from math import log1p
from pathlib import Path
from random import Random
from statistics import NormalDist, mean
from typing import Any

from fairlead.core.model import Micros
from fairlead.core.resources import SECOND
from fairlead.forecast.runtimes import Runtimes
from fairlead.sim.traces import Arrival, read_traces

DRAWS = 99
SKIP = 500
"""Jobs before the first comparison."""
EACH = 10
MOST = 25
"""Running jobs that are compared at one time."""

Place = tuple[Arrival, float, float]
"""A job, the part of the drawn run times that are below its real one, and the score."""


def examine(log: Path, jobs: int | None, estimates: bool) -> dict[str, Any]:
    arrivals = read_traces([log], lambda path: None, jobs=jobs).arrivals
    rng = Random(1)
    runtimes = Runtimes()
    running: list[Arrival] = []
    at_start: list[Place] = []
    later: list[list[Place]] = []
    left_out = 0

    def given(job: Arrival) -> Micros | None:
        return job.spec.stages[0].estimate if estimates else None

    def places(compared: Sequence[Arrival], now: Micros) -> list[Place]:
        found = []
        for job in compared:
            table = runtimes.table_of(job.spec.user, job.spec.name, "main", given(job))
            draws = [] if table is None else [table.draw(rng, now - job.at) for _ in range(DRAWS)]
            drawn = [ran for ran in draws if ran is not None]
            if not drawn:
                nonlocal left_out
                left_out += 1  # nothing is known about its run time
            else:
                found.append((job, *_judged(drawn, max(1, job.durations[0]), now - job.at, rng)))
        return found

    for number, arrival in enumerate(arrivals):
        now = arrival.at
        ended = [job for job in running if job.at + job.durations[0] <= now]
        for job in sorted(ended, key=lambda job: job.at + job.durations[0]):
            runtimes.note(job.spec.user, job.spec.name, "main", job.durations[0], given(job))
        running = [job for job in running if job.at + job.durations[0] > now]
        if number >= SKIP:
            at_start += places([arrival], now)
            if not number % EACH:
                later.append(places(rng.sample(running, min(MOST, len(running))), now))
        running.append(arrival)
    return {
        "log": log.name,
        "left_out": left_out,
        "starting": _figures(at_start),
        "running": _figures([place for places in later for place in places]),
        "alike": _alike(later),
    }


def _judged(drawn: Sequence[Micros], real: Micros, elapsed: Micros, rng: Random) -> tuple[float, float]:
    """Return the rank of the real run time among the drawn ones, with random ties, and the score."""
    below = sum(ran < real for ran in drawn)
    place = (below + rng.randint(0, sum(ran == real for ran in drawn)) + 0.5) / (len(drawn) + 1)
    logs = sorted(log1p((ran - elapsed) / SECOND) for ran in drawn)
    count = len(logs)
    spread = sum((2 * at + 1 - count) * value for at, value in enumerate(logs)) / (count * (count - 1))
    return place, mean(abs(value - log1p((real - elapsed) / SECOND)) for value in logs) - spread


def _figures(places: Sequence[Place]) -> dict[str, float]:
    count = max(1, len(places))
    return {
        "jobs": len(places),
        "lowest_5": round(100 * sum(place < 0.05 for _, place, _ in places) / count, 1),
        "lowest_25": round(100 * sum(place < 0.25 for _, place, _ in places) / count, 1),
        "highest_25": round(100 * sum(place > 0.75 for _, place, _ in places) / count, 1),
        "highest_5": round(100 * sum(place > 0.95 for _, place, _ in places) / count, 1),
        "score": round(sum(score for _, _, score in places) / count, 4),
    }


def _alike(later: Sequence[Sequence[Place]]) -> dict[str, float]:
    """Return the correlation of the ranks of jobs that run at the same time, as normal scores."""
    normal = NormalDist().inv_cdf
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for places in later:
        for (one, here, _), (other, there, _) in combinations(places, 2):
            same = one.spec.user == other.spec.user
            shared = "name" if same and one.spec.name == other.spec.name else "user" if same else "nothing"
            pairs[shared].append((normal(here), normal(there)))
    found = {}
    for shared, scores in sorted(pairs.items()):
        middle = mean(one + other for one, other in scores) / 2
        spread = mean((one - middle) ** 2 + (other - middle) ** 2 for one, other in scores) / 2
        found[shared] = round(mean((one - middle) * (other - middle) for one, other in scores) / spread, 2)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.runtimes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--jobs", type=int, default=6_000)
    parser.add_argument("--no-estimates", action="store_true", help="as if no job had an estimate")
    given = parser.parse_args()
    print(json.dumps(examine(given.log, given.jobs, not given.no_estimates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
