"""Pools: nodes are ordered for waiting asks, and given back when they are idle."""
