"""Worked cases of YuniKorn's core on our state: limits, users and groups, removal, queues that come and go.

Amounts are in the units people write. Rows with an id are published cases; the others follow from the same rules.
`NOT_OURS` names the published cases that Fairlead decides differently.
"""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.commands import Accepted, Rejected
from fairlead.core.errors import Refused
from fairlead.core.lifecycle import QUEUE
from fairlead.core.policy.limits import allowed
from fairlead.core.resources import MEMORY, MILLI, Vector
from fairlead.core.why.reasons import OverLimit, TooManyJobs
from fairlead.testing import World
from tests.cases import test_starvation as starvation

PUBLISHED = """
headroom-01 quota-01 quota-03 fairmax-01 fairmax-03 fairmax-05 fairmax-07 queue-sort-01 queue-sort-03 queue-sort-05
queue-sort-07 queue-sort-09 queue-sort-11 queue-sort-13 app-sort-02 app-sort-04 app-sort-06 app-sort-08 app-sort-10
node-sort-01 alloc-01 reserve-01 reserve-03 reserve-05 reserve-07 reserve-09 gang-02 gang-04 gang-06 gang-08 limit-02
limit-04 limit-06 limit-08 remove-01 remove-03 remove-05 preempt-02 preempt-04 preempt-06 quota-preempt-02
quota-preempt-04 quota-preempt-06 quota-preempt-08 object-state-01
""".split()

TURNS = "queues take turns by use over share, then name; guarantees do not sort"
ORDERS = "the order of a leaf is kind, then priority, time or running tasks"
GANGS = "a gang starts whole in one change, so there are no placeholders to swap, time out or give back"
NOT_OURS = {
    "fairmax-01": "limits are hard along the whole path: a child's 1200 below 1000 is 1000 (`test_limits_of_a_path`)",
    "alloc-01": "queues of equal use go by name, not by the priority of what waits (`test_priority_in_a_leaf`)",
    "node-sort-01": "nodes are scored by packing, not by weighted use",
    **dict.fromkeys([f"queue-sort-{at:02}" for at in range(1, 14, 2)], TURNS),
    **dict.fromkeys([f"app-sort-{at:02}" for at in range(2, 11, 2)], ORDERS),
    "reserve-05": "no ask names a single node: a selector of a node's own label waits for its turn",
    **dict.fromkeys(["gang-02", "gang-04", "gang-06"], GANGS),
    "preempt-06": "a claim is made when it helps, once, and not again for `promise_for` if it did not",
    **dict.fromkeys([f"quota-preempt-{at:02}" for at in (2, 4, 6, 8)], "a lowered limit stops nothing that runs"),
}


def tree(limits: dict[str, Any]) -> dict[str, Any]:
    """A configuration of queues from settings by path."""
    root: dict[str, Any] = {}
    for path, settings in sorted(limits.items()):
        place = root
        for name in path.split(".")[1:]:
            place = place.setdefault(name, {})
        place.update(settings)
    return {"queues": {"root": root}}


def world(limits: dict[str, Any], **capacity: Any) -> World:
    w = World(tree(limits))
    w.node("n1", **(capacity or {"cpu": 1000}))
    w.cycle()
    return w


def submit(
    w: World, queue: str, need: dict[str, Any], user: str = "user", groups: tuple[str, ...] = (), **rest: Any
) -> str:
    return w.submit(
        name="app", queue=queue, user=user, groups=list(groups), stages=[{"name": "w", "resources": need, **rest}]
    )


def units(vector: Vector) -> dict[str, float]:
    return {name: amount if name == MEMORY else amount / MILLI for name, amount in vector.items()}


def milli(vector: dict[str, int]) -> Vector:
    return {name: amount * MILLI for name, amount in vector.items()}


def room(w: World, path: str) -> dict[str, float]:
    free: Vector = {}
    for queue in w.partition().queues[path].line():
        for name, limit in (queue.account.limit or {}).items():
            left = max(0, limit - queue.account.used.get(name, 0))
            free[name] = min(free.get(name, left), left)
    return units(free)


def reason(w: World, job: str) -> object:
    (waiting,) = w.explain(job)
    return waiting.reason


# -- limits along the path ---------------------------------------------------------------------------------------

