"""Preemption and rebalance: tasks are stopped to free capacity that an ask is entitled to."""
