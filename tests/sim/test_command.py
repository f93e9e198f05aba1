"""`fairlead simulate` as people and scripts use it."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fairlead.cli.main import app

TRACE = """
nodes: [{name: n, count: 2, resources: {cpu: 4}}]
jobs:
  - {id: a, submit: 0s, user: ann, stages: [{count: 8, resources: {cpu: 1}, duration: 90s}]}
  - {id: b, submit: 10s, user: bob, stages: [{count: 4, resources: {cpu: 1}, duration: 1min}]}
  - {id: c, submit: 20s, user: bob, stages: [{count: 4, duration: soon}]}
  - {id: d, submit: 5min, user: bob, stages: [{resources: {cpu: 9}, duration: 1s}]}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "week.yaml"
    path.write_text(TRACE)
    return path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["simulate", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_what_people_see(trace: Path) -> None:
    done = run(trace)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "week.yaml: 3 jobs, 2 nodes"
    assert lines[1].startswith("  1 left out, stages[0].duration: ") and lines[1].endswith(": line 3")
    shown = {line[:30].strip(): line[30:].strip() for line in lines[2:]}
    assert shown["jobs"] == "2" and shown["mean wait"] == "40 s" and shown["makespan"] == "2 min 30 s"
    assert lines[-1] == "fcfs: 1 of 3 jobs had not started"


def test_json(trace: Path, tmp_path: Path) -> None:
    done = run(trace, "--json", "-")
    result = json.loads(done.stdout)
    assert (result["jobs"], result["mean_wait_s"], result["interrupted"]) == (2, 40.0, False)
    assert result["left_out"][0]["lines"] == [3] and result["users"]["bob"]["mean_wait_s"] == 80.0
    out = tmp_path / "result.json"
    assert "mean wait" in run(trace, "--json", out).stdout
    written = json.loads(out.read_text())
    timing = {"wall_s", "decisions_per_s"}
    assert {key: written[key] for key in written.keys() - timing} == {
        key: result[key] for key in result.keys() - timing
    }


def test_policies_side_by_side(trace: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("partitions: {default: {queues: {root: {all: {limit: {cpu: 4}}}}}}")
    starts = tmp_path / "starts.csv"
    done = run(trace, "--compare", f"fcfs,,{mine}", "--starts", starts, "--json", "-")
    runs = json.loads(done.stdout)["runs"]
    assert [(each["policy"], each["jobs"]) for each in runs] == [("fcfs", 2), (str(mine), 1)]
    with starts.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["id"], row["start_s"], row["end_s"], row["state"], row["policy"]) for row in rows] == [
        ("a", "0", "90", "succeeded", "fcfs"),
        ("b", "90", "150", "succeeded", "fcfs"),
        ("d", "", "", "waiting", "fcfs"),
        ("a", "", "", "waiting", str(mine)),
        ("b", "10", "70", "succeeded", str(mine)),
        ("d", "", "", "waiting", str(mine)),
    ]


def test_other_nodes_fewer_jobs_and_an_end(trace: Path) -> None:
    assert json.loads(run(trace, "--nodes", "1x16", "--json", "-").stdout)["mean_wait_s"] == 0
    assert json.loads(run(trace, "--jobs", 1, "--json", "-").stdout)["jobs"] == 1
    early = json.loads(run(trace, "--until", "1min", "--json", "-").stdout)
    assert (early["jobs"], early["submitted"], early["not_started"], early["not_ended"]) == (1, 2, 1, 2)
    # The last that happened was the second submission, at 10 s; the first job runs on all CPUs.
    assert (early["makespan_s"], early["utilisation"], early["work_s"]) == (10, 1.0, 80)


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["nowhere.swf"], 2, "nowhere.swf does not exist"),
        (
            ["TRACE", "--policy", "best"],
            1,
            "there is no policy best; write fcfs, easy, shortest, conservative, learned, fair or name a file",
        ),
        (["TRACE", "--policy", "best.yaml"], 2, "best.yaml does not exist"),
        (["TRACE", "--policy", "esay"], 1, "there is no policy esay (did you mean easy?)"),
        (["BROKEN", "--packing", "100", "--compare", "pack,spraed"], 1, "no placement spraed (did you mean spread?)"),
        (["BROKEN", "--compare", "fcfs,esay"], 1, "there is no policy esay"),
        (["TRACE", "--packing", "100", "--report", "page.html"], 2, "--report is not for --packing"),
        (["TRACE", "--packing", "100", "--starts", "starts.csv"], 2, "--starts is not for --packing"),
        (["TRACE", "--packing", "100", "--until", "1h"], 2, "--until is not for --packing"),
        (["TRACE", "--packing", "100", "--faults", "light"], 2, "--faults is not for --packing"),
        (["TRACE", "--shuffles", "3"], 2, "--shuffles is only for --packing"),
        (["TRACE", "--policy", "easy", "--compare", "fcfs,fair"], 2, "--policy would be ignored"),
        (["TRACE", "--nodes", "0xx"], 1, "nodes"),
        (["TRACE", "--until", "later"], 1, "until: "),
        (["TRACE", "--overrun", "ignore"], 2, "overrun"),
        (["TRACE", "--report", "nowhere/page.html"], 1, "there is no folder nowhere to write nowhere/page.html in"),
        (["TRACE", "--jobs", "0"], 2, "jobs"),
        (["BROKEN"], 1, "not YAML"),
        (["TRACE", "--policy", "BROKEN"], 1, "not YAML"),
        (["TRACE", "--policy", "WRONG"], 1, "partitions.default.colour: a partition has no such key"),
    ],
)
def test_wrong_usage(trace: Path, tmp_path: Path, arguments: list[str], code: int, problem: str) -> None:
    broken, wrong = tmp_path / "broken.yaml", tmp_path / "wrong.yaml"
    broken.write_text("a: [")
    wrong.write_text("colour: red")
    names = {"TRACE": str(trace), "BROKEN": str(broken), "WRONG": str(wrong)}
    done = run(*(names.get(argument, argument) for argument in arguments))
    assert done.exit_code == code, done.output
    assert problem in done.stderr and "Traceback" not in done.stderr


def test_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    endless = tmp_path / "long.yaml"
    endless.write_text("nodes: [{name: n, resources: {cpu: 4}}]\ngenerate: {jobs: 200000, load: 100}\n")
    script = """
import os, signal, sys
from fairlead.sim.simulation import Simulation
from fairlead.cli.main import app

step, steps = Simulation.step, []
def counted(self):
    steps.append(step(self))
    if len(steps) == 300:
        os.kill(os.getpid(), signal.SIGINT)
Simulation.step = counted
app(["simulate", sys.argv[1], "--jobs", "5000", "--json", sys.argv[2]])
"""
    out = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-c", script, str(endless), str(out)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert done.stderr == "interrupted: these are the figures so far\n" and "mean wait" in done.stdout
    result = json.loads(out.read_text())
    assert result["interrupted"] and result["cycles"] == 301 and 0 < result["submitted"] < 5000
