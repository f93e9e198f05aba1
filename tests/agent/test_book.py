"""What the agent makes of what it is told, with no process and no network."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.agent.launching import Surroundings, own_variables, spawner_spec, surroundings
from fairlead.agent.spawner.pace import Pace
from fairlead.agent.task_table import TaskTable
from fairlead.wire.agent import Gang, Launch, Place, Report, Spec, Stop, Tasks, Work

AROUND = Surroundings("n1", "/home/ann", {"PATH": "/bin"}, ("0", "1", "2"))
SPEC = Spec(("true",))
OK = ("exit", 0, "", 7, 5, 9)


def tasks(*indices: int, attempt: int = 1, number: int = 1) -> Tasks:
    return Tasks("job", number, "main", attempt, indices)


def launch(*indices: int, attempt: int = 1, chain: int = 0, rooms: int = 0) -> Work:
    return Work(1, (SPEC,), (Launch(tasks(*indices, attempt=attempt), 0, (), chain, rooms),))


def key(index: int, attempt: int = 1) -> tuple[int, str, int, int]:
    return (1, "main", attempt, index)


def sent(book: TaskTable) -> list[tuple[Any, ...]]:
    """What the spawners are told, by now."""
    frames = [(spawner, *frame) for spawner, outbox in enumerate(book.outbox) for frame in outbox]
    for outbox in book.outbox:
        outbox.clear()
    return frames


def launched(book: TaskTable) -> list[tuple[int, int]]:
    """(index, attempt) of what the spawners are to start."""
    groups = [group for _, what, *rest in sent(book) if what == "launch" for group in rest[0]]
    return sorted((index, meta[3]) for meta, _, indices, *_ in groups for index in indices)


def reported(book: TaskTable) -> dict[str, tuple[int, ...]]:
    return {report.state: report.tasks.indices for report in book.reporting.batch()[1]}


def test_a_launch_is_taken_once() -> None:
    book = TaskTable(AROUND, 2)
    book.handle(launch(0, 3))
    assert launched(book) == [(0, 1), (1, 1), (2, 1)]
    book.handle(launch(1, 4))
    assert launched(book) == [(3, 1)]


def test_ends_are_reported_until_they_are_confirmed() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 2))
    book.hear([key(0), key(1)], [])
    assert reported(book) == {"running": (0, 2)}
    book.hear([], [(key(0), OK)])
    number, reports = book.reporting.batch()
    assert reports == (Report(tasks(0, 1), "succeeded", 0, ran=(7,), cpu=(5,), memory=(9,)),)
    assert not book.reporting.has_news
    book.reconnected()  # the connection was lost before the confirmation
    assert reported(book) == {"succeeded": (0, 1)}
    assert book.started("running") == (tasks(1, 2),)
    book.confirmed(number)  # of the lost connection: it does not count
    assert len(book) == 2
    book.confirmed(number + 1)
    book.tell_confirmed()
    assert ("confirm", [key(0)]) in [frame[1:] for frame in sent(book)]
    assert len(book) == 1


def test_a_new_spawner_is_told_of_ends_that_were_confirmed_before() -> None:
    """Its ledger still has them. They are neither reported nor confirmed a second time."""
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 1))
    book.hear([key(0)], [(key(0), OK)])
    number, _ = book.reporting.batch()
    book.confirmed(number)
    sent(book)
    book.find(0, [(("job", 1, "main", 1), 0, 0, "ended", OK, 0.0)])
    assert sent(book) == [(0, "confirm", [key(0)])]
    assert not book.reporting.has_news
    assert len(book) == 0


def test_a_later_attempt_waits_until_the_earlier_one_has_ended() -> None:
    book = TaskTable(AROUND, 2)
    book.handle(launch(0, 1))
    book.hear([key(0)], [])
    sent(book)
    book.handle(Work(1, (SPEC,), launch(0, 1, attempt=2).launches, (Stop(tasks(0, 1), "stale"),)))
    assert [frame[1] for frame in sent(book)] == ["stop"]
    book.hear([], [(key(0), ("stopped", 15, "", 0, 0, 0))])
    assert launched(book) == [(0, 2)]


def test_one_that_waits_for_an_earlier_attempt_can_be_stopped_too() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 1))
    book.hear([key(0)], [])
    book.handle(launch(0, 1, attempt=2))
    book.handle(Work(1, stops=(Stop(tasks(0, 1, attempt=2), "kill"),)))
    sent(book)
    assert reported(book) == {"running": (0, 1), "stopped": (0, 1)}
    book.hear([], [(key(0), OK)])
    assert launched(book) == []


def test_a_stop_of_what_is_not_known_is_confirmed() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(Work(1, stops=(Stop(tasks(4, 6), "kill"),)))
    assert reported(book) == {"stopped": (4, 6)}


def test_what_does_not_stand_any_more_is_returned_unless_it_runs() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 1, chain=5))
    book.handle(launch(1, 5, chain=5, rooms=1))
    book.hear([key(0)], [])
    sent(book)
    standing = Work(1, (SPEC,), (Launch(tasks(2, 3), 0, (), 5, 1),), standing=True)
    book.handle(standing)
    returned = [frame[2] for frame in sent(book) if frame[1] == "return"]
    assert sorted(key for keys in returned for key in keys) == [key(1), key(3), key(4)]


def test_what_a_new_spawner_does_not_know_was_never_started() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 3))
    book.hear([key(0)], [])
    sent(book)
    meta = ("job", 1, "main", 1)
    book.find(0, [(meta, 0, 0, "ended", ("lost", 0, "gone", 0, 0, 0), 0.0), (meta, 1, 0, "running", None, 0.0)])
    assert launched(book) == [(2, 1)]
    assert reported(book) == {"lost": (0, 1), "running": (1, 2)}


def test_what_a_spawner_never_heard_of_is_refused_when_it_cannot_be_started() -> None:
    """What was sent to it may run, and is not."""
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 1))
    assert launched(book) == [(0, 1)]
    book.handle(launch(1, 3))
    book.not_sent(0, book.outbox[0])
    sent(book)
    book.miss(0, "no room")
    assert reported(book) == {"refused": (1, 3)}
    book.find(0, [])
    assert launched(book) == [(0, 1)]


def test_what_a_spawner_did_not_get_is_sent_when_it_is_back() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 2))
    book.not_sent(0, book.outbox[0])
    sent(book)
    book.find(0, [])
    assert launched(book) == [(0, 1), (1, 1)]
    book.miss(0, "no room")
    assert reported(book) == {}


def test_an_agent_that_was_restarted_finds_its_tasks() -> None:
    book = TaskTable(AROUND, 2, lambda: 7.5)
    meta = ("job", 1, "main", 1)
    book.find(0, [(meta, 0, 0, "running", None, 5.0), (meta, 1, 4, "waiting", None, 0.0)])
    book.find(1, [(meta, 2, 4, "ended", OK, 0.0)])
    book.reconnected()
    assert book.started("running") == (tasks(0, 1),)
    assert book.run_times(book.started("running")) == (2_500_000,)
    assert reported(book) == {"succeeded": (2, 3)}
    book.handle(launch(0, 3))
    assert launched(book) == []


@pytest.mark.parametrize("spawners", [1, 2, 3])
@pytest.mark.parametrize("rooms", [1, 2, 5, 8])
def test_rooms_of_a_chain_are_spread_over_the_spawners(spawners: int, rooms: int) -> None:
    book = TaskTable(AROUND, spawners)
    front = Launch(tasks(0, rooms), 0, (), 5, 0)
    behind = Launch(tasks(rooms, 100), 0, (), 5, rooms)
    book.handle(Work(1, (SPEC,), (front, behind)))
    told = {spawner: (groups, given[5]) for spawner, _, groups, given in sent(book)}
    assert sum(given for _, given in told.values()) == rooms
    for groups, given in told.values():
        at_once = sum(len(group[2]) for group in groups if not group[4])
        waiting = sum(len(group[2]) for group in groups if group[4])
        assert at_once == given, "a task that starts at once has a room at its spawner"
        assert (waiting > 0) == (given > 0), "no task waits at a spawner without rooms"


def test_many_small_chains_are_spread_too() -> None:
    book = TaskTable(AROUND, 2)
    for chain in range(1, 9):
        front = Launch(tasks(2 * chain, 2 * chain + 1), 0, (), chain, 0)
        behind = Launch(tasks(2 * chain + 1, 2 * chain + 2), 0, (), chain, 1)
        book.handle(Work(1, (SPEC,), (front, behind)))
    given: dict[int, int] = {}
    for spawner, _, groups, _ in sent(book):
        given[spawner] = given.get(spawner, 0) + sum(len(group[2]) for group in groups)
    assert given == {0: 8, 1: 8}


def test_tasks_of_a_chain_that_end_soon_are_reported_by_their_end_alone() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 3, chain=5, rooms=3))
    assert book.queued == 3
    book.hear([key(0), key(1)], [])
    assert book.queued == 1
    assert not book.reporting.has_news
    book.reporting.grow_up()
    book.hear([key(2)], [(key(0), OK)])
    book.reporting.grow_up()
    assert reported(book) == {"succeeded": (0, 1), "running": (1, 2)}


def test_in_a_flood_most_begins_can_wait_for_the_end() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 20))
    book.hear([key(index) for index in range(10)], [])
    assert reported(book) == {"running": (0, 4)}, "a few are told at once"
    book.hear([key(10)], [(key(0), OK), (key(5), OK)])
    assert reported(book) == {"succeeded": (0, 1, 5, 6)}, "others can wait"
    book.confirmed(1)
    book.hear([key(11)], [])
    assert not book.reporting.has_news, "also when those are confirmed, as long as some wait"
    book.reporting.grow_up()
    book.hear([key(12)], [])
    assert reported(book) == {"running": (12, 13)}, "now and then a few more are told at once"
    book.reporting.grow_up()
    assert reported(book) == {"running": (4, 5, 6, 12)}, "tasks that keep running are reported"


def test_one_after_the_other_every_begin_is_told_at_once() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 20))
    for index in range(20):
        book.hear([key(index)], [])
        number, (report,) = book.reporting.batch()
        assert (report.state, report.tasks.indices) == ("running", (index, index + 1))
        book.confirmed(number)


def test_after_a_flood_every_begin_is_told_at_once() -> None:
    book = TaskTable(AROUND, 1)
    book.handle(launch(0, 20))
    book.hear([key(index) for index in range(10)], [])
    book.reporting.grow_up()
    book.reporting.grow_up()
    assert reported(book) == {"running": (0, 10)}
    for index in range(10, 20):
        book.hear([key(index)], [])
        assert reported(book) == {"running": (index, index + 1)}
        book.confirmed(index - 8)


# -- environments ------------------------------------------------------------------------------------------------


def test_agents_keep_their_own_variables_to_themselves() -> None:
    inherited = {"PATH": "/bin", "LC_ALL": "C", "FAIRLEAD_TOKEN": "hush", "AWS_KEY": "x", "USER": "fairlead"}
    assert "USER" not in surroundings("n1", (), inherited, as_users=True).environment
    del inherited["USER"]
    around = surroundings("n1", (), inherited, as_users=False)
    assert around.environment == {"PATH": "/bin", "LC_ALL": "C"}


def test_a_task_has_the_variables_of_its_stage_and_its_secrets() -> None:
    spec = Spec(("true",), (("A", "1"), ("CUDA_VISIBLE_DEVICES", "0,1,2")), "", 500, 1 << 20, (("KEY", "hush"),))
    command, variables, directory, cpu, memory = spawner_spec(AROUND, Launch(tasks(0, 1), 0), spec)
    assert (command, directory, cpu, memory) == (("true",), "/home/ann", 500, 1 << 20)
    assert (variables["A"], variables["KEY"], variables["PATH"]) == ("1", "hush", "/bin")
    assert variables["CUDA_VISIBLE_DEVICES"] == "", "a job cannot give itself a GPU"


def test_gpus_are_given_by_the_environment() -> None:
    two_each = own_variables(AROUND, Launch(tasks(0, 2), 0, (2, 0, 1, 1)))
    assert two_each is not None
    assert [each["CUDA_VISIBLE_DEVICES"] for each in two_each] == ["2,0", "1,1"]


GANG = Gang(5, 2, 20_000, (Place("n2", "10.0.0.2", (0, 2, 4, 5)), Place("n1", "10.0.0.1", (2, 4))))


def test_members_of_a_gang_know_their_ranks() -> None:
    own = own_variables(AROUND, Launch(tasks(0, 2), 0, gang=GANG))
    assert own is not None
    names = "RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK".split()
    assert [[each[name] for name in names] for each in own] == [["2", "0", "2", "1"], ["3", "1", "2", "1"]]
    variables = spawner_spec(AROUND, Launch(tasks(0, 2), 0, gang=GANG), SPEC)[1]
    assert variables["FAIRLEAD_PEERS"] == "10.0.0.2,10.0.0.2,10.0.0.1,10.0.0.1,10.0.0.2"
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"], variables["WORLD_SIZE"]) == ("10.0.0.2", "20000", "5")


def test_a_member_with_its_own_gpu_calls_it_the_first() -> None:
    own = own_variables(AROUND, Launch(tasks(0, 2), 0, (0, 1), gang=GANG))
    assert own is not None
    assert [(each["LOCAL_RANK"], each["FAIRLEAD_LOCAL_RANK"], each["CUDA_VISIBLE_DEVICES"]) for each in own] == [
        ("0", "0", "0"),
        ("0", "1", "1"),
    ]


# -- when to speak -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_work", "waiting", "seconds"),
    [(0, False, 0.0), (1, False, 0.0), (2, False, 0.002), (8, False, 0.004), (64, False, 0.010), (1, True, 0.015)],
)
def test_how_long_to_wait_after_many_messages(at_work: int, waiting: bool, seconds: float) -> None:
    pace = Pace()
    for _ in range(10):
        pace.sent(100.0)
    assert pace.wait(100.0, at_work, waiting) == pytest.approx(seconds)
    assert pace.wait(100.0 + seconds, at_work, waiting) == pytest.approx(0.0)


def test_a_few_messages_after_a_pause_are_sent_at_once() -> None:
    pace = Pace()
    waits = []
    for _ in range(6):
        waits.append(pace.wait(100.0, 10, True) > 0)
        pace.sent(100.0)
    assert waits == [False, False, False, False, True, True]
