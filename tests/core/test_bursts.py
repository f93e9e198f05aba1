"""Bursts on pools in random worlds: never a node for work that fits, never two for the same, and few for the rest."""

from __future__ import annotations

import pytest

from bench.bursts import burst


@pytest.mark.parametrize("mixed", [False, True])
def test_bursts(mixed: bool) -> None:
    """`burst` checks the world after each step."""
    played = [burst(seed, mixed) for seed in range(25)]
    ordered, fewest = sum(each.ordered for each in played), sum(each.fewest for each in played)
    assert fewest > 100
    assert ordered <= fewest * (1.25 if mixed else 1.1)


@pytest.mark.long
@pytest.mark.parametrize("mixed", [False, True])
def test_bursts_for_long(mixed: bool) -> None:
    for seed in range(25, 1_000):
        burst(seed, mixed)
