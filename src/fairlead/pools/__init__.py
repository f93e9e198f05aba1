"""Pools: who brings machines and takes them away, and the keeper that has it done. docs/pools.md is for people."""
