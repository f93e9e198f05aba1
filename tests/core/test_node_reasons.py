"""Why a node is drained or disabled: the words of an operator, kept until the node is enabled."""

from __future__ import annotations

import pytest

from fairlead.core.changes import NodeMoved, NodeRemoved
from fairlead.core.dump import dump, load
from fairlead.core.plan import Plan
from fairlead.core.state import Partition
from fairlead.testing import World


@pytest.fixture
def world() -> World:
    world = World()
    world.nodes(2, cpu=2)
    world.cycle()
    return world


def reasons(world: World) -> dict[str, str]:
    nodes = world.partition().nodes
    return {nodes.name[nodes.rows[node_id]]: reason for node_id, reason in nodes.reasons.items()}


def test_a_reason_is_kept_until_the_node_is_enabled(world: World) -> None:
    world.drain("n0", "disk swap")
    world.cycle()
    assert reasons(world) == {"n0": "disk swap"}
    world.restart()
    assert reasons(world) == {"n0": "disk swap"}
    world.drain("n0")
    world.cycle()
    assert reasons(world) == {"n0": "disk swap"}
    world.disable("n0", "new board")
    world.cycle()
    assert reasons(world) == {"n0": "new board"}
    world.enable("n0")
    world.cycle()
    assert reasons(world) == {}


def test_a_lost_node_comes_back_with_its_reason(world: World) -> None:
    world.drain("n0", "disk swap")
    world.cycle()
    world.fail_node("n0")
    world.advance(3600)
    assert world.partition().nodes.lost_from and reasons(world) == {"n0": "disk swap"}
    world.restart()
    world.return_node("n0")
    world.cycle()
    assert reasons(world) == {"n0": "disk swap"}
    world.remove_node("n0")
    world.cycle()
    assert reasons(world) == {}


def copy_of(world: World) -> Partition:
    return load(dump(world.partition()))


@pytest.mark.parametrize("state", ["draining", "disabled", "up"])
def test_changes_of_a_reason_are_undone(world: World, state: str) -> None:
    world.drain("n0", "disk swap")
    world.cycle()
    partition = copy_of(world)
    node_id = partition.nodes.find("n0")
    assert node_id is not None
    before = dump(partition)
    for change in (NodeMoved(node_id, state, "other" if state != "up" else ""), NodeRemoved(node_id)):  # type: ignore[arg-type]
        plan = Plan(partition, partition.now)
        plan.do(change)
        assert dump(partition) != before
        plan.rollback(0)
        assert dump(partition) == before
