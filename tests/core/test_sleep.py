"""Sleeping lanes wake in time: what is remembered about lanes, holds and claims is dropped when its cause is gone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest

from fairlead.core import cycle
from fairlead.core.commands import Command
from fairlead.core.dump import dump, load
from fairlead.core.why.reasons import NoCapacity
from fairlead.testing import World
from fairlead.writer.writer import Writer


def _submit(w: World, name: str, queue: str, count: int = 1, **rest: Any) -> str:
    stage = {"name": "s", "count": count, "min": rest.pop("min", 1), "resources": rest.pop("resources", {"cpu": 1})}
    return w.submit(name=name, queue=queue, stages=[stage], **rest)


def test_a_raised_priority_claims_at_once() -> None:
    w = World({"queues": {"root": {"a": {"limit": {"cpu": 2}, "guarantee": {"cpu": 2}}}}})
    w.node("n", cpu=4)
    first = _submit(w, "first", "root.a", 2)
    w.advance(1)
    later = _submit(w, "later", "root.a")
    w.cycle()
    w.cycle()
    w.set_priority(later, 1)
    w.cycle()
    assert [w.task(first, "s", index).state for index in (0, 1)] == ["running", "stopping"]
    assert list(w.promises()) == [(later, "s", "new")]


def test_a_lowered_priority_can_be_claimed_at_once() -> None:
    w = World({"queues": {"root": {"a": {"guarantee": {"cpu": 1}}}}})
    w.node("n", cpu=1)
    first = _submit(w, "first", "root.a")
    w.advance(1)
    later = _submit(w, "later", "root.a")
    w.cycle()
    w.cycle()
    w.set_priority(first, -1)
    w.cycle()
    assert list(w.promises()) == [(later, "s", "new")]


def test_a_stopped_queue_wants_nothing() -> None:
    w = World({"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}, "rebalance_threshold": 10})
    w.node("n", cpu=2)
    _submit(w, "b", "root.b", 2)
    w.cycle()
    waiting = _submit(w, "a", "root.a")
    w.cycle()
    assert w.partition().uneven
    w.stop_queue("root.a")
    w.cycle()
    assert not w.partition().uneven
    assert "stopped" in str(w.explain(waiting)[0].reason)


def test_a_whole_job_waits_only_for_what_it_needs() -> None:
    w = World({"queues": {"root": {"a": {}}}})
    w.node("n", cpu=1, gpu=1)
    one = _submit(w, "one", "root.a")
    _submit(w, "other", "root.a", resources={"gpu": 1})
    w.cycle()
    stages = [{"name": "s", "resources": {"cpu": 1}}, {"name": "t", "resources": {"gpu": 1}}]
    whole = w.submit(name="whole", queue="root.a", gang="job", stages=stages)
    w.cycle()
    w.scale(whole, "t", 0)
    w.cycle()
    w.finish(one)
    w.cycle()
    assert w.placements(whole) == {("s", 0): "n"}


def test_a_hold_ends_when_others_use_up_what_its_holder_is_allowed() -> None:
    w = World({"queues": {"root": {"a": {"max_jobs": 1}, "b": {}}}, "starving_after": "1s"})
    w.node("n", cpu=2, labels={"kind": "n"})
    w.node("m", cpu=1)
    _submit(w, "b", "root.b")
    _submit(w, "c", "root.b", resources={"cpu": 2})
    w.cycle()
    gang = _submit(w, "gang", "root.a", 2, min=2)
    w.advance(2)
    assert w.holds() == {"n": [(gang, "s", 2)]}
    w.node("o", cpu=1, gpu=1)
    _submit(w, "small", "root.a", resources={"gpu": 1})
    w.cycle()
    assert not w.holds()


def test_an_ask_that_was_over_its_limit_starves_first_once_it_is_allowed() -> None:
    queues = {"a": {"share": 0, "users": {"ann": {"limit": {"cpu": 1}}}}, "b": {"share": 100}}
    w = World({"queues": {"root": queues}, "starving_after": "10s"})
    w.node("n", cpu=2)
    _submit(w, "one", "root.a", user="ann")
    w.cycle()
    _submit(w, "many", "root.b", 9)
    w.cycle()
    ann = _submit(w, "ann", "root.a", user="ann")
    _submit(w, "bob", "root.a", user="bob")
    w.cycle()
    w.finish("one")
    w.advance(11)
    assert w.holds() == {"n": [(ann, "s", 1)]}


def test_an_ask_entitled_to_all_slots_lacks_room_and_not_share() -> None:
    w = World({"starving_after": "10s"})
    w.node("n", cpu=2)
    low = _submit(w, "low", "root.default", 2)
    w.advance(1)
    high = _submit(w, "high", "root.default", priority=1, preemptible=False)
    w.cycle()
    assert list(w.promises()) == [(high, "s", "new")]
    assert w.task(low, "s", 1).state == "stopping"


def test_a_promise_outlives_a_share_that_is_spent_for_now() -> None:
    w = World({"queues": {"root": {"a": {"share": 50}, "b": {"share": 50}}}})
    w.node("n", cpu=2, labels={"kind": "n"})
    w.node("m", cpu=2)
    stage = {"name": "s", "resources": {"cpu": "1500m"}, "selectors": {"kind": "n"}}
    low = w.submit(name="low", queue="root.a", stages=[stage])
    _submit(w, "b", "root.b", resources={"cpu": "1500m"})
    w.advance(1)
    high = w.submit(name="high", queue="root.a", priority=1, preemptible=False, stages=[stage])
    w.silence("n")
    w.cycle()
    assert list(w.promises()) == [(high, "s", "new")]
    _submit(w, "other", "root.a", resources={"cpu": "500m"})
    w.cycle()
    w.cycle()
    assert w.usage("root.a") == {"cpu": 2} and w.task(low, "s", 0).state == "stopping"
    assert list(w.promises()) == [(high, "s", "new")]


def test_a_promise_waits_for_every_task_that_it_counts_on() -> None:
    w = World({"queues": {"root": {"a": {}}}})
    w.node("n", cpu=1)
    w.node("m", cpu=1)
    slow = _submit(w, "slow", "root.a")
    low = _submit(w, "low", "root.a")
    w.advance(1)
    w.silence("n")
    w.kill(slow)
    gang = _submit(w, "gang", "root.a", 2, min=2, priority=1)
    w.cycle()
    w.cycle()
    w.cycle()
    assert w.task(slow, "s", 0).state == "stopping" and w.task(low, "s", 0).state == "pending"
    assert list(w.promises()) == [(gang, "s", "new")]
    w.report(slow, "s", 0, 1, "stopped")
    w.cycle()
    assert w.placements(gang) == {("s", 0): "m", ("s", 1): "n"}


def test_what_stops_already_does_not_count_towards_a_guarantee() -> None:
    """Otherwise two claimants would each take what one of them may take, and the queue would claim it back for ever."""
    queues = {"a": {"guarantee": {"cpu": 5}}, "b": {"guarantee": {"cpu": 2}}}
    w = World({"queues": {"root": queues}})
    w.node("n", cpu=4, memory="1Gi")
    w.node("m", cpu=3, memory="1Gi")
    _submit(w, "a", "root.a", 6)
    _submit(w, "b", "root.b", 1)
    w.advance(1)
    for name, asked in (("one", {"cpu": 1}), ("other", {"cpu": 1, "memory": 1})):
        _submit(w, name, "root.b", resources=asked)
    w.cycle()
    assert len(w.promises()) == 1
    for _ in range(5):
        w.cycle()
    assert w.usage("root.a")["cpu"] == 5 and w.usage("root.b")["cpu"] == 2


def test_the_room_of_a_promise_that_did_not_help_is_there_for_others_at_once() -> None:
    w = World({"queues": {"root": {"a": {"limit": {"cpu": 1}}, "b": {}}}})
    w.node("n", cpu=1)
    _submit(w, "low", "root.a")
    w.advance(1)
    _submit(w, "high", "root.a", priority=1)
    w.cycle()
    assert w.promises()
    w.queue("root.a", limit={"cpu": 0})
    other = _submit(w, "other", "root.b")
    w.advance(0)
    assert not w.promises() and w.placements(other)


def test_an_ask_that_a_claim_did_not_help_claims_again_after_a_pause() -> None:
    w = World({"queues": {"root": {"a": {}}}, "preempt_grace": "5s", "promise_for": "5s", "lease": "1h"})
    w.node("m", cpu=1)
    w.node("n", cpu=1)
    _submit(w, "first", "root.a")
    second = _submit(w, "second", "root.a")
    w.advance(1)
    w.silence("n")
    high = _submit(w, "high", "root.a", priority=1)
    w.cycle()
    assert w.task(second, "s", 0).state == "stopping" and w.promises()
    w.advance(10)
    assert not w.promises()
    w.drain("n")
    w.advance(4)
    assert not w.promises()
    w.advance(2)
    assert w.placements(high) == {("s", 0): "m"}


def test_an_ask_that_could_not_claim_tries_again_when_a_task_begins_to_stop() -> None:
    w = World({"queues": {"root": {"a": {}}}, "preempt_grace": "1h", "lease": "1h"})
    w.node("n", cpu=2)
    stage = {"name": "s", "resources": {"cpu": 1}, "time_limit": "5s"}
    w.submit(name="firm", queue="root.a", preemptible=False, stages=[stage])
    low = _submit(w, "low", "root.a")
    w.cycle()
    w.cycle()
    w.silence("n")
    high = _submit(w, "high", "root.a", priority=1, resources={"cpu": 2})
    w.advance(4)
    assert not w.promises()
    w.advance(2)
    assert list(w.promises()) == [(high, "s", "new")] and w.task(low, "s", 0).state == "stopping"


@pytest.mark.parametrize("gang", ["stage", "job"])
@pytest.mark.parametrize("started", [False, True], ids=["new", "growth"])
def test_the_reason_of_a_scaled_stage_has_its_new_count(started: bool, gang: str) -> None:
    """There is no room for a single task, before and after, so only the new count can wake the lane."""
    w = World()
    w.node("n", cpu=4)
    w.node("away", cpu=9)
    w.cycle()
    w.disable("away")
    base = int(started)
    w.submit(name="filler", preemptible=False, stages=[{"resources": {"cpu": 4 - base}}])
    job = w.submit(name="gang", gang=gang, stages=[{"name": "s", "count": base or 4, "resources": {"cpu": 1}}])
    w.advance(0)
    if started:
        w.scale(job, "s", 5)
        w.cycle()
    for count in (4, 2, 3):
        w.scale(job, "s", base + count)
        w.cycle()
        (waits,) = w.explain(job)
        assert isinstance(waits.reason, NoCapacity) and (waits.count, waits.reason.wanted) == (count, count)


def test_a_part_of_a_held_node_serves_its_owner_at_once() -> None:
    """`small` starves too: the node is held for both, and has room for it already."""
    w = World({"starving_after": "10s", "hold_for": "1h"})
    w.node("n", cpu=4)
    _submit(w, "old", "root.default", resources={"cpu": 2}, preemptible=False)
    w.advance(0)
    _submit(w, "large", "root.default", resources={"cpu": 3})
    w.advance(11)
    _submit(w, "small", "root.default")
    w.advance(5)
    assert list(w.holds()) == ["n"] and not w.placements("small")
    w.advance(6)
    assert w.placements("small") and [job for job, _, _ in w.holds()["n"]] == ["large"]


def test_sleeping_asks_claim_in_turn_too() -> None:
    """`pair` sleeps until a task stops. Its queue uses less, so it has the turn before `one`, and counts on that."""
    w = World({"queues": {"root": {"f": {}, "q": {}}}})
    w.nodes(4, cpu=1)
    _submit(w, "f-low", "root.f")
    _submit(w, "q-low", "root.q")
    shrinks = _submit(w, "shrinks", "root.q", 2, priority=9)
    w.advance(0)
    _submit(w, "pair", "root.f", 2, min=2, priority=3)
    w.advance(1)
    assert not w.promises()
    w.scale(shrinks, "s", 1)
    _submit(w, "one", "root.q", priority=3)
    w.cycle()
    assert w.task("f-low", "s", 0).state == w.task("q-low", "s", 0).state == "stopping"
    assert list(w.promises()) == [("pair", "s", "new"), ("one", "s", "new")]


def test_an_ask_claims_when_another_took_what_was_coming() -> None:
    """When the turn of `pair` comes, a node is free and another is coming. Then `later` takes the free one."""
    w = World({"queues": {"root": {"f": {}, "q": {}}}})
    w.nodes(5, cpu=1)
    low = _submit(w, "low", "root.f")
    shrinks = _submit(w, "shrinks", "root.q", 3, priority=9)
    w.advance(1)
    w.scale(shrinks, "s", 2)
    _submit(w, "pair", "root.f", 2, min=2, priority=3)
    _submit(w, "later", "root.q")
    w.cycle()
    assert w.placements("later") and w.task(low, "s", 0).state == "stopping"
    assert list(w.promises()) == [("pair", "s", "new")]


# -- a state that was just loaded decides the same ---------------------------------------------------------------


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decide each cycle a second time, on a copy of the state that remembers nothing, and compare."""
    decide = Writer.cycle

    def both(writer: Writer, commands: Sequence[Command], now: int) -> cycle.Cycle:
        loaded = load(dump(writer.partition))
        loaded.readiness = copy(writer.partition.readiness)
        loaded.retime()
        done = decide(writer, commands, now)
        assert cycle.run(loaded, commands, now).changes == done.changes
        return done

    monkeypatch.setattr(Writer, "cycle", both)


