"""Holds: which asks starve, which nodes are held for them, which tasks may use these, and how holds end."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.why.reasons import NoCapacity
from fairlead.testing import World

HOLDS: dict[str, Any] = {"starving_after": "10s", "hold_for": "100s"}


def stage(count: int = 1, cpu: float = 1, name: str = "w", **rest: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "resources": {"cpu": cpu}, **rest}


def full(w: World, nodes: int, cpu: int = 1) -> list[str]:
    """Fill nodes with single tasks, one each."""
    w.nodes(nodes, cpu=cpu, memory="1Gi")
    asks = {"name": "w", "resources": {"cpu": cpu, "memory": 1}}
    jobs = [w.submit(name=f"s{number}", stages=[asks], preemptible=False) for number in range(nodes)]
    w.advance(0)
    assert all(w.placements(job) for job in jobs)
    return jobs


# -- the story of the seed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [True, False])
def test_seven_pods_on_one_node(holds: bool) -> None:
    w = World(config={"starving_after": "10s", "hold_for": "1h" if holds else 0})
    w.node("n1", cpu=3, memory="3Gi")
    pods: dict[int, str] = {}
    for number, cpu in enumerate([1, 1, 1, 3, 1, 1, 1], start=1):
        asks = {"cpu": cpu, "memory": f"{cpu}Gi"}
        pods[number] = w.submit(name=f"pod-{number}", stages=[{"name": "w", "resources": asks}])

    def running() -> list[int]:
        return [number for number, pod in pods.items() if w.job(pod).state == "running"]

    w.advance(0)
    assert running() == [1, 2, 3]
    w.advance(5)
    w.finish(pods[1])
    w.advance(0)
    assert running() == [2, 3, 5]  # pod-4 has not waited for long enough
    w.advance(6)
    assert w.holds() == ({"n1": [("pod-4", "w", 1)]} if holds else {})
    w.finish(pods[2])
    w.finish(pods[3])
    w.advance(0)
    if not holds:
        assert running() == [5, 6, 7]  # and pod-4 waits for all of them
        w.finish(pods[5])
        w.advance(0)
        assert running() == [6, 7]
        return
    assert running() == [5]
    reason = w.explain(pods[6])[0].reason
    assert isinstance(reason, NoCapacity) and reason.failed == (("held", 1),)
    reason = w.explain(pods[4])[0].reason
    assert isinstance(reason, NoCapacity) and reason.held == 1 and reason.failed == (("missing cpu", 1),)
    w.finish(pods[5])
    w.advance(0)
    assert running() == [4]
    assert w.holds() == {"n1": [("pod-6", "w", 1)]}  # which has waited for too long itself by now
    w.finish(pods[4])
    w.advance(0)
    assert running() == [6, 7]


# -- which asks starve -------------------------------------------------------------------------------------------


def test_an_age_equal_to_the_threshold_is_not_yet_starving() -> None:
    w = World(config=HOLDS)
    full(w, 2)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(10)
    assert not w.holds()
    w.advance(0.000001)
    assert w.holds() == {"n0": [("gang", "w", 1)], "n1": [("gang", "w", 1)]}


def test_not_in_a_cycle_in_which_a_higher_priority_was_placed() -> None:
    w = World(config=HOLDS)
    w.nodes(2, cpu=2)
    w.submit(name="s", stages=[stage(2)], priority=1)
    w.advance(0)
    w.submit(name="gang", stages=[stage(2, cpu=2)], priority=1)
    w.advance(10)
    w.submit(name="higher", stages=[stage()], priority=2)
    w.now += 1_000_000
    w.cycle()
    assert w.job("higher").state == "running" and not w.holds()
    w.advance(0)  # the next one follows at once
    assert list(w.holds()) == ["n0", "n1"]


def test_lower_priority_in_the_same_cycle_does_not_matter() -> None:
    w = World(config=HOLDS)
    w.nodes(2, cpu=2)
    w.submit(name="s", stages=[stage(2)], priority=1)
    w.advance(0)
    w.submit(name="gang", stages=[stage(2, cpu=2)], priority=1)
    w.advance(10)
    w.submit(name="lower", stages=[stage()])
    w.now += 1_000_000
    w.cycle()
    assert w.job("lower").state == "running" and list(w.holds()) == ["n0", "n1"]


def test_by_priority_then_by_age() -> None:
    w = World(config={**HOLDS, "held_nodes_percent": 50, "hold_large": False})
    full(w, 2, cpu=2)
    for name, cpu, priority in (("old", 2, 0), ("first", 1.5, 1), ("young", 1.75, 1)):
        w.submit(name=name, stages=[stage(cpu=cpu)], priority=priority)
        w.advance(1)
    w.now += 20_000_000  # all of them have waited for too long before the next cycle
    w.cycle()
    assert w.holds() == {"n0": [("first", "w", 1)]}


def test_what_a_started_stage_wants_beyond_its_minimum_does_not_starve() -> None:
    w = World(config=HOLDS)
    w.nodes(2, cpu=1)
    w.submit(name="array", stages=[stage(4, min=2)])
    w.advance(100)
    assert len(w.placements("array")) == 2 and not w.holds()


def test_a_gang_that_was_added_starves() -> None:
    w = World(config=HOLDS)
    w.nodes(3, cpu=2)
    w.submit(name="gang", stages=[stage(1, cpu=2)])
    w.submit(name="others", stages=[stage(4, min=1, duration=60)])
    w.advance(0)
    w.scale("gang", "w", 3)
    w.advance(11)
    assert w.holds() == {"n1": [("gang", "w", 1)], "n2": [("gang", "w", 1)]}
    w.advance(60)
    assert len(w.placements("gang")) == 3 and not w.holds()


def test_an_ask_over_its_limit_does_not_starve() -> None:
    w = World(config={**HOLDS, "queues": {"root": {"a": {"limit": {"cpu": 1}}, "b": {}}}})
    w.nodes(2, cpu=1)
    w.submit(name="s", queue="root.b", stages=[stage(2)])
    w.advance(0)
    w.submit(name="gang", queue="root.a", stages=[stage(2)])
    w.advance(100)
    assert not w.holds()


def test_an_ask_of_a_stopped_queue_loses_its_nodes() -> None:
    w = World(config={**HOLDS, "queues": {"root": {"a": {}, "b": {}}}})
    w.nodes(2, cpu=1)
    w.submit(name="s", queue="root.b", stages=[stage(2)])
    w.advance(0)
    w.submit(name="gang", queue="root.a", stages=[stage(2)])
    w.advance(11)
    assert len(w.holds()) == 2
    w.stop_queue("root.a")
    w.advance(0)
    assert not w.holds()
    w.start_queue("root.a")
    w.advance(0)
    assert len(w.holds()) == 2


# -- which nodes -------------------------------------------------------------------------------------------------


def test_no_more_than_the_percentage_and_all_or_nothing() -> None:
    w = World(config={**HOLDS, "held_nodes_percent": 40, "hold_large": False})
    full(w, 5)
    w.submit(name="three", stages=[stage(3)])
    w.submit(name="two", stages=[stage(2)])
    w.advance(100)
    assert not w.holds()  # two nodes are not enough for the head of the lane
    w.kill("three")
    w.advance(1)
    assert w.holds() == {"n0": [("two", "w", 1)], "n1": [("two", "w", 1)]}


def test_a_large_gang_is_served_alone() -> None:
    w = World(config={**HOLDS, "queues": {"root": {"a": {}, "b": {}, "c": {}}}})
    w.nodes(4, cpu=1)
    w.submit(name="s", queue="root.a", stages=[stage(4)])
    w.advance(0)
    w.submit(name="first", queue="root.a", stages=[stage(2)])
    w.advance(1)
    w.submit(name="large", queue="root.b", stages=[stage(4)])
    w.advance(1)
    w.submit(name="last", queue="root.c", stages=[stage(2)])
    w.advance(20)
    # The large gang waits until it can hold alone, and later asks get no hold before it.
    assert w.holds() == {"n0": [("first", "w", 1)], "n1": [("first", "w", 1)]}
    w.kill("first")
    w.advance(0)
    assert w.holds() == {f"n{at}": [("large", "w", 1)] for at in range(4)}
    w.finish("s")
    w.advance(0)
    assert len(w.placements("large")) == 4
    assert w.holds() == {"n0": [("last", "w", 1)], "n1": [("last", "w", 1)]}


def test_several_hold_one_node_up_to_its_capacity() -> None:
    w = World(config={**HOLDS, "queues": {"root": {"a": {}, "b": {}, "c": {}}}})
    w.node("n0", cpu=4)
    w.submit(name="s", queue="root.a", stages=[stage(4, min=1)])
    w.advance(0)
    for queue, cpu in (("a", 2), ("b", 2), ("c", 1)):
        w.submit(name=queue, queue=f"root.{queue}", stages=[stage(cpu=cpu)])
    w.advance(11)
    assert w.holds() == {"n0": [("a", "w", 1), ("b", "w", 1)]}
    w.finish("s", "w", 0)
    w.finish("s", "w", 1)
    w.finish("s", "w", 2)
    w.advance(0)
    assert w.job("b").state == "running" and w.job("a").state == "pending"  # queue b uses less: it is its turn
    w.finish("s", "w", 3)
    w.advance(0)
    assert w.job("a").state == "running"


def test_a_holder_takes_no_more_of_a_shared_node_than_its_part() -> None:
    w = World(config={**HOLDS, "queues": {"root": {"a": {}, "b": {}}}})
    w.node("n0", cpu=4)
    w.node("n1", cpu=4)
    w.submit(name="s", queue="root.a", stages=[stage(2, cpu=4)])
    w.advance(0)
    w.submit(name="a", queue="root.a", stages=[stage(4, min=1)])
    w.submit(name="b", queue="root.b", stages=[stage(cpu=3)])
    w.advance(11)
    assert w.holds() == {"n0": [("a", "w", 1), ("b", "w", 1)]}
    w.finish("s", "w", 0)
    w.advance(0)
    assert len(w.placements("a")) == 1 and len(w.placements("b")) == 1


def test_nodes_expected_to_be_free_first_among_equal_scores() -> None:
    w = World(config=HOLDS)
    w.nodes(4, cpu=1)
    for name, estimate in (("unknown", None), ("late", "3h"), ("soon", "1h"), ("overrun", "4s")):
        w.submit(name=name, stages=[stage(**({"estimate": estimate} if estimate else {}))])
    w.advance(0)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(11)  # the estimate of 4 s was overrun twice: 16 s
    assert list(w.holds()) == ["n2", "n3"]


def test_nodes_that_take_no_work_are_not_held() -> None:
    w = World(config={**HOLDS, "held_nodes_percent": 100})
    w.nodes(5, cpu=1, labels={"disk": "fast"})
    w.node("slow", cpu=1)
    w.node("tiny", cpu="500m", labels={"disk": "fast"})
    w.cycle()
    w.drain("n0")
    w.disable("n1")
    w.fail_node("n2")
    w.submit(name="s", stages=[stage(3)])
    w.advance(0)
    w.submit(name="gang", stages=[stage(2, selectors={"disk": "fast"})])
    w.advance(11)
    assert list(w.holds()) == ["n3", "n4"]


def test_a_job_that_starts_whole_holds_for_all_its_stages() -> None:
    """As reserve-01: room for the first, and the second on the same node. No stage starts before all can."""
    w = World(config=HOLDS)
    w.node("n1", cpu=3, memory="4G")
    w.submit(name="p1", stages=[{"name": "w", "resources": {"cpu": 1, "memory": "1G"}}])
    w.advance(0)
    asks = [
        {"name": "p2", "resources": {"cpu": 2, "memory": "1G"}},
        {"name": "p3", "resources": {"cpu": 1, "memory": "1G"}},
    ]
    w.submit(name="pg2", gang="job", stages=asks)
    w.advance(11)
    assert w.holds() == {"n1": [("pg2", "p2", 1), ("pg2", "p3", 1)]}
    assert not w.placements("pg2")
    w.finish("p1")
    w.advance(0)
    assert len(w.placements("pg2")) == 2 and not w.holds()


# -- which tasks may use held nodes ------------------------------------------------------------------------------


def test_a_held_node_takes_what_asks_for_nothing() -> None:
    w = World(config=HOLDS)
    full(w, 1)
    w.submit(name="gang", stages=[stage()])
    w.advance(11)
    assert list(w.holds()) == ["n0"]
    w.submit(name="nothing", stages=[stage(3, cpu=0)])
    w.cycle()
    assert set(w.placements("nothing").values()) == {"n0"}


def test_a_holder_may_start_elsewhere() -> None:
    w = World(config=HOLDS)
    full(w, 1)
    w.submit(name="gang", stages=[stage()])
    w.advance(11)
    w.node("n1", cpu=1)
    w.advance(0)
    assert w.placements("gang") == {("w", 0): "n1"} and not w.holds()


def test_a_holder_is_served_first_wherever_it_stands() -> None:
    w = World(config=HOLDS)
    jobs = full(w, 1)
    w.submit(name="gang", stages=[stage()])
    w.advance(11)
    w.submit(name="first", stages=[stage()])
    w.prioritise("first", "w")
    w.cycle()
    w.finish(jobs[0])
    w.advance(0)
    assert w.placements("gang") == {("w", 0): "n0"} and w.job("first").state == "pending"


def test_chains_are_asked_back_from_a_held_node() -> None:
    w = World(config={**HOLDS, "chain": "20s"})
    w.node("n0", cpu=2)
    w.submit(name="quick", stages=[stage(60, min=1, duration=1)])
    w.advance(2)
    w.submit(name="gang", stages=[stage(cpu=2)])
    w.advance(11)
    assert w.partition().derived.chains or w.holds() or w.placements("gang")
    w.advance(5)
    assert len(w.placements("gang")) == 1


# -- how they end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "again"),
    [
        (lambda w: w.kill("gang"), []),
        (lambda w: w.cancel("gang", "w"), []),
        (lambda w: w.scale("gang", "w", 1), ["n0"]),
        (lambda w: w.scale("gang", "w", 3), ["n0", "n1", "n2"]),
        (lambda w: w.drain("n0"), ["n1", "n2"]),
        (lambda w: w.remove_node("n0"), ["n1", "n2"]),
        (lambda w: w.fail_node("n0"), ["n1", "n2"]),
        (lambda w: w.update_node("n0", cpu="500m"), ["n1", "n2"]),
        (lambda w: w.update_node("n0", taints=["gpu"]), ["n1", "n2"]),
        (lambda w: w.prioritise("gang", "w"), ["n0", "n1"]),
        (lambda w: w.reset_lane("root.default", "gang"), ["n0", "n1"]),
    ],
    ids="kill cancel smaller larger drain remove lose shrink taint front tail".split(),
)
def test_a_hold_ends_with_its_cause_and_there_may_be_another(act: Any, again: list[str]) -> None:
    w = World(config={**HOLDS, "held_nodes_percent": 100})
    full(w, 4)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(11)
    assert list(w.holds()) == ["n0", "n1"]
    act(w)
    w.advance(0)
    assert list(w.holds()) == again


@pytest.mark.parametrize(
    "go",
    [lambda w: w.drain("n0"), lambda w: w.remove_node("n0"), lambda w: w.fail_node("n0")],
    ids="drain remove lose".split(),
)
def test_when_one_node_goes_no_other_ask_takes_the_rest(go: Any) -> None:
    """The room on a held node that is free in the same cycle is still the gang's."""
    w = World(config={**HOLDS, "held_nodes_percent": 100})
    jobs = full(w, 4)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(11)
    assert list(w.holds()) == ["n0", "n1"]
    w.submit(name="small", queue="root.default", stages=[stage(cpu=0.5)])
    w.cycle()
    go(w)
    w.finish(jobs[1])
    w.advance(0)
    assert not w.placements("small")
    assert "n1" in w.holds()


