"""The web page in a real browser, against a real server with a virtual fleet of 2,000 nodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Serving, serving, submit
from tests.live import Up
from tests.web.browser import AXE, DESKTOP, PHONE, opened, show
from tests.web.fleet import job

VIEWS = {
    "cluster": "[data-testid=verdict]",
    "queues": "[data-queue='root.ci'] figure",
    "waiting": "text=root.research.language",
    "jobs": "text=resnet-sweep",
    "jobs/1": "[data-testid=job-state]",
    "time": "text=Running then",
}


def test_a_token_opens_a_session_that_lasts_and_ends(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url) as page:
        page.get_by_label("Token").fill("fl_wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").get_by_text("Copy the whole token once more").wait_for()
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
        page.get_by_test_id("node").get_by_role("heading", name=re.compile(r"^\d+ tasks?$")).wait_for()
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
        row = page.locator("tr", has_text="old-driver")
        sentence = cluster.as_owner.get("/api/v1/jobs", params={"search": "old-driver"}).json()["jobs"][0]["id"]
        said = (
            cluster.as_owner.get(f"/api/v1/jobs/{sentence}/explain").json()["sentence"].partition(sentence)[2].strip()
        )
        row.get_by_text(said[0].upper() + said[1:]).wait_for()
        page.get_by_role("region", name="Waiting in root.ci").get_by_text("root.ci").nth(1).wait_for()
        assert page.get_by_text("may be hidden").count() == 0
        page.get_by_role("link", name="old-driver").click()
        page.get_by_role("region", name="Why it waits").get_by_text("h100").first.wait_for()


def test_a_waiting_job_has_a_start_remedies_and_a_story(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=2)
        for name in ("first", "second"):
            stage = {"command": ["sleep", "600"], "resources": {"cpu": 2}, "estimate": "10min"}
            submit(site.as_owner, {"name": name, "stages": [stage]})
        with opened(browser, site.url, site.owner, view="waiting") as page:
            sure = re.compile(r"in \d+ min.*90 %: .+ to .+", re.S)
            page.locator("tr", has_text="second").locator(".starts", has_text=sure).wait_for()
            show(page, "jobs", ".current")
            page.locator("tr", has_text="second").locator(".starts", has_text=sure).wait_for()
            page.get_by_role("link", name="second").click()
            page.get_by_test_id("starts").get_by_text(sure).wait_for()
            page.get_by_test_id("eta").get_by_text("starts in about").wait_for()
            page.get_by_test_id("remedies").get_by_text(re.compile("1 task of job .* ends")).wait_for()
            page.get_by_text("job submitted").or_(page.get_by_text("submitted")).first.wait_for()
            page.get_by_role("button", name="Why so long?").click()
            page.get_by_role("region", name="Bill").get_by_text(
                "for nodes busy with jobs of queue root.default"
            ).wait_for()
            page.get_by_label("Number of nodes").fill("1")
            page.get_by_label("Node or pool").fill("n1")
            page.get_by_role("form", name="What if").get_by_role("button", name="Ask").click()
            page.get_by_test_id("what-if").get_by_text(re.compile("A start now instead of a start in")).wait_for()
            first, _ = site.as_owner.get("/api/v1/jobs").json()["jobs"][::-1]
            site.as_owner.post(f"/api/v1/jobs/{first['id']}/kill")
            site.report(first["id"], "stopped")
            show(page, "waiting", ".card")
            page.get_by_role("region", name="Promised starts").get_by_text("kept 0 % of 1 promises").wait_for()
            page.get_by_role("region", name="Waits").get_by_role("button", name="Show").click()
            page.get_by_role("region", name="Waits").get_by_text("for nodes busy").wait_for()


def test_small_clusters_are_shown_with_names_and_tasks(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site, site.as_user("ann") as ann:
        for name in ("alpha", "beta", "gamma"):
            site.node(name, cpu=8)
        stage = {"name": "fit", "array": 3, "resources": {"cpu": 2, "memory": "1Gi"}, "time_limit": "1h"}
        begun = submit(ann, {"name": "sweep", "stages": [{**stage, "selectors": {}}]})
        site.report(begun, "running", stage="fit")
        [block, *_] = site.as_owner.get("/api/v1/map/tasks", params={"node": ["alpha", "beta", "gamma"]}).json()[
            "tasks"
        ]
        busy = block["node"]
        for size in (DESKTOP, PHONE):
            with opened(browser, site.url, site.owner, size) as page:
                cell = page.locator(f"[data-node={busy}]")
                for text in (busy, "sweep", "ann", f"{2 * block['tasks']} of 8", "of 8 GiB"):
                    cell.get_by_text(text).first.wait_for()
                for name in ("alpha", "beta", "gamma"):
                    page.locator("[data-node]").get_by_text(name, exact=True).wait_for()
                assert page.get_by_text("no tasks").first.is_visible() or block["tasks"] < 3
                page.locator("canvas").click(position=centre(page, busy))
                panel = page.get_by_test_id("tasks")
                panel.get_by_role("link", name="sweep").wait_for()
                panel.get_by_text(re.compile(r"fit\[0")).wait_for()
                panel.get_by_text(re.compile(r"ann, for \d+ s, ends in about (59 min|1 h)")).wait_for()
        with opened(browser, site.url, site.token("user", "bob")) as page:
            page.locator(f"[data-node={busy}]").get_by_text("other users").wait_for()
            assert "sweep" not in page.content() and ">ann<" not in page.content()


def centre(page: Any, node: str) -> dict[str, float]:
    """Return where the cell of a node is on the canvas."""
    box, canvas = page.locator(f"[data-node={node}]").bounding_box(), page.locator("canvas").bounding_box()
    return {"x": box["x"] - canvas["x"] + box["width"] / 2, "y": box["y"] - canvas["y"] + box["height"] / 2}


def test_cells_of_a_large_cluster_have_no_text_until_they_are_large(browser: Any, cluster: Serving) -> None:
    with opened(browser, cluster.url, cluster.owner) as page:
        page.wait_for_function("() => Number(document.querySelector('canvas')?.dataset.cell) > 3")
        assert page.locator("[data-node]").count() == 0
        for _ in range(8):
            page.get_by_role("button", name="Zoom in").click()
        page.locator("[data-node]").first.wait_for()
        assert page.locator("[data-node]").count() < 100
        page.locator("[data-node] .job").first.wait_for()


def test_current_jobs_are_those_that_are_not_over(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=2)
        done, _ = (
            submit(site.as_owner, {"name": name, "stages": [{"resources": {"cpu": 1}}]}) for name in ("a1", "b2")
        )
        site.report(done, "running")
        site.report(done, "succeeded", exit_code=0)
        with opened(browser, site.url, site.owner, view="jobs") as page:
            row = page.locator("tbody tr", has_text="b2")
            row.wait_for()
            assert page.get_by_role("link", name="a1").count() == 0
            age = row.locator(".age")
            before = int(re.sub(r"\D", "", age.inner_text()))
            page.wait_for_function(
                "least => Number(document.querySelector('.age:not(th)').innerText.replace(/\\D/g, '')) >= least",
                arg=before + 2,
            )
            page.get_by_role("button", name="Finished").click()
            page.get_by_role("link", name="a1").wait_for()
            assert page.get_by_role("link", name="b2").count() == 0


def test_jobs_on_a_phone_say_why_they_wait(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=2)
        job = submit(site.as_owner, {"name": "large", "stages": [{"resources": {"cpu": 4}}]})
        said = site.as_owner.get(f"/api/v1/jobs/{job}/explain").json()["sentence"].removeprefix(f"job {job} ")
        with opened(browser, site.url, site.owner, PHONE, view="jobs") as page:
            why = page.locator("tr", has_text="large").locator(".why").get_by_text(said[0].upper() + said[1:])
            why.wait_for()
            assert why.is_visible()


def test_a_login_that_fails_says_what_to_do(browser: Any, tmp_path: Path) -> None:
    site = Serving(tmp_path)
    with opened(browser, site.url) as page:

        def enter(token: str) -> Any:
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            return page.get_by_role("alert")

        enter("fl_wrong").get_by_text("expired or was revoked").wait_for()
        page.get_by_text("~/.local/share/fairlead/token").wait_for()
        enter(site.token("join", "")).get_by_text("not for people").wait_for()
        site.close()
        enter("fl_any").get_by_text("does not answer").wait_for()


def test_loans_say_when_they_return(browser: Any, tmp_path: Path) -> None:
    queues = {"root": {"a": {"share": 50}, "b": {"share": 50}}}
    with serving(tmp_path, {"partitions": {"default": {"queues": queues}}}) as site:
        site.node("n1", cpu=4)
        stage = {"array": 4, "resources": {"cpu": 1}, "time_limit": "2h"}
        submit(site.as_owner, {"queue": "root.a", "stages": [stage]})
        with opened(browser, site.url, site.owner, view="queues") as page:
            lent = page.locator("[data-queue='root.a']").get_by_test_id("returns")
            lent.get_by_text(re.compile(r"The loan returns: all of it in 1 h 5\d min")).wait_for()
            page.locator("[data-queue='root.b']").get_by_text("50 % not used and free to lend").wait_for()


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


def test_a_job_that_has_ended_shows_its_attempts_results_and_last_words(browser: Any, tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        script = "echo try $FAIRLEAD_ATTEMPT; echo 'why <b>it</b> failed' >&2; echo 1,2 > out.csv; exit 3"
        given = ("--name", "sad", "--tries", "2", "--result", "out.csv", "--directory", str(tmp_path))
        name = up.run("submit", *given, "--shell", "--", script).strip()
        up.run("wait", name, code=1)
        with opened(browser, up.url, up.token, view=f"jobs/{name}") as page:
            page.get_by_test_id("last-words").get_by_text("why <b>it</b> failed").wait_for()
            row = page.get_by_role("group", name="List of tasks").get_by_role("row").nth(1)
            row.get_by_text("box").wait_for()
            assert re.search(r"\d+ ?(ms|s)\b", row.inner_text()), row.inner_text()
            page.get_by_role("button", name="Show the log").click()
            log = page.get_by_test_id("log")
            log.get_by_text("try 2").wait_for()
            page.get_by_label("Attempt").select_option("1")
            log.get_by_text("try 1").wait_for()
            with page.expect_download() as download:
                page.get_by_role("button", name="out.csv").first.click()
            assert Path(download.value.path()).read_text() == "1,2\n"
            page.get_by_role("button", name="Run again").click()
            page.wait_for_function("name => !location.hash.endsWith('/' + name)", arg=name)
            page.get_by_test_id("job-name").get_by_text("sad").wait_for()
    finally:
        up.close()


def test_a_job_is_submitted_with_the_form(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=4)
        with opened(browser, site.url, site.owner, view="jobs") as page:
            page.get_by_role("button", name="New job").click()
            form = page.get_by_role("form", name="New job")
            form.get_by_label("CPUs of each").fill("5")
            form.get_by_test_id("foretold").get_by_text("can never run").wait_for()
            form.get_by_label("CPUs of each").fill("2")
            form.get_by_test_id("foretold").get_by_text("it would start now on n1").wait_for()
            form.get_by_label("Command").fill("echo hello > out.txt")
            form.get_by_label("Memory").fill("lots")
            form.get_by_role("button", name="Submit").click()
            form.get_by_role("alert").get_by_text("memory").wait_for()
            form.get_by_label("Memory").fill("1Gi")
            form.get_by_label("Name").fill("typed")
            form.get_by_label("Tasks").fill("0-3%2")
            form.get_by_role("button", name="Submit").click()
            page.get_by_test_id("job-name").get_by_text("typed").wait_for()
        (job,) = site.as_owner.get("/api/v1/jobs").json()["jobs"]
        (stage,) = job["stages"]
        assert stage["command"] == ["/bin/sh", "-c", "echo hello > out.txt"]
        assert (stage["count"], stage["throttle"], stage["resources"]["memory"]) == (4, 2, 1 << 30)


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


def test_a_queue_whose_only_job_can_never_run_is_not_below_its_share(browser: Any, tmp_path: Path) -> None:
    queues = {"root": {"a": {"share": 50}, "b": {"share": 50}}}
    with serving(tmp_path, {"partitions": {"default": {"queues": queues}}}) as site:
        site.node("n1", cpu=2)
        stage = {"command": ["true"], "resources": {"cpu": 1}}
        for _ in range(2):
            submit(site.as_owner, {"name": "lent", "queue": "root.a", "stages": [stage]})
        never = submit(site.as_owner, {"queue": "root.b", "stages": [{**stage, "selectors": {"kind": "none"}}]})
        with opened(browser, site.url, site.owner) as page:
            page.get_by_test_id("fair").get_by_text("Fair", exact=True).wait_for()
            show(page, "jobs", "text=never, as it is")
            page.evaluate("() => { location.hash = '#/' }")
            submit(site.as_owner, {"queue": "root.b", "stages": [stage]})
            page.get_by_test_id("fair").get_by_text("1 below share").wait_for()
        site.as_owner.delete(f"/api/v1/jobs/{never}")


def test_a_gang_that_later_jobs_pass_is_not_called_fair(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as site:
        site.node("n1", cpu=2)
        one = {"name": "main", "command": ["true"], "resources": {"cpu": 1}}
        submit(site.as_owner, {"name": "runs", "stages": [one]})
        submit(site.as_owner, {"name": "gang", "stages": [{**one, "count": 2, "min": 2}]})
        with opened(browser, site.url, site.owner) as page:
            page.get_by_test_id("fair").get_by_text("Fair", exact=True).wait_for()
            submit(site.as_owner, {"name": "later", "stages": [{**one, "resources": {"cpu": 0.5}}]})
            page.get_by_test_id("fair").get_by_text("Passed over").wait_for()
            page.get_by_test_id("fair").get_by_role("link", name="gang").wait_for()
