"""The first steps of a new user: the commands of README.md on the real program, with their output.

python tests/test_stranger.py     writes their output into README.md
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.live import Up  # noqa: E402

README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- stranger: [^\n]* -->\n\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)

# A command, or a command with a text to wait for.
PATH: tuple[str | tuple[str, str], ...] = (
    ("fairlead node list", "box"),
    "fairlead run -- echo hello",
    "fairlead submit --name sweep --array 100 --cpu 500m -- sleep 600",
    ("fairlead ps", "4 running"),
    "fairlead submit --name train --gang 2 -- sleep 600",
    "fairlead explain 3",
    "fairlead kill 2",
    ("fairlead ps", "2 running"),
    "fairlead down --kill",
)


def walk(folder: Path) -> str:
    """Run the commands, and return what a terminal would show."""
    up = Up(folder, "--name", "box", "--resource", "cpu=2", "--resource", "memory=4Gi")
    shown = ""
    try:
        for step in PATH:
            command, said = step if isinstance(step, tuple) else (step, None)
            arguments = shlex.split(command)[1:]
            printed = up.until(*arguments, said=said) if said else up.run(*arguments, code=None)
            shown += f"$ {command}\n{printed}"
        assert up.process.wait(60) == 0
    finally:
        up.close()
    return shown


def plain(text: str) -> str:
    """Return the text without what differs between runs: times, and column widths that depend on them."""
    text = re.sub(r"\b\d+(\.\d+)?(s|min|h|d)\b", "TIME", text)
    return re.sub(r" +", " ", text)


def test_the_path_is_as_the_readme_shows_it(tmp_path: Path) -> None:
    found = BLOCK.search(README.read_text(encoding="utf-8"))
    assert found, "README.md has no block for the stranger's path"
    assert plain(walk(tmp_path / "data")) == plain(found[2])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        shown = walk(Path(folder) / "data")
    text = README.read_text(encoding="utf-8")
    README.write_text(BLOCK.sub(lambda found: found[1] + shown + found[3], text), encoding="utf-8")
