"""The arithmetic of shares, whatever the numbers: on few classes, where rounding is as published, and on many.

The published numbers themselves are in tests/cases/test_scoot.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fairlead.core.policy.shares import (
    FEW,
    MAX_SHARE,
    Claim,
    Measure,
    entitlements,
    normalised,
    rebalance_counts,
    spread,
    start_counts,
    turn_key,
)

NAMES = [f"q{at:02}" for at in range(FEW + 5)]
# Small numbers, so that classes tie and run out; now and then large ones.
amounts = st.integers(0, 12) | st.integers(0, 3_000)
share_values = st.integers(0, 3) | st.integers(0, 100) | st.integers(0, MAX_SHARE)
share_tables = st.dictionaries(st.sampled_from(NAMES), share_values, max_size=len(NAMES))

Scene = tuple[int, int, list[Claim]]
"""Slots in all, idle ones, and the classes."""


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw a scene: slots without a task are idle, or only some of them; or more tasks run than there are slots."""
    count = draw(st.integers(0, FEW) | st.integers(0, len(NAMES)))
    shares = draw(st.lists(share_values, min_size=count, max_size=count))
    claims = [Claim(name, share, draw(amounts), draw(amounts)) for name, share in zip(NAMES, shares, strict=False)]
    running = sum(claim.running for claim in claims)
    total = max(0, running + draw(st.integers(-5, 20) | st.integers(-5, 3_000)))
    return total, max(0, total - running - draw(st.just(0) | st.integers(0, 9))), claims


def shares_of(claims: list[Claim]) -> dict[str, int]:
    return {claim.name: claim.share for claim in claims}


# -- entitlements ------------------------------------------------------------------------------------------------


@given(amounts, share_tables)
def test_entitlements_are_the_whole_and_near_the_share(total: int, shares: dict[str, int]) -> None:
    found = entitlements(total, shares)
    weights = normalised(shares)
    whole = sum(weights.values())
    assert [*found] == [*weights] == [*shares]
    assert sum(found.values()) == (total if whole else 0)
    with_share = [name for name, share in shares.items() if share]
    if not with_share:
        return
    largest = min(with_share, key=lambda name: (-shares[name], name))
    for name, part in found.items():
        exact = Fraction(total * weights[name], whole)
        below = exact.numerator // exact.denominator
        if len(with_share) > FEW:
            assert part in (below, below + 1)
            assert part == exact or exact.denominator > 1
        else:
            assert part == below if name != largest else below <= part < below + len(with_share)


@given(share_tables)
def test_normalised_shares_are_whole_percents_or_as_they_were(shares: dict[str, int]) -> None:
    found = normalised(shares)
    few = sum(1 for share in shares.values() if share) <= FEW
    if few and any(shares.values()):
        assert sum(found.values()) == 100
        exact = {name: Fraction(100 * share, sum(shares.values())) for name, share in shares.items()}
        assert sum(found[name] > exact[name] for name in shares) <= 1
        assert all(found[name] > exact[name] - 1 for name in shares)
    else:
        assert found == shares


@given(st.integers(1, 50), st.integers(FEW + 1, 400), st.integers(0, 1_000))
def test_many_equal_classes_differ_by_at_most_one(share: int, count: int, total: int) -> None:
    parts = entitlements(total, {f"q{at}": share for at in range(count)}).values()
    assert max(parts) - min(parts) <= 1


# -- starts ------------------------------------------------------------------------------------------------------


@given(scenes())
def test_no_slot_idles_beside_waiting_work_and_no_class_starts_more_than_waits(scene: Scene) -> None:
    total, idle, claims = scene
    found = start_counts(total, idle, claims)
    assert [*found] == [claim.name for claim in claims]
    assert sum(found.values()) == min(idle, sum(claim.waiting for claim in claims if claim.share))
    for claim in claims:
        assert 0 <= found[claim.name] <= (claim.waiting if claim.share else 0)


@given(scenes())
def test_entitled_before_lent(scene: Scene) -> None:
    """While a class with waiting work is below its entitlement, no class starts tasks beyond its own."""
    total, idle, claims = scene
    found = start_counts(total, idle, claims)
    entitled = entitlements(total, shares_of(claims))
    lacking = [
        claim.name
        for claim in claims
        if claim.share
        and claim.waiting > found[claim.name]
        and claim.running + found[claim.name] < entitled[claim.name]
    ]
    for claim in claims:
        if lacking and found[claim.name]:
            assert claim.running + found[claim.name] <= entitled[claim.name]


@given(scenes())
def test_every_class_reaches_its_entitlement_if_there_is_room(scene: Scene) -> None:
    total, _, claims = scene
    entitled = entitlements(total, shares_of(claims))
    owed = {c.name: min(c.waiting, max(0, entitled[c.name] - c.running)) for c in claims if c.share}
    found = start_counts(total, sum(owed.values()), claims)
    assert {name: found[name] for name in owed} == owed


