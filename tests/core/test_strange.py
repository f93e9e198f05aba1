"""Nodes that run what the journal never decided, as after a restore: it is reported, and nothing is stopped."""

from collections.abc import Mapping
from random import Random

import pytest

from fairlead.core import cycle, ranges
from fairlead.core.changes import SKIPPED, TaskNews
from fairlead.core.commands import Answer, BeginEra, Rejected, Report
from fairlead.core.cycle import Cycle
from fairlead.core.effects import ForNode, Stop, outstanding_effects
from fairlead.core.resources import SECOND
from fairlead.journal.in_memory import MemoryJournal
from fairlead.testing import World
from fairlead.writer.writer import Observer
from tests import planted
from tests.chaos.checkers import AttemptChecker, CheckFailed
from tests.chaos.tasks import Live, Task, indices


def world(journal: MemoryJournal | None = None) -> World:
    w = World(journal=journal)
    w.nodes(3, prefix="n", cpu=4)
    return w


def submit(w: World, count: int = 1, **options: object) -> str:
    stage = {"name": "s", "count": count, "min": 1, "resources": {"cpu": 1}, **options}
    return w.submit(user="ann", stages=[stage])


def reported(w: World, job: str, node: str, attempt: int, number: int, index: int = 0, tasks: int = 1) -> Answer:
    """Report running tasks; return the answer."""
    w.effects()
    w.answers()
    indices = (index, index + tasks)
    w._send(
        "default",
        Report(node=node, job=job, stage="s", indices=indices, attempt=attempt, state="running", number=number),
    )
    w.cycle()
    return w.answers()[-1]


def stops(w: World) -> list[Stop]:
    return [stop for effect in w.effects() if isinstance(effect, ForNode) for stop in effect.stops]


def alarmed(answer: object) -> bool:
    return isinstance(answer, Rejected) and answer.code == "alarm"


def test_a_job_that_is_newer_than_the_journal_keeps_its_number() -> None:
    w = world()
    assert alarmed(reported(w, "7", "n0", 1, 7)) and not stops(w)
    job = submit(w)
    w.cycle()
    assert w.partition().jobs[job].number == 8
    w.advance(100_000)
    for _ in range(2):
        assert alarmed(reported(w, "7", "n0", 1, 7)) and not stops(w)
        w.restart()
    # Another stage of that number, and an older number, are strays as before.
    assert not alarmed(reported(w, "3", "n0", 1, 3)) and stops(w)


def test_an_attempt_that_is_newer_than_the_journal_is_not_given_again() -> None:
    w = world()
    job = submit(w)
    w.cycle()
    [node] = w.placements(job).values()
    other = next(name for name in ("n0", "n1", "n2") if name != node)
    assert alarmed(reported(w, job, other, 2, 1)) and not stops(w)
    assert w.task(job, "s", 0).attempt == 1
    w.fail_node(node)
    w.cycle()
    assert w.task(job, "s", 0).attempt == 3
    assert alarmed(reported(w, job, other, 2, 1)) and not stops(w)
    assert not alarmed(reported(w, job, other, 1, 1)) and stops(w)  # given up, and known


def test_a_task_that_waits_and_runs_somewhere() -> None:
    w = world()
    job = submit(w, count=14)
    w.cycle()
    assert len(w.placements(job)) == 12
    # The placements of the others were lost. Other tasks of the stage did get attempt 1.
    for index, node in ((12, "n0"), (13, "n1")):
        assert alarmed(reported(w, job, node, 1, 1, index)) and not stops(w)
    w.finish(job, "s", 0)
    w.finish(job, "s", 1)
    w.cycle()
    assert {w.task(job, "s", index).attempt for index in (12, 13)} == {2}
    for index, node in ((12, "n0"), (13, "n1")):
        assert alarmed(reported(w, job, node, 1, 1, index)) and not stops(w)
    w.restart()
    assert alarmed(reported(w, job, "n0", 1, 1, 12)) and not stops(w)


def test_known_tasks_of_the_same_report_are_taken() -> None:
    w = World()
    w.node("n0", cpu=4)
    w.hold_acks("n0")
    job = submit(w, count=6)
    w.cycle()
    assert alarmed(reported(w, job, "n0", 1, 1, tasks=6)) and not stops(w)
    assert [w.task(job, "s", index).state for index in range(6)] == ["running"] * 4 + ["pending"] * 2


def test_numbers_far_away_are_not_reserved() -> None:
    w = world()
    assert alarmed(reported(w, "x", "n0", 1, 2**50))
    job = submit(w)
    w.cycle()
    assert w.partition().jobs[job].number == 1


def set_back(w: World, era: int = 1) -> None:
    w._send("default", BeginEra(era=era, operator=True))
    w.cycle()
    w.restart()


def test_numbers_of_jobs_go_on_above_all_that_were_lost() -> None:
    w = world()
    submit(w)
    w.cycle()
    set_back(w)
    job = submit(w)
    w.cycle()
    assert w.partition().jobs[job].number == 2 + SKIPPED
    for number in (2, SKIPPED, SKIPPED + 1):
        assert alarmed(reported(w, str(number), "n0", 1, number)) and not stops(w)
        assert not alarmed(reported(w, "1", "n0", 1, 1, index=9))
    set_back(w)  # the same era
    set_back(w, era=3)
    job = submit(w)
    w.cycle()
    assert w.partition().jobs[job].number == 3 + 3 * SKIPPED, "an era that was passed over is skipped too"
    assert alarmed(reported(w, "2", "n0", 1, 2)) and not stops(w)