@pytest.mark.usefixtures("alike")
def test_it_does_not_matter_in_which_order_jobs_came_to_work() -> None:
    """`a` came to work before `b`; what it has now it got later."""
    w = World()
    w.nodes(3, cpu=1)
    first = _submit(w, "a", "root.default", 2)
    w.advance(1)
    _submit(w, "b", "root.default")
    w.advance(1)
    w.scale(first, "s", 1)
    w.advance(1)
    w.scale(first, "s", 2)
    w.advance(1)
    w.finish(first, "s", 0)
    w.advance(1)
    _submit(w, "high", "root.default", 3, min=3, priority=1)
    w.cycle()
    assert list(w.promises()) == [("high", "s", "new")]


@pytest.mark.usefixtures("alike")
def test_the_first_without_room_is_another_one_when_it_has_become_too_late() -> None:
    """`short` would be over before `head` starts, for 5 s. Then it waits for that, not for room."""
    settings = {"backfill": "easy", "starving_after": "10s", "hold_for": "1h", "held_nodes_percent": 100}
    w = World({**settings, "queues": {"root": {"a": {}, "b": {}}}})
    w.nodes(5, cpu=1)
    for number in range(5):
        work = {"name": "s", "resources": {"cpu": 1}, "estimate": 20 if number else 900}
        w.submit(name=f"old{number}", queue="root.a", stages=[work])
    w.advance(0)
    w.submit(name="head", queue="root.b", stages=[{"name": "s", "count": 4, "resources": {"cpu": 1}, "estimate": 9}])
    w.advance(0)
    w.submit(name="short", queue="root.a", stages=[{"name": "s", "resources": {"cpu": 1}, "estimate": 15}])
    w.advance(9)
    assert not w.holds()
    w.advance(10)
    assert w.holds()