BOTH_LEAVES = {"root.parent.leaf1": {"first": 5, "second": 3}, "root.parent.leaf2": {"first": 5, "second": 3}}
PATH = {
    "root": {"limit": {"first": 20, "second": 10}},
    "root.parent": {"limit": {"first": 20, "second": 8}},
    "root.parent.leaf1": {},
    "root.parent.leaf2": {},
}


def used_tree(limits: dict[str, Any], used: dict[str, dict[str, Any]]) -> World:
    w = world(limits, first=1000, second=1000, third=1000)
    for path, amounts in used.items():
        submit(w, path, amounts)
    w.cycle()
    assert all(units(w.partition().queues[path].account.used) == amounts for path, amounts in used.items())
    return w


HEADROOM: list[tuple[str, dict[str, Any], dict[str, dict[str, Any]], dict[str, dict[str, float]]]] = [
    (
        "headroom-01",
        PATH,
        BOTH_LEAVES,
        {
            "root": {"first": 10, "second": 4},
            "root.parent": {"first": 10, "second": 2},
            "root.parent.leaf1": {"first": 10, "second": 2},
            "root.parent.leaf2": {"first": 10, "second": 2},
        },
    ),
    ("no limit anywhere", {"root.a": {}}, {"root.a": {"first": 5}}, {"root": {}, "root.a": {}}),
    (
        "each type by the level that limits it",
        {"root": {"limit": {"first": 9}}, "root.a": {"limit": {"second": 4}}, "root.b": {}},
        {"root.a": {"first": 2, "second": 1}, "root.b": {"first": 3, "second": 9}},
        {"root": {"first": 4}, "root.a": {"first": 4, "second": 3}, "root.b": {"first": 4}},
    ),
    (
        "an explicit 0 is nothing, an absent type is unlimited",
        {"root": {"limit": {"first": 9}}, "root.a": {"limit": {"third": 0}}},
        {},
        {"root": {"first": 9}, "root.a": {"first": 9, "third": 0}},
    ),
    (
        "a leaf may be tighter or wider than what is above it",
        {"root": {"limit": {"first": 9}}, "root.a": {"limit": {"first": 4}}, "root.b": {"limit": {"first": 40}}},
        {"root.a": {"first": 1}},
        {"root": {"first": 8}, "root.a": {"first": 3}, "root.b": {"first": 8}},
    ),
]


@pytest.mark.parametrize(
    ("limits", "used", "expected"), [row[1:] for row in HEADROOM], ids=[row[0] for row in HEADROOM]
)
def test_headroom(limits: dict[str, Any], used: dict[str, Any], expected: dict[str, Any]) -> None:
    w = used_tree(limits, used)
    assert {path: room(w, path) for path in expected} == expected


QUOTA: list[tuple[str, str, dict[str, int], str | None]] = [
    ("quota-01", "root.parent.leaf1", {"first": 1, "second": 2}, None),
    ("quota-03", "root.parent.leaf2", {"first": 11}, "root.parent"),
    ("all there is", "root.parent.leaf1", {"first": 10, "second": 2}, None),
    ("one too many of one type", "root.parent.leaf1", {"first": 1, "second": 3}, "root.parent"),
    ("too many for the root as well", "root.parent.leaf2", {"second": 5}, "root.parent"),
    ("a type without a limit", "root.parent.leaf2", {"third": 900}, None),
    ("nothing", "root.parent.leaf1", {}, None),
]


@pytest.mark.parametrize(("queue", "request_", "refused_by"), [row[1:] for row in QUOTA], ids=[row[0] for row in QUOTA])
def test_quota(queue: str, request_: dict[str, int], refused_by: str | None) -> None:
    """The queue nearest the leaf that has no room refuses; every queue of the path is charged, or none."""
    w = used_tree(PATH, BOTH_LEAVES)
    line = w.partition().queues[queue].line()
    refusal = allowed([(each.path, each.account.limit, each.account.used) for each in reversed(line)], milli(request_))
    assert (refusal and refusal.account) == refused_by
    before = {path: w.usage(path) for path in PATH}
    job = submit(w, queue, request_)
    w.cycle()
    assert bool(w.placements(job)) == (refused_by is None)
    charged = {each.path for each in line} if refused_by is None else set()
    for path, used in before.items():
        grown = {name: used.get(name, 0) + amount for name, amount in request_.items()} if path in charged else {}
        assert w.usage(path) == {**used, **grown}
    if refused_by is not None:
        assert isinstance(reason(w, job), OverLimit)


