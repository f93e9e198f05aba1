"""Pools: orders nodes for waiting asks, and gives idle nodes back."""
