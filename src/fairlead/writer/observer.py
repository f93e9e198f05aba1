"""Who watches a writer: metrics and logs. They are fed from sealed plans, and nothing in a cycle knows of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fairlead.core.cycle import Cycle
from fairlead.core.state import Partition


class Observer(Protocol):
    """Called in the writer's thread between turns, so it may read the state. It must be quick and must not raise.

    A change says what may be known of it by the methods of `core.changes.Change`, and `Plan.news` gathers what moved.
    """

    def began(self, partition: Partition) -> None:
        """A writer has taken the partition over and recovered it."""

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        """A cycle is durable. How long it took, by part: the phases, `encode` and, if it wrote anything, `journal`."""

    def stopped(self, partition: Partition, why: str) -> None:
        """The writer stopped; the cycle that it was writing is not reported. The next one begins."""
