"""What must hold whatever happens: Hypothesis draws what happens, and eyes of their own (watching.py) look at it.

1. no over-commit ever, and 2. gangs whole or not at all: seen from the agents' side
3. no request lost or doubled under retries
4. work-conserving: after the cycles of one instant no head that is allowed fits
5. lanes without shared nodes never influence each other
6. the same commands in the same order give the same bytes
7. a restart between any two steps changes nothing; while not ready nothing is placed or expires

That undo is exact, replay equals live, and the index finds what fits, is checked by test_machine.py.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.core.watching import NODES, Play, Step

Steps = list[Step]

nodes = st.sampled_from([*NODES])
numbers = st.integers(0, 50)
documents = st.fixed_dictionaries(
    {"count": st.integers(1, 4), "cpu": st.integers(1, 3), "queue": st.sampled_from(["root.a", "root.b"])},
    optional={
        "min": st.just(1),
        "gpu": st.sampled_from(["0.25", "0.5", 1, 2]),
        "on_loss": st.sampled_from(["replace", "restart", "fail"]),
        "duration": st.sampled_from([0, 2, 7]),
        "user": st.sampled_from(["ann", "bob"]),
        "priority": st.integers(0, 2),
        "tries": st.integers(1, 2),
        "selectors": st.just({"zone": "z"}),
    },
)
gangs = st.fixed_dictionaries(
    {"count": st.integers(2, 5), "cpu": st.integers(1, 2), "queue": st.just("root.a"), "user": st.just("bob")},
    optional={"min": st.integers(1, 2), "on_loss": st.sampled_from(["replace", "restart", "fail"])},
)
TROUBLE = ["refuse_launches", "silence", "fail_node", "return_node", "hold_acks", "release_acks"]
trouble = st.tuples(st.just("agent"), st.sampled_from(TROUBLE), nodes)
management = st.tuples(st.just("agent"), st.sampled_from(["drain", "enable", "remove_node"]), nodes)
finish = st.tuples(st.just("finish"), numbers, st.sampled_from([0, 0, 0, 1]))
kill = st.tuples(st.just("kill"), numbers)
scale = st.tuples(st.just("scale"), numbers, st.integers(0, 5))
resize = st.tuples(st.just("resize"), nodes, st.integers(1, 6))
limit = st.tuples(st.just("limit"), st.sampled_from("ab"), st.sampled_from([None, 2, 5, 8]))
advance = st.tuples(st.just("advance"), st.sampled_from([1, 3, 6]))
restart = st.tuples(st.just("restart"))


def submit(job: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just("submit"), job)


def broken(job: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just("break"), st.sampled_from(["failed", "unknown", "unknown, written"]), job)


def steps(*kinds: st.SearchStrategy[Any], most: int = 25) -> st.SearchStrategy[Steps]:
    return st.lists(st.one_of(*kinds), min_size=10, max_size=most)


anything = steps(
    submit(documents), submit(documents), submit(documents), finish, finish, kill, scale, resize, limit, trouble,
    management, advance, restart, broken(documents),
)  # fmt: skip
trouble_with_gangs = steps(
    submit(gangs), submit(gangs), trouble, trouble, trouble, finish, kill, advance, restart, broken(gangs), management
)
crowds = steps(submit(documents), submit(documents), submit(documents), finish, finish, scale, resize, limit, most=35)


# -- 1, 2, 4: over-commit, gangs, work left over -----------------------------------------------------------------


@settings(max_examples=60)
@given(anything)
def test_no_overcommit_ever(drawn: Steps) -> None:
    Play().run(drawn)


@settings(max_examples=60)
@given(trouble_with_gangs)
def test_gangs_are_atomic_under_any_trouble(drawn: Steps) -> None:
    Play().run(drawn)


@settings(max_examples=40)
@given(crowds)
def test_work_conserving(drawn: Steps) -> None:
    Play().run(drawn)


@pytest.mark.long
@settings(max_examples=5_000)
@given(anything | trouble_with_gangs | crowds)
def test_no_overcommit_gangs_atomic_and_work_conserving_for_long(drawn: Steps) -> None:
    Play().run(drawn)