@pytest.mark.usefixtures("alike")
def test_what_a_later_turn_releases_is_for_the_first_without_room() -> None:
    """The node is held for `gang`, which does not need all of it when it starts."""
    w = World({"backfill": "easy", "starving_after": "10s", "hold_for": "1h"})
    w.node("n", cpu=4)
    old = _submit(w, "old", "root.default", resources={"cpu": 4}, preemptible=False)
    w.advance(0)
    _submit(w, "gang", "root.default", 3, min=3)
    w.advance(11)
    assert w.holds()
    _submit(w, "high", "root.default", priority=1, preemptible=False)
    w.advance(0)
    w.finish(old)
    w.advance(0)
    assert w.placements("gang") and w.placements("high")


@pytest.mark.usefixtures("alike")
@pytest.mark.parametrize("seed", [13, 21, 26, 32, 48, 60, 108, 244])
@pytest.mark.parametrize("starving_after", ["2d", "5s"])
def test_days_of_all_kinds(seed: int, starving_after: str) -> None:
    r = random.Random(seed)
    settings = {
        "backfill": "easy" if seed % 4 == 0 else "off",
        "replace_within": "30s",
        "starving_after": starving_after,
    }
    leaves = {
        "q": {"order": "priority", "scale_first": r.random() < 0.5},
        "f": {"order": r.choice(["priority", "fair", "fifo"])},
    }
    w = World({**settings, "max_placed": r.choice([3, 5000]), "queues": {"root": leaves}})
    nodes = [f"n{number}" for number in range(6)]
    for name in nodes:
        w.node(name, cpu=r.randint(1, 4))
    jobs: list[str] = []
    down: list[str] = []
    for _ in range(60):
        for _ in range(r.randint(1, 3)):
            what = r.random()
            if what < 0.3:
                count = r.randint(1, 5)
                stage = {"name": "w", "count": count, "resources": {"cpu": 1}}
                stage["on_loss"] = r.choice(["replace"] * 4 + ["restart"])
                for name, value, chance in (("min", r.randint(1, count), 0.7), ("estimate", r.randint(1, 20), 0.5)):
                    if r.random() < chance:
                        stage[name] = value
                if r.random() < 0.6:
                    stage["duration"] = r.randint(1, 30)
                jobs.append(
                    w.submit(
                        name="j",
                        queue=r.choice(["root.q"] * 3 + ["root.f"]),
                        priority=r.randint(0, 3),
                        preemptible=r.random() < 0.5,
                        gang=r.choice(["stage"] * 4 + ["job"]),
                        stages=[stage],
                    )
                )
            elif what < 0.5 and len(down) < 4:
                down.append(r.choice([name for name in nodes if name not in down]))
                w.fail_node(down[-1])
            elif what < 0.7 and down:
                w.return_node(down.pop(r.randrange(len(down))))
            elif what < 0.8 and jobs:
                w.scale(r.choice(jobs), "w", r.randint(1, 7))
            elif what < 0.88 and jobs:
                w.set_priority(r.choice(jobs), r.randint(0, 4))
            elif what < 0.92 and jobs:
                w.prioritise(r.choice(jobs), "w")
            elif what < 0.95:
                (w.hold_acks if r.random() < 0.3 else w.release_acks)(r.choice(nodes))
        w.advance(r.choice([0, 0, 1, 5]))