def test_attempts_of_known_jobs_go_on_above_all_that_were_lost() -> None:
    w = world()
    job = submit(w, count=6)
    w.cycle()
    w.fail_node("n0")
    w.cycle()
    before = {index: w.task(job, "s", index).attempt for index in range(6)}
    assert set(before.values()) == {1, 2}
    set_back(w)
    w.fail_node("n1")
    w.cycle()
    again = [index for index in range(6) if w.task(job, "s", index).attempt > SKIPPED]
    assert again and {w.task(job, "s", index).attempt for index in again} == {SKIPPED + 3}
    for index in again:  # a lost record gave the next attempt, or one that other tasks already had
        assert alarmed(reported(w, job, "n2", before[index] + 1, 1, index)) and not stops(w)
        assert not alarmed(reported(w, job, "n2", before[index], 1, index)) and stops(w)  # given up, and known


class Ends(Observer):
    """Collects the run times of attempts that ended."""

    def __init__(self) -> None:
        self.ran: dict[tuple[str, int], int] = {}

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        for news in decided.plan.news():
            if isinstance(news, TaskNews) and news.what == "ended":
                self.ran |= {(news.stage.job.id, index): news.ran for index in ranges.indices(news.indices)}


def test_live_attempts_are_known_until_the_last_record_until_their_node_reports_them() -> None:
    ends = Ends()
    w = World(observers=[ends])
    w.node("n", cpu=8)
    w.hold_acks("n")
    ran, sent = submit(w, count=3), submit(w)
    w.cycle()
    w._send("default", Report(node="n", job=ran, stage="s", indices=(0, 3), attempt=1, state="running"))
    w.cycle()
    w.advance(10)
    began = BeginEra(era=1, reached=w.now, operator=True)
    before = w.dump()
    cycle.run(w.partition(), [began], w.now + SECOND).plan.abandon()
    assert w.dump() == before
    w._send("default", began)
    w.cycle()
    w.restart()
    assert not outstanding_effects(w.partition()), "a launch that may have been sent before is not sent again"
    w.advance(2)
    w.report(ran, "s", 0, 1, "running", ran=12)
    w.cycle()
    live = w.partition().jobs[ran].stages[0].live or {}
    assert [live[index].known_until for index in range(3)] == [0, began.reached, began.reached]
    assert len({live[index].started for index in range(3)}) == 1
    w.advance(5)
    for job, index in ((ran, 0), (ran, 1), (sent, 0)):
        w.report(job, "s", index, 1, "lost")
    w.cycle()
    assert ends.ran == {(ran, 0): 0, (ran, 1): 10 * SECOND, (sent, 0): 0}, "no time after the last record counts"
    assert w.task(sent, "s", 0).attempt > SKIPPED
    w.kill(ran)
    w.cycle()
    w.report(ran, "s", 2, 1, "stopped")
    w.cycle()
    assert ends.ran[ran, 2] == 10 * SECOND


def test_a_scaled_stage_goes_on_above_all_that_were_lost() -> None:
    w = world()
    job = submit(w, count=4)
    w.cycle()
    set_back(w)
    w.scale(job, "s", 2)
    w.cycle()
    w.scale(job, "s", 4)
    w.cycle()
    assert [w.task(job, "s", index).attempt for index in range(4)] == [1, 1, SKIPPED + 2, SKIPPED + 2]


def story_with_loss(seed: int) -> None:
    """Submit jobs and fail nodes, lose the last records with the reports about them, and go on; check all launches.

    Nodes know a task by the number of its job, its stage and its attempt, and must never get the same one twice.
    """
    rng, journal, checker = Random(seed), MemoryJournal(), AttemptChecker()
    w = world(journal)

    def go_on(steps: int) -> None:
        for _ in range(steps):
            if rng.random() < 0.5:
                submit(w, count=rng.randint(1, 3))
            else:
                node = rng.choice(["n0", "n1", "n2"])
                w.fail_node(node)
                w.cycle()
                w.return_node(node)
            w.cycle()
            w.cycle()  # also the reports of what has started
            for effect in w.effects():
                for launch in effect.launches if isinstance(effect, ForNode) else ():
                    for index in indices(launch.indices):
                        task = Task("", launch.number, launch.stage, index)
                        checker.live.pop(task, None)
                        checker.started(effect.node, Live(task, launch.attempt, ()))

    go_on(rng.randint(1, 6))
    [stream] = [name for name in journal.streams() if name.endswith("default")]
    kept = journal.last(stream)
    go_on(rng.randint(1, 6))
    del journal._streams[stream].records[kept:]
    w.restart()
    w._send("default", BeginEra(era=1, operator=True))
    w.cycle()
    w.effects()
    go_on(6)


@pytest.mark.parametrize("seed", range(20))
def test_nodes_never_get_the_same_task_and_attempt_twice_after_a_loss(seed: int) -> None:
    story_with_loss(seed)


@pytest.mark.parametrize("plant", [planted.begin_no_era, planted.skip_no_attempts])
def test_numbers_that_are_given_twice_are_found(monkeypatch: pytest.MonkeyPatch, plant: planted.Plant) -> None:
    plant(monkeypatch)
    with pytest.raises(CheckFailed, match=planted.AGAIN):
        for seed in range(20):
            story_with_loss(seed)
