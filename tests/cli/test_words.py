"""The words of a submission: they mean the same at every door, and none is silently ignored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "--file", "-", "--cpu", "2"), "--cpu: --file describes the whole job"),
        (("submit", "--file", "-", "--time-limit", "2h"), "--time-limit: --file describes the whole job"),
        (("submit", "--file", "-", "--shell"), "--shell: --file describes the whole job"),
        (("submit", "--file", "-", "true"), "COMMAND: --file describes the whole job"),
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


def test_input_of_run_is_refused(up: Up, tmp_path: Path) -> None:
    done = up.ask("run", "--", "wc", "-c", text="hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a task reads no standard input" in done.stderr
    (tmp_path / "in").write_text("hello")
    with (tmp_path / "in").open() as file:
        done = subprocess.run(
            [PROGRAM, "run", "wc", "-c"], env=up.environment, stdin=file, capture_output=True, text=True, check=False
        )
    assert done.returncode == 2 and "a task reads no standard input" in done.stderr
    assert up.run("run", "--", "wc", "-c", text="") == "0\n"


def test_input_of_run_that_comes_late_is_told(up: Up) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [PROGRAM, "run", "--shell", "echo hi; sleep 0.5"],
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