def test_after_hold_for_there_is_no_hold_for_a_while() -> None:
    w = World(config={**HOLDS, "starving_after": "30s"})
    jobs = full(w, 2)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(31)
    assert len(w.holds()) == 2
    w.advance(99)
    assert len(w.holds()) == 2
    w.advance(1.1)
    assert not w.holds()
    w.restart()
    w.submit(name="small", stages=[stage()])
    w.finish(jobs[0])
    w.advance(28)
    assert not w.holds() and w.job("small").state == "pending"  # the gang is the head of their lane
    w.advance(1)
    assert len(w.holds()) == 2


def test_a_hold_survives_a_restart() -> None:
    w = World(config=HOLDS)
    jobs = full(w, 2)
    w.submit(name="gang", stages=[stage(2)])
    w.advance(11)
    before = w.holds(), w.dump()
    w.restart()
    assert (w.holds(), w.dump()) == before
    w.submit(name="small", stages=[stage(cpu=0.5)])
    w.finish(jobs[0])
    w.advance(0)
    assert w.job("small").state == "pending"
    w.finish(jobs[1])
    w.advance(0)
    assert len(w.placements("gang")) == 2 and w.job("small").state == "pending"


def test_when_fewer_may_be_held_the_newest_go() -> None:
    w = World(config={**HOLDS, "held_nodes_percent": 100, "queues": {"root": {"a": {}, "b": {}}}})
    w.nodes(4, cpu=1)
    w.submit(name="s", queue="root.a", stages=[stage(4)])
    w.advance(0)
    w.submit(name="one", queue="root.a", stages=[stage(2)])
    w.advance(1)
    w.submit(name="two", queue="root.b", stages=[stage(2)])
    w.advance(12)
    assert len(w.holds()) == 4
    w.configure({**HOLDS, "held_nodes_percent": 50, "queues": {"root": {"a": {}, "b": {}}}})
    w.advance(0)
    assert {job for holders in w.holds().values() for job, _, _ in holders} == {"one"}


