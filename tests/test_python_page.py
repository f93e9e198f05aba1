"""The code of the pages for users of the Python client runs on a real server, and prints what is shown."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import Up
from tests.test_docs import FENCE, ROOT

PAGES = ["docs/python.md", "docs/from/ray.md", "docs/from/beam.md"]


def blocks_of(page: str) -> list[tuple[str, str | None]]:
    """Return the blocks of code that need a server, marked `py`, with the text block that follows at once."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    pairs: list[tuple[str, str | None]] = []
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] == "py":
            shown = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            pairs.append((block[2], after[2] if after is not None and shown else None))
    assert pairs, f"{page} has no code"
    return pairs


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(
        tmp_path_factory.mktemp("python") / "data", "--name", "box", "--resource", "cpu=2", "--resource", "memory=4Gi"
    )
    server.until("node", "list", said="box")
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("page", PAGES)
def test_code_runs_and_prints_what_is_shown(up: Up, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRLEAD_DATA", str(up.folder))
    names: dict[str, Any] = {"__name__": "__main__"}  # functions of the main program are pickled by value
    for code, expected in blocks_of(page):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(Path(page).name), "exec"), names)
        if expected is not None:
            assert out.getvalue() == expected, code
