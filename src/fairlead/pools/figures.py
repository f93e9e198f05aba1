"""Metrics of machines: what providers were asked, and what came of it. docs/metrics.md has them in its table."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TAKEN = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300)
LABELS = ("partition", "pool")
CALLS = ("create", "destroy", "list")


class Figures:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry` is where they are shown, beside others."""
        registry = registry or CollectorRegistry()
        self.created = Counter(
            "fairlead_machines_brought_total",
            "Machines that the provider of a pool was asked for, and did not refuse.",
            LABELS,
            registry=registry,
        )
        self.failed = Counter(
            "fairlead_machines_failed_total",
            "Ordered machines that could not be brought, or that went away before their node came.",
            LABELS,
            registry=registry,
        )
        self.destroyed = Counter(
            "fairlead_machines_destroyed_total",
            "Machines that were taken away because nobody needs them.",
            LABELS,
            registry=registry,
        )
        self.machines = Gauge("fairlead_machines", "Machines that the provider lists.", LABELS, registry=registry)
        self.orphans = Gauge(
            "fairlead_orphan_machines",
            "Machines that the provider lists and that are neither nodes nor expected. Nobody takes them away.",
            LABELS,
            registry=registry,
        )
        self.calls = Histogram(
            "fairlead_provider_call_seconds",
            "Time that a provider took for a call (create, destroy or list).",
            (*LABELS, "call"),
            registry=registry,
            buckets=TAKEN,
        )
        self.errors = Counter(
            "fairlead_provider_errors_total",
            "Calls of a provider that failed, or that nobody knows the outcome of.",
            (*LABELS, "call"),
            registry=registry,
        )

    def begin(self, partition: str, pool: str) -> None:
        """A rate sees the first event only if there was a zero before it."""
        for metric in (self.created, self.failed, self.destroyed, self.machines, self.orphans):
            metric.labels(partition, pool)
        for call in CALLS:
            self.errors.labels(partition, pool, call)
            self.calls.labels(partition, pool, call)

    def end(self, partition: str, pool: str) -> None:
        """The pool is gone, or its provider is: what there was is not to be seen any more."""
        self.machines.remove(partition, pool)
        self.orphans.remove(partition, pool)
