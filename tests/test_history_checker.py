"""The checker of histories finds each kind of fault in a history that is otherwise sound."""

import pytest

from tests.history_checker import Asked, Found, History, Run, Stored, check

SOUND = History(
    {
        "a": Asked("single", "1"),
        "g": Asked("gang", "2"),
        "s": Asked("scaled", "3", True),
        "k": Asked("killed", "4", True),
    },
    [
        Found("a", "1", "succeeded"),
        Found("g", "2", "succeeded"),
        Found("s", "3", "succeeded"),
        Found("k", "4", "killed"),
    ],
    [
        *(Run("1", 0, 1, 0, 0), Run("1", 0, 2, 10, 20), Run("2", 0, 1, 0, 5), Run("2", 1, 1, 0, 5)),
        *(Run("3", index, 1, 0, 5) for index in range(3)),
    ],
    {"n0": [1, 1, 2], "n1": []},
    {"n0": [1, 2, 2]},
    [
        *(Stored("1", 0, 1, 0), Stored("1", 0, 2, 3), Stored("2", 0, 1, 0), Stored("2", 1, 1, 0)),
        *(Stored("3", index, 1, 0) for index in range(3)),
    ],
)


def test_a_sound_history() -> None:
    assert check(SOUND) == []


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("found", SOUND.found[1:], "answered and is lost"),
        ("stored", [*SOUND.stored, SOUND.stored[1]], "is stored 2 times"),
        ("stored", SOUND.stored[:-1], "the history lacks it"),
        ("stored", [*SOUND.stored[:-1], Stored("3", 2, 1, 9.5)], "counts 9.5 s"),
        (
            "runs",
            [*SOUND.runs[:3], Run("2", 0, 2, 10, 10), Run("2", 1, 1, 0, 0), Run("2", 1, 2, 12, 15), *SOUND.runs[4:]],
            "no attempt ended whole",
        ),
        ("found", [*SOUND.found, Found("a", "9", "succeeded")], "took effect 2 times"),
        ("found", [*SOUND.found, Found("x", "9", "succeeded")], "never submitted"),
        ("found", [*SOUND.found[:3], Found("k", "4", "succeeded")], "is succeeded"),
        ("found", [Found("a", "1", "failed"), *SOUND.found[1:]], "is failed"),
        ("runs", [*SOUND.runs, Run("1", 0, 3, 15, 30)], "ran twice at a time"),
        ("runs", [*SOUND.runs, Run("1", 0, 2, 30, 40)], "was started 2 times"),
        ("runs", [*SOUND.runs, Run("1", 0, 1, 30, 40)], "went back to an earlier attempt"),
        ("runs", [run for run in SOUND.runs if run[:2] != ("2", 1)], "has not run whole"),
        ("runs", [run for run in SOUND.runs if run[:2] != ("3", 2)], "has not run whole"),
        ("runs", [*SOUND.runs[:3], Run("2", 1, 1, 6, 9), *SOUND.runs[4:]], "did not start together"),
        ("runs", [*SOUND.runs[:3], Run("2", 1, 2, 0, 5), *SOUND.runs[4:]], "did not start together"),
        ("epochs", {"n0": [2, 1]}, "stored epoch 1 after 2"),
        ("followed", {"n0": [2, 1, 2]}, "followed epoch 1 after 2"),
    ],
)
def test_faults_are_found(part: str, value: object, said: str) -> None:
    wrong = check(SOUND._replace(**{part: value}))
    assert any(said in each for each in wrong), wrong
