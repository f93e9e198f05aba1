"""The benchmarks run and give sane figures at a tiny size. Speed is not tested here."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.catalogue import CATALOGUE
from bench.harness import ROOT, Row, in_child, line
from bench.memory import recovered, submitted

TINY = 0.001


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_benchmark_gives_rows(name: str) -> None:
    rows = list(CATALOGUE[name](TINY))
    assert rows
    assert len({row.what for row in rows}) == len(rows)
    for row in rows:
        # A small amount of memory may round to 0 pages, and a cost is a difference; every other figure is above 0.
        assert math.isfinite(row.figure) and (row.figure > 0 or row.unit == "MB" or row.what.startswith("cost "))
        assert row.goal is None or row.goal > 0
        assert row.ratio is None or (math.isfinite(row.ratio) and row.against)
        assert line(row).count("|") == 8


@pytest.mark.parametrize(
    ("figure", "goal", "more", "verdict"),
    [(4, 5, False, "met"), (6, 5, False, "MISSED"), (6, 5, True, "met"), (4, 5, True, "MISSED"), (4, None, True, "")],
)
def test_a_goal_is_met_or_missed(figure: float, goal: float | None, more: bool, verdict: str) -> None:
    assert Row("it", figure, "s", goal, more).verdict == verdict


def test_memory_grows_with_what_waits(tmp_path: Path) -> None:
    for jobs in (100, 5_000):
        (tmp_path / str(jobs)).mkdir()
    used = [in_child(submitted, str(tmp_path / str(jobs)), jobs, 1)["used"] for jobs in (100, 5_000)]
    assert used[1] > used[0] + 4_000 * 300
    used = [in_child(recovered, str(tmp_path / str(jobs)))["used"] for jobs in (100, 5_000)]
    assert used[1] > used[0] + 4_000 * 300


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="unable to open"):
        in_child(recovered, str(tmp_path / "nowhere"))


def test_an_unknown_name_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "nothing"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "there is no benchmark nothing; there are memory" in done.stderr


def test_a_scheduler_that_cannot_be_built_is_left_out_with_one_line(tmp_path: Path) -> None:
    """Without Go and with an empty cache."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.kubernetes", "--only", "volcano"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    why = "volcano is not in the cache, and there is no Go to build it"
    assert done.stderr.strip() == f"volcano is left out: {why}"
    assert len(done.stdout.splitlines()) == 2  # the head of the table
