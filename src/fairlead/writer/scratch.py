"""A writer without a journal, on a state that is thrown away: for previews of the future."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core.cycle import Cycle
from fairlead.core.model import Micros
from fairlead.core.state import Partition
from fairlead.writer.clock import Stopwatch
from fairlead.writer.observer import Observer
from fairlead.writer.writer import Writer


class ScratchWriter(Writer):
    """Runs cycles on a given state and writes nothing. The state is altered, so it must be a copy."""

    def __init__(self, state: Partition, observers: Sequence[Observer] = ()) -> None:
        self._begin(state, 0, observers)

    def _commit(self, decided: Cycle, now: Micros, watch: Stopwatch) -> None:
        self.seq += 1
