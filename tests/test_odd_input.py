"""Documents from outside, however odd, are accepted or refused: no other outcome, and in a short time."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.core.commands import Accepted, AddNode, Rejected, Submit, UpdateManager
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.errors import Refused
from fairlead.testing import World

JOB: dict[str, Any] = {
    "name": "train",
    "user": "ann",
    "queue": "root.a",
    "groups": ["ml"],
    "priority": 5,
    "labels": {"team": "ml"},
    "after": ["first"],
    "gang": "job",
    "preemptible": False,
    "stages": [
        {
            "name": "w",
            "count": 2,
            "min": 1,
            "resources": {"cpu": 1, "memory": "1Gi", "gpu": 0.5},
            "selectors": {"rack": ["r1", "r2"]},
            "tolerations": ["spot"],
            "where": ["zone in (a, b), !spot", "cores > 8"],
            "prefer": {"disk = ssd": 10},
            "pool": "small",
            "command": ["run", "it"],
            "environment": {"A": "b"},
            "estimate": "2h",
            "time_limit": 60,
            "tries": 3,
            "on_loss": "fail",
            "scaling": "partial",
        }
    ],
}
NODE: dict[str, Any] = {
    "name": "n1",
    "resources": {"cpu": 4, "memory": "8Gi", "gpu": 1, "licence": 2},
    "labels": {"rack": "r1"},
    "taints": ["spot"],
    "pool": "small",
}
CONFIG: dict[str, Any] = {
    "partitions": {
        "default": {
            "unit": "dominant",
            "max_batch": 10,
            "lease": "60s",
            "backfill": "easy",
            "held_nodes_percent": 50,
            "requestors": [{"match": "^ci-", "queue": "root.a"}],
            "queues": {
                "root": {
                    "limit": {"cpu": 100},
                    "a": {"share": 60, "guarantee": {"cpu": 5}, "limit": {"cpu": 10}, "submit": ["@ml", "ann"]},
                    "b": {
                        "order": "fair",
                        "max_jobs": 5,
                        "users": {"*": {"limit": {"cpu": 4}, "max_jobs": 2}},
                        "groups": {"ml": {"limit": {"cpu": 8}}},
                        "c": {"scale_first": False},
                    },
                }
            },
            "pools": {"small": {"node": {"cpu": 4}, "min": 1, "max": 3, "provider": {"command": ["./cloud"]}}},
        }
    }
}
UPDATE: dict[str, Any] = {
    "nodes": [{"name": "k1", "resources": {"cpu": 4}, "action": "add"}, {"name": "k2", "action": "drain"}],
    "jobs": [{"job": "j1", "queue": "root.a", "user": "ann"}, {"job": "j2", "remove": True}],
    "recover": [{"job": "j1", "ask": "x", "node": "k1", "index": 3, "resources": {"cpu": 1}}],
    "asks": [
        {"job": "j1", "ask": "y", "count": 2, "resources": {"cpu": 1}},
        {"job": "j1", "ask": "x", "withdraw": True},
    ],
    "releases": [{"job": "j1", "ask": "x", "index": 3}, {"job": ""}],
}


def deep(levels: int = 10_000) -> Any:
    nest: Any = "x"
    for at in range(levels):
        nest = [nest] if at % 2 else {"a": nest}
    return nest


def endless() -> Any:
    loop: dict[str, Any] = {"a": 1}
    loop["loop"] = loop
    return loop


def laughs(levels: int = 40) -> Any:
    """Return a document that is small with anchors and endless when expanded."""
    doc: Any = {"share": 1}
    for _ in range(levels):
        doc = {f"q{at}": doc for at in range(9)}
    return doc


NASTY: dict[str, Any] = {
    "nothing": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "huge": 10**400,
    "too huge to print": 10**6000,
    "2**63": 2**63,
    "large float": 1e308,
    "small float": 5e-324,
    "nan": float("nan"),
    "infinity": float("-inf"),
    "decimal nan": Decimal("sNaN"),
    "decimal": Decimal("1E+999999999"),
    "fraction": 1.5,
    "empty": "",
    "nul": "a\0b",
    "newline": "a\nb",
    "path": "../../x",
    "surrogate": "a\ud800",
    "long": "x" * 10_000_000,
    "digits": "9" * 100_000,
    "bytes": b"x",
    "object": object(),
    "list": [],
    "long list": [0] * 1_000_000,
    "long list of texts": ["x"] * 1_000_000,
    "mapping": {},
    "wide mapping": {f"k{at}": 1 for at in range(100_000)},
    "number as key": {1: 2},
    "null as key": {None: 2},
    "tuple as key": {(1, (2, 3)): 4},
    "huge number as key": {10**6000: 1},
    "surrogate as key": {"\ud800": 1},
    "newline as key": {"a\nb": 1},
    "long key": {"x" * 10_000_000: 1},
    "deep": deep(),
    "endless": endless(),
    "laughs": laughs(),
}


def places(doc: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    items = doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    return [path, *(place for key, value in items for place in places(value, (*path, key)))]


def put(doc: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return the document with another value at a path."""
    if not path:
        return value
    doc = dict(doc) if isinstance(doc, dict) else list(doc)
    doc[path[0]] = put(doc[path[0]], path[1:], value)
    return doc