CLUSTER = {"ephemeral-storage": 1000, "memory": 1000, "pods": 1000, "vcore": 1000}
FAIR_MAX: list[tuple[str, dict[str, int], dict[str, int], list[dict[str, int]], list[dict[str, int]]]] = [
    (
        "fairmax-03",
        CLUSTER,
        {},
        [{"nvidia.com/gpu": 100, "vcore": 800}, {}],
        [{**CLUSTER, "nvidia.com/gpu": 100, "vcore": 800}, CLUSTER],
    ),
    (
        "fairmax-05",
        CLUSTER,
        {"vcore": 900},
        [{"vcore": 800}, {}],
        [{**CLUSTER, "vcore": 800}, {**CLUSTER, "vcore": 900}],
    ),
    (
        "fairmax-07",
        CLUSTER,
        {"nvidia.com/gpu": 100},
        [{"vcore": 800}, {}],
        [{**CLUSTER, "nvidia.com/gpu": 100, "vcore": 800}, {**CLUSTER, "nvidia.com/gpu": 100}],
    ),
    ("as in fairmax-01", {"vcore": 1000}, {}, [{"vcore": 800}, {"vcore": 1200}], [{"vcore": 800}, {"vcore": 1000}]),
    ("a child above its parent", {"vcore": 1000}, {"vcore": 500}, [{"vcore": 800}, {}], [{"vcore": 500}] * 2),
    ("nothing of a type", CLUSTER, {"pods": 0}, [{"pods": 5}, {}], [{**CLUSTER, "pods": 0}] * 2),
]


@pytest.mark.parametrize(
    ("root", "parent", "children", "expected"), [row[1:] for row in FAIR_MAX], ids=[row[0] for row in FAIR_MAX]
)
def test_limits_of_a_path(
    root: dict[str, int], parent: dict[str, int], children: list[dict[str, int]], expected: list[dict[str, int]]
) -> None:
    limits = {"root": {"limit": root}, "root.p": {"limit": parent}}
    leaves = {f"root.p.tier{at}": {"limit": child} for at, child in enumerate(children)}
    w = world({**limits, **leaves})
    assert [room(w, path) for path in leaves] == expected


GANG = [({"vcore": 1}, False), ({"vcore": 100}, True), ({"second": 100}, True), ({"vcore": 10}, True)]


@pytest.mark.parametrize(("limit", "starts"), GANG, ids=["gang-08", "gang-08 fits", "gang-08 other type", "just fits"])
def test_a_gang_against_the_limit(limit: dict[str, int], starts: bool) -> None:
    """A gang of 10 in all. One that is too large is parked with its reason, not rejected: limits change."""
    w = world({"root.a": {"limit": limit}}, vcore=1000)
    job = submit(w, "root.a", {"vcore": 1}, count=10)
    w.cycle()
    assert len(w.placements(job)) == (10 if starts else 0)
    if not starts:
        assert reason(w, job) == OverLimit("queue root.a", "vcore", 1000, 0, 10_000)
        w.configure(tree({"root.a": {"limit": {"vcore": 10}}}))
        w.cycle()
        assert len(w.placements(job)) == 10


def test_priority_in_a_leaf() -> None:
    """alloc-01 within its leaf: with room for one, the ask of higher priority is served first."""
    w = world({"root.leaf": {}, "root.parent.sub-leaf": {"limit": {"vcore": 1}}}, vcore=10)
    low = submit(w, "root.parent.sub-leaf", {"vcore": 1})
    high = w.submit(queue="root.parent.sub-leaf", priority=2, stages=[{"resources": {"vcore": 1}}])
    other = submit(w, "root.leaf", {"vcore": 1})
    w.cycle()
    assert [bool(w.placements(job)) for job in (low, high, other)] == [False, True, True]


# -- users and groups --------------------------------------------------------------------------------------------


def jobs(most: int) -> dict[str, Any]:
    return {"max_jobs": most}


def cpus(most: int) -> dict[str, Any]:
    return {"limit": {"cpu": most}}


