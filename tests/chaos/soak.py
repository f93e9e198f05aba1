"""Runs fault scenarios, seed after seed, until one fails or the run is stopped: `python -m tests.chaos.soak`.

A failing scenario is reduced to the events that cause the failure, and printed with its seed and the end of its log.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from time import monotonic

import msgspec

from tests.chaos.faults import PROFILES, Event, Scenario, draw_scenario
from tests.chaos.run import Failure, try_out

SHRINKING = 120.0
"""Seconds to spend on reducing a failing scenario."""
LINES = 60
"""Number of log lines to print, from the end."""


def soak(seeds: Iterator[int] | Sequence[int], profile: str) -> Iterator[tuple[int, Failure | None]]:
    """Run the scenario of each seed; yield the seed and its failure, or None."""
    for seed in seeds:
        yield seed, try_out(draw_scenario(seed, PROFILES[profile]))


def shrink(failure: Failure, seconds: float) -> Failure:
    """Return the same kind of failure with the fewest events found within the time."""
    deadline = monotonic() + seconds
    size = max(1, len(failure.scenario.events) // 2)
    while size:
        at, shorter = 0, False
        while at < len(failure.scenario.events):
            if monotonic() > deadline:
                return failure
            reduced = _still_fails(failure, at, size)
            if reduced is None:
                at += size
            else:
                failure, shorter = reduced, True
        size = size if shorter and size == 1 else size // 2
    return failure


def _still_fails(failure: Failure, at: int, size: int) -> Failure | None:
    events: tuple[Event, ...] = failure.scenario.events
    fewer = try_out(msgspec.structs.replace(failure.scenario, events=events[:at] + events[at + size :]))
    return fewer if fewer is not None and _kind(fewer) == _kind(failure) else None


def _kind(failure: Failure) -> str:
    """Return the start of the problem text without digits, so that other names and numbers compare equal."""
    return "".join(char for char in failure.problem if not char.isdigit())[:40]


def describe(failure: Failure) -> Iterator[str]:
    scenario: Scenario = failure.scenario
    yield f"seed {scenario.seed}: {failure.problem}"
    yield f"configuration: {scenario.config}"
    yield f"nodes: {scenario.nodes}"
    yield f"{len(scenario.events)} events; log, in simulated seconds:"
    yield from failure.lines[-LINES:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--profile", choices=list(PROFILES), default="all", help="which faults, and how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=None, help="number of seeds (default: run until Ctrl-C)")
    options = parser.parse_args(arguments)
    seeds = count(options.first) if options.seeds is None else range(options.first, options.first + options.seeds)
    done, began = 0, monotonic()
    try:
        for seed, failure in soak(iter(seeds), options.profile):
            done += 1
            if failure is not None:
                print(f"seed {seed} fails; reducing its events", flush=True)
                print("\n".join(describe(shrink(failure, SHRINKING))))
                print(f"again: python -m tests.chaos.soak --profile {options.profile} --first {seed} --seeds 1")
                return 1
            if done % 100 == 0:
                print(f"{done} seeds in {monotonic() - began:.0f} s, up to {seed}: all is well", flush=True)
    except KeyboardInterrupt:
        pass
    print(f"{done} seeds in {monotonic() - began:.0f} s: all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
