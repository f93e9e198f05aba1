"""Held and requeued jobs. Every test runs twice, once with a restart after each cycle, which must change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.model import OPERATOR
from fairlead.core.why.reasons import HeldBack
from fairlead.testing import World
from tests.core.gang_watch import Restarted, WatchedWorld

MakeWorld = Callable[..., World]


@pytest.fixture(params=[WatchedWorld, Restarted], ids=["", "restarted"])
def make(request: pytest.FixtureRequest) -> MakeWorld:
    """A world with some equal nodes."""

    def make(nodes: int = 1, cpu: int = 4, **config: Any) -> World:
        w: World = request.param(config)
        w.nodes(nodes, cpu=cpu)
        w.cycle()
        return w

    return make


def stage(count: int = 1, cpu: float = 1, **rest: Any) -> dict[str, Any]:
    return {"name": "s", "count": count, "resources": {"cpu": cpu}, **rest}


def submit(w: World, name: str, count: int = 1, cpu: float = 1, user: str = "ann", **rest: Any) -> str:
    """Submit a job of one stage. Options of the job are `after`, `priority` and `queue`; the others are its stage's."""
    of_job = {key: rest.pop(key) for key in ("after", "priority", "queue") if key in rest}
    return w.submit(name=name, user=user, stages=[stage(count, cpu, **rest)], **of_job)


def states(w: World, job: str) -> str:
    """Return the states of the tasks of a job, by their first letters."""
    return "".join(
        w.task(job, each.name, index).state[0] for each in w.partition().jobs[job].stages for index in range(each.count)
    )


def answer(w: World) -> str:
    return str(w.answers()[-1])


def reasons(w: World, job: str) -> list[Any]:
    return [waiting.reason for waiting in w.explain(job)]


# -- holding -----------------------------------------------------------------------------------------------------


def test_a_held_job_does_not_start_until_it_is_released(make: MakeWorld) -> None:
    w = make()
    submit(w, "a")
    w.hold("a", "ann")
    w.advance(60)
    assert states(w, "a") == "p" and reasons(w, "a") == [HeldBack("ann")]
    assert str(reasons(w, "a")[0]) == "held by ann"
    w.release("a", "ann")
    w.advance(0)
    assert states(w, "a") == "r"


def test_running_tasks_of_a_held_job_go_on_and_the_others_wait(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "a", 4, min=1)
    w.advance(0)
    w.hold("a", "ann")
    w.finish("a", "s", 0)
    w.advance(0)
    assert states(w, "a") == "srpp"
    w.release("a", "ann")
    w.advance(0)
    assert states(w, "a") == "srrp"


def test_a_held_job_keeps_its_place_and_does_not_keep_others_waiting(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "runs", 2)
    w.advance(0)
    for name in ("a", "b", "c"):
        submit(w, name, cpu=2)
        w.advance(1)
    w.hold("a", "ann")
    w.finish("runs")
    w.advance(0)
    assert [states(w, name) for name in ("a", "b", "c")] == ["p", "r", "p"]
    w.release("a", "ann")
    w.finish("b")
    w.advance(0)
    assert [states(w, name) for name in ("a", "c")] == ["r", "p"]


@pytest.mark.parametrize("backfill", ["off", "easy", "shortest", "conservative"])
def test_a_held_head_blocks_no_ask_behind_it(make: MakeWorld, backfill: str) -> None:
    w = make(cpu=4, backfill=backfill)
    submit(w, "runs", 3, estimate="1h")
    w.advance(0)
    submit(w, "large", 4, estimate="1h")
    w.advance(1)
    submit(w, "small", 1, estimate="5h")
    w.advance(1)
    assert states(w, "small") == "p"
    w.hold("large", "ann")
    w.advance(0)
    assert states(w, "small") == "r" and states(w, "large") == "pppp"


def test_nodes_that_were_held_for_a_job_are_given_up(make: MakeWorld) -> None:
    w = make(cpu=2, starving_after="10s")
    submit(w, "long")
    w.advance(0)
    submit(w, "large", cpu=2)
    w.advance(11)
    assert w.holds() == {"n0": [("large", "s", 1)]}
    submit(w, "small")
    w.advance(1)
    assert states(w, "small") == "p"
    w.hold("large", "ann")
    w.advance(0)
    assert not w.holds() and states(w, "small") == "r"
    w.advance(60)
    assert not w.holds()