@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(scene: Scene, random: Any) -> None:
    total, idle, claims = scene
    shuffled = [*claims]
    random.shuffle(shuffled)
    assert start_counts(total, idle, shuffled) == start_counts(total, idle, claims)
    assert rebalance_counts(total, idle, shuffled) == rebalance_counts(total, idle, claims)
    assert spread(total, shuffled) == spread(total, claims)


@given(scenes(), share_values)
def test_a_class_that_wants_nothing_costs_the_others_nothing(scene: Scene, share: int) -> None:
    total, idle, claims = scene
    silent = Claim("silent", share, 0, 0)
    found = start_counts(total, idle, [*claims, silent])
    assert found.pop("silent") == 0
    assert sum(found.values()) == sum(start_counts(total, idle, claims).values())


def by_turns(total: int, idle: int, claims: list[Claim]) -> dict[str, int]:
    """One slot at a time to the class whose turn it is, with fractions."""
    entitled = entitlements(total, shares_of(claims))
    started = {claim.name: 0 for claim in claims}

    def place(claim: Claim) -> tuple[bool, Fraction, str]:
        use = claim.running + started[claim.name]
        return (use >= entitled[claim.name], Fraction(use, claim.share), claim.name)

    for _ in range(idle):
        wanting = [claim for claim in claims if claim.share and claim.waiting > started[claim.name]]
        if wanting:
            started[min(wanting, key=place).name] += 1
    return started


many_claims = st.lists(
    st.builds(Claim, st.just(""), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    min_size=FEW + 1,
    max_size=FEW + 8,
).map(lambda claims: [claim._replace(name=f"q{at:02}") for at, claim in enumerate(claims)])


@given(many_claims, st.integers(0, 200), st.integers(0, 60))
def test_among_many_classes_starts_are_turns(claims: list[Claim], total: int, idle: int) -> None:
    assert start_counts(total, idle, claims) == by_turns(total, idle, claims)


# -- rebalance ---------------------------------------------------------------------------------------------------


@given(scenes())
def test_rebalance_stops_loans_only_and_starts_what_has_room(scene: Scene) -> None:
    total, idle, claims = scene
    found = rebalance_counts(total, idle, claims)
    entitled = entitlements(total, shares_of(claims))
    assert [*found] == [claim.name for claim in claims]
    for claim in claims:
        starts, stops = found[claim.name]
        assert 0 in (starts, stops)
        assert 0 <= starts <= (claim.waiting if claim.share else 0)
        assert 0 <= stops <= max(0, claim.running - entitled[claim.name])
    assert sum(starts for starts, _ in found.values()) <= idle + sum(stops for _, stops in found.values())


@given(scenes())
def test_rebalance_brings_every_class_to_its_entitlement(scene: Scene) -> None:
    """If the slots that do not run are idle, a class with waiting work is nowhere below its entitlement afterwards."""
    total, _, claims = scene
    idle = max(0, total - sum(claim.running for claim in claims))
    found = rebalance_counts(total, idle, claims)
    entitled = entitlements(total, shares_of(claims))
    for claim in claims:
        starts, _ = found[claim.name]
        if claim.share and claim.waiting > starts:
            assert claim.running + starts >= entitled[claim.name]


@given(scenes())
def test_rebalance_takes_from_share_0_only_what_the_others_start(scene: Scene) -> None:
    total, idle, claims = scene
    found = rebalance_counts(total, idle, claims)
    given_back = sum(found[claim.name][1] for claim in claims if not claim.share)
    starts = sum(starts for starts, _ in found.values())
    stops = sum(found[claim.name][1] for claim in claims if claim.share)
    assert given_back == max(0, starts - stops - idle)


@given(scenes())
def test_spread(scene: Scene) -> None:
    """The spread is the distance between the class furthest above its share and the one furthest below that waits."""
    total, _, claims = scene
    found = spread(total, claims)
    assert found >= 0
    weights = normalised(shares_of(claims))
    whole = sum(weights.values())
    if len(claims) < 2 or not whole or not total:
        assert found == 0
        return
    off = [
        Fraction(100 * weights[claim.name], whole) - Fraction(100 * claim.running, total)
        for claim in claims
        if claim.share and (claim.waiting or Fraction(claim.running, total) > Fraction(weights[claim.name], whole))
    ]
    # Both sides are rounded to whole percents.
    assert abs(found - (max([*off, 0]) - min([*off, 0]))) <= 2


# -- turns -------------------------------------------------------------------------------------------------------

uses = st.integers(0, 20) | st.integers(0, 2**80)
queues = st.lists(
    st.tuples(uses, share_values, uses, st.sampled_from(NAMES)), unique_by=lambda queue: queue[3], min_size=2
)


@given(queues)
def test_keys_sort_as_fractions_do(drawn: list[tuple[int, int, int, str]]) -> None:
    def exact(queue: tuple[int, int, int, str]) -> tuple[int, Fraction, str]:
        use, share, entitled, name = queue
        if not share:
            return (2, Fraction(use), name)
        return (0 if use < entitled else 1, Fraction(use, share), name)

    assert sorted(drawn, key=lambda queue: turn_key(*queue)) == sorted(drawn, key=exact)


@given(st.integers(1, MAX_SHARE), st.integers(0, 2**70))
def test_keys_tell_neighbours_apart(share: int, use: int) -> None:
    """Neighbouring fractions differ, and equal fractions in another form are equal."""
    other = share - 1 or MAX_SHARE
    larger = use * other // share + 1  # the least that is more of the other share
    assert turn_key(use, share, 0, "") < turn_key(larger, other, 0, "")
    if share <= MAX_SHARE // 7:
        assert turn_key(use, share, 0, "") == turn_key(7 * use, 7 * share, 0, "")


vectors = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "licence"]), amounts | st.integers(0, 2**60))


