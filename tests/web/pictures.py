"""Pictures of all views, of clusters of several sizes, on a desktop and a phone, in both themes.

`python -m tests.web.pictures FOLDER [NODES …]` saves them, by default of 3, 30, 300 and 10,000 nodes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.http.serving import Serving
from tests.web import fleet
from tests.web.browser import DESKTOP, PHONE, missing, opened, running, show

NODES = (3, 30, 300, 10_000)
VIEWS = {
    "queues": "[data-queue='root.ci'] figure",
    "waiting": "text=dan",
    "jobs": "[aria-label='List of jobs'] tbody tr",
    "time": "text=Running then",
}
DRAWN = "() => Number(document.querySelector('canvas')?.dataset.cell) > 3"
TOLD = "() => ![...document.querySelectorAll('.starts, [data-testid=starts] dd')].some(e => e.innerText.includes('…'))"


def take(browser: Any, site: Serving, folder: Path, nodes: int, size: tuple[int, int], theme: str) -> None:
    """Save a picture of each view."""
    device = "phone" if size == PHONE else "desktop"

    def save(page: Any, view: str) -> None:
        page.wait_for_timeout(500)
        page.screenshot(path=str(folder / f"{view}-{nodes}-{device}-{theme}.png"))

    pending = site.as_owner.get("/api/v1/jobs", params={"state": "pending", "search": "dan"}).json()["jobs"]
    waiting = pending[-1]["id"]
    with opened(browser, site.url, site.owner, size, theme) as page:
        page.wait_for_function(DRAWN)
        page.wait_for_timeout(3_500)  # the tasks of large cells
        save(page, "cluster")
        if size == PHONE:
            page.evaluate("() => scrollTo(0, document.querySelector('canvas').getBoundingClientRect().top - 70)")
            save(page, "cluster-nodes")
        page.locator("canvas").focus()
        page.keyboard.press("ArrowRight")
        page.get_by_test_id("tasks").wait_for()
        save(page, "node")
        page.keyboard.press("Escape")
        for view, sign in {**VIEWS, f"jobs/{waiting}": "[data-testid=starts]"}.items():
            show(page, view, sign)
            if "jobs" in view or view == "waiting":
                page.wait_for_timeout(1_500)
                page.wait_for_function(TOLD)
            save(page, "job" if "/" in view else view)
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").fill("fl_wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").wait_for()
        save(page, "login")


def main() -> None:
    if missing():
        raise SystemExit(missing())
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for nodes in map(int, sys.argv[2:] or NODES):
        with tempfile.TemporaryDirectory() as data:
            site = fleet.start(Path(data), nodes)
            fleet.fill(site, nodes, most=6_000)
            with running() as browser:
                for size in (DESKTOP, PHONE):
                    for theme in ("light", "dark"):
                        take(browser, site, folder, nodes, size, theme)
            site.close()
        print(f"{nodes:,} nodes: {folder}", flush=True)


if __name__ == "__main__":
    main()
