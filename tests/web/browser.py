"""Chromium for tests, driven by Playwright. The tests are left out where there is none.

In CI, as root on Debian, Chromium is installed if it is missing.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "src" / "fairlead" / "page" / "index.html"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@cache
def missing() -> str:
    """Return why the tests of the web page are left out; empty if they can run."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "tests of the web page left out: Playwright is not installed"
    if not PAGE.exists() or not AXE.exists():
        return "tests of the web page left out: it is not built; make page builds it"
    return "" if chromium() else "tests of the web page left out: there is no Chromium (Debian: apt install chromium)"


@cache
def chromium() -> str:
    """Return the path of Chromium; empty if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), "")
    if not found and os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get"):
        install = "apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core"
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        with Path(tempfile.gettempdir(), "fairlead-chromium.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
            if not any(map(shutil.which, NAMES)):
                subprocess.run(["sh", "-c", install], env=environment, capture_output=True, timeout=400, check=False)
        found = next(filter(None, map(shutil.which, NAMES)), "")
    return found or ""


@contextmanager
def running() -> Iterator[Any]:
    """Run a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=OPTIONS)
        try:
            yield browser
        finally:
            browser.close()
    # Playwright leaves a transport whose loop is closed. Its finalizer fails, which must not happen at a bad time.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
