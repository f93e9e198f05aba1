"""The web page in a real browser, against a real server with a virtual fleet of 2,000 nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Serving, serving, submit
from tests.live import Up
from tests.web.browser import AXE
from tests.web.fleet import job

SECONDS = 30_000  # the longest wait of a test, in milliseconds
DESKTOP, PHONE = (1440, 900), (390, 844)
PICTURES = os.environ.get("FAIRLEAD_PICTURES", "")  # a folder for pictures of all views
VIEWS = {
    "cluster": "[data-testid=verdict]",
    "queues": "[data-queue='root.ci'] figure",
    "waiting": "text=root.research.language",
    "jobs": "text=resnet-sweep",
    "jobs/1": "[data-testid=job-state]",
    "time": "text=Running then",
}


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
    page.evaluate("view => { location.hash = `#/${view}` }", view)
    page.locator(sign).first.wait_for()


def test_a_token_opens_a_session_that_lasts_and_ends(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url) as page:
        page.get_by_label("Token").fill("fl_wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("the token is not known").wait_for()
        page.get_by_label("Token").fill(cluster.token("user", "ann"))
        page.get_by_role("button", name="Log in").click()
        page.wait_for_selector("[data-testid=link].live")
        page.reload()
        page.wait_for_selector("[data-testid=link].live")
        (cookie,) = page.context.cookies(f"{cluster.url}/api/v1/")
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert "fl_" not in json.dumps(page.evaluate("() => ({...localStorage, cookie: document.cookie})"))
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        page.reload()
        page.get_by_label("Token").wait_for()


def test_a_token_in_the_address_logs_in_and_leaves_it(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url) as page:
        page.goto(f"{cluster.url}/#token={cluster.owner}")
        page.reload()
        page.wait_for_selector("[data-testid=link].live")
        assert "token" not in page.url


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light"), (PHONE, "dark")])
def test_each_view_is_shown_and_can_be_used_by_everybody(
    browser: Any, cluster: Serving, size: tuple[int, int], theme: str
) -> None:
    with opened(browser, cluster.url, cluster.owner, size, theme) as page:
        for view, sign in VIEWS.items():
            show(page, view, sign)
            if view == "cluster":
                page.wait_for_function("() => Number(document.querySelector('canvas')?.dataset.cell) > 3")
            page.wait_for_timeout(300)
            wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{view} is {wide} pixels too wide"
            if PICTURES:
                name = f"{view.replace('/', '-')}-{'phone' if size == PHONE else 'desktop'}-{theme}.png"
                page.screenshot(path=str(Path(PICTURES) / name))
            serious = accessibility(page)
            assert serious == [], f"{view}, {theme}: {serious}"


def accessibility(page: Any) -> list[str]:
    """Return the serious findings of axe-core."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text())  # not a script element, which the policy of the page refuses
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def test_the_cluster_shows_changes_as_they_happen(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url, cluster.owner) as page:
        legend = page.get_by_label("Legend")
        before = legend.inner_text()
        node = "cpu-01900"
        cluster.as_owner.post(f"/api/v1/nodes/{node}/drain", params={"reason": "disk"}).raise_for_status()
        page.wait_for_function(
            "before => document.querySelector('[aria-label=Legend]').innerText !== before", arg=before
        )
        page.get_by_label("Find a node").fill(node)
        page.get_by_label("Group by").select_option("label rack")
        page.wait_for_timeout(100)
        page.locator("canvas").focus()
        page.keyboard.press("ArrowRight")
        page.get_by_test_id("node").get_by_text("tasks", exact=True).wait_for()
        page.get_by_role("button", name="Zoom in").click()
        cluster.as_owner.post(f"/api/v1/nodes/{node}/enable").raise_for_status()
        page.wait_for_function(
            "before => document.querySelector('[aria-label=Legend]').innerText === before", arg=before
        )


