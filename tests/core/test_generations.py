"""A gang fails as a gang: a member that fails or is lost ends the generation, and the gang starts again whole."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.testing import World


def world(nodes: int = 3, cpu: int = 1, **settings: Any) -> World:
    w = World(settings)
    w.nodes(nodes, cpu=cpu)
    return w


def gang(w: World, count: int = 3, **rest: Any) -> str:
    job = w.submit(stages=[{"name": "w", "count": count, "resources": {"cpu": 1}, **rest}])
    w.advance(0)
    return job


def states(w: World, job: str) -> str:
    """Return the states of the tasks of a job, by their first letters."""
    return "".join(
        w.task(job, stage.name, index).state[0]
        for stage in w.partition().jobs[job].stages
        for index in range(stage.count)
    )


def attempts(w: World, job: str) -> list[int]:
    (stage,) = w.partition().jobs[job].stages
    return [w.task(job, stage.name, index).attempt for index in range(stage.count)]


def tries(w: World, job: str) -> list[int]:
    (stage,) = w.partition().jobs[job].stages
    return [w.task(job, stage.name, index).tries_used for index in range(stage.count)]


def ranks(w: World, job: str) -> dict[str, list[int | None]]:
    return {stage.name: [stage.rank(at) for at in range(stage.count)] for stage in w.partition().jobs[job].stages}


def test_a_member_that_fails_ends_the_generation() -> None:
    w = world()
    job = gang(w, tries=2)
    w.finish(job, "w", 1, exit_code=7)
    w.cycle()
    assert states(w, job) == "sps"  # the others stop
    w.advance(1)
    assert (states(w, job), attempts(w, job), tries(w, job)) == ("rrr", [2, 2, 2], [1, 1, 1])
    assert w.partition().jobs[job].stages[0].generation == 2
    w.finish(job, "w")
    w.advance(0)
    assert w.job(job).state == "succeeded"


def test_members_that_fail_in_one_generation_use_one_try() -> None:
    w = world()
    job = gang(w, tries=2)
    for index in range(3):
        w.finish(job, "w", index, exit_code=index + 1)
    w.advance(1)
    assert (states(w, job), tries(w, job)) == ("rrr", [1, 1, 1])


def test_several_members_in_one_report_use_one_try() -> None:
    w = world(nodes=1, cpu=3)
    job = gang(w, tries=3)
    w.finish(job, "w", exit_code=1)
    w.advance(1)
    assert (states(w, job), tries(w, job)) == ("rrr", [1, 1, 1])


def test_each_generation_uses_a_try_whichever_member_fails() -> None:
    w = world()
    job = gang(w, tries=3)
    for index in range(3):
        assert w.job(job).state == "running"
        w.finish(job, "w", index, exit_code=1)
        w.advance(1)
    assert w.job(job).state == "failed" and "task w[2] failed" in w.job(job).reason
    assert tries(w, job) == [3, 3, 3]


def test_a_member_that_has_succeeded_runs_again() -> None:
    w = world()
    job = gang(w, tries=2)
    w.finish(job, "w", 0)
    w.advance(0)
    w.finish(job, "w", 1, exit_code=1)
    w.advance(1)
    assert (states(w, job), attempts(w, job)) == ("rrr", [2, 2, 2])


def test_a_member_that_ends_well_because_it_was_told_to_stop_runs_again() -> None:
    w = world()
    job = gang(w, tries=2)
    w.ignore_stops(job)
    w.finish(job, "w", 1, exit_code=1)
    w.cycle()
    w.cycle()
    w.report(job, "w", 0, 1, "succeeded")
    w.report(job, "w", 2, 1, "stopped")
    w.advance(1)
    assert (states(w, job), attempts(w, job)) == ("rrr", [2, 2, 2])


def test_the_last_member_that_fails_restarts_all() -> None:
    w = world()
    job = gang(w, tries=2)
    for index in (0, 2):
        w.finish(job, "w", index)
    w.advance(0)
    w.finish(job, "w", 1, exit_code=1)
    w.advance(1)
    assert states(w, job) == "rrr"


def test_a_loss_ends_the_generation_and_uses_no_try() -> None:
    w = world(nodes=4)
    job = gang(w)
    w.fail_node(w.placements(job)["w", 2])
    w.advance(1)
    assert (states(w, job), attempts(w, job), tries(w, job)) == ("rrr", [2, 2, 2], [0, 0, 0])


def test_a_time_limit_uses_one_try_of_the_gang() -> None:
    w = world()
    job = gang(w, tries=2, time_limit="10s")
    w.advance(12)
    assert (states(w, job), tries(w, job)) == ("rrr", [1, 1, 1])
    w.advance(12)
    assert w.job(job).state == "failed"


@pytest.mark.parametrize(
    ("stage", "on_failure", "expected"),
    [
        ({}, None, "restart"),
        ({"min": 3}, None, "restart"),
        ({"min": 2}, None, "replace"),
        ({"min": 1}, None, "replace"),
        ({"count": 1}, None, "replace"),
        ({}, "replace", "replace"),
        ({}, "fail", "fail"),
        ({"min": 2}, "restart", "restart"),
    ],
)
def test_what_follows_a_failure(stage: dict[str, Any], on_failure: str | None, expected: str) -> None:
    w = world()
    more = {} if on_failure is None else {"on_failure": on_failure}
    job = gang(w, **{"count": 3, "tries": 2, **stage, **more})
    last = stage.get("count", 3) - 1
    w.finish(job, "w", last, exit_code=1)
    w.advance(1)
    if expected == "fail":
        assert w.job(job).state == "failed" and w.partition().jobs[job].stages[0].past(last).attempt == 1
    elif expected == "restart":
        assert attempts(w, job) == [2] * (last + 1)
    else:
        assert attempts(w, job) == [1] * last + [2]


def test_a_restarted_gang_keeps_its_place() -> None:
    w = world()
    job = gang(w, tries=2)
    w.advance(5)
    w.submit(name="later", stages=[{"name": "w", "count": 3, "resources": {"cpu": 1}}])
    w.advance(5)
    w.finish(job, "w", 0, exit_code=1)
    w.cycle()
    assert w.job(job).waiting_since == 10
    w.advance(1)
    assert states(w, job) == "rrr" and states(w, "later") == "ppp"


def test_a_whole_job_restarts_with_all_stages() -> None:
    w = world(nodes=4)
    stages = [{"name": name, "count": n, "resources": {"cpu": 1}, "tries": 2} for name, n in (("a", 1), ("b", 3))]
    job = w.submit(gang="job", stages=stages)
    w.advance(0)
    assert ranks(w, job) == {"a": [0], "b": [1, 2, 3]}
    w.finish(job, "a", 0)
    w.advance(0)
    w.finish(job, "b", 1, exit_code=1)
    w.advance(1)
    assert states(w, job) == "rrrr"
    found = w.partition().jobs[job].stages
    assert [(stage.generation, stage.failures) for stage in found] == [(2, 1), (2, 1)]
    assert {task.attempt for stage in found for task in (stage.live or {}).values()} == {2}
    w.finish(job, "a", 0, exit_code=1)
    w.advance(1)
    assert w.job(job).state == "failed"


def test_ranks_are_dense_and_stay() -> None:
    """Two of four start; a third one joins; one that is replaced has its rank again."""
    w = world(nodes=2)
    job = gang(w, 4, min=2)
    (stage,) = w.partition().jobs[job].stages
    assert (ranks(w, job)["w"], stage.world_size()) == ([0, 1, None, None], 2)
    w.node("more", cpu=1)
    w.advance(0)
    assert (ranks(w, job)["w"], stage.world_size()) == ([0, 1, 2, None], 3)
    w.fail_node(w.placements(job)["w", 0])
    w.node("other", cpu=1)
    w.advance(1)
    assert (ranks(w, job)["w"], stage.world_size(), stage.generation) == ([0, 1, 2, None], 3, 1)


def test_ranks_leave_out_what_has_ended() -> None:
    """An elastic gang starts again without the task that succeeded: the others are ranks 0 and 1."""
    w = world(nodes=3)
    job = gang(w, 3, min=2)
    w.finish(job, "w", 1)
    w.advance(0)
    w.requeue(job)
    w.advance(1)
    (stage,) = w.partition().jobs[job].stages
    assert (states(w, job), ranks(w, job)["w"]) == ("rsr", [0, None, 1])
    assert (stage.generation, stage.world_size()) == (2, 2)


def test_growth_joins_the_generation() -> None:
    w = world(nodes=5)
    job = gang(w, tries=2)
    w.scale(job, "w", 5)
    w.advance(0)
    (stage,) = w.partition().jobs[job].stages
    assert (ranks(w, job)["w"], stage.world_size(), stage.generation) == ([0, 1, 2, 3, 4], 5, 1)
    w.finish(job, "w", 4, exit_code=1)
    w.advance(1)
    assert (states(w, job), stage.generation, stage.world_size()) == ("rrrrr", 2, 5)


def test_a_stage_with_missing_tasks_that_becomes_a_strict_gang_by_a_new_size() -> None:
    w = World()
    w.node("n0", cpu=4)
    w.node("n1", cpu=2)
    job = w.submit(stages=[{"name": "w", "count": 6, "min": 5, "resources": {"cpu": 1}}])
    w.advance(1)
    w.fail_node("n1")
    w.advance(1)
    for size, missed in ((5, False), (7, True)):  # a strict gang starts again whole, so `replace_within` is not for it
        w.scale(job, "w", size)
        w.advance(1)
        w.restart()
        assert bool(w.partition().derived.short) == missed


def test_tasks_that_fail_for_good_cost_other_stages_of_their_job_no_try() -> None:
    w = world(nodes=4)
    spare = {"name": "spare", "count": 2, "min": 1, "resources": {"cpu": 1}, "on_failure": "restart", "tries": 1}
    main = {"name": "main", "count": 2, "resources": {"cpu": 1}, "tries": 5}
    job = w.submit(gang="job", stages=[main, spare])
    w.advance(1)
    w.finish(job, "spare", 0, exit_code=1)
    w.finish(job, "spare", 1, exit_code=1)
    w.advance(1)
    assert w.task(job, "main", 0).tries_used == 0
    assert [w.task(job, "spare", index).tries_used for index in (0, 1)] == [1, 1]
    assert states(w, job) == "rrff"


def test_the_causes_are_told() -> None:
    w = world()
    job = gang(w, tries=2)
    w.ignore_stops(job)
    w.finish(job, "w", 1, exit_code=7)
    w.cycle()
    assert w.task(job, "w", 0).note == "its gang starts again: w[1] failed"
    sentence = w.why(job).sentence
    assert "because of a gang member that failed or was lost" in sentence and "exit code 7" in sentence


def test_a_member_that_is_replaced_alone_stays_in_its_generation() -> None:
    """The gang was scaled to one task, which is lost, and grows again: its members are of one generation."""
    w = World()
    w.nodes(2, prefix="n", cpu=4)
    stage = {"name": "s", "count": 3, "resources": {"cpu": 1}, "duration": 1000, "on_loss": "replace"}
    job = w.submit(user="ann", stages=[stage])
    w.cycle()
    w.advance(1)
    w.scale(job, "s", 1)
    w.cycle()
    w.advance(5)
    (node,) = w.placements(job).values()
    w.fail_node(node)
    w.cycle()
    w.advance(100)
    w.scale(job, "s", 3)
    w.cycle()
    assert len(w.placements(job)) == 3
