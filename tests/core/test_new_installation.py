"""The configuration of a new installation is fair between its users."""

from __future__ import annotations

from fairlead.core.settings import DEFAULT_CONFIG
from fairlead.testing import World
from fairlead.views.config_document import config_view


def test_a_single_task_does_not_wait_for_300_tasks_of_another_user() -> None:
    w = World(config=config_view({"default": DEFAULT_CONFIG}))
    w.nodes(1, cpu=4)
    many = w.submit(user="ann", stages=[{"count": 300, "min": 1, "resources": {"cpu": 1}, "duration": 10}])
    w.advance(1)
    w.submit(name="single", user="bob", stages=[{"count": 1, "resources": {"cpu": 1}, "duration": 10}])
    w.advance(25)
    assert w.job("single").state == "succeeded"
    w.advance(1000)
    assert w.job(many).state == "succeeded"


def test_a_flood_of_smaller_tasks_keeps_a_larger_task_waiting_for_minutes_only() -> None:
    w = World(config=config_view({"default": DEFAULT_CONFIG}))
    w.node("n", cpu=2)
    for first in (2, 5, 7, 10):  # tasks end one by one, so that a whole CPU is never free by itself
        w.submit(user="ann", stages=[{"array": 1, "resources": {"cpu": 0.5}, "duration": first}])
    w.submit(user="ann", stages=[{"array": 1000, "resources": {"cpu": 0.5}, "duration": 10}])
    w.advance(1)
    w.submit(name="large", user="bob", stages=[{"resources": {"cpu": 1}, "duration": 10}])
    w.advance(300)
    assert w.job("large").state == "pending"
    w.advance(400)
    assert w.job("large").state == "succeeded"
