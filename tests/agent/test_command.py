"""`fairlead agent` as it is typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.agent.process import _lock
from fairlead.agent.spawner_link import prepare
from fairlead.cli.main import app
from tests.agent.plant import FOR_ANN


@pytest.mark.parametrize("option", ["--label", "--resource"])
@pytest.mark.parametrize("value", ["gpu", "=4"])
def test_a_pair_without_a_sign_is_refused(tmp_path: Path, option: str, value: str) -> None:
    done = CliRunner().invoke(app, ["agent", "--join=http://127.0.0.1:1", f"--directory={tmp_path}", option, value])
    assert done.exit_code == 2
    assert "is not key=value" in done.output


def test_a_directory_in_use_is_refused_with_the_remedy(tmp_path: Path) -> None:
    lock = _lock(prepare(tmp_path / "agent"))
    assert lock
    done = CliRunner().invoke(
        app, ["agent", "--join=http://127.0.0.1:1", f"--directory={tmp_path / 'agent'}", *FOR_ANN]
    )
    assert done.exit_code == 1
    assert "another agent uses" in done.output and "give this one a directory of its own" in done.output


def test_the_server_is_needed() -> None:
    assert CliRunner().invoke(app, ["agent"]).exit_code == 2


@pytest.mark.parametrize("join", ["127.0.0.1:7070", "ftp://host", "http://"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, join: str) -> None:
    done = CliRunner().invoke(app, ["agent", f"--join={join}", f"--directory={tmp_path}"])
    assert done.exit_code == 2
    assert "https://host:7070" in done.output


def test_an_agent_joins_no_other_machine_without_tls(tmp_path: Path) -> None:
    arguments = ["agent", "--join=http://10.1.2.3:7070", f"--directory={tmp_path}", *FOR_ANN]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "https://" in done.output and "--insecure" in done.output
    forced = CliRunner().invoke(app, [*arguments, "--insecure"])
    assert forced.exit_code == 78 and "there is no join token" in forced.output


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--for=ann"], "tasks of ann would run as root"),
        (["--for=ann", "--for=root"], "tasks of ann, root would run as root"),
        (["--for=ann", "--user=daemon"], "tasks of ann would run as root"),
        (["--for=ann", "--user=root", "--uids=1000-2000"], "with --for all tasks run as the user of the agent"),
        (["--for=ann", "--user=root", "--user-map=/etc/map"], "with --for all tasks run as the user of the agent"),
    ],
)
def test_tasks_run_as_root_only_if_that_is_said(tmp_path: Path, options: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["agent", "--join=http://127.0.0.1:1", f"--directory={tmp_path}", *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize("option", ["--user=ann", "--uids=1000-2000", "--user-map=/etc/map"])
def test_options_of_root_are_refused_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(app, ["agent", "--join=http://127.0.0.1:1", f"--directory={tmp_path}", option])
    assert done.exit_code == 2 and option.partition("=")[0] in done.output
    assert "it needs an agent that is started as root" in " ".join(done.output.replace("│", " ").split())
