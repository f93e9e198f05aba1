"""The words of a submission: they mean the same at every door, and none is silently ignored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fairlead
from fairlead.cli.main import app
from tests.live import PROGRAM, SECONDS, Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("words") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def stage_of(up: Up, job: str) -> dict[str, Any]:
    """Return the only stage of a job, and kill the job."""
    stage: dict[str, Any] = json.loads(up.run("show", "--json", job))["job"]["stages"][0]
    up.run("kill", job)
    return stage


def test_an_array_and_a_gang_by_command_file_and_client(up: Up) -> None:
    with fairlead.Client(up.url, up.token) as client:
        arrays = [
            up.run("submit", "--array", "3", "sleep", "600").strip(),
            up.run("submit", "--file", "-", text="command: [sleep, 600s]\narray: 3\n").strip(),
            client.submit(["sleep", "600"], array=3),
        ]
        gangs = [
            up.run("submit", "--gang", "3", "sleep", "600").strip(),
            up.run("submit", "--file", "-", text="command: [sleep, 600s]\ncount: 3\n").strip(),
            client.submit(["sleep", "600"], count=3),
        ]
    for job in arrays:
        stage = stage_of(up, job)
        assert (stage["count"], stage["min"], stage["resources"]) == (3, 1, {"cpu": 1}), job
    for job in gangs:
        stage = stage_of(up, job)
        assert (stage["count"], stage["min"], stage["resources"]) == (3, 3, {"cpu": 1}), job


def test_one_cpu_unless_resources_are_given(up: Up) -> None:
    with fairlead.Client(up.url, up.token) as client:
        assert stage_of(up, client.submit(["sleep", "600"]))["resources"] == {"cpu": 1}
        assert stage_of(up, client.submit(["sleep", "600"], resources={}))["resources"] == {}
        [item] = client.submit_many([{"stages": [{"command": ["sleep", "600"]}]}])
        assert stage_of(up, item.job)["resources"] == {"cpu": 1}
    nothing = up.run("submit", "--file", "-", text="command: [sleep, 600s]\nresources: {}\n").strip()
    assert stage_of(up, nothing)["resources"] == {}
    assert stage_of(up, up.run("submit", "--cpu", "0", "sleep", "600").strip())["resources"] == {}


def test_words_after_the_program_are_its_own(up: Up) -> None:
    assert up.run("run", "echo", "-n", "--name", "x") == "--name x"
    assert up.run("run", "--", "echo", "-l") == "-l\n"
    assert up.run("run", "echo", "--", "-l") == "-- -l\n"


def test_options_override_a_file(up: Up) -> None:
    job = up.run(
        *("submit", "--file", "-", "--name", "lr01", "--cpu", "0.5", "-e", "B=2", "--array", "2,4"),
        *("--set", "environment.LR=0.1", "--set", "tries=3", "--set", "priority=0", "--set", "results=[a, b]"),
        text="name: a\ncount: 2\ncommand: [sh, -c, 'echo $LR $B $FAIRLEAD_INDEX']\nenvironment: {LR: '1', B: '1'}\n",
    ).strip()
    up.run("wait", job)
    assert json.loads(up.run("show", "--json", job))["job"]["name"] == "lr01"
    assert stage_of(up, job)["array"] == "2,4" and stage_of(up, job)["resources"] == {"cpu": 0.5}
    assert up.run("logs", job, "-i", "4") == "0.1 2 4\n"


def test_a_sweep_has_a_task_for_each_combination(up: Up, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a b\nc {wd}\n", encoding="utf-8")
    job = up.run(
        *("submit", "--wait", "--grid", "wd=0,.1", "--each-line", str(tmp_path / "lines"), "--throttle", "2"),
        *("--", "sh", "-c", 'echo "{wd} {line} {other} $FAIRLEAD_PARAM_wd"'),
    ).splitlines()[0]
    said = [up.run("logs", job, "-i", str(index)) for index in range(4)]
    assert said == ["0 a b {other} 0\n", "0 c {wd} {other} 0\n", ".1 a b {other} .1\n", ".1 c {wd} {other} .1\n"]
    tasks = json.loads(up.run("show", "--json", job))["tasks"]
    assert tasks[3]["parameters"] == {"wd": ".1", "line": "c {wd}"}


def test_a_script_has_options_and_is_stored(up: Up, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#FAIRLEAD --array 0-1 --name fitted -e A=1 -e B=1  # a comment\n#SBATCH -n 4\necho $A $B $1\n"
    )
    done = up.ask("submit", "-e", "B=2", str(script), "first")
    script.unlink()
    assert done.returncode == 0 and "its #SBATCH lines are ignored; write #FAIRLEAD lines" in done.stderr
    job = done.stdout.strip()
    up.run("wait", job)
    assert up.run("logs", job, "-i", "1") == "1 2 first\n"
    assert json.loads(up.run("show", "--json", job))["job"]["name"] == "fitted"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("#FAIRLEAD --cpux 2", "job.sh:2: No such option: --cpux"),
        ("#FAIRLEAD --wait", "job.sh:2: --wait belongs to the command line; remove it"),
        ("#FAIRLEAD --cpu 2 true", "job.sh:2: write options only"),
        ("#FAIRLEAD --name 'a", "job.sh:2: No closing quotation; close the quote"),
    ],
)
def test_lines_of_scripts_that_are_refused(up: Up, lines: str, said: str) -> None:
    (up.folder.parent / "job.sh").write_text(f"#!/bin/sh\n{lines}\n")
    done = up.ask("submit", "job.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "--file", "-", "--shell"), "--shell: there is no COMMAND"),
        (("submit", "--set", "tries=2", "true"), "--set: it changes a file"),
        (("submit", "--file", "-", "--set", "tries"), "--set: 'tries' is not KEY=VALUE"),
        (("submit", "--file", "-", "--set", "stages.x.tries=2"), "--set: the job has no stage x; name one of main"),
        (("submit", "--grid", "lr=1,2", "--gang", "2", "true"), "--gang: tasks of a sweep start one by one"),
        (("submit", "--min", "2", "true"), "--min: it is the number of tasks of a gang that start together"),
        (("submit", "--each-line", "missing", "true"), "missing does not exist"),
        (("submit", "--prefer", "zone", "true"), "--prefer: 'zone' has no weight"),
        (("submit", "--array", "2", "--gang", "2", "true"), "drop --array or --gang"),
        (("submit", "--cpu", "1", "--resource", "cpu=2", "true"), "cpu is given twice"),
        (("submit", "--gpu", "1", "--resource", "gpu=1", "true"), "gpu is given twice"),
        (("submit", "--env", "A=1", "--env", "A=2", "true"), "A is given twice"),
        (("submit", "--count", "2", "true"), "No such option: --count"),
    ],
)
def test_options_that_would_be_ignored_are_refused(up: Up, arguments: tuple[str, ...], said: str) -> None:
    done = up.ask(*arguments, text="command: [true]\n")
    words = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert said in words.replace("Invalid value for ", "")


def test_a_field_that_a_job_does_not_have_is_refused_with_what_was_meant(up: Up) -> None:
    with fairlead.Client(up.url, up.token) as client:
        for fields, said in (
            ({"resource": {"cpu": 1}}, "no field resource .did you mean resources"),
            ({"env": {"A": "1"}}, "no field env .did you mean environment"),
            ({"cpus": 2}, r"write resources=.'cpu': …"),
            ({"zzz": 2}, "no field zzz; it has after, .*, queue, resources, "),
        ):
            with pytest.raises(TypeError, match=said):
                client.submit(["true"], **fields)


def test_run_does_not_offer_a_file(up: Up) -> None:
    assert "--file" in up.ask("submit").stderr
    assert "--file" not in up.ask("run").stderr


def test_input_of_run_goes_to_its_only_task(up: Up, tmp_path: Path) -> None:
    assert up.run("run", "--", "wc", "-c", text="hello") == "5\n"
    (tmp_path / "in").write_text("hello")
    with (tmp_path / "in").open() as file:
        done = subprocess.run(
            [PROGRAM, "run", "wc", "-c"], env=up.environment, stdin=file, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert up.run("run", "--", "wc", "-c", text="") == "0\n"
    for many in (("--array", "2"), ("--gang", "2", "--cpu", "1")):
        refused = up.ask("run", *many, "--", "wc", "-c", text="hello")
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "standard input goes to a single task" in refused.stderr
    refused = up.ask("run", "--tries", "2", "--", "wc", "-c", text="hello")
    assert refused.returncode == 2 and "can be read only once" in refused.stderr


def test_input_of_run_that_comes_late_is_told(up: Up) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [PROGRAM, "run", "--array", "1", "--shell", "echo hi; sleep 0.5"],
        env={**up.environment, "PYTHONUNBUFFERED": "1"},
        stdin=reading,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    os.write(writing, b"late")
    _, errors = process.communicate(timeout=SECONDS)
    os.close(reading)
    os.close(writing)
    assert (line, process.returncode) == ("hi\n", 0)
    assert "standard input was ignored" in errors


def test_a_command_as_text_is_refused(up: Up) -> None:
    with fairlead.Client(up.url, up.token) as client, pytest.raises(TypeError, match="the command is text"):
        client.submit("echo hi")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"#!\n#FAIRLEAD --cpu 1\n", "names no interpreter; write one such as #!/bin/sh"),
        (b'#!/bin/sh "x\n#FAIRLEAD --cpu 1\n', "names no interpreter"),
        (b"#!/bin/sh\n#FAIRLEAD --name caf\xe9\n", "byte 30 is not UTF-8"),
        (b"#!/bin/sh\n#FAIRLEAD --cpu 1\n" + b"x" * 10_000_000, "is larger than 100,000 bytes"),
    ],
)
def test_scripts_that_cannot_be_stored(tmp_path: Path, content: bytes, said: str) -> None:
    """The first two ended with a traceback, and the options of the third were ignored."""
    (tmp_path / "job.sh").write_bytes(content)
    done = CliRunner().invoke(app, ["submit", str(tmp_path / "job.sh")], env={"COLUMNS": "500"})
    assert done.exit_code == 2 and said in done.output, done.output
