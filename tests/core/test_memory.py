"""What phases remember can be thrown away before any cycle: the cycle decides the same without it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import Phase, settings

from fairlead.core import cycle
from fairlead.core.changes import Chained, Placed
from fairlead.core.commands import Command
from fairlead.core.cycle import Cycle, Watch
from fairlead.core.model import Micros
from fairlead.core.ranges import indices
from fairlead.core.state import Partition
from tests.core.test_machine import Machine, afresh

DECIDE = cycle.run


def decide_also_without_memory(
    partition: Partition, commands: Sequence[Command], now: Micros, watch: Watch = lambda phase: None
) -> Cycle:
    without = DECIDE(afresh(partition), commands, now)
    decided = DECIDE(partition, commands, now, watch)
    assert placed(decided) == placed(without)
    if len(decided.changes) == len(without.changes):  # else tasks that start together are grouped in another way
        assert decided.changes == without.changes
    return decided


def placed(decided: Cycle) -> list[object]:
    """Return where each task starts, and all changes that place none."""
    starts = {
        (change.job, change.stage, index): (part.node, change.attempt)
        for change in decided.changes
        if isinstance(change, Placed)
        for part in change.parts
        for index in indices(part.indices)
    }
    # Tasks that start together may be grouped in another way. Then the numbers of later allocations in the cycle differ
    # by as many as there are more groups before.
    rest: list[object] = []
    groups = 0
    for change in decided.changes:
        if isinstance(change, Placed):
            groups += len(change.parts)
        elif isinstance(change, Chained):
            rest.append(msgspec.structs.replace(change, into=change.into - groups))
        else:
            rest.append(change)
    return [sorted(starts.items()), *rest]


@pytest.fixture(autouse=True)
def _compare_every_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "run", decide_also_without_memory)


class TestForgetful(Machine.TestCase):
    settings = settings(max_examples=30, stateful_step_count=30, deadline=None, phases=[Phase.generate])
