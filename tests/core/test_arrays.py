"""Arrays: their indices, how many of their tasks run at a time, and the parameters of sweeps."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.core.documents import parse_job, parse_stage
from fairlead.core.errors import Refused
from fairlead.core.ranges import indices
from fairlead.testing import World


def world(cpu: int = 8, **config: Any) -> World:
    w = World(config)
    w.nodes(1, cpu=cpu)
    w.cycle()
    return w


def running(w: World, job: str) -> list[int]:
    return sorted(w.partition().jobs[job].stages[0].live or {})


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (3, [0, 1, 2]),
        ("3", [0, 1, 2]),
        ("0-6:2,9", [0, 2, 4, 6, 9]),
        ("9,0-6:2", [0, 2, 4, 6, 9]),
        ("5,18,31", [5, 18, 31]),
        ("4-4", [4]),
        ("1-3,2-5", [1, 2, 3, 4, 5]),
        ("0-2%2", [0, 1, 2]),
    ],
)
def test_indices_of_an_array(array: int | str, expected: list[int]) -> None:
    stage = parse_stage({"array": array}, "stage")
    assert (stage.min, stage.size, stage.count) == (1, len(expected), expected[-1] + 1)
    assert list(indices(stage.indices) if stage.indices else range(stage.count)) == expected


@pytest.mark.parametrize(
    ("stage", "field", "problem"),
    [
        ({"array": "a"}, "s.array", '"a" is not an index or a range'),
        ({"array": "3-1"}, "s.array", '"3-1" has no index'),
        ({"array": "0-9:0"}, "s.array", '"0-9:0" has no index'),
        ({"array": "1-99999999"}, "s.array", "99999999 is too large"),
        ({"array": "0-9000000:2"}, "s.array", "more than 10000 separate indices"),
        ({"array": "0-3%0"}, "s.array", "0 is not accepted"),
        ({"array": "0-3%2", "throttle": 3}, "s.throttle", '"0-3%2" has a throttle too'),
        ({"array": "0-3", "count": 4}, "s.count", "it stands beside array"),
        ({"count": 4, "throttle": 2}, "s.throttle", "2 of 4 tasks cannot run alone"),
        ({"parameters": {}}, "s.parameters", "is not a mapping"),
        ({"parameters": {"lr": []}}, "s.parameters.lr", "is not a list of values"),
        ({"parameters": {"lr": [True]}}, "s.parameters.lr[0]", "is not text"),
        ({"parameters": {"l r": [1]}}, "s.parameters", '"l r" is not a variable'),
        ({"parameters": {"lr": [""] * 100_001}}, "s.parameters.lr", "100,001 values are too many"),
        ({"parameters": {"a": [1, 2]}, "count": 2}, "s.count", "it stands beside parameters"),
        ({"parameters": {"a": [1, 2]}, "array": "1,2"}, "s.array", "the last index is 1"),
        ({"parameters": {name: [*range(9)] for name in "abcdefgh"}}, "s.parameters", "43046721 combinations"),
    ],
)
def test_arrays_that_are_refused(stage: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_stage(stage, "s")
    assert refused.value.field == field and problem in str(refused.value)


def test_only_the_named_indices_run() -> None:
    w = world()
    job = w.submit(stages=[{"array": "5,18,31", "resources": {"cpu": 1}, "duration": 1}])
    w.advance(0.5)
    assert running(w, job) == [5, 18, 31]
    w.stop_tasks(job, "kill", "main", 6)
    w.cycle()
    assert "has no task main[6]; its indices are 5,18,31" in str(w.answers()[-1])
    w.scale(job, "main", 2)
    w.cycle()
    assert "the array has indices of its own and cannot be scaled" in str(w.answers()[-1])
    w.advance(1)
    assert w.job(job).state == "succeeded"


def test_a_throttle_bounds_the_tasks_that_run() -> None:
    w = world()
    job = w.submit(stages=[{"array": "0-9%3", "resources": {"cpu": 1}, "duration": 1}])
    w.advance(0.5)
    assert running(w, job) == [0, 1, 2]
    assert str(w.explain(job)[0].reason) == "its throttle lets 3 tasks run at a time"
    w.finish(job, "main", 1)
    w.advance(0.1)
    assert running(w, job) == [0, 2, 3]
    other = w.submit(stages=[{"array": 5, "resources": {"cpu": 1}, "duration": 1}])
    w.advance(0.1)
    assert len(running(w, other)) == 5  # a throttled job keeps no other job waiting


def test_the_last_parameter_varies_fastest() -> None:
    stage = parse_stage({"parameters": {"lr": [1, 0.3], "wd": [0, "x"]}}, "s")
    assert [stage.values(index) for index in range(4)] == [("1", "0"), ("1", "x"), ("0.3", "0"), ("0.3", "x")]
    assert (stage.count, stage.min) == (4, 1)


@pytest.mark.parametrize("stage", [{"parameters": {"a": [""] * 60_000}}, {"array": "0-19999:2"}])
def test_many_stages_have_no_more_values_and_spans_together_than_one(stage: dict[str, object]) -> None:
    """18 KB of stages became a record of 18 MB."""
    stages = [{"name": f"s{at}", "command": ["true"], **stage} for at in range(300)]
    with pytest.raises(Refused, match=r"stages: more than 100,000 values .* in all stages are too many; split the job"):
        parse_job({"stages": stages})
