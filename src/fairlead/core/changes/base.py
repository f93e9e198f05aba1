"""Base class of changes: small immutable records that alter the state and can be undone.

`apply` returns what `undo` needs beyond the change itself: a plain value, or a record named after the change, as
`PlacedUndo`. Only the change is journaled, so replaying needs `apply` alone; `undo` serves a plan that rolls back
before anything was written.

The methods below `undo` say what observers may know of a change. A change without news inherits them. `before` is
always what `apply` returned.
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
"""All changes, in the order in which their classes were defined."""


class Change(msgspec.Struct, Generic[Undo], frozen=True, array_like=True, gc=False):
    """A subclass has a tag of its own. The journal can hold it as soon as its class is defined."""

    warns: ClassVar[bool] = False
    """True if its log lines matter also where only warnings are logged."""

    def __init_subclass__(cls, **config: Any) -> None:
        super().__init_subclass__(**config)
        DEFINED.append(cls)

    def apply(self, partition: Partition) -> Undo:
        """Alter the state. A change that is refused raises, and has altered nothing."""
        raise NotImplementedError

    def undo(self, partition: Partition, before: Undo) -> None:
        """Make the state what it was before `apply`."""
        raise NotImplementedError

    def fresh(self) -> Iterable[int]:
        """Return the numbers of the allocations that are launched or stopped: their agents are told."""
        return ()

    def news(self, partition: Partition, before: Undo) -> Iterable[News]:
        """Return the tasks, jobs and nodes that moved, in order. `p` is the state after the cycle."""
        return ()

    def heard_by(self, partition: Partition, before: Undo) -> str:
        """Return the resource manager that has to hear the news of tasks and nodes; empty: none."""
        return ""

    def demand(self, before: Undo) -> Iterable[tuple[Stage, int]]:
        """Return the stages whose pending tasks or asks altered, with how many more tasks are pending."""
        return ()

    def counts(self, partition: Partition, before: Undo) -> Iterable[tuple[str, int]]:
        """Return what metrics count, by the names in `views.metrics`. `p` is the state after the cycle."""
        return ()

    def completed(self, before: Undo) -> Iterable[Ask]:
        """Return the asks whose last task was placed."""
        return ()

    def lines(self, names: Names, before: Undo) -> Iterable[Line]:
        """Return what logs say of this change."""
        return ()
