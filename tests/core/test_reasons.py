"""What explanations say: what is missing for ever, what is ahead, what comes after that, and a share of 0."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.why.never import may_never_run, never_runs
from fairlead.core.why.obstacles import Closed, NoLabel, TooFew, TooSmall
from fairlead.core.why.reasons import NeverFits, NoCapacity, NoNodeYet, NoShare, OverLimit, ShareSpent
from fairlead.testing import World
from fairlead.views.summaries import short_reason


def submit(w: World, name: str = "job", user: str = "ann", **stage: Any) -> str:
    more = {key: stage.pop(key) for key in ("queue", "preemptible", "partition", "gang", "after") if key in stage}
    return w.submit(name=name, user=user, stages=[{"name": "main", "resources": {"cpu": 1}, **stage}], **more)


def reason(w: World, job: str) -> str:
    (waiting,) = w.explain(job)
    return str(waiting.reason)


def cluster() -> World:
    """Return a world with plain nodes, a node of zone b, a tainted GPU node and a node for bob."""
    w = World()
    w.nodes(2, cpu=4)
    w.node("west", cpu=8, labels={"zone": "b"})
    w.node("g0", cpu=4, gpu=2, taints=["gpu"])
    w.node("desk", cpu=16, users=["bob"])
    return w


NEVER: dict[str, tuple[dict[str, Any], str]] = {
    "no node has memory": (
        {"resources": {"memory": "1Gi"}},
        "no node has memory (asked: 1Gi)",
    ),
    "the largest node": (
        {"resources": {"cpu": 20}},
        "the largest node, desk, has 16 CPUs (asked: 20)",
    ),
    "devices": (
        {"resources": {"gpu": 3}, "tolerations": ["gpu"]},
        "the largest node, g0, has 2 GPUs (asked: 3)",
    ),
    "a label": (
        {"selectors": {"zone": "a"}},
        "no node has label zone=a (but zone=b)",
    ),
    "a label with any value": (
        {"selectors": {"rack": "*"}},
        "no node has label rack",
    ),
    "a label and a resource": (
        {"selectors": {"zone": ["a", "c"]}, "resources": {"memory": "1Gi"}},
        "no node has memory (asked: 1Gi); no node has label zone=a or c (but zone=b)",
    ),
    "a taint": (
        {"resources": {"gpu": 0.5}},
        "node g0 has what a task needs, but its taint gpu is not tolerated",
    ),
    "users": (
        {"resources": {"cpu": 9}},
        "node desk has what a task needs, but may take no tasks of user ann",
    ),
    "a pool": (
        {"pool": "fast"},
        "no node is in pool fast",
    ),
    "not on one node": (
        {"resources": {"gpu": 1}, "selectors": {"zone": "b"}, "tolerations": ["gpu"]},
        "no node has all that a task needs: the nearest, node west, has no GPU (asked: 1)",
    ),
}


@pytest.mark.parametrize("case", NEVER)
def test_never_fits_says_what_is_missing(case: str) -> None:
    stage, said = NEVER[case]
    w = cluster()
    job = submit(w, **stage)
    w.cycle()
    assert reason(w, job) == f"can never run: {said}"
    w.drain("desk")
    w.disable("g0")
    w.disconnect("west")
    w.fail_node("n0")
    w.cycle()
    assert reason(w, job) == f"can never run: {said}"  # they may come back
    w.restart()
    w.cycle()
    assert reason(w, job) == f"can never run: {said}"


def test_what_is_missing_is_typed() -> None:
    w = cluster()
    job = submit(w, resources={"cpu": 20}, selectors={"zone": "a"})
    tainted = submit(w, resources={"gpu": 1})
    w.cycle()
    assert w.explain(job)[0].reason == NeverFits(
        1,
        0,
        obstacles=(
            TooSmall("cpu", 20_000, 16_000, "desk"),
            NoLabel("zone", ("a",), ("b",)),
        ),
    )
    assert w.explain(tainted)[0].reason == NeverFits(1, 0, obstacles=(Closed("g0", 1, ("gpu",)),))


def test_no_node_has_joined_yet() -> None:
    w = World()
    job = submit(w)
    w.cycle()
    [waiting] = w.explain(job)
    assert (waiting.reason, waiting.never, reason(w, job)) == (NoNodeYet(1, 0), False, "no node has joined yet")
    w.pool("small", node={"cpu": 1})
    big = submit(w, resources={"cpu": 2})
    w.cycle()
    assert isinstance(w.explain(job)[0].reason, NoCapacity)  # the pool can bring its node
    assert reason(w, big) == (
        "can never run: no node has joined yet; the largest node, one of pool small, has 1 CPU (asked: 2); "
        "no pool brings such nodes"
    )


def test_pools_that_bring_no_suitable_node_are_named() -> None:
    w = World()
    w.nodes(2, cpu=2)
    w.pool("gpus", node={"cpu": 8, "gpu": 1}, taints=["gpu"])
    w.pool("none", node={"cpu": 16}, max=0)
    tainted, closed = submit(w, resources={"gpu": 1}), submit(w, resources={"cpu": 16})
    w.cycle()
    assert reason(w, tainted) == (
        "can never run: pool gpus has what a task needs, but its taint gpu is not tolerated; no pool brings such nodes"
    )
    assert reason(w, closed) == (
        "can never run: pool none has what a task needs, but its max is 0; no pool brings such nodes"
    )
    w.pool("none", node={"cpu": 16}, max=1)
    w.cycle()
    assert isinstance(w.explain(closed)[0].reason, NoCapacity)


def test_a_gang_that_is_too_large_is_told_of_nodes_that_are_closed_to_it() -> None:
    w = World()
    w.nodes(2, cpu=4, labels={"zone": "a"})
    w.nodes(3, prefix="t", cpu=4, labels={"zone": "a"}, taints=["spot", "old"])
    w.nodes(2, prefix="b", cpu=4, labels={"zone": "b"})
    w.pool("more", node={"cpu": 4}, labels={"zone": "a"}, max=1)
    gang = submit(w, count=4, resources={"cpu": 4}, selectors={"zone": "a"})
    w.cycle()
    assert reason(w, gang) == (
        "can never run: all nodes and pools together take 3 of 4 tasks (3 nodes, such as t0, have what "
        "a task needs, but their taints old, spot are not tolerated)"
    )
    apart = submit(w, count=4, resources={"cpu": 1}, selectors={"zone": "b"}, apart=True)
    for number in range(9):
        w.node(f"odd{number}", cpu=4, labels={"zone": "a"}, taints=[f"t{number}"])
    w.cycle()
    told = w.explain(gang)[0].reason
    assert isinstance(told, NeverFits) and len(told.obstacles) == 5  # the largest groups
    assert w.explain(apart)[0].reason == NeverFits(4, 2, obstacles=(TooFew(2, (("cpu", 1000),), apart=True),))


def test_a_whole_job_is_told_what_its_stages_lack() -> None:
    w = cluster()
    stages = [
        {"name": "a", "resources": {"cpu": 1}},
        {"name": "b", "resources": {"gpu": 1}},
        {"name": "c", "resources": {"cpu": 1}, "selectors": {"zone": "a"}},
    ]
    job = w.submit(name="whole", user="ann", gang="job", stages=stages)
    w.cycle()
    assert {str(waiting.reason) for waiting in w.explain(job)} == {
        "can never run: all nodes and pools together take 0 of 1 b tasks, 0 of 1 c tasks (node g0 has "
        "what a task needs, but its "
        "taint gpu is not tolerated; no node has label zone=a (but zone=b))"
    }


def test_nodes_that_are_away_are_counted_not_called_missing() -> None:
    w = World()
    w.node("g0", cpu=4, gpu=1, labels={"zone": "a"}, taints=["gpu"])
    w.node("n0", cpu=4)
    w.drain("g0")
    job = submit(w, resources={"gpu": 1}, selectors={"zone": "a"}, tolerations=["gpu"])
    w.cycle()
    assert reason(w, job) == "0 of 1 fit now: 1 node is draining; 1 does not match its selectors"


def test_each_partition_answers_for_itself() -> None:
    w = World({"partitions": {"east": {}, "west": {"pools": {"gpus": {"node": {"gpu": 1}, "max": 1}}}}})
    w.node("e0", cpu=4, partition="east")
    east, west = (submit(w, resources={"gpu": 1}, partition=where) for where in ("east", "west"))
    w.cycle()
    assert reason(w, east) == "can never run: no node has a GPU (asked: 1)"
    assert isinstance(w.explain(west)[0].reason, NoCapacity)


def test_jobs_of_a_manager_need_nodes_of_it() -> None:
    w = World()
    w.node("own", cpu=8)
    asks = [{"job": "app", "ask": "exec", "resources": {"cpu": 1}}]
    manager = w.rm("k8s")
    manager.register()
    manager.update(jobs=[{"job": "app", "queue": "root.default"}], asks=asks)
    w.cycle()
    assert reason(w, "app") == "can never run: no node of manager k8s has joined yet"


# -- behind the head ---------------------------------------------------------------------------------------------


def test_behind_the_head_the_jobs_and_tasks_ahead_are_counted() -> None:
    w = World()
    w.node("n0", cpu=2)
    running = submit(w, "first", count=2)
    w.cycle()
    head, second, last = submit(w, count=2), submit(w, "sweep", count=298, min=1), submit(w, "last")
    w.cycle()
    assert len(w.placements(running)) == 2
    assert (w.explain(head)[0].jobs_ahead, w.explain(head)[0].tasks_ahead) == (0, 0)
    assert str(w.explain(second)[0]) == "298 tasks wait behind 1 job (2 tasks) in queue root.default"
    assert str(w.explain(last)[0]) == "1 task waits behind 2 jobs (300 tasks) in queue root.default"
    assert w.explain(last)[0].reason is None  # it was not tried


def test_behind_the_head_is_said_what_comes_after_that() -> None:
    w = World()
    w.queue("root.lab", users={"bob": {"limit": {"cpu": 1}}})
    w.node("n0", cpu=2)
    submit(w, "first", count=2, queue="root.lab")
    w.cycle()
    submit(w, "head", count=2, queue="root.lab")
    large = submit(w, "large", count=3, queue="root.lab")
    limited = submit(w, "limited", user="bob", count=2, queue="root.lab")
    w.cycle()
    assert isinstance(w.explain(large)[0].then, NeverFits)
    assert str(w.explain(large)[0]) == (
        "3 tasks wait behind 1 job (2 tasks) in queue root.lab; even then it can never run: all nodes and "
        "pools together take 2 of 3 tasks (missing: capacity for 1 more with 1 CPU)"
    )
    assert w.explain(limited)[0].then == OverLimit("user bob in queue root.lab", "cpu", 1000, 0, 2000)
    assert str(w.explain(limited)[0]).endswith(
        "behind 2 jobs (5 tasks) in queue root.lab; after that: the limit of user bob in queue root.lab is "
        "1 CPU: 0 in use, 2 more needed"
    )


def test_a_job_after_others_is_told_what_comes_after_them() -> None:
    w = World()
    w.node("n0", cpu=2)
    first = submit(w, "first")
    fits, never = submit(w, "fits", after=[first]), submit(w, "never", resources={"gpu": 1}, after=[first])
    w.cycle()
    assert str(w.explain(fits)[0]) == "1 task waits for job first"
    assert str(w.explain(never)[0]) == (
        "1 task waits for job first; even then it can never run: no node has a GPU (asked: 1)"
    )


def test_behind_what_never_fits_the_same_is_missing() -> None:
    w = World()
    w.node("n0", cpu=2)
    head, last = submit(w, resources={"gpu": 1}), submit(w, resources={"gpu": 1})
    w.cycle()
    assert w.explain(last)[0].then == w.explain(head)[0].reason
    assert "even then it can never run: no node has a GPU (asked: 1)" in str(w.explain(last)[0])


# -- a share of 0 ------------------------------------------------------------------------------------------------


def shared() -> World:
    w = World()
    w.queue("root.paid", share=100)
    w.queue("root.free", share=0)
    w.node("n0", cpu=4)
    return w


def test_a_share_of_0_is_named_for_tasks_that_get_no_loan() -> None:
    w = shared()
    job = submit(w, queue="root.free", preemptible=False)
    paid = submit(w, "paid", count=4, queue="root.paid")
    w.cycle()
    assert w.explain(job)[0].reason == ShareSpent("root.free", zero=True)
    assert reason(w, job) == "queue root.free has a share of 0, and only preemptible tasks may borrow more"
    assert len(w.placements(paid)) == 4


def test_a_share_of_0_is_named_where_other_queues_use_the_capacity() -> None:
    w = shared()
    submit(w, "paid", count=4, queue="root.paid")
    head, last = submit(w, queue="root.free"), submit(w, "last", queue="root.free")
    w.cycle()
    assert reason(w, head) == (
        "0 of 1 fit now: 1 node has too few CPUs free; queue root.free has a share of 0: it gets only what other "
        "queues leave idle"
    )
    assert w.explain(last)[0].then == NoShare("root.free")
    w.kill("paid")
    w.advance(1)
    assert w.placements(head) and w.placements(last)  # idle capacity is lent
    full = submit(w, "full", count=4, queue="root.free")
    w.cycle()
    assert "share" not in reason(w, full)  # its own queue uses the capacity


# -- lists and warnings ------------------------------------------------------------------------------------------


def short(w: World, job: str) -> str:
    return short_reason(
        w.partition(), w.partition().jobs[job], w.cluster.writers["default"].reasons, lambda job_id: True
    )


def test_short_reasons() -> None:
    w = World()
    w.queue("root.a", limit={"cpu": 2})
    w.queue("root.b", max_jobs=1)
    w.queue("root.c")
    w.node("n0", cpu=5)
    running = submit(w, count=2, queue="root.a")
    one = submit(w, queue="root.b")
    w.cycle()
    limited, second = submit(w, queue="root.a"), submit(w, queue="root.b")
    never, gang = submit(w, resources={"gpu": 1}, queue="root.c"), submit(w, count=4, queue="root.c")
    behind, later = submit(w, queue="root.c"), submit(w, queue="root.c", after=[never, gang, one])
    w.cycle()
    assert [short(w, job) for job in (running, limited, second, never, gang, behind, later)] == [
        "",
        "CPU limit of queue root.a",
        "max_jobs of queue root.b reached",
        "can never run",
        "no free capacity for 4 tasks at once",
        "behind other jobs",
        f"waits for jobs {never}, {gang} and 1 more",
    ]
    w.restart(ready=False)
    assert short(w, behind) == "the scheduler is starting"


def test_jobs_that_can_never_run_are_known_at_once() -> None:
    w = shared()
    w.queue("root.tight", limit={"cpu": 2})
    w.queue("root.closed", max_jobs=0)
    cases = {
        submit(w, "fits", queue="root.paid"): None,
        submit(w, "waits", count=4, queue="root.paid"): None,
        submit(w, "gpu", resources={"gpu": 1}, queue="root.paid"): "can never run: no node has a GPU (asked: 1)",
        submit(
            w, "limit", resources={"cpu": 3}, queue="root.tight"
        ): "the limit of queue root.tight is 2 CPUs: 0 in use",
        submit(w, "closed", queue="root.closed"): "no job of queue root.closed may run (max_jobs is 0)",
        submit(w, "firm", queue="root.free", preemptible=False): "queue root.free has a share of 0",
        submit(
            w, "follows", resources={"cpu": 9}, queue="root.paid", after=["fits"]
        ): "can never run: the largest node",
    }
    whole = [{"name": "a", "resources": {"cpu": 3}}, {"name": "b", "resources": {"cpu": 2}}]
    cases[w.submit(name="whole", user="ann", queue="root.paid", gang="job", stages=whole)] = "can never run: all stages"
    w.cycle()
    for job, said in cases.items():
        why = never_runs(w.partition(), w.partition().jobs[job])
        assert (why is None) if said is None else str(why).startswith(said), (job, why)
        # The quick look may ask for the thorough one in vain, but never says that a job can run that cannot.
        assert may_never_run(w.partition(), w.partition().jobs[job]) or said is None, job
    assert not may_never_run(w.partition(), w.partition().jobs["waits"])  # its nodes were counted


def test_elastic_growth_of_a_running_job_is_judged_too() -> None:
    w = World()
    w.node("n0", cpu=4)
    stages = [{"name": "a", "resources": {"cpu": 1}}, {"name": "b", "resources": {"gpu": 1}}]
    job = w.submit(name="two", user="ann", stages=stages)
    w.cycle()
    assert len(w.placements(job)) == 1
    assert "no node has a GPU" in str(never_runs(w.partition(), w.partition().jobs[job]))
