"""Changes of waiting jobs: another queue, request, priority, dependencies, throttle or labels."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, Answer, Rejected
from fairlead.core.errors import Refused
from fairlead.core.invariants import check_all
from fairlead.core.model import Job
from fairlead.testing import World

CONFIG: dict[str, Any] = {
    "queues": {
        "root": {
            "a": {},
            "b": {"max_jobs": 1},
            "ml": {"submit": ["bob"]},
        }
    }
}
ONE = {"resources": {"cpu": 1}}


def world(cpu: int = 4) -> World:
    w = World(CONFIG)
    w.nodes(1, cpu=cpu)
    w.cycle()
    return w


def settle(w: World) -> None:
    """Carry out the commands, and the cycles that follow at once."""
    w.cycle()
    w.advance(0)


def job(w: World, name: str) -> Job:
    return w.partition().jobs[name]


def update(w: World, name: str, user: str | None = None, **changes: Any) -> Answer:
    w.update_job(name, user, **changes)
    settle(w)
    check_all(w.partition())
    return w.answers()[-1]


def test_a_job_that_asks_for_too_much_is_changed_and_starts() -> None:
    w = world()
    w.submit(name="j", queue="root.a", stages=[{"resources": {"cpu": 9}}])
    w.cycle()
    answer = update(w, "j", resources={"cpu": 3}, time_limit="1h", labels={"team": "nlp"})
    assert isinstance(answer, Accepted) and answer.note == "cpu 3, time_limit 1h, label team=nlp"
    assert job(w, "j").state == "running"
    spec = job(w, "j").spec
    assert dict(spec.stages[0].resources)["cpu"] == 3_000 and dict(spec.labels) == {"team": "nlp"}
    before = w.dump()
    w.restart()
    assert w.dump() == before


def test_another_queue_keeps_the_place() -> None:
    w = world(cpu=1)
    w.submit(name="runs", queue="root.a", stages=[ONE])
    w.cycle()
    w.submit(name="first", queue="root.b", stages=[ONE])
    w.cycle()
    w.advance(5)
    w.submit(name="second", queue="root.a", stages=[ONE])
    w.cycle()
    update(w, "first", queue="root.a")
    assert (job(w, "first").queue.path, job(w, "first").queue.jobs) == ("root.a", 3)
    w.finish("runs")
    settle(w)
    assert [job(w, name).state for name in ("first", "second")] == ["running", "pending"]


def test_a_throttle_is_changed_while_tasks_run() -> None:
    w = world(cpu=8)
    w.submit(name="j", queue="root.a", stages=[{**ONE, "name": "s", "array": 10, "throttle": 2}])
    w.cycle()
    assert len(job(w, "j").stages[0].live or ()) == 2
    assert isinstance(update(w, "j", throttle=5), Accepted)
    assert len(job(w, "j").stages[0].live or ()) == 5
    update(w, "j", throttle=1)
    for index in range(4):
        w.finish("j", "s", index)
    settle(w)
    assert len(job(w, "j").stages[0].live or ()) == 1
    update(w, "j", throttle="none")
    assert len(job(w, "j").stages[0].live or ()) == 6


def test_running_tasks_keep_their_request() -> None:
    w = world()
    w.submit(name="j", queue="root.a", stages=[{**ONE, "array": 6}])
    w.cycle()
    answer = update(w, "j", resources={"cpu": 2})
    assert isinstance(answer, Rejected) and "job j has running tasks, and cpu 2 needs a job that waits" in str(answer)
    w.hold("j")
    w.finish("j")
    settle(w)
    assert isinstance(update(w, "j", resources={"cpu": 2}), Accepted)
    w.release("j")
    settle(w)
    assert len(job(w, "j").stages[0].live or ()) == 2


@pytest.mark.parametrize(
    ("user", "changes", "problem"),
    [
        ("eve", {"queue": "root.b"}, "eve may not update job j"),
        ("ann", {"queue": "root.ml"}, "may not submit to root.ml"),
        ("ann", {"queue": "root.x"}, 'there is no queue "root.x"'),
        ("ann", {"priority": 7}, "7 is above 0, the max_priority of user ann"),
        ("ann", {"after": ["zz"]}, 'there is no job "zz"'),
        ("ann", {"after": ["j"]}, "a job cannot come after itself"),
        ("ann", {"after": ["later"]}, "job later itself comes after job j"),
        ("ann", {"resources": {"fpga": 1}}, "no node or pool offers it"),
        ("ann", {"stage": "x", "throttle": 2}, 'job j has no stage "x"'),
        ("ann", {"throttle": 2}, "2 of 9 tasks that start together cannot run alone"),
    ],
)
def test_refused_changes(user: str, changes: Any, problem: str) -> None:
    w = world()
    w.submit(name="j", queue="root.a", user="ann", stages=[{**ONE, "count": 9}])
    w.submit(name="later", queue="root.a", user="ann", stages=[ONE], after=["j"])
    w.cycle()
    before = w.dump()
    answer = update(w, "j", user, **changes)
    assert isinstance(answer, Rejected) and problem in str(answer), answer
    assert w.dump() == before


def test_labels_do_not_pile_up() -> None:
    w = world()
    w.submit(name="j", queue="root.a", stages=[ONE], labels={f"a{at}": "x" for at in range(100)})
    w.cycle()
    answer = update(w, "j", labels={f"b{at}": "x" for at in range(100)})
    assert isinstance(answer, Rejected) and "the job would have 200 labels; at most 100" in str(answer)
    assert isinstance(update(w, "j", labels={"b": "x", "a0": None}), Accepted)


def test_a_singleton_waits_for_earlier_jobs_of_its_name_whatever_it_comes_after() -> None:
    w = world()
    w.submit(name="other", queue="root.a", user="ann", stages=[ONE])
    for number in range(2):
        w.submit(name="nightly", queue="root.a", user="ann", stages=[ONE], singleton=number > 0)
    settle(w)
    second = next(job for job in w.partition().jobs.values() if job.spec.singleton)
    update(w, second.id, after=["other:started"])
    assert second.state == "pending" and ("other", "started") in second.after and len(second.after) == 2
    w.kill(next(job.id for job in w.partition().jobs.values() if job.spec.name == "nightly" and job is not second))
    settle(w)
    assert second.state == "running"


def test_the_rights_of_submitting_count() -> None:
    w = world(cpu=1)
    w.submit(name="runs", queue="root.a", stages=[ONE])
    w.submit(name="j", queue="root.a", user="bob", stages=[ONE])
    w.cycle()
    assert isinstance(update(w, "j", "bob", queue="root.ml"), Accepted)
    assert job(w, "j").queue.path == "root.ml"


def test_other_dependencies() -> None:
    w = world(cpu=2)
    for name in ("one", "two"):
        w.submit(name=name, queue="root.a", stages=[ONE])
    w.submit(name="j", queue="root.a", stages=[{**ONE, "array": 3}], after=["one"])
    w.cycle()
    update(w, "j", after=["two:any"])
    w.kill("one")
    settle(w)
    assert job(w, "j").state == "pending"
    w.kill("two")
    settle(w)
    assert job(w, "j").state == "running"


def test_a_job_that_need_not_wait_any_more_starts_and_one_that_can_never_start_ends() -> None:
    w = world()
    for name in ("one", "two"):
        w.submit(name=name, queue="root.a", stages=[{**ONE, "array": 1}])
    for name in ("j", "k", "l"):
        w.submit(name=name, queue="root.a", stages=[{**ONE, "array": 1}], after=["one:each" if name == "k" else "one"])
    w.cycle()
    w.finish("two", exit_code=1)
    settle(w)
    update(w, "j", after=[])
    assert job(w, "j").state == "running"
    answer = update(w, "k", after=["two"])
    assert job(w, "k").state == "failed" and isinstance(answer, Accepted)
    assert answer.note == "it can never start: job two, which it comes after, failed"
    update(w, "l", after=["two:failed"])
    assert job(w, "l").state == "running"


def test_a_gang_of_stages_moves_whole() -> None:
    w = world(cpu=2)
    w.submit(name="runs", queue="root.a", stages=[{"resources": {"cpu": 2}}])
    w.submit(name="j", queue="root.a", stages=[{**ONE, "name": "x"}, {**ONE, "name": "y"}], gang="job")
    w.cycle()
    assert isinstance(update(w, "j", queue="root.b", stage="y", resources={"cpu": "500m"}), Accepted)
    w.finish("runs")
    settle(w)
    assert job(w, "j").state == "running" and job(w, "j").allocations == 2


def test_nothing_to_change() -> None:
    w = world()
    w.submit(name="j", queue="root.a", stages=[ONE])
    w.cycle()
    answer = update(w, "j", queue="root.a", labels={"x": None})
    assert isinstance(answer, Accepted) and answer.note == "no change"
    with pytest.raises(Refused, match="nothing to change"):
        w.update_job("j")


def test_a_remedy_raises_the_throttle() -> None:
    w = world(cpu=8)
    w.submit(name="j", queue="root.a", stages=[{**ONE, "name": "s", "array": 10, "throttle": 2}])
    settle(w)
    told = [str(remedy) for remedy in w.why("j").waiting[0].remedies]
    assert "the throttle of job j is raised to 3 (`fairlead update`)" in told, told
