"""Items of a resource manager that are about whole jobs, single tasks and losses, and the state that it reads."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.testing import World
from fairlead.views.manager_answers import manager_state, waiting_answers
from fairlead.wire import api as wire

CPU = {"cpu": 1}


def managed(*sizes: int, **settings: Any) -> World:
    """A partition with a manager `k8s` and its nodes k0, k1, …"""
    w = World({"queues": {"root": {"default": {}}}, **settings})
    w.rm("k8s").register()
    w.rm("k8s").update(nodes=[{"name": f"k{at}", "resources": {"cpu": size}} for at, size in enumerate(sizes)])
    w.cycle()
    w.rm("k8s").events()
    return w


def events(w: World) -> list[tuple[str, str, tuple[int, ...], str]]:
    """What the manager was told, without the answers of items that were accepted."""
    return [
        (event.what, event.ask or event.job, event.indices, event.node or event.reason)
        for event in w.rm("k8s").events()
        if event.what != "accepted"
    ]


def gang(job: str, *stages: tuple[str, int], **more: Any) -> dict[str, Any]:
    return {
        "job": job,
        "gang": "job",
        "stages": [{"name": name, "count": count, "resources": CPU, **more} for name, count in stages],
    }


def state(w: World) -> wire.ManagerState:
    return manager_state(w.partition(), "k8s", 0)


def test_a_whole_job_starts_together() -> None:
    w = managed(2)
    w.rm("k8s").update(jobs=[gang("app", ("leader", 1), ("worker", 2))])
    w.cycle()
    assert events(w) == []
    w.rm("k8s").update(nodes=[{"name": "k0", "resources": {"cpu": 3}}])
    w.cycle()
    assert [(what, ask) for what, ask, _, _ in events(w)] == [("allocated", "leader"), ("allocated", "worker")]


def test_a_stage_cannot_join_a_whole_job() -> None:
    w = managed(8)
    w.rm("k8s").update(jobs=[gang("app", ("a", 1), ("b", 1))])
    w.rm("k8s").update(asks=[{"job": "app", "ask": "c", "count": 1, "resources": CPU}])
    w.cycle()
    assert any(what == "rejected" and "is one gang" in text for what, _, _, text in events(w))


def test_an_id_can_be_used_again_when_its_job_is_over() -> None:
    w = managed(4)
    rm = w.rm("k8s")
    rm.update(jobs=[gang("app", ("a", 1), ("b", 1))])
    w.cycle()
    rm.update(jobs=[{"job": "app", "remove": True}, gang("app", ("a", 2), ("b", 1))])
    w.cycle()
    assert [ask.count for ask in state(w).jobs[0].asks] == [2, 1]
    w.kill("app")
    w.cycle()
    rm.update(jobs=[{"job": "app", "remove": True}])  # its tasks have stopped
    rm.update(jobs=[gang("app", ("a", 1), ("b", 1))])
    w.cycle()
    assert not w.partition().jobs["app"].over


def test_one_task_is_given_up_and_asked_for_again() -> None:
    w = managed(2)
    rm = w.rm("k8s")
    rm.update(jobs=[{"job": "app", "stages": [{"name": "x", "count": 3, "min": 1, "resources": CPU}]}])
    w.cycle()
    assert [indices for what, _, indices, _ in events(w) if what == "allocated"] == [(0, 2)]
    rm.update(
        asks=[{"job": "app", "ask": "x", "index": 2, "withdraw": True}],
        releases=[{"job": "app", "ask": "x", "index": 0}],
    )
    w.cycle()
    (ask,) = state(w).jobs[0].asks
    assert (ask.waiting, ask.ended, ask.live[0].indices) == ([], [0, 1, 2, 3], [1, 2])
    events(w)
    rm.update(asks=[{"job": "app", "ask": "x", "index": 0}])
    w.cycle()
    assert ("allocated", "x", (0, 1), "k0") in events(w)
    rm.update(asks=[{"job": "app", "ask": "x", "index": 0}, {"job": "app", "ask": "x", "index": 7}])
    w.cycle()
    assert [what for what, _, _, _ in events(w)] == ["rejected"]  # a live task stays, an unknown one is refused


def test_an_ask_is_scaled_by_its_count_alone() -> None:
    w = managed(4)
    rm = w.rm("k8s")
    rm.update(jobs=[{"job": "app", "stages": [{"name": "x", "count": 2, "min": 2, "resources": CPU}]}])
    rm.update(asks=[{"job": "app", "ask": "x", "count": 3}])
    w.cycle()
    assert state(w).jobs[0].asks[0].count == 3


@pytest.mark.parametrize("on_loss", ["replace", "restart", "fail"])
def test_a_task_that_could_not_start_follows_on_loss(on_loss: str) -> None:
    w = managed(2, 2)
    rm = w.rm("k8s")
    rm.update(jobs=[{"job": "app", "stages": [{"name": "x", "count": 3, "resources": CPU, "on_loss": on_loss}]}])
    w.cycle()
    before = {index: tasks.node for tasks in state(w).jobs[0].asks[0].live for index in range(*tasks.indices)}
    events(w)
    rm.update(releases=[{"job": "app", "ask": "x", "index": 0, "lost": True, "reason": "the kubelet refused it"}])
    w.cycle()
    told = events(w)
    if on_loss == "replace":  # on another node, because that one is avoided for a while
        (again,) = [node for what, _, indices, node in told if what == "allocated"]
        assert again != before[0]
    elif on_loss == "restart":
        assert sum(end - start for what, _, (start, end), _ in told if what == "release") == 2
    else:
        assert ("ended", "app") in [(what, name) for what, name, _, _ in told]
        assert w.partition().jobs["app"].state == "failed"


@pytest.mark.parametrize(("on_loss", "state"), [("replace", "running"), ("restart", "running"), ("fail", "failed")])
def test_tasks_lost_with_their_node_follow_on_loss(on_loss: str, state: str) -> None:
    w = managed(1, 1)
    rm = w.rm("k8s")
    rm.update(jobs=[{"job": "app", "stages": [{"name": "x", "count": 1, "resources": CPU, "on_loss": on_loss}]}])
    w.cycle()
    (lost,) = w.placements("app").values()
    rm.update(nodes=[{"name": lost, "action": "lose"}])
    w.cycle()
    w.cycle()
    assert w.partition().jobs["app"].state == state
    assert lost not in w.placements("app").values()
    assert bool(w.placements("app")) == (state == "running")


def test_a_gang_that_gets_no_replacement_is_taken_back() -> None:
    w = managed(2, 1, replace_within="10s")
    rm = w.rm("k8s")
    rm.update(jobs=[{"job": "app", "stages": [{"name": "x", "count": 3, "resources": CPU}]}])
    w.cycle()
    events(w)
    rm.update(nodes=[{"name": "k1", "action": "drain", "reason": "cordoned"}])
    (index,) = [tasks.indices[0] for tasks in state(w).jobs[0].asks[0].live if tasks.node == "k1"]
    rm.update(releases=[{"job": "app", "ask": "x", "index": index, "lost": True}])
    w.cycle()
    assert "release" not in [what for what, _, _, _ in events(w)]
    w.advance(11)
    w.cycle()
    assert sum(end - start for what, _, (start, end), _ in events(w) if what == "release") == 2
    assert next(node.reason for node in state(w).nodes if node.name == "k1") == "cordoned"


def test_preempted_tasks_wait_again_or_are_withdrawn() -> None:
    for withdraw in (False, True):
        w = managed(1)
        rm = w.rm("k8s")
        rm.update(jobs=[{"job": "low", "stages": [{"name": "x", "resources": CPU}]}])
        w.advance(1)
        rm.update(jobs=[{"job": "high", "priority": 5, "stages": [{"name": "x", "resources": CPU}]}])
        w.cycle()
        assert state(w).jobs[0].asks[0].live[0].state == "stopping"
        rm.update(releases=[{"job": "low", "ask": "x", "index": 0, "withdraw": withdraw}])
        w.cycle()
        assert bool(state(w).jobs[0].asks[0].waiting) != withdraw


def test_the_partition_waits_for_the_last_part_of_a_replay() -> None:
    w = managed(4)
    w.restart(ready=False)
    rm = w.rm("k8s")
    rm.register()
    rm.update(nodes=[{"name": "k0", "resources": CPU}], more=True)
    w.cycle()
    assert not w.partition().readiness.ready
    rm.update()
    w.cycle()
    assert w.partition().readiness.ready


def test_reasons_tell_if_capacity_is_missing() -> None:
    w = managed(2, queues={"root": {"default": {}, "small": {"limit": {"cpu": 1}}}})
    rm = w.rm("k8s")
    stage = {"name": "x", "count": 1, "resources": CPU}
    rm.update(jobs=[{"job": f"s{at}", "queue": "root.small", "stages": [stage]} for at in range(2)])
    w.cycle()
    rm.update(jobs=[{"job": "wide", "queue": "root.default", "stages": [{**stage, "count": 3}]}])
    rm.update(jobs=[{"job": "two", "queue": "root.default", "stages": [{**stage, "count": 2}]}])
    w.cycle()
    answers = {
        answer.job: (answer.code, answer.missing)
        for answer in waiting_answers(
            w.partition(), "k8s", ["s0", "s1", "wide", "two", "none"], w.cluster.writers["default"].reasons, w.now
        )
    }
    assert answers == {"s1": ("over limit", False), "wide": ("never fits", True), "two": ("no capacity", True)}


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        ({"prefer": {"x": -(2**80)}}, "is not a weight"),
        ({"resources": {"cpu": -(2**80)}}, "is negative"),
        ({"labels": {1: {}}}, "labels"),
    ],
)
def test_a_stage_that_cannot_be_packed_is_refused(stage: dict[str, Any], problem: str) -> None:
    w = managed(2)
    w.rm("k8s").update(jobs=[{"job": "app", "stages": [{"name": "a", **stage}]}])
    w.cycle()
    ((what, job, _, reason),) = events(w)
    assert (what, job) == ("rejected", "app") and problem in reason


def test_an_ask_behind_one_that_never_fits_has_the_same_reason() -> None:
    w = managed(2)
    rm = w.rm("k8s")
    stage = {"name": "x", "count": 1, "resources": {"cpu": 64}}
    rm.update(jobs=[{"job": "first", "queue": "root.default", "stages": [stage]}])
    w.cycle()
    rm.update(jobs=[{"job": "second", "queue": "root.default", "stages": [stage]}])
    w.cycle()
    reasons = w.cluster.writers["default"].reasons
    first, second = waiting_answers(w.partition(), "k8s", ["first", "second"], reasons, w.now)
    assert (second.code, second.reason, second.missing) == (first.code, first.reason, first.missing)
    assert "can never run" in second.reason and second.missing


def test_a_refused_item_is_named_as_an_accepted_one() -> None:
    w = managed(1)
    rm = w.rm("k8s")
    rm.events()
    stage = {"name": "x", "count": 1, "resources": CPU}
    rm.update(jobs=[{"job": "id", "name": "shown", "queue": queue, "stages": [stage]} for queue in ("root.no", "")])
    w.cycle()
    named = [(event.what, event.job) for event in rm.events() if event.what in ("accepted", "rejected")]
    assert named == [("rejected", "id"), ("accepted", "id")]


@pytest.mark.parametrize(
    ("on_loss", "state", "sentence"),
    [
        ("", "lost", "job j has no tasks: k8s asks for none now"),
        (
            "replace",
            "pending",
            "job j waits: no node has joined yet; 1 task waits again (last attempt: node k0 was removed)",
        ),
        (
            "restart",
            "pending",
            "job j waits: no node has joined yet; 1 task waits again (last attempt: node k0 was removed)",
        ),
    ],
)
def test_tasks_of_a_removed_node_follow_an_on_loss_that_was_asked_for(on_loss: str, state: str, sentence: str) -> None:
    w = managed(1)
    rm = w.rm("k8s")
    rm.update(jobs=[{"job": "j"}], asks=[{"job": "j", "ask": "a", "resources": CPU, "on_loss": on_loss or None}])
    w.advance(1)
    rm.update(nodes=[{"name": "k0", "action": "remove"}])
    w.advance(1)
    assert w.task("j", "a", 0).state == state
    assert w.why("j").sentence == sentence


def test_a_gang_of_stages_that_lost_a_node_may_run_again() -> None:
    w = managed(1, 1, 1)
    rm = w.rm("k8s")
    rm.update(jobs=[gang("j", ("a", 1), ("b", 2), on_loss="replace")])
    w.advance(1)
    rm.update(nodes=[{"name": "k0", "action": "lose"}])
    w.advance(1)
    assert "never" not in w.why("j").sentence
    assert not w.explain("j")[0].never
