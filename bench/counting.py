"""Counts CPU instructions of decisions in this tree and in another one: a measure without noise.

`python -m bench.counting TREE [CASE …]` runs the small cases of both trees under valgrind, which has to be
installed, and prints the ratio of the instructions here to those there. The setup of a case is counted separately and
subtracted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.harness import ROOT

CASES = ("gangs", "singles", "mix", "steady", "fcfs", "easy")
COUNT = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def run(case: str, decide: bool) -> None:
    """Set a case up and, with `decide`, run its decisions."""
    from bench import deciding
    from fairlead.sim.policy_files import NAMED
    from fairlead.sim.simulation import Simulation
    from fairlead.sim.traces import LeftOut, Trace
    from fairlead.sim.traces.generate import Workload, generate
    from fairlead.sim.traces.trace import cpu_node

    backlogs: dict[str, tuple[Any, ...]] = {
        "gangs": (deciding.GANG, 100),
        "singles": (deciding.SINGLES, 4_000),
        "mix": (deciding.MIX, 1_200, "pack"),
    }
    if case in backlogs:
        with deciding._waiting(500, *backlogs[case]) as world:
            if decide:
                deciding._decide(world)
    elif case == "steady":
        with deciding._waiting(30, deciding.SINGLES, 6_000) as world:
            ends = list(deciding.ends_of(deciding._decide(world)))[:1_500]
            for at in range(0, len(ends), 500) if decide else ():
                world.cycle(ends[at : at + 500], 3)
    else:
        nodes = [("machine", cpu_node(256))]
        arrivals = generate(Workload(jobs=300, load=95, largest=256), nodes, "extend")
        trace = Trace("made up", arrivals, nodes, LeftOut())
        simulation = Simulation(trace, NAMED[case](trace))
        if decide:
            simulation.run()


def count(tree: Path, case: str, decide: bool) -> int:
    own = str(tree / "bench" / "counting.py")  # each tree runs its own cases: names of modules differ
    script = f"import gc, sys; gc.disable(); sys.argv = ['', '{case}', '{decide}']; exec(open({own!r}).read())"
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*COUNT, sys.executable, "-c", script], cwd=tree, env=environment, capture_output=True, text=True, check=True
    )
    match = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert match is not None, done.stderr
    return int(match[1].replace(",", ""))


def compare(tree: Path, cases: tuple[str, ...], report: Callable[[str], None] = print) -> None:
    runs = [(checkout, case, decide) for case in cases for checkout in (tree, ROOT) for decide in (False, True)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counted = dict(zip(runs, pool.map(lambda checkout: count(*checkout), runs), strict=True))
    for case in cases:
        there, here = (counted[checkout, case, True] - counted[checkout, case, False] for checkout in (tree, ROOT))
        report(
            f"{case}: {here / 1e6:,.1f} million instructions, {here / there:.3f} of {there / 1e6:,.1f} million there"
        )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2] in ("True", "False"):
        run(sys.argv[1], sys.argv[2] == "True")
    elif len(sys.argv) < 2 or set(sys.argv[2:]) - set(CASES) or not Path(sys.argv[1], "bench").is_dir():
        sys.exit(f"usage: python -m bench.counting TREE [{' | '.join(CASES)} …]; TREE is another checkout")
    elif shutil.which("valgrind") is None:
        sys.exit("valgrind is needed to count instructions; install it")
    else:
        compare(Path(sys.argv[1]).absolute(), tuple(sys.argv[2:]) or CASES)
