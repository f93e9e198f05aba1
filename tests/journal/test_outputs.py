"""Copies of logs on the server: found by their user only, in small folders, limited by age and size."""

from __future__ import annotations

import os
from pathlib import Path
from time import time

import msgspec
import pytest

from fairlead.history.outputs import OutputStore
from fairlead.wire.agent import MAX_OUTPUT, LogRequest

PARTITION = "default"
KEY = LogRequest(0, 250, "main", 7, 1, "out", user="ann")


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_log_is_written_in_pieces_and_read(tmp_path: Path) -> None:
    store = OutputStore(tmp_path)
    store.write(PARTITION, [(KEY, 0, b"hello "), (KEY, 6, b"world")])
    assert store.size(PARTITION, KEY) == 11
    assert (store.read(PARTITION, KEY, 6, 3), store.read(PARTITION, KEY, 11, 3)) == (b"wor", b"")
    (path,) = files(tmp_path)
    assert path.relative_to(tmp_path) == Path("default/ann/2.0/250.main.7.1.out")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("field", [("user", "bob"), ("attempt", 2), ("stream", "err")])
def test_no_other_key_finds_it(tmp_path: Path, field: tuple[str, object]) -> None:
    store = OutputStore(tmp_path)
    store.write(PARTITION, [(KEY, 0, b"hello")])
    other = msgspec.structs.replace(KEY, **dict([field]))
    assert store.size(PARTITION, other) is None and store.read(PARTITION, other, 0, 10) == b""


def test_odd_names_stay_below_the_folder(tmp_path: Path) -> None:
    store = OutputStore(tmp_path / "outputs")
    for user in ("../../x", "..", "a/../../../b"):
        store.write(PARTITION, [(msgspec.structs.replace(KEY, user=user), 0, b"hello")])
    assert len(files(tmp_path / "outputs" / "default")) == 3
    assert [path.parts[: len(tmp_path.parts) + 1] for path in files(tmp_path)] == [(tmp_path / "outputs").parts] * 3


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    store = OutputStore(tmp_path / "outputs")
    store.write(PARTITION, [(KEY, 0, b"hello")])
    (path,) = files(tmp_path)
    (tmp_path / "elsewhere").write_text("secret")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert store.read(PARTITION, KEY, 0, 10) == b""
    with pytest.raises(OSError):
        store.write(PARTITION, [(KEY, 0, b"hello")])


def test_an_offset_of_a_node_cannot_make_a_huge_file(tmp_path: Path) -> None:
    store = OutputStore(tmp_path)
    store.write(PARTITION, [(KEY, MAX_OUTPUT, b"x"), (KEY, 2**53, b"x")])
    assert files(tmp_path) == []


def test_the_oldest_are_removed_by_age_and_by_size(tmp_path: Path) -> None:
    store = OutputStore(tmp_path)
    keys = [msgspec.structs.replace(KEY, index=index) for index in range(5)]
    for key in keys:
        store.write(PARTITION, [(key, 0, b"x" * 300)])
    for ago, path in zip((7200, 300, 200, 100, 0), files(tmp_path), strict=False):
        os.utime(path, (0, time() - ago))
    store = OutputStore(tmp_path, size=1_000, age=3600.0)
    assert [store.size(PARTITION, key) for key in keys] == [None, None, 300, 300, 300]
    store = OutputStore(tmp_path, size=1_000, age=-1.0)
    assert files(tmp_path) == []
    OutputStore(tmp_path)
    assert list((tmp_path / "default/ann").iterdir()) == []