# Each step is a job: + if it starts, the user with groups, the queue, the CPUs it asks for.
LIMITS: list[tuple[str, dict[str, Any], str]] = [
    # A number of running jobs.
    (
        "limit-02",
        {"root.q": {"users": {"ann": jobs(1)}}},
        "+ann:g root.q 1, -ann:g root.q 1",
    ),
    ("limit-04", {"root.q": {"users": {"*": jobs(1)}}}, "+ann:g root.q 1, -ann:g root.q 1"),
    (
        "limit-06",
        {"root.q": {"users": {"ann": jobs(1)}, "groups": {"g": jobs(100)}}},
        "+ann:g root.q 1, -ann:g root.q 1",
    ),
    (
        "a group by name",
        {"root.q": {"groups": {"g": jobs(1)}}},
        "+ann:g root.q 1, -ann:g root.q 1, +bob:h root.q 1, +bob:h root.q 1",
    ),
    (
        "any group: all users without another group count together",
        {"root.q": {"groups": {"*": jobs(1)}}},
        "+ann:g root.q 1, -ann:g root.q 1, -bob:h root.q 1",
    ),
    (
        "any user: each user has its own count",
        {"root.q": {"users": {"*": jobs(1)}}},
        "+ann:g root.q 1, +bob:h root.q 1, -bob:h root.q 1",
    ),
    (
        "group stricter than user",
        {"root.q": {"users": {"ann": jobs(100)}, "groups": {"g": jobs(1)}}},
        "+ann:g root.q 1, -ann:g root.q 1",
    ),
    (
        "a name before the wildcard: wider",
        {"root.q": {"users": {"*": jobs(1), "ann": jobs(2)}}},
        "+ann:g root.q 1, +ann:g root.q 1, -ann:g root.q 1, +bob:h root.q 1",
    ),
    (
        "a name before the wildcard: tighter",
        {"root.q": {"users": {"*": jobs(100), "ann": jobs(1)}}},
        "+ann:g root.q 1, -ann:g root.q 1, +bob:h root.q 1, +bob:h root.q 1",
    ),
    (
        "wildcards of both",
        {"root.q": {"users": {"*": jobs(2)}, "groups": {"*": jobs(3)}}},
        "+ann:g root.q 1, +ann:g root.q 1, -ann:g root.q 1, +bob:h root.q 1, -bob:h root.q 1",
    ),
    (
        "members of a group count together",
        {"root.q": {"groups": {"g": jobs(2)}}},
        "+ann:g root.q 1, +bob:g root.q 1, -cid:g root.q 1",
    ),
    ("none", {"root.q": {"users": {"ann": jobs(0)}}}, "-ann:g root.q 1, +bob:h root.q 1"),
    (
        "of a parent, over its leaves",
        {"root.p": {"users": {"*": jobs(1)}}, "root.p.a": {}, "root.p.b": {}, "root.c": {}},
        "+ann:g root.p.a 1, -ann:g root.p.b 1, +ann:g root.c 1",
    ),
    (
        "of a queue, for all users",
        {"root.p": jobs(2), "root.p.a": jobs(1), "root.p.b": {}},
        "+ann root.p.a 1, -bob root.p.a 1, +bob root.p.b 1, -ann root.p.b 1",
    ),
    # Resources.
    (
        "limit-08",
        {
            "root": {"users": {"ann": cpus(10)}},
            "root.leaf": {"users": {"ann": cpus(5)}},
            "root.parent": {"users": {"ann": cpus(5)}},
            "root.parent.sub-leaf": {"users": {"ann": cpus(3)}},
        },
        "+ann root.parent.sub-leaf 3, -ann root.parent.sub-leaf 3, "
        "+ann root.leaf 5, -ann root.leaf 5, +bob root.leaf 5",
    ),
    (
        "the root binds over all leaves",
        {"root": {"users": {"*": cpus(7)}}, "root.a": {"users": {"*": cpus(5)}}, "root.b": {"users": {"*": cpus(5)}}},
        "+ann root.a 4, -ann root.b 4, +ann root.b 3, +bob root.b 5",
    ),
    (
        "user stricter than group, then the group is spent",
        {"root.q": {"users": {"*": cpus(4)}, "groups": {"g": cpus(6)}}},
        "-ann:g root.q 5, +ann:g root.q 4, -bob:g root.q 3, +bob:g root.q 2, +cid root.q 4",
    ),
    (
        "the queue's own limit stands beside them",
        {"root.q": {"users": {"*": cpus(4)}, **cpus(6)}},
        "+ann root.q 4, -bob root.q 3, +bob root.q 2",
    ),
    # Which group counts: leaf to root, the first of the user's with a limit, then the wildcard of that level.
    (
        "the leaf's group before the root's",
        {"root": {"groups": {"g1": cpus(1)}}, "root.a": {"groups": {"g2": cpus(4)}}, "root.b": {}},
        "+ann:g1:g2 root.a 4, -ann:g1:g2 root.a 1, +ann:g1:g2 root.b 1, -ann:g1:g2 root.b 1",
    ),
    (
        "the first of the user's groups",
        {"root.q": {"groups": {"g1": cpus(1), "g2": cpus(4)}}},
        "+ann:g2:g1 root.q 4, +bob:g1:g2 root.q 1, -bob:g1:g2 root.q 1",
    ),
    (
        "a group without a limit is passed over",
        {"root.q": {"groups": {"g2": cpus(2)}}},
        "-ann:g1:g2 root.q 3, +ann:g1:g2 root.q 2",
    ),
    (
        "the leaf's wildcard before the root's name",
        {"root": {"groups": {"g1": cpus(9)}}, "root.a": {"groups": {"*": cpus(2)}}},
        "-ann:g1 root.a 3, +ann:g1 root.a 2",
    ),
    (
        "a name before the wildcard of its level",
        {"root.q": {"groups": {"*": cpus(1), "g1": cpus(3)}}},
        "+ann:g1 root.q 3, -bob:g9 root.q 2, +bob:g9 root.q 1",
    ),
    (
        "the group of a job counts on every level that limits it",
        {
            "root": {"groups": {"g": cpus(5)}},
            "root.a": {"groups": {"g": cpus(4)}},
            "root.b": {"groups": {"g": cpus(4)}},
        },
        "+ann:g root.a 4, -bob:g root.b 2, +bob:g root.b 1",
    ),
]


