"""What a job takes along from the shell of its submission, and with what its tasks call the server."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

import fairlead
from fairlead.cli.job_environment import environment_of, read_variables
from fairlead.wire.task_token import KIND, TaskToken, seal, unseal
from tests.live import PROGRAM, Up
from tests.until import until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("environment") / "data")
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


def environment(here: dict[str, str], **more: Any) -> dict[str, str]:
    given: dict[str, Any] = {"given": (), "files": (), "export": None, "command": ("python",), "local": True}
    return environment_of(here, **{**given, "follow": False, **more})


def test_an_active_environment_is_used_here_and_warned_about_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.touch(mode=0o755)
    here = {"VIRTUAL_ENV": str(tmp_path), "PATH": f"{tmp_path}/bin:/bin", "OTHER": "x"}
    assert environment(here) == {"VIRTUAL_ENV": str(tmp_path), "PATH": here["PATH"]}
    assert environment(here, local=False) == {}
    assert f"the tasks do not use python of {tmp_path}" in capsys.readouterr().err
    assert environment(here, local=False, command=("other",)) == {} == environment(here, local=False, export="none")
    assert not capsys.readouterr().err
    assert environment({"CONDA_PREFIX": "/c", "CONDA_DEFAULT_ENV": "c", "PATH": "/c/bin"})["CONDA_DEFAULT_ENV"] == "c"


def test_variables_of_the_shell(tmp_path: Path) -> None:
    here = {"A": "1", "B": "2", "FAIRLEAD_TOKEN": "secret", "PWD": "/", "PATH": "/bin"}
    assert environment(here, export="A,B") == {"A": "1", "B": "2"}
    assert environment(here, export="all") == {"A": "1", "B": "2", "PATH": "/bin"}
    assert environment(here, export="none", given=("A", "B=3", "C=")) == {"A": "1", "B": "3", "C": ""}
    for wrong in ({"export": "A,Z"}, {"given": ("Z",)}):
        with pytest.raises(typer.BadParameter, match="the variable Z is not set here"):
            environment(here, **wrong)
    assert (
        environment({}, follow=True) == {"PYTHONUNBUFFERED": "1"} == environment({}, follow=True, command=("python3",))
    )
    assert environment({}, follow=True, command=("sh",)) == {}
    file = tmp_path / ".env"
    file.write_text("# note\n\nA=1 # one\nexport B = 'two # 2'\nC=\"3\"\n")
    assert read_variables(file) == {"A": "1", "B": "two # 2", "C": "3"}
    file.write_text("A=1\nnonsense\n")
    with pytest.raises(typer.BadParameter, match=r"\.env:2: 'nonsense' is not NAME=value"):
        read_variables(file)


def test_tasks_get_the_variables(up: Up, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("FROM_FILE=f\n")
    up.environment |= {"FROM_HERE": "h", "VIRTUAL_ENV": "/some/venv"}
    line = "echo $FROM_FILE $FROM_HERE $SET $VIRTUAL_ENV"
    said = up.run("run", "--env-file", str(tmp_path / "file"), "-e", "FROM_HERE", "-e", "SET=s", "--", "sh", "-c", line)
    assert said == "f h s /some/venv\n"
    assert up.run("run", "--export", "FROM_HERE", "--", "sh", "-c", line) == "h\n"
    del up.environment["VIRTUAL_ENV"]
    code = "import os; print(os.environ.get('PYTHONUNBUFFERED'))"
    assert up.run("run", "--", "python3", "-c", code) == "1\n"


def test_jobs_submit_jobs_as_long_as_they_run(up: Up) -> None:
    job = up.run(
        "submit",
        "--",
        "sh",
        "-c",
        f"{shlex.quote(PROGRAM)} submit --name child -- true && echo $FAIRLEAD_TOKEN; sleep 600",
    )
    job = job.strip()
    with fairlead.Client(up.url, up.token) as client:
        lines = until(lambda: found if len(found := b"".join(client.log(job)).decode().split()) == 2 else [])
        child, secret = lines
        assert client.wait(child).name == "child" and client.job(child).user == client.job(job).user
        assert secret.startswith(KIND)
        with fairlead.Client(up.url, secret) as task:
            assert task.whoami().role == "user" and task.job(job).state == "running"
            with pytest.raises(fairlead.Problem, match="a token of role user may not do this"):
                task.apply_config({"partitions": {}})
            login = httpx.post(f"{up.url}/api/v1/session", headers={"Authorization": f"Bearer {secret}"})
            assert login.status_code == 403 and "set-cookie" not in login.headers
            client.kill(job)
            with pytest.raises(fairlead.Problem, match="not known, was revoked or has expired"):
                task.jobs(limit=1).__next__()
        with fairlead.Client(up.url, secret[:-1] + "x") as forged, pytest.raises(fairlead.Problem, match="not known"):
            forged.whoami()
    own = ["-e", f"FAIRLEAD_URL={up.url}", "-e", "FAIRLEAD_TOKEN=mine"]
    assert up.run("run", *own, "--", "sh", "-c", "echo $FAIRLEAD_TOKEN") == "mine\n"


@pytest.mark.parametrize("token", [TaskToken("default", 7, "7"), TaskToken("a.b", 12, "train.1")])
def test_a_token_of_a_task_is_unsealed_with_its_key_only(token: TaskToken) -> None:
    key = os.urandom(32)
    secret = seal(key, token)
    assert unseal(key, secret) == token
    assert unseal(os.urandom(32), secret) is None
    for wrong in ("ft_", "ft_.", "ft_x.y", "ft_%%.a", secret[:-1], secret + "é"):
        assert unseal(key, wrong) is None


def test_a_job_is_held_or_begins_later_by_options(up: Up) -> None:
    held = up.run("submit", "--hold", "--", "true").strip()
    later = up.run("submit", "--begin", "2h", "--", "true").strip()
    assert "held" in up.run("explain", held) and "begin" in up.run("explain", later)
    up.run("release", held)
    up.run("wait", held)
    refused = up.ask("submit", "--begin", "2001-01-01", "--", "true")
    assert refused.returncode and "is not a later time" in refused.stderr
