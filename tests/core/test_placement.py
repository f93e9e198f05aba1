"""Placements: which of some small nodes and devices is used, by hand; then properties of any node and task."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.policy import fragmentation
from fairlead.core.policy.expected_loss import Usual, prices_of, waste_of
from fairlead.core.policy.fragmentation import Task, Workload
from fairlead.core.policy.placement import PLACEMENTS, WHOLE, Fleet, Node, Placement, draw

HALF = Task((1000, 0), 1, 500)
WHOLE_ONE = Task((1000, 0), 1, WHOLE)
WHOLE_TWO = Task((1000, 0), 2, WHOLE)
CPU_ONLY = Task((4000, 0), 0, 0)


def node(cpu: int, *used: int, of: int = 64, memory: int = 100) -> Node:
    """A node by its free CPUs, and what is used of each of its devices."""
    return Node((of * 1000, 100), (cpu * 1000, memory), used)


def fleet(*shapes: tuple[Task, int], elsewhere: int = 0) -> Fleet:
    usual = [Usual(task, weight, frozenset({0})) for task, weight in shapes]
    (prices,) = prices_of(usual, [{((64_000, 100), 2): 10}], waste_of(shapes), 0)
    return Fleet(64_000, 4, Workload(shapes, elsewhere), prices)


def best(placement: Placement, nodes: Mapping[str, Node], task: Task, around: Fleet) -> str:
    """Return the chosen node; of equal ones the first, as by their join numbers."""
    return min(nodes, key=lambda name: placement.score(nodes[name], task, around))


# ---- by hand


class Row(NamedTuple):
    place: str
    why: str
    task: Task
    nodes: dict[str, Node]
    winner: str
    devices: tuple[int, ...] = ()
    shapes: tuple[tuple[Task, int], ...] = ()


USES_ONE = ((Task((1000, 0), 1, WHOLE), 1),)
SEVENS_AND_THREES = ((Task((1000, 0), 1, 700), 2), (Task((1000, 0), 1, 300), 1))
HUNGRY = ((Task((8000, 0), 1, WHOLE), 1),)
CORES = {"few": node(10), "many": node(60), "some": node(30)}

ROWS = [
    Row("spread", "the emptiest", CPU_ONLY, CORES, "many"),
    Row(
        "spread",
        "by what is used of it, not by what is free",
        CPU_ONLY,
        {"big": node(40), "small": node(8, of=8)},
        "big",
    ),
    Row(
        "spread", "a small node, where less of it is used", CPU_ONLY, {"big": node(8), "small": node(8, of=8)}, "small"
    ),
    Row(
        "spread",
        "by the resource that is used most",
        WHOLE_ONE,
        {"gpu": node(64, 1000, 1000, 0), "cpu": node(32, 0, 0, 0)},
        "cpu",
        (0,),
    ),
    Row(
        "spread",
        "memory counts like any other",
        CPU_ONLY,
        {"memory": node(64, memory=10), "cpu": node(32)},
        "cpu",
    ),
    Row("bestfit", "the tightest", CPU_ONLY, CORES, "few"),
    Row("bestfit", "of equals the first", CPU_ONLY, {"one": node(30), "two": node(30)}, "one"),
    Row(
        "bestfit",
        "a GPU weighs as much as its part of the largest node",
        WHOLE_ONE,
        {"gpus": node(20, 0, 0), "cores": node(37, 0)},  # left over: 19/64 + 1/4 against 36/64
        "gpus",
        (0,),
    ),
    Row("bestfit", "idle GPU, in pieces or not", HALF, {"ab": node(9, 0, 400), "c": node(9, 0, 900)}, "c", (0,)),
    Row("dotprod", "least free of what it asks for", CPU_ONLY, CORES, "few"),
    Row("dotprod", "GPUs too", WHOLE_TWO, {"four": node(9, 0, 0, 0, 0), "two": node(20, 0, 0)}, "two", (0, 1)),
    Row(
        "dotprod", "what it does not ask for is all one", CPU_ONLY, {"full": node(9, 0), "idle": node(9, 0, 0)}, "full"
    ),
    Row(
        "dotprod", "less than a percent is nothing", Task((640, 0), 0, 0), {"first": node(64), "less": node(8)}, "first"
    ),
    Row(
        "gpu_packing",
        "the fullest split device",
        HALF,
        {"less": node(9, 0, 300), "most": node(9, 400, 0), "none": node(9, 600, 0)},
        "most",
        (0,),
    ),
    Row(
        "gpu_packing",
        "a used node before an empty one",
        HALF,
        {"empty": node(9, 0), "used": node(9, 1000, 0)},
        "used",
        (1,),
    ),
    Row(
        "gpu_packing",
        "of used nodes the first",
        WHOLE_ONE,
        {"one": node(9, 500, 0, 0), "two": node(9, 900, 0)},
        "one",
        (1,),
    ),
    Row(
        "gpu_packing", "of empty nodes the smallest", WHOLE_ONE, {"two": node(9, 0, 0), "one": node(9, 0)}, "one", (0,)
    ),
    Row(
        "gpu_clustering",
        "parts beside parts alone",
        HALF,
        {"mixed": node(9, 1000, 200), "parts": node(9, 300, 0), "empty": node(9, 0), "whole": node(9, 1000, 0)},
        "parts",
        (0,),
    ),
    Row(
        "gpu_clustering",
        "then where there are both",
        HALF,
        {"empty": node(9, 0), "whole": node(9, 1000, 0), "mixed": node(9, 1000, 200)},
        "mixed",
        (1,),
    ),
    Row("gpu_clustering", "then an empty node", HALF, {"whole": node(9, 1000, 0), "empty": node(9, 0)}, "empty", (0,)),
    Row(
        "gpu_clustering",
        "whole ones beside whole ones",
        WHOLE_ONE,
        {"parts": node(9, 300, 0), "empty": node(9, 0), "whole": node(9, 1000, 0)},
        "whole",
        (1,),
    ),
    Row("gpu_clustering", "the fullest of its like", HALF, {"a": node(9, 300, 0), "b": node(9, 400, 0)}, "b", (0,)),
    Row(
        "fgd",
        "where no whole device is split",
        HALF,
        {"whole": node(2, 0), "split": node(60, 500, 0)},
        "split",
        (0,),
        USES_ONE,
    ),
    Row(
        "fgd",
        "where a device is lost that is useless for want of CPUs",
        WHOLE_ONE,
        {"good": node(9, 0, 1000), "starved": node(7, 0, 1000)},
        "starved",
        (0,),
        HUNGRY,
    ),
    Row(
        "fgd",
        "work that would leave idle GPUs without CPUs goes elsewhere",
        CPU_ONLY,
        {"starving": node(10, 0), "rich": node(40, 0)},
        "rich",
        (),
        HUNGRY,
    ),
    Row(
        "fgd",
        "a device is split rather than left with a useless rest",
        Task((1000, 0), 1, 400),
        {"only": node(9, 100, 0)},
        "only",
        (1,),
        ((Task((1000, 0), 1, 600), 1),),
    ),
    Row(
        "fgd",
        "a loss below a step is none",
        HALF,
        {"whole": node(2, 0), "split": node(60, 500, 0)},
        "whole",
        (0,),
        (*USES_ONE, (CPU_ONLY, 99)),
    ),
    Row("fgd", "of devices with equal losses the tightest", HALF, {"only": node(9, 0, 500, 500, 700)}, "only", (1,)),
    Row("fgd", "of equal losses the first", CPU_ONLY, CORES, "few", (), USES_ONE),
    Row("fgd", "without usual work the first", HALF, {"a": node(9, 0, 0), "b": node(9, 0)}, "a", (0,)),
    Row(
        "priced",
        "a part that a larger request fits is left for it: the example of docs/packing.md",
        Task((1000, 0), 1, 300),
        {"hole": node(60, 300), "whole": node(60, 0)},
        "whole",
        (0,),
        SEVENS_AND_THREES,
    ),
    Row(
        "priced",
        "a device is split rather than left with a useless rest",
        Task((1000, 0), 1, 300),
        {"only": node(60, 300, 0)},
        "only",
        (1,),
        SEVENS_AND_THREES,
    ),
    Row(
        "priced",
        "GPUs that lack CPUs are used first",
        WHOLE_ONE,
        {"good": node(60, 0, 0), "starved": node(9, 0, 0)},
        "starved",
        (0,),
        HUNGRY,
    ),
    Row(
        "priced",
        "work that would leave idle GPUs without CPUs goes elsewhere",
        CPU_ONLY,
        {"starving": node(12, 0, 0), "rich": node(60, 0, 0)},
        "rich",
        (),
        HUNGRY,
    ),
    Row(
        "priced",
        "several free GPUs on one node are left for tasks that need them",
        WHOLE_ONE,
        {"pair": node(60, 0, 0), "one": node(60, 1000, 0)},
        "one",
        (1,),
        ((WHOLE_ONE, 1), (Task((1000, 0), 2, WHOLE), 1)),
    ),
    Row("priced", "of equal losses the first", WHOLE_ONE, {"one": node(60, 0, 0), "two": node(60, 0)}, "one", (0,)),
    Row("random", "all are equal", HALF, {"a": node(9, 0), "b": node(64, 500)}, "a", (0,)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.place}: {row.why}")
def test_by_hand(row: Row) -> None:
    placement = PLACEMENTS[row.place]
    around = fleet(*row.shapes)
    assert best(placement, row.nodes, row.task, around) == row.winner
    assert placement.devices(row.nodes[row.winner], row.task, around) == row.devices


def test_every_placement_has_rows() -> None:
    assert {row.place for row in ROWS} == set(PLACEMENTS)


def test_only_random_is_drawn() -> None:
    assert [name for name, placement in PLACEMENTS.items() if placement.drawn] == ["random"]


# ---- drawing


def test_a_draw_gives_every_node_the_same_chance() -> None:
    drawn = [draw(7, number, (1, 0, 3)) for number in range(4000)]
    assert drawn.count(1) == 0
    assert 900 < drawn.count(0) < 1100  # a quarter of 4000, and the numbers are always the same


def test_a_draw_depends_on_seed_and_number_alone() -> None:
    def draws(seed: int) -> list[int]:
        return [draw(seed, number, (5, 5, 5)) for number in range(20)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert draw(1, 0, (0, 4)) == 1


# ---- fragmentation, by hand and against a plain sum


def test_what_the_usual_work_could_use() -> None:
    shapes = [
        (Task((2000, 10), 1, 400), 3),  # could use the two devices with 400 and more
        (Task((2000, 10), 2, WHOLE), 5),  # there is only one whole device
        (Task((9000, 10), 1, 100), 7),  # not enough CPU
        (Task((2000, 50), 1, 100), 11),  # not enough memory
        (Task((2000, 10), 0, 0), 13),  # could use no GPU anywhere
    ]
    workload = Workload(shapes, elsewhere=17)
    free, used = (4000, 20), (0, 500, 700)
    assert workload.total == 3 + 5 + 7 + 11 + 13 + 17
    assert workload.usable(free, used) == 3 * (1000 + 500)
    assert workload.fragmentation(free, used) == workload.total * 1800 - 3 * 1500


def test_no_usual_work_uses_nothing() -> None:
    assert Workload(()).usable((4000, 20), (0, 0)) == 0
    assert Workload([(CPU_ONLY, 5)]).fragmentation((4000, 20), (0, 0)) == 5 * 2000


amounts = st.tuples(st.integers(0, 6), st.integers(0, 6))
parts = st.sampled_from([100, 250, 300, 500, 700, 999])
tasks = st.one_of(
    st.builds(Task, amounts, st.just(0), st.just(0)),
    st.builds(Task, amounts, st.just(1), parts),
    st.builds(Task, amounts, st.integers(1, 4), st.just(WHOLE)),
)
workloads = st.lists(st.tuples(tasks, st.integers(1, 50)), max_size=8)
devices = st.lists(st.sampled_from([0, 0, 100, 300, 500, 750, 1000]), max_size=5).map(tuple)


def plainly_usable(shapes: list[tuple[Task, int]], free: tuple[int, ...], used: tuple[int, ...]) -> int:
    total = 0
    for task, weight in shapes:
        serving = [WHOLE - each for each in used if task.devices and WHOLE - each >= task.milli]
        if len(serving) >= task.devices and all(have >= asked for have, asked in zip(free, task.amounts, strict=True)):
            total += weight * sum(serving)
    return total


@given(workloads, st.lists(st.tuples(amounts, devices), max_size=6), st.booleans())
def test_usable_is_the_plain_sum(
    shapes: list[tuple[Task, int]], states: list[tuple[tuple[int, ...], tuple[int, ...]]], forgetful: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if forgetful:
            patch.setattr(fragmentation, "MAX_KEPT", 1)
        workload = Workload(shapes)
        for free, used in states + states:
            assert workload.usable(free, used) == plainly_usable(shapes, free, used)
            assert workload.fragmentation(free, used) >= 0


# ---- what holds for any node and task


class Case(NamedTuple):
    place: str
    node: Node
    task: Task
    fleet: Fleet


@st.composite
def cases(draw_from: st.DrawFn) -> Case:
    """A placement, a node and a task that fits it."""
    task = draw_from(tasks)
    used = draw_from(devices)
    spare = draw_from(amounts)
    used += (0 if task.milli == WHOLE else draw_from(st.sampled_from([0, WHOLE - task.milli])),) * task.devices
    free = tuple(asked + more for asked, more in zip(task.amounts, spare, strict=True))
    capacity = tuple(have + taken for have, taken in zip(free, draw_from(amounts), strict=True))
    around = fleet(*draw_from(workloads))._replace(cpu=draw_from(st.integers(0, 12)), devices=len(used))
    return Case(draw_from(st.sampled_from(sorted(PLACEMENTS))), Node(capacity, free, used), task, around)


@given(cases())
def test_the_devices_fit(case: Case) -> None:
    chosen = PLACEMENTS[case.place].devices(case.node, case.task, case.fleet)
    assert len(set(chosen)) == case.task.devices == len(chosen)
    for device in chosen:
        assert case.node.device_use[device] + case.task.milli <= WHOLE


@given(cases())
def test_a_part_goes_to_a_split_device_if_one_fits(case: Case) -> None:
    if case.place in ("fgd", "priced") or not 0 < case.task.milli < WHOLE:
        return
    (device,) = PLACEMENTS[case.place].devices(case.node, case.task, case.fleet)
    split = [used for used in case.node.device_use if 0 < used <= WHOLE - case.task.milli]
    assert case.node.device_use[device] == max(split, default=0)


@given(cases(), st.data())
def test_the_order_of_the_devices_does_not_matter(case: Case, data: st.DataObject) -> None:
    other = case.node._replace(device_use=tuple(data.draw(st.permutations(case.node.device_use))))
    score, choose, *_ = PLACEMENTS[case.place]
    assert score(other, case.task, case.fleet) == score(case.node, case.task, case.fleet)
    taken = [
        sorted(each.device_use[device] for device in choose(each, case.task, case.fleet)) for each in (case.node, other)
    ]
    assert taken[0] == taken[1]


@given(cases(), cases())
def test_what_was_asked_before_does_not_matter(case: Case, earlier: Case) -> None:
    score, choose, *_ = PLACEMENTS[case.place]
    first = score(case.node, case.task, case.fleet), choose(case.node, case.task, case.fleet)
    for each in PLACEMENTS.values():
        each.score(earlier.node, earlier.task, case.fleet)
    assert (score(case.node, case.task, case.fleet), choose(case.node, case.task, case.fleet)) == first
    assert all(isinstance(part, int) for part in first[0])


@given(cases())
def test_fgd_distinguishes_a_hundred_losses(case: Case) -> None:
    assert -50 < min(PLACEMENTS["fgd"].score(case.node, case.task, case.fleet)) <= 50