# -- an ask without a hold gets it when the cause is gone --------------------------------------------------------


def test_nodes_with_room_for_the_whole_gang_are_held_if_the_best_ones_have_not() -> None:
    w = World(config={**HOLDS, "hold_large": False})
    w.node("small", cpu=1)
    w.node("large", cpu=4)
    w.submit(name="s", stages=[stage(cpu=2)])
    w.advance(0)
    w.submit(name="gang", stages=[stage(4)])
    w.advance(11)
    assert w.holds() == {"large": [("gang", "w", 4)]}


def test_an_ask_that_its_own_tasks_kept_from_a_hold_gets_it_when_they_end() -> None:
    w = World(config={**HOLDS, "held_nodes_percent": 100})
    w.node("n", cpu=2, labels={"kind": "n"})
    w.submit(name="gang", stages=[stage(selectors={"kind": "n"})])
    w.submit(name="s", stages=[stage()])
    w.advance(0)
    w.scale("gang", "w", 3)
    w.advance(11)
    assert not w.holds()  # its first task is there, and two more do not fit beside it
    w.finish("gang", "w", 0)
    w.advance(0)
    assert w.holds() == {"n": [("gang", "w", 2)]}


def test_an_ask_that_a_lent_node_kept_from_a_hold_gets_it_when_the_loan_ends() -> None:
    w = World(config={**HOLDS, "backfill": "easy", "held_nodes_percent": 50, "hold_large": False})
    w.node("n", cpu=4)
    w.node("other", cpu=1)
    for name in ("s", "t"):
        w.submit(name=name, stages=[stage(cpu=2 if name == "s" else 1, estimate=1000)])
        w.advance(0)
    w.submit(name="holder", stages=[stage(cpu=3)])
    w.advance(11)
    assert w.holds() == {"n": [("holder", "w", 1)]}
    w.submit(name="lent", stages=[stage(cpu=0.5, estimate=100)])
    w.advance(0)
    assert w.placements("lent") == {("w", 0): "n"}
    w.submit(name="second", stages=[stage(cpu=0.75)])
    w.advance(11)
    assert w.holds() == {"n": [("holder", "w", 1)]}
    w.finish("lent")
    w.advance(0)
    assert w.placements("second") == {("w", 0): "n"}  # n was held for `second` too, and has room for its part


