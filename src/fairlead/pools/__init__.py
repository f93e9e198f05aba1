"""Pools: providers that create and destroy machines, and the service that calls them. docs/pools.md is for users."""
