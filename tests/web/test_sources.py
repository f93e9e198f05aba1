"""The types of the web page's sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.browser import unchecked

SOURCES = Path(__file__).parents[2] / "web"


def test_the_sources_have_no_type_errors() -> None:
    if unchecked():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(unchecked())
    own = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}"}
    npm = shutil.which("npm", path=environment["PATH"])
    assert npm is not None
    done = subprocess.run(
        [npm, "run", "--silent", "check"], cwd=SOURCES, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
