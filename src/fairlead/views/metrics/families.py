"""Gauges whose values are computed by a scrape."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value of the gauge."""


def gauge(name: str, meaning: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> GaugeMetricFamily:
    """Return a gauge with the label `partition`, further labels, and its samples."""
    family = GaugeMetricFamily(f"fairlead_{name}", meaning, labels=("partition", *labels))
    for values, number in samples:
        family.add_metric(values, number)
    return family
