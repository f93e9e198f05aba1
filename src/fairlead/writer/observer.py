"""The interface of observers of a writer, such as metrics and logs.

Observers read the plans of finished cycles. The core does not know about observers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from fairlead.core.changes import News
from fairlead.core.cycle import Cycle
from fairlead.core.state import Partition


class Observer(Protocol):
    """Observes a writer. Its methods are called in the writer's thread between cycles, so they may read the state.

    They must be quick and must not raise. Subclasses define the methods that they need. `Plan.news` lists the tasks,
    jobs and nodes that a cycle changed.
    """

    def began(self, partition: Partition) -> None:
        """Called when a writer has taken over and recovered a partition."""

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        """Called after each cycle, when its changes are durable.

        `decided.seq` is the number of its record. `seconds` has the duration of each phase. If there were changes, it
        also has `encode` and `journal`.
        """

    def stopped(self, partition: Partition, why: str) -> None:
        """Called when the writer has stopped. `cycle` is not called for the cycle that it could not write."""


@runtime_checkable
class ReplayObserver(Protocol):
    """An observer that also gets the records that a recovery replays, before `began` is called.

    If the last server crashed, its observers may have missed these records.
    """

    def reached(self, partition: str, last: int) -> int:
        """Return the record after which the observer needs the records up to `last`, the last one."""

    def replayed(self, partition: Partition, seq: int, news: Iterable[News]) -> None:
        """Called after each replayed record, with the state after it, its number, and its news, which are computed on
        iteration."""