def world() -> World:
    w = World(CONFIG)
    w.node("n1", **NODE["resources"])
    w.submit(name="first", queue="root.b.c", stages=[{"count": 2, "resources": {"cpu": 1}}])
    w.rm("k8s").register()
    w.cycle()
    return w


def ask(w: World, command: Any) -> Any:
    done = w.cluster.writers["default"].cycle([command], w.now)
    w.check()
    (answer,) = done.answers
    assert isinstance(answer, Accepted | Rejected)
    return answer


def take_job(w: World, doc: Any) -> Any:
    spec = parse_job(doc)
    return ask(w, Submit(spec=spec, user=spec.user, groups=spec.groups, key="k"))


def take_node(w: World, doc: Any) -> Any:
    name, spec = parse_node(doc)
    return ask(w, AddNode(name=name, spec=spec, operator=True, key="k"))


def take_config(w: World, doc: Any) -> Any:
    w.cluster.configure(parse_config(doc), w.now)
    w.check()


def take_update(w: World, doc: Any) -> Any:
    if not isinstance(doc, dict):
        return None
    parts: dict[str, Any] = {
        key: tuple(value) for key, value in doc.items() if key in UPDATE and isinstance(value, list)
    }
    answer = ask(w, UpdateManager(name="k8s", operator=True, **parts))
    for item in getattr(answer, "items", ()):
        assert len(item.reason) < 2_000 and item.reason.isprintable()
        assert item.accepted or item.reason
    return answer


TAKERS = {
    "job": (JOB, take_job),
    "node": (NODE, take_node),
    "config": (CONFIG, take_config),
    "update": (UPDATE, take_update),
}


def check(what: str, doc: Any) -> None:
    w = world()
    before = w.dump()
    started = time.process_time()
    try:
        answer = TAKERS[what][1](w, doc)
        text = str(answer) if isinstance(answer, Rejected) else None
    except Refused as refusal:
        text = str(refusal)
    assert time.process_time() - started < 5
    if text is not None:
        assert w.dump() == before
        assert len(text) < 2_000 and text.isprintable() and ": " in text
    w.restart()
    w.check()


ALL = [(what, path) for what, (doc, _) in TAKERS.items() for path in places(doc)]


@pytest.mark.parametrize("nasty", NASTY)
def test_a_nasty_value_at_every_place(nasty: str) -> None:
    for what, path in ALL:
        check(what, put(TAKERS[what][0], path, NASTY[nasty]))


KNOWN = "root default cpu gpu 8Gi 2h * job ask node index withdraw remove limit users k1 j1 x".split()
words = st.sampled_from([*JOB, *JOB["stages"][0], *NODE, *CONFIG["partitions"]["default"], *KNOWN])
texts = words | st.text(st.characters(exclude_categories=()), max_size=5)
numbers = st.integers(-2, 3) | st.integers() | st.floats() | st.just(10**400) | st.decimals()
values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(ALL), values)
def test_a_random_value_at_a_random_place(place: tuple[str, tuple[Any, ...]], value: Any) -> None:
    what, path = place
    check(what, put(TAKERS[what][0], path, value))
