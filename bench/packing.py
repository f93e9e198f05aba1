"""How full placements pack the GPUs of the openb trace, on the way to 130 % of requested GPUs, as a picture.

    python -m bench.packing NODES.csv.gz PODS.csv.gz docs/packing.svg [--orders 3]

The protocol is that of `fairlead simulate --packing 130`; the lines are means of the first orders.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from pathlib import Path

from fairlead.core.resources import GPU
from fairlead.sim.charts import Line, linear, picture
from fairlead.sim.fill import Packed, pack
from fairlead.sim.traces import Trace, read_traces

PLACES = ("priced", "fgd", "bestfit", "pack", "spread", "gpu_packing", "gpu_clustering", "dotprod", "random")
MARKS = range(70, 130)
"""Requested GPUs in percent."""


LEARNT = "priced, learnt"
"""Not knowing the mix of jobs from the start."""


def way(trace: Trace, name: str, orders: int) -> list[tuple[float, float]]:
    total = trace.amount(GPU)
    place = name.partition(",")[0]
    runs = [pack(trace, place, 130, seed, known=name != LEARNT) for seed in range(42, 42 + orders)]
    points: list[tuple[float, float]] = []
    for mark in MARKS:
        allocated = [_at(run, mark * total // 100) for run in runs if run is not None]
        points.append((mark, 100 * sum(allocated) / len(allocated) / total))
    return points


def _at(run: Packed, asked: int) -> int:
    return run.way[min(bisect_left(run.way, (asked, 0)), len(run.way) - 1)][1]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.packing", description=__doc__)
    parser.add_argument("nodes", type=Path)
    parser.add_argument("pods", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--orders", type=int, default=3)
    options = parser.parse_args()
    trace = read_traces([options.nodes, options.pods], lambda path: None, "extend", None, None, None)
    lines: list[Line] = []
    for name in (PLACES[0], LEARNT, *PLACES[1:]):
        lines.append(Line(name, way(trace, name, options.orders)))
        print(name, *[f"{at:.0f}: {allocated:.2f}" for at, allocated in lines[-1].points[::10]], flush=True)
    percent = "{:.0f} %".format
    x, y = linear(MARKS[-1], percent, MARKS[0]), linear(98, percent, 70)
    options.picture.write_text(picture(lines, x, y), encoding="utf-8")


if __name__ == "__main__":
    main()