@pytest.mark.parametrize(("limits", "steps"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS])
def test_limits_of_users_and_groups(limits: dict[str, Any], steps: str) -> None:
    """Each step has a cycle of its own. At the end all running jobs stop, and waiting ones start within the limits."""
    w = world(limits)
    running = []
    for step in steps.split(", "):
        starts = step[0] == "+"
        user, queue, cpu = step[1:].split()
        name, *groups = user.split(":")
        job = submit(w, queue, {"cpu": int(cpu)}, name, tuple(groups))
        w.cycle()
        assert bool(w.placements(job)) == starts, step
        assert starts or isinstance(reason(w, job), OverLimit | TooManyJobs)
        running += [job] if starts else []
    for job in running:
        w.finish(job)
    w.cycle()
    for job in w.partition().jobs:
        w.kill(job)
    w.advance(1)
    assert_nothing_is_used(w)


def assert_nothing_is_used(w: World) -> None:
    partition = w.partition()
    assert not partition.allocations
    for queue in partition.queues.values():
        for account in (queue.account, *queue.users.values(), *queue.groups.values()):
            assert (account.used, account.running) == ({}, 0)


def test_a_job_that_ends_makes_room_for_the_next() -> None:
    w = world({"root.q": {"users": {"*": jobs(1)}}})
    first, second = submit(w, "root.q", {"cpu": 1}), submit(w, "root.q", {"cpu": 1})
    w.cycle()
    w.finish(first)
    w.cycle()
    w.cycle()
    assert w.job(second).state == "running"


def test_limits_of_a_user_that_change_count_what_runs() -> None:
    w = world({"root.q": {}})
    submit(w, "root.q", {"cpu": 3}, "ann")
    w.cycle()
    w.configure(tree({"root.q": {"users": {"ann": cpus(4)}}}))
    job = submit(w, "root.q", {"cpu": 2}, "ann")
    w.cycle()
    assert reason(w, job) == OverLimit("user ann in queue root.q", "cpu", 4000, 3000, 2000)
    w.configure(tree({"root.q": {}}))
    w.cycle()
    assert w.job(job).state == "running"


# -- removal -----------------------------------------------------------------------------------------------------


