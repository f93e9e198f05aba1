"""Chromium for tests, driven by Playwright. The tests are left out where there is none.

In CI, as root on Debian, Chromium is installed if it is missing.
"""

from __future__ import annotations

import fcntl
import gc
import re
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from bootstrap import LOG
from hatch_build import BUILT as PAGE
from tests.packages import installed

ROOT = Path(__file__).parents[2]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 30_000  # the longest wait of a test, in milliseconds
DESKTOP, PHONE = (1440, 900), (390, 844)
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
    if LOG.exists():
        with LOG.open() as log:
            fcntl.flock(log, fcntl.LOCK_SH)  # `make test` builds the page beside the first tests
    if not PAGE.exists() or not AXE.exists():
        return "tests of the web page left out: it is not built; make page builds it"
    return "" if chromium() else "tests of the web page left out: there is no Chromium (Debian: apt install chromium)"


@cache
def unchecked() -> str:
    """Return why the types of the web page are not checked; empty if they can be."""
    if not shutil.which("npm") and not Path(sys.executable).with_name("npm").exists():
        return "types of the web page not checked: there is no npm (Debian: apt install npm)"
    checker = AXE.parents[1] / "svelte-check"
    return "" if checker.exists() else "types of the web page not checked: make page installs what the check needs"


@cache
def chromium() -> str:
    """Return the path of Chromium; empty if there is none."""
    return installed(lambda: next(filter(None, map(shutil.which, NAMES)), ""), "chromium", "fonts-dejavu-core")


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


@contextmanager
def opened(
    browser: Any, url: str, token: str = "", size: tuple[int, int] = DESKTOP, theme: str = "light", view: str = ""
) -> Iterator[Any]:
    """Open the page, log in if there is a token, and end with an assertion that nothing went wrong in it."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    context.set_default_timeout(SECONDS)
    page = context.new_page()
    wrong: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: hosts.add(re.sub(r"^(\w+://[^/]+).*", r"\1", request.url)))
    try:
        page.goto(f"{url}/{view and f'#/{view}'}")
        if token:
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            page.wait_for_selector("[data-testid=link].live")
        yield page
    finally:
        context.close()
    assert wrong == []
    assert {host for host in hosts if not host.startswith("data:")} <= {url}


def show(page: Any, view: str, sign: str) -> None:
    """Go to a view, and wait until it has a sign."""
    page.evaluate("view => { location.hash = `#/${view}` }", view)
    page.locator(sign).first.wait_for()