def test_time_on_hold_is_no_waiting_time(make: MakeWorld) -> None:
    """A job that waited 4 s before the hold starves 6 s after its release, not at once."""
    w = make(cpu=2, starving_after="10s")
    submit(w, "long")
    w.advance(0)
    submit(w, "large", cpu=2)
    w.advance(4)
    w.hold("large")
    w.advance(100)
    w.release("large")
    w.advance(5)
    assert not w.holds()
    w.advance(2)
    assert w.holds()


def test_no_tasks_stop_for_a_held_job(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "low", 2, min=1, user="bob")
    w.advance(0)
    submit(w, "high", cpu=2, priority=5)
    w.hold("high", "ann")
    w.advance(30)
    assert states(w, "low") == "rr" and not w.partition().promises
    w.release("high", "ann")
    w.advance(30)
    assert states(w, "high") == "r"


def test_a_claim_ends_when_its_job_is_held(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "low", 2, user="bob")
    w.advance(1)
    w.ignore_stops("low")
    submit(w, "high", cpu=2, priority=5)
    w.cycle()
    assert w.partition().promises
    w.hold("high", "ann")
    w.cycle()
    assert not w.partition().promises


def test_preempted_tasks_of_a_held_job_do_not_start_again(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "low", 2, user="bob")
    w.advance(0)
    w.hold("low", "bob")
    submit(w, "high", cpu=2, priority=5, duration=5)
    w.advance(60)
    assert w.job("high").state == "succeeded"
    assert states(w, "low") == "pp" and reasons(w, "low") == [HeldBack("bob")]
    w.release("low", "bob")
    w.advance(0)
    assert states(w, "low") == "rr"


def test_no_nodes_are_ordered_for_a_held_job(make: MakeWorld) -> None:
    w = make(cpu=1)
    w.pool("p", node={"cpu": 8}, max=2)
    submit(w, "large", cpu=8)
    w.hold("large", "ann")
    w.advance(60)
    assert not w.partition().orders
    w.release("large", "ann")
    w.advance(1)
    assert w.partition().orders


def test_a_node_that_arrives_for_a_job_held_meanwhile_is_not_kept(make: MakeWorld) -> None:
    w = make(cpu=1)
    w.pool("p", node={"cpu": 4}, max=2)
    submit(w, "large", 2, cpu=4)
    w.advance(1)
    assert w.partition().orders
    w.hold("large", "ann")
    w.advance(0)
    w.arrive("p", 1)
    w.advance(0)
    assert not w.partition().nodes.held and states(w, "large") == "pp"


def test_a_gang_placed_in_part_is_held_where_it_is(make: MakeWorld) -> None:
    """Two of three members lose their node: the third goes on, and no replacement starts while the job is held."""
    w = make(nodes=2, cpu=2, replace_within="1min")
    w.submit(name="gang", user="ann", stages=[stage(3, on_loss="replace")])
    w.advance(0)
    hosts = {node: [at for at, on in w.placements("gang").items() if on == node] for node in ("n0", "n1")}
    lost = max(hosts, key=lambda node: len(hosts[node]))
    w.hold("gang", "ann")
    w.fail_node(lost)
    w.advance(600)
    assert sorted(states(w, "gang")) == ["p", "p", "r"]
    w.return_node(lost)
    w.advance(30)
    assert sorted(states(w, "gang")) == ["p", "p", "r"]
    w.release("gang", "ann")
    w.advance(1)
    assert states(w, "gang") == "rrr"


def test_a_short_gang_has_all_its_time_again_after_a_release(make: MakeWorld) -> None:
    w = make(nodes=2, cpu=1, replace_within="1min")
    submit(w, "gang", 2, on_loss="replace")
    w.advance(0)
    w.fail_node("n1")
    w.advance(40)
    w.hold("gang", "ann")
    w.advance(100)
    w.release("gang", "ann")
    w.advance(40)
    assert sorted(states(w, "gang")) == ["p", "r"]
    w.advance(30)
    assert states(w, "gang") == "pp"


def test_a_whole_job_is_held_with_all_stages(make: MakeWorld) -> None:
    w = make(cpu=4)
    w.submit(name="whole", user="ann", gang="job", stages=[stage(2), {**stage(2), "name": "t"}])
    w.hold("whole", "ann")
    w.advance(5)
    assert states(w, "whole") == "pppp" and reasons(w, "whole") == [HeldBack("ann")] * 2
    w.release("whole", "ann")
    w.advance(0)
    assert states(w, "whole") == "rrrr"


