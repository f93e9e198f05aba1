"""Base class of changes: small immutable records that alter the state and can be undone.

`apply` returns what `undo` needs beyond the change itself: a plain value, or a record named after the change, such as
`PlacedUndo`. Only the change is journaled, so replay needs `apply` alone. `undo` is used when a plan is rolled back
before it was journaled.

The methods below `undo` describe a change to observers; by default they return nothing. Their argument `before` is the
value that `apply` returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from fairlead.core.changes.lines import Line, Names
from fairlead.core.changes.news import News
from fairlead.core.model import Ask, Stage
from fairlead.core.state import Partition

Undo = TypeVar("Undo")

DEFINED: list[type[Change[Any]]] = []
"""All change classes, in the order of their definition."""


class Change(msgspec.Struct, Generic[Undo], frozen=True, array_like=True, gc=False):
    """Base class of changes. Each subclass has its own tag, by which the journal finds the class."""

    warns: ClassVar[bool] = False
    """True if `lines` may return warnings. Otherwise it is not called when only warnings are logged."""

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        DEFINED.append(cls)

    def apply(self, partition: Partition) -> Undo:
        """Alter the state and return the undo data. Raise without altering anything if the change is not possible."""
        raise NotImplementedError

    def undo(self, partition: Partition, before: Undo) -> None:
        """Restore the state as it was before `apply`."""
        raise NotImplementedError

    def allocations_to_send(self) -> Iterable[int]:
        """Return the numbers of the allocations to launch or stop; their agents get a message."""
        return ()

    def news(self, partition: Partition, before: Undo) -> Iterable[News]:
        """Return the tasks, jobs and nodes that changed state, in order. `partition` is the state after the cycle."""
        return ()

    def manager_to_notify(self, partition: Partition, before: Undo) -> str:
        """Return the resource manager that is told the news of tasks and nodes; empty for none."""
        return ""

    def demand(self, before: Undo) -> Iterable[tuple[Stage, int]]:
        """Return the stages whose pending tasks or asks changed, with the increase of their pending tasks."""
        return ()

    def counts(self, partition: Partition, before: Undo) -> Iterable[tuple[str, int]]:
        """Return what metrics count, by the events of `COUNTERS` in `views.metrics`, in the state after the cycle."""
        return ()

    def completed(self, before: Undo) -> Iterable[Ask]:
        """Return the asks of which the last task was placed."""
        return ()

    def lines(self, names: Names, before: Undo) -> Iterable[Line]:
        """Return the log lines of this change."""
        return ()
