"""The policies that a past is run under, beside what really happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.core.config import parse_partition
from fairlead.core.settings import DEFAULT_CONFIG
from fairlead.sim.policy_files import NAMED, Policy, policy_of
from fairlead.sim.traces import Trace

REST = "rest"
"""The queue of jobs without an account or a partition."""
RECORDED = Policy("recorded", DEFAULT_CONFIG)
"""What really happened. Its configuration is not used."""
DEFAULTS: dict[str, Any] = {"queues": {"root": {"default": {"share": 100, "order": "fair"}}}, "chain": 0}
"""A new installation. With chains, start times would depend on measured run times."""
ABOUT = {
    "recorded": "what really happened",
    "easy": "first come, first served, with EASY backfill, as Slurm plans it",
    "defaults": "a new installation of Fairlead: users take turns, and nodes are held for large jobs that wait long",
    "shares": "a queue for each account with a share by what it used; backfill by learned run times",
}
"""Name of a policy → what it is, for the page."""


def contenders(trace: Trace, config: Mapping[str, Any] | None) -> list[Policy]:
    """Return the policies to run, the most interesting one last."""
    if config is not None:
        return [NAMED["easy"](trace), policy_of("yours", config)]
    return [NAMED["easy"](trace), Policy("defaults", parse_partition(DEFAULTS, "defaults")), _shares(trace)]


def _shares(trace: Trace) -> Policy:
    """Return the policy with a queue for each queue of the trace, whose shares are what it used."""
    used: dict[str, int] = {}
    for arrival in trace.arrivals:
        used[arrival.spec.queue or REST] = used.get(arrival.spec.queue or REST, 0) + arrival.work(trace.resource)
    total = sum(used.values()) or 1
    queues = {name: {"share": max(1, round(1000 * used[name] / total)), "order": "fair"} for name in sorted(used)}
    document = {
        "queues": {"root": queues},
        "requestors": [{"match": "", "queue": f"root.{REST}"}] if REST in queues else [],
        "backfill": "shortest",
        "estimates": "learned",
        "rebalance_threshold": 0,  # jobs of a batch cluster lose their work when they are stopped
        "chain": 0,
    }
    return Policy("shares", parse_partition(document, "shares"))
