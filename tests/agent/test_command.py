"""`fairlead agent` as it is typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.agent.link import prepare
from fairlead.agent.main import _lock
from fairlead.cli.main import app


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
        app, ["agent", "--join=http://127.0.0.1:1", f"--directory={tmp_path / 'agent'}", "--for=ann"]
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
    arguments = ["agent", "--join=http://10.1.2.3:7070", f"--directory={tmp_path}", "--for=ann"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "https://" in done.output and "--insecure" in done.output
    forced = CliRunner().invoke(app, [*arguments, "--insecure"])
    assert forced.exit_code == 1 and "there is no join token" in forced.output