def test_after_a_restart_an_ask_starves_at_the_same_time() -> None:
    w = World(config=HOLDS)
    full(w, 1)
    w.submit(name="gang", stages=[stage()])
    w.advance(5)
    w.restart()
    w.advance(6)
    assert w.holds() == {"n0": [("gang", "w", 1)]}


# -- released by an operator -------------------------------------------------------------------------------------


def held(**settings: Any) -> World:
    """A node of 2 CPUs is held for `large`, and there is room on it for a small task."""
    w = World({"starving_after": "10s", **settings})
    w.node("n0", cpu=2)
    w.submit(name="long", stages=[stage()])
    w.advance(0)
    w.submit(name="large", stages=[stage(cpu=2)])
    w.advance(11)
    assert w.holds() == {"n0": [("large", "w", 1)]}
    w.submit(name="small", stages=[stage()])
    w.advance(1)
    assert not w.placements("small")
    return w


@pytest.mark.parametrize("named", ["", "w"])
def test_an_operator_releases_a_hold_and_it_is_not_taken_again_at_once(named: str) -> None:
    w = held()
    w.release_hold("large", named)
    w.cycle()
    assert not w.holds() and w.placements("small")
    w.restart()
    w.advance(9)
    assert not w.holds()
    w.advance(2)
    assert w.holds()


