"""Pools: providers that create and destroy machines, and the service that calls them. See docs/pools.md."""
