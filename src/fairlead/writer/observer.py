"""The interface of observers of a writer, such as metrics and logs.

They read sealed plans. The core does not know them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from fairlead.core.changes import News
from fairlead.core.cycle import Cycle
from fairlead.core.state import Partition


class Observer(Protocol):
    """Called in the writer's thread between cycles, so it may read the state. It must be quick and must not raise.

    Changes describe themselves by the methods of `core.changes.Change`. `Plan.news` lists the tasks, jobs and nodes
    that changed.
    """

    def began(self, partition: Partition) -> None:
        """Handle that a writer has taken over and recovered a partition."""

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        """Handle a durable cycle. `seconds` has its phases and, if it wrote changes, `encode` and `journal`."""

    def stopped(self, partition: Partition, why: str) -> None:
        """Handle that the writer has stopped. The cycle that it was writing is not passed to `cycle`."""


@runtime_checkable
class ReplayObserver(Protocol):
    """An observer that also reads what a recovery replays, before `began`: a crash may have come before it saw it."""

    def replayed(self, partition: Partition, news: Iterable[News]) -> None:
        """Handle a record that was replayed. `partition` is the state after it; `news` are made as they are taken."""
