"""The set-up of a clone: locks that agree, steps that say what they do, and a web page that cannot be built."""

from __future__ import annotations

import fcntl
import re
import sys
import threading
from importlib.metadata import requires
from pathlib import Path

import pytest

import bootstrap
import hatch_build
from tests.until import until

LOCKS = sorted(bootstrap.ROOT.glob("requirements*.lock"))


def entries(lock: Path) -> dict[str, str]:
    """Return the pins of a lock with their hashes, without the comments and the versions of Python they are for."""
    text = re.sub(
        r"^ +#.*\n| ; python_full_version [^\\]*(?= \\)", "", lock.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    found = [entry for entry in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if entry]
    return {re.split(r"[=; ]", entry)[0]: entry for entry in found}


def test_no_lock_names_an_address() -> None:
    assert len(LOCKS) == 3 and not [lock.name for lock in LOCKS if "://" in lock.read_text(encoding="utf-8")]


def test_the_lock_of_the_tools_has_all_that_running_needs() -> None:
    runtime, everything = entries(bootstrap.RUNTIME), entries(bootstrap.ALL)
    assert runtime == {name: everything[name] for name in runtime}
    assert "fairlead" not in runtime and "pytest" not in runtime and "uv" in everything


def test_hatchling_comes_with_all_that_it_needs() -> None:
    needed = {re.split(r"[ ;<>=!~\[]", line)[0] for line in requires("hatchling") or () if "tomli>" not in line}
    assert set(bootstrap.BUILD) == needed | {"hatchling"}


def test_a_step_prints_one_line_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with bootstrap._step("things done"):
        pass
    assert re.fullmatch(r"things done, 0\.\d s\n", capsys.readouterr().out)


def test_a_long_step_shows_its_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "QUIET", 0.01)
    with bootstrap._step("things done") as show:
        show("Downloading a thing")
        until(lambda: "not yet things done: Downloading a thing" in capsys.readouterr().out)


def test_a_step_that_fails_says_why() -> None:
    with pytest.raises(bootstrap.Failed, match="no such thing"):
        bootstrap._execute([sys.executable, "-c", "raise SystemExit('no such thing')"], lambda line: None)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources of a page that is not built, in another folder."""
    page = tmp_path / "src" / "page"
    (tmp_path / "src").mkdir()
    (tmp_path / "web").mkdir()
    monkeypatch.setattr(hatch_build, "SOURCES", tmp_path / "web")
    monkeypatch.setattr(hatch_build, "PAGE", page)
    monkeypatch.setattr(hatch_build, "BUILT", page / "index.html")
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "src" / "page.log")
    monkeypatch.setattr(hatch_build, "find_npm", lambda *folders: str(tmp_path / "npm"))
    return tmp_path


def npm(clone: Path, script: str) -> None:
    (clone / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (clone / "npm").chmod(0o755)


def test_a_page_that_cannot_be_built_says_so_with_the_remedy(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npm(clone, "echo no registry; exit 1")
    assert bootstrap.main(["page"]) == 1
    said = capsys.readouterr().err
    assert "npm ci failed" in said and "no registry" in said and "`make page` tries again" in said
    assert (clone / "src" / "page.log").read_text() == "no registry\n"


def test_a_page_appears_when_it_is_complete(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    npm(clone, 'test "$1" = ci || { mkdir -p "$5"; echo page > "$5/index.html"; }')
    assert bootstrap.main(["page"]) == 0
    assert capsys.readouterr().out.startswith("web page built, ")
    assert hatch_build.is_built() and {path.name for path in (clone / "src").iterdir()} == {"page", "page.log"}
    npm(clone, "exit 1")
    assert bootstrap.main(["page"]) == 0 and capsys.readouterr().out == ""  # it is newer than its sources


def test_a_page_that_is_being_built_is_not_begun_twice(clone: Path) -> None:
    npm(clone, "exit 1")
    with (clone / "src" / "page.log").open("w") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        bootstrap.page(shown=False)
        waiting = threading.Thread(target=bootstrap.page)
        waiting.start()
        (clone / "src" / "page").mkdir()
        (clone / "src" / "page" / "index.html").touch()
        assert waiting.is_alive()
    waiting.join()


@pytest.mark.parametrize(("version", "found"), [("v20.19.0", True), ("v18.20.4", False), ("", False)])
def test_an_old_node_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, found: bool) -> None:
    npm(tmp_path, "exit 0")
    (tmp_path / "node").write_text(f"#!/bin/sh\necho {version}\n")
    (tmp_path / "node").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none" / "python"))
    assert (hatch_build.find_npm() is not None) == found
