"""The score of nodes for starving gangs, in percent: the published figures, and what follows from the same rules."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.policy.fit import MILLION, combined, is_exact, may_be_held, node_score, resource_score
from fairlead.core.policy.run_times import expected_end

# Required, free; the score.
SINGLE = [
    ("score-03", 4, 4, 0),
    ("score-05", 4, 0, -100),
    ("half of it", 2, 4, 50),
    ("twice as much as there is", 4, 2, -50),
    ("nothing is asked for", 0, 4, 100),
    ("nothing is asked for, and nothing there", 0, 0, 100),
    ("more is used than there is", 4, -2, -100),
]


@pytest.mark.parametrize(("required", "free", "score"), [row[1:] for row in SINGLE], ids=[row[0] for row in SINGLE])
def test_one_resource(required: int, free: int, score: int) -> None:
    assert resource_score(required, free) == score * MILLION


def test_a_node() -> None:
    """score-07: cpu 75, memory 25, another resource -50."""
    assert combined(75 * MILLION, 25 * MILLION, [-50 * MILLION]) == -16_666_667  # rounded down
    asked = {"cpu": 1, "memory": 3, "gpu": 4, "disk": 4}
    assert node_score(asked, {"cpu": 4, "memory": 4, "gpu": 2, "disk": 2}) == -16_666_667


amounts = st.integers(0, 10**12)


@given(amounts, amounts)
def test_one_resource_is_the_fraction_to_a_millionth(required: int, free: int) -> None:
    exact = Fraction(100)
    if required:
        exact = 100 - Fraction(100 * required, free) if required <= free else Fraction(100 * free, required) - 100
    assert abs(exact * MILLION - resource_score(required, free)) < 1
    assert -100 * MILLION <= resource_score(required, free) <= 100 * MILLION


def test_what_leaves_nothing_over() -> None:
    assert is_exact({"cpu": 4}, {"cpu": 4, "memory": 9})
    assert not is_exact({"cpu": 4, "memory": 1}, {"cpu": 4, "memory": 9})


@pytest.mark.parametrize(("percent", "nodes", "most"), [(50, 1, 1), (50, 3, 2), (50, 4, 2), (1, 10, 1), (0, 10, 0)])
def test_how_many_may_be_held(percent: int, nodes: int, most: int) -> None:
    assert may_be_held(percent, nodes) == most


@pytest.mark.parametrize(
    ("began", "estimate", "now", "end"),
    [
        (10, 5, 12, 15),
        (10, 5, 15, 20),  # it has just been overrun
        (10, 5, 20, 30),
        (10, 5, 10, 15),
        (10, None, 12, None),
        (10, 0, 10, 10),
        (10, 0, 12, 10 + 1_000_000),  # an estimate of 0 cannot be doubled
        (10, 0, 10 + 3_000_000, 10 + 4_000_000),
    ],
)
def test_an_estimate_that_was_overrun_doubles(began: int, estimate: int | None, now: int, end: int | None) -> None:
    assert expected_end(began, estimate, now) == end
