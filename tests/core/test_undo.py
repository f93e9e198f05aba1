"""Undo is the identity, change by change: every change of the golden journal, and some that need a special state."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.core import cycle
from fairlead.core.commands import RemoveNode
from fairlead.core.dump import dump
from fairlead.core.invariants import check_all
from fairlead.core.state import Partition
from fairlead.journal.codec import decode
from fairlead.testing import World
from tests.golden.make import PARTITION, goldens, read_records


@pytest.mark.parametrize("golden", goldens(), ids=lambda path: path.name)
def test_every_change_of_the_golden_journal(golden: Path) -> None:
    partition = Partition(PARTITION)
    for payload in read_records(golden / "partition.records"):
        partition.now, changes = decode(payload, "golden")
        for change in changes:
            before = dump(partition)
            undo = change.apply(partition)
            after = dump(partition)
            change.undo(partition, undo)
            assert dump(partition) == before, change
            change.apply(partition)
            assert dump(partition) == after, change
        check_all(partition)


def test_the_removal_of_a_node_that_is_avoided() -> None:
    w = World()
    w.node("n0", cpu=1)
    w.refuse_launches("n0")
    w.submit(stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    w.cycle()
    partition = w.partition()
    assert partition.nodes.avoided
    before = dump(partition)
    cycle.run(partition, [RemoveNode(name="n0", operator=True)], w.now).plan.abandon()
    assert dump(partition) == before
    check_all(partition)
