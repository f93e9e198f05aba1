"""What people may write for amounts, durations and counts, what is refused and how, and vector arithmetic."""

import copy
import math
import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import Refused
from fairlead.core.resources import (
    DAY,
    HOUR,
    MAX_DURATION,
    MAX_QUANTITY,
    MINUTE,
    SECOND,
    Vector,
    add,
    format_duration,
    format_moment,
    format_quantity,
    format_vector,
    parse_capacity,
    parse_count,
    parse_duration,
    parse_gpu_request,
    parse_limits,
    parse_quantity,
    parse_request,
    scale,
)

Ki, Mi, Gi, Ti = 2**10, 2**20, 2**30, 2**40

amounts = st.one_of(st.integers(0, 10_000), st.integers(0, MAX_QUANTITY))
vectors = st.dictionaries(st.sampled_from(["cpu", "gpu", "memory", "licence"]), st.integers(1, 9))


def message(refusal: pytest.ExceptionInfo[Refused]) -> str:
    return str(refusal.value)


# ---- amounts


@pytest.mark.parametrize(
    ("name", "value", "amount"),
    [
        ("cpu", 2, 2000),
        ("cpu", "2", 2000),
        ("cpu", 0.5, 500),
        ("cpu", 0.1, 100),
        ("cpu", 1e-3, 1),
        ("cpu", 1e3, 1_000_000),
        ("cpu", "500m", 500),
        ("cpu", "1.5", 1500),
        ("cpu", "1.0000", 1000),
        ("cpu", "1.0m", 1),
        ("cpu", Decimal("0.25"), 250),
        ("cpu", Decimal("1E+3"), 1_000_000),
        ("cpu", Decimal("0E-999999"), 0),
        ("cpu", -0.0, 0),
        ("cpu", 0, 0),
        ("gpu", "0.25", 250),
        ("gpu", 1.5, 1500),
        ("example.com/licence", "3", 3000),
        ("memory", 8, 8),
        ("memory", "8", 8),
        ("memory", 8e9, 8 * 10**9),
        ("memory", "8Gi", 8 * Gi),
        ("memory", "512Mi", 512 * Mi),
        ("memory", "1.5Gi", 1536 * Mi),
        ("memory", "1Ki", Ki),
        ("memory", "2Ti", 2 * Ti),
        ("memory", "1Pi", 1024 * Ti),
        ("memory", "1k", 10**3),
        ("memory", "1.5M", 1_500_000),
        ("memory", "1G", 10**9),
        ("memory", "1T", 10**12),
        ("memory", "1P", 10**15),
    ],
)
def test_amounts_are_read_exactly(name: str, value: object, amount: int) -> None:
    assert parse_quantity(name, value, name) == amount