def test_releasing_what_is_not_held_changes_nothing() -> None:
    w = held()
    w.release_hold("small")
    w.cycle()
    assert w.holds() and w.answers()[-1].note == "no nodes are held for it"


def test_tasks_of_an_earlier_stage_do_not_prevent_a_hold() -> None:
    """They end by themselves. Without the hold, small tasks of other jobs would pass the next stage."""
    w = World({"starving_after": "10s"})
    w.node("n0", cpu=4)
    w.submit(name="job", stages=[stage(cpu=3, name="first"), stage(cpu=3, name="second")])
    w.advance(11)
    assert w.holds() == {"n0": [("job", "second", 1)]}
    w.submit(name="small", stages=[stage()])
    w.advance(1)
    assert not w.placements("small")
    w.finish("job", "first")
    w.advance(1)
    assert w.placements("job") == {("second", 0): "n0"}


def test_members_of_the_same_gang_stay_beside_what_is_added() -> None:
    """A gang of two that grows by two needs another node: its members do not end before them."""
    w = World({"starving_after": "10s", "held_nodes_percent": 100})
    w.nodes(2, cpu=2)
    w.submit(name="gang", stages=[stage(2)])
    w.submit(name="other", stages=[stage(2)])
    w.advance(0)
    assert set(w.placements("gang").values()) == {"n0"}
    w.scale("gang", "w", 4)
    w.advance(11)
    assert list(w.holds()) == ["n1"]


def test_two_halves_do_not_split_both_devices_of_a_shared_node() -> None:
    w = World({"starving_after": "10s", "queues": {"root": {"a": {}, "b": {}, "c": {}}}})
    w.node("g", cpu=8, gpu=2)
    half, whole = {"name": "w", "resources": {"gpu": 0.5}}, {"name": "w", "resources": {"gpu": 1}}
    for at in range(4):
        w.submit(name=f"old{at}", queue="root.c", stages=[half])
    w.advance(0)
    w.submit(name="pair", queue="root.a", stages=[{**half, "count": 2}])
    w.submit(name="one", queue="root.b", stages=[whole])
    w.advance(11)
    assert w.holds() == {"g": [("pair", "w", 2), ("one", "w", 1)]}
    on = {w.task(f"old{at}", "w", 0).devices: f"old{at}" for at in range(4)}
    for job in on.values():  # one half of each device
        w.finish(job)
    w.advance(1)
    assert not w.placements("pair")
    for at in range(4):
        if f"old{at}" not in on.values():
            w.finish(f"old{at}")
    w.advance(1)
    assert len(w.placements("pair")) == 2 and len(w.placements("one")) == 1
