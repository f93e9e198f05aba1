"""Worked cases of Beam's batches on our cycle: one reading of the nodes, packing, no overcommitment, requeueing.

A worker is a node here, a request a job of one task, a batch a cycle. CPUs are in thousandths, memory in MiB. Upstream
counts a quarter more memory than is asked for; here a request means what it says, so the rows ask for what upstream
would count (100 → 125). Rows with an id are published cases; the others follow from the same rules. `NOT_OURS` names
the published cases that Fairlead decides differently.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fairlead.core.effects import ForNode
from fairlead.core.policy.pool_size import nodes_to_add
from fairlead.core.resources import CPU, GPU, MEMORY
from fairlead.testing import World

PUBLISHED = """
batch-01 batch-03 batch-05 batch-07 batch-09 batch-11 batch-13 padding-02 padding-04 provision-01 provision-03
provision-05 provision-07 provision-09 retry-01 backlog-02 sizing-02 sizing-04 capacity-01 collect-01
""".split()

NOT_OURS = {
    "padding-02": "a request means what it says: no quarter of memory on top",
    "padding-04": "a request means what it says: no quarter of memory on top",
    "backlog-02": "it is the node that rests after a failed launch, not the request (`test_the_node_rests`)",
    "capacity-01": "a job is not weighed against another that it would replace",
    "collect-01": "the inbox decides when a batch closes; a cycle takes what it is given",
}

MI = 2**20

Amounts = tuple[int, ...]
"""CPU, memory, GPUs."""


def amounts(cpu: int, memory: int, gpu: int = 0) -> dict[str, Any]:
    return {"cpu": f"{cpu}m", "memory": f"{memory}Mi", **({"gpu": gpu} if gpu else {})}


def world(nodes: dict[str, Amounts], **config: Any) -> World:
    w = World(config)
    for name, free in nodes.items():
        w.node(name, labels={"gpu": "A10G"} if len(free) > 2 else {}, **amounts(*free))
    w.cycle()
    w.effects()
    return w


def submit(w: World, *need: int, **rest: Any) -> str:
    """A request. One for a GPU names its type."""
    kind = {"selectors": {"gpu": "A10G"}} if len(need) > 2 else {}
    return w.submit(name="r", stages=[{"name": "w", "resources": amounts(*need), **kind, **rest}])


def free(w: World) -> dict[str, Amounts]:
    nodes = w.partition().nodes
    found: dict[str, Amounts] = {}
    for name, node_id in nodes.joins.items():
        left = nodes.free(nodes.rows[node_id])
        found[name] = (left.get(CPU, 0), left.get(MEMORY, 0) // MI, left.get(GPU, 0) // 1000)
    return found


TINY: Amounts = (100, 125)
TWENTY: dict[str, Amounts] = {f"w{at:02}": (500, 700) for at in range(20)}
# Nodes with what is free, requests, the node of each or None, and what is then left of each node.
BATCHES: list[tuple[str, dict[str, Amounts], list[Amounts], list[str | None], list[Amounts]]] = [
    ("batch-01", {"w1": (200, 250)}, [TINY] * 3, ["w1", "w1", None], [(0, 0)]),
    (
        "batch-03",
        {"w1": (16000, 32000), "w2": (16000, 32000)},
        [TINY] * 70,
        ["w1"] * 70,
        [(9000, 23250), (16000, 32000)],
    ),
    (
        "batch-05",
        {"cpu": TINY, "gpu": (*TINY, 1)},
        [(*TINY, 1), TINY],
        ["gpu", "cpu"],
        [(0, 0), (0, 0, 0)],
    ),
    (
        "as batch-05, the GPU node first",
        {"gpu": (*TINY, 1), "cpu": TINY},
        [TINY, (*TINY, 1)],
        ["cpu", "gpu"],
        [(0, 0, 0), (0, 0)],
    ),
    ("batch-07", {"w1": (1000, 1250)}, [(1000, 1250), (1, 2)], ["w1", None], [(0, 0)]),
    ("batch-11", TWENTY, [TINY] * 100, [f"w{at // 5:02}" for at in range(100)], [(0, 75)] * 20),
    ("batch-13", {"big": (4000, 8000), "small": (1500, 2000)}, [(1000, 1250)], ["small"], [(4000, 8000), (500, 750)]),
    (
        "what only the large node takes leaves the small one to the others",
        {"big": (4000, 8000), "small": (1500, 2000)},
        [(2000, 1250), (1000, 1250), (2000, 1250), (1000, 1250)],
        ["big", "small", "big", None],
        [(0, 5500), (500, 750)],
    ),
    ("by memory as well as by cpu", {"w1": (1000, 250)}, [TINY] * 3, ["w1", "w1", None], [(800, 0)]),
    (
        "a request that fits goes on past one that does not",
        {"w1": (100, 125)},
        [(200, 125), TINY],
        [None, "w1"],
        [(0, 0)],
    ),
    (
        "the fuller node before the idle one",
        {"idle": (1000, 1000), "used": (200, 1000)},
        [TINY],
        ["used"],
        [(1000, 1000), (100, 875)],
    ),
]


@pytest.mark.parametrize(
    ("nodes", "requests", "placed", "left"),
    [pytest.param(*row[1:], id=row[0]) for row in BATCHES],
)
def test_batch(
    nodes: dict[str, Amounts],
    requests: list[Amounts],
    placed: list[str | None],
    left: list[Amounts],
) -> None:
    """One cycle, one write and one message a node: all requests are decided on one reading of the nodes."""
    w = world(nodes)
    before = w.cluster.writers["default"].seq
    jobs = [submit(w, *need) for need in requests]
    w.cycle()
    assert [w.placements(job).get(("w", 0)) for job in jobs] == placed
    assert [each[: len(want)] for each, want in zip(free(w).values(), left, strict=True)] == left
    assert w.cluster.writers["default"].seq == before + 1
    used = Counter(name for name in placed if name is not None)
    sent = {effect.node: len(effect.launches) for effect in w.effects() if isinstance(effect, ForNode)}
    assert sent == dict(used)
    w.cycle()
    assert w.cluster.writers["default"].seq == before + 1 + bool(used)  # the acknowledgements, and nothing else


@pytest.mark.parametrize("state", ["disable", "drain"])
def test_a_node_that_is_not_up_gets_nothing(state: str) -> None:
    """batch-09: and none of its capacity is used."""
    w = world({"w1": (1000, 1250)})
    getattr(w, state)("w1")
    job = submit(w, 1000, 1250)
    w.cycle()
    assert (w.placements(job), free(w)) == ({}, {"w1": (1000, 1250, 0)})
    w.enable("w1")
    w.cycle()
    assert w.placements(job) == {("w", 0): "w1"}


def test_a_batch_larger_than_a_cycle_goes_on_in_the_next() -> None:
    w = world(TWENTY, max_placed=30)
    jobs = [submit(w, *TINY) for _ in range(100)]
    counts = []
    for _ in range(4):
        w.cycle()
        counts.append(sum(len(w.placements(job)) for job in jobs))
    assert counts == [30, 60, 90, 100]


def test_a_failed_placement_goes_back_with_its_counter_raised() -> None:
    """retry-01, with our numbers: only tasks of the failing node return, each counted; other nodes go on."""
    w = world({"w1": (200, 250), "w2": (200, 250)}, max_launch_tries=3, launch_timeout="10s")
    w.hold_acks("w2")
    jobs = [submit(w, *TINY) for _ in range(4)]
    w.advance(10)
    stages = [w.partition().jobs[job].stages[0] for job in jobs]
    assert [w.task(job, "w", 0).state for job in jobs] == ["running", "running", "pending", "pending"]
    assert [stage.past(0).launches_failed for stage in stages] == [0, 0, 1, 1]
    w.node("w3", **amounts(100, 125))
    w.cycle()
    assert w.placements(jobs[2]) == {("w", 0): "w3"}
    w.advance(600)
    assert [w.job(job).state for job in jobs] == ["running", "running", "running", "failed"]
    assert w.task(jobs[3], "w", 0).attempt == 3 and free(w)["w2"] == (200, 250, 0)


def test_the_failed_ones_of_an_array_are_placed_while_the_others_run() -> None:
    w = world({"w1": (200, 250), "w2": (200, 250)})
    w.refuse_launches("w2")
    job = submit(w, *TINY, count=4, min=1)
    w.advance(0)
    assert len(w.placements(job)) == 2
    w.node("w3", **amounts(200, 250))
    w.cycle()
    assert set(w.placements(job).values()) == {"w1", "w3"}


def test_what_comes_after_a_gang_is_placed_again_when_its_launch_failed() -> None:
    w = world({"w1": (200, 250)})
    job = submit(w, *TINY, count=3, min=2)
    w.advance(0)
    w.node("w2", **amounts(100, 125))
    w.refuse_launches("w2")
    w.advance(0)
    w.return_node("w2")
    w.advance(10)
    assert w.placements(job) == {("w", 0): "w1", ("w", 1): "w1", ("w", 2): "w2"}


def test_the_node_rests() -> None:
    """As backlog-02: after a failed launch the node is skipped for one second, then for two; other nodes are not."""
    w = world({"w1": (100, 125)}, max_launch_tries=9)
    w.refuse_launches("w1")
    job = submit(w, *TINY)
    attempts = []
    for _ in range(8):
        w.advance(0.5)
        attempts.append(w.task(job, "w", 0).attempt)
    assert attempts == [1, 2, 2, 2, 2, 3, 3, 3]


# -- ordered nodes -----------------------------------------------------------------------------------------------


def test_a_batch_orders_only_what_truly_does_not_fit() -> None:
    """As batch-01 and batch-11: one node for the third, none for a hundred that fit."""
    for nodes, requests, expected in [({"w1": (200, 250)}, 3, 1), (TWENTY, 100, 0)]:
        w = world(nodes)
        w.pool("p", node=amounts(200, 250), max=10)
        for _ in range(requests):
            submit(w, *TINY)
        w.cycle()
        assert w.pools()["p"]["ordered"] == expected


def test_the_second_joins_the_node_that_is_being_made() -> None:
    """As provision-01: one node, promised to both; and in the next batch too."""
    w = world({})
    w.pool("p", node=amounts(200, 250), max=10)
    first, second = submit(w, *TINY), submit(w, *TINY)
    w.cycle()
    assert w.promises() == {(first, "w", "new"): [("p-1-0", 1)], (second, "w", "new"): [("p-1-0", 1)]}
    w.advance(1)
    assert w.pools()["p"]["ordered"] == 1


def test_a_slow_order_does_not_block_other_pools() -> None:
    """As provision-03."""
    w = world({})
    w.pool("cpu", node=amounts(100, 200), max=10)
    w.node("fast", pool="build", **amounts(100, 200))
    slow, quick = submit(w, *TINY, pool="cpu"), submit(w, *TINY, pool="build")
    w.cycle()
    assert w.placements(quick) == {("w", 0): "fast"}
    assert not w.placements(slow)
    assert w.pools()["cpu"]["ordered"] == 1


def test_after_three_orders_no_more_are_made() -> None:
    """As provision-05."""
    w = world({})
    w.pool("p", node=amounts(200, 250), max=10)
    job = submit(w, *TINY)
    for _ in range(3):
        w.advance(10)
        w.fail_order("p", "out of machines")
        w.cycle()
    w.advance(600)
    assert not w.partition().orders
    assert "3 orders of nodes for it failed (out of machines)" in str(w.explain(job)[0].reason)


def test_a_new_node_is_what_its_pool_says() -> None:
    """As provision-07: larger than the request, and other requests use the rest."""
    w = world({})
    w.pool("p", node={"cpu": 16, "memory": "16Gi"}, max=10)
    submit(w, *TINY)
    w.cycle()
    w.arrive("p")
    w.cycle()
    assert free(w) == {"p-1-0": (15900, 16384 - 125, 0)}


def test_one_request_makes_one_node_while_that_is_coming() -> None:
    """As provision-09: also if it turns out to be unsuitable; then the order has failed."""
    w = world({})
    w.pool("p", node=amounts(200, 250), max=10)
    submit(w, *TINY)
    w.cycle()
    for _ in range(5):
        w.advance(10)
        assert w.pools()["p"]["ordered"] == 1
    w.arrive("p", cpu="50m")
    w.cycle()
    assert w.partition().jobs["r"].stages[0].asks[2].failed_orders == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "there", "coming", "expected"),
    [("sizing-02", 0, 2, 0), ("sizing-04", 1, 0, 1), ("nothing", 0, 0, 2), ("enough", 2, 0, 0)],
)
def test_spare_nodes(name: str, there: int, coming: int, expected: int) -> None:
    """`min_idle` nodes stay idle; coming nodes count."""
    assert expected == nodes_to_add(idle=there, pending=0, ordered=coming, min_idle=2, total=there, least=0)


# -- the list ----------------------------------------------------------------------------------------------------

TESTED = {row[0] for row in BATCHES} | {"batch-09", "retry-01", "sizing-02", "sizing-04"}
TESTED |= {f"provision-{at:02}" for at in range(1, 10, 2)}


def test_every_published_case_is_tested_or_named() -> None:
    assert not TESTED & set(NOT_OURS)
    assert set(PUBLISHED) == TESTED & set(PUBLISHED) | set(NOT_OURS)
