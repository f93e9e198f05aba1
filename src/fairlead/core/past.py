"""Past use, with the setting `share_memory`: the landmark of its weights moves on with time.

The arithmetic is in `core/policy/past.py`, and `Partition` keeps the accounts.
"""

from __future__ import annotations

from fairlead.core.changes import LandmarkMoved
from fairlead.core.plan import Plan

DOUBLINGS = 16
"""The landmark moves when this number of half-lives has passed: the weights double with each."""


def move_landmark(plan: Plan) -> None:
    """Move the landmark to the last whole half-life, before the cycle computes a weight."""
    partition = plan.partition
    half_life = partition.settings.share_memory
    if half_life:
        passed = (plan.now - partition.landmark) // half_life
        if passed >= DOUBLINGS:
            plan.do(LandmarkMoved(partition.landmark + passed * half_life))
