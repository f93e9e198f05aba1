"""The benchmarks by name, in the order in which they run. Each takes a scale; 1 gives the sizes of RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.deciding import deciding
from bench.durable import durable
from bench.e2e import e2e
from bench.explaining import explaining
from bench.fleet import fleet
from bench.harness import Row
from bench.joining import joining
from bench.memory import memory
from bench.previewing import previewing
from bench.recovery import recovery
from bench.shares import shares
from bench.simulating import simulating
from bench.spawning import spawning
from bench.steps import steps

CATALOGUE: dict[str, Callable[[float], Iterator[Row]]] = {
    "memory": memory,
    "joining": joining,
    "recovery": recovery,
    "durable": durable,
    "steps": steps,
    "deciding": deciding,
    "shares": shares,
    "explaining": explaining,
    "spawning": spawning,
    "fleet": fleet,
    "simulating": simulating,
    "previewing": previewing,
    "e2e": e2e,
}
