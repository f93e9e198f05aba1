"""`max_priority`: the highest priority that users may give to their jobs, at submission and later."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, Answer
from fairlead.testing import World

TREE: dict[str, Any] = {
    "root": {
        "users": {"eve": {"max_priority": 3}},
        "ml": {
            "max_priority": 10,
            "users": {"ann": {"max_priority": 100}},
            "groups": {"staff": {"max_priority": 20}},
            "train": {},
            "calm": {"max_priority": 0},
        },
        "ci": {},
    }
}


def world() -> World:
    w = World(config={"queues": TREE})
    w.node("n0", cpu=4)
    w.cycle()
    w.answers()
    return w


def submitted(w: World, priority: int, **job: Any) -> Answer:
    w.submit(priority=priority, stages=[{"count": 1, "resources": {"cpu": 1}}], operator=False, **job)
    w.cycle()
    [answer] = w.answers()
    return answer


@pytest.mark.parametrize(
    ("queue", "user", "groups", "most"),
    [
        ("root.ci", "bob", (), 0),
        ("root.ci", "eve", (), 3),
        ("root.ml.train", "bob", (), 10),
        ("root.ml.train", "eve", (), 10),
        ("root.ml.train", "ann", (), 100),
        ("root.ml.train", "bob", ("staff",), 20),
        ("root.ml.train", "ann", ("staff",), 100),
        ("root.ml.calm", "ann", ("staff",), 0),
        ("root.ci", "bob", ("staff",), 0),
    ],
)
def test_the_nearest_queue_that_sets_it_decides(queue: str, user: str, groups: tuple[str, ...], most: int) -> None:
    w = world()
    assert isinstance(submitted(w, most, user=user, queue=queue, groups=groups), Accepted)
    refused = submitted(w, most + 1, user=user, queue=queue, groups=groups)
    assert str(refused) == (
        f"priority: {most + 1} is above {most}, the max_priority of user {user} in {queue}; "
        f"write at most {most}, or ask an operator for a higher max_priority"
    )


def test_a_user_cannot_stop_the_work_of_others_by_a_priority() -> None:
    w = World()
    w.node("n0", cpu=4)
    w.submit(name="hers", user="ann", stages=[{"count": 4, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="his", user="bob", priority=1_000_000, stages=[{"count": 4}], operator=False)
    w.advance(60)
    assert w.job("hers").state == "running" and len(w.placements("hers")) == 4
    w.submit(name="free", user="bob", priority=1_000_000, stages=[{"count": 4, "resources": {"cpu": 1}}])
    w.advance(60)
    assert len(w.placements("free")) == 4


def test_raising_a_priority_later_follows_the_same_rule() -> None:
    w = world()
    job = w.submit(user="bob", queue="root.ml.train", priority=-5, stages=[{"count": 1}], operator=False)
    w.set_priority(job, 10, user="bob")
    w.cycle()
    assert w.job(job).priority == 10
    w.answers()
    w.set_priority(job, 11, user="bob")
    w.cycle()
    [refused] = w.answers()
    assert str(refused).startswith("priority: 11 is above 10, the max_priority of user bob in root.ml.train; ")
    # An operator may go beyond, and lowering needs no right.
    w.set_priority(job, 50)
    w.set_priority(job, 40, user="bob")
    w.cycle()
    assert w.job(job).priority == 40
    w.set_priority(job, 41, user="bob")
    w.cycle()
    assert w.job(job).priority == 40


def test_managers_give_any_priority() -> None:
    w = world()
    w.rm("k8s").register()
    w.rm("k8s").update(jobs=[{"job": "pods", "queue": "root.ci", "user": "bob", "priority": 500}])
    w.cycle()
    assert w.job("pods").priority == 500
