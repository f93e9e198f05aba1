"""Disruption budgets: which jobs must not be stopped for others now, because the evictions would be refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from fairlead.kubernetes.objects import DisruptionBudget
from fairlead.kubernetes.pods import selects
from fairlead.kubernetes.units import Member


class Budgets:
    """The budgets of a cluster. `changed` is called when one of them has changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._budgets: dict[str, DisruptionBudget] = {}

    def put(self, budget: DisruptionBudget) -> None:
        self._budgets[budget.metadata.uid] = budget
        self._changed()

    def drop(self, uid: str) -> None:
        self._budgets.pop(uid, None)
        self._changed()

    def spared(self, members: Iterable[Member]) -> list[str]:
        """Return the jobs to spare, sorted: of the units that a budget selects, all but the youngest whose pods may be
        disrupted together."""
        if not self._budgets:
            return []
        by_namespace: dict[str, list[Member]] = {}
        for member in members:
            if member.bound:
                by_namespace.setdefault(member.namespace, []).append(member)
        spared: set[str] = set()
        for budget in self._budgets.values():
            selector, left = budget.spec.selector, budget.status.disruptions_allowed
            if selector is None:
                continue
            here = by_namespace.get(budget.metadata.namespace, ())
            counts = Counter(member.unit.job for member in here if selects(selector, member.labels))
            for job, count in reversed(counts.items()):
                if count > left:
                    spared.add(job)
                left -= count
        return sorted(spared)
