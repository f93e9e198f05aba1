"""`fairlead demo` as a user starts it: quick, short, plain where there is no terminal, and it leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def demo(folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the demo with its temporary files in a folder of the test's."""
    colours = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TERM")
    inherited = {name: value for name, value in os.environ.items() if name not in colours}
    return subprocess.run(
        [sys.executable, "-c", "from fairlead.cli import main; main()", "demo"],
        env={**inherited, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8", **environment},
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = demo(tmp_path_factory.mktemp("demo"))
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_it_is_short_and_plain(text: str) -> None:
    lines = text.splitlines()
    assert 30 <= len(lines) <= 45
    assert all(len(line) <= 120 for line in lines)
    assert text.isascii() and text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "said",
    [
        "6 tasks run; root.ci uses 6 CPUs.",
        "the limit of queue root.ci is 6 CPUs: 6 in use",
        "0 workers are placed",
        "4 of 6 fit now",
        "after one cycle 6 workers are placed",
        "main[2] on g0, device 1",
        "worker[5] was running as attempt 1; now it is pending.",
        "The recovered state is equal to the byte.",
        "is running on n3 as attempt 2",
        "stale: none of these attempts is live",
        "20 succeeded",
    ],
)
def test_the_story(text: str, said: str) -> None:
    assert said in text


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    demo(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_colours_where_they_are_wanted(tmp_path: Path, text: str) -> None:
    coloured = demo(tmp_path, FORCE_COLOR="1", TERM="xterm").stdout.decode()
    assert "\x1b[" in coloured and "\x1b[" not in text


def test_a_terminal_without_unicode(tmp_path: Path, text: str) -> None:
    assert demo(tmp_path, PYTHONIOENCODING="ascii").stdout.decode() == text
