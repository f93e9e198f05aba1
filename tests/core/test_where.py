"""Conditions on node labels, preferences, and tolerations with a star."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.expressions import accepts, format_term, format_where, parse_term, parse_where
from fairlead.core.policy.placement import PLACEMENTS
from fairlead.testing import World

LABELS: dict[str, dict[str, str]] = {
    "a8": {"zone": "a", "cores": "8"},
    "b16": {"zone": "b", "cores": "16", "spot": ""},
    "c": {"zone": "c", "cores": "many"},
    "none": {},
}


@pytest.mark.parametrize(
    ("where", "nodes"),
    [
        ("zone", "a8 b16 c"),
        ("!zone", "none"),
        ("zone = a", "a8"),
        ("zone == a", "a8"),
        ("zone != a", "b16 c none"),
        ("zone in (a, b)", "a8 b16"),
        ("zone notin (a,b)", "c none"),
        ("cores > 8", "b16"),
        ("cores < 16", "a8"),
        ("cores > -1", "a8 b16"),
        ("spot =", "b16"),
        ("spot in (,x)", "b16"),
        ("zone in (a, b), !spot", "a8"),
        ("zone=a,zone=b", ""),
        (["zone = a", "zone = c"], "a8 c"),
        (["cores > 8", "!cores"], "b16 none"),
        (["zone = a, spot", "zone = b, spot"], "b16"),
    ],
)
def test_conditions(where: Any, nodes: str) -> None:
    terms = parse_where(where, "where")
    assert [name for name, labels in LABELS.items() if accepts(terms, labels)] == nodes.split()
    w = World()
    for name, labels in LABELS.items():
        w.node(name, cpu=1, labels=labels)
    w.submit(name="j", stages=[{"count": 4, "min": 1, "resources": {"cpu": 1}, "where": where}])
    w.cycle()
    assert sorted(w.placements("j").values()) == sorted(nodes.split())


def test_the_text_of_a_term_reads_back() -> None:
    for text in ("zone", "!zone", "zone=a", "zone!=a", "zone in (a,b)", "zone notin (a,b)", "n>8", "n<-8", "z="):
        assert format_term(parse_term(text, "")) == text
    assert format_where(parse_where(["b, a", "c"], "")) == "a, b or c"


def test_why_no_node_is_accepted() -> None:
    w = World()
    w.node("n0", cpu=1, labels={"zone": "a"})
    w.submit(name="no", stages=[{"resources": {"cpu": 1}, "where": ["zone in (b, c)", "!zone"]}])
    w.submit(name="both", stages=[{"resources": {"cpu": 1}, "where": "zone = a", "selectors": {"rack": "r"}}])
    w.node("n1", cpu=1, labels={"rack": "r"})
    w.cycle()
    assert "no node has labels with !zone or zone in (b,c)" not in str(w.explain("both")[0])
    assert "no node has all that a task needs" in str(w.explain("both")[0])
    w.remove_node("n1")
    w.cycle()
    assert "no node has labels with !zone or zone in (b,c)" in str(w.explain("no")[0])


def test_a_node_without_the_condition_is_named() -> None:
    w = World()
    w.node("n0", cpu=1, labels={"zone": "a"})
    w.node("n1", cpu=1, labels={"zone": "b"})
    w.submit(name="first", stages=[{"resources": {"cpu": 1}, "where": "zone = b"}])
    w.submit(name="next", stages=[{"resources": {"cpu": 1}, "where": "zone = b"}])
    w.cycle()
    assert "1 node has too few CPUs free; 1 does not match its selectors" in str(w.explain("next")[0])


@pytest.mark.parametrize("place", ["pack", *sorted(PLACEMENTS)])
def test_preferred_nodes_are_used_first(place: str) -> None:
    w = World({"place": place})
    w.node("plain", cpu=8)
    w.node("ssd", cpu=2, labels={"disk": "ssd"})
    w.node("fast", cpu=2, labels={"disk": "ssd", "net": "fast"})
    prefer = {"disk = ssd": 5, "net = fast": 1}
    w.submit(name="j", stages=[{"count": 5, "min": 1, "resources": {"cpu": 1}, "prefer": prefer}])
    w.cycle()
    assert sorted(w.placements("j").values()) == ["fast", "fast", "plain", "ssd", "ssd"]
    w.submit(name="gang", stages=[{"count": 3, "resources": {"cpu": 1}, "prefer": prefer}])
    w.cycle()
    assert sorted(w.placements("gang").values()) == ["plain"] * 3


def test_the_weight_decides() -> None:
    w = World()
    w.node("a", cpu=1, labels={"zone": "a"})
    w.node("b", cpu=1, labels={"zone": "b"})
    for name, prefer in (("one", {"zone = a": 1, "zone = b": 2}), ("two", {"zone = a": 2, "zone = b": 1})):
        w.submit(name=name, stages=[{"resources": {"cpu": 1}, "prefer": prefer}])
        w.cycle()
        assert list(w.placements(name).values()) == ["b" if name == "one" else "a"]
        w.kill(name)
        w.cycle()


@pytest.mark.parametrize("place", ["pack", "spread"])
def test_a_soft_taint_makes_a_node_the_last_choice(place: str) -> None:
    w = World({"place": place})
    w.node("soft", cpu=1, taints=["old=yes:PreferNoSchedule"])
    w.node("n", cpu=4)
    for at in range(5):
        w.submit(name=f"j{at}", stages=[{"resources": {"cpu": 1}}])
        w.cycle()
    assert [next(iter(w.placements(f"j{at}").values())) for at in range(5)] == ["n", "n", "n", "n", "soft"]


def test_a_tolerated_soft_taint_makes_no_difference() -> None:
    w = World()
    w.node("soft", cpu=1, taints=["old=yes:PreferNoSchedule"])
    w.node("n", cpu=4)
    w.submit(name="j", stages=[{"resources": {"cpu": 1}, "tolerations": ["old=*"]}])
    w.cycle()
    assert list(w.placements("j").values()) == ["soft"]


@pytest.mark.parametrize(
    ("tolerations", "node"),
    [
        ([], "free"),
        (["dedicated=ml:NoSchedule"], "tainted"),
        (["dedicated=*:NoSchedule"], "tainted"),
        (["dedicated=*"], "tainted"),
        (["*"], "tainted"),
        (["dedicated=ci*"], "free"),
        (["dedicated=*:NoExecute"], "free"),
        (["dedicated=ml:NoSchedule*:NoSchedule"], "free"),
    ],
)
def test_a_star_in_a_toleration(tolerations: list[str], node: str) -> None:
    w = World()
    w.node("tainted", cpu=1, taints=["dedicated=ml:NoSchedule"])
    w.node("free", cpu=2)
    w.submit(name="j", stages=[{"resources": {"cpu": 1}, "tolerations": tolerations}])
    w.cycle()
    assert list(w.placements("j").values()) == [node]


@pytest.mark.parametrize("preempts", [False, True])
def test_a_job_that_preempts_nothing(preempts: bool) -> None:
    w = World()
    w.node("n", cpu=1)
    w.submit(name="low", stages=[{"resources": {"cpu": 1}}])
    w.submit(name="lower", priority=-1, stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    w.submit(name="high", priority=2, preempts=preempts, stages=[{"resources": {"cpu": 1}}])
    w.advance(60)
    assert bool(w.placements("high")) == preempts
    if not preempts:
        w.kill("low")
        w.advance(60)
        assert w.placements("high"), "it is still before jobs of lower priority"


node_labels = st.fixed_dictionaries({}, optional={"zone": st.sampled_from("ab"), "n": st.sampled_from(["1", "2", "x"])})
wheres = st.sampled_from(
    ["zone", "!zone", "zone = a", "zone != a", "n > 1", "n < 2", "zone in (a, b), n", "n notin (1)"]
)
tasks = st.fixed_dictionaries(
    {"cpu": st.integers(1, 3)},
    optional={"where": st.lists(wheres, min_size=1, max_size=2), "prefer": st.dictionaries(wheres, st.integers(1, 3))},
)


@given(nodes=st.lists(st.tuples(st.integers(1, 4), node_labels), min_size=1, max_size=6), wanted=st.lists(tasks))
def test_pack_finds_the_fullest_of_the_most_preferred(nodes: list[Any], wanted: list[Any]) -> None:
    w = World()
    free: dict[str, int] = {}
    for at, (cpu, labels) in enumerate(nodes):
        w.node(f"n{at}", cpu=cpu, labels=labels)
        free[f"n{at}"] = cpu
    for at, task in enumerate(wanted):
        cpu, prefer = task["cpu"], task.get("prefer", {})
        terms = parse_where(task["where"], "") if "where" in task else ()

        def rank(name: str, prefer: dict[str, int] = prefer) -> tuple[int, int, str]:
            labels = nodes[int(name[1:])][1]
            return -sum(n for text, n in prefer.items() if accepts(parse_where(text, ""), labels)), free[name], name

        fitting = [name for name in free if free[name] >= cpu and accepts(terms, nodes[int(name[1:])][1])]
        document = {key: value for key, value in task.items() if key != "cpu"}
        w.submit(name=f"j{at}", stages=[{"resources": {"cpu": cpu}, **document}])
        w.cycle()
        expected = [min(fitting, key=rank)] if fitting else []
        assert list(w.placements(f"j{at}").values()) == expected
        for name in expected:
            free[name] -= cpu
        if not expected:
            w.kill(f"j{at}")
            w.cycle()
