"""Policies to simulate: built-in ones by name, or the configuration of a partition as in fairlead.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from fairlead.core.config import QUEUE_NAME, parse_config, parse_partition
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec
from fairlead.core.reader import suggestion
from fairlead.core.settings import PartitionConfig
from fairlead.sim.traces import Trace

MAX_CANDIDATES = 10_000_000
ONE_QUEUE: dict[str, Any] = {
    "chain": 0,  # with chains, start times depend on measured run times
    "hold_for": 0,  # these policies have no holds
    "max_placed": MAX_CANDIDATES,  # all jobs that may start at one instant start in one cycle
    "queues": {"root": {"all": {"order": "fifo"}}},
    "requestors": [{"match": "", "queue": "root.all"}],
}


MODES: dict[str, dict[str, str]] = {
    "fcfs": {"backfill": "off"},
    "easy": {"backfill": "easy"},
    "shortest": {"backfill": "shortest"},
    "conservative": {"backfill": "conservative"},
    "learned": {"backfill": "shortest", "estimates": "learned"},
}
"""Policy → the settings that it changes."""


class Policy:
    def __init__(self, name: str, config: PartitionConfig, homes: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.config = config
        self._homes = homes or {}
        """User → queue, for jobs whose queue the policy does not have."""
        self._paths = {path for path, _ in config.queues}

    def place(self, spec: JobSpec) -> JobSpec:
        """Return the job to submit. It keeps the queue of the trace if the policy has that queue."""
        queue = self._homes.get(spec.user, "")
        if spec.queue in self._paths:
            return spec
        if spec.queue and f"root.{spec.queue}" in self._paths:
            queue = f"root.{spec.queue}"
        return spec if queue == spec.queue else msgspec.structs.replace(spec, queue=queue)


def single_queue(name: str, trace: Trace) -> Policy:
    """Return the policy with one queue and the settings of `MODES`."""
    return Policy(name, parse_partition({**ONE_QUEUE, **MODES[name]}, name))


def fair(trace: Trace) -> Policy:
    """Return the policy with one queue per user, equal shares and `backfill: easy`."""
    users = sorted({arrival.spec.user for arrival in trace.arrivals})
    names = {user: user if QUEUE_NAME.fullmatch(user) else f"user-{at}" for at, user in enumerate(users)}
    queues = {name: {"order": "fifo", "share": 1} for name in names.values()}
    document = {**ONE_QUEUE, "backfill": "easy", "queues": {"root": queues}, "requestors": []}
    return Policy("fair", parse_partition(document, "fair"), {user: f"root.{name}" for user, name in names.items()})


NAMED: dict[str, Callable[[Trace], Policy]] = {**{name: partial(single_queue, name) for name in MODES}, "fair": fair}


def check_name(name: str) -> None:
    """Refuse a name that is not a built-in policy."""
    if name not in NAMED:
        names = ", ".join(NAMED)
        raise Refused(
            "policy",
            f"there is no policy {name}{suggestion(name, NAMED)}; write {names} or name a file such as fairlead.yaml",
        )


def policy_of(name: str, document: object) -> Policy:
    """Return a policy from a configuration with one partition, or from the settings of a partition alone."""
    if isinstance(document, Mapping) and "partitions" not in document:
        document = {"partitions": {"default": document}}
    configs = parse_config({} if document is None else document)
    if len(configs) != 1:
        raise Refused("partitions", f"{len(configs)} are configured; a simulation runs one, so leave one")
    return Policy(name, next(iter(configs.values())))
