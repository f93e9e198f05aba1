"""Faults planted in the core are found by the state machine of all commands. Each has the commands that show it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.testing import World
from tests import planted
from tests.chaos.checkers import CheckFailed
from tests.chaos.rebalance_checker import LoanChecker
from tests.chaos.start_checker import DoorChecker
from tests.core.test_machine import Machine

SMALL = {"resources": {"cpu": 1}, "count": 1, "duration": 1}


@pytest.fixture
def m() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.teardown()


def start(m: Machine, chain: str | int = 0) -> None:
    m.start(rhythm=1, place="pack", first=[SMALL, SMALL], chain=chain, backfill="off", threshold=5, memory=0)
    m.advance(3)


def test_starts_in_a_stopped_queue(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.start_without_rules(monkeypatch)
    start(m)
    m.crowd("root.a", "root.a", 20, [(1, 0)])
    m.advance(1)
    m.move_queue("root.a", "stop_queue")
    m.w.finish("array", "s", 0)
    with pytest.raises(CheckFailed, match=planted.START):
        m.cycle()


def test_starts_of_a_held_job(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.start_held_jobs(monkeypatch)
    start(m)
    m.crowd("root.a", "root.a", 20, [(1, 0)])
    m.advance(1)
    m.w.hold("array", "ann")
    m.w.finish("array", "s", 0)
    with pytest.raises(CheckFailed, match=f"{planted.START}.*its job is held by ann"):
        m.cycle()


def test_members_that_come_back_alone(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.replace_members(monkeypatch)
    m.start(rhythm=1, place="pack", first=[], chain=0, backfill="off", threshold=5, memory=0)
    m.w.node("many", cpu=9)
    m.w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 3, "tries": 2, "resources": {"cpu": 1}}])
    m.advance(1)
    m.w.finish("gang", "s", 1, exit_code=1)
    with pytest.raises(CheckFailed, match="has live members of attempts"):
        m.advance(1)


def test_starts_beyond_a_limit(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.start_without_rules(monkeypatch)
    start(m)
    m.set_queue("root.a", {"users": {"ann": {"limit": {"cpu": 2}}}})
    m.array("j0", "root.a", 10, 1, "replace")
    with pytest.raises(CheckFailed, match=f"{planted.START}.*user ann in queue root.a"):
        m.cycle()


def test_floods_beyond_the_number_of_jobs(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.start_without_rules(monkeypatch)
    start(m)
    m.set_queue("root.b.x", {"max_jobs": 1})
    m.flood("root.b.x", {"cpu": 1}, 6)
    with pytest.raises(CheckFailed, match=f"{planted.START}.*may run 1"):
        m.cycle()


def test_chains_in_a_stopped_queue(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.chain_without_rules(monkeypatch)
    start(m, chain="5s")
    m.array("j0", "root.a", 400, 1, "replace")
    m.advance(3)
    m.move_queue("root.a", "stop_queue")
    with pytest.raises(CheckFailed, match=planted.CHAIN):
        m.advance(25)


def test_orders_for_a_stopped_queue(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.order_without_rules(monkeypatch)
    start(m)
    m.crowd("root.a", "root.a", 20, [(1, 0)])
    m.advance(1)
    m.move_queue("root.a", "stop_queue")
    m.pool("p", {"node": {"cpu": 4, "memory": "4Gi"}, "max": 4})
    with pytest.raises(CheckFailed, match=planted.ORDER):
        m.cycle()


def test_starts_on_a_disconnected_node(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.start_on_disconnected(monkeypatch)
    start(m)
    m.advance(1)
    for name in list(m.w.partition().nodes.joins):
        m.misbehave(name, "disconnect")
    m.cycle()
    m.array("j0", "root.a", 10, 1, "replace")
    with pytest.raises(CheckFailed, match=planted.DISCONNECTED):
        m.cycle()


def test_stops_what_was_placed(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    start(m)
    planted.stop_new_work(monkeypatch)
    m.array("j0", "root.a", 10, 1, "replace")
    with pytest.raises(CheckFailed, match=planted.STOP):
        m.cycle()


def test_stops_in_the_moment_of_a_start(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is full; one task more may run for each that ends. A later cycle of the moment claims that place."""
    planted.stop_in_the_moment(monkeypatch)
    start(m)
    m.crowd("root.a", "root.a", 20, [(1, 0)])
    m.advance(1)
    m.w.finish("array", "s", 0)
    m.cycle()
    m.w.submit(name="high", queue="root.a", priority=9, stages=[{"name": "s", "resources": {"cpu": 1}}])
    with pytest.raises(CheckFailed, match=planted.MOMENT):
        m.cycle()


@pytest.mark.parametrize(("cpus", "free"), [((1, 1), 1), ((1, 2), 2), ((2, 1), 2)])
def test_the_newest_ask_first(m: Machine, monkeypatch: pytest.MonkeyPatch, cpus: tuple[int, int], free: int) -> None:
    """In one lane, and in two; the newest is the larger one or the smaller one."""
    planted.newest_first(monkeypatch)
    start(m)
    m.crowd("root.a", "root.b.x", 10, [(cpu, 0) for cpu in cpus])
    m.advance(1)
    for index in range(free):
        m.w.finish("array", "s", index)
    with pytest.raises(CheckFailed, match=planted.LEAF):
        m.cycle()


