"""The systemd units: systemd accepts them, their commands exist, and they drop the privileges that they should."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from fairlead.cli.main import app

FOLDER = Path(__file__).parents[1] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
NEWER = ("DelegateSubgroup",)
"""Keys that older versions of systemd ignore with a warning."""


def settings(unit: Path) -> dict[str, list[str]]:
    """The keys of [Service]; a key may stand there several times."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#") and section == "[Service]":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_there_is_a_unit_for_the_server_and_one_for_agents() -> None:
    assert [each.name for each in UNITS] == ["fairlead-agent.service", "fairlead-server.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_of_a_unit_is_one_of_ours(unit: Path) -> None:
    (line,) = settings(unit)["ExecStart"]
    for written, meant in (("%d", "/run/credentials"), ("${FAIRLEAD_SERVER}", "https://host:7070")):
        line = line.replace(written, meant)
    assert not any(sign in line for sign in "%$")
    program, name, *words = shlex.split(line)
    assert (program, name) == ("/usr/bin/env", "fairlead")
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    with group.make_context("fairlead", list(words)) as context:
        chosen, command, rest = group.resolve_command(context, words)
        assert command is not None
        command.make_context(chosen, rest, parent=context)  # raises what the command line would refuse


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_a_unit(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line and not any(key in line for key in NEWER)]
    assert (done.returncode, said) == (0, []), done.stderr


def test_the_server_has_its_own_user_no_capabilities_and_its_key_as_a_credential() -> None:
    server, agent = settings(FOLDER / "fairlead-server.service"), settings(FOLDER / "fairlead-agent.service")
    assert server["User"] == ["fairlead-server"] and agent["User"] == ["root"]
    assert server["CapabilityBoundingSet"] == [""]
    assert "secrets-key:/etc/fairlead/secrets-key" in server["LoadCredential"]
    for unit in (server, agent):
        assert unit["NoNewPrivileges"] == ["yes"] and unit["KillMode"] == ["process"]
    assert agent["Delegate"] == ["yes"]
    assert "CAP_NET_ADMIN" not in agent["CapabilityBoundingSet"][0]