NOT_CPU = "is not an amount of cpu; write a number such as 2, 0.5 or 500m"
NOT_GPU = "is not an amount of gpu; write a number such as 1, 2 or 0.5"
NOT_MEMORY = "is not an amount of memory; write bytes or a size such as 512Mi, 8Gi or 5GB"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("cpu", "8Gi", f'"8Gi" {NOT_CPU}'),
        ("cpu", "2k", f'"2k" {NOT_CPU}'),
        ("cpu", "", f'"" {NOT_CPU}'),
        ("cpu", " 2", f'" 2" {NOT_CPU}'),
        ("cpu", "2\n", f'"2?" {NOT_CPU}'),
        ("cpu", "٢", f'"٢" {NOT_CPU}'),
        ("cpu", "1e3", f'"1e3" {NOT_CPU}'),
        ("cpu", "1_000", f'"1_000" {NOT_CPU}'),
        ("cpu", "nan", f'"nan" {NOT_CPU}'),
        ("cpu", True, f"true {NOT_CPU}"),
        ("cpu", False, f"false {NOT_CPU}"),
        ("cpu", None, f"null {NOT_CPU}"),
        ("cpu", [2], f"a list {NOT_CPU}"),
        ("cpu", {"cores": 2}, f"a mapping {NOT_CPU}"),
        ("cpu", b"2", f"a bytes {NOT_CPU}"),
        ("cpu", math.nan, f"nan {NOT_CPU}"),
        ("cpu", math.inf, f"inf {NOT_CPU}"),
        ("cpu", -math.inf, f"-inf {NOT_CPU}"),
        ("cpu", Decimal("sNaN"), f"sNaN {NOT_CPU}"),
        ("cpu", Decimal("Infinity"), f"Infinity {NOT_CPU}"),
        ("cpu", Decimal("1." + "1" * 50), f"1.{'1' * 38}… {NOT_CPU}"),
        ("gpu", "one", f'"one" {NOT_GPU}'),
        ("memory", "100m", f'"100m" {NOT_MEMORY}'),
        ("memory", "8Gb", f'"8Gb" {NOT_MEMORY}'),
        ("cpu", -1, "-1 is negative; write 0 or more"),
        ("cpu", "-0.5", '"-0.5" is negative; write 0 or more'),
        ("memory", "-8Gi", '"-8Gi" is negative; write 0 or more'),
        ("cpu", "0.0001", '"0.0001" is finer than 0.001; round it to a multiple of 0.001'),
        ("cpu", "0.5m", '"0.5m" is finer than 0.001; round it to a multiple of 0.001'),
        ("cpu", 5e-324, "5e-324 is finer than 0.001; round it to a multiple of 0.001"),
        ("cpu", Decimal("1E-999999"), "1E-999999 is finer than 0.001; round it to a multiple of 0.001"),
        ("memory", "0.5", '"0.5" is finer than 1 byte; round it to a multiple of 1 byte'),
        ("memory", 1.5, "1.5 is finer than 1 byte; round it to a multiple of 1 byte"),
        ("memory", "0.3Ki", '"0.3Ki" is finer than 1 byte; round it to a multiple of 1 byte'),
        ("memory", "2Pi", '"2Pi" is too large; write at most 1Pi'),
        ("memory", MAX_QUANTITY + 1, "1125899906842625 is too large; write at most 1Pi"),
        ("cpu", 10**13, "10000000000000 is too large; write at most 1125899906842.624"),
        ("cpu", 1e300, "1e+300 is too large; write at most 1125899906842.624"),
        ("cpu", Decimal("1E+999999"), "1E+999999 is too large; write at most 1125899906842.624"),
        ("cpu", "9" * 41, f'"{"9" * 40}…" is too long; write at most 40 characters'),
    ],
)
def test_amounts_that_are_refused(name: str, value: object, problem: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_quantity(name, value, f"resources.{name}")
    assert message(refusal) == f"resources.{name}: {problem}"


def test_hostile_values_are_refused_quickly_and_briefly() -> None:
    """Apart from the table, because pytest cannot print them as names of cases."""
    refused = {
        10**5000: "a number of 16610 bits is too large; write at most 1125899906842.624",
        "1" * 10**6: f'"{"1" * 40}…" is too long; write at most 40 characters',
        "\x1b[31m\ud800": f'"?[31m?" {NOT_CPU}',
    }
    for value, problem in refused.items():
        with pytest.raises(Refused) as refusal:
            parse_quantity("cpu", value, "cpu")
        assert refusal.value.problem == problem
    with pytest.raises(Refused):
        parse_count(10**5000, "count", 0, 10)


@given(st.sampled_from(["cpu", "gpu", "memory", "licence"]), amounts)
def test_a_formatted_amount_reads_back(name: str, amount: int) -> None:
    assert parse_quantity(name, format_quantity(name, amount), name) == amount


@given(st.integers(0, 2**30), st.sampled_from([1, 8, 125, 1000]), st.sampled_from([Ki, Mi]))
def test_a_formatted_size_reads_back(number: int, parts: int, unit: int) -> None:
    amount = number * unit // parts
    assert parse_quantity("memory", format_quantity("memory", amount), "memory") == amount


@given(
    st.integers(0, 10**12),
    st.integers(0, 6),
    st.sampled_from(["", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi", "m"]),
    st.sampled_from(["cpu", "memory"]),
)
def test_an_amount_is_exact_or_refused(digits: int, places: int, suffix: str, name: str) -> None:
    """The value by fractions, which share nothing with how it is read."""
    number = str(Decimal(digits).scaleb(-places).quantize(Decimal(1).scaleb(-places)))
    prefixes = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
    if name == "cpu":
        unit = {"": 1000, "m": 1}.get(suffix)
    elif suffix == "m":
        unit = None
    else:
        unit = 1024 ** " KMGTP".index(suffix[0]) if suffix.endswith("i") else 1000 ** prefixes[suffix]
    exact = Fraction(digits, 10**places) * unit if unit else None
    if exact is not None and exact.denominator == 1 and exact <= MAX_QUANTITY:
        assert parse_quantity(name, number + suffix, name) == exact
    else:
        with pytest.raises(Refused):
            parse_quantity(name, number + suffix, name)


@given(st.integers(0, 10**9))
def test_a_float_of_thousandths_is_exact(thousandths: int) -> None:
    assert parse_quantity("cpu", thousandths / 1000, "cpu") == thousandths


@given(st.one_of(st.text(max_size=60), st.floats(), st.decimals(), st.integers(), st.none(), st.binary()))
def test_anything_else_is_an_amount_or_refused_briefly(value: object) -> None:
    for parse in (partial(parse_quantity, "cpu"), parse_duration):
        try:
            assert 0 <= parse(value, "field") <= MAX_DURATION
        except Refused as refusal:
            assert len(str(refusal)) < 200
            str(refusal).encode()


@pytest.mark.parametrize(
    ("name", "amount", "expected"),
    [
        ("cpu", 0, "0"),
        ("cpu", 2000, "2"),
        ("cpu", 1500, "1.5"),
        ("cpu", 500, "0.5"),
        ("cpu", 250, "0.25"),
        ("cpu", 125, "125m"),
        ("cpu", 1, "1m"),
        ("cpu", 1125, "1.125"),
        ("cpu", -1500, "-1.5"),
        ("memory", 0, "0"),
        ("memory", 1000, "1000"),
        ("memory", 1025, "1025"),
        ("memory", Ki, "1Ki"),
        ("memory", 512 * Mi, "512Mi"),
        ("memory", 1536 * Mi, "1.5Gi"),
        ("memory", 1025 * Mi, "1025Mi"),
        ("memory", 8 * Gi, "8Gi"),
        ("memory", 9 * Gi // 8, "1.125Gi"),
        ("memory", 2**50, "1Pi"),
    ],
)
def test_format_quantity(name: str, amount: int, expected: str) -> None:
    assert format_quantity(name, amount) == expected


@pytest.mark.parametrize("name", ["cpu", "gpu", "memory"])
def test_the_largest_amount_is_taken_and_named_in_the_refusal(name: str) -> None:
    largest = format_quantity(name, MAX_QUANTITY)
    assert parse_quantity(name, largest, name) == MAX_QUANTITY
    with pytest.raises(Refused, match=f"write at most {largest}$"):
        parse_quantity(name, format_quantity(name, MAX_QUANTITY + 1), name)


def test_format_vector_is_sorted_by_name() -> None:
    assert format_vector({"memory": 8 * Gi, "cpu": 2000, "gpu": 0}) == "cpu=2 gpu=0 memory=8Gi"
    assert format_vector({}) == ""


# ---- documents


def test_a_request_drops_zeros_and_limits_keep_them() -> None:
    doc = {"cpu": "2", "memory": "8Gi", "gpu": 0}
    assert parse_request(doc, "resources") == {"cpu": 2000, "memory": 8 * Gi}
    assert parse_capacity(doc, "capacity") == {"cpu": 2000, "memory": 8 * Gi}
    assert parse_limits(doc, "limit") == {"cpu": 2000, "memory": 8 * Gi, "gpu": 0}
    assert parse_request({}, "resources") == {}


@pytest.mark.parametrize(("value", "amount"), [("0.001", 1), (0.25, 250), ("999m", 999), (1, 1000), ("8", 8000)])
def test_gpus_of_a_task(value: object, amount: int) -> None:
    assert parse_gpu_request(value, "gpu") == amount
    assert parse_request({"gpu": value}, "resources") == {"gpu": amount}


def test_a_limit_may_be_any_number_of_gpus_a_node_only_whole_ones() -> None:
    assert parse_limits({"gpu": 1.5}, "limit") == {"gpu": 1500}
    assert parse_capacity({"gpu": 8}, "node") == {"gpu": 8000}


TASK_GPUS = "a task takes whole GPUs or a part of one: write 1, 2 or a fraction below 1"
NOT_A_NAME = "is not a resource name; write a lower-case letter, then up to 62 of a-z, 0-9, '.', '_', '/' and '-'"
NOT_A_SET = "is not a set of resources; write names with amounts such as cpu: 2"


@pytest.mark.parametrize(
    ("parse", "doc", "expected"),
    [
        (parse_request, {"gpu": "1.5"}, f"x.gpu: {TASK_GPUS}"),
        (parse_request, {"gpu": 1.001}, f"x.gpu: {TASK_GPUS}"),
        (parse_capacity, {"gpu": 0.5}, "x.gpu: a node has whole GPUs: write 1, 2 or 8"),
        (parse_capacity, {"gpu": 2.5}, "x.gpu: a node has whole GPUs: write 1, 2 or 8"),
        (parse_request, {"cpu": "8Gi"}, f'x.cpu: "8Gi" {NOT_CPU}'),
        (parse_limits, {"memory": "100m"}, f'x.memory: "100m" {NOT_MEMORY}'),
        (parse_request, {"CPU": 1}, f'x: "CPU" {NOT_A_NAME}'),
        (parse_request, {"": 1}, f'x: "" {NOT_A_NAME}'),
        (parse_request, {"cpu\n": 1}, f'x: "cpu?" {NOT_A_NAME}'),
        (parse_request, {1: 1}, f"x: 1 {NOT_A_NAME}"),
        (parse_request, {"a" * 64: 1}, f'x: "{"a" * 40}…" {NOT_A_NAME}'),
        (parse_request, None, f"x: null {NOT_A_SET}"),
        (parse_capacity, [("cpu", 1)], f"x: a list {NOT_A_SET}"),
        (parse_limits, "cpu=1", f'x: "cpu=1" {NOT_A_SET}'),
    ],
)
def test_documents_that_are_refused(parse, doc: object, expected: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Refused) as refusal:
        parse(doc, "x")
    assert message(refusal) == expected


def test_a_name_of_63_characters_is_taken() -> None:
    assert parse_request({"a" * 63: 1}, "x") == {"a" * 63: 1000}


def test_without_a_field_the_resource_is_the_field() -> None:
    with pytest.raises(Refused) as refusal:
        parse_request({"cpu": -1}, "")
    assert message(refusal) == "cpu: -1 is negative; write 0 or more"


# ---- vectors


@given(vectors, vectors, st.integers(-3, 3))
def test_adding_and_taking_away_are_inverse_and_sparse(a: Vector, b: Vector, times: int) -> None:
    total = dict(a)
    add(total, b, times)
    assert total == {n: v for n in a | b if (v := a.get(n, 0) + times * b.get(n, 0))}
    add(total, b, -times)
    assert total == a


def test_scale() -> None:
    assert scale({"cpu": 500, "gpu": 0}, 3) == {"cpu": 1500, "gpu": 0}
    assert scale({"cpu": 500}, 0) == {}


# ---- durations


@pytest.mark.parametrize(
    ("value", "us"),
    [
        ("50ms", 50_000),
        ("30s", 30 * SECOND),
        ("5min", 5 * MINUTE),
        ("2h", 2 * HOUR),
        ("7d", 7 * DAY),
        ("1.5h", 90 * MINUTE),
        ("1h30min", 90 * MINUTE),
        ("1d2h3min4s5ms6us", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5006),
        ("1min0.5s", 60_500_000),
        ("10us", 10),
        ("30", 30 * SECOND),
        (30, 30 * SECOND),
        (0.1, 100_000),
        (1e-6, 1),
        (0, 0),
        ("36525d", MAX_DURATION),
    ],
)
def test_durations_are_read_exactly(value: object, us: int) -> None:
    assert parse_duration(value, "lease") == us


NOT_A_DURATION = (
    "is not a duration; write seconds, numbers with us, ms, s, min, h or d such as 50ms, 5min or 1h30min, "
    "or hours as 01:30:00"
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("5m", 300),
        ("1h5m30s", 3_930),
        ("05:00", 300),
        ("90:00", 5_400),
        ("01:00:00", 3_600),
        ("1-0", 86_400),
        ("1-12:30", 131_400),
        ("2-01:00:05", 176_405),
    ],
)
def test_durations_as_slurm_writes_them(value: str, seconds: int) -> None:
    assert parse_duration(value, "time_limit") == seconds * SECOND


@pytest.mark.parametrize(
    ("value", "size"),
    [("5GB", 5 * 10**9), ("512MB", 512 * 10**6), ("1kB", 1000), ("1KB", 1000), ("2TB", 2 * 10**12), ("8GiB", 2**33)],
)
def test_sizes_with_a_b(value: str, size: int) -> None:
    assert parse_quantity("memory", value, "memory") == size


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("1:60", f'"1:60" {NOT_A_DURATION}'),
        ("1:00:00:00", f'"1:00:00:00" {NOT_A_DURATION}'),
        ("-1:00", f'"-1:00" {NOT_A_DURATION}'),
        ("1w", f'"1w" {NOT_A_DURATION}'),
        ("", f'"" {NOT_A_DURATION}'),
        ("soon", f'"soon" {NOT_A_DURATION}'),
        ("5 min", f'"5 min" {NOT_A_DURATION}'),
        ("30min1h", f'"30min1h" {NOT_A_DURATION}'),
        ("1h1h", f'"1h1h" {NOT_A_DURATION}'),
        ("1h30", f'"1h30" {NOT_A_DURATION}'),
        ("1h-5min", f'"1h-5min" {NOT_A_DURATION}'),
        (True, f"true {NOT_A_DURATION}"),
        (None, f"null {NOT_A_DURATION}"),
        (math.nan, f"nan {NOT_A_DURATION}"),
        (math.inf, f"inf {NOT_A_DURATION}"),
        (-1, "-1 is negative; write 0 or more"),
        ("-5s", '"-5s" is negative; write 0 or more'),
        ("0.5us", '"0.5us" is finer than 1us; round it to a multiple of 1us'),
        (1e-7, "1e-07 is finer than 1us; round it to a multiple of 1us"),
        ("36526d", '"36526d" is too large; write at most 36525d'),
        ("36525d1us", '"36525d1us" is too large; write at most 36525d'),
        ("1" * 41, f'"{"1" * 40}…" is too long; write at most 40 characters'),
    ],
)
def test_durations_that_are_refused(value: object, problem: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_duration(value, "lease")
    assert message(refusal) == f"lease: {problem}"


@given(st.one_of(st.integers(0, MAX_DURATION), st.integers(0, 10**6).map(lambda n: n * MINUTE // 4)))
def test_a_formatted_duration_reads_back(us: int) -> None:
    assert parse_duration(format_duration(us), "for") == us


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        (0, "0s"),
        (1, "1us"),
        (50_000, "50ms"),
        (100_000, "100ms"),
        (1_500_000, "1.5s"),
        (90 * SECOND, "90s"),
        (30 * MINUTE, "30min"),
        (90 * MINUTE, "1.5h"),
        (48 * HOUR, "2d"),
        (36 * HOUR, "36h"),
        (DAY + 1, "1d1us"),
        (-HOUR, "-1h"),
    ],
)
def test_format_duration(us: int, expected: str) -> None:
    assert format_duration(us) == expected


# ---- counts and the error itself


@pytest.mark.parametrize(
    ("us", "text"), [(0, "0 s"), (3_610_000_001, "3610 s"), (1_500_000, "1.5 s"), (20 * DAY, "1728000 s")]
)
def test_moments_of_a_clock_that_began_lately(us: int, text: str) -> None:
    assert format_moment(us) == text


@given(st.integers(10_000 * DAY, 40_000 * DAY))
def test_moments_of_a_clock_that_counts_from_1970(us: int) -> None:
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    assert format_moment(us) == f"{date:%Y-%m-%d %H:%M:%S} UTC"


@pytest.mark.parametrize("value", [1, 7, 100])
def test_counts(value: int) -> None:
    assert parse_count(value, "max_batch", 1, 100) == value


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (101, "101"), (True, "true"), (2.0, "2.0"), ("2", '"2"'), (None, "null")],
)
def test_counts_that_are_refused(value: object, shown: str) -> None:
    with pytest.raises(Refused) as refusal:
        parse_count(value, "max_batch", 1, 100)
    assert message(refusal) == f"max_batch: {shown} is not accepted; write a whole number from 1 to 100"


def test_a_refusal_keeps_its_parts_when_copied_and_pickled() -> None:
    refusal = Refused("queue", "there is none", code="unknown")
    for other in (refusal, copy.copy(refusal), pickle.loads(pickle.dumps(refusal))):
        assert (other.field, other.problem, other.code) == ("queue", "there is none", "unknown")
    assert Refused("queue", "there is none").code == "invalid"
