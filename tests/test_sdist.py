"""The source distribution holds what the repository holds, so that the tests run from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="needs a clone, and git")
def test_the_source_distribution_holds_every_file_of_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    environment = {**os.environ, "FAIRLEAD_PAGE": "0"}  # built or not, the web page is not looked at here
    subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, timeout=60, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        packed = {name.partition("/")[2] for name in files.getnames()}
    # A clone may belong to another user than the one that runs the tests, such as root.
    listing = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    tracked = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    assert "pyproject.toml" in tracked
    assert tracked <= packed
