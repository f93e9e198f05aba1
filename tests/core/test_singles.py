"""Batches of single tasks: floods of single jobs are placed by few changes, and no turn is lost by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.core.changes import Placed, SinglesPlaced
from fairlead.core.commands import Submit
from fairlead.core.documents import parse_job
from fairlead.core.match import single_tasks
from fairlead.testing import World


@pytest.fixture(autouse=True)
def _short_lanes() -> Iterator[None]:
    """Let lanes of two asks be long enough for a batch."""
    before, single_tasks.FEW = single_tasks.FEW, 2
    yield
    single_tasks.FEW = before


def placed(w: World) -> list[str]:
    return sorted(job for job in w.partition().jobs if w.placements(job))


def submit(w: World, *names: str, **rest: object) -> None:
    for name in names:
        resources = {"cpu": 1} if name.startswith("a") else {"cpu": 1, "memory": "1Mi"}
        w.submit(name=name, stages=[{"name": "s", "resources": resources}], **rest)


def test_turns_go_on_between_lanes_though_one_has_the_node_in_hand() -> None:
    w = World()
    w.node("n", cpu=2, memory="1Gi")
    submit(w, "a0", "b0", "a1", "b1")
    w.cycle()
    assert placed(w) == ["a0", "b0"]


def test_a_lane_that_fills_a_node_is_one_change() -> None:
    w = World()
    w.nodes(2, cpu=4)
    w.cycle()
    partition = w.partition()
    spec = parse_job({"stages": [{"resources": {"cpu": 1}}]})
    decided = w.cluster.writers["default"].cycle([Submit(spec=spec, operator=True) for _ in range(9)], w.now)
    changes = [change for change in decided.changes if isinstance(change, Placed | SinglesPlaced)]
    assert [len(change.tasks) for change in changes if isinstance(change, SinglesPlaced)] == [4, 4]
    assert len(changes) == 2 and sorted(partition.nodes.used["cpu"]) == [4_000, 4_000]


def test_a_lane_too_short_to_fill_a_node_is_packed_with_the_others() -> None:
    w = World()
    w.nodes(2, cpu=8, memory="1Gi")
    submit(w, "a0", "b0", "a1", "b1")
    w.cycle()
    assert {node for job in placed(w) for node in w.placements(job).values()} == {"n0"}


def test_a_batch_of_one_user_does_not_count_against_the_limit_of_another() -> None:
    """Jobs under a limit are not batched, and their limit counts everything that runs."""
    w = World()
    w.queue("root.q", users={"eve": {"limit": {"cpu": 1}}})
    w.nodes(2, cpu=2, memory="1Gi")
    submit(w, "a0", "a1", queue="root.q", user="ann")
    submit(w, "b0", "b1", queue="root.q", user="eve")
    w.cycle()
    assert placed(w) == ["a0", "a1", "b0"]


def test_parts_of_gpus_in_hand_get_devices_of_their_own() -> None:
    w = World()
    w.node("n", cpu=8, gpu=2)
    for number in range(5):
        w.submit(name=f"g{number}", stages=[{"name": "s", "resources": {"gpu": "0.5"}}])
    w.cycle()
    assert [w.task(f"g{number}", "s", 0).devices for number in range(4)] == [(0,), (0,), (1,), (1,)]
    assert not w.placements("g4")
