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
    """Its methods are called in the writer's thread between cycles, so they may read the state.

    They must be quick and must not raise.

    The methods of `core.changes.Change` describe what each change did. `Plan.news` lists the tasks, jobs and nodes that
    changed.
    """

    def began(self, partition: Partition) -> None:
        """Called when a writer has taken over and recovered a partition."""

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        """Called after a durable cycle.

        `seconds` has the duration of each phase, also of `encode` and `journal` if it wrote changes.
        """

    def stopped(self, partition: Partition, why: str) -> None:
        """Called when the writer has stopped.

        If it stopped while writing a cycle, `cycle` is not called for that cycle.
        """


@runtime_checkable
class ReplayObserver(Protocol):
    """An observer that is also given the records that a recovery replays, before `began` is called.

    It may have missed these records, because the last server may have crashed before its observer saw them.
    """

    def replayed(self, partition: Partition, news: Iterable[News]) -> None:
        """Called after each replayed record, with the state after the record.

        The news of the record are computed while iterated.
        """
