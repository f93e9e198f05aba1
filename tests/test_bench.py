"""The benchmarks run and give sane figures at a tiny size. Speed is not tested here."""

import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from statistics import mean

import pytest

from bench import eta, runtimes
from bench.catalogue import CATALOGUE
from bench.harness import ROOT, Row, in_child, line
from bench.memory import recovered, submitted
from fairlead.sim.traces import read_traces

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


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py")))
def test_a_benchmark_can_be_imported(name: str) -> None:
    import_module(f"bench.{name}")


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


def log_of(tmp_path: Path, estimate: int) -> Path:
    """Write a log of 80 jobs on 4 processors, which run 100 to 400 s each."""
    log = tmp_path / "small.swf"
    rows = [
        f"{number} {number * 60} -1 {100 + number * 37 % 300} {1 + number % 4} -1 -1 {1 + number % 4} "
        f"{(100 + number * 37 % 300) * estimate} -1 1 {number % 3} -1 {number % 2} 1 -1 -1 -1"
        for number in range(1, 81)
    ]
    log.write_text("; MaxProcs: 4\n" + "\n".join(rows) + "\n")
    return log


@pytest.mark.parametrize("estimate", [1, 3])
def test_promises_are_compared_with_the_reservations_of_the_same_heads(tmp_path: Path, estimate: int) -> None:
    found = eta.score(log_of(tmp_path, estimate), "learned", {"submitted": 0, "head": 4}, 1, None, 3, 5)
    assert found["submitted"] == {"jobs": 0}
    assert found["head"]["jobs"] == found["head"]["reservation"]["jobs"] > 3
    for policy in ("easy", "learned"):
        figures = found["reservations"][policy]
        assert figures["heads"] > 12 and figures["unplanned"] == 0
    exact = found["reservations"]["easy"]["mean"] == 0
    assert exact is (estimate == 1), "with true estimates, a head starts as planned"


def test_jobs_that_start_as_they_come_first_have_no_error(tmp_path: Path) -> None:
    """Job 3 starts with job 2, which was the head; job 7 waits and passes the head 5, so it has no reservation."""
    log = tmp_path / "turns.swf"
    rows = [(0, 100, 4), (1, 100, 2), (2, 100, 2), (300, 200, 3), (301, 10, 4), (302, 50, 1), (303, 10, 1)]
    lines = [
        f"{number} {at} -1 {ran} {size} -1 -1 {size} {2 * ran} -1 1 1 -1 1 1 -1 -1 -1"
        for number, (at, ran, size) in enumerate(rows, 1)
    ]
    log.write_text("; MaxProcs: 4\n" + "\n".join(lines) + "\n")
    found = eta.reservations(read_traces([log], lambda path: None), "easy")
    minutes = [100 / 60, 200 / 60]  # each estimate is twice the run time of the job that is waited for
    assert (found["heads"], found["mean"]) == (2, round(mean(minutes), 1))
    assert found["with_in_turn"] == {"jobs": 3, "mean": round(sum(minutes) / 3, 1), "median": round(minutes[0], 2)}


def test_drawn_run_times_are_compared_with_the_real_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "SKIP", 10)
    log = log_of(tmp_path, 2)
    found = runtimes.examine(log, None, estimates=True)
    assert found["starting"]["score"] < 0.1 < runtimes.examine(log, None, estimates=False)["starting"]["score"]
    assert found["starting"]["jobs"] == 70 and found["running"]["jobs"] > 20


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
