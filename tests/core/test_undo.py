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
    p = Partition(PARTITION)
    for payload in read_records(golden / "partition.records"):
        p.now, changes = decode(payload, "golden")
        for change in changes:
            before = dump(p)
            kept = change.apply(p)
            after = dump(p)
            change.undo(p, kept)
            assert dump(p) == before, change
            change.apply(p)
            assert dump(p) == after, change
        check_all(p)


def test_the_removal_of_a_node_that_is_avoided() -> None:
    w = World()
    w.node("n0", cpu=1)
    w.refuse_launches("n0")
    w.submit(stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    w.cycle()
    p = w.partition()
    assert p.nodes.avoided
    before = dump(p)
    cycle.run(p, [RemoveNode(name="n0", operator=True)], w.now).plan.abandon()
    assert dump(p) == before
    check_all(p)
