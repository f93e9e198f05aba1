"""Faults planted in the core are found by the state machine of all commands. Each has the commands that show it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fairlead.sim.chaos.checkers import CheckFailed
from fairlead.sim.chaos.doorchecker import DoorChecker
from fairlead.testing import World
from tests import planted
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
