"""Order `fair`: users take turns by use; with `share_memory` the past counts too."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.core.changes import QueuesSet, SettingsSet
from fairlead.core.dump import dump, load
from fairlead.core.match.user_turns import UseLadder
from fairlead.core.model import Account, Limits, QueueSettings
from fairlead.core.past_use import past_part
from fairlead.core.plan import Plan
from fairlead.core.policy.decay import after_shift, booked_use, past_use, rescaled, total_weight
from fairlead.core.policy.turns import count_out
from fairlead.testing import World
from tests.chaos.start_checker import DoorChecker
from tests.chaos.users import UserUses

HOUR = 3600


def world(memory: str | int = 0, **queue: Any) -> World:
    settings = {"share_memory": memory, "queues": {"root": {"q": {"order": "fair", **queue}}}}
    return World(settings, observers=[DoorChecker()])


def many(w: World, user: str, count: int, cpu: float = 1, **job: Any) -> str:
    stage = {"name": "s", "count": count, "min": 1, "resources": {"cpu": cpu}, **job.pop("stage", {})}
    return w.submit(name=user, user=user, queue="root.q", stages=[stage], **job)


def running(w: World, *jobs: str) -> tuple[int, ...]:
    return tuple(len(w.placements(job)) for job in jobs)


# -- turns -------------------------------------------------------------------------------------------------------


def test_two_users_get_half_each() -> None:
    w = world()
    w.nodes(5, cpu=4)
    jobs = [many(w, "ann", 300), many(w, "bob", 300)]
    w.cycle()
    assert running(w, *jobs) == (10, 10)


def test_the_number_of_jobs_of_a_user_makes_no_difference() -> None:
    w = world()
    w.nodes(3, cpu=4)
    arrays = [many(w, "ann", 100) for _ in range(3)]
    single = [many(w, "ann", 1) for _ in range(20)]
    other = many(w, "bob", 100)
    w.cycle()
    assert running(w, other) == (6,)
    assert sum(running(w, *arrays, *single)) == 6


def test_a_flood_does_not_delay_a_newcomer() -> None:
    w = world()
    w.nodes(2, cpu=4)
    flood = many(w, "ann", 300)
    w.cycle()
    late = many(w, "bob", 1)
    more = many(w, "ann", 1)
    w.cycle()
    assert running(w, flood, late, more) == (8, 0, 0)
    w.finish(flood, "s", 0)
    w.cycle()
    assert running(w, flood, late, more) == (7, 1, 0)


def test_a_scale_up_does_not_delay_a_newcomer() -> None:
    w = world()
    w.nodes(2, cpu=4)
    flood = many(w, "ann", 8)
    w.cycle()
    w.scale(flood, "s", 100)
    w.cycle()
    late = many(w, "bob", 1)
    w.finish(flood, "s", 0)
    w.cycle()
    assert running(w, flood, late) == (7, 1)


@pytest.mark.parametrize("memory", [0, "1h"])
def test_use_is_the_dominant_share(memory: str | int) -> None:
    """A task of ann takes an eighth of the CPUs, one of bob a quarter of the memory."""
    w = world(memory)
    w.node("n", cpu=8, memory="8Gi")
    ann = many(w, "ann", 100)
    bob = many(w, "bob", 100, stage={"resources": {"memory": "2Gi"}})
    w.cycle()
    assert running(w, ann, bob) == (8, 4)
    w = world(memory)
    w.node("n", cpu=12, memory="8Gi")
    ann = many(w, "ann", 100)
    bob = many(w, "bob", 100, stage={"resources": {"cpu": 1, "memory": "2Gi"}})
    w.cycle()
    assert running(w, ann, bob) == (9, 3)  # three quarters of the CPUs, and of the memory


def test_users_take_turns_by_tasks_with_slots() -> None:
    settings = {"unit": "slots", "queues": {"root": {"q": {"order": "fair"}}}}
    w = World(settings, observers=[DoorChecker()])
    w.nodes(6, cpu=4)
    jobs = [many(w, "ann", 30, cpu=4), many(w, "bob", 30, cpu=4)]
    w.cycle()
    assert running(w, *jobs) == (3, 3)


def test_limits_of_a_queue_and_of_a_user_are_shared_evenly() -> None:
    w = world(limit={"cpu": 10})
    w.nodes(5, cpu=4)
    jobs = [many(w, "ann", 300), many(w, "bob", 300)]
    w.cycle()
    assert running(w, *jobs) == (5, 5)
    w = world(users={"bob": {"limit": {"cpu": 3}}})
    w.nodes(5, cpu=4)
    jobs = [many(w, "ann", 300), many(w, "bob", 300)]
    w.cycle()
    assert running(w, *jobs) == (17, 3)


def test_a_gang_is_one_turn() -> None:
    w = world()
    w.nodes(4, cpu=4)
    gang = w.submit(name="g", user="ann", queue="root.q", stages=[{"name": "s", "count": 8, "resources": {"cpu": 1}}])
    later = w.submit(name="h", user="ann", queue="root.q", stages=[{"name": "s", "count": 4, "resources": {"cpu": 1}}])
    other = many(w, "bob", 100)
    w.cycle()
    assert running(w, gang, other, later) == (8, 8, 0)


def test_priority_orders_no_users_but_preempts() -> None:
    """Users take turns, whatever the priorities of their jobs. A high priority still claims."""
    w = world()
    w.nodes(1, cpu=4)
    low = many(w, "ann", 100)
    w.cycle()
    high = many(w, "bob", 2, priority=5)
    w.cycle()
    w.advance(1)
    assert running(w, high) == (2,)
    assert running(w, low) == (2,)


def test_a_hold_of_one_user_keeps_its_nodes_from_others() -> None:
    settings = {"starving_after": "10s", "hold_for": "1h", "held_nodes_percent": 100}
    w = World({**settings, "queues": {"root": {"q": {"order": "fair"}}}}, observers=[DoorChecker()])
    w.nodes(2, cpu=2)
    old = many(w, "bob", 4)
    w.cycle()
    gang = w.submit(name="g", user="ann", queue="root.q", stages=[{"name": "s", "count": 4, "resources": {"cpu": 1}}])
    w.advance(20)
    assert w.holds()
    late = many(w, "eve", 2)
    for index in range(4):
        w.finish(old, "s", index)
        w.advance(1)
    assert running(w, gang, late) == (4, 0)


@pytest.mark.parametrize("backfill", [False, True])
def test_with_backfill_users_are_equal_too(backfill: bool) -> None:
    w = World({"backfill": "easy" if backfill else "off", "queues": {"root": {"q": {"order": "fair"}}}})
    w.nodes(3, cpu=4)
    jobs = [many(w, "ann", 300), many(w, "bob", 300), many(w, "eve", 300)]
    w.cycle()
    assert running(w, *jobs) == (4, 4, 4)


def test_turns_counted_out_are_single_turns() -> None:
    """What arrays of equal tasks get at once is what they get one task at a time."""
    for seed in range(30):
        rng = random.Random(seed)
        nodes, sizes = rng.randint(1, 4), [rng.randint(1, 12) for _ in range(rng.randint(2, 6))]
        users = [rng.choice("abc") for _ in sizes]
        results = []
        for most in (5000, 1):
            w = World({"max_placed": most, "queues": {"root": {"q": {"order": "fair"}}}})
            w.nodes(nodes, cpu=5)
            jobs = [many(w, user, size) for user, size in zip(users, sizes, strict=True)]
            for _ in range(40):
                w.cycle()
            results.append(running(w, *jobs))
        assert results[0] == results[1], (seed, users, sizes)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 40)), min_size=1, max_size=5),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.integers(0, 120),
)
def test_counting_out(users: list[tuple[int, int, int]], step: tuple[int, int], turns: int) -> None:
    steps = {"x": step[0], "y": step[1]}
    ladders = [UseLadder(f"u{at}", {"x": x, "y": y}, steps, most) for at, (x, y, most) in enumerate(users)]
    count_out(ladders, turns)
    done = Counter[int]()
    for _ in range(turns):
        open_users = [at for at, ladder in enumerate(ladders) if done[at] < ladder.most]
        if open_users:
            done[min(open_users, key=lambda at: ladders[at].level(done[at]))] += 1
    assert [ladder.done for ladder in ladders] == [done[at] for at in range(len(ladders))]


# -- the past ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 1000), st.integers(0, 20_000))
def test_weights(half_life: int, elapsed: int) -> None:
    assert total_weight(elapsed + half_life, half_life) == 2 * total_weight(elapsed, half_life)
    grown = Fraction(total_weight(elapsed + 1, half_life) - total_weight(elapsed, half_life), 2 * half_life)
    whole, rest = divmod(elapsed, half_life)
    assert grown == 2**whole * (1 + Fraction(2 * rest + 1, 2 * half_life))  # the weight in the middle of the step


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 40))
def test_a_shift_halves_the_past_and_rounds_it_down(used: int, past: int, doublings: int) -> None:
    weight = 3 << doublings
    booked = booked_use({"x": used}, {"x": past}, weight)
    assert past_use({"x": used}, booked, weight).get("x", 0) == past
    assert past_use({"x": used}, after_shift(booked, doublings), 3).get("x", 0) == past >> doublings


def test_a_past_keeps_its_part() -> None:
    assert rescaled({"cpu": 10, "gpu": 1}, 4, 2) == {"cpu": 5}


def past(w: World, user: str) -> float:
    """Return the average use of a user, as a part of the capacity."""
    partition = w.partition()
    return past_part(partition, partition.queues["root.q"].users[user], w.now)


def test_half_a_life_of_use_is_half_of_the_past() -> None:
    """The example of docs/shares.md."""
    w = world("1h")
    w.node("n", cpu=1)
    ann = many(w, "ann", 1)
    w.cycle()
    w.advance(HOUR)
    assert past(w, "ann") == 0.5
    w.finish(ann, "s", 0)
    w.advance(HOUR)
    assert past(w, "ann") == 0.25
    bob = many(w, "bob", 1)
    w.cycle()
    w.advance(HOUR)
    assert (past(w, "ann"), past(w, "bob")) == (0.125, 0.5)
    w.finish(bob, "s", 0)
    jobs = [many(w, "ann", 1), many(w, "bob", 1)]
    w.cycle()
    assert running(w, *jobs) == (1, 0)


def test_past_use_decides_exactly() -> None:
    w = world("1h")
    w.nodes(4, cpu=4)
    first = many(w, "ann", 16)
    w.cycle()
    w.advance(HOUR)
    for index in range(16):
        w.finish(first, "s", index)
    jobs = [many(w, "ann", 100), many(w, "bob", 100)]
    w.cycle()
    # 16 CPUs for a half-life count as 8: ann's x and bob's 16 - x are equal at 8 + x = 16 - x.
    assert running(w, *jobs) == (4, 12)


def test_the_past_of_queues_counts_behind_the_entitlement() -> None:
    shares = {"a": {"share": 25}, "b": {"share": 25}, "idle": {"share": 50}}
    w = World({"share_memory": "1h", "queues": {"root": shares}}, observers=[DoorChecker()])
    w.nodes(4, cpu=4)
    stage = {"name": "s", "count": 16, "min": 1, "resources": {"cpu": 1}}
    old = w.submit(name="old", queue="root.a", stages=[stage])
    w.cycle()
    w.advance(HOUR)
    for index in range(16):
        w.finish(old, "s", index)
    jobs = [w.submit(name=name, queue=f"root.{name}", stages=[stage]) for name in "ab"]
    w.cycle()
    assert running(w, *jobs) == (4, 12)  # 4 each by entitlement; then 8 + 4 is as much as 12


def test_with_slots_the_past_counts_in_tasks() -> None:
    settings = {"unit": "slots", "share_memory": "1h"}
    w = World({**settings, "queues": {"root": {"a": {"share": 25}, "b": {"share": 25}, "idle": {"share": 50}}}})
    w.nodes(16, cpu=1)
    stage = {"name": "s", "count": 16, "min": 1, "resources": {"cpu": 1}}
    old = w.submit(name="old", queue="root.a", stages=[stage])
    w.cycle()
    w.advance(HOUR)
    for index in range(16):
        w.finish(old, "s", index)
    jobs = [w.submit(name=name, queue=f"root.{name}", stages=[stage]) for name in "ab"]
    w.cycle()
    assert running(w, *jobs) == (4, 12)


def test_another_half_life_keeps_the_parts_and_none_drops_them() -> None:
    queues = {"root": {"q": {"order": "fair"}}}
    w = World({"share_memory": "1h", "queues": queues}, observers=[DoorChecker()])
    w.node("n", cpu=1)
    many(w, "ann", 1)
    w.cycle()
    w.advance(HOUR)
    w.configure({"share_memory": "2h", "queues": queues})
    w.cycle()
    assert past(w, "ann") == 0.5
    w.advance(2 * HOUR)
    assert past(w, "ann") == 0.75
    w.configure({"queues": queues})
    w.cycle()
    assert not w.partition().pasts() and not w.partition().landmark
    w.configure({"share_memory": "1h", "queues": queues})
    w.cycle()
    assert past(w, "ann") == 0


def test_users_that_take_no_turns_have_no_past() -> None:
    w = world("1h")
    w.node("n", cpu=1)
    many(w, "ann", 1)
    w.cycle()
    w.advance(HOUR)
    w.configure({"share_memory": "1h", "queues": {"root": {"q": {"order": "fifo"}}}})
    w.cycle()
    assert {user for _, user in w.partition().pasts()} == {""}
    w.configure({"share_memory": "1h", "queues": {"root": {"q": {"order": "fair"}}}})
    w.cycle()
    assert {user for _, user in w.partition().pasts()} == {""}


def test_a_refused_configuration_gives_the_past_back() -> None:
    """The past is rescaled and taken back, to the byte."""
    w = world("1h")
    w.node("n", cpu=1)
    many(w, "ann", 1)
    w.cycle()
    w.advance(HOUR)
    partition = w.partition()
    plan = Plan(partition, w.now)
    before = dump(partition)
    plan.do(SettingsSet(replace(partition.settings, share_memory=7_777_777_777)))
    plan.do(QueuesSet((("root.q", QueueSettings(order="fifo")),)))
    plan.do(SettingsSet(replace(partition.settings, share_memory=0)))
    plan.do(QueuesSet((("root.q", QueueSettings(order="fair", users=(("*", Limits(max_jobs=3)),))),)))
    plan.rollback(0)
    assert dump(partition) == before
    plan.abandon()


def test_the_landmark_moves_and_nothing_is_lost() -> None:
    w = world("1min")
    w.node("n", cpu=2)
    many(w, "ann", 1)
    w.cycle()
    for _ in range(40):
        w.advance(60)
        w.submit(name="x", user="bob", queue="root.q", stages=[{"name": "s", "resources": {"cpu": 9}}])
        w.cycle()
    assert w.partition().landmark > 0
    assert 0.499999 < past(w, "ann") < 0.5
    assert max(w.partition().past_of(w.partition().root.account).values()).bit_length() < 100


def test_the_second_implementation_agrees_after_a_restart_in_the_middle_of_a_half_life() -> None:
    w = world("1min")
    w.node("n", cpu=2)
    many(w, "ann", 1, stage={"duration": 30})
    w.cycle()
    w.advance(50)
    many(w, "bob", 1)
    w.cycle()
    copy = load(dump(w.partition()))
    judge = UserUses(copy)
    later = copy.now + 47_000_000
    judge.pass_time(copy, later)
    copy.now = later
    (account,) = [account for _, user, account in copy.remembered() if user == "bob"]
    mine = judge._past["root.q", "bob"]["cpu"] / judge._total()
    assert mine == Fraction(copy.past_of(account)["cpu"], copy.weight())


def test_a_past_that_is_rounded_away_gives_no_certain_order() -> None:
    w = world("1min")
    w.node("n", cpu=1)
    many(w, "ann", 1, stage={"duration": 30})
    w.cycle()
    for _ in range(6):
        w.advance(1000)
        w.submit(name="x", user="bob", queue="root.q", stages=[{"name": "s", "resources": {"cpu": 9}}])
        w.cycle()
    jobs = [many(w, "ann", 1), many(w, "eve", 1)]
    w.cycle()
    assert running(w, *jobs) == (1, 0)


def test_nodes_are_ordered_for_users_in_turn() -> None:
    """The job that cannot be stopped has its turn before most tasks of other users, so its share is not spent."""
    pool = {"node": {"cpu": 12}, "max": 2, "provider": {"memory": {}}}
    queues = {"root": {"q": {"order": "fair", "share": 60}, "b": {"share": 40}}}
    w = World({"pools": {"p": pool}, "queues": queues}, observers=[DoorChecker()])
    many(w, "ann", 8)
    many(w, "bob", 8)
    many(w, "eve", 1, cpu=2, preemptible=False)
    w.cycle()
    (order,) = w.partition().orders.values()
    assert sum(tasks for meant in order.coming.values() for job, _, _, tasks in meant if job == "eve") == 1


def test_replay_and_dump_give_the_same_bytes() -> None:
    w = world("1min")
    w.nodes(2, cpu=4)
    jobs = []
    for step in range(12):
        jobs.append(many(w, "ab"[step % 2], 3, stage={"duration": 20 + step}))
        w.advance(17)
    before = w.dump()
    assert w.partition().pasts()
    assert dump(load(before)) == before
    w.restart()
    assert w.dump() == before


def test_explain_tells_the_uses() -> None:
    w = world("1h")
    w.node("n", cpu=10)
    many(w, "ann", 4)
    many(w, "bob", 6)
    w.cycle()
    w.advance(HOUR)
    more = many(w, "bob", 1)
    many(w, "ann", 1)
    w.cycle()
    (text,) = map(str, w.explain(more))
    assert text == (
        "s: 1 task waits behind 1 job (1 task) in queue root.q; "
        "users take turns: bob uses 60% and 30% on average before, the user ahead uses 40% and 20% on average before"
    )
    assert w.past("root.q") == 0.5 and w.past("root.q", "bob") == 0.3


def test_an_account_is_a_key() -> None:
    accounts = {Account("a"): 1, Account("a"): 2}
    assert len(accounts) == 2


def test_every_mix_of_users_is_even() -> None:
    for cpus, users in product((6, 7, 12), (2, 3)):
        w = world("1h")
        w.node("n", cpu=cpus)
        jobs = [many(w, f"u{at}", 50) for at in range(users)]
        w.cycle()
        counts = running(w, *jobs)
        assert sum(counts) == cpus and max(counts) - min(counts) <= 1
