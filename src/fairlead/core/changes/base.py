"""What every change is: a small immutable record that knows how to apply itself and how to undo that.

`apply` returns whatever `undo` needs beyond the record itself. Only the record is journaled, so replaying needs
`apply` alone; `undo` serves a plan that rolls back before anything was written.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.core.state import Partition


class Change(msgspec.Struct, frozen=True, array_like=True, gc=False):
    def apply(self, partition: Partition) -> Any:
        raise NotImplementedError

    def undo(self, partition: Partition, kept: Any) -> None:
        raise NotImplementedError
