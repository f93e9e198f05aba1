"""Fault scenarios: fixed seeds pass, planted faults are found, and failing scenarios are reduced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from fairlead.agent.task_table import TaskTable
from fairlead.core import expiry
from fairlead.core.changes import Acknowledged, Asked
from fairlead.core.holds import release
from fairlead.core.intake import reports
from fairlead.core.pools import capacity, demand
from fairlead.core.ranges import Ranges
from fairlead.core.resources import SECOND
from tests import planted
from tests.chaos.checkers import AnswerChecker, AttemptChecker, CheckFailed, RoomChecker
from tests.chaos.faults import (
    PROFILES,
    AgentFault,
    CloudFault,
    LeaderFault,
    MachineFault,
    Scenario,
    ServerFault,
    Submission,
    draw_scenario,
)
from tests.chaos.leader_checker import LeaderChecker
from tests.chaos.run import Failure, Trial, try_out
from tests.chaos.soak import describe, main, shrink
from tests.chaos.tasks import Live, Task, flat, indices
from tests.sim import planted_parts

# Seeds that failed once, and some others. The scenarios of the seeds have changed since: the faults that they found
# have their own tests in tests/core, tests/agent and tests/http.
FIXED = [
    ("calm", (*range(4), 57, 20117, 200891, 201081, 310762, 400239)),
    ("agents", (*range(10), 300170, 410613, 800169, 801468, 820186)),
    ("server", (*range(10), 600518, 700219, 701222, 101438, 101920, 700199, 800587, 201479, 719)),
    ("all", (*range(16), 20169, 300032, 600174, 600434, 816, 103701, 104381, 110862, 113587, 114159)),
    ("servers", (*range(6), 54)),
    (
        "storm",
        (
            *range(6),
            117,
            701109,
            700340,
            700274,
            600533,
            100406,
            101517,
            210407,
            300018,
            310040,
            400004,
            700034,
            800315,
            820035,
            200211,
            201633,
        ),
    ),
]


@pytest.mark.parametrize(("profile", "seed"), [(profile, seed) for profile, seeds in FIXED for seed in seeds])
def test_a_seed(profile: str, seed: int) -> None:
    failure = try_out(draw_scenario(seed, PROFILES[profile]))
    assert failure is None, "\n".join(describe(failure))


def test_a_scenario_is_the_same_again() -> None:
    scenario = draw_scenario(3, PROFILES["all"])
    assert scenario == draw_scenario(3, PROFILES["all"])
    kinds = {type(event) for event in scenario.events}
    assert {Submission, AgentFault, ServerFault} <= kinds


DIGEST = """
import hashlib
from tests.chaos.faults import PROFILES, draw_scenario
from tests.chaos.run import Trial
for profile, seed in (("storm", 4), ("all", 11), ("servers", 7)):
    trial = Trial(draw_scenario(seed, PROFILES[profile]))
    trial.run()
    print(len(trial.lines), hashlib.sha256("\\n".join(trial.lines).encode()).hexdigest())
"""


def test_a_trial_is_the_same_again_to_the_byte_whatever_hashes_are() -> None:
    logs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert logs[0] == logs[1] and logs[0].count("\n") == 3


def test_servers_get_the_same_scenarios_and_more() -> None:
    scenario = draw_scenario(3, PROFILES["servers"])
    alone = draw_scenario(3, msgspec.structs.replace(PROFILES["servers"], leader_faults=0))
    assert scenario.servers > alone.servers == 1 and (scenario.config, scenario.nodes) == (alone.config, alone.nodes)
    assert [event for event in scenario.events if not isinstance(event, LeaderFault)] == list(alone.events)


def test_some_scenarios_have_pools() -> None:
    with_pools = [seed for seed in range(20) if "pools" in draw_scenario(seed, PROFILES["all"]).config]
    kinds = {type(event) for seed in with_pools for event in draw_scenario(seed, PROFILES["all"]).events}
    assert 3 <= len(with_pools) <= 10 and {CloudFault, MachineFault} <= kinds


# -- planted faults ----------------------------------------------------------------------------------------------


def forget_to_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped undo: an acknowledgement that is taken back leaves its task running."""
    monkeypatch.setattr(Acknowledged, "undo", lambda self, partition, before: None)


def forget_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped undo of demand: the ask stays in its lane."""
    monkeypatch.setattr(Asked, "undo", lambda self, partition, before: None)


def accept_stale_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report counts whatever its attempt."""

    def live(plan: Any, stage: Any, command: Any) -> list[Any]:
        known = Ranges.from_indices(index for index in Ranges(command.indices) if index in (stage.live or {}))
        found: dict[int, list[int]] = {}
        for index in known:
            allocation = stage.live[index]
            if reports._node(plan, allocation) == command.node:
                found.setdefault(allocation.id, []).append(index)
        return [(plan.partition.allocations[number], flat(block)) for number, block in found.items()]

    monkeypatch.setattr(reports, "_whole", lambda plan, stage, command: None)
    monkeypatch.setattr(reports, "_live", live)


