"""Chains: quick tasks wait behind others for the same slots. Which tasks go in chains, and how chains end."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from fairlead.core import cycle
from fairlead.core.commands import MoveNode
from fairlead.core.dump import dump, load
from fairlead.core.effects import ForNode, Launch, Stop
from fairlead.core.invariants import InvariantBroken, check_all
from fairlead.core.outcomes import stop
from fairlead.core.plan import Plan
from fairlead.core.policy.run_times import MAX_CHAIN, ahead, measured
from fairlead.core.ranges import count, indices
from fairlead.core.why.reasons import InChain
from fairlead.testing import World
from tests.core.test_properties import (
    advance,
    broken,
    documents,
    finish,
    kill,
    limit,
    management,
    restart,
    scale,
    steps,
    submit,
    trouble,
)
from tests.core.watching import Play, Step


def world(nodes: int = 1, cpu: int = 1, **config: Any) -> World:
    w = World({"chain": "100ms", **config})
    w.nodes(nodes, cpu=cpu)
    w.cycle()
    return w


def array(tasks: int, **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "w", "count": tasks, "min": 1, "resources": {"cpu": 1}, **rest}]


def states(w: World, job: str, tasks: int) -> list[str]:
    return [w.task(job, "w", index).state for index in range(tasks)]


def ahead_of(w: World, job: str) -> list[int]:
    """Return the tasks that wait in a chain."""
    live = w.partition().jobs[job].stages[0].live or {}
    return sorted(index for index, allocation in live.items() if allocation.slots)


def at_work(w: World) -> list[int]:
    """Return the tasks that the agents run."""
    return sorted(index for each in w.fleets["default"].at_work() for index in indices(each.indices))


def messages(w: World) -> tuple[list[Launch], list[Stop]]:
    effects = [effect for effect in w.effects() if isinstance(effect, ForNode)]
    return [one for effect in effects for one in effect.launches], [one for effect in effects for one in effect.stops]


def durable(w: World) -> int:
    return w.cluster.writers["default"].seq


def in_chain(w: World, tasks: int = 10, **rest: Any) -> str:
    """An array on one slot, each task 20 ms by the first. Task 1 has the slot, 2 to 5 wait behind it."""
    job = w.submit(stages=array(tasks, **rest))
    w.advance(0.02)
    w.effects()
    w.finish(job, "w", 0)
    w.advance(0)
    assert (at_work(w), ahead_of(w, job)) == ([1], [2, 3, 4, 5])
    return job


# -- what goes in chains -----------------------------------------------------------------------------------------


def test_quick_tasks_are_sent_ahead() -> None:
    w = world()
    job = in_chain(w)
    assert states(w, job, 7) == ["succeeded", "running"] + ["assigned"] * 4 + ["pending"]
    assert w.usage("root.default") == {"cpu": 1}
    assert w.task(job, "w", 2).note == "starts when a task of its chain ends"
    assert w.task(job, "w", 1).note == ""
    (front, rest), stops = messages(w)
    assert not stops
    assert (front.indices, front.slots) == ((1, 2), 0)
    assert (rest.indices, rest.slots, rest.chain) == ((2, 6), 1, front.chain)
    pending, sent = w.explain(job)
    assert (pending.count, sent.count, sent.reason) == (4, 4, InChain(1))
    assert str(sent) == "w: 4 tasks wait; sent ahead to 1 node, to start when the quick tasks before them end"


def test_the_next_one_starts_without_being_told() -> None:
    w = world()
    job = in_chain(w)
    w.effects()
    w.finish(job, "w", 1)
    assert at_work(w) == [2]
    before = durable(w)
    w.cycle()
    assert durable(w) == before + 1
    assert messages(w) == ([], [])
    assert states(w, job, 4) == ["succeeded", "succeeded", "assigned", "assigned"]
    assert ahead_of(w, job) == [3, 4, 5]
    assert w.usage("root.default") == {"cpu": 1}
    w.advance(0.01)
    assert states(w, job, 4) == ["succeeded", "succeeded", "running", "assigned"]


def test_many_tasks_need_few_cycles() -> None:
    cycles = {}
    for chain in (0, "100ms"):
        w = world(cpu=2, chain=chain)
        before = durable(w)
        job = w.submit(stages=array(1_000, duration=0.001))
        w.advance(1)
        assert w.job(job).state == "succeeded"
        assert w.job(job).ended_at == pytest.approx(0.5, abs=0.02)  # and no slot was idle for long
        cycles[chain] = durable(w) - before
    assert cycles["100ms"] * 10 <= cycles[0]


def test_no_slot_has_two_tasks() -> None:
    w = world(nodes=2, cpu=3)
    job = w.submit(stages=array(600, duration=0.004))
    w.cycle()
    most = 0
    while w.job(job).state != "succeeded":
        w.advance(0.001)
        on_node: dict[str, int] = {}
        for each in w.fleets["default"].at_work():
            on_node[each.node] = on_node.get(each.node, 0) + count(each.indices)
        assert all(tasks <= 3 for tasks in on_node.values())
        assert w.usage("root.default").get("cpu", 0) <= 6
        most = max(most, len(ahead_of(w, job)))
    assert most > 50
    assert w.now < 450_000  # 600 × 4 ms on 6 slots


@pytest.mark.parametrize(
    "stage",
    [
        {"min": 2},
        {"min": 20},
        {"min": 20, "scaling": "partial"},
        {"min": 1, "resources": {"gpu": 1}},
    ],
    ids=["a minimum of two", "a gang", "a gang that grows one by one", "devices"],
)
def test_other_kinds_of_tasks_are_never_sent_ahead(stage: dict[str, Any]) -> None:
    w = World({"chain": "100ms"})
    w.node("n0", cpu=2, gpu=2)
    resources = stage.pop("resources", {"cpu": "100m"} if stage["min"] == 20 else {"cpu": 1})
    job = w.submit(stages=[{"name": "w", "count": 20, "resources": resources, "duration": 0.001, **stage}])
    for _ in range(60):
        w.advance(0.001)
        w.scale(job, "w", 30)
        assert not w.partition().derived.chains


def test_tasks_that_start_with_their_whole_job_have_no_chain() -> None:
    w = world(cpu=2)
    stages = [*array(30, on_loss="restart"), {"name": "p", "resources": {"cpu": 1}}]
    job = w.submit(gang="job", stages=stages)
    w.advance(0.02)
    w.finish(job, "w", 0)
    w.advance(0)
    assert ahead_of(w, job)  # once it has started, the tasks beyond the minimum are independent
    w.fail_node("n0")
    w.cycle()
    w.return_node("n0")
    w.cycle()
    assert len(w.placements(job)) == 2 and not ahead_of(w, job)
    w.advance(0.02)
    w.finish(job, "w", 1)
    w.advance(0)
    assert ahead_of(w, job)


def test_long_tasks_are_not_sent_ahead() -> None:
    w = world()
    job = w.submit(stages=array(20, duration=0.051))
    for _ in range(300):
        w.advance(0.001)
        assert not ahead_of(w, job)
    assert w.partition().jobs[job].stages[0].ran is None


def test_tasks_of_a_resource_manager_are_not_sent_ahead() -> None:
    w = World({"chain": "100ms"})
    rm = w.rm("k8s")
    rm.register()
    rm.update(
        nodes=[{"name": "m0", "resources": {"cpu": 1}}],
        jobs=[{"job": "app", "queue": "root.default"}],
        asks=[{"job": "app", "ask": "w", "count": 9, "min": 1, "resources": {"cpu": 1}}],
    )
    w.cycle()
    w.advance(0.001)
    rm.update(releases=[{"job": "app", "ask": "w", "index": 0}])
    w.cycle()
    w.advance(0.001)
    w.report("app", "w", 1, 1, "succeeded", node="m0")
    w.cycle()
    assert w.partition().jobs["app"].stages[0].ran is None and not w.partition().derived.chains


def test_chains_are_off_unless_configured() -> None:
    w = World()
    w.node("n0", cpu=1)
    job = w.submit(stages=array(20, duration=0.001))
    for _ in range(30):
        w.advance(0.001)
        assert not ahead_of(w, job)


def test_slots_come_before_chains() -> None:
    w = world(nodes=3, cpu=1)
    w.drain("n1")
    w.drain("n2")
    job = w.submit(stages=array(6))
    w.advance(0.001)
    w.enable("n1")
    w.enable("n2")
    w.finish(job, "w", 0)
    w.advance(0)
    assert at_work(w) == [1, 2, 3]  # all three slots
    assert len({w.placements(job)["w", index] for index in (1, 2, 3)}) == 3
    assert ahead_of(w, job) == [4, 5]
    assert len({w.placements(job)["w", index] for index in (4, 5)}) == 2  # shared evenly


def test_a_limit_counts_the_room() -> None:
    w = World({"chain": "100ms", "queues": {"root": {"q": {"limit": {"cpu": 1}}}}})
    w.node("n0", cpu=8)
    job = w.submit(queue="root.q", stages=array(50, duration=0.001))
    w.cycle()
    seen = 0
    while w.job(job).state != "succeeded":
        w.advance(0.001)
        seen = max(seen, len(ahead_of(w, job)))
        assert w.usage("root.q").get("cpu", 0) <= 1
    assert seen > 10


def test_a_lowered_limit_ends_chains() -> None:
    w = World({"chain": "100ms", "queues": {"root": {"q": {}}}})
    w.node("n0", cpu=2)
    job = w.submit(queue="root.q", stages=array(2_000, duration=0.001))
    w.advance(0.3)
    assert ahead_of(w, job)
    w.queue("root.q", limit={"cpu": 0})
    w.advance(0.2)
    assert not w.placements(job)


def test_a_chain_is_lengthened_only_while_no_other_job_waits() -> None:
    w = world()
    flood = w.submit(name="flood", stages=array(5_000, duration=0.001))
    w.advance(0.5)
    assert ahead_of(w, flood)
    w.submit(name="other", stages=[{"name": "o", "resources": {"cpu": "800m"}}], priority=1)
    w.advance(0.11)
    assert w.job("other").state == "running"
    assert not w.placements(flood)


def test_an_ask_behind_tasks_sent_ahead_has_its_turn_at_once() -> None:
    """Otherwise a starving ask would get no hold until the next command arrives."""
    w = world(starving_after="15ms", held_nodes_percent=100)
    w.submit(stages=array(1, duration=0.01))
    w.submit(name="old", stages=array(3))
    w.advance(0.01)
    first = w.submit(stages=array(3), priority=1)
    w.advance(0.02)
    w.finish(first, "w", 0)
    w.hold_acks("n0")  # nothing else happens
    w.cycle()
    assert (states(w, first, 3), ahead_of(w, first)) == (["succeeded", "assigned", "assigned"], [2])
    w.advance(0)
    assert w.holds() == {"n0": [("old", "w", 1)]}


def test_a_job_that_is_sent_ahead_leaves_its_planned_start_to_the_next_one() -> None:
    w = world(cpu=2, backfill="easy", estimates="learned", chain="20s")
    w.submit(stages=[{"name": "s", "resources": {"cpu": 1}, "estimate": "1h"}])
    w.cycle()
    quick = w.submit(stages=array(10))
    w.advance(0.02)
    late = w.submit(stages=[{"name": "s", "resources": {"cpu": "900m"}, "estimate": "1min"}])
    w.advance(0)
    w.finish(quick, "w", 0)
    w.advance(0)
    assert ahead_of(w, quick) == list(range(2, 10))
    [ask] = [ask for lane in w.partition().lanes.values() for ask in lane]
    assert (ask.stage.job.id, ask.latest > 0) == (late, True)


def test_a_chain_has_a_largest_length() -> None:
    w = world(chain="10min")
    job = w.submit(stages=array(5_000, duration=0.001))
    w.advance(0.001)
    w.cycle()
    assert len(ahead_of(w, job)) == MAX_CHAIN - 1


def test_a_cycle_sends_no_more_ahead_than_it_may_place() -> None:
    w = world(cpu=4, max_placed=40)
    job = w.submit(stages=array(500, duration=0.001))
    w.advance(0)
    w.now += 1_000
    w.cycle()
    assert len(ahead_of(w, job)) == 40


def test_what_one_cycle_could_not_place_is_not_sent_ahead_by_it() -> None:
    w = world(cpu=5, max_placed=3)
    job = w.submit(stages=array(100))
    w.advance(0.02)
    for index in range(5):
        w.finish(job, "w", index)
    w.cycle()
    assert len(w.placements(job)) == 3 and not ahead_of(w, job)
    w.cycle()
    assert len(w.placements(job)) - len(ahead_of(w, job)) == 5 and ahead_of(w, job)


def test_limits_that_change_count_the_room_once() -> None:
    w = world()
    in_chain(w)
    w.queue("root.default", users={"user": {"limit": {"cpu": 3}}})
    w.cycle()
    assert w.partition().root.account.used == {"cpu": 1_000}


def test_the_end_of_a_waiting_task_wakes_no_lane() -> None:
    w = world()
    job = in_chain(w)
    w.report(job, "w", 3, 1, "stopped")
    before = w.partition().derived.openings
    w.cycle()
    assert (ahead_of(w, job), w.partition().derived.openings) == ([2, 4, 5], before)


# -- how chains end ----------------------------------------------------------------------------------------------


def test_a_kill_stops_all_of_it() -> None:
    w = world()
    job = in_chain(w)
    w.kill(job)
    w.cycle()
    _, stops = messages(w)
    assert sorted(index for each in stops for index in indices(each.indices)) == [1, 2, 3, 4, 5]
    assert w.usage("root.default") == {"cpu": 1}
    w.advance(0)
    assert (w.job(job).state, at_work(w), w.usage("root.default")) == ("killed", [], {})


def test_a_stop_of_those_that_wait_frees_no_slot() -> None:
    w = world()
    job = in_chain(w)
    w.scale(job, "w", 4)
    w.cycle()
    assert ahead_of(w, job) == [2, 3, 4, 5]  # until the agent has confirmed
    assert w.task(job, "w", 4).state == "stopping"
    w.advance(0)
    assert (at_work(w), ahead_of(w, job)) == ([1], [2, 3])
    assert states(w, job, 4) == ["succeeded", "running", "assigned", "assigned"]
    w.scale(job, "w", 6)
    w.cycle()
    assert states(w, job, 6)[4:] == ["pending"] * 2


def test_a_drained_node_finishes_what_runs_and_returns_the_rest() -> None:
    w = world()
    job = in_chain(w, tasks=6)
    w.effects()
    w.node("n1", cpu=4)
    w.drain("n0")
    w.cycle()
    assert w.task(job, "w", 2).note == "recalled, if it has not started"
    launches, stops = messages(w)
    assert not launches and [(each.indices, each.cause) for each in stops] == [((2, 6), "return")]
    w.advance(0)
    assert {index: node for (_, index), node in w.placements(job).items()} == {
        1: "n0",
        **dict.fromkeys(range(2, 6), "n1"),
    }
    assert [(each.attempt, each.tries_used) for each in (w.task(job, "w", index) for index in (1, 2))] == [
        (1, 0),
        (2, 0),
    ]
    assert w.partition().jobs[job].stages[0].past(2).launches_failed == 0


def test_one_asked_back_that_has_the_room_by_now_returns_as_well() -> None:
    w = world()
    job = in_chain(w, tasks=6)
    w.drain("n0")
    w.report(job, "w", 1, 1, "succeeded")
    w.cycle()
    assert ahead_of(w, job) == [3, 4, 5]
    w.report(job, "w", 2, 1, "stopped")
    w.advance(0)
    (lane,) = w.lanes().values()
    assert [(ask.kind, ask.count) for ask in lane] == [("new", 4)]
    assert w.partition().jobs[job].stages[0].past(2).launches_failed == 0
    assert not w.partition().nodes.avoided


def test_what_returns_stands_where_it_stood() -> None:
    w = world(queues={"root": {"default": {"order": "priority"}}})
    job = in_chain(w, tasks=6)
    w.submit(name="later", stages=array(3))
    w.drain("n0")
    w.advance(0.1)
    (lane,) = w.lanes().values()
    assert [(ask.job, ask.kind, ask.count) for ask in lane] == [(job, "new", 4), ("later", "new", 3)]
    assert w.job(job).waiting_since == 0


def test_one_that_was_started_before_it_was_asked_back_goes_on() -> None:
    w = world()
    job = in_chain(w, tasks=6)
    w.drain("n0")
    w.finish(job, "w", 1)  # the agent starts task 2 now
    w.cycle()
    w.advance(0.1)
    assert states(w, job, 6) == ["succeeded", "succeeded", "running"] + ["pending"] * 3
    assert w.task(job, "w", 2).attempt == 1
    w.finish(job, "w", 2)
    w.advance(1)
    assert states(w, job, 3)[2] == "succeeded"
    assert not w.placements(job)


def test_a_node_that_shrinks_below_its_use_returns_the_rest() -> None:
    w = world(nodes=1)
    job = in_chain(w)
    w.update_node("n0", cpu="500m")
    w.advance(0.1)
    assert states(w, job, 10) == ["succeeded", "running"] + ["pending"] * 8


def test_a_stopped_queue_starts_nothing_more() -> None:
    w = world()
    job = in_chain(w)
    w.stop_queue("root.default")
    w.advance(0.1)
    assert states(w, job, 10) == ["succeeded", "running"] + ["pending"] * 8
    w.finish(job, "w", 1)
    w.advance(0.1)
    assert not w.placements(job)
    w.start_queue("root.default")
    w.advance(0)
    assert w.placements(job)


def test_a_lost_node_returns_at_once_what_had_not_started() -> None:
    w = world()
    job = in_chain(w, on_loss="fail")
    w.fail_node("n0")
    w.cycle()
    assert w.job(job).state == "failed"  # of the one that ran
    w = world()
    job = in_chain(w, tries=2)
    w.fail_node("n0")
    w.cycle()
    assert states(w, job, 10) == ["succeeded"] + ["pending"] * 9
    (lane,) = w.lanes().values()
    assert [(ask.kind, ask.count) for ask in lane] == [("replace", 1), ("new", 8)]
    assert [w.partition().jobs[job].stages[0].past(index).launches_failed for index in range(1, 6)] == [0] * 5
    w.node("n1", cpu=20)
    w.advance(0)
    assert [w.task(job, "w", index).attempt for index in (1, 2, 5, 9)] == [2, 2, 2, 2]


def test_a_lost_node_does_not_ask_one_by_one() -> None:
    w = world(chain="10min")
    w.submit(stages=array(3_000, duration=0.001))
    w.advance(0.001)
    partition = w.partition()
    decided = cycle.run(partition, [MoveNode(name="n0", action="lose", operator=True)], w.now)
    assert len(decided.changes) < 10 and not partition.derived.chains
    decided.plan.abandon()


def test_a_removed_node_is_told_to_stop_all_of_it() -> None:
    w = world()
    job = in_chain(w)
    w.remove_node("n0")
    w.cycle()
    _, stops = messages(w)
    assert sorted(index for each in stops for index in indices(each.indices)) == [1, 2, 3, 4, 5]
    assert states(w, job, 10) == ["succeeded"] + ["pending"] * 9


def test_a_refused_launch_does_not_count_for_the_tasks_behind_it() -> None:
    w = world()
    job = w.submit(stages=array(10))
    w.advance(0.02)
    w.refuse_launches("n0")
    w.finish(job, "w", 0)
    w.advance(0)
    assert states(w, job, 10) == ["succeeded"] + ["pending"] * 9
    stage = w.partition().jobs[job].stages[0]
    assert [stage.past(index).launches_failed for index in range(1, 6)] == [0] * 5
    assert w.partition().nodes.failures == [1]


def test_a_node_that_refuses_what_was_sent_ahead_is_left_alone() -> None:
    """Otherwise the tasks would be sent there again and again, without a pause."""
    w = world()
    job = in_chain(w, tasks=6)
    w.report(job, "w", 2, 1, "refused")
    w.cycle()
    assert w.partition().nodes.failures == [1]
    assert w.partition().jobs[job].stages[0].past(2).launches_failed == 0


def test_a_chain_that_is_not_acknowledged_is_taken_back_whole() -> None:
    w = world(launch_timeout="60s", chain="100s")
    job = w.submit(stages=array(6))
    w.advance(20)
    w.hold_acks("n0")
    w.finish(job, "w", 0)
    w.advance(0)
    assert ahead_of(w, job) == [2, 3, 4, 5]
    w.effects()
    w.advance(60.5)
    stage = w.partition().jobs[job].stages[0]
    assert [stage.past(index).launches_failed for index in range(1, 6)] == [1, 0, 0, 0, 0]
    stops = messages(w)[1]
    assert [(each.indices, each.cause) for each in stops] == [((2, 6), "stale")]
    assert not w.placements(job)


def test_a_launch_counts_from_when_it_has_a_room() -> None:
    w = world(launch_timeout="60s", chain="100s", lease="1h")
    job = w.submit(stages=array(6))
    w.advance(20)
    w.finish(job, "w", 0)
    w.advance(0)
    w.silence("n0")
    w.advance(50)
    w.report(job, "w", 1, 1, "succeeded")
    w.cycle()
    w.advance(59)
    assert (w.task(job, "w", 2).state, ahead_of(w, job)) == ("assigned", [3, 4, 5])
    w.advance(1)
    assert states(w, job, 6) == ["succeeded"] * 2 + ["pending"] * 4
    assert [w.partition().jobs[job].stages[0].past(index).launches_failed for index in (2, 3)] == [1, 0]


def test_only_the_one_over_its_time_limit_stops() -> None:
    w = world()
    job = in_chain(w, time_limit="500ms")
    w.advance(0.5)
    w.cycle()
    assert states(w, job, 10)[1] == "failed"
    assert w.task(job, "w", 1).reason == "time limit of 500ms"
    assert at_work(w) == [2]
    w.advance(0.02)
    assert w.task(job, "w", 2).state == "running"
    w.advance(0.48)  # its own time counts from its own start
    assert w.task(job, "w", 2).state == "running"
    w.advance(0.02)
    assert w.task(job, "w", 2).reason == "time limit of 500ms"


def test_one_that_fails_is_tried_again_and_the_chain_goes_on() -> None:
    w = world()
    job = in_chain(w, tries=2)
    w.finish(job, "w", 1, exit_code=3)
    w.advance(0.02)
    assert states(w, job, 3) == ["succeeded", "pending", "running"]
    assert w.task(job, "w", 1).tries_used == 1
    for index in (2, 3, 4, 5, 1):
        w.finish(job, "w", index)
        w.advance(0.02)
    assert states(w, job, 6) == ["succeeded"] * 6


def test_one_that_is_slow_does_not_keep_back_those_behind_it() -> None:
    w = world(nodes=1)
    job = in_chain(w)
    w.node("n1", cpu=1)
    w.advance(0.9)
    assert at_work(w) == [1, 6]
    assert ahead_of(w, job) == [2, 3, 4, 5, 7, 8, 9]
    w.advance(0.2)  # ten times the expected time of the whole chain
    assert states(w, job, 10) == ["succeeded", "running"] + ["pending"] * 4 + ["running"] + ["pending"] * 3
    assert w.partition().jobs[job].stages[0].ran is None
    w.finish(job, "w", 6)
    w.advance(0)
    assert (at_work(w), ahead_of(w, job)) == ([1, 2], [])


def test_an_agent_that_does_not_answer_a_recall_loses_the_tasks() -> None:
    w = world(launch_timeout="60s", lease="10min")
    job = in_chain(w, tasks=6)
    w.silence("n0")
    w.advance(2)
    assert w.task(job, "w", 2).note.startswith("recalled")
    w.advance(30)
    w.drain("n0")  # a second recall gives no more time
    w.advance(30)
    assert states(w, job, 6) == ["succeeded", "running"] + ["pending"] * 4
    assert messages(w)[1][-1].cause == "stale"


def test_setting_chain_to_0_recalls_waiting_tasks() -> None:
    w = world()
    job = in_chain(w)
    w.configure({"chain": 0})
    w.advance(0.1)
    assert states(w, job, 10) == ["succeeded", "running"] + ["pending"] * 8


def test_a_preempted_task_does_not_pass_its_room_to_the_chain() -> None:
    w = world()
    job = in_chain(w)
    partition = w.partition()
    plan = Plan(partition, w.now)
    stop(plan, partition.jobs[job].stages[0].live[1], (1, 2), "preempt")  # type: ignore[index]
    assert [each.cause for each in partition.waiting_in(next(iter(partition.derived.chains)))] == ["return"]
    plan.abandon()


@pytest.mark.parametrize("gang", ["stage", "job"])
def test_nothing_is_sent_ahead_of_a_gang_that_was_taken_back(gang: str) -> None:
    w = world(nodes=2)
    stages = [{**array(30, on_loss="restart")[0], "name": name} for name in ("w", "x")]
    job = w.submit(gang=gang, stages=stages if gang == "job" else stages[:1])
    w.advance(0.02)
    w.finish(job)
    w.advance(0)
    assert ahead_of(w, job)
    w.silence("n0")
    w.fail_node("n1")
    w.cycle()
    live = w.partition().jobs[job].stages[0].live or {}
    for index in ahead_of(w, job):  # the waiting tasks have stopped, and the running one has not yet
        w.report(job, "w", index, live[index].attempt, "stopped", node="n0")
    w.cycle()
    live = w.partition().jobs[job].stages[0].live or {}
    assert {each.state for each in live.values()} == {"stopping"}


def test_capacity_that_an_unstarted_job_gave_back_does_not_lengthen_a_chain() -> None:
    w = World({"chain": "100ms"})
    w.node("n0", cpu=1, memory="8Gi")
    w.node("n1", cpu=1)
    pair = [
        {"name": "a", "count": 30, "min": 1, "resources": {"cpu": 1, "memory": "1Gi"}},
        {"name": "b", "resources": {"cpu": 1}, "on_loss": "restart"},
    ]
    whole = w.submit(name="whole", gang="job", priority=1, stages=pair)
    w.advance(0.02)
    w.finish(whole, "a", 0)
    w.advance(0.02)
    w.fail_node("n1")
    w.advance(1)
    job = w.submit(stages=[{**array(30)[0], "resources": {"cpu": 1, "memory": "2Gi"}}])
    w.advance(0.02)
    w.finish(job, "w", 0)
    w.advance(0)
    assert not w.placements(whole)
    assert ahead_of(w, job) == [2, 3, 4, 5]


@pytest.mark.timeout(60)
def test_tasks_that_a_node_refused_are_not_sent_ahead_again_at_once() -> None:
    """The first task runs; those behind it are refused. All of this happens at one instant."""
    w = world(chain="20s")
    w.submit(name="j", stages=array(30, duration=1))
    w.advance(2.5)
    assert ahead_of(w, "j")
    w.refuse_launches("n0")
    w.advance(12)  # the chain runs low, and gets more
    for _ in range(5):
        w.cycle()
    decided = w.cluster.writers["default"].cycle([], w.now)
    assert not decided.changes


# -- restarts and odd reports ------------------------------------------------------------------------------------


def test_a_restart_in_between_changes_nothing() -> None:
    for ready in (True, False):
        w = world()
        job = in_chain(w)
        before = w.dump()
        w.restart(ready=ready)
        assert w.dump() == before == dump(load(before))
        w.finish(job, "w", 1)
        w.advance(0.02)
        assert states(w, job, 4) == ["succeeded", "succeeded", "running", "assigned"]


def test_nothing_is_sent_ahead_before_the_partition_is_ready() -> None:
    w = world()
    w.node("n1", cpu="500m")  # silent after the restart
    job = in_chain(w)
    w.restart(ready=False)
    for index in (1, 2, 3):
        w.advance(0.02)
        w.finish(job, "w", index)
        w.cycle()
    assert (at_work(w), ahead_of(w, job)) == ([4], [5])  # tasks of the chain go on, and none is added
    w.mark_ready()
    w.advance(0.02)
    w.finish(job, "w", 4)
    w.cycle()
    assert ahead_of(w, job) == [6, 7, 8, 9]


def test_a_restart_at_every_step() -> None:
    w = world(cpu=2)
    job = w.submit(stages=array(200, duration=0.003))
    for _ in range(400):
        w.advance(0.001)
        before = w.dump()
        w.restart()
        assert w.dump() == before
        assert len(at_work(w)) <= 2
    assert w.job(job).state == "succeeded"
    assert max(w.task(job, "w", index).attempt for index in range(200)) == 1


def test_after_a_restart_the_agent_gets_all_standing_launches() -> None:
    w = world()
    in_chain(w)
    w.hold_acks("n0")
    w.restart()
    held = w.fleets["default"]._held["n0"]
    assert [(each.indices, each.slots) for each in held] == [((2, 6), 1)]


@pytest.mark.parametrize(
    ("reports", "expected", "waiting"),
    [
        ([(2, "running")], ["running", "running", "assigned"], [2, 3, 4, 5]),
        ([(2, "running"), (1, "succeeded")], ["succeeded", "running", "assigned"], [3, 4, 5]),
        ([(2, "succeeded")], ["running", "succeeded", "assigned"], [3, 4, 5]),
        ([(2, "succeeded"), (1, "succeeded")], ["succeeded", "succeeded", "assigned"], [4, 5]),
        ([(2, "failed"), (1, "succeeded")], ["succeeded", "failed", "assigned"], [4, 5]),
        ([(1, "succeeded"), (1, "succeeded"), (1, "running")], ["succeeded", "assigned", "assigned"], [3, 4, 5]),
        ([(1, "succeeded"), (2, "running"), (3, "running")], ["succeeded", "running", "running"], [3, 4, 5]),
        ([(2, "refused")], ["running", "pending", "assigned"], [3, 4, 5]),
        ([(2, "stopped"), (3, "lost")], ["running", "pending", "pending"], [4, 5]),
    ],
)
def test_reports_in_any_order(reports: list[tuple[int, Any]], expected: list[str], waiting: list[int]) -> None:
    """In the state one task has the slot, whatever is reported of the tasks behind it."""
    for at_once in (True, False):
        w = world()
        job = in_chain(w, tasks=6)
        for index, state in reports:
            w.report(job, "w", index, 1, state)
            if not at_once:
                w.cycle()
        w.cycle()
        assert w.usage("root.default") == {"cpu": 1}
        assert states(w, job, 4)[1:] == expected
        assert ahead_of(w, job) == waiting


def test_the_running_task_has_the_room() -> None:
    """Task 2 is assigned the slot when 1 ends, but the agent has started 3."""
    w = world()
    job = in_chain(w)
    w.hold_acks("n0")
    w.report(job, "w", 1, 1, "succeeded")
    w.cycle()
    assert ahead_of(w, job) == [3, 4, 5]
    w.report(job, "w", 3, 1, "running")
    w.cycle()
    assert ahead_of(w, job) == [2, 4, 5]
    assert states(w, job, 5) == ["succeeded", "succeeded", "assigned", "running", "assigned"]
    w.report(job, "w", 3, 1, "succeeded")
    w.cycle()
    assert ahead_of(w, job) == [4, 5]


def test_slots_of_a_chain_are_several() -> None:
    w = world(cpu=4)
    job = w.submit(stages=array(40))
    w.advance(0.02)
    for index in range(4):
        w.finish(job, "w", index)
    w.advance(0)
    (number,) = w.partition().derived.chains
    assert at_work(w) == [4, 5, 6, 7]
    assert ahead_of(w, job) == list(range(8, 24))
    w.finish(job, "w", 5)
    w.finish(job, "w", 7)
    w.advance(0.01)
    assert at_work(w) == [4, 6, 8, 9]
    assert states(w, job, 11)[4:] == ["running", "succeeded", "running", "succeeded", "running", "running", "assigned"]
    assert {each.slots for each in w.partition().waiting_in(number)} == {4}
    assert w.usage("root.default") == {"cpu": 4}


def test_the_end_of_a_chain_frees_its_slots_one_by_one() -> None:
    w = world(cpu=2)
    job = w.submit(stages=array(6))
    w.advance(0.02)
    w.finish(job, "w", 0)
    w.finish(job, "w", 1)
    w.advance(0)
    assert (at_work(w), ahead_of(w, job)) == ([2, 3], [4, 5])
    other = w.submit(name="other", stages=array(1))
    for index in (2, 3, 4):
        w.advance(0.02)
        assert not w.placements(other)
        w.finish(job, "w", index)
        w.cycle()
    w.advance(0.02)
    assert (at_work(w), w.usage("root.default")) == ([0, 5], {"cpu": 2})


# -- what must hold ----------------------------------------------------------------------------------------------


STEPS = st.lists(
    st.sampled_from(
        [
            *(("advance", seconds) for seconds in (0, 0.001, 0.004, 0.013, 0.05, 0.3, 2)),
            *((action, node) for action in ("drain", "enable", "disable") for node in ("n0", "n1")),
            *((action, job) for action in ("kill", "submit") for job in ("a", "b")),
            *(("scale", tasks) for tasks in (5, 60, 150)),
            *(("restart", ready) for ready in (True, False)),
            ("chain", "100ms"),
            ("chain", 0),
        ]
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([0.001, 0.01, 0.03]))
def test_agents_never_run_more_than_there_are_slots_for(steps: list[tuple[str, Any]], duration: float) -> None:
    """Agents do what the state says: no node runs more tasks than it has slots, and no task runs twice at once."""
    w = world(nodes=2, cpu=3)
    jobs = [w.submit(name="a", stages=array(100, duration=duration, tries=2))]
    w.advance(0.05)
    for action, what in steps:
        if action == "submit":
            jobs.append(w.submit(name=what, stages=array(40, duration=duration)))
        elif action == "scale":
            w.scale(jobs[0], "w", what)
        elif action == "chain":
            w.configure({"chain": what})
        else:
            getattr(w, action)(what)
        w.cycle()
        running = list(w.fleets["default"].at_work())
        for node in ("n0", "n1"):
            assert sum(count(each.indices) for each in running if each.node == node) <= 3
        tasks = [(each.job, index) for each in running for index in indices(each.indices)]
        assert len(tasks) == len(set(tasks))
    for action in (w.mark_ready, lambda: w.enable("n0"), lambda: w.advance(20)):
        action()
    assert all(w.job(job).state in ("succeeded", "killed") for job in jobs)


quick = st.fixed_dictionaries(
    {
        "count": st.integers(5, 30),
        "min": st.just(1),
        "cpu": st.integers(1, 2),
        "duration": st.sampled_from([1, 2]),
        "queue": st.sampled_from(["root.a", "root.b"]),
    },
    optional={
        "on_loss": st.sampled_from(["replace", "restart", "fail"]),
        "tries": st.integers(1, 2),
        "user": st.sampled_from(["ann", "bob"]),
    },
)


@settings(max_examples=60)
@given(
    steps(
        submit(quick), submit(quick), submit(documents), finish, kill, scale, limit, trouble, management, advance,
        advance, advance, restart, broken(quick),
    ),
    st.sampled_from(["5s", "20s"]),
)  # fmt: skip
def test_no_overcommit_under_any_trouble(drawn: list[Step], chain: str) -> None:
    Play(chain=chain).run(drawn)


def test_a_chain_that_lost_a_slot_is_noticed() -> None:
    w = world()
    in_chain(w)
    partition = w.partition()
    (chain,) = partition.derived.chains.values()
    next(each for each in chain.values() if each.slots).slots = 2
    with pytest.raises(InvariantBroken, match="has 1 slots, and 2 for"):
        check_all(partition)


def test_a_cycle_with_chains_can_be_taken_back() -> None:
    w = world()
    job = w.submit(stages=array(10))
    w.advance(0.02)
    w.finish(job, "w", 0)
    commands = [each[1] for each in w._queue if isinstance(each, tuple)]
    partition = w.partition()
    before = dump(partition)
    decided = cycle.run(partition, commands, w.now)
    assert partition.derived.chains
    decided.plan.abandon()
    assert dump(partition) == before and not partition.derived.chains
    check_all(partition)


@pytest.mark.parametrize(
    ("known", "sample", "expected"),
    [
        (None, 1_000, 1_000),
        (None, 50_000, 50_000),
        (None, 50_001, None),
        (1_000, 1_500, 1_000),
        (1_000, 1_501, 1_250),
        (1_000, 667, 1_000),
        (1_000, 600, 800),
        (1_000, 60_000, 30_500),
        (1_000, 99_000, 50_000),
        (1_000, 10**9, None),
        (30_000, 80_000, None),
        (1, 1, 1),
    ],
)
def test_what_is_measured(known: int | None, sample: int, expected: int | None) -> None:
    assert measured(known, sample, 100_000) == expected


@pytest.mark.parametrize(
    ("ran", "chain", "expected"),
    [
        (None, 100_000, 0),
        (1_000, 0, 0),
        (1_000, 100_000, 99),
        (50_000, 100_000, 1),
        (50_001, 100_000, 0),
        (1, 100_000, MAX_CHAIN - 1),
    ],
)
def test_how_many_are_sent_ahead(ran: int | None, chain: int, expected: int) -> None:
    assert ahead(ran, chain) == expected
