"""Jobs after other jobs, pipelines and changes of waiting jobs at the command line and in Python, with real tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from tests.live import Up
from tests.until import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("pipelines") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def submit(up: Up, *words: str) -> str:
    return up.run("submit", "--cpu", "0.01", *words).strip()


def test_conditions_at_the_command_line(up: Up) -> None:
    first = submit(up, "--array", "3", "--", "sh", "-c", "test $FAIRLEAD_INDEX != 1")
    each = submit(up, "--array", "3", "--after", f"{first}:each", "--", "true")
    late = [submit(up, "--after", f"{first}:{when}", "--", "true") for when in ("any", "failed", "started", "ok")]
    assert up.ask("wait", first, each, *late).returncode == 1
    with fairlead.Client(up.url, up.token) as client:
        assert [client.job(job).state for job in late] == ["succeeded", "succeeded", "succeeded", "failed"]
        assert [task.state for task in client.tasks(each)] == ["succeeded", "failed", "succeeded"]
        # The same after the end of the first job.
        again = [submit(up, "--after", f"{first}:{when}", "--", "true") for when in ("any", "failed", "ok")]
        assert [client.wait(job).state for job in again] == ["succeeded", "succeeded", "failed"]
        assert client.job(again[2]).reason == f"job {first}, which it comes after, failed"
    wrong = up.ask("submit", "--after", f"{first}:later", "--", "true")
    assert wrong.returncode == 1 and "has no known condition; write" in wrong.stderr


def test_a_waiting_job_is_changed(up: Up) -> None:
    blocker = submit(up, "--name", "blocker", "--", "sleep", "600")
    job = submit(up, "--after", blocker, "-l", "team=x", "--", "sh", "-c", "sleep 600")
    said = up.run("update", job, "--time-limit", "2h", "--cpu", "0.02", "-l", "team=y", "--after", f"{blocker}:started")
    assert said == f"{job}: after {blocker}:started, cpu 20m, time_limit 2h, label team=y\n"
    with fairlead.Client(up.url, up.token) as client:
        until(lambda: client.job(job).state == "running")
        assert client.job(job).labels == {"team": "y"}
        assert client.job(job).stages[0].resources["cpu"] == 0.02
        with pytest.raises(fairlead.Problem, match="has running tasks, and cpu 1 needs a job that waits"):
            client.update_job(job, resources={"cpu": 1})
        array = client.submit(["sleep", "600"], array=5, throttle=1, resources={"cpu": 0.01})
        until(lambda: client.job(array).stages[0].running == 1)
        assert client.update_job(array, throttle=3) == "throttle 3"
        until(lambda: client.job(array).stages[0].running == 3)
        assert client.update_job(array, labels={"kind": "sweep"}) == "label kind=sweep"
    assert "changed by" in up.run("story", job) and "time_limit 2h" in up.run("story", job)
    assert job in up.run("ps", "-l", "team=y")
    assert "name what should change" in up.ask("update", job).stderr
    assert "'0' is not a number of tasks" in " ".join(up.ask("update", array, "--throttle", "0").stderr.split())
    up.run("kill", blocker, job, array)


def test_a_file_with_several_jobs(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    stage = "array: 2, resources: {cpu: 0.01}"
    file.write_text(
        "name: two\njobs:\n"
        f"- {{name: use, after: ['make:each'], command: ['true'], {stage}}}\n"
        f"- {{name: make, command: ['true'], {stage}}}\n"
    )
    done = up.ask("submit", "-f", str(file), "--wait")
    assert done.returncode == 0, done.stderr
    name, summary, *_ = done.stdout.splitlines()
    assert name.startswith("two-") and f"pipeline {name}: succeeded, 2 of 2 jobs over" in summary
    shown = json.loads(up.run("pipeline", name, "--json"))
    assert shown["state"] == "succeeded" and [job["name"] for job in shown["jobs"]] == ["make", "use"]
    assert "there is no pipeline nothing" in up.ask("pipeline", "nothing").stderr
    wrong = up.ask("submit", "-f", str(file), "--array", "2")
    assert "it is for one job, and the file has several" in " ".join(wrong.stderr.split())
    assert "two-" in up.run("submit", "-f", str(file), "-e", "A=b", "--wait")
    file.write_text(file.read_text().replace("make:each", "mak:each"))
    wrong = up.ask("submit", "-f", str(file))
    assert wrong.returncode == 1 and 'jobs[0].after[0]: there is no job "mak"' in wrong.stderr


def test_a_table_of_a_sweep_and_its_failed_tasks_again(up: Up) -> None:
    line = "test {lr} != 1 || exit 3; echo trying; echo loss={lr}$EXTRA"
    job = submit(up, "--grid", "lr=1,.3", "--grid", "wd=0,.1", "--shell", "--", line)
    assert up.ask("wait", job).returncode == 1
    rows = [row.split() for row in up.run("table", job).splitlines()]
    assert rows[0] == ["TASK", "lr", "wd", "STATE", "RAN", "EXIT", "LAST", "LINE"]
    assert [[*row[:4], *row[5:]] for row in rows[1:]] == [
        ["0", "1", "0", "failed", "3"],
        ["1", "1", ".1", "failed", "3"],
        ["2", ".3", "0", "succeeded", "0", "loss=.3"],
        ["3", ".3", ".1", "succeeded", "0", "loss=.3"],
    ]
    with fairlead.Client(up.url, up.token) as client:
        [first, *_] = client.table(job, stream="out").rows
        assert first.parameters == {"lr": "1", "wd": "0"} and first.ended is not None
        assert first.started is not None and first.started <= first.ended
        again = up.run("rerun", job, "--failed").strip()
        assert client.wait(again).state == "failed"
        assert [task.index for task in client.tasks(again)] == [0, 1]
        assert client.wait(up.run("rerun", job, "-e", "EXTRA=!", "--name", "more").strip()).name == "more"
        whole = next(client.jobs(name="more")).id
        assert [row.line for row in client.table(whole, stream="out").rows] == ["", "", "loss=.3!", "loss=.3!"]
        good = submit(up, "--", "true")
        client.wait(good)
        assert f"all tasks of job {good} have succeeded" in up.ask("rerun", good, "--failed").stderr
        live = submit(up, "--", "sleep", "600")
        assert f"job {live} is " in up.ask("rerun", live).stderr
        client.kill(live)
    assert "there is no job" in up.ask("rerun", "nothing").stderr


def test_the_nightly_example(up: Up, tmp_path: Path) -> None:
    file = Path(__file__).parents[2] / "examples" / "nightly" / "nightly.yaml"
    done = up.ask("submit", "-f", str(file), "--directory", str(tmp_path), "-l", "kind=night", "--wait")
    assert done.returncode == 1, done.stderr  # one of its jobs has failed
    assert "failed, 12 of 12 jobs over" in done.stdout
    with fairlead.Client(up.url, up.token) as client:
        jobs = {job.name: job for job in client.jobs(label="kind=night")}
        assert {name: job.state for name, job in jobs.items() if job.state != "succeeded"} == {
            **{"shards": "failed", "check": "failed", "alarm": "killed"},
        }
        assert jobs["alarm"].reason.startswith("not needed: job")
        [fetch] = client.tasks(jobs["fetch"].id)
        assert (fetch.state, fetch.attempt) == ("succeeded", 2)
        states = [task.state for task in client.tasks(jobs["check"].id)]
        assert states == ["succeeded"] * 4 + ["failed", "succeeded"]
    assert (tmp_path / "total").read_text() == "1817\n"
    assert (tmp_path / "report").exists() and not (tmp_path / "part.0").exists()


def test_what_a_job_used(up: Up) -> None:
    line = "import time\nwhile time.process_time() < 0.5: pass"
    job = up.run("submit", "--cpu", "1", "--memory", "64Mi", "--", "python3", "-c", line).strip()
    assert up.ask("wait", job).returncode == 0
    with fairlead.Client(up.url, up.token) as client:
        usage = until(lambda: found if (found := client.job_usage(job)).tasks else None)
        [task] = usage.tasks
        assert 0.2 < task.cpu_seconds < 2 and task.memory > 2**20 and task.ran >= 0.5
        assert usage.stages["main"].asked == {"cpu": 1.0, "memory": 2**26}
        report = client.usage_report(["job"], used=True)
        [row] = [row for row in report.rows if row.group == {"job": job}]
        assert row.cpu_hours_used > 0 < row.cpu_hours_had
    shown = up.run("show", job, "--usage").splitlines()
    assert shown[0].split() == ["TASK", "ATTEMPT", "RAN", "CPUS", "USED", "MEMORY", "USED", "GPUS"]
    assert " of 1 " in shown[1] and " of 64Mi" in shown[1]
    assert "CPU USED" in up.run("usage", "--used", "--by", "job")
    [listed] = [
        row.split()
        for row in up.run("history", "-o", "job,cpus-used,memory-used").splitlines()
        if row.split()[0] == job
    ]
    assert float(listed[1]) > 0 and listed[2].endswith("Mi")
