"""Metrics for Prometheus, updated from the changes of each cycle."""
