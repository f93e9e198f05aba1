"""The configuration of a new installation is fair between its users."""

from __future__ import annotations

from fairlead.core.settings import DEFAULT_CONFIG
from fairlead.testing import World
from fairlead.views.config import config_view


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
