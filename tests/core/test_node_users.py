"""Nodes that take tasks of named users only."""

from __future__ import annotations

import pytest

from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.testing import World
from fairlead.views.metrics.metrics import Metrics


def _submit(w: World, user: str, cpu: int = 1, count: int = 1) -> str:
    return w.submit(user=user, stages=[{"name": "main", "count": count, "resources": {"cpu": cpu}}])


def test_a_node_takes_tasks_of_its_users_only() -> None:
    w = World()
    w.node("desk", cpu=4, users=["ann", "cem"])
    ann, bob, cem = (_submit(w, user) for user in ("ann", "bob", "cem"))
    w.cycle()
    assert w.placements(ann) and w.placements(cem)
    assert not w.placements(bob)
    assert "take no tasks of user bob" in str(w.explain(bob)[0])


def test_a_user_without_nodes_does_not_hold_up_others_of_the_same_shape() -> None:
    w = World()
    w.node("open", cpu=1)
    w.node("desk", cpu=1, users=["bob"])
    first, ann, bob = _submit(w, "ann"), _submit(w, "ann"), _submit(w, "bob")
    w.cycle()
    assert list(w.placements(first).values()) == ["open"]
    assert not w.placements(ann)
    assert "1 node is for other users" in str(w.explain(ann)[0])
    assert list(w.placements(bob).values()) == ["desk"]


def test_a_job_from_before_the_first_node_runs_on_a_node_of_its_user() -> None:
    w = World()
    early = _submit(w, "ann")
    w.cycle()
    w.node("desk", cpu=1, users=["ann"])
    w.cycle()
    assert list(w.placements(early).values()) == ["desk"]


def test_users_share_a_lane_while_every_node_takes_all() -> None:
    w = World()
    w.node("open", cpu=1)
    for user in ("ann", "bob", "cem"):
        _submit(w, user, cpu=1)
    w.cycle()
    assert len(w.partition().derived.shapes) == 1


def test_lanes_of_two_users_are_shown_as_one() -> None:
    """A shape is shown without its user: views and metrics add up the lanes of one queue and shape."""
    metrics = Metrics()
    w = World({"queues": {"root": {"default": {"order": "priority"}}}}, observers=[metrics])
    w.node("desk", cpu=1, users=["cem"])
    for user in ("ann", "bob", "ann"):
        _submit(w, user)
        w.advance(1)
    labels = {"partition": "default", "queue": "root.default", "shape": "cpu=1"}
    assert len(w.partition().lanes) == 2
    assert {name: [ask.job for ask in asks] for name, asks in w.lanes().items()} == {
        ("root.default", "cpu=1"): ["job", "job-2", "job-3"]
    }
    assert metrics.registry.get_sample_value("fairlead_lane_asks", labels) == 3


def test_a_node_that_opens_takes_all_users() -> None:
    w = World()
    w.node("desk", cpu=2, users=["ann"])
    bob = _submit(w, "bob")
    w.cycle()
    assert not w.placements(bob)
    w.update_node("desk", users=[])
    w.cycle()
    assert list(w.placements(bob).values()) == ["desk"]


def test_the_users_of_a_node_are_names() -> None:
    with pytest.raises(Refused, match=r"users\[0\]"):
        parse_node({"name": "n", "resources": {"cpu": 1}, "users": ["a b"]})


def test_a_node_of_a_pool_for_one_user_takes_the_job_that_it_was_ordered_for() -> None:
    w = World()
    w.node("shared", cpu=1)  # for all users
    w.pool("local", node={"cpu": 2}, max=3)
    w.cycle()
    job = w.submit(user="ann", stages=[{"resources": {"cpu": 2}}])
    w.cycle()
    assert w.pools()["local"]["ordered"] == 1
    (node,) = w.arrive("local", users=["ann"])
    w.cycle()
    assert list(w.placements(job).values()) == [node]