def keep_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold is not released when it expires or its nodes change."""
    monkeypatch.setattr(release, "_expired", lambda partition, kept: None)


def order_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are coming are not counted."""
    monkeypatch.setattr(capacity.Packing, "expect", lambda self, wants: None)


def ignore_max(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool grows beyond its `max`."""
    monkeypatch.setattr(capacity, "nodes_left", lambda partition, pool: None)
    monkeypatch.setattr(demand, "nodes_left", lambda partition, pool: None)


def wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that do not come are not given up."""
    monkeypatch.setattr(expiry, "give_up_late", lambda plan: None)


def give_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """`min` and the idle settings are ignored: all idle nodes are given back."""
    monkeypatch.setattr(demand, "nodes_to_give_back", lambda *, idle, **_: idle)


def give_back_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that came for a gang are given back before the others have come."""

    def idle_nodes(partition: Any, pool: Any) -> list[int]:
        rows = {node_id: partition.nodes.rows[node_id] for node_id in partition.idle}
        return [
            node_id
            for node_id, row in rows.items()
            if (partition.nodes.pool[row], partition.nodes.state[row]) == (pool.name, "up")
        ]

    monkeypatch.setattr(demand, "idle_nodes", idle_nodes)


@pytest.mark.parametrize(
    ("plant", "profile", "seeds"),
    [
        (keep_holds, "calm", range(30)),
        (forget_to_undo, "server", range(20)),
        (forget_a_place, "server", range(20)),
        (accept_stale_attempts, "agents", range(60)),
        (order_again, "calm", range(20)),
        (ignore_max, "calm", range(20)),
        (wait_for_ever, "agents", range(20)),
        (give_all_back, "calm", range(20)),
        (give_back_what_is_kept, "calm", range(20)),
    ],
)
def test_planted_bugs_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], profile: str, seeds: range
) -> None:
    plant(monkeypatch)
    assert any(try_out(draw_scenario(seed, PROFILES[profile])) for seed in seeds)


@pytest.mark.parametrize(
    ("plant", "text", "profile", "seeds"),
    [
        (planted_parts.dispatch_before_the_commit, "and the server believes", "server", range(5)),
        (
            planted_parts.answer_what_was_not_written,
            "was accepted, has not ended, and is not known",
            "server",
            range(5),
        ),
        (planted_parts.drop_a_message, "has no answer", "calm", range(5)),
        (planted_parts.forget_timers, "it does not end", "calm", (17, 26)),
        (planted_parts.create_again, "is asked for, and was listed", "agents", range(6)),
        (planted_parts.fail_what_has_come, "is given up, and is there", "calm", range(6)),
        (planted_parts.destroy_what_runs, "is destroyed and still runs something", "calm", range(6)),
        (planted_parts.start_twice, "starts as attempt", "calm", range(5)),
        (planted_parts.forget_ends, "does not know what it was told to run", "agents", range(5, 9)),
        (planted_parts.ignore_early_stops, "was told to stop and has not", "all", range(8)),
        (planted_parts.lose_standing_work, "and the server believes", "agents", range(5)),
        (planted_parts.confirm_at_once, "does not know what it was told to run", "server", range(5)),
        (planted_parts.never_call_a_node_lost, "has been silent", "storm", range(2, 8)),
        (planted_parts.keep_what_runs_to_itself, "", "agents", range(5)),
        (planted_parts.keep_disconnections_to_itself, "on a node without an agent", "agents", range(24, 40)),
        (planted.start_on_disconnected, planted.DISCONNECTED, "agents", range(12)),
        (planted.replace_members, "has live members of attempts", "calm", range(12)),
        (planted_parts.append_without_epoch, "writes to partition/default under epoch", "servers", range(3)),
        (planted_parts.take_leases_early, "and the lease of", "servers", range(3)),
        (planted_parts.serve_beyond_the_lease, "serves under epoch", "servers", range(8)),
    ],
)
def test_planted_faults_of_shipped_parts_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: planted.Plant, text: str, profile: str, seeds: Sequence[int]
) -> None:
    plant(monkeypatch)
    failures = (try_out(draw_scenario(seed, PROFILES[profile])) for seed in seeds)
    found = next(failure for failure in failures if failure is not None)
    assert text in found.problem


def two_leaders(seed: int) -> Scenario:
    """An agent follows another leader while the first is cut off, and reaches the first when the other restarts."""
    drawn = draw_scenario(seed, PROFILES["servers"])
    events = (
        LeaderFault(20 * SECOND, "cut off", 0, 60 * SECOND),
        LeaderFault(20 * SECOND, "cut off agents", 0, 20 * SECOND),
        LeaderFault(42 * SECOND, "restart", 0, SECOND),
    )
    config = {key: value for key, value in drawn.config.items() if key != "pools"}
    return Scenario(seed, config, {"n0": {"cpu": 2}}, events, servers=2)


@pytest.mark.parametrize("obeys", [False, True])
def test_an_agent_that_obeys_two_leaders_is_found(monkeypatch: pytest.MonkeyPatch, obeys: bool) -> None:
    """Servers that look at no clock lead at the same time. Agents refuse the earlier one, unless that is broken too."""
    planted_parts.serve_beyond_the_lease(monkeypatch)
    monkeypatch.setattr(LeaderChecker, "serves", lambda self, server, epoch: None)
    if obeys:
        planted_parts.obey_any_leader(monkeypatch)
    trials = [Trial(two_leaders(seed)) for seed in (1, 2)]
    problems = [_problem(trial) for trial in trials]
    assert any("obeys server" in problem for problem in problems) == obeys, problems
    refused = [line for trial in trials for line in trial.lines if "is over, since" in line]
    assert bool(refused) == (not obeys)


def _problem(trial: Trial) -> str:
    try:
        trial.run()
    except CheckFailed as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize(
    ("plant", "text", "seeds"),
    [
        (planted.start_without_rules, planted.START, range(6)),
        (planted.order_without_rules, planted.ORDER, range(20)),
        (planted.stop_new_work, planted.STOP, range(6)),
        (planted.newest_first, planted.LEAF, range(12)),
        (planted.turns_by_name, planted.TREE, range(30)),
        (planted.keep_loans, planted.LOAN, range(20, 40)),
    ],
)
def test_starts_and_loans_are_judged(
    monkeypatch: pytest.MonkeyPatch, plant: planted.Plant, text: str, seeds: range
) -> None:
    planted.count_only(monkeypatch, text)
    plant(monkeypatch)
    failures = (try_out(draw_scenario(seed, PROFILES["calm"])) for seed in seeds)
    assert any(failure is not None and text in failure.problem for failure in failures)


def test_a_failure_is_cut_down(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    forget_to_undo(monkeypatch)
    found = next(
        failure for seed in range(20) if (failure := try_out(draw_scenario(seed, PROFILES["server"]))) is not None
    )
    short = shrink(found, seconds=20)
    # One job and at most one more event are enough.
    assert len(short.scenario.events) <= 2 < len(found.scenario.events)
    assert main(["--profile", "server", "--first", str(found.scenario.seed), "--seeds", "1"]) == 1
    printed = capsys.readouterr().out
    assert f"seed {found.scenario.seed}: " in printed and "submit j" in printed and "--first" in printed


def test_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--profile", "calm", "--seeds", "2"]) == 0
    assert "2 seeds" in capsys.readouterr().out


def test_faults_of_our_own_are_failures_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskTable, "handle", lambda self, work: 1 / 0)
    failure = try_out(draw_scenario(0, PROFILES["calm"]))
    assert isinstance(failure, Failure) and failure.problem.startswith("ZeroDivisionError")


# -- the checkers ------------------------------------------------------------------------------------------------


class Machine:
    """The part of an agent that the checkers read."""

    def __init__(self, name: str, *running: Live) -> None:
        self.name = name
        self.running = {live.task: live for live in running}


TASK = Task("j", 1, "s", 0)


def test_two_attempts_at_once() -> None:
    checker = AttemptChecker()
    checker.started("a", Live(TASK, 1, ()))
    with pytest.raises(CheckFailed, match="runs as attempt"):
        checker.started("b", Live(TASK, 2, ()))
    checker.ended(Live(TASK, 1, ()), "lost")
    with pytest.raises(CheckFailed, match="not a new one"):
        checker.started("b", Live(TASK, 1, ()))


@pytest.mark.parametrize(
    ("tasks", "devices", "problem"),
    [(3, (), "milli-CPU"), (2, (0,), "on device 0"), (1, (1,), "has no device 1")],
)
def test_more_than_a_machine_has(tasks: int, devices: tuple[int, ...], problem: str) -> None:
    checker = RoomChecker({"a": {"cpu": 2, "gpu": 1}}, {("j", "s"): {"cpu": 1000, "gpu": 600}})
    running = [Live(msgspec.structs.replace(TASK, index=index), 1, devices) for index in range(tasks)]
    with pytest.raises(CheckFailed, match=problem):
        checker.check(Machine("a", *running))
    checker.check(Machine("a", Live(TASK, 1, (0,))))


def test_two_answers() -> None:
    from fairlead.core.commands import Accepted, Rejected

    checker = AnswerChecker()
    checker.answered("k", Rejected("x", "no"), "j")  # a refused request may be repeated
    checker.answered("k", Accepted(job="j"), "j")
    for answer in (Accepted(job="i"), Rejected("x", "no")):
        with pytest.raises(CheckFailed):
            checker.answered("k", answer, "j")


def test_blocks_by_hand() -> None:
    assert indices((0, 2, 5, 6)) == [0, 1, 5] and flat([5, 1, 0]) == (0, 2, 5, 6)