def managed(limits: dict[str, Any] | None = None, vcore: int = 1000) -> World:
    w = World(tree(limits or {"root.q": {"users": {"*": jobs(1000)}}}))
    w.rm("k8s").register()
    w.rm("k8s").update(
        nodes=[{"name": "node-1", "resources": {"vcore": vcore}}],
        jobs=[{"job": "app-1", "queue": "root.q", "user": "testuser"}],
    )
    w.cycle()
    w.rm("k8s").events()
    return w


def released(w: World) -> list[tuple[str, str]]:
    return [(event.job, event.ask) for event in w.rm("k8s").events() if event.what == "released"]


def of_user(w: World, user: str = "testuser") -> dict[str, float]:
    return units(w.partition().queues["root.q"].users[user].used)


def test_removing_a_node() -> None:
    """remove-01: allocations that the core knows are released; unknown ones cannot be."""
    w = managed()
    known = {"job": "app-1", "ask": "alloc-1", "node": "node-1", "resources": {"vcore": 1}}
    w.rm("k8s").update(recover=[known, {**known, "job": "not-an-app", "ask": "alloc-na"}])
    w.cycle()
    assert of_user(w) == {"vcore": 1}
    w.rm("k8s").events()
    w.rm("k8s").update(nodes=[{"name": "node-1", "action": "remove"}])
    w.cycle()
    assert released(w) == [("app-1", "alloc-1")]
    assert len(w.partition().nodes) == 0 and w.partition().nodes.total == {}
    assert of_user(w) == {}
    assert_nothing_is_used(w)


RELEASES: list[tuple[dict[str, Any], list[str], int]] = [
    ({"job": "", "ask": ""}, [], 2),
    ({"job": "does_not_exist"}, [], 2),
    ({"job": "app-1", "ask": "does_not_exist"}, [], 2),
    ({"job": "app-1", "ask": "alloc-1", "index": 7}, [], 2),
    ({"job": "app-1", "ask": "alloc-1"}, ["alloc-1"], 1),
    ({"job": "app-1", "ask": "alloc-1"}, [], 1),
    ({"job": "app-1", "ask": ""}, ["alloc-2"], 0),
    ({"job": "app-1"}, [], 0),
]


def test_releases_are_forgiving() -> None:
    """remove-03."""
    w = managed()
    asks = [{"job": "app-1", "ask": f"alloc-{at}", "resources": {"vcore": 1}} for at in (1, 2)]
    w.rm("k8s").update(asks=asks)
    w.cycle()
    w.rm("k8s").events()
    for release, gone, left in RELEASES:
        w.rm("k8s").update(releases=[release])
        w.cycle()
        events = w.rm("k8s").events()
        assert [event.ask for event in events if event.what == "released"] == gone
        assert not [event for event in events if event.what in ("rejected", "allocated")]
        assert len(w.partition().allocations) == left
        assert of_user(w).get("vcore", 0) == left
    assert_nothing_is_used(w)


def test_removing_one_of_two_nodes_leaves_the_other() -> None:
    w = world({"root.q": {"users": {"*": jobs(9)}}}, cpu=2)
    w.node("n2", cpu=3, gpu=1)
    ann = submit(w, "root.q", {"cpu": 2}, "ann", count=1, on_loss="fail")
    bob = submit(w, "root.q", {"cpu": 3, "gpu": 0.5}, "bob")
    w.cycle()
    w.remove_node("n1")
    w.cycle()
    assert (w.job(ann).state, w.job(bob).state) == ("failed", "running")
    assert units(w.partition().nodes.total) == {"cpu": 3, "gpu": 1}
    assert w.usage("root") == w.usage("root.q") == {"cpu": 3, "gpu": 0.5}
    assert (of_user(w, "ann"), of_user(w, "bob")) == ({}, {"cpu": 3, "gpu": 0.5})


def test_removing_a_managers_job_releases_it_at_once() -> None:
    w = managed(vcore=3)
    w.rm("k8s").update(asks=[{"job": "app-1", "ask": "x", "count": 5, "min": 1, "resources": {"vcore": 1}}])
    w.cycle()
    assert of_user(w) == {"vcore": 3}
    w.rm("k8s").events()
    w.rm("k8s").update(jobs=[{"job": "app-1", "remove": True}])
    w.cycle()
    assert released(w) == [("app-1", "x")]
    assert not w.lanes() and w.job("app-1").state == "succeeded"
    assert_nothing_is_used(w)