@given(vectors, vectors)
def test_the_dominant_share_is_the_largest_fraction(capacity: dict[str, int], used: dict[str, int]) -> None:
    measure = Measure(capacity)
    found = Fraction(measure.dominant_share(used), measure.whole)
    fractions = [Fraction(amount, capacity[name]) for name, amount in used.items() if capacity.get(name)]
    if any(amount and not capacity.get(name) for name, amount in used.items()):
        assert found >= max([1, *fractions])
    else:
        assert found == max(fractions, default=0)


def test_dominant_shares_add_up_by_the_vector_and_not_by_themselves() -> None:
    measure = Measure({"cpu": 9, "memory": 18})
    assert measure.whole == 18
    one, other = {"cpu": 3}, {"memory": 12}
    assert (measure.dominant_share(one), measure.dominant_share(other)) == (6, 12)
    assert measure.dominant_share({**one, **other}) == 12
    assert measure.dominant_share({}) == 0


def test_entitlements_go_down_a_tree() -> None:
    """Below the root, what the parent is entitled to is divided; parts of a measure are divided as slots are."""
    measure = Measure({"cpu": 640, "gpu": 8})
    top = entitlements(measure.whole, {"ml": 60, "ci": 40})
    leaves = entitlements(top["ml"], {"train": 75, "serve": 25})
    assert top == {"ml": 384, "ci": 256}
    assert leaves == {"train": 288, "serve": 96}
    keys = {name: turn_key(measure.dominant_share({"gpu": 3}), 50, entitled, name) for name, entitled in leaves.items()}
    assert min(keys.values())[2] == "train"


# -- bad values --------------------------------------------------------------------------------------------------

GOOD = {"name": "a", "share": 50, "running": 1, "waiting": 1}
COUNTS: list[Callable[..., Any]] = [start_counts, rebalance_counts]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize(
    ("total", "idle", "change", "message"),
    [
        (-1, 1, {}, "total is -1: give a whole number, 0 or more"),
        (10, -1, {}, "idle is -1: give a whole number, 0 or more"),
        (10.0, 1, {}, "total is 10.0: give a whole number, 0 or more"),
        (10, 1, {"share": -5}, "share of 'a' is -5: give a whole number, from 0 to 1000000"),
        (10, 1, {"share": 12.5}, "share of 'a' is 12.5: give a whole number, from 0 to 1000000"),
        (10, 1, {"share": MAX_SHARE + 1}, "share of 'a' is 1000001: give a whole number, from 0 to 1000000"),
        (10, 0, {"running": -1}, "running of 'a' is -1: give a whole number, 0 or more"),
        (10, 1, {"waiting": None}, "waiting of 'a' is None: give a whole number, 0 or more"),
        (10, 1, {"name": "b"}, "classes: two classes have the same name: give each class its own name"),
    ],
)
def test_absurd_values_are_named(
    counts: Callable[..., Any], total: Any, idle: Any, change: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as error:
        counts(total, idle, [{**GOOD, "name": "b"}, {**GOOD, **change}])
    assert str(error.value) == message


def test_absurd_values_are_named_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"^total is -1"):
        entitlements(-1, {})
    with pytest.raises(ValueError, match=r"^share of 'a' is -1"):
        normalised({"a": -1})
    with pytest.raises(ValueError, match=r"^total is -1"):
        spread(-1, [])
    with pytest.raises(ValueError, match=r"^capacity of 'cpu' is -1"):
        Measure({"cpu": -1})


def test_mappings_and_claims_are_the_same() -> None:
    claims = [Claim("a", 60, 1, 9), Claim("b", 40, 5, 9)]
    mappings = [claim._asdict() for claim in claims]
    assert start_counts(10, 4, mappings) == start_counts(10, 4, claims) == {"a": 4, "b": 0}
    assert rebalance_counts(10, 4, mappings) == rebalance_counts(10, 4, claims) == {"a": (5, 0), "b": (0, 1)}
    assert spread(10, mappings) == spread(10, claims) == 60
