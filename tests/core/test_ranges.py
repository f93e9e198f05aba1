"""Ranges against a plain Python set, and the messages of malformed flats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead.core.errors import Refused
from fairlead.core.ranges import Flat, Ranges, check_flat, count, difference, indices, split, text

# A small universe, so that spans meet, touch and nest all the time.
index_sets = st.sets(st.integers(0, 24), max_size=25)


def flat_of(numbers: set[int]) -> Flat:
    """Return the flat of a set, computed in another way than by the code under test."""
    edges = [n for n in range(max(numbers, default=0) + 2) if (n in numbers) != (n - 1 in numbers)]
    return tuple(edges)


class AgainstASet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges()
        self.model: set[int] = set()

    @rule(given=index_sets)
    def add(self, given: set[int]) -> None:
        if self.model & given:
            with pytest.raises(ValueError, match="already there"):
                self.ranges.add(flat_of(given))
        else:
            self.ranges.add(flat_of(given))
            self.model |= given

    @rule(given=index_sets)
    def add_what_is_absent(self, given: set[int]) -> None:
        self.add(given - self.model)

    @rule(start=st.integers(0, 24), length=st.integers(1, 6))
    def add_a_span(self, start: int, length: int) -> None:
        self.add(set(range(start, start + length)))

    @rule(given=index_sets)
    def remove(self, given: set[int]) -> None:
        if given - self.model:
            with pytest.raises(ValueError, match="not there"):
                self.ranges.remove(flat_of(given))
        else:
            self.ranges.remove(flat_of(given))
            self.model -= given

    @rule(given=index_sets)
    def remove_what_is_present(self, given: set[int]) -> None:
        self.remove(given & self.model)

    @rule(start=st.integers(0, 24), length=st.integers(1, 6))
    def remove_a_span(self, start: int, length: int) -> None:
        self.remove(set(range(start, start + length)))

    @rule(start=st.integers(-1, 32))
    def discard_from(self, start: int) -> None:
        gone = {n for n in self.model if n >= start}
        assert self.ranges.discard_from(start) == flat_of(gone)
        self.model -= gone

    @rule(k=st.integers(-1, 30))
    def first(self, k: int) -> None:
        assert self.ranges.first(k) == flat_of(set(sorted(self.model)[: max(k, 0)]))

    @rule(given=index_sets)
    def overlap(self, given: set[int]) -> None:
        assert self.ranges.overlap(flat_of(given)) == flat_of(self.model & given)

    @rule()
    def a_copy_is_apart(self) -> None:
        other = self.ranges.copy()
        assert other == self.ranges
        other.add((100, 101))
        assert other != self.ranges

    @invariant()
    def agrees(self) -> None:
        assert self.ranges.flat() == flat_of(self.model)
        assert len(self.ranges) == len(self.model)
        assert bool(self.ranges) == bool(self.model)
        assert list(self.ranges) == sorted(self.model)
        assert [n for n in range(-1, 33) if n in self.ranges] == sorted(self.model)
        if self.model:
            assert self.ranges.first_index() == min(self.model)


TestAgainstASet = AgainstASet.TestCase


@given(index_sets, index_sets, st.integers(-1, 30))
def test_functions_on_flats_agree_with_sets(a: set[int], b: set[int], k: int) -> None:
    flat = flat_of(a)
    check_flat(flat, "indices")
    assert Ranges.from_indices(a).flat() == Ranges(flat).flat() == flat
    assert count(flat) == len(a)
    assert list(indices(flat)) == sorted(a)
    low = set(sorted(a)[: max(k, 0)])
    assert split(flat, k) == (flat_of(low), flat_of(a - low))
    assert difference(flat, flat_of(b)) == flat_of(a - b)


@given(st.sets(st.integers(0, 999), max_size=9))
def test_scattered_indices_in_a_set_of_many_spans(given: set[int]) -> None:
    """Far apart in a fragmented set, spans are changed one by one, and still all or none."""
    model = {n for n in range(1000) if n % 3 != 1}
    ranges = Ranges.from_indices(model)
    present, absent = given & model, given - model
    if present:
        with pytest.raises(ValueError, match="already there"):
            ranges.add(flat_of(given))
    if absent:
        with pytest.raises(ValueError, match="not there"):
            ranges.remove(flat_of(given))
    assert ranges.flat() == flat_of(model)
    ranges.add(flat_of(absent))
    assert (ranges.flat(), len(ranges)) == (flat_of(model | absent), len(model | absent))
    ranges.remove(flat_of(given))
    assert (ranges.flat(), len(ranges)) == (flat_of(model - present), len(model - present))


@given(st.lists(st.integers(-3, 12), max_size=8))
def test_a_flat_is_even_nonnegative_and_strictly_increasing(bounds: list[int]) -> None:
    good = len(bounds) % 2 == 0 and bounds == sorted(set(bounds)) and min(bounds, default=0) >= 0
    if good:
        check_flat(bounds, "indices")
        assert Ranges(bounds).flat() == tuple(bounds)
        return
    with pytest.raises(Refused):
        check_flat(bounds, "indices")
    with pytest.raises(ValueError):
        Ranges(bounds)
    whole = Ranges((0, 100))
    with pytest.raises(ValueError):
        whole.remove(bounds)
    empty = Ranges()
    with pytest.raises(ValueError):
        empty.add(bounds)
    assert (whole.flat(), empty.flat()) == ((0, 100), ())


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        ("0-7", "indices: ranges must be a list of numbers: write [start, end, …]"),
        (None, "indices: ranges must be a list of numbers: write [start, end, …]"),
        ((0, 1, 2), "indices: ranges have 3 numbers: write pairs of start and end"),
        ((0, 1.0), "indices[1]: a bound of a range must be a whole number: write 0 or more"),
        ((False, 1), "indices[0]: a bound of a range must be a whole number: write 0 or more"),
        ((-1, 1), "indices[0]: a bound of a range is negative: write 0 or more"),
        ((3, 3), "indices[1]: a range must end after its start: write a larger end"),
        ((4, 3), "indices[1]: a range must end after its start: write a larger end"),
        ((5, 6, 1, 2), "indices[2]: ranges must be sorted with a gap between them: sort and join them"),
        ((0, 4, 3, 5), "indices[2]: ranges must be sorted with a gap between them: sort and join them"),
        ((0, 4, 4, 5), "indices[2]: ranges must be sorted with a gap between them: sort and join them"),
    ],
)
def test_malformed_flats_are_refused(flat: object, message: str) -> None:
    with pytest.raises(Refused) as refusal:
        check_flat(flat, "indices")
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("flat", "expected"),
    [((), ""), ((0, 8, 9, 10), "0-7,9"), ((3, 4), "3"), ((0, 2), "0-1")],
)
def test_text(flat: Flat, expected: str) -> None:
    assert text(flat) == expected
    assert repr(Ranges(flat)) == (expected or "empty")


def test_a_refused_change_names_the_indices_at_fault() -> None:
    ranges = Ranges((0, 8, 10, 12))
    with pytest.raises(ValueError, match=r"^already there: 6-7$"):
        ranges.add((6, 10))
    with pytest.raises(ValueError, match=r"^already there: 0,11$"):
        ranges.add((0, 1, 8, 9, 11, 13))
    with pytest.raises(ValueError, match=r"^not there: 8-9$"):
        ranges.remove((6, 11))
    with pytest.raises(ValueError, match=r"^not there: 12,20$"):
        ranges.remove((11, 13, 20, 21))
    assert ranges.flat() == (0, 8, 10, 12)


def test_a_message_about_many_spans_is_cut() -> None:
    with pytest.raises(ValueError) as error:
        Ranges().remove(tuple(range(2000)))
    assert str(error.value) == "not there: 0,2,4,6,8,10,12,14,16,18,…"


def test_an_empty_set_has_no_first_or_last() -> None:
    with pytest.raises(ValueError, match="the ranges are empty"):
        Ranges().first_index()


def test_numbers_of_any_size() -> None:
    huge = Ranges((0, 10**12))
    huge.remove((5, 10**9))
    assert len(huge) == 10**12 - 10**9 + 5
    assert huge.first(6) == (0, 5, 10**9, 10**9 + 1)