def test_killing_a_job_releases_it_when_its_tasks_have_stopped() -> None:
    w = world({"root.q": {"users": {"*": jobs(9)}, "groups": {"g": jobs(9)}}}, cpu=3)
    job = submit(w, "root.q", {"cpu": 1}, "ann", ("g",), count=5, min=1)
    after = w.submit(queue="root.q", after=[job], stages=[{}])
    w.cycle()
    w.kill(job)
    w.cycle()
    assert not w.lanes() and w.usage("root.q") == {"cpu": 3}
    w.advance(1)
    assert w.job(after).state == "failed"
    assert_nothing_is_used(w)


def test_removing_a_partition_releases_everything_under_it() -> None:
    w = World({"partitions": {name: tree({"root.q": {}}) for name in ("a", "b")}})
    for name in ("a", "b"):
        w.node(f"{name}1", partition=name, cpu=4)
        w.submit(name=f"job-{name}", partition=name, queue="root.q", stages=[{"count": 2, "resources": {"cpu": 1}}])
    w.rm("k8s", "b").register()
    w.rm("k8s", "b").update(
        nodes=[{"name": "k1", "resources": {"cpu": 4}}],
        jobs=[{"job": "app-1", "queue": "root.q"}],
        asks=[{"job": "app-1", "ask": "x", "resources": {"cpu": 1}}],
    )
    w.cycle()
    gone = w.partition("b")
    w.rm("k8s", "b").events()
    w.configure({"partitions": {"a": tree({"root.q": {}})}})
    w.cycle()
    assert gone.removed and not gone.allocations and not gone.nodes.rows and not gone.lanes
    assert {job.state for job in gone.jobs.values()} == {"killed"}
    assert all(queue.account.used == {} for queue in gone.queues.values())
    assert [event.ask for event in w.rm("k8s", "b").events() if event.what == "released"] == ["x"]
    assert list(w.cluster.writers) == ["a"] and w.usage("root.q", "a") == {"cpu": 2}
    w.restart()
    assert list(w.cluster.writers) == ["a"]
    assert len(w.placements("job-a")) == 2


def test_recovery_is_booked_above_a_limit_and_beyond_a_node() -> None:
    w = managed({"root.q": {"limit": {"vcore": 2}, "users": {"*": {"limit": {"vcore": 1}}}}}, vcore=3)
    one = {"job": "app-1", "ask": "x", "node": "node-1", "resources": {"vcore": 2}}
    w.rm("k8s").update(recover=[{**one, "index": 0}, {**one, "index": 1}])
    w.rm("k8s").update(asks=[{"job": "app-1", "ask": "y", "resources": {"vcore": 1}}])
    w.cycle()
    nodes = w.partition().nodes
    row = nodes.rows[nodes.joins["node-1"]]
    assert w.usage("root.q") == {"vcore": 4} and of_user(w) == {"vcore": 4}
    assert room(w, "root.q") == {"vcore": 0}
    assert (nodes.used["vcore"][row] - nodes.capacity["vcore"][row], nodes.free(row)) == (1_000, {})
    assert list(w.placements("app-1")) == [("x", 0), ("x", 1)]
    for index in (0, 1):
        assert ("y", 0) not in w.placements("app-1")
        w.rm("k8s").update(releases=[{"job": "app-1", "ask": "x", "index": index}])
        w.cycle()
    assert list(w.placements("app-1")) == [("y", 0)]


# -- queues that come and go -------------------------------------------------------------------------------------

CLEANUP = [("Active, empty", True, False, False), ("Draining, empty", False, False, True)]
CLEANUP += [("Draining, not empty", False, True, False), ("Active, not empty", True, True, False)]


