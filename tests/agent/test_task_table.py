"""The agent's task table: its reactions to messages, without processes and network."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.agent.launch_data import Surroundings, own_variables, spawner_spec, surroundings
from fairlead.agent.spawner.pace import Pace
from fairlead.agent.task_table import TaskTable
from fairlead.engines.launches import parts_of
from fairlead.wire.agent_messages import Gang, Launch, Place, Report, Spec, Stop, Tasks, Work

AROUND = Surroundings("n1", "/home/ann", {"PATH": "/bin"}, ("0", "1", "2"))
SPEC = Spec(("true",))
OK = ("exit", 0, "", 7, 5, 9)


def tasks(*indices: int, attempt: int = 1, number: int = 1) -> Tasks:
    return Tasks("job", number, "main", attempt, indices)


def launch(*indices: int, attempt: int = 1, chain: int = 0, slots: int = 0) -> Work:
    return Work(1, (SPEC,), (Launch(tasks(*indices, attempt=attempt), 0, (), chain, slots),))


def key(index: int, attempt: int = 1) -> tuple[int, str, int, int]:
    return (1, "main", attempt, index)


def sent(table: TaskTable) -> list[tuple[Any, ...]]:
    """Return the messages to spawners since the last call."""
    frames = [(spawner, *frame) for spawner, outbox in enumerate(table.outbox) for frame in outbox]
    for outbox in table.outbox:
        outbox.clear()
    return frames


def launched(table: TaskTable) -> list[tuple[int, int]]:
    """Return (index, attempt) of the tasks that the spawners are to start."""
    groups = [group for _, what, *rest in sent(table) if what == "launch" for group in rest[0]]
    return sorted((index, meta[3]) for meta, _, indices, *_ in groups for index in indices)


def reported(table: TaskTable) -> dict[str, tuple[int, ...]]:
    return {report.state: report.tasks.indices for report in table.reporting.batch()[1]}


def test_a_launch_is_taken_once() -> None:
    table = TaskTable(AROUND, 2)
    table.handle(launch(0, 3))
    assert launched(table) == [(0, 1), (1, 1), (2, 1)]
    table.handle(launch(1, 4))
    assert launched(table) == [(3, 1)]


def test_ends_are_reported_until_they_are_confirmed() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 2))
    table.record([key(0), key(1)], [])
    assert reported(table) == {"running": (0, 2)}
    table.record([], [(key(0), OK)])
    number, reports = table.reporting.batch()
    assert reports == (Report(tasks(0, 1), "succeeded", 0, ran=(7,), cpu=(5,), memory=(9,)),)
    assert not table.reporting.has_news
    table.reconnected()  # the connection was lost before the confirmation
    assert reported(table) == {"succeeded": (0, 1)}
    assert table.started("running") == (tasks(1, 2),)
    table.confirmed(number)  # of the lost connection: it does not count
    assert len(table) == 2
    table.confirmed(number + 1)
    table.send_confirmed_ends()
    assert ("confirm", [key(0)]) in [frame[1:] for frame in sent(table)]
    assert len(table) == 1


def test_a_new_spawner_is_told_of_ends_that_were_confirmed_before() -> None:
    """Its ledger still has them. They are neither reported nor confirmed a second time."""
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 1))
    table.record([key(0)], [(key(0), OK)])
    number, _ = table.reporting.batch()
    table.confirmed(number)
    sent(table)
    table.find(0, [(("job", 1, "main", 1), 0, 0, "ended", OK, 0.0)])
    assert sent(table) == [(0, "confirm", [key(0)])]
    assert not table.reporting.has_news
    assert len(table) == 0


def test_a_later_attempt_waits_until_the_earlier_one_has_ended() -> None:
    table = TaskTable(AROUND, 2)
    table.handle(launch(0, 1))
    table.record([key(0)], [])
    sent(table)
    table.handle(Work(1, (SPEC,), launch(0, 1, attempt=2).launches, (Stop(tasks(0, 1), "stale"),)))
    assert [frame[1] for frame in sent(table)] == ["why", "stop"]
    table.record([], [(key(0), ("stopped", 15, "", 0, 0, 0))])
    assert launched(table) == [(0, 2)]


def test_one_that_waits_for_an_earlier_attempt_can_be_stopped_too() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 1))
    table.record([key(0)], [])
    table.handle(launch(0, 1, attempt=2))
    table.handle(Work(1, stops=(Stop(tasks(0, 1, attempt=2), "kill"),)))
    sent(table)
    assert reported(table) == {"running": (0, 1), "stopped": (0, 1)}
    table.record([], [(key(0), OK)])
    assert launched(table) == []


def test_a_stop_of_what_is_not_known_is_confirmed() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(Work(1, stops=(Stop(tasks(4, 6), "kill"),)))
    assert reported(table) == {"stopped": (4, 6)}


def test_what_does_not_stand_any_more_is_returned_unless_it_runs() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 1, chain=5))
    table.handle(launch(1, 5, chain=5, slots=1))
    table.record([key(0)], [])
    sent(table)
    standing = Work(1, (SPEC,), (Launch(tasks(2, 3), 0, (), 5, 1),), standing=True)
    table.handle(standing)
    returned = [frame[2] for frame in sent(table) if frame[1] == "return"]
    assert sorted(key for keys in returned for key in keys) == [key(1), key(3), key(4)]


@pytest.mark.parametrize("most", [0, 1, 10, 1_000])
def test_orders_in_parts_are_orders_in_one_message(most: int) -> None:
    texts = ("a" * 10, "b", "c")
    launches = (
        Launch(tasks(0, 2), 0, values=((0, 1), (0, 2))),
        Launch(tasks(2, 3), 0, (4,), values=((1, 1),)),
        Launch(tasks(0, 1, number=2), 1, (), 5),
        Launch(tasks(1, 9, number=2), 1, (), 5, 2),
    )
    specs = (Spec(("true",), user="ann", parameters=("p", "q")), Spec(("other", "word"), user="ann"))
    stop = Stop(tasks(7, 8), "kill")
    work = Work(1, specs, launches, (stop,), True, (3,), texts)
    found = []
    for orders in ([work], parts_of(work, most)):
        table = TaskTable(AROUND, 1)
        table.handle(launch(5, 6))  # a stop of it was missed
        sent(table)
        for part in orders:
            table.handle(part)
        frames = sent(table)
        starts = []
        for group in [group for _, what, *rest in frames if what == "launch" for group in rest[0]]:
            meta, spec, indices, chain, waits, own = group
            starts += [(meta, spec[0], index, chain, waits, own and own[at]) for at, index in enumerate(indices)]
        returned = [frame[2] for frame in frames if frame[1] == "return"]
        found.append((sorted(starts, key=str), returned, reported(table)))
        assert [part.stops for part in orders if part.stops] == [(stop,)]
        assert [part.confirmed for part in orders if part.confirmed] == [(3,)]
    assert found[0] == found[1] and found[0][1] == [[key(5)]]
    assert len(parts_of(work, 10)) > 2 and parts_of(work, 1_000) == [work]


def test_what_a_new_spawner_does_not_know_was_never_started() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 3))
    table.record([key(0)], [])
    sent(table)
    meta = ("job", 1, "main", 1)
    table.find(0, [(meta, 0, 0, "ended", ("lost", 0, "gone", 0, 0, 0), 0.0), (meta, 1, 0, "running", None, 0.0)])
    assert launched(table) == [(2, 1)]
    assert reported(table) == {"lost": (0, 1), "running": (1, 2)}


def test_a_task_that_never_reached_its_spawner_is_refused_when_the_spawner_is_missing() -> None:
    """A task that was sent to the spawner may run, and is not refused."""
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 1))
    assert launched(table) == [(0, 1)]
    table.handle(launch(1, 3))
    table.not_sent(0, table.outbox[0])
    sent(table)
    table.mark_missing(0, "no room")
    assert reported(table) == {"refused": (1, 3)}
    table.find(0, [])
    assert launched(table) == [(0, 1)]


def test_what_a_spawner_did_not_get_is_sent_when_it_is_back() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 2))
    table.not_sent(0, table.outbox[0])
    sent(table)
    table.find(0, [])
    assert launched(table) == [(0, 1), (1, 1)]
    table.mark_missing(0, "no room")
    assert reported(table) == {}


def test_an_agent_that_was_restarted_finds_its_tasks() -> None:
    table = TaskTable(AROUND, 2, lambda: 7.5)
    meta = ("job", 1, "main", 1)
    table.find(0, [(meta, 0, 0, "running", None, 5.0), (meta, 1, 4, "waiting", None, 0.0)])
    table.find(1, [(meta, 2, 4, "ended", OK, 0.0)])
    table.reconnected()
    assert table.started("running") == (tasks(0, 1),)
    assert table.run_times(table.started("running")) == (2_500_000,)
    assert reported(table) == {"succeeded": (2, 3)}
    table.handle(launch(0, 3))
    assert launched(table) == []


@pytest.mark.parametrize("spawners", [1, 2, 3])
@pytest.mark.parametrize("slots", [1, 2, 5, 8])
def test_slots_of_a_chain_are_spread_over_the_spawners(spawners: int, slots: int) -> None:
    table = TaskTable(AROUND, spawners)
    front = Launch(tasks(0, slots), 0, (), 5, 0)
    behind = Launch(tasks(slots, 100), 0, (), 5, slots)
    table.handle(Work(1, (SPEC,), (front, behind)))
    by_spawner = {spawner: (groups, given[5]) for spawner, _, groups, given in sent(table)}
    assert sum(given for _, given in by_spawner.values()) == slots
    for groups, given in by_spawner.values():
        at_once = sum(len(group[2]) for group in groups if not group[4])
        waiting = sum(len(group[2]) for group in groups if group[4])
        assert at_once == given, "a task that starts at once has a slot at its spawner"
        assert (waiting > 0) == (given > 0), "no task waits at a spawner without slots"


def test_many_small_chains_are_spread_too() -> None:
    table = TaskTable(AROUND, 2)
    for chain in range(1, 9):
        front = Launch(tasks(2 * chain, 2 * chain + 1), 0, (), chain, 0)
        behind = Launch(tasks(2 * chain + 1, 2 * chain + 2), 0, (), chain, 1)
        table.handle(Work(1, (SPEC,), (front, behind)))
    given: dict[int, int] = {}
    for spawner, _, groups, _ in sent(table):
        given[spawner] = given.get(spawner, 0) + sum(len(group[2]) for group in groups)
    assert given == {0: 8, 1: 8}


def test_tasks_of_a_chain_that_end_soon_are_reported_by_their_end_alone() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 3, chain=5, slots=3))
    assert table.queued == 3
    table.record([key(0), key(1)], [])
    assert table.queued == 1
    assert not table.reporting.has_news
    table.reporting.report_long_runs()
    table.record([key(2)], [(key(0), OK)])
    table.reporting.report_long_runs()
    assert reported(table) == {"succeeded": (0, 1), "running": (1, 2)}


def test_in_a_flood_most_starts_are_reported_with_their_end() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 20))
    table.record([key(index) for index in range(10)], [])
    assert reported(table) == {"running": (0, 4)}, "a few are reported at once"
    table.record([key(10)], [(key(0), OK), (key(5), OK)])
    assert reported(table) == {"succeeded": (0, 1, 5, 6)}, "the others can wait"
    table.confirmed(1)
    table.record([key(11)], [])
    assert not table.reporting.has_news, "also when those are confirmed, as long as some wait"
    table.reporting.report_long_runs()
    table.record([key(12)], [])
    assert reported(table) == {"running": (12, 13)}, "now and then a few more are reported at once"
    table.reporting.report_long_runs()
    assert reported(table) == {"running": (4, 5, 6, 12)}, "tasks that keep running are reported"


def test_starts_one_after_the_other_are_reported_at_once() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 20))
    for index in range(20):
        table.record([key(index)], [])
        number, (report,) = table.reporting.batch()
        assert (report.state, report.tasks.indices) == ("running", (index, index + 1))
        table.confirmed(number)


def test_after_a_flood_starts_are_reported_at_once() -> None:
    table = TaskTable(AROUND, 1)
    table.handle(launch(0, 20))
    table.record([key(index) for index in range(10)], [])
    table.reporting.report_long_runs()
    table.reporting.report_long_runs()
    assert reported(table) == {"running": (0, 10)}
    for index in range(10, 20):
        table.record([key(index)], [])
        assert reported(table) == {"running": (index, index + 1)}
        table.confirmed(index - 8)


# -- environments ------------------------------------------------------------------------------------------------


def test_agents_keep_their_own_variables_to_themselves() -> None:
    inherited = {"PATH": "/bin", "LC_ALL": "C", "FAIRLEAD_TOKEN": "hush", "AWS_KEY": "x", "USER": "fairlead"}
    assert "USER" not in surroundings("n1", (), inherited, as_users=True).environment
    del inherited["USER"]
    around = surroundings("n1", (), inherited, as_users=False)
    assert around.environment == {"PATH": "/bin", "LC_ALL": "C"}


def test_a_task_has_the_variables_of_its_stage_and_its_secrets() -> None:
    spec = Spec(("true",), (("A", "1"), ("CUDA_VISIBLE_DEVICES", "0,1,2")), "", 500, 1 << 20, (("KEY", "hush"),))
    command, variables, directory, cpu, memory, *files = spawner_spec(AROUND, Launch(tasks(0, 1), 0), spec)
    files_and_signals = ("", "", None, "", (0, 0, 0), ("", (), ""))
    assert (command, directory, cpu, memory, *files) == (("true",), "/home/ann", 500, 1 << 20, *files_and_signals)
    assert (variables["A"], variables["KEY"], variables["PATH"]) == ("1", "hush", "/bin")
    assert variables["CUDA_VISIBLE_DEVICES"] == "", "a job cannot give itself a GPU"


THREADS = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMEXPR_NUM_THREADS".split()


def test_libraries_start_as_many_threads_as_the_task_has_cpus() -> None:
    def threads(cpu: int, *chosen: tuple[str, str], secrets: tuple[tuple[str, str], ...] = ()) -> list[str]:
        spec = Spec(("true",), chosen, "", cpu, secrets=secrets)
        variables = spawner_spec(AROUND, Launch(tasks(0, 1), 0), spec)[1]
        return [variables.get(name, "") for name in THREADS]

    assert [threads(cpu)[0] for cpu in (0, 1, 1000, 1001, 8000)] == ["1", "1", "1", "2", "8"]
    assert threads(2500) == ["3"] * 4
    assert threads(4000, ("MKL_NUM_THREADS", "2")) == ["4", "4", "2", "4"]
    assert threads(4000, ("OMP_NUM_THREADS", "2,1")) == ["2,1", "", "", ""], "the other libraries follow it"
    assert threads(4000, secrets=(("OMP_NUM_THREADS", "7"),)) == ["7", "", "", ""]


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


# -- when to send ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_work", "waiting", "seconds"),
    [(0, False, 0.0), (1, False, 0.0), (2, False, 0.002), (8, False, 0.004), (64, False, 0.010), (1, True, 0.015)],
)
def test_how_long_to_wait_after_many_messages(at_work: int, waiting: bool, seconds: float) -> None:
    pace = Pace(2)
    for _ in range(10):
        pace.sent(100.0)
    assert pace.wait(100.0, at_work, waiting) == pytest.approx(seconds)
    assert pace.wait(100.0 + seconds, at_work, waiting) == pytest.approx(0.0)


def test_with_many_cores_messages_follow_each_other_faster() -> None:
    pace = Pace(16)
    for _ in range(10):
        pace.sent(100.0)
    assert [pace.wait(100.0, at_work, False) for at_work in (2, 64)] == pytest.approx([0.002, 0.0025])


def test_a_few_messages_after_a_pause_are_sent_at_once() -> None:
    pace = Pace(2)
    waits = []
    for _ in range(6):
        waits.append(pace.wait(100.0, 10, True) > 0)
        pace.sent(100.0)
    assert waits == [False, False, False, False, True, True]


def users_table(**given: Any) -> TaskTable:
    """A table with a spawner for each user, on a machine that works."""
    return TaskTable(AROUND, 0, machine_fails=lambda: False, **given)


def of_user(*indices: int) -> Work:
    return Work(1, (Spec(("true",), user="ann"),), (Launch(tasks(*indices), 0),))


def test_no_task_fails_because_its_node_cannot_start_a_spawner() -> None:
    """A user can be the cause of a spawner that does not answer, but not of a root helper that cannot start one."""
    for node_fault, state in ((True, "refused"), (False, "failed")):
        table = users_table()
        table.handle(of_user(0, 1))
        [frames] = table.outbox
        table.not_sent(0, frames)
        table.mark_missing(0, "it cannot be started", node_fault)
        assert list(reported(table)) == [state]
        table.handle(of_user(1, 2))
        assert list(reported(table)) == [state]


def test_a_task_that_does_not_end_when_it_is_stopped_is_overdue_once() -> None:
    now = 100.0
    table = users_table(steady=lambda: now)
    table.grace = 5.0
    table.handle(of_user(0, 2))
    table.record([key(0), key(1)], [])
    table.handle(Work(1, stops=(Stop(tasks(0, 2), "kill"),)))
    table.record([], [(key(0), ("stopped", 0, "", 1, 0, 0))])
    assert table.overdue(10.0) == set()
    now = 115.1
    assert table.overdue(10.0) == {0}
    assert table.overdue(10.0) == set()


def test_lists_of_result_files_are_kept_before_the_end_is_reported() -> None:
    """A spawner of the version before has True in place of the list."""
    kept: list[tuple[Any, ...]] = []
    table = users_table(keep_list=lambda *given: kept.append(given))
    table.handle(of_user(0, 2))
    ends: list[Any] = [("exit", 0, "", 1, 0, 0, (["a"], [])), ("exit", 0, "", 1, 0, 0, True)]
    table.record([key(0), key(1)], [(key(index), end) for index, end in enumerate(ends)])
    assert kept[0] == ("ann", ("job", 1, "main", 1), 0, (["a"], []))
    assert kept[1][2] == 1 and "by an earlier version" in kept[1][3][1][0]
    [report] = table.reporting.batch()[1]
    assert report.results
