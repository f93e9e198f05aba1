"""`done_when`: a job succeeds with one of its stages, and the rest of it is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.documents import parse_job
from fairlead.core.errors import Refused
from fairlead.testing import World

DONE = {"stage": "worker"}


def stage(name: str, count: int, **rest: Any) -> dict[str, Any]:
    return {"name": name, "count": count, "resources": {"cpu": 1}, **rest}


def training(workers: int = 2, gang: str = "stage", cpu: int = 4, **rest: Any) -> tuple[World, str]:
    """A parameter server that runs without end, and workers."""
    w = World({"preempt_grace": "5s"})
    w.nodes(2, cpu=cpu)
    job = w.submit(name="train", gang=gang, done_when=DONE, stages=[stage("ps", 1), stage("worker", workers, **rest)])
    w.cycle()
    return w, job


def states(w: World, job: str) -> dict[str, list[str]]:
    stages = w.partition().jobs[job].stages
    return {each.name: [w.task(job, each.name, index).state for index in range(each.count)] for each in stages}


def finish(w: World, job: str, name: str = "worker", *codes: int) -> None:
    for index, code in enumerate(codes):
        w.finish(job, name, index, code)
    w.cycle()


@pytest.mark.parametrize("gang", ["stage", "job"])
def test_a_parameter_server_ends_with_its_workers(gang: str) -> None:
    w, job = training(gang=gang)
    w.finish(job, "worker", 0)
    w.advance(1)
    assert states(w, job) == {"ps": ["running"], "worker": ["succeeded", "running"]}
    w.finish(job, "worker", 1)
    w.cycle()
    assert (w.job(job).state, w.job(job).reason) == ("succeeded", "stage worker has succeeded")
    w.advance(1)
    assert states(w, job) == {"ps": ["killed"], "worker": ["succeeded", "succeeded"]}
    assert w.task(job, "ps", 0).reason == "done: stage worker has succeeded"
    assert w.usage("root") == {}


def test_the_server_keeps_its_capacity_until_it_has_stopped() -> None:
    w, job = training(cpu=2)
    w.silence("n0")
    w.silence("n1")
    nodes = w.placements(job)
    w.finish(job, "worker", 0)
    w.finish(job, "worker", 1)
    w.cycle()
    assert w.job(job).state == "succeeded"
    assert w.placements(job) == {("ps", 0): nodes["ps", 0]}
    assert w.why(job).sentence == (
        f"job {job} is over: succeeded, stage worker has succeeded; "
        "1 task of ps stops on n0 because of the end of its job"
    )


def test_tasks_that_wait_are_given_up() -> None:
    w = World()
    w.nodes(1, cpu=2)
    stages = [stage("worker", 2), stage("extra", 5, min=1)]
    job = w.submit(done_when=DONE, stages=stages)
    w.cycle()
    finish(w, job, "worker", 0, 0)
    assert (w.job(job).state, states(w, job)["extra"]) == ("succeeded", ["killed"] * 5)


def test_other_stages_do_not_end_the_job() -> None:
    w, job = training()
    finish(w, job, "ps", 0)
    assert w.job(job).state == "running"
    finish(w, job, "worker", 0, 0)
    assert (w.job(job).state, w.job(job).reason) == ("succeeded", "stage worker has succeeded")


def test_failures_of_other_stages_do_not_count_unless_they_end_the_job() -> None:
    w = World()
    w.nodes(1, cpu=8)
    job = w.submit(done_when=DONE, stages=[stage("helper", 2, min=1), stage("worker", 1)])
    w.cycle()
    finish(w, job, "helper", 7)
    assert w.job(job).state == "running"
    finish(w, job, "worker", 0)
    assert w.job(job).state == "succeeded"


def test_the_job_fails_at_once_when_its_stage_cannot_succeed() -> None:
    w, job = training(min=1)
    w.finish(job, "worker", 0, 3)
    w.cycle()
    assert w.job(job).state == "running"
    w.finish(job, "worker", 1)
    w.cycle()
    assert (w.job(job).state, w.job(job).reason) == ("failed", "task worker[0] failed: exit code 3")
    w.advance(1)
    assert states(w, job)["ps"] == ["killed"]


def test_a_worker_with_tries_left_runs_again_first() -> None:
    w, job = training(min=1, tries=2)
    w.finish(job, "worker", 0, 3)
    w.finish(job, "worker", 1)
    w.advance(1)
    assert states(w, job) == {"ps": ["running"], "worker": ["running", "succeeded"]}
    w.finish(job, "worker", 0)
    w.cycle()
    assert w.job(job).state == "succeeded"


def test_a_gang_restarts_whole_before_its_stage_has_succeeded() -> None:
    w = World()
    w.nodes(2, cpu=4)
    stages = [stage("ps", 1, tries=2), stage("worker", 2, tries=2)]
    job = w.submit(gang="job", done_when=DONE, stages=stages)
    w.cycle()
    w.finish(job, "worker", 0)
    w.finish(job, "ps", 0, 9)
    w.advance(1)
    assert states(w, job) == {"ps": ["running"], "worker": ["running", "running"]}
    assert w.partition().jobs[job].stages[0].generation == 2
    finish(w, job, "worker", 0, 0)
    w.advance(1)
    assert (w.job(job).state, states(w, job)["ps"]) == ("succeeded", ["killed"])


def test_kill_hold_and_requeue() -> None:
    w, job = training()
    w.requeue(job)
    w.advance(1)
    assert states(w, job) == {"ps": ["running"], "worker": ["running", "running"]}
    w.hold(job)
    finish(w, job, "worker", 0, 0)
    w.advance(1)
    assert w.job(job).state == "succeeded"
    w, job = training()
    w.kill(job)
    finish(w, job, "worker", 0)
    w.advance(1)
    assert w.job(job).state == "killed"


def test_scaling_the_stage_down_to_what_has_succeeded() -> None:
    w, job = training(min=1)
    w.finish(job, "worker", 0)
    w.cycle()
    w.scale(job, "worker", 1)
    w.advance(1)
    assert (w.job(job).state, states(w, job)) == ("succeeded", {"ps": ["killed"], "worker": ["succeeded"]})


def test_followers_start_with_the_success() -> None:
    w, job = training(cpu=2)
    follower = w.submit(name="next", after=[job], stages=[stage("main", 1)])
    w.cycle()
    assert w.placements(follower) == {}
    finish(w, job, "worker", 0, 0)
    assert len(w.placements(follower)) == 1


def test_a_lost_server_of_a_done_job_does_not_come_back() -> None:
    w, job = training()
    w.ignore_stops(job)
    finish(w, job, "worker", 0, 0)
    w.disable("n0")
    w.disable("n1")
    w.fail_node("n0")
    w.fail_node("n1")
    w.advance(100)
    assert (w.job(job).state, w.placements(job)) == ("succeeded", {})


def test_it_survives_a_restart() -> None:
    w, job = training()
    w.finish(job, "worker", 0)
    w.cycle()
    w.restart()
    w.finish(job, "worker", 1)
    w.advance(1)
    assert (w.job(job).state, states(w, job)["ps"]) == ("succeeded", ["killed"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stage": "wroker"}, 'done_when.stage: the job has no stage "wroker"; name one of ps, worker'),
        ("worker", 'done_when: "worker" is not a mapping; the end of a job is written as key: value pairs'),
        ({}, "done_when.stage: missing; the end of a job needs it"),
        ({"stage": "ps", "all": True}, "done_when.all: the end of a job has no such key; it has stage, task"),
    ],
)
def test_what_is_refused(given: Any, said: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_job({"done_when": given, "stages": [stage("ps", 1), stage("worker", 1)]})
    assert str(refused.value) == said


def test_a_job_ends_with_one_task_of_a_gang() -> None:
    w = World({"preempt_grace": "5s"})
    w.nodes(2, cpu=1)
    first = {"stage": "main", "task": 0}
    strict = [stage("main", 2, on_failure="fail")]
    job, other = w.submit(done_when=first, stages=strict), w.submit(done_when=first, stages=strict)
    w.cycle()
    w.finish(job, "main", 1)
    w.cycle()
    assert w.job(job).state == "running"
    w.finish(job, "main", 0)
    w.cycle()
    assert (w.job(job).state, w.job(job).reason) == ("succeeded", "task main[0] has succeeded")
    w.advance(1)
    w.finish(other, "main", 0, 3)
    w.cycle()
    assert w.job(other).state == "failed"
    with pytest.raises(Refused, match="from 0 to 1"):
        parse_job({"stages": strict, "done_when": {"stage": "main", "task": 2}})