def test_tasks_sent_ahead_in_a_chain_come_back(make: MakeWorld) -> None:
    w = make(cpu=1, chain="20s")
    submit(w, "quick", 40, min=1, duration=1)
    w.advance(4)
    assert w.partition().derived.chains
    w.hold("quick", "ann")
    w.advance(20)
    done = states(w, "quick").count("s")
    assert states(w, "quick").count("p") == 40 - done and done < 15
    w.release("quick", "ann")
    w.advance(60)
    assert w.job("quick").state == "succeeded"


def test_a_job_after_others_is_held_when_they_have_succeeded(make: MakeWorld) -> None:
    w = make()
    submit(w, "first")
    submit(w, "second", after=["first"])
    w.hold("second", "ann")
    w.advance(0)
    assert reasons(w, "second") == [HeldBack("ann")]
    w.finish("first")
    w.advance(5)
    assert states(w, "second") == "p" and reasons(w, "second") == [HeldBack("ann")]
    w.release("second", "ann")
    w.advance(0)
    assert states(w, "second") == "r"


def test_a_held_job_can_be_scaled_and_killed(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "a", 2, min=1)
    w.advance(0)
    w.hold("a", "ann")
    w.scale("a", "s", 4)
    w.finish("a", "s", 0)
    w.advance(5)
    assert states(w, "a") == "srpp"
    w.scale("a", "s", 2)
    w.finish("a", "s", 1)
    w.advance(0)
    assert w.job("a").state == "succeeded"
    submit(w, "b", 2)
    w.hold("b", "ann")
    w.cycle()
    w.kill("b", "ann")
    w.advance(0)
    assert w.job("b").state == "killed"


def test_a_held_job_does_not_use_up_the_number_of_running_jobs(make: MakeWorld) -> None:
    w = make(cpu=4)
    w.queue("root.q", max_jobs=1)
    submit(w, "a", queue="root.q")
    submit(w, "b", queue="root.q")
    w.hold("a", "ann")
    w.advance(0)
    assert states(w, "a") == "p" and states(w, "b") == "r"
    w.release("a", "ann")
    w.advance(5)
    assert states(w, "a") == "p"  # the queue runs one job, which is b now
    w.finish("b")
    w.advance(0)
    assert states(w, "a") == "r"


def test_the_asks_of_a_resource_manager_are_held_too(make: MakeWorld) -> None:
    w = make()
    manager = w.rm("k8s")
    manager.register()
    manager.update(
        nodes=[{"name": "m0", "resources": {"cpu": 4}}],
        jobs=[{"job": "pods", "queue": "root.default", "user": "ann"}],
        asks=[{"job": "pods", "ask": "x", "count": 2, "min": 1, "resources": {"cpu": 1}}],
    )
    w.hold("pods", "ann")
    w.advance(5)
    assert states(w, "pods") == "pp"
    w.release("pods", "ann")
    w.advance(0)
    assert states(w, "pods") == "rr"


# -- rights ------------------------------------------------------------------------------------------------------


def test_only_an_operator_releases_the_hold_of_an_operator(make: MakeWorld) -> None:
    w = make()
    submit(w, "a")
    w.hold("a", "ann")
    w.cycle()
    w.hold("a")
    w.cycle()
    assert w.partition().jobs["a"].held_by is not None and w.partition().jobs["a"].held_by.level == OPERATOR
    w.release("a", "ann")
    w.cycle()
    assert "only an operator can release it" in answer(w) and states(w, "a") == "p"
    assert reasons(w, "a") == [HeldBack("the operator", operator=True)]
    w.hold("a", "ann")
    w.cycle()
    assert "already held by the operator" in answer(w)
    w.release("a")
    w.advance(0)
    assert states(w, "a") == "r"


def test_an_owner_does_not_release_what_an_administrator_of_the_queue_holds(make: MakeWorld) -> None:
    w = make()
    w.queue("root.q", admin=["boss"])
    submit(w, "a", queue="root.q")
    w.hold("a", "boss")
    w.cycle()
    w.release("a", "ann")
    w.cycle()
    assert "only an administrator of root.q can release it" in answer(w)
    w.release("a", "boss")
    w.advance(0)
    assert states(w, "a") == "r"


@pytest.mark.parametrize("action", ["hold", "release", "requeue"])
def test_other_users_may_not(make: MakeWorld, action: str) -> None:
    w = make()
    submit(w, "a")
    getattr(w, action)("a", "bob")
    w.cycle()
    assert f"bob may not {action} job a" in answer(w)