def test_turns_without_shares(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.turns_by_name(monkeypatch)
    start(m)
    m.crowd("root.a", "root.b.x", 20, [(1, 0)])
    m.advance(1)
    m.w.finish("array", "s", 0)
    with pytest.raises(CheckFailed, match=planted.TREE):
        m.cycle()


def test_loans_that_are_kept(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.keep_loans(monkeypatch)
    start(m)
    m.crowd("root.a", "root.b.x", 20, [(1, 0)])
    m.advance(10)
    with pytest.raises(CheckFailed, match=planted.LOAN):
        m.advance(25)


def test_a_loan_that_is_spared_as_the_oldest_of_its_array_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.spare_the_oldest(monkeypatch)
    w = World({"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}}, observers=[LoanChecker()])
    for number in range(4):
        w.node(f"n{number}", cpu=1, labels={"n": str(number)})
    w.submit(name="array", queue="root.b", stages=[{"array": 4, "resources": {"cpu": 1}}])
    w.advance(10)
    w.submit(name="want", queue="root.a", stages=[{"resources": {"cpu": 1}, "selectors": {"n": "0"}}])
    with pytest.raises(CheckFailed, match=f"({planted.LOAN}|{planted.OWNER}).*array main.0."):
        w.advance(600)


@pytest.mark.parametrize("end", ["kill", "cancel", "reset_lane"])
def test_what_is_kept_back_for_an_ask_that_is_gone(m: Machine, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    planted.forget_what_was_kept_back(monkeypatch)
    m.start(rhythm=1, place="pack", first=[SMALL], chain=0, backfill="easy", threshold=5, memory=0)
    with pytest.raises(AssertionError):
        m.keep_back("root.a", "root.a", "30s", end)


def owner_beside_loans(seconds: float, **settings: str) -> World:
    """A world in which loans of some length fill a node, and an owner of half of it waits."""
    queues = {"root": {"a": {"share": 60}, "b": {"share": 40}}}
    config = {"queues": queues, "starving_after": "2d", "backfill": "off", **settings}  # no node is held for a borrower
    w = World(config, observers=[LoanChecker()])
    w.nodes(1, cpu=4)
    for at in range(80):
        runs = round(seconds + at * at % 17 * 0.37 + at / 1000, 3)  # no two of them end together
        stage = {"resources": {"cpu": 1}, "duration": runs, "estimate": runs}
        w.submit(queue="root.b", stages=[stage])
    w.cycle()
    w.advance(2.5 * seconds)
    w.submit(name="owner", queue="root.a", stages=[{"resources": {"cpu": 2}}])
    w.cycle()
    return w


def look(w: World, seconds: int) -> None:
    """Let time pass, with a cycle every five seconds, which the checker sees."""
    for _ in range(seconds // 5):
        w.advance(5)
        w.cycle()


def test_loans_that_are_returned_in_time_are_no_fault() -> None:
    w = owner_beside_loans(20)
    look(w, 200)
    assert w.placements("owner")


def test_loans_that_are_never_recalled_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is younger than `min_runtime`, so none is ever stopped."""
    planted.never_recall(monkeypatch)
    w = owner_beside_loans(20)
    with pytest.raises(CheckFailed, match=planted.OWNER):
        look(w, 300)


def test_loans_that_are_renewed_on_nodes_set_aside_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.renew_loans(monkeypatch)
    w = owner_beside_loans(20)
    with pytest.raises(CheckFailed, match=planted.OWNER):
        look(w, 300)


def test_owners_of_loans_that_are_kept_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.keep_loans(monkeypatch)
    w = owner_beside_loans(3600)
    with pytest.raises(CheckFailed, match=f"{planted.OWNER}|{planted.LOAN}"):
        look(w, 300)


def test_loans_that_are_stopped_too_soon_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.ignore_min_runtime(monkeypatch)
    w = owner_beside_loans(3600, rebalance_after="5s", min_runtime="4h", recall_after="0s")
    with pytest.raises(CheckFailed, match=planted.YOUNG):
        look(w, 60)


def test_users_that_take_no_turns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.ignore_users(monkeypatch)
    w = World({"queues": {"root": {"q": {"order": "fair"}}}}, observers=[DoorChecker()])
    w.node("n", cpu=4)
    w.submit(name="first", user="ann", queue="root.q", stages=[{"count": 2, "resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="more", user="ann", queue="root.q", stages=[{"count": 2, "resources": {"cpu": 1}}])
    w.submit(name="other", user="bob", queue="root.q", stages=[{"count": 2, "resources": {"cpu": 1}}])
    with pytest.raises(CheckFailed, match=planted.LEAF):
        w.cycle()


def test_jobs_that_take_no_turns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.oldest_jobs_first(monkeypatch)
    w = World({"queues": {"root": {"q": {"order": "jobs"}}}}, observers=[DoorChecker()])
    w.node("small", cpu=1)
    w.submit(name="first", queue="root.q", stages=[{"array": 2, "resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="other", queue="root.q", stages=[{"array": 2, "resources": {"cpu": 1}}])
    w.node("n", cpu=1)
    with pytest.raises(CheckFailed, match=planted.LEAF):
        w.cycle()


def test_a_past_that_does_not_count_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.ignore_the_past(monkeypatch)
    w = World({"share_memory": "1h", "queues": {"root": {"q": {"order": "fair"}}}}, observers=[DoorChecker()])
    w.node("n", cpu=1)
    one = [{"resources": {"cpu": 1}}]
    first = w.submit(name="first", user="ann", queue="root.q", stages=one)
    w.cycle()
    w.advance(3600)
    w.submit(name="more", user="ann", queue="root.q", stages=one)
    w.submit(name="other", user="bob", queue="root.q", stages=one)
    w.finish(first, "main", 0)
    with pytest.raises(CheckFailed, match=planted.LEAF):
        w.cycle()
