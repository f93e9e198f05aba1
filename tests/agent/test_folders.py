"""Folders that tasks can fill with anything: their logs and their /tmp."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.agent import process
from fairlead.agent.spawner.root import _clear
from fairlead.agent.task_logs import KEEP, remove_old

DEEP = 1_200


def nest(folder: Path, many: int) -> None:
    """Make folders in folders, deeper than the path of a file may be long, with a file in each."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(many):
        os.close(os.open("file", os.O_CREAT, dir_fd=at))
        os.mkdir("in", dir_fd=at)
        inner = os.open("in", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_old_logs_are_removed_also_beside_folders_that_are_deep(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("0", "1", "2"):
        (folder / name).mkdir()
    old = [elsewhere / "file", folder / "0/old", folder / "1/old", folder / "top"]
    for path in (*old, folder / "0/new"):
        path.touch()
    (folder / "link").symlink_to(elsewhere)
    nest(folder / "1", DEEP)
    for path in (*old, folder / "2", folder / "link"):
        os.utime(path, (0, time() - KEEP - 10), follow_symlinks=False)
    try:
        remove_old(str(folder))
        assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
        assert [path.name for path in (folder / "0").iterdir()] == ["new"]
        assert not (folder / "1/old").exists()
        assert (elsewhere / "file").exists()
    finally:
        _clear(str(folder))


def test_a_tmp_with_deep_folders_and_links_is_cleared(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (folder / "some").mkdir()
    (folder / "some/link").symlink_to(elsewhere)
    (folder / "link").symlink_to(elsewhere)
    nest(folder / "some", DEEP)
    _clear(str(folder))
    assert list(folder.iterdir()) == []
    assert (elsewhere / "file").exists()


def test_logs_that_cannot_be_removed_end_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    said: list[dict[str, Any]] = []

    def remove(logs: str) -> None:
        looked_at.append(logs)
        if logs == "ann":
            raise RecursionError("too deep")

    monkeypatch.setattr(process, "remove_old", remove)
    users = ["ann", "bob"]
    agent: Any = SimpleNamespace(
        users_with_logs=lambda: users, logs_of=str, _log=lambda what, about: said.append(about)
    )

    async def story() -> None:
        sweeping = asyncio.create_task(process.Agent._sweep(agent))
        while len(looked_at) < 2:
            await asyncio.sleep(0.01)
            assert not sweeping.done()
        sweeping.cancel()

    asyncio.run(story())
    assert said == [{"folder": "ann", "problem": "too deep"}]
