"""Metrics: what Prometheus reads, kept up from the changes of each cycle."""
