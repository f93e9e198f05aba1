"""`fairlead server` starts a server, or, with a command, looks at those of a cluster."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app


@pytest.mark.parametrize("options", [("--data", "x"), ("--json",), ("--outputs-age", "1d")])
def test_options_of_a_server_that_starts_are_refused_before_a_command(options: tuple[str, ...]) -> None:
    refused = CliRunner().invoke(app, ["server", *options, "list"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert options[0] in refused.output and "leave it out, or write it after list" in refused.output
