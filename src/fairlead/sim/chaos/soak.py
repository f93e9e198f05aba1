"""Run fault scenarios, seed after seed, until one fails or the run is stopped: `python -m fairlead.sim.chaos.soak`.

A failure is cut down to the events that it takes, and printed with its seed and with what happened.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from time import monotonic

import msgspec

from fairlead.sim.chaos.faults import PROFILES, Event, Scenario, draw_scenario
from fairlead.sim.chaos.run import Failure, try_out

SHRINKING = 120.0
"""Seconds that are spent on cutting a failure down."""
LINES = 60
"""So much is shown of what happened, from the end."""


def soak(seeds: Iterator[int] | Sequence[int], profile: str) -> Iterator[tuple[int, Failure | None]]:
    """The outcome of each seed."""
    for seed in seeds:
        yield seed, try_out(draw_scenario(seed, PROFILES[profile]))


def shrink(failure: Failure, seconds: float) -> Failure:
    """The same kind of failure with as few events as can be found in that time."""
    deadline = monotonic() + seconds
    size = max(1, len(failure.scenario.events) // 2)
    while size:
        at, shorter = 0, False
        while at < len(failure.scenario.events):
            if monotonic() > deadline:
                return failure
            found = _still_fails(failure, at, size)
            if found is None:
                at += size
            else:
                failure, shorter = found, True
        size = size if shorter and size == 1 else size // 2
    return failure


def _still_fails(failure: Failure, at: int, size: int) -> Failure | None:
    events: tuple[Event, ...] = failure.scenario.events
    fewer = try_out(msgspec.structs.replace(failure.scenario, events=events[:at] + events[at + size :]))
    return fewer if fewer is not None and _kind(fewer) == _kind(failure) else None


def _kind(failure: Failure) -> str:
    """What is wrong, without the names and numbers in it."""
    return "".join(each for each in failure.problem if not each.isdigit())[:40]


def describe(failure: Failure) -> Iterator[str]:
    scenario: Scenario = failure.scenario
    yield f"seed {scenario.seed}: {failure.problem}"
    yield f"configuration: {scenario.config}"
    yield f"nodes: {scenario.nodes}"
    yield f"{len(scenario.events)} events; what happened, in simulated seconds:"
    yield from failure.lines[-LINES:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fairlead.sim.chaos.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=list(PROFILES), default="all", help="what goes wrong, and how much")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=None, help="how many; without it until Ctrl-C")
    options = parser.parse_args(arguments)
    seeds = count(options.first) if options.seeds is None else range(options.first, options.first + options.seeds)
    done, began = 0, monotonic()
    try:
        for seed, failure in soak(iter(seeds), options.profile):
            done += 1
            if failure is not None:
                print(f"seed {seed} fails; cutting it down", flush=True)
                print("\n".join(describe(shrink(failure, SHRINKING))))
                print(f"again: python -m fairlead.sim.chaos.soak --profile {options.profile} --first {seed} --seeds 1")
                return 1
            if done % 100 == 0:
                print(f"{done} seeds in {monotonic() - began:.0f} s, up to {seed}: all is well", flush=True)
    except KeyboardInterrupt:
        pass
    print(f"{done} seeds in {monotonic() - began:.0f} s: all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
