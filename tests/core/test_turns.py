"""Turns by share: which queue of the tree is served first, in slots and by dominant share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from fairlead.core.commands import Report
from fairlead.core.match import single_tasks as batches
from fairlead.core.policy.shares import Claim, start_counts
from fairlead.core.why.reasons import ShareSpent
from fairlead.testing import World


def world(nodes: int, unit: str = "slots", cpu: int = 1, **shares: int | dict[str, int]) -> World:
    w = World(unit=unit)
    for name, share in shares.items():
        if isinstance(share, dict):
            w.queue(f"root.{name}", share=share.pop("share"))
            for child, part in share.items():
                w.queue(f"root.{name}.{child}", share=part)
        else:
            w.queue(f"root.{name}", share=share)
    w.nodes(nodes, cpu=cpu)
    return w


def array(w: World, queue: str, count: int, **stage: Any) -> str:
    resources = stage.pop("resources", {"cpu": 1})
    return w.submit(
        queue=f"root.{queue}", stages=[{"name": "s", "count": count, "min": 1, "resources": resources, **stage}]
    )


def singles(w: World, queue: str, count: int) -> None:
    for _ in range(count):
        w.submit(queue=f"root.{queue}", stages=[{"name": "s", "resources": {"cpu": 1}}])


def running(w: World) -> dict[str, int]:
    partition = w.partition()
    return {
        path.removeprefix("root."): queue.account.tasks
        for path, queue in sorted(partition.queues.items())
        if queue.parent
    }


def test_every_queue_gets_its_share() -> None:
    w = world(10, a=60, b=30, c=10)
    for queue in "abc":
        array(w, queue, 20)
    w.cycle()
    assert running(w) == {"a": 6, "b": 3, "c": 1}
    assert [w.entitlement(f"root.{queue}") for queue in "abc"] == [6, 3, 1]
    assert w.loaned("root.a") == 0


def test_what_is_idle_is_lent_and_comes_back_as_tasks_end() -> None:
    w = world(10, a=50, b=50)
    array(w, "a", 30, duration=10)
    w.cycle()
    assert running(w) == {"a": 10, "b": 0} and w.loaned("root.a") == 5
    array(w, "b", 30, duration=1_000)
    w.advance(10)
    assert running(w) == {"a": 5, "b": 5}


def test_a_parent_lends_to_its_own_children_first() -> None:
    """What `ml.train` does not want goes to `ml.infer`, not to `ci`, until `ml` has all of its own."""
    w = world(10, ml={"share": 60, "train": 50, "infer": 50}, ci=40)
    array(w, "ml.infer", 20)
    array(w, "ci", 20)
    w.cycle()
    assert running(w) == {"ml": 6, "ml.train": 0, "ml.infer": 6, "ci": 4}


def test_share_0_gets_what_no_other_queue_wants() -> None:
    w = world(10, a=100, zero=0)
    array(w, "zero", 20)
    array(w, "a", 7)
    w.cycle()
    assert running(w) == {"a": 7, "zero": 3}


def test_queues_without_shares_are_alike() -> None:
    w = World(unit="slots")
    for name in ("root.a", "root.b"):
        w.queue(name)
    w.nodes(10, cpu=1)
    array(w, "a", 20)
    array(w, "b", 20)
    w.cycle()
    assert running(w) == {"a": 5, "b": 5}


@pytest.mark.parametrize("kind", ["array", "singles"])
def test_an_array_and_single_jobs_with_the_same_tasks_count_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FEW", 2)
    w = world(3, "dominant", 8, a=50, b=25, c=25)
    for queue in ("a", "b"):
        array(w, queue, 40)
    array(w, "c", 40) if kind == "array" else singles(w, "c", 40)
    w.cycle()
    assert running(w) == {"a": 12, "b": 6, "c": 6}


def test_a_gang_is_one_turn_and_what_it_takes_beyond_the_share_is_a_loan() -> None:
    w = world(10, "dominant", a=50, b=50)
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 8, "resources": {"cpu": 1}}])
    array(w, "b", 10)
    w.cycle()
    assert running(w) == {"a": 8, "b": 2}
    assert w.loaned("root.a") == pytest.approx(0.3)


def test_the_largest_part_of_any_resource_counts() -> None:
    """One GPU in eight is as much as eight CPUs in 64. By CPUs alone `a` would be first eight times."""
    w = World()
    w.queue("root", limit={"cpu": 27})
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    w.node("n", cpu=64, gpu=8)
    array(w, "a", 40, resources={"cpu": 1, "gpu": 1})
    array(w, "b", 40, resources={"cpu": 8})
    w.cycle()
    assert running(w) == {"a": 3, "b": 3}


def test_another_share_counts_in_the_next_cycle() -> None:
    w = world(10, a=50, b=50)
    for queue in "ab":
        array(w, queue, 100, duration=10)
    w.cycle()
    w.set_share("root.a", 150)
    w.advance(10)
    assert running(w) == {"a": 8, "b": 2}
    w.queue("root.c", share=200)
    array(w, "c", 100)
    w.advance(10)
    assert running(w) == {"a": 3, "b": 1, "c": 6}  # 37, 12 and 51 percent: the largest gets what rounding leaves


def test_a_queue_that_wants_nothing_costs_nothing() -> None:
    w = world(10, a=10, b=10, c=80)
    for queue in "ab":
        array(w, queue, 10)
    w.cycle()
    assert running(w) == {"a": 5, "b": 5, "c": 0}


def test_a_gang_that_opens_the_next_cycle_keeps_its_turn() -> None:
    w = World({"max_placed": 4})
    w.queue("root.a", share=80)
    w.queue("root.b", share=20)
    w.nodes(10, cpu=1)
    array(w, "a", 3)
    w.submit(name="gang", queue="root.a", stages=[{"name": "s", "count": 4, "resources": {"cpu": 1}}])
    array(w, "b", 10)
    w.cycle()
    assert running(w) == {"a": 3, "b": 1}
    w.cycle()
    assert running(w) == {"a": 7, "b": 1}


def test_a_full_machine_is_not_looked_at_again_by_each_lane() -> None:
    """Lanes of a shape without room stay asleep when room of another sort opens."""
    w = World()
    for at in range(5):
        w.queue(f"root.q{at}", share=1)
    w.node("cpu", cpu=1)
    w.node("gpu", cpu=1, gpu=1)
    for at in range(5):
        array(w, f"q{at}", 2, resources={"gpu": 1})
    first = array(w, "q0", 1)
    w.cycle()
    node = w.placements(first)["s", 0]
    ended = Report(node=node, job=first, stage="s", indices=(0, 1), attempt=1, state="succeeded")
    decided = w.cluster.writers["default"].cycle([ended], w.now)
    assert decided.changes and not decided.plan.looked


# -- whatever the numbers ----------------------------------------------------------------------------------------

shares = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8), st.integers(0, 25)), min_size=1, max_size=5)


def fill(nodes: int, rows: list[tuple[int, int, int]], order: list[int], jobs: int = 1) -> World:
    """A world of queues with (share, running, waiting) each; the waiting tasks are split into `jobs` jobs."""
    w = World(unit="slots")
    for at in order:
        w.queue(f"root.q{at}", share=rows[at][0])
    w.nodes(nodes, cpu=1)
    for at in sorted(order):
        array(w, f"q{at}", rows[at][1]) if rows[at][1] else None
        w.cycle()
    for at in order:
        waiting = rows[at][2]
        for job in range(jobs):
            part = waiting // jobs + (job < waiting % jobs)
            array(w, f"q{at}", part) if part else None
    w.cycle()
    return w


@settings(max_examples=40)
@given(shares, st.integers(0, 20), st.integers(1, 4))
def test_in_slots_starts_are_those_of_the_published_counts(
    rows: list[tuple[int, int, int]], idle: int, jobs: int
) -> None:
    nodes = sum(running for _, running, _ in rows) + idle
    order = list(range(len(rows)))
    w = fill(nodes, rows, order, jobs)
    now = Counter({at: w.partition().queues[f"root.q{at}"].account.tasks for at in order})
    started = {f"q{at}": now[at] - rows[at][1] for at in order}
    claims = [Claim(f"q{at}", *rows[at]) for at in order]
    expected = start_counts(nodes, idle, claims)
    left = min(idle, sum(waiting for _, _, waiting in rows)) - sum(expected.values())
    assert sum(started.values()) == min(idle, sum(waiting for _, _, waiting in rows))
    assert {name: count for name, count in started.items() if rows[int(name[1:])][0]} == {
        name: count for name, count in expected.items() if rows[int(name[1:])][0]
    }
    assert sum(count for name, count in started.items() if not rows[int(name[1:])][0]) == left


@settings(max_examples=30)
@given(shares, st.integers(0, 20))
def test_the_order_of_queues_in_the_file_does_not_matter(rows: list[tuple[int, int, int]], idle: int) -> None:
    nodes = sum(running for _, running, _ in rows) + idle
    order = list(range(len(rows)))
    assert running(fill(nodes, rows, order)) == running(fill(nodes, rows, order[::-1]))


@pytest.mark.parametrize("how", ["fair", "jobs"])
def test_in_a_fair_queue_the_stage_that_takes_longest_comes_first(how: str) -> None:
    w = World()
    w.queue("root.q", order=how)
    w.node("n", cpu=2)
    stages = [{"name": name, "resources": {"cpu": 1}, "estimate": f"{hours}h"} for name, hours in (("a", 1), ("b", 3))]
    w.submit(name="j", queue="root.q", stages=[{"name": "0", "resources": {"cpu": 1}}, *stages])
    w.cycle()
    assert sorted(stage for stage, _ in w.placements("j")) == ["a", "b"]


def test_the_stage_that_took_longest_before_comes_first() -> None:
    w = World({"estimates": "learned", "queues": {"root": {"q": {"order": "fair"}}}})
    w.node("n", cpu=3)
    stages = [
        {"name": name, "resources": {"cpu": 1}, "estimate": "1h", "duration": seconds}
        for name, seconds in (("a", 10), ("b", 30), ("c", 20))
    ]
    w.submit(name="train", queue="root.q", stages=stages)
    w.advance(60)
    w.drain("n")
    w.node("small", cpu=1)
    second = w.submit(name="train", queue="root.q", stages=stages)
    order: list[str] = []
    for _ in range(60):
        w.advance(1)
        order += [stage for stage, _ in w.placements(second) if stage not in order]
    assert order == ["b", "c", "a"]


def test_a_job_that_is_not_preemptible_gets_no_loan() -> None:
    w = world(10, a=30, b=70)
    stages = [{"name": "s", "count": 10, "min": 1, "resources": {"cpu": 1}}]
    w.submit(name="firm", queue="root.a", preemptible=False, stages=stages)
    w.cycle()
    assert running(w) == {"a": 3, "b": 0}
    assert w.explain("firm")[0].reason == ShareSpent("root.a")
    array(w, "a", 2)  # passes it, on loan
    w.cycle()
    assert running(w) == {"a": 5, "b": 0}


def test_a_gang_that_cannot_be_taken_back_starts_while_its_queue_has_some_of_its_own_left() -> None:
    w = world(10, a=30, b=70)
    gang = [{"name": "s", "count": 2, "resources": {"cpu": 1}}]
    for name in ("first", "second", "third"):
        w.submit(name=name, queue="root.a", preemptible=False, stages=gang)
    w.cycle()
    assert [w.job(name).state for name in ("first", "second", "third")] == ["running", "running", "pending"]


def test_single_jobs_that_cannot_be_taken_back_count_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "FEW", 2)
    w = World()
    w.queue("root.a", share=50)
    w.queue("root.b", share=50)
    w.nodes(2, cpu=4)
    for _ in range(3):
        w.submit(queue="root.a", stages=[{"name": "s", "resources": {"cpu": 1}}])
    for _ in range(3):
        w.submit(queue="root.a", preemptible=False, stages=[{"name": "s", "resources": {"cpu": 1}}])
    w.cycle()
    assert running(w) == {"a": 4, "b": 0}


def test_an_ask_that_joins_a_sleeping_lane_is_tried_only_as_its_head() -> None:
    w = World()
    w.node("n0", cpu=4)
    w.submit(name="now", stages=[{"name": "w", "count": 3, "resources": {"cpu": 1}}])
    w.submit(name="head", stages=[{"name": "w", "count": 4, "resources": {"cpu": 1}}])
    w.advance(0)
    w.submit(name="behind", stages=[{"name": "w", "count": 1, "resources": {"cpu": 1}}])
    assert not w.cluster.writers["default"].cycle([], w.now).plan.looked
    w.cycle()
    assert w.job("behind").state == "pending"
    w.submit(name="first", priority=1, stages=[{"name": "w", "count": 1, "resources": {"cpu": 1}}])
    w.cycle()
    assert (w.job("first").state, w.job("behind").state) == ("running", "pending")


def test_a_job_that_falls_back_in_a_fair_queue_lets_others_of_its_lane_go_first() -> None:
    """A job that starts in one lane is no longer the head of another: the new head is tried, not the job."""
    w = World()
    w.queue("root.q", order="fair")
    w.node("n0", cpu=4)
    large = [
        {"name": "a", "count": 2, "resources": {"cpu": 1, "memory": 0}, "selectors": {"zone": ["a"]}},
        {"name": "b", "count": 5, "resources": {"cpu": 1}},
    ]
    w.node("n1", cpu=2, labels={"zone": "a"})
    both = w.submit(queue="root.q", stages=large)
    small = w.submit(queue="root.q", stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    assert len(w.placements(both)) == 2
    assert len(w.placements(small)) == 1
