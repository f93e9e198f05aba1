"""`gang: job`: all stages of a job start together or not at all. Every test runs twice, once with a restart after
each cycle, which must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.why.obstacles import TooFew
from fairlead.core.why.reasons import AfterUnmet, NeverFits, NoCapacity, OverLimit, StillStopping
from fairlead.testing import World
from tests.core.gang_watch import Restarted, WatchedWorld

MakeWorld = Callable[..., World]


@pytest.fixture(params=[WatchedWorld, Restarted], ids=["", "restarted"])
def make(request: pytest.FixtureRequest) -> MakeWorld:
    """A world with some equal nodes."""

    def make(nodes: int = 2, cpu: int = 4, **config: Any) -> World:
        w: World = request.param(config)
        w.nodes(nodes, cpu=cpu)
        w.cycle()
        return w

    return make


def stage(name: str, count: int, cpu: float = 1, **rest: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "resources": {"cpu": cpu}, **rest}


def whole(w: World, *stages: dict[str, Any], name: str = "job", **rest: Any) -> str:
    return w.submit(name=name, stages=stages, gang="job", **rest)


def states(w: World, job: str) -> dict[str, str]:
    """Return the states of the tasks of each stage, by their first letters."""
    found = w.partition().jobs[job].stages
    return {each.name: "".join(w.task(job, each.name, index).state[0] for index in range(each.count)) for each in found}


def lanes(w: World) -> dict[str, list[str]]:
    """Return the asks of each lane."""
    return {shape: [f"{ask.job}/{ask.stage}" for ask in lane] for (_, shape), lane in w.lanes().items()}


def answer(w: World) -> str:
    return str(w.answers()[-1])


# -- starting ----------------------------------------------------------------------------------------------------


def test_all_stages_start_at_once(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    job = whole(w, stage("a", 4), stage("b", 2, cpu=2))
    w.cycle()
    assert states(w, job) == {"a": "aaaa", "b": "aa"}
    assert {allocation.group for allocation in w.partition().allocations.values()} == {1}
    w.cycle()
    assert states(w, job) == {"a": "rrrr", "b": "rr"}
    assert w.job(job).state == "running" and not w.lanes()


def test_all_stages_wait_until_there_is_room_for_all(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    other = w.submit(name="other", stages=[stage("w", 3)])
    w.cycle()
    job = whole(w, stage("a", 4), stage("b", 2, cpu=2))
    for _ in range(3):
        w.cycle()
        assert states(w, job) == {"a": "pppp", "b": "pp"}
    assert w.usage("root.default") == {"cpu": 3}
    w.finish(other)
    w.cycle()
    assert states(w, job) == {"a": "aaaa", "b": "aa"}


@pytest.mark.parametrize("order", [("fits", "lacks"), ("lacks", "fits")])
def test_a_stage_that_fits_does_not_start_without_one_that_does_not(make: MakeWorld, order: tuple[str, str]) -> None:
    w = make(nodes=2, cpu=4)
    w.node("gpu", cpu=4, gpu=1)
    w.submit(name="other", stages=[{"name": "w", "resources": {"gpu": 1}}])
    w.cycle()
    documents = {"fits": stage("fits", 8), "lacks": {"name": "lacks", "resources": {"gpu": 1}}}
    job = whole(w, *(documents[name] for name in order))
    beside = w.submit(name="beside", stages=[stage("w", 2, cpu=4)])  # nothing is kept for the first one
    w.cycle()
    assert not w.placements(job)
    assert len(w.placements(beside)) == 2
    said = {explanation.stage: str(explanation.reason) for explanation in w.explain(job)}
    assert said == dict.fromkeys(order, "0 of 1 lacks tasks fit now: 2 nodes have no GPU; 1 has too few GPUs free")


def test_a_reason_says_what_each_stage_found(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    w.submit(name="other", stages=[stage("w", 2)])
    w.cycle()
    job = whole(w, stage("small", 4), stage("large", 2, cpu=2))
    w.cycle()
    reason = w.explain(job)[0].reason
    assert isinstance(reason, NoCapacity)
    assert str(reason).startswith(
        "2 of 2 large tasks, 2 of 4 small tasks fit now: 2 nodes have capacity, but not for all 6"
    )
    assert (reason.wanted, reason.fitting) == (6, 4)


def test_the_minimum_of_each_stage_starts_together_and_the_rest_as_room_comes(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    job = whole(w, stage("a", 4, min=2), stage("b", 3, min=1))
    w.cycle()
    assert states(w, job) == {"a": "aaap", "b": "app"}
    first, rest = sorted({allocation.group for allocation in w.partition().allocations.values()}, reverse=True)
    assert (first, rest) == (1, 0)
    assert lanes(w) == {"cpu=1": ["job/a", "job/b"]}
    w.node("n1", cpu=4)
    w.advance(1)
    w.cycle()
    assert states(w, job) == {"a": "rrrr", "b": "rrr"}


def test_the_rest_keeps_the_age_of_the_whole(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=2, queues={"root": {"default": {"order": "priority"}}})
    filler = w.submit(name="filler", stages=[stage("w", 2)])
    w.cycle()
    job = whole(w, stage("a", 2, min=1), stage("b", 1))
    w.advance(10)
    late = w.submit(name="late", stages=[stage("w", 1)])
    w.advance(10)
    w.finish(filler)
    w.cycle()
    assert w.lanes()["root.default", "cpu=1"][0].job == job
    assert [ask.waiting_since for ask in w.lanes()["root.default", "cpu=1"]] == [0, 10]
    w.finish(job, "b")
    w.cycle()
    assert (states(w, job)["a"], w.placements(late)) == ("ra", {})


def test_stages_that_are_hard_to_place_go_first(make: MakeWorld) -> None:
    w = World()
    w.node("a", cpu=2, labels={"zone": "a"})
    w.node("b", cpu=4)
    w.node("c", cpu=8, gpu=1)
    job = whole(w, stage("small", 4), stage("zone", 2, selectors={"zone": "a"}), stage("large", 1, cpu=4))
    w.cycle()
    assert len(w.placements(job)) == 7


def test_a_whole_job_is_not_cut_for_max_placed(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=8, max_placed=4)
    first = w.submit(name="first", stages=[stage("w", 2)])
    job = whole(w, stage("a", 3), stage("b", 4))
    w.cycle()
    assert (len(w.placements(first)), w.placements(job)) == (2, {})
    w.cycle()
    assert len(w.placements(job)) == 7


@pytest.mark.parametrize(("other", "starts"), [(1, 2), (0.5, 3)])
def test_a_flood_of_small_whole_jobs_is_no_flood_of_single_tasks(make: MakeWorld, other: float, starts: int) -> None:
    w = make(nodes=1, cpu=5)
    for at in range(20):
        whole(w, stage("a", 1), stage("b", 1, cpu=other), name=f"pair{at}")
    w.cycle()
    assert [len(w.placements(f"pair{at}")) for at in range(20)] == [2] * starts + [0] * (20 - starts)


def test_one_stage_alone_is_an_ordinary_gang(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    one = whole(w, stage("a", 5), name="one")
    w.cycle()
    assert lanes(w) == {"cpu=1": ["one/a"]}
    assert w.explain(one)[0].reason == NeverFits(5, 4, obstacles=(TooFew(1, (("cpu", 1000),)),))


def test_it_asks_when_what_it_comes_after_is_over(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    first = w.submit(name="first", stages=[stage("w", 1, duration=10)])
    job = whole(w, stage("a", 2), stage("b", 2), after=[first])
    w.cycle()
    assert not w.lanes()
    assert [explanation.reason for explanation in w.explain(job)] == [AfterUnmet((first,))] * 2
    w.advance(11)
    assert len(w.placements(job)) == 4


@pytest.mark.parametrize(
    ("on_failure", "expected"), [("restart", {"a": "rr", "b": "rr"}), ("replace", {"a": "ss", "b": "rs"})]
)
def test_what_ended_before_starts_again_with_a_strict_gang(
    make: MakeWorld, on_failure: str, expected: dict[str, str]
) -> None:
    w = make(nodes=1, cpu=4)
    job = whole(w, *(stage(name, 2, on_loss="restart", on_failure=on_failure) for name in "ab"))
    w.advance(0)
    w.finish(job, "a")
    w.finish(job, "b", 1)
    w.cycle()
    w.fail_node("n0")
    w.advance(0)
    w.return_node("n0")
    w.advance(1)
    w.cycle()
    assert states(w, job) == expected


# -- limits, and jobs that can never start -----------------------------------------------------------------------


def test_limits_are_for_the_sum_of_all_stages(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=8)
    w.queue("root.a", limit={"cpu": 7})
    job = whole(w, stage("a", 4), stage("b", 2, cpu=2), queue="root.a")
    beside = w.submit(name="beside", queue="root.a", stages=[stage("w", 7)])
    w.cycle()
    assert states(w, job) == {"a": "pppp", "b": "pp"}
    assert [explanation.reason for explanation in w.explain(job)] == [
        OverLimit("queue root.a", "cpu", 7000, 7000, 8000)
    ] * 2
    assert len(w.placements(beside)) == 7
    w.queue("root.a", limit={"cpu": 15})
    w.cycle()
    assert len(w.placements(job)) == 6


NEVER: dict[str, tuple[list[dict[str, Any]], str]] = {
    "one stage": (
        [stage("a", 1), stage("b", 1, cpu=5)],
        "can never run: all nodes and pools together take 0 of 1 b tasks (the largest node, n0, has 4 CPUs (asked: 5))",
    ),
    "stages of one shape": (
        [stage("a", 1), stage("b", 3, cpu=3), stage("c", 2, cpu=3)],
        "can never run: all nodes and pools together take 2 of 5 b and c tasks (missing: "
        "capacity for 3 more with 3 CPUs each)",
    ),
    "two stages": (
        [stage("a", 9), stage("b", 1, cpu=5), stage("c", 1)],
        "can never run: all nodes and pools together take 0 of 1 b tasks, 8 of 10 a and c tasks (the "
        "largest node, n0, has 4 CPUs (asked: 5); missing: capacity for 2 more with 1 CPU each)",
    ),
    "all stages together": (
        [stage("a", 5), stage("b", 2, cpu=2)],
        "can never run: all stages together need more CPU than all nodes and pools have (all nodes have 8 CPUs "
        "(asked: 9))",
    ),
}


@pytest.mark.parametrize("case", NEVER)
def test_a_job_that_can_never_start_whole_is_passed_over(make: MakeWorld, case: str) -> None:
    stages, said = NEVER[case]
    w = make(nodes=2, cpu=4)
    job = whole(w, *stages)
    small = whole(w, *({**each, "count": 1} for each in stages if each["resources"]["cpu"] < 5), name="small")
    w.cycle()
    assert not w.placements(job)
    assert {str(explanation.reason) for explanation in w.explain(job)} == {said}
    assert w.placements(small)
    w.pool("large", node={"cpu": 8})
    w.cycle()
    assert {type(explanation.reason) for explanation in w.explain(job)} == {
        NoCapacity
    }  # a pool without a bound could take it
    w.nodes(4, prefix="m", cpu=8)
    w.cycle()
    assert len(w.placements(job)) == sum(each["count"] for each in stages)


def test_a_job_that_never_fits_does_not_block_smaller_ones(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    jobs = [whole(w, stage("small", 1), stage("huge", 1, cpu=5), name=name) for name in ("one", "two", "three")]
    w.scale("one", "small", 0)
    w.scale("three", "huge", 0)
    w.cycle()
    assert [len(w.placements(job)) for job in jobs] == [0, 0, 1]


def test_stages_that_stay_apart_do_so_each_for_itself(make: MakeWorld) -> None:
    w = make(nodes=3, cpu=2)
    other = w.submit(name="other", stages=[stage("w", 1)])
    w.cycle()
    job = whole(w, *(stage(name, 3, apart=True) for name in ("a", "b")))
    w.cycle()
    assert isinstance(w.explain(job)[0].reason, NoCapacity)
    w.finish(other)
    w.cycle()
    assert sorted(w.placements(job).values()) == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_a_whole_head_that_is_now_over_its_limit_does_not_block_its_lane(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    w.queue("root.a", users={"ann": {"limit": {"cpu": 5}}})
    stages = stage("a", 1), stage("b", 1, cpu=3)
    w.submit(name="filler", user="bob", queue="root.a", stages=[stage("w", 1)])
    w.cycle()
    head = whole(w, *stages, name="head", user="ann", queue="root.a")
    behind = whole(w, *stages, name="behind", user="bob", queue="root.a")
    w.scale(behind, "b", 0)
    w.cycle()
    assert (w.placements(head), w.placements(behind)) == ({}, {})
    assert isinstance(w.explain(head)[0].reason, NoCapacity)
    w.submit(name="more", user="ann", queue="root.a", stages=[stage("w", 1, cpu=2)])
    w.cycle()
    assert isinstance(w.explain(head)[0].reason, OverLimit)
    assert len(w.placements(behind)) == 1


# -- lanes -------------------------------------------------------------------------------------------------------


def test_a_lane_is_one_set_of_shapes(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    filler = w.submit(name="filler", stages=[stage("w", 1)])
    w.cycle()
    first = whole(w, stage("a", 2), stage("b", 1, cpu=2), name="first")
    second = whole(w, stage("x", 1, cpu=2), stage("y", 1), stage("z", 1), name="second")
    whole(w, stage("a", 2), stage("b", 1, cpu=3), name="other")
    whole(w, stage("a", 2), stage("b", 2), name="same")
    w.submit(name="plain", stages=[stage("w", 4)])
    w.cycle()
    assert lanes(w) == {
        "cpu=1": ["same/", "plain/w"],
        "cpu=1 + cpu=2": ["first/", "second/"],
        "cpu=1 + cpu=3": ["other/"],
    }
    assert [explanation.position for explanation in w.explain(second)] == [1, 1, 1]
    assert w.lanes()["root.default", "cpu=1 + cpu=2"][0].count == 3
    w.finish(filler)
    w.cycle()
    assert (len(w.placements(first)), w.placements(second)) == (3, {})
    for name in ("first", "second", "other", "same", "plain"):
        w.kill(name)
    w.advance(0)
    assert not w.partition().lanes


def test_only_the_head_is_tried(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    w.submit(name="filler", stages=[stage("w", 1)])
    w.cycle()
    whole(w, stage("a", 2), stage("b", 1, cpu=2), name="first")
    second = whole(w, stage("a", 1), stage("b", 1, cpu=2), name="second")
    w.cycle()
    assert not w.placements(second)
    w.kill("first")
    w.cycle()
    assert len(w.placements(second)) == 2


@pytest.mark.parametrize("named", ["a", "b", "none"])
def test_any_stage_stands_for_the_whole(make: MakeWorld, named: str) -> None:
    w = make(nodes=1, cpu=4)
    filler = w.submit(name="filler", stages=[stage("w", 1)])
    w.cycle()
    shapes = stage("a", 2), stage("b", 1, cpu=2), stage("none", 1)
    for name in ("first", "second"):
        whole(w, *shapes, name=name)
        w.scale(name, "none", 0)
    w.prioritise("second", named)
    w.cycle()
    assert lanes(w) == {"cpu=1 + cpu=2": ["second/", "first/"]}
    w.reset_lane("root.default", "second")
    w.cycle()
    assert lanes(w) == {"cpu=1 + cpu=2": ["first/", "second/"]}
    w.prioritise("first", named)
    w.reset_lane("root.default", "first")  # the others are in a lower round now
    w.set_priority("second", 5)
    w.cycle()
    assert lanes(w) == {"cpu=1 + cpu=2": ["second/", "first/"]}
    w.finish(filler)
    w.cycle()
    assert (len(w.placements("second")), w.placements("first")) == (3, {})


def test_a_new_priority_moves_the_whole_job(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    w.submit(name="filler", stages=[stage("w", 4)])
    w.cycle()
    jobs = [whole(w, stage("a", 1), stage("b", 1, cpu=2), name=name) for name in ("first", "second", "third")]
    w.cycle()
    assert [w.explain(job)[0].reason is None for job in jobs] == [False, True, True]
    w.set_priority("second", 1)
    w.set_priority("first", -1)
    w.cycle()
    assert lanes(w) == {"cpu=1 + cpu=2": ["second/", "third/", "first/"]}
    assert [w.explain(job)[1].reason is None for job in jobs] == [True, False, True]  # only the head is tried


def test_priority_and_fair_order_hold_for_whole_jobs(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    w.queue("root.a", order="fair")
    for name in ("x", "y"):
        whole(w, stage("a", 1), stage("b", 1, cpu=2), name=name, queue="root.a", priority=3)
    w.cycle()
    assert (len(w.placements("x")), len(w.placements("y"))) == (2, 0)
    w.queue("root.a", order="priority")
    whole(w, stage("a", 1), stage("b", 1, cpu=2), name="z", queue="root.a", priority=7)
    w.cycle()
    assert lanes(w) == {"cpu=1 + cpu=2": ["z/", "y/"]}


def test_a_whole_job_that_found_no_room_wakes_no_lane() -> None:
    w = World()
    w.nodes(2, cpu=4)
    w.submit(name="filler", stages=[stage("w", 1)])
    w.submit(name="beside", stages=[stage("w", 2, cpu=4)])
    whole(w, stage("a", 4), stage("b", 1, cpu=4))
    w.cycle()
    partition = w.partition()
    verdicts = [lane.memory.verdict for lane in partition.lanes.values()]
    assert {verdict and verdict.versions for verdict in verdicts} == {partition.capacity_versions()}
    assert w.cluster.writers["default"].cycle([], w.now).plan.looked == set()


# -- launches ----------------------------------------------------------------------------------------------------


def test_a_refused_launch_takes_all_stages_back(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    w.refuse_launches("n1")
    job = whole(w, stage("a", 4), stage("b", 2, cpu=2))
    other = whole(w, stage("a", 4), stage("b", 2, cpu=2), name="other")
    w.advance(0)
    w.cycle()
    assert states(w, job) == {"a": "pppp", "b": "pp"}
    assert (w.job(job).state, w.job(job).waiting_since) == ("pending", 0)
    assert lanes(w) == {"cpu=1 + cpu=2": ["other/", "job/"]}
    w.kill(other)
    w.return_node("n1")
    w.advance(5)
    assert states(w, job) == {"a": "rrrr", "b": "rr"}
    assert {w.task(job, name, 0).attempt for name in ("a", "b")} == {2}


def test_a_silent_launch_takes_all_stages_back(make: MakeWorld) -> None:
    w = make(nodes=3, cpu=4, launch_timeout="10s")
    w.hold_acks("n1")
    job = whole(w, stage("a", 1, cpu=4), stage("b", 1, cpu=4))
    w.advance(9)
    assert states(w, job) == {"a": "r", "b": "a"}
    w.advance(2)
    w.cycle()
    assert states(w, job) == {"a": "r", "b": "r"}  # elsewhere, both of them
    assert {w.task(job, name, 0).attempt for name in ("a", "b")} == {2}
    assert set(w.placements(job).values()) == {"n0", "n2"}


def test_a_node_lost_before_all_were_acknowledged_takes_all_stages_back(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    w.hold_acks("n1")
    job = whole(w, stage("a", 1, cpu=4), stage("b", 1, cpu=4))
    w.cycle()
    w.cycle()
    assert states(w, job) == {"a": "r", "b": "a"}
    w.fail_node("n0")  # the one that was acknowledged
    w.advance(0)
    assert states(w, job) == {"a": "p", "b": "p"}
    assert w.job(job).waiting_since == 0


def test_those_beyond_the_minimum_go_back_with_it(make: MakeWorld) -> None:
    w = make(nodes=3, cpu=2)
    w.hold_acks("n0")
    job = whole(w, stage("a", 1, cpu=2), stage("b", 3, min=1))
    for _ in range(3):
        w.cycle()
    assert states(w, job) == {"a": "a", "b": "rrr"}
    w.fail_node("n0")
    w.cycle()
    assert states(w, job) == {"a": "p", "b": "sss"}
    assert lanes(w) == {"cpu=1 + cpu=2": ["job/"]}
    w.cycle()
    assert states(w, job) == {"a": "a", "b": "aap"}
    w.advance(1)
    assert states(w, job) == {"a": "r", "b": "rrp"}


def test_a_task_that_failed_meanwhile_goes_back_with_the_others(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    w.hold_acks("n0")
    job = whole(w, stage("a", 2, cpu=2, tries=2), stage("b", 1, cpu=4))
    w.cycle()
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "a"}
    w.finish(job, "a", 0, exit_code=1)
    w.remove_node("n0")
    w.advance(0)
    assert (states(w, job), lanes(w)) == ({"a": "pp", "b": "p"}, {"cpu=2 + cpu=4": ["job/"]})
    w.node("n2", cpu=2)
    w.advance(1)
    assert states(w, job) == {"a": "pp", "b": "p"}
    w.node("n3", cpu=4)
    w.advance(1)
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "r"}
    assert w.task(job, "a", 0).tries_used == 1


def test_a_stage_that_cannot_be_launched_fails_the_job(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4, max_launch_tries=2, launch_timeout="10s")
    w.hold_acks("n1")
    job = whole(w, stage("a", 1, cpu=4), stage("b", 1, cpu=4))
    w.advance(60)
    w.advance(60)
    assert (w.job(job).state, w.partition().allocations) == ("failed", {})


# -- losses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_loss", "expected", "state"),
    [
        ("replace", {"a": "rr", "b": "rrpp"}, "running"),
        ("restart", {"a": "pp", "b": "pppp"}, "pending"),
        ("fail", {"a": "kk", "b": "kkll"}, "failed"),
    ],
)
def test_a_lost_node(make: MakeWorld, on_loss: str, expected: dict[str, str], state: str) -> None:
    w = make(nodes=3, cpu=3)
    job = whole(w, stage("a", 2), stage("b", 4, cpu=1.5, on_loss=on_loss))
    w.advance(0)
    lost = w.placements(job)["b", 2]
    assert [key for key, node in w.placements(job).items() if node == lost] == [("b", 2), ("b", 3)]
    w.fail_node(lost)
    w.advance(1)
    assert (states(w, job), w.job(job).state) == (expected, state)
    w.return_node(lost)
    w.advance(1)
    w.cycle()
    assert on_loss == "fail" or states(w, job) == {"a": "rr", "b": "rrrr"}


def test_a_restart_waits_until_all_stages_have_stopped(make: MakeWorld) -> None:
    w = make(nodes=5, cpu=4, lease="20s", heartbeat="1s")
    job = whole(w, stage("a", 2, cpu=4, min=1), stage("b", 1, cpu=4, on_loss="restart"))
    w.advance(1)
    w.cycle()
    w.silence(w.placements(job)["a", 0])
    w.fail_node(w.placements(job)["b", 0])
    w.advance(15)
    assert states(w, job) == {"a": "sp", "b": "p"}  # enough tasks are back for the minimum, but not all
    assert w.explain(job)[0].reason == StillStopping()
    w.advance(10)
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "r"}


def test_a_stage_short_for_too_long_takes_the_whole_job_back(make: MakeWorld) -> None:
    w = make(nodes=3, cpu=4, replace_within="5min")
    job = whole(w, *(stage(name, 1, cpu=4, on_loss="replace") for name in "abc"))
    w.advance(0)
    for name in ("b", "c"):  # two of them at once
        w.fail_node(w.placements(job)[name, 0])
    w.advance(299)
    assert states(w, job) == {"a": "r", "b": "p", "c": "p"}
    assert lanes(w) == {"cpu=4": ["job/b", "job/c"]}
    w.advance(2)
    assert states(w, job) == {"a": "p", "b": "p", "c": "p"}
    assert (w.job(job).waiting_since, lanes(w)) == (0, {"cpu=4": ["job/"]})
    w.nodes(2, prefix="m", cpu=4)
    w.advance(1)
    w.cycle()
    assert states(w, job) == {"a": "r", "b": "r", "c": "r"}


def test_a_restart_takes_growth_and_what_was_left_along(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    job = whole(w, stage("a", 2, min=1), stage("b", 2, on_loss="restart"), stage("c", 3, min=1))
    w.advance(0)
    w.scale(job, "b", 4)
    w.cycle()
    w.cycle()
    assert (states(w, job), lanes(w)) == ({"a": "rp", "b": "rrpp", "c": "rpp"}, {"cpu=1": ["job/b", "job/a", "job/c"]})
    w.fail_node("n0")
    w.advance(1)
    assert (states(w, job), lanes(w)) == ({"a": "pp", "b": "pppp", "c": "ppp"}, {"cpu=1": ["job/"]})
    w.node("n1", cpu=5)  # one of the first stage, all four of the second and one of the third are needed
    w.cycle()
    assert not w.placements(job)
    w.node("n2", cpu=1)
    w.cycle()
    assert len(w.placements(job)) == 6


def test_a_task_over_its_time_limit_comes_back_with_a_restart(make: MakeWorld) -> None:
    w = make(nodes=3, cpu=1, lease="20s", heartbeat="1s")
    job = whole(w, stage("a", 1, time_limit="10s", tries=2), stage("b", 1, on_loss="restart"))
    w.advance(0)
    w.silence(w.placements(job)["a", 0])
    w.advance(11)
    assert states(w, job) == {"a": "s", "b": "r"}  # told to stop, and still running
    w.fail_node(w.placements(job)["b", 0])
    w.advance(1)
    assert states(w, job) == {"a": "s", "b": "p"}
    w.advance(20)
    assert states(w, job) == {"a": "p", "b": "p"}
    w.node("n9", cpu=1)
    w.advance(1)
    w.cycle()
    assert states(w, job) == {"a": "r", "b": "r"}


def test_a_whole_job_without_room_does_not_block_jobs_like_its_first_stage(make: MakeWorld) -> None:
    """It lacks room for its second stage; the other jobs are like its first stage."""
    w = make(nodes=1, cpu=1)
    w.node("big", cpu=4)
    job = whole(w, stage("a", 1, on_failure="replace"), stage("b", 1, cpu=4, on_loss="restart"))
    w.advance(0)
    w.finish(job, stage="a", index=0, exit_code=0)
    w.fail_node("big")
    w.node("n9", cpu=3)
    other = w.submit(name="other", stages=[stage("w", 1)])
    w.cycle()
    assert states(w, job) == {"a": "s", "b": "p"}
    assert w.placements(other)


# -- scaling, cancelling, killing --------------------------------------------------------------------------------


def test_scaling_before_the_start_replaces_the_whole_ask(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    w.submit(name="filler", stages=[stage("w", 4)])
    w.cycle()
    shapes = stage("a", 2), stage("b", 1, cpu=2)
    for name in ("first", "second", "third"):
        whole(w, *shapes, name=name)
        w.advance(1)
    w.scale("first", "b", 2)  # larger: a new place
    w.scale("second", "a", 1)  # smaller: the old one
    w.advance(1)
    (lane,) = w.lanes().values()
    assert [(ask.job, ask.count, ask.asked, ask.waiting_since) for ask in lane] == [
        ("second", 2, 1, 1),
        ("third", 3, 2, 2),
        ("first", 4, 3, 0),
    ]


def test_a_stage_scaled_to_nothing_needs_nothing(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    job = whole(w, stage("a", 2), stage("b", 2, cpu=4))
    w.scale(job, "b", 0)
    w.cycle()
    assert states(w, job) == {"a": "aa", "b": ""}
    w.cycle()
    w.scale(job, "b", 2)  # it has started: this is growth of that stage
    w.node("n1", cpu=4)
    w.cycle()
    assert (states(w, job), lanes(w)) == ({"a": "rr", "b": "pp"}, {"cpu=4": ["job/b"]})
    w.node("n2", cpu=4)
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "aa"}


def test_all_stages_scaled_to_nothing_are_complete(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=1)
    job = whole(w, stage("a", 2), stage("b", 2))
    w.cycle()
    w.scale(job, "a", 0)
    w.scale(job, "b", 0)
    w.cycle()
    assert (w.job(job).state, w.lanes()) == ("succeeded", {})


def test_growth_after_the_start_is_a_gang_of_its_stage(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=2)
    job = whole(w, stage("a", 2), stage("b", 1))
    w.advance(0)
    w.scale(job, "b", 3)
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "rpp"}
    w.node("bad", cpu=1)
    w.refuse_launches("bad")
    w.advance(0)
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "rpp"}  # the refusal took back what was added, and nothing else
    w.node("n2", cpu=1)
    w.advance(5)
    w.cycle()
    assert states(w, job) == {"a": "rr", "b": "rrr"}


@pytest.mark.parametrize("named", ["a", "b", "none"])
@pytest.mark.parametrize("how", ["cancel", "reset", "before its turn"])
def test_cancelling_before_the_start_ends_the_job(make: MakeWorld, named: str, how: str) -> None:
    w = make(nodes=1, cpu=1)
    first = w.submit(name="first", stages=[stage("w", 1)])
    job = whole(w, stage("a", 1), stage("b", 2), stage("none", 1), after=[first] if how == "before its turn" else [])
    w.scale(job, "none", 0)
    w.cycle()
    if how == "reset":
        w.reset_lane("root.default", job, cancel=True)
    else:
        w.cancel(job, named)
    w.cycle()
    assert (w.job(job).state, w.job(job).reason) == ("killed", "all its tasks were withdrawn")
    assert (states(w, job), w.lanes()) == ({"a": "k", "b": "kk", "none": ""}, {})


def test_cancelling_while_others_of_the_job_still_stop_ends_it_too(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=4)
    job = whole(w, stage("a", 1, cpu=4), stage("b", 1, cpu=4, on_loss="restart"))
    w.advance(0)
    w.silence("n0")
    w.fail_node("n1")
    w.cycle()
    assert states(w, job) == {"a": "s", "b": "p"}
    w.cancel(job, "a")
    w.advance(300)
    assert (w.job(job).state, states(w, job)) == ("killed", {"a": "k", "b": "k"})


def test_cancelling_after_the_start_gives_up_the_rest_of_that_stage(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=2)
    job = whole(w, stage("a", 3, min=1), stage("b", 3, min=1))
    w.advance(0)
    w.cycle()
    w.cancel(job, "a")
    w.cycle()
    assert (states(w, job), lanes(w)) == ({"a": "rkk", "b": "rpp"}, {"cpu=1": ["job/b"]})


def test_killing_before_and_after_the_start(make: MakeWorld) -> None:
    w = make(nodes=1, cpu=4)
    one = whole(w, stage("a", 2), stage("b", 1, cpu=2), name="one")
    two = whole(w, stage("a", 2), stage("b", 1, cpu=2), name="two")
    w.advance(0)
    w.kill(one)
    w.kill(two)
    w.advance(0)
    assert (w.job(one).state, w.job(two).state, w.lanes()) == ("killed", "killed", {})
    assert not w.partition().allocations


def test_a_resource_manager_has_to_name_its_stages() -> None:
    w = World()
    w.rm("k8s").register()
    w.rm("k8s").update(jobs=[{"job": "app", "gang": "job"}])
    w.cycle()
    (rejected,) = [event for event in w.rm("k8s").events() if event.what == "rejected"]
    assert rejected.reason.startswith("job[0].gang: a gang of a whole job needs its stages")


@pytest.mark.parametrize("place", ["spread", "random", "dotprod", "fgd", "pack"])
def test_a_whole_job_that_does_not_fit_spread_out_is_packed(make: MakeWorld, place: str) -> None:
    """Only with two tasks of the first stage on the small node there is room for all."""
    w = make(nodes=0, place=place)
    w.node("large", cpu=8, gpu=2)
    w.node("small", cpu=2, gpu=2)
    w.cycle()
    one, half = {"cpu": 1, "gpu": 1}, {"cpu": 1, "gpu": 0.5}
    job = whole(w, {**stage("a", 3), "resources": one}, {**stage("b", 2), "resources": half})
    w.cycle()
    w.cycle()
    assert states(w, job) == {"a": "rrr", "b": "rr"}
    assert sorted(w.placements(job).values()) == ["large", "large", "large", "small", "small"]


def test_a_small_task_that_is_apart_leaves_the_empty_nodes_to_the_large_ones(make: MakeWorld) -> None:
    w = make(nodes=0)
    w.node("n1", cpu=1)
    w.node("n2", cpu=2)
    w.node("n3", cpu=2)
    w.update_node("n1", cpu=1, gpu=2)  # without the GPUs, n1 is the node that is tried first
    job = whole(w, stage("big", 1, cpu=2), stage("other", 1, cpu=2), stage("small", 1, apart=True))
    w.cycle()
    assert states(w, job) == {"big": "a", "other": "a", "small": "a"}


def test_large_tasks_leave_nodes_for_small_ones_that_are_apart(make: MakeWorld) -> None:
    w = make(nodes=3, cpu=4)
    job = whole(w, stage("big", 2, cpu=2), stage("small", 3, apart=True))
    w.cycle()
    assert states(w, job) == {"big": "aa", "small": "aaa"}


def test_a_reason_counts_all_stages_now(make: MakeWorld) -> None:
    """The stages are tried in the order b, a."""
    w = make(cpu=8)
    w.drain("n1")
    whole(w, stage("a", 4), stage("b", 4, cpu=2))
    w.advance(1)
    for name, stages in (("", (("b", 4, 4), ("a", 4, 0))), ("one", (("b", 4, 3),)), ("three", (("b", 4, 2),))):
        if name:
            w.submit(name=name, stages=[{"count": 2 if name == "three" else 1, "resources": {"cpu": 1}}])
            w.advance(1)
        reason = w.explain("job")[0].reason
        assert isinstance(reason, NoCapacity) and reason.stages == stages
        assert reason.fitting == sum(fitting for _, _, fitting in stages)
