"""The files of the web page: served without a token, compressed, with a strict policy."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from fairlead.http import page
from tests.http.serving import Serving, serving


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of two files, in the place of the real one."""
    folder = tmp_path / "package"
    (folder / "page" / "assets").mkdir(parents=True)
    (folder / "page" / "index.html").write_text("<!doctype html><title>Fairlead</title>")
    (folder / "page" / "assets" / "main-1234.js").write_text("1;\n" * 1_000)
    monkeypatch.setattr(page, "files", lambda package: folder)
    return folder / "page"


def test_files_are_served_to_everybody_with_a_strict_policy(built: Path, tmp_path: Path) -> None:
    with serving(tmp_path) as site, site.client() as browser:
        first = browser.get("/")
        assert first.status_code == 200 and "Fairlead" in first.text
        assert first.headers["cache-control"] == "no-cache"
        policy = first.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "://" not in policy
        assert browser.get("/", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
        script = browser.get("/assets/main-1234.js")
        assert script.headers["content-encoding"] == "gzip" and "immutable" in script.headers["cache-control"]
        assert script.headers["x-content-type-options"] == "nosniff"
        assert int(script.headers["content-length"]) < 200 and script.text == "1;\n" * 1_000
        assert browser.head("/").content == b""


@pytest.mark.parametrize("path", ["/assets/", "/assets/../index.html", "/index.py", "/assets/%2e%2e/secret"])
def test_nothing_else_is_served(built: Path, tmp_path: Path, path: str) -> None:
    (built.parent / "secret").write_text("secret")
    with serving(tmp_path) as site, site.client() as browser:
        assert browser.get(path).status_code == 401
        assert browser.post("/").status_code == 401


def test_a_page_that_is_not_built_says_how_to_build_it(built: Path, tmp_path: Path) -> None:
    (built / "index.html").rename(built / "later.html")
    with serving(tmp_path) as site, site.client() as browser:
        assert "make page" in browser.get("/").text
        (built / "later.html").rename(built / "index.html")
        assert "make page" not in browser.get("/").text


def test_a_page_that_is_being_built_appears_without_a_restart(built: Path, tmp_path: Path) -> None:
    (built / "index.html").rename(built / "later.html")
    with serving(tmp_path) as site, site.client() as browser:
        with built.with_name("page.log").open("w") as log:
            fcntl.flock(log, fcntl.LOCK_EX)  # as the process that builds it
            first = browser.get("/")
            assert "is being built" in first.text and 'http-equiv="refresh"' in first.text
            assert first.headers["cache-control"] == "no-cache"
        assert "failed" in browser.get("/").text and "make page" in browser.get("/").text
        (built / "later.html").rename(built / "index.html")
        assert browser.get("/").text == "<!doctype html><title>Fairlead</title>"
        (built / "index.html").write_text("<!doctype html><title>Fairlead, built again</title>")
        os.utime(built / "index.html", (1, 1))
        assert "built again" in browser.get("/").text


def test_the_map_has_all_nodes_and_queues(site: Serving) -> None:
    site.node("n1", labels={"rack": "r1"})
    site.node("n2", labels={"rack": "r2"})
    with site.as_user("ann") as ann:
        found = ann.get("/api/v1/map").json()
    assert found["names"] == ["n1", "n2"] and found["cpus"] == [4.0, 4.0]
    assert found["rows"] == [[0, 0, 0, 0, 0, ""], [0, 0, 0, 0, 0, ""]]
    assert found["labels"] == {"rack": {"values": ["r1", "r2"], "of": [0, 1]}}
    assert "root" in [queue["path"] for queue in found["queues"]]
