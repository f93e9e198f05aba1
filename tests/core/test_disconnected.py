"""A node whose agent has disconnected gets no new work; its running tasks keep their lease."""

from __future__ import annotations

from fairlead.core.commands import DisconnectNodes
from fairlead.core.dump import dump, load
from fairlead.testing import World

ONE = {"count": 1, "resources": {"cpu": 1}}


def world(nodes: int = 2, **config: object) -> World:
    w = World(config=config)
    w.nodes(nodes, cpu=4)
    w.cycle()
    return w


def on(w: World, job: str) -> list[str]:
    return sorted(w.placements(job).values())


def test_new_work_goes_elsewhere_from_the_moment_of_disconnection() -> None:
    w = world()
    w.submit(name="before", stages=[{"count": 2, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    assert on(w, "before") == ["n0", "n0"]
    w.disconnect("n0")
    w.submit(name="after", stages=[{"count": 3, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    assert on(w, "before") == ["n0", "n0"] and on(w, "after") == ["n1", "n1", "n1"]
    w.submit(name="more", stages=[{"count": 2, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    assert on(w, "more") == ["n1"]
    assert "1 node is disconnected" in str(w.explain("more")[0])


def test_a_reconnected_node_is_used_at_once_and_its_tasks_go_on() -> None:
    w = world(1)
    w.submit(name="long", stages=[{**ONE, "duration": 600}])
    w.submit(name="short", stages=[{**ONE, "duration": 5}])
    w.advance(1)
    w.disconnect("n0")
    w.submit(name="later", stages=[ONE])
    w.advance(10)
    assert on(w, "later") == [] and w.job("short").state == "running"
    w.connect("n0")
    w.cycle()
    assert on(w, "later") == ["n0"] and w.task("long", "main", 0).attempt == 1
    assert w.job("short").state == "succeeded"
    assert w.partition().nodes.disconnected == {}


def test_a_launch_on_its_way_is_sent_again_after_a_short_break() -> None:
    w = world(1)
    w.submit(name="job", stages=[ONE])
    w.cycle()
    w.disconnect("n0")
    w.advance(5)
    assert w.task("job", "main", 0).state == "assigned"
    w.connect("n0")
    w.advance(1)
    assert (w.task("job", "main", 0).state, w.task("job", "main", 0).attempt) == ("running", 1)


def test_a_node_that_does_not_come_back_is_lost_after_its_lease() -> None:
    w = world(2, lease="1min", heartbeat="5s")
    w.submit(name="long", stages=[{**ONE, "duration": 600}])
    w.advance(1)
    w.disconnect("n0")
    w.advance(64)
    assert on(w, "long") == ["n0"]
    w.advance(2)
    assert on(w, "long") == ["n1"]


def test_a_pool_orders_nothing_for_work_that_fits_a_disconnected_node() -> None:
    w = World(config={"lease": "1min", "heartbeat": "5s"})
    w.pool("p", node={"cpu": 4}, min=1, max=4)
    w.cycle()
    [node] = w.arrive("p")
    w.cycle()
    w.disconnect(node)
    w.submit(name="waits", stages=[{"count": 4, "resources": {"cpu": 1}}])
    w.advance(60)
    assert w.pools()["p"]["ordered"] == 0
    w.advance(10)
    assert w.pools()["p"]["ordered"] == 1


def test_a_hold_stays_on_a_disconnected_node() -> None:
    w = world(2, starving_after="10s", hold_for="1h", held_nodes_percent=100)
    w.submit(name="busy", stages=[{"count": 2, "min": 1, "resources": {"cpu": 3}, "duration": 600}])
    w.cycle()
    w.submit(name="gang", stages=[{"count": 2, "resources": {"cpu": 4}}])
    w.advance(20)
    assert sorted(w.holds()) == ["n0", "n1"]
    w.disconnect("n0")
    w.advance(20)
    assert sorted(w.holds()) == ["n0", "n1"]


def test_no_task_is_stopped_for_an_ask_while_its_node_comes_back() -> None:
    w = world(2)
    w.submit(name="low", stages=[{"count": 4, "min": 1, "resources": {"cpu": 1}, "duration": 600}])
    w.cycle()
    w.disconnect("n1")
    w.submit(name="high", priority=5, stages=[{"count": 4, "resources": {"cpu": 1}}])
    w.advance(20)
    assert on(w, "low") == ["n0"] * 4
    w.connect("n1")
    w.cycle()
    assert on(w, "high") == ["n1"] * 4


def test_a_restart_journals_only_the_nodes_that_stay_away() -> None:
    w = world(3)
    w.restart(ready=False)
    everything = tuple(f"n{number}" for number in range(3))
    w._send("default", DisconnectNodes(names=everything, operator=True))
    w.cycle()
    records = len(list(w.journal.read("partition/default")))
    for name in ("n0", "n1"):
        w.node(name, cpu=4)
        w.cycle()
    assert len(list(w.journal.read("partition/default"))) == records
    assert not w.partition().readiness.ready
    w.submit(name="job", stages=[{"count": 12, "min": 1, "resources": {"cpu": 1}}])
    w.advance(40)
    assert w.partition().readiness.ready and set(on(w, "job")) == {"n0", "n1"}
    w.node("n2", cpu=4)
    w.cycle()
    assert set(on(w, "job")) == {"n0", "n1", "n2"}


def test_the_state_survives_a_dump_and_a_restart() -> None:
    w = world()
    w.disconnect("n1")
    w.cycle()
    before = w.dump()
    assert dump(load(before)) == before and load(before).nodes.disconnected == w.partition().nodes.disconnected != {}
    w.restart()
    assert w.dump() == before
    w.remove_node("n1")
    w.cycle()
    assert w.partition().nodes.disconnected == {}
