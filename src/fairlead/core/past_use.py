"""Past use, with the setting `share_memory`: moves the landmark from which weights are computed, as time passes.

The arithmetic is in `core/policy/decay.py`; the accounts are in `Partition`.
"""

from __future__ import annotations

from fairlead.core.changes import LandmarkMoved
from fairlead.core.model import Account, Micros
from fairlead.core.plan import Plan
from fairlead.core.policy.decay import after_shift, past_use, total_weight
from fairlead.core.state import Partition

DOUBLINGS = 16
"""The landmark moves after this number of half-lives, before the weights grow too large."""


def past_part(partition: Partition, account: Account, now: Micros) -> float:
    """Return the average past use of an account until a time, as a part of the capacity of the partition.

    For display only: it uses the time of the look, which the state does not know.
    """
    half_life, rights = partition.settings.share_memory, partition.entitlements()
    if account.booked is None or not rights.whole:
        return 0.0
    doublings, rest = divmod(max(now, partition.now) - partition.landmark, half_life)
    weight = total_weight(rest, half_life)
    past = past_use(partition.use_with_tasks(account), after_shift(account.booked, doublings), weight)
    return rights.measure_with_tasks(past) / (weight * rights.whole)


def move_landmark(plan: Plan) -> None:
    """Move the landmark forward by whole half-lives. Call this before a cycle computes a weight."""
    partition = plan.partition
    half_life = partition.settings.share_memory
    if half_life:
        passed = (plan.now - partition.landmark) // half_life
        if passed >= DOUBLINGS:
            plan.do(LandmarkMoved(partition.landmark + passed * half_life))