@pytest.mark.parametrize("action", ["hold", "requeue"])
def test_a_job_that_is_over_cannot_be_held_or_requeued(make: MakeWorld, action: str) -> None:
    w = make()
    submit(w, "a")
    w.advance(0)
    w.finish("a")
    w.advance(0)
    getattr(w, action)("a", "ann")
    w.cycle()
    assert "job a is over (succeeded)" in answer(w)


def test_a_release_of_a_job_that_is_not_held_changes_nothing(make: MakeWorld) -> None:
    w = make()
    submit(w, "a")
    w.cycle()
    w.answers()
    w.release("a", "ann")
    w.cycle()
    assert [given.note for given in w.answers()] == ["it is not held"]
    assert w.job("a").state == "running"


# -- requeueing --------------------------------------------------------------------------------------------------


def test_requeued_tasks_stop_and_start_again_under_a_new_attempt_without_using_a_try(make: MakeWorld) -> None:
    w = make()
    submit(w, "a", 2)
    w.advance(0)
    w.requeue("a", "ann")
    w.cycle()
    assert states(w, "a") == "ss"
    assert w.task("a", "s", 0).note == "requeued by ann"
    w.advance(0)
    assert states(w, "a") == "rr"
    task = w.task("a", "s", 0)
    assert (task.attempt, task.tries_used, task.reason) == (2, 0, "requeued by ann")


def test_a_requeued_job_keeps_its_place(make: MakeWorld) -> None:
    w = make(cpu=1)
    submit(w, "a")
    w.advance(1)
    submit(w, "b")
    w.advance(1)
    w.requeue("a", "ann")
    w.advance(1)
    assert states(w, "a") == "r" and states(w, "b") == "p"
    w.hold("a", "ann")
    w.requeue("a", "ann")
    w.advance(1)
    assert states(w, "a") == "p" and states(w, "b") == "r"


def test_only_the_running_tasks_of_an_array_are_requeued(make: MakeWorld) -> None:
    w = make(cpu=2)
    submit(w, "a", 4, min=1)
    w.advance(0)
    w.finish("a", "s", 0)
    w.advance(0)
    w.requeue("a", "ann")
    w.advance(1)
    assert [w.task("a", "s", index).state for index in (0, 1, 2)] == ["succeeded", "running", "running"]
    assert [w.task("a", "s", index).attempt for index in range(4)] == [1, 2, 2, 0]


def test_a_whole_job_is_requeued_as_one_gang(make: MakeWorld) -> None:
    w = make(cpu=4)
    w.submit(name="whole", user="ann", gang="job", stages=[stage(2), {**stage(2), "name": "t"}])
    w.advance(0)
    w.requeue("whole")
    w.cycle()
    assert states(w, "whole") == "ssss"
    w.advance(0)
    assert states(w, "whole") == "rrrr"
    assert w.task("whole", "t", 1).attempt == 2 and w.task("whole", "t", 1).reason == "requeued by the operator"


def test_a_requeue_of_a_waiting_job_says_so(make: MakeWorld) -> None:
    w = make(cpu=1)
    submit(w, "a", cpu=1)
    w.advance(0)
    submit(w, "b")
    w.requeue("b", "ann")
    w.cycle()
    assert w.answers()[-1].note == "none of its tasks run"


def test_requeued_tasks_of_a_chain_wait_again(make: MakeWorld) -> None:
    w = make(cpu=1, chain="20s")
    submit(w, "quick", 40, min=1, duration=1)
    w.advance(4)
    assert w.partition().derived.chains
    w.requeue("quick", "ann")
    w.advance(60)
    assert w.job("quick").state == "succeeded"


ONE = {"resources": {"cpu": 1}}


def test_a_job_is_held_from_the_beginning(make: MakeWorld) -> None:
    w = make()
    job = w.submit(hold=True, user="ann", stages=[ONE])
    w.cycle()
    assert w.job(job).state == "pending" and w.explain(job)[0].reason == HeldBack("ann", True)
    w.release(job)
    w.cycle()
    assert w.job(job).state == "running"


def test_a_job_begins_at_its_time(make: MakeWorld) -> None:
    w = make()
    jobs = [w.submit(begin=60, stages=[ONE]) for _ in range(3)]
    killed, early, job = jobs
    late = w.submit(begin=0.5, stages=[ONE])
    w.advance(50)
    assert w.job(late).state == "running"
    assert {w.job(name).state for name in jobs} == {"pending"}
    assert w.explain(job)[0].reason.short.startswith("begins at ")
    w.kill(killed)
    w.release(early)
    w.advance(1)
    assert [w.job(name).state for name in jobs] == ["killed", "running", "pending"]
    w.advance(10)
    assert w.job(job).state == "running"
