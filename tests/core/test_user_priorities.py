"""Under `order: fair` users take turns, and among the jobs of one user the highest priority is first."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.testing import World
from tests.chaos.start_checker import DoorChecker


@pytest.fixture
def w() -> World:
    world = World({"queues": {"root": {"q": {"order": "fair", "max_priority": 9}}}}, observers=[DoorChecker()])
    world.nodes(2, cpu=1)
    return world


def submit(w: World, name: str, user: str, priority: int = 0, **stage: Any) -> str:
    stages = [{"name": "s", "resources": {"cpu": 1}, **stage}]
    return w.submit(name=name, queue="root.q", user=user, priority=priority, stages=stages)


def test_of_one_user_the_highest_priority_is_first(w: World) -> None:
    for name, priority in (("low", -1), ("high", 5), ("usual", 0), ("higher", 7)):
        submit(w, name, "ann", priority)
    w.cycle()
    assert w.placements("higher") and w.placements("high")
    w.finish("high")
    w.cycle()
    assert w.placements("usual") and not w.placements("low")


def test_users_take_turns_whatever_their_priorities(w: World) -> None:
    submit(w, "ann", "ann", 5, count=4, min=1)
    submit(w, "bob", "bob", -5, count=4, min=1)
    w.cycle()
    assert len(w.placements("ann")) == len(w.placements("bob")) == 1


def test_a_replacement_for_a_gang_passes_a_higher_priority(w: World) -> None:
    stages = [{"name": "s", "count": 2, "resources": {"cpu": 1}, "on_loss": "replace"}]
    w.submit(name="gang", queue="root.q", user="ann", preemptible=False, stages=stages)
    w.advance(1)
    w.fail_node("n1")
    submit(w, "high", "ann", 5)
    w.advance(1)
    w.return_node("n1")
    w.advance(0)
    assert len(w.placements("gang")) == 2 and not w.placements("high")
