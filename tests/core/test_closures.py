"""Nodes that are disabled for a time: by name, or by labels, which also holds for nodes that join meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, CloseNodes
from fairlead.testing import World


def world(*racks: str) -> World:
    w = World()
    for at, rack in enumerate(racks):
        w.node(f"n{at}", cpu=2, labels={"rack": rack})
    w.cycle()
    return w


def states(w: World) -> dict[str, str]:
    nodes = w.partition().nodes
    return {nodes.name[row]: nodes.state[row] for row in nodes.in_order()}


def note(w: World) -> str:
    answer = w.answers()[-1]
    return answer.note if isinstance(answer, Accepted) else str(answer)


def test_nodes_of_a_rack_are_disabled_for_a_time() -> None:
    w = world("r1", "r1", "r2")
    w.close({"rack": "r1"}, "2h", "new switch")
    w.cycle()
    assert note(w) == "2 nodes are disabled"
    assert states(w) == {"n0": "disabled", "n1": "disabled", "n2": "up"}
    assert w.partition().nodes.reasons == {1: "new switch", 2: "new switch"}
    w.node("n3", cpu=2, labels={"rack": "r1"})
    w.cycle()
    assert states(w)["n3"] == "disabled"
    w.advance(7_199)
    assert states(w)["n0"] == "disabled"
    w.advance(1)
    assert set(states(w).values()) == {"up"}
    assert w.partition().closures == {} and w.partition().nodes.reasons == {}
    w.node("n4", cpu=2, labels={"rack": "r1"})
    w.cycle()
    assert states(w)["n4"] == "up"


def test_work_that_waits_starts_when_the_time_is_over() -> None:
    w = world("r1")
    w.close({"rack": "r1"}, 60)
    w.cycle()
    job = w.submit(stages=[{"resources": {"cpu": 1}}])
    w.advance(59)
    assert not w.placements(job)
    w.advance(1)
    assert w.placements(job)


def test_one_node_for_a_time() -> None:
    w = world("r1", "r1")
    w.disable("n0", "fan", lasts="10min")
    w.advance(599)
    assert states(w) == {"n0": "disabled", "n1": "up"}
    w.disable("n0", lasts="10min")
    w.advance(10)
    assert states(w)["n0"] == "disabled" and w.partition().nodes.reasons == {1: "fan"}
    w.advance(590)
    assert states(w)["n0"] == "up"


def test_enabling_by_hand_ends_it_for_one_node_or_for_all() -> None:
    w = world("r1", "r1", "r1")
    w.disable("n2")
    w.cycle()
    w.close({"rack": "r1"}, "1h")
    w.cycle()
    assert note(w) == "2 nodes are disabled"
    w.enable("n0")
    w.advance(10)
    assert states(w) == {"n0": "up", "n1": "disabled", "n2": "disabled"}
    w.close({"rack": "r1"})
    w.cycle()
    assert note(w) == "1 node is up"
    assert states(w) == {"n0": "up", "n1": "up", "n2": "disabled"}
    w.close({"rack": "r1"})
    w.cycle()
    assert note(w) == "labels: no nodes are disabled by rack=r1; disabled are those by: none are"


def test_the_later_end_counts() -> None:
    w = World()
    w.node("n0", cpu=1, labels={"rack": "r1", "zone": "a"})
    w.cycle()
    w.close({"rack": "r1"}, 100, "rack")
    w.close({"zone": "a"}, 200, "zone")
    w.advance(100)
    assert states(w)["n0"] == "disabled" and w.partition().nodes.reasons == {1: "zone"}
    w.advance(100)
    assert states(w)["n0"] == "up"


def test_a_node_that_gets_the_label_is_disabled() -> None:
    w = world("r2")
    w.close({"rack": "r1"}, 100)
    w.cycle()
    w.update_node("n0", cpu=2, labels={"rack": "r1"})
    w.cycle()
    assert states(w)["n0"] == "disabled"


def test_running_tasks_go_on() -> None:
    w = world("r1")
    job = w.submit(stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    w.close({"rack": "r1"}, 100)
    w.advance(10)
    assert w.placements(job) and w.job(job).state == "running"


@pytest.mark.parametrize(("away", "after"), [(50, "disabled"), (150, "up")])
def test_a_node_that_is_lost_meanwhile(away: int, after: str) -> None:
    w = World({"lease": "5s", "heartbeat": "1s"})
    w.node("n0", cpu=1, labels={"rack": "r1"})
    w.cycle()
    w.close({"rack": "r1"}, 100)
    w.cycle()
    w.fail_node("n0")
    w.advance(away)
    assert states(w)["n0"] == "lost"
    w.return_node("n0")
    w.advance(1)
    assert states(w)["n0"] == after
    w.advance(100)
    assert states(w)["n0"] == "up"


def test_it_survives_a_restart_and_ends_on_time() -> None:
    w = world("r1")
    w.close({"rack": "r1"}, 100, "switch")
    w.disable("n0", lasts=50)
    w.cycle()
    before = w.dump()
    w.restart()
    assert w.dump() == before
    w.advance(200)
    assert states(w)["n0"] == "up"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"labels": (), "lasts": 1, "operator": True}, "labels: no label is named; write such as rack=r1"),
        ({"labels": (("a", "b"),), "lasts": 1}, "user: only an operator may disable nodes by labels; ask one"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], said: str) -> None:
    w = world("r1")
    w._send("default", CloseNodes(**fields))
    w.cycle()
    assert str(w.answers()[-1]) == said


def test_a_drain_with_an_end() -> None:
    w = world("r1", "r1", "r2")
    w.drain("n0", "firmware", "1h")
    w.drain("n1", "firmware")
    w.cycle()
    w.advance(1_800)
    w.close({"rack": "r1"}, "2h")  # closes no node that is drained already
    w.cycle()
    assert states(w) == {"n0": "draining", "n1": "draining", "n2": "up"}
    w.restart()
    w.advance(1_800)
    assert states(w) == {"n0": "disabled", "n1": "draining", "n2": "up"}  # the closure lasts longer than the drain
    w.advance(5_400)
    assert states(w) == {"n0": "up", "n1": "draining", "n2": "up"}


def running(w: World, job: str) -> dict[str, int]:
    """Return the number of running tasks of a job by node."""
    nodes = w.partition().nodes
    counts: dict[str, int] = {}
    for allocation in w.partition().jobs[job].stages[0].live.values() if w.partition().jobs[job].allocations else ():
        name = nodes.name[nodes.rows[allocation.node]]
        counts[name] = counts.get(name, 0) + 1
    return counts


@pytest.mark.parametrize("backfill", ["off", "easy", "conservative"])
def test_what_cannot_end_before_a_drain_is_not_started_there(backfill: str) -> None:
    w = World({"backfill": backfill})
    w.node("n0", cpu=4)
    w.node("n1", cpu=1)
    w.cycle()
    w.drain("n0", "firmware", "2h", "1h")
    one = {"name": "s", "resources": {"cpu": 1}}
    w.submit(name="free", stages=[{**one, "array": 3, "estimate": "1min"}])  # an estimate is no promise
    w.submit(name="short", stages=[{**one, "array": 3, "resources": {"cpu": "500m"}, "time_limit": "30min"}])
    w.submit(name="long", stages=[{**one, "resources": {"cpu": "900m"}, "time_limit": "2h"}])
    w.cycle()
    w.advance(0)
    assert running(w, "free") == {"n1": 1} and running(w, "short") == {"n0": 3} and running(w, "long") == {}
    assert states(w) == {"n0": "draining", "n1": "up"}
    told = str(w.explain("long")[0])
    assert "1 node will be drained, and takes only tasks with a time limit that ends before" in told, told
    w.restart()
    w.advance(1_801)
    w.submit(name="late", stages=[{**one, "time_limit": "30min"}])
    w.submit(name="last", stages=[{**one, "resources": {"cpu": "400m"}, "time_limit": "29min"}])
    w.advance(1)
    assert running(w, "late") == {} and running(w, "last") == {"n0": 1}
    w.finish("short")
    w.finish("last")
    w.advance(1_800)
    w.submit(name="none", stages=[{**one, "resources": {"cpu": "300m"}, "time_limit": "1s"}])
    w.advance(1)
    assert running(w, "none") == {} and not w.partition().nodes.closing
    w.advance(7_200)
    assert states(w)["n0"] == "up"
    for job in ("free", "long", "late"):
        assert running(w, job).get("n0") or job == "free", job


def test_a_gang_uses_nodes_that_close_later() -> None:
    w = world("r1", "r1")
    w.drain("n0", delay="1h")
    w.submit(name="gang", stages=[{"count": 4, "resources": {"cpu": 1}, "time_limit": "1h"}])
    w.submit(name="whole", stages=[{"count": 3, "resources": {"cpu": 1}}])
    w.cycle()
    assert running(w, "gang") == {"n0": 2, "n1": 2} and running(w, "whole") == {}


def test_a_task_that_ends_in_time_need_not_wait_behind_one_that_does_not() -> None:
    w = World()
    w.node("n0", cpu=2)
    w.cycle()
    w.drain("n0", delay="1h")
    w.submit(name="long", stages=[{"resources": {"cpu": 1}}])
    w.submit(name="short", stages=[{"resources": {"cpu": 1}, "time_limit": "10min"}])
    w.cycle()
    w.submit(name="later", stages=[{"resources": {"cpu": 1}, "time_limit": "10min"}])
    w.advance(1)
    assert [running(w, job) for job in ("long", "short", "later")] == [{}, {"n0": 1}, {"n0": 1}]
    w.submit(name="last", stages=[{"resources": {"cpu": 1}, "time_limit": "10min"}])
    w.advance(1)
    assert running(w, "last") == {}
    w.finish("short")
    w.advance(1)
    assert running(w, "last") == {"n0": 1} and running(w, "long") == {}
