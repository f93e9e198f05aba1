"""Single tasks of a running job: killed, requeued and replaced."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, Rejected
from fairlead.testing import World


def world(nodes: int = 2, cpu: int = 4, **config: Any) -> World:
    w = World(config)
    w.nodes(nodes, cpu=cpu)
    return w


def array(w: World, tasks: int, name: str = "array", **rest: Any) -> str:
    job = w.submit(name=name, stages=[{"name": "w", "array": tasks, "resources": {"cpu": 1}, **rest}])
    w.cycle()
    return job


def gang(w: World, tasks: int = 3, **rest: Any) -> str:
    job = w.submit(name="gang", stages=[{"name": "w", "count": tasks, "resources": {"cpu": 1}, **rest}])
    w.cycle()
    return job


def states(w: World, job: str, stage: str = "w") -> list[str]:
    found = w.partition().jobs[job].stage(stage)
    assert found is not None
    return [w.task(job, stage, index).state for index in range(found.count)]


def attempts(w: World, job: str, stage: str = "w") -> list[int]:
    return [w.task(job, stage, index).attempt for index in range(len(states(w, job, stage)))]


def note(w: World) -> str:
    answer = w.answers()[-1]
    return answer.note if isinstance(answer, Accepted) else str(answer)


def test_a_replaced_task_starts_anew_without_using_a_try() -> None:
    w = world()
    job = array(w, 4)
    w.stop_tasks(job, "replace", "w", 2, user="user")
    w.cycle()
    assert note(w) == ""
    assert w.task(job, "w", 2).note == "replaced by user"
    w.advance(1)
    assert (states(w, job), attempts(w, job)) == (["running"] * 4, [1, 1, 2, 1])
    assert w.task(job, "w", 2).tries_used == 0


@pytest.mark.parametrize(("action", "first"), [("replace", "array"), ("requeue", "other")])
def test_a_replacement_goes_before_new_work(action: Any, first: str) -> None:
    w = world(1, 2, preempt="off", queues={"root": {"q": {"order": "fifo"}}})
    w.submit(name="other", stages=[{"resources": {"cpu": 2}}])
    w.cycle()
    w.hold("other")
    w.requeue("other")
    job = array(w, 2)
    w.advance(1)
    w.release("other")
    w.stop_tasks(job, action, "w", 0, 1)
    w.advance(1)
    assert bool(w.placements("other")) == (first == "other")


def test_a_killed_task_has_ended_and_the_others_go_on() -> None:
    w = world(1, 2)
    job = array(w, 5)
    w.stop_tasks(job, "kill", "w", 0, 3, user="user")
    w.advance(1)
    assert states(w, job) == ["killed", "running", "running", "killed", "pending"]
    assert w.task(job, "w", 0).reason == "killed by user"
    for index in (1, 2, 4):
        w.finish(job, "w", index)
        w.advance(1)
    assert w.job(job).state == "succeeded"


def test_a_job_whose_last_tasks_are_killed_ends() -> None:
    w = world()
    job = array(w, 2)
    w.stop_tasks(job, "kill", "w", 0, 1)
    w.advance(1)
    assert (w.job(job).state, w.job(job).reason) == ("killed", "all its tasks were withdrawn")


@pytest.mark.parametrize("action", ["replace", "requeue"])
def test_a_strict_gang_starts_again_whole(action: Any) -> None:
    w = world()
    job = gang(w)
    w.stop_tasks(job, action, "w", 1)
    w.cycle()
    assert note(w) == "a gang runs whole: all 3 of its tasks stop and start again together"
    w.advance(1)
    assert (states(w, job), attempts(w, job)) == (["running"] * 3, [2, 2, 2])
    assert w.partition().jobs[job].stages[0].generation == 2
    assert w.partition().jobs[job].stages[0].failures == 0


def test_a_gang_of_several_stages_starts_again_whole() -> None:
    w = world()
    stages = [{"name": name, "count": 2, "resources": {"cpu": 1}} for name in "ab"]
    job = w.submit(gang="job", stages=stages)
    w.cycle()
    w.stop_tasks(job, "replace", "b", 0)
    w.cycle()
    assert note(w) == "a gang runs whole: all 4 of its tasks stop and start again together"
    w.advance(1)
    assert attempts(w, job, "a") == attempts(w, job, "b") == [2, 2]


def test_a_gang_that_replaces_members_gets_one_replacement() -> None:
    w = world()
    job = gang(w, on_loss="replace")
    w.stop_tasks(job, "replace", "w", 1)
    w.advance(1)
    assert (states(w, job), attempts(w, job)) == (["running"] * 3, [1, 2, 1])


def test_an_elastic_gang_gets_one_replacement() -> None:
    w = world()
    job = gang(w, 4, min=2)
    w.stop_tasks(job, "replace", "w", 0)
    w.advance(1)
    assert (states(w, job), attempts(w, job)) == (["running"] * 4, [2, 1, 1, 1])


def test_one_task_of_a_strict_gang_is_not_killed() -> None:
    w = world()
    job = gang(w)
    w.stop_tasks(job, "kill", "w", 0)
    w.cycle()
    assert note(w) == (
        "indices: w of job gang is a gang, which cannot run without one of its tasks; kill the job, or replace the task"
    )
    assert states(w, job) == ["running"] * 3


def test_a_held_job_gets_its_replacement_after_the_release() -> None:
    w = world()
    job = array(w, 2)
    w.hold(job)
    w.stop_tasks(job, "replace", "w", 0)
    w.advance(1)
    assert states(w, job) == ["pending", "running"]
    w.release(job)
    w.advance(1)
    assert states(w, job) == ["running", "running"]


def test_tasks_that_do_not_run_are_counted() -> None:
    w = world(1, 2)
    job = array(w, 4)
    w.finish(job, "w", 0)
    w.hold(job)
    w.cycle()
    w.stop_tasks(job, "replace", "w", 0, 1, 3)
    w.cycle()
    assert note(w) == "2 of 3 tasks did not run"
    w.stop_tasks(job, "kill", "w", 0, 3)
    w.cycle()
    assert note(w) == "1 of 2 tasks had ended or are stopping"
    w.stop_tasks(job, "requeue", "w", 0)
    w.cycle()
    assert note(w) == "none of these tasks run"


@pytest.mark.parametrize(
    ("stage", "tasks", "user", "said"),
    [
        ("x", (0,), None, 'stage: job array has no stage "x"; it has w'),
        ("w", (4,), None, "indices: job array has no task w[4]; the last is 3"),
        ("w", (), None, "indices: no task is named; write the index of one, such as 3"),
        (
            "w",
            (0,),
            "eve",
            "user: eve may not replace tasks of job array; its owner user or an administrator of root.default may",
        ),
    ],
)
def test_what_is_refused(stage: str, tasks: tuple[int, ...], user: str | None, said: str) -> None:
    w = world()
    job = array(w, 4)
    w.stop_tasks(job, "replace", stage, *tasks, user=user)
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Rejected) and str(answer) == said


def test_tasks_of_a_chain_are_killed_and_the_rest_runs() -> None:
    w = World({"chain": "5s"})
    w.node("n", cpu=1)
    job = w.submit(stages=[{"name": "w", "array": 8, "resources": {"cpu": 1}, "duration": 1}])
    w.advance(2)
    assert any(allocation.slots for allocation in w.partition().allocations.values())
    w.stop_tasks(job, "kill", "w", 5, 7)
    w.advance(20)
    assert states(w, job) == ["succeeded"] * 5 + ["killed", "succeeded", "killed"]
    assert w.job(job).state == "succeeded"


def test_it_survives_a_restart() -> None:
    w = world()
    job = array(w, 2)
    w.ignore_stops(job)
    w.stop_tasks(job, "replace", "w", 0)
    w.cycle()
    w.restart()
    assert w.task(job, "w", 0).note == "replaced by the operator"
