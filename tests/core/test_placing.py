"""Placements at work: where tasks land in a small world, task by task and gang by gang."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.index.scored import ScoreIndex
from fairlead.core.model import Mix
from fairlead.core.node_table import NodeTable
from fairlead.core.policy.placement import PLACEMENTS
from fairlead.core.shape import Shape, ShapeKey
from fairlead.core.why.reasons import NeverFits, NoCapacity
from fairlead.testing import World


def world(place: str, **rest: Any) -> World:
    return World({"place": place, **rest})


def nodes_of(w: World, *jobs: str) -> list[str]:
    return [node for job in jobs for _, node in sorted(w.placements(job).items())]


def single(w: World, name: str, **resources: Any) -> None:
    w.submit(name=name, stages=[{"name": "s", "resources": resources}])
    w.cycle()


@pytest.mark.parametrize("place", ["pack", *sorted(PLACEMENTS)])
def test_every_placement_fills_the_machine(place: str) -> None:
    """Whatever the order, no task waits while it fits."""
    w = world(place)
    w.nodes(3, cpu=2, memory="4Gi", gpu=1)
    for number in range(7):
        single(w, f"j{number}", cpu=1, memory="1Gi", gpu="0.5")
    assert sum(bool(w.placements(f"j{number}")) for number in range(7)) == 6
    assert isinstance(w.explain("j6")[0].reason, NoCapacity)


@pytest.mark.parametrize(
    ("place", "expected"),
    [("pack", ["n0", "n0", "n0"]), ("bestfit", ["n0", "n0", "n0"]), ("spread", ["n0", "n1", "n2"])],
)
def test_one_after_the_other(place: str, expected: list[str]) -> None:
    w = world(place)
    w.nodes(3, cpu=4)
    for number in range(3):
        single(w, f"j{number}", cpu=1)
    assert nodes_of(w, "j0", "j1", "j2") == expected


def test_a_gang_is_spread_too() -> None:
    w = world("spread")
    w.nodes(3, cpu=4)
    w.submit(name="g", stages=[{"name": "s", "count": 6, "resources": {"cpu": 1}}])
    w.cycle()
    assert sorted(nodes_of(w, "g")) == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_a_gang_that_does_not_fit_leaves_nothing_behind() -> None:
    w = world("fgd")
    w.nodes(3, cpu=4, gpu=1)
    w.submit(name="g", stages=[{"name": "s", "count": 4, "resources": {"gpu": 1}}])
    w.cycle()
    assert not w.placements("g")
    single(w, "j", cpu=4, gpu=1)
    assert nodes_of(w, "j") == ["n0"]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_draws_the_same_after_a_restart(seed: int) -> None:
    def play(restart: bool) -> list[str]:
        w = world("random", seed=seed)
        w.nodes(20, cpu=4)
        for number in range(10):
            single(w, f"j{number}", cpu=1)
            if restart:
                w.restart()
        return nodes_of(w, *(f"j{number}" for number in range(10)))

    assert play(False) == play(True)
    assert len(set(play(False))) > 3


def test_seeds_draw_differently() -> None:
    def play(seed: int) -> list[str]:
        w = world("random", seed=seed)
        w.nodes(4, cpu=8)
        w.submit(name="g", stages=[{"name": "s", "count": 12, "resources": {"cpu": 1}}])
        w.cycle()
        return nodes_of(w, "g")

    assert play(1) != play(2)


def test_another_placement_takes_effect_in_the_next_cycle() -> None:
    w = world("pack")
    w.nodes(2, cpu=4)
    single(w, "a", cpu=1)
    w.configure({"partitions": {"default": {"place": "spread"}}})
    single(w, "b", cpu=1)
    assert nodes_of(w, "a", "b") == ["n0", "n1"]


def test_fgd_does_not_weigh_what_is_forgotten() -> None:
    nodes = NodeTable()
    nodes.add(1, "n", {"cpu": 4000, "gpu": 1000}, {}, (), "", (), "")
    index = ScoreIndex(nodes, "fgd", 0)
    here, gone = Shape(ShapeKey((("cpu", 1000),))), Shape(ShapeKey((("cpu", 2000),)))
    for shape in (here, gone):
        shape.stages = 1
        index.add(shape)
    index.learn(Mix(((here.key, 1),)))
    index.put_all_back()
    index.forget(gone)
    index.refresh()
    assert [each.node_id for each in index.choose(here, 1, 0)] == [1]


def test_a_node_that_is_held_or_lost_does_not_rebuild_the_index() -> None:
    """A rebuild scores all nodes again."""
    w = world("priced")
    w.nodes(2, cpu=4, gpu=1)
    single(w, "a", cpu=1, gpu=1)
    index = w.partition().derived.index
    before = list(index._kinds.values())
    w.drain("n1")
    single(w, "b", cpu=1, gpu=1)
    assert [id(kind) for kind in index._kinds.values()] == [id(kind) for kind in before]
    w.node("c", cpu=4)  # its kind is used as by `pack`, which needs thresholds
    single(w, "c", cpu=1)
    assert nodes_of(w, "c") == ["c"]


# -- topology


def racks(**each: int) -> World:
    w = World()
    for rack, cpus in each.items():
        for number in range(2):
            w.node(f"{rack}{number}", cpu=cpus, labels={"rack": rack})
    return w


def gang(w: World, count: int, **rest: Any) -> list[str]:
    w.submit(name="g", stages=[{"name": "s", "count": count, "resources": {"cpu": 1}, **rest}])
    w.cycle()
    return sorted(nodes_of(w, "g"))


def test_a_gang_gathers_in_one_rack() -> None:
    assert gang(racks(a=1, b=2), 4, near="rack") == ["b0", "b0", "b1", "b1"]
    assert gang(racks(a=1, b=2), 4) == ["a0", "a1", "b0", "b0"]


def test_of_racks_that_would_do_the_one_with_the_fewest_nodes() -> None:
    assert gang(racks(a=1, b=2), 2, near="rack") == ["b0", "b0"]


def test_a_gang_uses_the_fewest_racks() -> None:
    """The largest first: two racks, where smallest first would need three."""
    assert gang(racks(a=1, b=2, c=3), 9, near="rack") == ["b0", "b0", "b1", "c0", "c0", "c0", "c1", "c1", "c1"]


def test_nodes_without_the_label_are_one_place_more() -> None:
    w = racks(a=1)
    w.node("x", cpu=4)
    assert gang(w, 4, near="rack") == ["x", "x", "x", "x"]


def test_a_lost_worker_comes_back_where_the_others_are() -> None:
    w = racks(a=2, b=1)
    w.node("a2", cpu=2, labels={"rack": "a"})
    assert gang(w, 2, near="rack", apart=True) == ["a0", "a1"]
    w.fail_node("a1")
    w.advance(1)
    assert sorted(nodes_of(w, "g")) == ["a0", "a2"]


def test_one_a_node() -> None:
    assert gang(racks(a=4, b=4), 3, apart=True) == ["a0", "a1", "b0"]


def test_one_a_node_or_not_at_all() -> None:
    w = racks(a=4)
    assert gang(w, 3, apart=True) == []
    reason = w.explain("g")[0].reason
    assert isinstance(reason, NeverFits) and (reason.wanted, reason.most) == (3, 2)
    w.node("c", cpu=1)
    w.cycle()
    assert sorted(nodes_of(w, "g")) == ["a0", "a1", "c"]


def test_one_a_node_also_when_they_come_one_by_one() -> None:
    w = racks(a=4, b=4)
    assert gang(w, 2, min=1, apart=True) == ["a0", "a1"]
    w.scale("g", "s", 5)
    w.advance(1)
    assert sorted(nodes_of(w, "g")) == ["a0", "a1", "b0", "b1"]
    w.submit(name="h", stages=[{"name": "s", "resources": {"cpu": 1}}])
    w.cycle()
    assert nodes_of(w, "h") == ["a0"], "others may share the node"
