"""Metrics of machines: calls of providers and their outcomes, as listed in docs/metrics.md."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TAKEN = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300)
LABELS = ("partition", "pool")
CALLS = ("create", "destroy", "list")


class Figures:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Create the metrics in `registry`, which shows them with those of other modules."""
        registry = registry or CollectorRegistry()
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, labelnames=LABELS, registry=registry)
        self.created = counter(
            "fairlead_machines_brought_total",
            "Machines that the provider of a pool was asked for, and did not refuse.",
            LABELS,
        )
        self.failed = counter(
            "fairlead_machines_failed_total",
            "Ordered machines that could not be brought, or that went away before their node came.",
            LABELS,
        )
        self.destroyed = counter(
            "fairlead_machines_destroyed_total",
            "Machines that were destroyed because they are not needed any more.",
            LABELS,
        )
        self.machines = gauge("fairlead_machines", "Machines that the provider lists.")
        self.orphans = gauge(
            "fairlead_orphan_machines",
            "Machines that the provider lists and that are neither nodes nor expected. Fairlead does not destroy them.",
        )
        self.calls = Histogram(
            "fairlead_provider_call_seconds",
            "Time that a provider took for a call (create, destroy or list).",
            (*LABELS, "call"),
            registry=registry,
            buckets=TAKEN,
        )
        self.errors = counter(
            "fairlead_provider_errors_total",
            "Calls of a provider that failed, or with an unknown outcome.",
            (*LABELS, "call"),
        )

    def begin(self, partition: str, pool: str) -> None:
        """Create the series of a pool at zero, because a rate counts the first event only if a zero came before it."""
        for metric in (self.created, self.failed, self.destroyed, self.machines, self.orphans):
            metric.labels(partition, pool)
        for call in CALLS:
            self.errors.labels(partition, pool, call)
            self.calls.labels(partition, pool, call)

    def end(self, partition: str, pool: str) -> None:
        """Remove the gauges of a pool that is gone or no longer has a provider."""
        self.machines.remove(partition, pool)
        self.orphans.remove(partition, pool)
