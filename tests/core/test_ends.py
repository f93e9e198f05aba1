"""Many ends at once: reports that single jobs succeeded become one change, with the same result as one by one."""

from __future__ import annotations

import pytest

from fairlead.core.changes import Ended, SinglesEnded
from fairlead.core.commands import Accepted, Command, Kill, Rejected, Report
from fairlead.core.cycle import Cycle
from fairlead.testing import World
from fairlead.writer.writer import Stopped


def world(jobs: int, **rest: object) -> World:
    w = World()
    w.nodes(2, cpu=4)
    for at in range(jobs):
        w.submit(name=f"j{at}", stages=[{"name": "s", "resources": {"cpu": 1}}], **rest)
    w.cycle()
    return w


def ended(w: World, job: str, **rest: object) -> Report:
    (task,) = w.placements(job).items()
    document = {"node": task[1], "job": job, "stage": "s", "indices": (0, 1), "attempt": 1, "state": "succeeded"}
    return Report(**{**document, "exit_code": 0, **rest})  # type: ignore[arg-type]


def cycle(w: World, *commands: Command) -> Cycle:
    return w.cluster.writers["default"].cycle(list(commands), w.now)


def test_many_ends_are_one_change() -> None:
    w = world(6)
    decided = cycle(w, *(ended(w, f"j{at}") for at in range(6)))
    assert [type(change) for change in decided.changes] == [SinglesEnded]
    assert decided.answers == [Accepted()] * 6
    assert [w.job(f"j{at}").state for at in range(6)] == ["succeeded"] * 6
    assert w.usage("root") == {}
    w.check()


def test_the_room_is_there_for_others_in_the_same_cycle() -> None:
    w = world(9)
    assert not w.placements("j8")
    cycle(w, ended(w, "j0"))
    assert w.placements("j8")


def test_a_report_that_comes_twice_is_stale_the_second_time() -> None:
    w = world(2)
    decided = cycle(w, ended(w, "j0"), ended(w, "j1"), ended(w, "j0"))
    assert [bool(isinstance(answer, Accepted) and answer.note) for answer in decided.answers] == [False, False, True]
    assert decided.notes == {"stale report": 1}


def test_a_later_command_of_the_batch_sees_the_end() -> None:
    w = world(2)
    decided = cycle(w, ended(w, "j0"), Kill(job="j0", operator=True), ended(w, "j1"))
    assert w.job("j0").state == "succeeded" and w.job("j1").state == "succeeded"
    assert len([change for change in decided.changes if isinstance(change, SinglesEnded)]) == 2


def test_the_job_after_it_is_asked_for() -> None:
    w = world(1)
    w.submit(name="next", after=["j0"], stages=[{"name": "s", "resources": {"cpu": 1}}])
    w.cycle()
    cycle(w, ended(w, "j0"))
    assert w.placements("next")
    cycle(w, ended(w, "next"))
    assert w.job("next").state == "succeeded"
    w.check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ran", -1),
        ("ran", "long"),
        ("exit_code", ""),
        ("attempt", 2),
        ("indices", (0, 2_000_000_000)),
        ("state", "won"),
    ],
)
def test_a_bad_report_is_refused_as_ever(field: str, value: object) -> None:
    w = world(2)
    before = w.dump()
    decided = cycle(w, ended(w, "j0", **{field: value}))
    assert isinstance(decided.answers[0], Rejected)
    assert w.dump() == before


@pytest.mark.parametrize("rest", [{"node": "n9"}, {"number": 99}, {"stage": "t"}])
def test_a_report_of_something_else_ends_nothing(rest: dict[str, object]) -> None:
    w = world(2)
    cycle(w, ended(w, "j0", **rest))
    assert w.job("j0").state == "running"


def test_a_second_attempt_keeps_its_history() -> None:
    w = World()
    w.node("n", cpu=1)
    w.submit(name="j", stages=[{"name": "s", "resources": {"cpu": 1}, "tries": 2}])
    w.cycle()
    cycle(w, ended(w, "j", state="failed", exit_code=1))
    decided = cycle(w, ended(w, "j", attempt=2))
    assert any(isinstance(change, Ended) for change in decided.changes)
    assert (w.task("j", "s", 0).attempt, w.task("j", "s", 0).tries_used) == (2, 1)


def test_ends_that_were_not_written_did_not_happen() -> None:
    w = world(3)
    before = w.dump()
    w.break_journal("failed")
    with pytest.raises(Stopped):
        cycle(w, ended(w, "j0"), ended(w, "j1"))
    w.check()
    assert w.dump() == before


def test_a_job_whose_other_task_was_scaled_away_waits_for_its_stop() -> None:
    w = World()
    w.nodes(2, cpu=1)
    w.submit(name="j", stages=[{"name": "s", "count": 2, "resources": {"cpu": 1}}])
    w.cycle()
    w.cycle()
    first, second = w.placements("j")["s", 0], w.placements("j")["s", 1]
    w.silence(second)
    w.scale("j", "s", 1)
    w.cycle()
    report = Report(node=first, job="j", stage="s", indices=(0, 1), attempt=1, state="succeeded", operator=True)
    cycle(w, report)
    w.check()
    assert w.job("j").state == "running" and len(w.partition().allocations) == 1


def test_a_repeated_report_of_a_task_after_a_scale_down_to_it() -> None:
    w = World()
    w.node("n1", cpu=2)
    job = w.submit(stages=[{"name": "w", "count": 2, "min": 1, "resources": {"cpu": 1}}])
    w.cycle()
    w.cycle()
    w.ignore_stops(job)
    w.finish(job, "w", 0)
    w.cycle()
    w.scale(job, "w", 1)  # task 1 still stops, so the job has one task and no live attempt of it
    w.cycle()
    w.report(job, "w", 0, 1, "succeeded", node="n1", exit_code=0)
    w.cycle()
    assert w.job(job).state == "running"