def test_jobs_are_found_scaled_and_killed(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url, cluster.owner, view="jobs") as page:
        names = [f"trial-{number}" for number in range(3)]
        jobs = [submit(cluster.as_owner, job(name, "production", array=4)) for name in names]
        page.get_by_label("Search").fill("trial-")
        for name in names:
            page.get_by_role("link", name=name, exact=True).wait_for()
        assert page.get_by_role("link", name="features").count() == 0
        page.get_by_label("State").select_option("pending")
        page.get_by_text("No job matches").wait_for()
        page.get_by_label("State").select_option("")
        page.get_by_role("link", name="trial-0", exact=True).click()
        page.get_by_label("Tasks of worker").fill("6")
        page.get_by_role("button", name="Scale").click()
        page.get_by_text("6 running").wait_for()
        page.get_by_role("button", name="Kill", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        page.wait_for_selector("[data-testid=job-state].killed")
        page.go_back()
        page.get_by_label("Search").wait_for()
        for each in jobs[1:]:
            page.get_by_label(f"Choose job {each}").check()
        page.get_by_role("button", name="Kill").click()
        page.get_by_role("dialog").get_by_role("button", name="Kill").click()
        page.get_by_text("2 jobs killed").wait_for()
        for each in jobs:
            assert cluster.as_owner.get(f"/api/v1/jobs/{each}").json()["state"] == "killed"


def test_many_jobs_are_held_released_requeued_and_scaled_at_once(browser: Any, cluster: Serving) -> None:
    def bulk(page: Any, action: str, said: str) -> None:
        page.get_by_role("button", name="Choose all jobs that match").click()
        chosen = page.get_by_role("region", name="Chosen jobs")
        chosen.get_by_text("5 jobs chosen").wait_for()
        chosen.get_by_role("button", name=action, exact=True).click()
        page.get_by_role("dialog", name=re.compile(f"^{action} 5 jobs")).get_by_role("button", name=action).click()
        page.get_by_text(said).wait_for()

    def found(each: str) -> dict[str, Any]:
        answer: dict[str, Any] = cluster.as_owner.get(f"/api/v1/jobs/{each}").json()
        return answer

    jobs = [submit(cluster.as_owner, job(f"bulk-{number}", "production", array=2)) for number in range(5)]
    with opened(browser, cluster.url, cluster.owner, view="jobs") as page:
        page.get_by_label("Search").fill("bulk-")
        page.get_by_role("link", name="bulk-4", exact=True).wait_for()
        bulk(page, "Hold", "5 jobs held")
        page.locator("tr", has_text="bulk-0").locator(".chip.held").wait_for()
        assert all(found(each)["held_by"] for each in jobs)
        bulk(page, "Requeue", "5 jobs requeued")
        page.locator("tr", has_text="bulk-0").locator(".chip.pending").wait_for()
        page.get_by_role("link", name="bulk-0", exact=True).click()
        page.get_by_test_id("held").wait_for()
        page.get_by_role("region", name="Why it waits").get_by_text("is held by").first.wait_for()
        page.get_by_role("button", name="Release").click()
        page.wait_for_selector("[data-testid=job-state].running")
        page.go_back()
        bulk(page, "Release", "5 jobs released")
        page.get_by_role("button", name="Choose all jobs that match").click()
        page.get_by_role("region", name="Chosen jobs").get_by_label("Tasks").fill("3")
        if PICTURES:
            page.screenshot(path=str(Path(PICTURES) / "bulk-desktop-light.png"))
        page.get_by_role("button", name="Scale", exact=True).click()
        page.get_by_role("dialog", name="Scale 5 jobs to 3 tasks?").get_by_role("button", name="Scale").click()
        page.get_by_text("5 jobs scaled").wait_for()
        assert [found(each)["stages"][0]["count"] for each in jobs] == [3] * 5
        bulk(page, "Kill", "5 jobs killed")


def test_the_slider_shows_the_cluster_as_it_was(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1")
        begun = submit(site.as_owner, {"name": "early", "stages": [{"resources": {"cpu": 4}}]})
        site.report(begun, "running")
        with opened(browser, site.url, site.owner, view="time") as page:
            page.get_by_test_id("source").get_by_text("now").wait_for()
            page.get_by_text("100 % of the CPUs").wait_for()
            page.wait_for_timeout(12_000)  # the chart is of 10 s at least, and its middle has to be in the journal
            site.node("n2", cpu=12)
            page.get_by_text("25 % of the CPUs").wait_for()
            page.get_by_label("Moment").fill("0.5")
            page.get_by_test_id("source").get_by_text("from the journal").wait_for()
            page.get_by_text("100 % of the CPUs").wait_for()


def test_the_waiting_view_and_a_job_say_why(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url, cluster.owner, view="waiting") as page:
        page.get_by_role("link", name="old-driver").wait_for()
        page.get_by_text("never fits").wait_for()
        page.get_by_text("limit of queue root.ci").first.wait_for()
        page.get_by_role("link", name="old-driver").click()
        page.get_by_role("region", name="Why it waits").get_by_text("h100").first.wait_for()


def test_a_waiting_job_has_a_start_remedies_and_a_story(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=2)
        for name in ("first", "second"):
            stage = {"command": ["sleep", "600"], "resources": {"cpu": 2}, "estimate": "10min"}
            submit(site.as_owner, {"name": name, "stages": [stage]})
        with opened(browser, site.url, site.owner, view="waiting") as page:
            page.locator("td", has_text=re.compile("^startsin |^in ")).first.wait_for()
            page.get_by_role("link", name="second").click()
            page.get_by_test_id("eta").get_by_text("starts in about").wait_for()
            page.get_by_test_id("remedies").get_by_text("end 1 task").wait_for()
            page.get_by_text("job submitted").or_(page.get_by_text("submitted")).first.wait_for()


def test_a_share_is_previewed_before_it_applies(browser: Any, tmp_path: Path) -> None:
    queues = {"root": {"a": {"share": 50}, "b": {"share": 50}}}
    with serving(tmp_path, {"partitions": {"default": {"queues": queues}}}) as site:
        site.node("n1")
        stage = {"resources": {"cpu": 4}, "estimate": "10min"}
        for name in ("runs", "waits", "waits-too"):
            submit(site.as_owner, {"name": name, "queue": "root.a", "stages": [stage]})
        with opened(browser, site.url, site.owner, view="queues") as page:
            page.get_by_label("Share of root.a").fill("150")
            page.get_by_text("→ 75 %").wait_for()
            assert site.as_owner.get("/api/v1/shares").json()["shares"]["root.a"] == 50
            page.get_by_label("Share of root.a").fill("75")
            page.get_by_label("Share of root.b").fill("25")
            page.get_by_test_id("whatif").get_by_text("Of 2 waiting jobs").wait_for()
            page.get_by_role("img", name=re.compile("root.a from .*use between")).wait_for()
            if PICTURES:
                page.screenshot(path=str(Path(PICTURES) / "whatif-desktop-light.png"))
            page.get_by_role("button", name="Apply shares").click()
            page.get_by_text("The new shares apply").wait_for()
            assert site.as_owner.get("/api/v1/shares").json()["shares"] == {"root.a": 75, "root.b": 25}


def test_a_user_sees_own_jobs_and_no_buttons_of_operators(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url, cluster.token("user", "bob"), view="jobs") as page:
        page.get_by_role("link", name="tokenize").wait_for()
        assert page.get_by_role("link", name="resnet-sweep").count() == 0
        assert page.get_by_label("User", exact=True).count() == 0
        show(page, "waiting", "text=belong to other users")
        assert page.get_by_text("train-moe-large").count() == 0
        assert page.get_by_role("button", name="To front").count() == 0
        show(page, "queues", "[data-queue='root.ci']")
        assert page.get_by_label("Share of root.ci").count() == 0
        show(page, "time", "text=of yours")
        assert "resnet" not in page.content()
        show(page, "jobs/1", "text=there is no job")


def test_hostile_names_are_text(browser: Any, tmp_path: Path) -> None:
    # Names have few characters, so labels, commands and reasons carry the attacks.
    attack = "<script>window.bad=1</script><img src=x onerror=window.bad=1>\u202e\x1b[31m\x07\u0000end"
    with serving(tmp_path) as site:
        site.node("n1", cpu=1)
        document = {
            "name": "hostile",
            "labels": {"note": attack.replace("\u0000", "")[:60]},
            "stages": [
                {"name": "main", "array": 2, "resources": {"cpu": 1}, "command": ["echo", attack.replace("\u0000", "")]}
            ],
        }
        name = submit(site.as_owner, document)
        site.as_owner.post("/api/v1/nodes/n1/drain", params={"reason": "<b onmouseover=window.bad=1>x</b>"})
        site.report(name, "running")
        site.report(name, "failed", exit_code=1)
        with opened(browser, site.url, site.owner, view=f"jobs/{name}") as page:
            page.get_by_text("<script>window.bad=1</script>").first.wait_for()
            text = page.inner_text("main")
            assert "\u202e" not in text and "\x1b" not in text and "\u241b[31m" in text
            show(page, "cluster", "canvas")
            page.wait_for_function("() => Number(document.querySelector('canvas')?.dataset.cell) > 3")
            page.locator("canvas").focus()
            page.keyboard.press("ArrowRight")
            page.get_by_text("<b onmouseover=window.bad=1>x</b>").wait_for()
            assert page.evaluate("() => window.bad") is None


def test_logs_are_live_and_a_lost_connection_is_seen(browser: Any, tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        found = up.run(
            "submit", "--name", "talker", "--shell", "--", "echo first; sleep 2; echo '<i>second</i>'; sleep 600"
        )
        with opened(browser, up.url, up.token, view=f"jobs/{found.strip()}") as page:
            page.get_by_role("button", name="Show the log").click()
            log = page.get_by_test_id("log")
            log.get_by_text("first").wait_for()
            log.get_by_text("<i>second</i>").wait_for()
            port = up.url.rpartition(":")[2]
            up.interrupt()
            page.wait_for_selector("[data-testid=link].lost")
            page.get_by_text("Connection lost.").wait_for()
            up._options = ("--name", "box", "--resource", "cpu=4", "--resource", "memory=8Gi", "--port", port)
            up.start()
            page.wait_for_selector("[data-testid=link].live")
            page.wait_for_selector("[data-testid=job-state].running")
    finally:
        up.run("down", "--kill", code=None)


def test_the_page_is_small_and_its_first_view_is_quick(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url, cluster.owner) as page:
        page.reload()
        page.wait_for_function("() => Number(document.querySelector('canvas')?.dataset.cell) > 3")
        size = page.evaluate(
            "() => performance.getEntriesByType('resource').filter(e => e.name.includes('/assets/')).length"
        )
        assert size >= 2
    sent = 0
    with cluster.client() as client:
        text = client.get("/").text
        for name in re.findall(r'"(/[^"]+\.(?:js|css|svg))"', text):
            sent += int(client.get(name).headers["content-length"])
    assert 10_000 < sent < 500_000


@pytest.mark.long
def test_the_sources_have_no_type_errors(browser: Any) -> None:
    npm = shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))
    if npm is None:
        pytest.skip("npm is not installed")
    done = subprocess.run(
        [npm, "run", "--silent", "check"], cwd=AXE.parents[2], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