@pytest.mark.parametrize(("listed", "busy", "removed"), [row[1:] for row in CLEANUP], ids=[row[0] for row in CLEANUP])
def test_when_a_queue_goes(listed: bool, busy: bool, removed: bool) -> None:
    """remove-05, except for queues that are not configured: there are none here."""
    w = world({"root.p.q": {}, "root.other": {}})
    job = submit(w, "root.p.q", {"cpu": 1}) if busy else None
    w.cycle()
    w.configure(tree({"root.p.q": {}, "root.other": {}} if listed else {"root.other": {}}))
    w.cycle()
    assert ("root.p.q" not in w.partition().queues) == removed
    assert ("root.p" not in w.partition().queues) == removed
    if job is not None and not listed:
        assert w.partition().queues["root.p.q"].state == "draining" and w.job(job).state == "running"
        w.finish(job)
        w.cycle()
        w.cycle()
        assert set(w.partition().queues) == {"root", "root.other"}


def test_an_empty_child_goes_before_its_busy_sister() -> None:
    w = world({"root.p.busy": {}, "root.p.idle": {}, "root.other": {}})
    waiting = submit(w, "root.p.busy", {"cpu": 5000})
    w.cycle()
    w.configure(tree({"root.other": {}}))
    w.cycle()
    assert set(w.partition().queues) == {"root", "root.other", "root.p", "root.p.busy"}
    w.kill(waiting)
    w.cycle()
    w.cycle()
    assert set(w.partition().queues) == {"root", "root.other"}


def test_a_draining_queue_that_comes_back_is_active_again() -> None:
    w = world({"root.p.q": {}, "root.other": {}})
    job = submit(w, "root.p.q", {"cpu": 1})
    w.cycle()
    w.configure(tree({"root.other": {}}))
    w.cycle()
    submit(w, "root.p.q", {"cpu": 1})
    w.answers()
    w.cycle()
    assert [type(answer) for answer in w.answers()] == [Rejected]
    w.configure(tree({"root.p.q": {"limit": {"cpu": 2}}, "root.other": {}}))
    again = submit(w, "root.p.q", {"cpu": 1})
    w.cycle()
    assert [w.partition().queues[path].state for path in ("root.p", "root.p.q")] == ["active", "active"]
    assert w.usage("root.p.q") == {"cpu": 2} and len(w.placements(again)) == len(w.placements(job)) == 1


def test_an_equal_configuration_is_a_no_op() -> None:
    limits = {"root.a": {"users": {"*": cpus(4)}}, "root.b": {"share": 5}}
    w = world(limits)
    submit(w, "root.a", {"cpu": 1})
    w.cycle()
    w.cycle()
    before = (w.dump(), w.cluster.configured, w.cluster.writers["default"].seq)
    w.configure(tree(dict(reversed(limits.items()))))
    w.cycle()
    assert (w.dump(), w.cluster.configured, w.cluster.writers["default"].seq) == before


EVENTS = {"remove": "draining", "start": "active", "stop": "stopped"}
TRANSITIONS = "active remove, draining remove, active start, stopped start, draining start, active stop, stopped stop"
ILLEGAL = "stopped remove, draining stop"


@pytest.mark.parametrize("row", [*TRANSITIONS.split(", "), *ILLEGAL.split(", ")])
def test_the_states_of_a_queue(row: str) -> None:
    """object-state-01. Staying in a state is no transition: nothing is done, and nothing refused."""
    state, event = row.split()
    assert (QUEUE.allows(state, EVENTS[event]) or state == EVENTS[event]) == (row not in ILLEGAL)


def test_a_stopped_queue_is_started_before_it_is_removed() -> None:
    w = world({"root.q": {}, "root.other": {}})
    w.stop_queue("root.q")
    w.stop_queue("root.q")
    w.cycle()
    w.configure(tree({"root.other": {}}))
    with pytest.raises(Refused, match="start it first"):
        w.cycle()
    w.start_queue("root.q")
    w.start_queue("root.q")
    w.cycle()
    assert all(isinstance(answer, Accepted) for answer in w.answers())
    w.configure(tree({"root.other": {}}))
    w.cycle()
    assert "root.q" not in w.partition().queues


# -- the list ----------------------------------------------------------------------------------------------------

TESTED = {row[0] for table in (HEADROOM, QUOTA, FAIR_MAX, LIMITS) for row in table}
TESTED |= starvation.YUNIKORN
TESTED |= {"gang-08", "remove-01", "remove-03", "remove-05", "object-state-01"}


def test_every_published_case_is_tested_or_named() -> None:
    assert not TESTED & set(NOT_OURS)
    assert set(PUBLISHED) == TESTED & set(PUBLISHED) | set(NOT_OURS)
