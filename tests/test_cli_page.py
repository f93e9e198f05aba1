"""The commands of docs/cli.md on the real program, with their output.

python tests/test_cli_page.py     writes their output into docs/cli.md
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.live import PROGRAM, SECONDS, Up  # noqa: E402
from tests.test_stranger import plain  # noqa: E402

PAGE = ROOT / "docs" / "cli.md"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", re.MULTILINE)
LOOKS = re.compile(r"fairlead (ps|show|logs|explain|node list|queue list|history)\b")
"""Commands that change nothing. They are repeated until they show what is expected."""


def ask(up: Up, command: str) -> str:
    """Run a line in a shell, and return what a terminal would show."""
    done = subprocess.run(
        ["sh", "-c", command],
        env={**up.environment, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"},
        cwd=up.folder.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def walk(page: str, folder: Path, answer: Callable[[Up, str, str], str]) -> str:
    """Return the page with the output of its commands, as `answer` returns it for a command and what is shown now."""
    up = Up(folder, "--name", "box", "--resource", "cpu=2", "--resource", "memory=4Gi")

    def block(found: re.Match[str]) -> str:
        kind, content = found[1], found[2]
        if " " in kind:
            (folder.parent / kind.split()[1]).write_text(content, encoding="utf-8")
        elif kind == "text":
            content = COMMAND.sub(lambda line: f"$ {line[1]}\n{answer(up, line[1], line[2])}", content)
        return f"```{kind}\n{content}```"

    try:
        up.until("node", "list", said="box")
        return FENCE.sub(block, page)
    finally:
        up.close()


def steady(text: str) -> str:
    """Return the text without what differs between runs and machines."""
    text = re.sub(r"\d\d:\d\d:\d\d", "CLOCK", text)
    text = re.sub(r"image\.\w+=\w+ ", "", text)
    return plain(re.sub(r"(cgroup|tmp|users)=\w+", "LABEL", text))


def expected(up: Up, command: str, shown: str) -> str:
    """Return what is shown if the program says the same, except for times; else what it says."""
    deadline = time.monotonic() + SECONDS / 3
    while True:
        said = ask(up, command)
        if steady(said) == steady(shown):
            return shown
        if not LOOKS.match(command) or time.monotonic() > deadline:
            return said
        time.sleep(0.1)


def written(up: Up, command: str, shown: str) -> str:
    print(command, file=sys.stderr)
    if LOOKS.match(command):
        time.sleep(2.0)  # until what was submitted runs
    return ask(up, command)


def test_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert walk(page, tmp_path / "data", expected) == page


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        text = walk(PAGE.read_text(encoding="utf-8"), Path(temporary) / "data", written)
    PAGE.write_text(text, encoding="utf-8")
