"""Small worlds and their expected outcome: gangs, launches and losses, lanes, keys. Many were bugs once."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, Kill, MarkReady, Rejected, Report, ReportState, Submit
from fairlead.core.documents import parse_job
from fairlead.core.effects import ForNode
from fairlead.core.errors import Refused
from fairlead.core.resources import SECOND
from fairlead.core.why.obstacles import TooSmall
from fairlead.core.why.reasons import NeverFits, NoCapacity, OverLimit
from fairlead.journal.in_memory import MemoryJournal
from fairlead.testing import World


def world(nodes: int = 2, cpu: int = 4, **config: Any) -> World:
    w = World(config)
    w.nodes(nodes, cpu=cpu)
    w.cycle()
    return w


def stage(count: int, cpu: float = 1, **rest: Any) -> list[dict[str, Any]]:
    return [{"name": "w", "count": count, "resources": {"cpu": cpu}, **rest}]


def states(w: World, job: str, count: int) -> list[str]:
    return [w.task(job, "w", index).state for index in range(count)]


# -- gangs -------------------------------------------------------------------------------------------------------


def test_a_gang_starts_whole_or_not_at_all() -> None:
    w = world(nodes=2, cpu=4)
    other = w.submit(stages=stage(1))
    w.cycle()
    gang = w.submit(stages=stage(8))
    w.cycle()
    assert w.placements(gang) == {}
    w.finish(other)
    w.cycle()
    assert len(w.placements(gang)) == 8


def test_min_starts_together_and_the_rest_as_room_comes() -> None:
    w = world(nodes=1, cpu=4)
    job = w.submit(stages=stage(6, min=4, duration=10))
    w.cycle()
    assert len(w.placements(job)) == 4
    w.advance(11)  # the first four ended; the last two start without a minimum of four
    assert len(w.placements(job)) == 2
    w.advance(11)
    assert w.job(job).state == "succeeded"


def test_a_refused_launch_takes_the_gang_back_whole() -> None:
    w = world(nodes=2, cpu=4)
    w.refuse_launches("n1")
    gang = w.submit(stages=stage(8))
    w.advance(0)
    assert w.placements(gang) == {}
    assert w.job(gang).state == "pending"
    assert w.job(gang).waiting_since == 0
    w.return_node("n1")
    w.advance(5)
    assert states(w, gang, 8) == ["running"] * 8
    assert w.task(gang, "w", 7).attempt == 2


def test_partial_failure_only_the_refused_tasks_of_an_array_return() -> None:
    w = world(nodes=2, cpu=4)
    w.refuse_launches("n1")
    job = w.submit(stages=stage(8, min=1))
    w.cycle()
    w.cycle()
    assert sorted(states(w, job, 8)) == ["pending"] * 4 + ["running"] * 4


def test_launch_timeout_an_unacknowledged_launch_is_taken_back() -> None:
    w = world(nodes=2, cpu=4, launch_timeout="60s")
    w.hold_acks("n0")
    job = w.submit(stages=stage(1))
    w.cycle()
    assert w.placements(job) == {("w", 0): "n0"}
    w.advance(59)
    assert w.task(job, "w", 0).state == "assigned"
    w.advance(2)
    assert w.placements(job) == {("w", 0): "n1"}  # the silent node is left alone for a while
    assert w.task(job, "w", 0).attempt == 2


def test_a_task_that_cannot_be_launched_fails_in_the_end() -> None:
    w = world(nodes=1, max_launch_tries=3, launch_timeout="10s")
    w.hold_acks("n0")
    job = w.submit(stages=stage(1))
    w.advance(60)
    assert w.job(job).state == "failed"
    assert w.task(job, "w", 0).reason == "the launch was not acknowledged within 10s"


def test_a_refused_launch_costs_the_task_nothing_and_pauses_the_node() -> None:
    """A node that is out of processes or descriptors says so: that is no fault of the tasks."""
    w = world(nodes=1, cpu=8, max_launch_tries=1)
    w.refuse_launches("n0")
    jobs = [w.submit(stages=stage(1)) for _ in range(8)]
    w.advance(0)
    nodes = w.partition().nodes
    assert nodes.failures == [8] and list(nodes.avoided.values()) == [w.now + SECOND], "one pause for all of them"
    w.advance(1)
    assert nodes.failures == [16] and list(nodes.avoided.values()) == [w.now + 2 * SECOND]
    w.advance(600)
    assert [w.job(job).state for job in jobs] == ["pending"] * 8
    assert w.task(jobs[0], "w", 0).attempt < 15
    w.fleets["default"].accept_launches("n0")
    w.advance(300)
    assert [w.job(job).state for job in jobs] == ["running"] * 8
    assert w.task(jobs[0], "w", 0).tries_used == 0


def test_one_that_failed_before_all_were_acknowledged_waits_with_the_gang() -> None:
    w = world(nodes=2, cpu=2)
    w.hold_acks("n1")
    gang = w.submit(stages=stage(4, tries=2))
    w.cycle()
    w.cycle()
    w.finish(gang, "w", 0, exit_code=1)
    w.remove_node("n1")
    w.advance(5)
    assert states(w, gang, 4) == ["pending"] * 4  # not the failed one alone, which there is room for
    w.node("n2", cpu=2)
    w.advance(1)
    assert states(w, gang, 4) == ["running"] * 4


def test_one_over_its_time_limit_waits_with_a_gang_that_was_taken_back() -> None:
    w = world(nodes=2, cpu=1, lease="20s", heartbeat="1s")
    w.hold_acks("n1")
    gang = w.submit(stages=stage(2, time_limit="10s", tries=2, on_loss="restart"))
    w.advance(0)
    w.silence("n0")
    w.advance(5)
    w.release_acks("n1")
    w.advance(6)
    assert states(w, gang, 2) == ["stopping", "running"]
    w.fail_node("n1")
    w.advance(30)
    assert states(w, gang, 2) == ["pending"] * 2
    w.node("n2", cpu=1)
    w.advance(5)
    assert states(w, gang, 2) == ["pending"] * 2
    w.node("n3", cpu=1)
    w.advance(5)
    assert states(w, gang, 2) == ["running"] * 2


def test_a_node_lost_before_all_were_acknowledged_takes_the_gang_back() -> None:
    w = world(nodes=2, cpu=4)
    w.hold_acks("n1")
    gang = w.submit(stages=stage(8))
    w.cycle()
    w.cycle()
    assert states(w, gang, 8) == ["running"] * 4 + ["assigned"] * 4
    w.fail_node("n1")
    w.advance(0)
    assert states(w, gang, 8) == ["pending"] * 8


@pytest.mark.parametrize(
    ("on_loss", "expected"),
    [("replace", ["running"] * 4 + ["pending"] * 4), ("restart", ["pending"] * 8), ("fail", ["killed"] * 4)],
)
def test_a_lost_node(on_loss: str, expected: list[str]) -> None:
    w = world(nodes=2, cpu=4)
    gang = w.submit(stages=stage(8, on_loss=on_loss))
    w.advance(0)
    w.fail_node("n1")
    w.advance(1)
    assert states(w, gang, len(expected)) == expected
    assert w.job(gang).state == {"replace": "running", "restart": "pending", "fail": "failed"}[on_loss]


def test_restart_waits_until_all_have_stopped() -> None:
    w = world(nodes=3, cpu=4)
    gang = w.submit(stages=stage(8, on_loss="restart"))
    w.advance(0)
    w.fail_node("n1")
    w.cycle()
    assert "assigned" not in states(w, gang, 8)
    w.advance(1)
    assert states(w, gang, 8) == ["running"] * 8
    assert {w.task(gang, "w", index).attempt for index in range(8)} == {2}


def test_a_stage_short_for_too_long_is_taken_back_whole() -> None:
    w = world(nodes=2, cpu=4, replace_within="5min")
    gang = w.submit(stages=stage(8, on_loss="replace"))
    w.advance(0)
    w.fail_node("n1")
    w.advance(299)
    assert states(w, gang, 8) == ["running"] * 4 + ["pending"] * 4
    w.advance(2)
    assert states(w, gang, 8) == ["pending"] * 8
    assert w.job(gang).waiting_since == 0
    w.restart()
    w.return_node("n1")
    w.advance(1)
    assert states(w, gang, 8) == ["running"] * 8


def test_a_short_stage_of_a_job_that_ended_is_forgotten_with_it() -> None:
    w = world(nodes=2, cpu=4, replace_within="10s", keep_ended="1s")
    gang = w.submit(stages=stage(8, on_loss="replace"))
    w.advance(0)
    w.fail_node("n1")
    w.advance(1)
    w.kill(gang)
    w.advance(60)
    assert gang not in w.partition().jobs


@pytest.mark.parametrize(("on_loss", "first"), [("restart", "running"), ("replace", "succeeded")])
def test_a_gang_of_which_some_succeeded_starts_without_them_only_if_its_tasks_are_replaced(
    on_loss: str, first: str
) -> None:
    w = world(nodes=4, cpu=1, replace_within="10s")
    gang = w.submit(stages=stage(3, on_loss=on_loss))
    w.advance(0)
    w.finish(gang, "w", 0)
    w.fail_node(w.placements(gang)["w", 2])
    w.remove_node("n0")
    w.advance(60)
    w.nodes(2, prefix="new", cpu=1)
    w.advance(1)
    assert states(w, gang, 3) == [first, "running", "running"]


def test_a_stage_that_waits_to_grow_is_not_short() -> None:
    w = world(nodes=1, cpu=4, replace_within="10s")
    gang = w.submit(stages=stage(4))
    w.advance(0)
    w.scale(gang, "w", 6)
    w.advance(60)
    assert states(w, gang, 6) == ["running"] * 4 + ["pending"] * 2


def test_one_that_cannot_be_launched_takes_a_partial_gang_back() -> None:
    w = world(nodes=2, cpu=2, max_launch_tries=1, launch_timeout="10s")
    w.hold_acks("n1")
    gang = w.submit(stages=stage(4, min=3))
    w.advance(10)
    w.release_acks("n1")
    w.advance(5)
    assert states(w, gang, 4) == ["running", "running", "failed", "running"]
    assert [w.task(gang, "w", index).attempt for index in (0, 1)] == [2, 2]


def test_an_agent_that_starts_a_task_too_late_is_told_to_stop() -> None:
    w = world(nodes=2, cpu=1, launch_timeout="10s")
    w.hold_acks("n0")
    job = w.submit(stages=stage(1))
    w.advance(11)
    assert w.placements(job) == {("w", 0): "n1"}
    w.effects()
    w.release_acks("n0")
    w.advance(1)
    stops = [stop for effect in w.effects() if isinstance(effect, ForNode) for stop in effect.stops]
    assert [(stop.attempt, stop.cause) for stop in stops] == [(1, "stale")]
    assert (w.task(job, "w", 0).state, w.task(job, "w", 0).attempt) == ("running", 2)


def test_a_shorter_launch_timeout_reaches_launches_under_way() -> None:
    w = world(nodes=2, cpu=1, launch_timeout="1h")
    w.hold_acks("n0")
    job = w.submit(stages=stage(1))
    w.cycle()
    w.configure({"launch_timeout": "10s"})
    w.advance(11)
    assert w.placements(job) == {("w", 0): "n1"}


def test_the_clocks_of_silence_start_again_at_ready() -> None:
    w = world(nodes=2, cpu=1, launch_timeout="10s", ready_after="1h")
    w.hold_acks("n0")
    job = w.submit(stages=stage(1))
    w.cycle()
    w.restart(ready=False)
    w.advance(100)
    w.mark_ready()
    w.advance(9)
    assert w.placements(job) == {("w", 0): "n0"}
    w.advance(2)
    assert w.placements(job) == {("w", 0): "n1"}


def test_a_time_limit_stops_the_task() -> None:
    w = world()
    job = w.submit(stages=stage(1, time_limit="30s"))
    w.advance(29)
    assert w.task(job, "w", 0).state == "running"
    w.advance(2)
    assert (w.job(job).state, w.task(job, "w", 0).reason) == ("failed", "time limit of 30s")


@pytest.mark.parametrize(("ran", "left"), [(0, 10), (2, 8), (1_000, 7)])  # never longer than since it was placed
def test_a_time_limit_counts_from_when_the_task_began(ran: float, left: int) -> None:
    w = world(nodes=1)
    w.hold_acks("n0")
    job = w.submit(stages=stage(1, time_limit="10s"))
    w.cycle()
    w.advance(3)
    w.report(job, "w", 0, 1, "running", ran=ran)
    w.cycle()
    w.advance(left - 1)
    assert states(w, job, 1) == ["running"]
    w.advance(1)
    assert states(w, job, 1) != ["running"]


def test_tries_are_a_budget_and_attempts_grow() -> None:
    w = world()
    job = w.submit(stages=stage(1, tries=3))
    w.advance(0)
    for attempt in (1, 2, 3):
        assert w.task(job, "w", 0).attempt == attempt
        w.finish(job, "w", 0, exit_code=2)
        w.advance(0)
    assert w.job(job).state == "failed"
    assert w.task(job, "w", 0).tries_used == 3


def test_a_task_scaled_away_and_back_is_never_the_same_attempt() -> None:
    w = world()
    job = w.submit(stages=stage(2, min=1))
    w.advance(0)
    w.scale(job, "w", 1)
    w.advance(0)
    w.scale(job, "w", 2)
    w.advance(0)
    assert [w.task(job, "w", index).attempt for index in (0, 1)] == [1, 2]


def test_a_scale_up_while_the_old_task_still_stops_waits_for_it() -> None:
    w = world()
    job = w.submit(stages=stage(2, min=1))
    w.advance(0)
    w.scale(job, "w", 1)
    w.scale(job, "w", 2)
    w.cycle()
    assert w.task(job, "w", 1).state == "stopping"
    w.advance(0)
    assert (w.task(job, "w", 1).state, w.task(job, "w", 1).attempt) == ("running", 2)


def test_one_refusal_does_not_hold_up_the_rest_of_an_array() -> None:
    w = World()
    w.node("n1", cpu=3)
    w.node("n2", cpu=1)
    w.refuse_launches("n2")
    job = w.submit(stages=stage(4, min=1))
    w.advance(0)
    w.node("n3", cpu=4)
    w.advance(1)
    assert states(w, job, 4) == ["running"] * 4


def test_those_added_to_the_minimum_go_back_with_it() -> None:
    w = World()
    w.node("n1", cpu=1)
    w.node("n2", cpu=1)
    w.node("n3", cpu=3)
    w.refuse_launches("n2")
    job = w.submit(stages=stage(5, min=2))
    w.advance(0)
    w.return_node("n2")
    w.advance(5)
    assert states(w, job, 5) == ["running"] * 5


def test_a_strict_scale_up_is_never_launched_in_part() -> None:
    w = world(nodes=2, cpu=1)
    job = w.submit(stages=stage(2))
    w.advance(0)
    w.nodes(3, prefix="m", cpu=1)
    w.refuse_launches("m1")
    w.scale(job, "w", 4)
    for _ in range(4):
        w.cycle()
        added = [w.task(job, "w", index).state in ("assigned", "running") for index in (2, 3)]
        assert added[0] == added[1]
    w.advance(5)
    assert states(w, job, 4) == ["running"] * 4


def test_a_scaled_gang_restarts_as_one() -> None:
    w = world(nodes=4, cpu=1)
    job = w.submit(stages=stage(2, on_loss="restart"))
    w.advance(0)
    w.scale(job, "w", 4)
    w.advance(0)
    w.fail_node("n0")
    w.advance(5)
    assert states(w, job, 4) == ["pending"] * 4
    w.node("n9", cpu=1)
    w.advance(1)
    assert states(w, job, 4) == ["running"] * 4


def test_a_gang_that_waits_for_its_own_stops_does_not_block_its_lane() -> None:
    w = world(nodes=3, cpu=1, lease="1h")
    gang = w.submit(stages=stage(2, on_loss="restart"))
    w.advance(0)
    w.silence("n1")
    w.fail_node("n0")
    w.cycle()
    other = w.submit(name="other", stages=stage(1))
    w.cycle()
    assert list(w.placements(other).values()) == ["n2"]
    assert gang


def test_launch_tries_count_across_a_gang_that_is_taken_back() -> None:
    w = world(nodes=2, cpu=1, max_launch_tries=3, launch_timeout="10s")
    w.hold_acks("n0")
    w.hold_acks("n1")
    gang = w.submit(stages=stage(2))
    w.advance(600)
    assert w.job(gang).state == "failed"


def test_a_drained_node_that_was_lost_comes_back_drained() -> None:
    w = world(nodes=1)
    w.drain("n0")
    w.cycle()
    w.fail_node("n0")
    w.cycle()
    w.restart()
    w.return_node("n0")
    w.cycle()
    nodes = w.partition().nodes
    assert nodes.state[nodes.rows[nodes.joins["n0"]]] == "draining"


def test_what_runs_on_a_removed_node_is_told_to_stop() -> None:
    w = world(nodes=1)
    w.submit(stages=stage(1))
    w.advance(0)
    w.effects()
    w.remove_node("n0")
    w.cycle()
    stops = [stop for effect in w.effects() if isinstance(effect, ForNode) for stop in effect.stops]
    assert [(stop.job, stop.attempt) for stop in stops] == [("job", 1)]


# -- lanes and limits --------------------------------------------------------------------------------------------


def test_the_first_head_over_all_lanes_of_a_queue_goes_first() -> None:
    w = world(nodes=1, cpu=4)
    filler = w.submit(stages=stage(4))
    w.cycle()
    late = w.submit(name="late", stages=stage(1, cpu=1))
    urgent = w.submit(name="urgent", stages=stage(1, cpu=4), priority=5)
    w.cycle()
    w.finish(filler)
    w.cycle()
    assert (w.placements(urgent) != {}, w.placements(late)) == (True, {})


def test_a_head_without_room_holds_up_its_own_lane_only() -> None:
    w = world(nodes=1, cpu=4)
    big = w.submit(name="big", stages=stage(5, cpu=1, min=4))
    w.cycle()
    behind = w.submit(name="behind", stages=stage(1, cpu=1))
    beside = w.submit(name="beside", stages=stage(1, cpu=0))
    w.cycle()
    assert len(w.placements(big)) == 4
    assert w.placements(behind) == {}
    assert len(w.placements(beside)) == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_head_without_room_that_is_now_over_its_limit_does_not_block_its_lane(at_once: bool) -> None:
    w = World({"backfill": "off"})
    w.queue("root.a", limit={"cpu": 4})
    w.node("n0", cpu=3)
    w.node("n1", cpu=2)
    w.drain("n1")
    gang = w.submit(name="gang", queue="root.a", stages=stage(2, cpu=2))
    behind = w.submit(name="behind", queue="root.a", stages=stage(1, cpu=2))
    if not at_once:
        w.cycle()
        assert w.placements(behind) == {}
    beside = w.submit(name="beside", queue="root.a", stages=stage(1, cpu=1))
    w.cycle()
    assert (w.placements(gang), len(w.placements(beside)), len(w.placements(behind))) == ({}, 1, 1)


def test_under_fair_a_job_that_started_elsewhere_gives_its_place_at_once() -> None:
    w = World()
    w.queue("root.a", order="fair")
    w.node("n0", cpu=3)
    w.node("n1", cpu=2)
    w.drain("n1")
    stages = [
        {"name": name, "count": count, "resources": {"cpu": count}} for name, count in (("large", 2), ("small", 1))
    ]
    two = w.submit(name="two", queue="root.a", stages=stages)
    one = w.submit(name="one", queue="root.a", stages=stage(1, cpu=2))
    w.cycle()
    assert (list(w.placements(two)), len(w.placements(one))) == ([("small", 0)], 1)


def test_a_head_that_is_not_allowed_is_passed_over_and_keeps_its_place() -> None:
    w = World()
    w.queue("root.a", users={"ann": {"limit": {"cpu": 1}}})
    w.nodes(1, cpu=4)
    first = w.submit(name="first", queue="root.a", user="ann", stages=stage(2, cpu=1))
    second = w.submit(name="second", queue="root.a", user="bob", stages=stage(1, cpu=1))
    w.cycle()
    assert (w.placements(first), len(w.placements(second))) == ({}, 1)
    assert isinstance(w.explain(first)[0].reason, OverLimit)
    assert w.explain(first)[0].position == 0
    w.queue("root.a")
    w.cycle()
    assert len(w.placements(first)) == 2


def test_a_job_that_never_fits_has_another_reason_than_one_without_room() -> None:
    w = world(nodes=2, cpu=4)
    filler = w.submit(name="filler", stages=stage(4, cpu=1, min=1))
    w.cycle()
    huge = w.submit(name="huge", stages=stage(1, cpu=5))
    many = w.submit(name="many", stages=stage(9, cpu=1))
    now = w.submit(name="now", stages=stage(2, cpu=4))
    w.cycle()
    assert w.explain(huge)[0].reason == NeverFits(1, 0, obstacles=(TooSmall("cpu", 5000, 4000, "n0"),))
    reason = w.explain(many)[0].reason
    assert isinstance(reason, NeverFits) and (reason.wanted, reason.most) == (9, 8)
    failed = (("missing cpu", 1), ("not for all", 1))
    free = {"lacks": "cpu", "asked": 4000, "free": (("n1", 1),), "free_nodes": 1, "unused": 4000, "largest": 4000}
    assert w.explain(now)[0].reason == NoCapacity(2, 1, failed, "n0", taking=2, nodes=2, **free)  # type: ignore[arg-type]
    w.node("n2", cpu=8)
    w.cycle()
    assert len(w.placements(huge)) == 1
    assert filler


def test_a_gang_is_not_called_too_large_because_a_single_was_looked_at_first() -> None:
    w = world(nodes=1, cpu=4)
    first = w.submit(name="first", stages=stage(4))
    w.cycle()
    single = w.submit(name="single", stages=stage(1))
    w.cycle()
    assert isinstance(w.explain(single)[0].reason, NoCapacity)
    w.kill(single)
    gang = w.submit(name="gang", stages=stage(4))
    w.advance(1)
    assert isinstance(w.explain(gang)[0].reason, NoCapacity)
    w.finish(first)
    w.advance(1)
    assert len(w.placements(gang)) == 4


def test_where_a_job_lands_does_not_depend_on_what_was_there_before() -> None:
    placed = []
    for restart in (False, True):
        w = World({"keep_ended": "1s"})
        w.node("n0", cpu=8, memory="8Gi")
        w.node("n1", cpu=6, memory="16Gi")
        odd = w.submit(name="odd", stages=[{"name": "w", "resources": {"cpu": 7, "memory": "3Gi"}, "duration": 1}])
        w.advance(10)
        assert odd not in w.partition().jobs
        if restart:
            w.restart()
        job = w.submit(name="next", stages=stage(1))
        w.cycle()
        placed.append(w.placements(job))
    assert placed[0] == placed[1]


def test_a_lane_does_not_grow_with_what_passed_through_it() -> None:
    w = World()
    w.queue("root.a", users={"ann": {"limit": {"cpu": 0}}})
    w.nodes(1, cpu=4)
    w.submit(name="parked", queue="root.a", user="ann", priority=9, stages=stage(1))
    for number in range(200):
        w.submit(name=f"j{number}", queue="root.a", user="bob", stages=stage(1, duration=1))
        w.advance(2)
    (lane,) = w.partition().lanes.values()
    assert lane.size == 1
    assert lane._entries < 50


def test_fair_gives_the_turn_to_the_job_with_fewest_running_also_after_a_restart() -> None:
    w = World()
    w.queue("root.a", order="fair")
    w.node("n0", cpu=2)
    many = w.submit(name="many", queue="root.a", stages=stage(100, min=1))
    few = w.submit(name="few", queue="root.a", stages=stage(3, min=1))
    w.cycle()
    assert (len(w.placements(many)), len(w.placements(few))) == (1, 1)
    w.restart()
    w.node("n1", cpu=4)
    w.cycle()
    assert (len(w.placements(many)), len(w.placements(few))) == (3, 3)


def test_fair_starts_many_at_once_only_where_no_other_job_waits_also_asleep() -> None:
    outcomes = []
    for restart in (False, True):
        w = World()
        w.queue("root.a", order="fair")
        w.node("n0", cpu=3)
        w.submit(name="half", queue="root.a", stages=stage(2, cpu=2, min=1))
        w.advance(0)
        if restart:
            w.restart()
        w.submit(name="many", queue="root.a", stages=stage(2, cpu=0.5, min=1))
        w.cycle()
        outcomes.append((w.effects(), w.dump()))
    assert outcomes[0] == outcomes[1]


def test_pack_fills_a_node_before_it_opens_another_and_spares_gpus() -> None:
    w = World()
    w.node("gpu", cpu=4, gpu=2)
    w.node("plain", cpu=4)
    w.node("spare", cpu=4)
    first = w.submit(name="first", stages=stage(1))
    w.cycle()
    second = w.submit(name="second", stages=stage(1))
    part = w.submit(name="part", stages=[{"name": "w", "count": 2, "resources": {"gpu": "0.5"}}])
    w.cycle()
    assert set(w.placements(first).values()) | set(w.placements(second).values()) == {"plain"}
    assert [w.task(part, "w", index).devices for index in (0, 1)] == [(0,), (0,)]


# -- callers -----------------------------------------------------------------------------------------------------


def test_the_same_key_again_is_the_same_job() -> None:
    w = world()
    first = w.submit(name="job", key="k", stages=stage(1))
    again = w.submit(name="job", key="k", stages=stage(1))
    other = w.submit(name="job", key="k", stages=stage(2))
    w.cycle()
    assert first == again == other
    one, two, three = w.answers()[-3:]
    assert one == two == Accepted(job=first)
    assert isinstance(three, Rejected)
    assert three.code == "conflict"


def test_a_key_on_a_kill_is_not_the_jobs_own() -> None:
    w = world()
    job = w.submit(key="k", stages=stage(1))
    w.cycle()
    w._send("default", Kill(job=job, user="user", key="other"))
    w.advance(1)
    assert w.job(job).state == "killed"
    assert w.partition().derived.key_of[job] == ("user", "k")


def test_ready_takes_effect_again_after_a_restart_whatever_its_key() -> None:
    w = world()
    for _ in range(2):
        w._send("default", MarkReady(operator=True, key="k"))
        w.cycle()
        assert w.partition().readiness.ready
        w.restart(ready=False)


def test_nothing_is_placed_before_ready() -> None:
    w = world(ready_after="30s")
    w.restart(ready=False)
    job = w.submit(stages=stage(1))
    w.advance(29)
    assert w.placements(job) == {}
    w.mark_ready()
    w.cycle()
    assert len(w.placements(job)) == 1


def test_readiness_does_not_wait_for_ever() -> None:
    w = world(ready_after="30s")
    w.restart(ready=False)
    job = w.submit(stages=stage(1))
    w.advance(31)
    assert len(w.placements(job)) == 1


def test_a_stale_report_ends_nothing() -> None:
    w = world()
    job = w.submit(stages=stage(1, tries=2, duration=100))
    w.advance(0)
    w.finish(job, exit_code=1)
    w.advance(0)
    w.report(job, "w", 0, attempt=1, state="succeeded", node="n0")
    w.advance(0)
    assert (w.task(job, "w", 0).state, w.task(job, "w", 0).attempt) == ("running", 2)
    w.advance(101)
    assert w.job(job).state == "succeeded"


def test_a_report_of_an_attempt_that_the_journal_never_had_is_an_alarm() -> None:
    w = world()
    job = w.submit(stages=stage(1))
    w.advance(0)
    w.report(job, "w", 0, attempt=7, state="running")
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Rejected)
    assert answer.code == "alarm"
    assert w.task(job, "w", 0).state == "running"


@pytest.mark.parametrize("state", ["running", "succeeded", "failed", "lost"])
@pytest.mark.parametrize("indices", [(1, 2), (0, 2)], ids=["alone", "behind one of its own"])
def test_a_report_of_another_nodes_task_is_refused(state: ReportState, indices: tuple[int, ...]) -> None:
    w = world(cpu=1)
    job = w.submit(stages=stage(2, min=1, duration=100))
    w.advance(0)
    assert w.placements(job) == {("w", 0): "n0", ("w", 1): "n1"}
    w._send("default", Report(node="n0", job=job, stage="w", indices=indices, attempt=1, state=state))
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Rejected) and answer.code == "foreign"
    assert answer.problem.startswith(f"attempt 1 of {job} w[1] was given to node n1, not to n0;")
    assert states(w, job, 2) == ["running", "running"]


def test_a_report_of_which_a_part_is_stale_says_so() -> None:
    w = world(cpu=2)
    job = w.submit(stages=stage(2, min=1, duration=100))
    w.advance(0)
    for indices, note in (((0, 1), ""), ((0, 2), "stale: 1 of 2 tasks are not live under this attempt")):
        w._send("default", Report(node="n0", job=job, stage="w", indices=indices, attempt=1, state="succeeded"))
        w.cycle()
        answer = w.answers()[-1]
        assert isinstance(answer, Accepted) and answer.note == note


def test_members_of_a_gang_that_are_lost_together_before_all_have_started_wait_together() -> None:
    w = world(cpu=2)
    for node in ("n0", "n1"):
        w.hold_acks(node)
    job = w.submit(stages=stage(4, tries=5))
    w.cycle()
    assert w.placements(job) == {("w", 0): "n0", ("w", 1): "n0", ("w", 2): "n1", ("w", 3): "n1"}
    # Two reports split one allocation in two, and a later report covers both.
    for index in (0, 1):
        w.report(job, "w", index, attempt=1, state="running")
        w.cycle()
    w._send("default", Report(node="n0", job=job, stage="w", indices=(0, 2), attempt=1, state="lost"))
    w.cycle()
    assert states(w, job, 4)[:2] == ["pending", "pending"]


def test_an_agent_that_knows_jobs_this_journal_never_had_is_an_alarm() -> None:
    w = world()
    w._send("default", Report(node="n0", job="x", stage="w", indices=(0, 1), attempt=3, state="running", number=4711))
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Rejected)
    assert answer.code == "alarm"
    assert w.effects() == []


def test_an_id_is_free_again_when_its_job_and_key_are_forgotten() -> None:
    w = world(keep_ended="10s", keep_keys="20s")
    spec = parse_job({"stages": stage(1)})
    for key in ("k", "", ""):
        w._send("default", Submit(spec=spec, id="a", user="anonymous", key=key))
        w.advance(1)
        w.finish("a")
        w.advance(40)
        assert "a" not in w.partition().jobs
    assert w.partition().derived.key_of == {}


def test_a_job_that_others_come_after_is_kept_until_they_are_over() -> None:
    w = world(nodes=1, cpu=1, keep_ended="0s")
    first = w.submit(name="first", stages=stage(1, duration=1))
    blocker = w.submit(name="blocker", stages=stage(1, duration=50))
    last = w.submit(name="last", stages=stage(1), after=[first, blocker])
    w.advance(10)
    assert first in w.partition().jobs
    w.kill(last)
    w.advance(1)
    assert first not in w.partition().jobs


def test_a_draining_queue_is_kept_only_by_the_configuration() -> None:
    w = World()
    w.queue("root.a")
    w.nodes(1, cpu=1)
    job = w.submit(queue="root.a", stages=stage(1))
    w.cycle()
    w.configure({"queues": {"root": {"b": {}}}})
    w.start_queue("root.a")
    w.cycle()
    assert str(w.answers()[-1]).startswith("queue: root.a left the configuration")
    w.finish(job)
    w.cycle()
    assert "root.a" not in w.partition().queues
    assert w.job(job).state == "succeeded"


def test_odd_calls_of_a_world_are_refused_and_leave_it_as_it_was() -> None:
    w = world()
    job = w.submit(stages=stage(2))
    w.cycle()
    for call, problem in [
        (lambda: w.advance(-1), "the clock cannot move by -1 s"),
        (lambda: w.task(job, "w", 2), "has no task 2; it has 2"),
        (lambda: w.fail_node("zz"), "there is no node zz"),
        (lambda: w.usage("root.zz"), "there is no queue root.zz"),
        (lambda: w.submit(stages={"count": 1}), "stages: a mapping is one stage"),  # type: ignore[arg-type]
    ]:
        with pytest.raises((KeyError, ValueError, Refused), match=problem):
            call()
    w.advance(1)
    assert w.job(job).state == "running"


def test_a_world_goes_on_with_a_used_journal() -> None:
    journal = MemoryJournal()
    first = World(journal=journal)
    first.nodes(1, cpu=1)
    first.advance(10)
    job = first.submit(stages=stage(1))
    first.advance(0)
    assert World(journal=journal).job(job).state == "running"


@pytest.mark.parametrize("written", [False, True])
def test_an_unknown_outcome_is_settled_by_the_journal(written: bool) -> None:
    w = world()
    w.break_journal("unknown", written)
    job = w.submit(stages=stage(1))
    w.cycle()
    assert (job in w.partition().jobs) == written
    w.advance(1)
    if written:
        assert w.task(job, "w", 0).state == "running"


def test_a_reset_that_cancels_spares_the_other_kinds() -> None:
    w = world(nodes=1, cpu=2)
    job = w.submit(stages=stage(3, min=1, tries=2))
    w.advance(0)
    w.drain("n0")
    w.finish(job, "w", 0, exit_code=1)
    w.advance(0)
    w.reset_lane("root.default", job, cancel=True)
    w.advance(0)
    assert states(w, job, 3) == ["killed", "running", "pending"]


# -- resource managers -------------------------------------------------------------------------------------------


def managed() -> World:
    w = World()
    w.rm("k8s").register()
    w.rm("k8s").update(
        nodes=[{"name": "m0", "resources": {"cpu": 2}}], jobs=[{"job": "app", "user": "ann", "queue": "root.default"}]
    )
    w.cycle()
    return w


def add_ask(name: str, count: int) -> dict[str, Any]:
    return {"job": "app", "ask": name, "count": count, "min": 1, "resources": {"cpu": 1}}


def test_a_manager_asks_gets_events_and_releases() -> None:
    w = managed()
    rm = w.rm("k8s")
    rm.events()
    rm.update(asks=[add_ask("x", 3)])
    w.cycle()
    events = [(event.what, event.indices, event.node) for event in rm.events()]
    assert events == [("accepted", (), ""), ("allocated", (0, 2), "m0")]
    rm.update(releases=[{"job": "app", "ask": "x", "index": 0}])
    w.cycle()
    assert [event.what for event in rm.events()] == ["accepted", "released", "allocated"]


def test_a_recovered_allocation_is_booked_above_limit_and_capacity() -> None:
    w = managed()
    w.queue("root.default", limit={"cpu": 1})
    recover = {"job": "app", "ask": "x", "node": "m0", "resources": {"cpu": 3}}
    w.rm("k8s").update(recover=[recover])
    w.cycle()
    assert w.usage("root.default") == {"cpu": 3}
    nodes = w.partition().nodes
    row = nodes.rows[nodes.joins["m0"]]
    assert nodes.used["cpu"][row] - nodes.capacity["cpu"][row] == 1000
    w.rm("k8s").update(asks=[add_ask("y", 1)])
    w.cycle()
    assert list(w.placements("app")) == [("x", 0)]


def test_a_managers_job_goes_on_when_all_is_released_and_more_is_asked() -> None:
    w = managed()
    w.rm("k8s").update(asks=[add_ask("x", 2)])
    w.cycle()
    w.rm("k8s").update(releases=[{"job": "app"}])
    w.cycle()
    w.rm("k8s").update(asks=[{**add_ask("y", 1), "resources": {"cpu": 8}}])
    w.cycle()
    assert w.job("app").state == "running"


def test_a_manager_recovers_an_index_that_a_smaller_ask_still_stops() -> None:
    w = managed()
    rm = w.rm("k8s")
    rm.update(asks=[add_ask("x", 2)])
    w.cycle()
    rm.update(asks=[add_ask("x", 1)])
    w.cycle()
    rm.update(recover=[{"job": "app", "ask": "x", "node": "m0", "index": 3, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    assert {index for _, index in w.placements("app")} >= {0, 3}


def test_the_head_of_a_manager_does_not_block_other_lanes() -> None:
    w = managed()
    w.node("n0", cpu=4)
    w.rm("k8s").update(asks=[add_ask("x", 3)])
    w.cycle()
    own = w.submit(name="own", stages=stage(1))
    w.cycle()
    assert list(w.placements(own).values()) == ["n0"]


def test_a_managers_lane_and_our_own_of_equal_resources_are_both_shown() -> None:
    w = managed()
    w.node("n0", cpu=2)
    w.rm("k8s").update(asks=[add_ask("x", 3)])
    own = w.submit(name="own", stages=stage(3))
    w.cycle()
    lanes = {shape: [ask.job for ask in lane] for (_, shape), lane in w.lanes().items()}
    assert lanes == {"cpu=1": [own], "cpu=1; nodes of k8s": ["app"]}


def test_a_command_for_an_unknown_partition_disturbs_no_other() -> None:
    w = world()
    good = w.submit(name="good", stages=stage(1))
    w._send("nowhere", Kill(job=good, operator=True))
    w.cycle()
    assert any(str(answer) == "partition: there is no partition nowhere; name one of default" for answer in w.answers())
    assert len(w.placements(good)) == 1


def test_a_node_that_refuses_every_replacement_does_not_keep_a_gang_short_for_ever() -> None:
    w = world(nodes=2, cpu=1, replace_within="10s", max_launch_tries=1000)
    job = w.submit(name="g", stages=stage(2, on_loss="replace"))
    w.cycle()
    w.cycle()
    w.node("bad", cpu=1)
    w.refuse_launches("bad")
    w.fail_node("n1")
    w.advance(9)
    assert w.job(job).state == "running" and w.task(job, "w", 0).state == "running"
    w.advance(1)
    assert w.task(job, "w", 0).state != "running", "short for 10 s, however often a node was asked meanwhile"


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_refused_and_scaled_starts_together(when: str) -> None:
    """A node refused a gang of one, so the gang has not started, whatever count it is scaled to meanwhile."""
    w = World()
    w.node("bad", cpu=1)
    w.cycle()
    w.refuse_launches("bad")
    job = w.submit(stages=[{"name": "w", "count": 1, "resources": {"cpu": 1}}])
    if when == "before":
        w.cycle()
        w.scale(job, "w", 4)
    w.advance(0.5)
    if when == "after":
        w.scale(job, "w", 4)
    w.node("small", cpu=3)
    w.advance(0.1)
    assert not w.placements(job), "three of four are no gang"
    w.node("more", cpu=1)
    w.advance(0.1)
    assert len(w.placements(job)) == 4


def test_a_growth_step_that_was_cancelled_can_be_asked_for_again() -> None:
    w = world(nodes=1, cpu=3)
    job = w.submit(stages=stage(3))
    w.advance(0)
    for _ in range(2):
        w.scale(job, "w", 5)
        w.cycle()
        assert [(ask.kind, ask.count) for lane in w.lanes().values() for ask in lane] == [("scale", 2)]
        w.cancel(job, "w")
        w.cycle()
        assert not w.lanes() and w.partition().jobs[job].stages[0].count == 3
    w.finish(job, "w")
    w.advance(0)
    assert w.job(job).state == "succeeded"


@pytest.mark.parametrize("how", ["silence", "disconnect"])
def test_a_node_that_returns_without_its_tasks_loses_those_that_ended_unheard(how: str) -> None:
    w = world(nodes=1, cpu=1)
    job = w.submit(stages=stage(1, duration=20))
    w.advance(5)
    getattr(w, how)("n0")
    w.advance(30)  # the task ends after 20 s; the node would be lost after a minute
    w.return_node("n0")
    w.advance(100)
    assert w.job(job).state == "succeeded" and w.task(job, "w", 0).attempt == 2
