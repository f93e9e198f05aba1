"""Jobs that come after other jobs: conditions, tasks that follow tasks, namesakes, and pipelines."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, Rejected
from fairlead.core.dump import dump, load
from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.core.model import Job
from fairlead.testing import World

STAGE = [{"name": "s", "resources": {"cpu": 1}}]
ARRAY = [{"name": "s", "array": 4, "resources": {"cpu": 1}}]


def world(cpu: int = 8, **config: Any) -> World:
    w = World(config)
    w.nodes(1, cpu=cpu)
    w.cycle()
    return w


def settle(w: World) -> None:
    """Carry out the commands, and the cycles that follow at once."""
    w.cycle()
    w.advance(0)


def job(w: World, name: str) -> Job:
    return w.partition().jobs[name]


def outcome(w: World, condition: str, end: str, late: bool) -> str:
    """Return the state of a job after another one that ends, before or after the submission."""
    w.submit(name="first", stages=STAGE)
    if late:
        w.submit(name="second", stages=STAGE, after=[f"first:{condition}"])
    settle(w)
    if late:
        assert job(w, "second").state == ("running" if condition == "started" else "pending")
    if end == "killed":
        w.kill("first")
    else:
        w.finish("first", exit_code=int(end == "failed"))
    settle(w)
    if not late:
        w.submit(name="second", stages=STAGE, after=[f"first:{condition}"])
        settle(w)
        assert not isinstance(w.answers()[-1], Rejected)
    return job(w, "second").state


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("condition", "end", "state"),
    [
        ("ok", "succeeded", "running"),
        ("ok", "failed", "failed"),
        ("ok", "killed", "failed"),
        ("any", "succeeded", "running"),
        ("any", "failed", "running"),
        ("any", "killed", "running"),
        ("failed", "succeeded", "killed"),
        ("failed", "failed", "running"),
        ("failed", "killed", "running"),
        ("started", "failed", "running"),
        ("started", "killed", "running"),
    ],
)
def test_a_dependency_means_the_same_before_and_after_the_end(condition: str, end: str, state: str, late: bool) -> None:
    assert outcome(world(), condition, end, late) == state


def test_a_job_that_never_starts_lets_no_job_start() -> None:
    w = world(cpu=1)
    w.submit(name="blocker", stages=STAGE)
    w.submit(name="first", stages=STAGE)
    w.submit(name="second", stages=STAGE, after=["first:started"])
    w.cycle()
    w.kill("first")
    w.cycle()
    assert job(w, "second").state == "failed"
    assert job(w, "second").reason == "job first, which it comes after, killed before it started"


def test_the_end_of_a_killed_job_is_that_of_its_last_task() -> None:
    w = world()
    w.submit(name="first", stages=STAGE)
    w.submit(name="second", stages=STAGE, after=["first:any"])
    w.cycle()
    w.ignore_stops("first")
    w.kill("first")
    w.cycle()
    assert job(w, "first").over and job(w, "first").allocations
    assert job(w, "second").state == "pending"
    w.fail_node("n0")
    w.nodes(1, prefix="m", cpu=4)
    settle(w)
    assert job(w, "second").state == "running"


def test_tasks_follow_tasks() -> None:
    w = world(cpu=16)
    w.submit(name="first", stages=[{**ARRAY[0], "tries": 2}])
    w.submit(name="second", stages=ARRAY, after=["first:each"])
    w.submit(name="third", stages=[{"name": "s", "array": "1,3", "throttle": 1}], after=["second:each"])
    w.cycle()
    assert job(w, "second").stages[0].blocked == (0, 4)
    w.finish("first", "s", 2)
    settle(w)
    assert sorted(job(w, "second").stages[0].live or {}) == [2]
    w.finish("first", "s", 1, exit_code=1)  # it has another try
    settle(w)
    assert job(w, "second").stages[0].blocked == (0, 2, 3, 4)
    w.restart()
    check_all(w.partition())
    for index in (0, 1, 3):
        w.finish("first", "s", index, exit_code=int(index == 3))
    settle(w)
    w.finish("first", "s", 3, exit_code=1)
    settle(w)
    assert job(w, "first").state == "failed"
    assert sorted(job(w, "second").stages[0].live or {}) == [0, 1, 2]
    assert job(w, "second").stages[0].past(3).reason == "the same task of job first failed"
    w.finish("second", "s", 1)
    settle(w)
    assert sorted(job(w, "third").stages[0].live or {}) == [1]
    w.finish("second")
    w.finish("third")
    settle(w)
    assert job(w, "second").state == job(w, "third").state == "failed"
    assert "main" not in job(w, "second").reason and "s[3] failed" in job(w, "second").reason


def test_tasks_that_follow_tasks_are_held_killed_and_told() -> None:
    w = world()
    w.submit(name="first", stages=ARRAY)
    w.submit(name="second", stages=ARRAY, after=["first:each"])
    w.cycle()
    text = str(w.explain("second")[0])
    assert "4 tasks wait for the tasks of job first with the same indices" in text
    w.stop_tasks("second", "kill", "s", 0)
    w.hold("second")
    w.finish("first")
    settle(w)
    assert job(w, "second").stages[0].blocked == () and not job(w, "second").allocations
    w.release("second")
    settle(w)
    assert sorted(job(w, "second").stages[0].live or {}) == [1, 2, 3]


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ([{"count": 4}], [{"array": 4}], "job first is no array"),
        ([{"array": 3}], [{"array": 4}], "job first has no task 3"),
        ([{"array": 4}], [{"count": 4}], "only the tasks of an array"),
    ],
)
def test_tasks_that_cannot_follow(first: Any, second: Any, problem: str) -> None:
    w = world()
    w.submit(name="first", stages=first)
    w.submit(name="second", stages=second, after=["first:each"])
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Rejected) and problem in str(answer), answer


def test_wrong_conditions() -> None:
    w = world()
    with pytest.raises(Refused, match='"7:end" has no known condition; write 7 or one of 7:ok, 7:any'):
        w.submit(stages=STAGE, after=["7:end"])
    with pytest.raises(Refused, match="job 7 has two conditions, 7:any and 7:failed"):
        w.submit(stages=STAGE, after=["7:any", "7:failed"])


def test_a_singleton_waits_for_earlier_jobs_of_its_name() -> None:
    w = world()
    for number in range(3):
        w.submit(name="nightly", user="ann", stages=STAGE, singleton=number > 0)
    w.submit(name="nightly", user="bob", stages=STAGE, singleton=True)
    w.cycle()
    states = [job.state for job in w.partition().jobs.values()]
    assert states == ["running", "pending", "pending", "running"]
    jobs = list(w.partition().jobs)
    w.finish(jobs[0], exit_code=1)
    settle(w)
    assert [job.state for job in w.partition().jobs.values()] == ["failed", "running", "pending", "running"]
    w.kill(jobs[1])
    settle(w)
    assert job(w, jobs[2]).state == "running"


def pipeline(**jobs: Any) -> list[dict[str, Any]]:
    return [{"name": name, "stages": STAGE, **fields} for name, fields in jobs.items()]


def test_a_pipeline_is_submitted_whole() -> None:
    w = world()
    w.submit_pipeline("nightly", pipeline(report={"after": ["train:any"]}, train={"after": ["fetch"]}, fetch={}))
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Accepted) and answer.job == "nightly-1"
    ids = {item.reason: item.name for item in answer.items}
    assert ids == {"report": "3", "train": "2", "fetch": "1"}
    assert dict(job(w, "3").spec.labels) == {"pipeline": "nightly-1"}
    assert [job.state for job in w.partition().jobs.values()] == ["running", "pending", "pending"]
    w.finish("1", exit_code=1)
    settle(w)
    assert [job.state for job in w.partition().jobs.values()] == ["failed", "failed", "running"]


@pytest.mark.parametrize(
    ("jobs", "field", "problem"),
    [
        (pipeline(a={"after": ["b"]}, b={"after": ["a"]}), "jobs[0].after", "jobs wait for each other: a, b"),
        (pipeline(a={}, b={"after": ["c"]}), "jobs[1].after[0]", 'there is no job "c"'),
        (pipeline(a={"labels": {"pipeline": ""}}), "jobs[0].labels.pipeline", "get this label"),
        (pipeline(a={}, b={"name": "a"}), "jobs[1].name", '"a" is also the name of job 0'),
        (pipeline(a={}, b={"queue": "root.x"}), "jobs[1].queue", 'there is no queue "root.x"'),
    ],
)
def test_a_pipeline_with_a_mistake_changes_nothing(jobs: Any, field: str, problem: str) -> None:
    w = world()
    w.submit_pipeline("nightly", jobs)
    w.cycle()
    answer = w.answers()[-1]
    assert isinstance(answer, Rejected) and answer.field == field and problem in answer.problem, answer
    assert not w.partition().jobs and w.partition().counters.job == 1


def test_a_state_with_blocked_tasks_is_dumped_and_loaded() -> None:
    w = world()
    w.submit(name="first", stages=ARRAY)
    w.submit(name="second", stages=ARRAY, after=["first:each"])
    w.cycle()
    loaded = load(dump(w.partition()))
    check_all(loaded)
    assert loaded.jobs["second"].stages[0].blocked == (0, 4)
    assert dump(loaded) == w.dump()
