"""The data directory: private from the start, made private if it was not, refused if it is another user's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fairlead.identity.datafolder import prepare
from fairlead.identity.smallfile import FileProblem, write_small
from tests.http.test_full_disk import Server


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_that_was_readable_is_made_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert prepare(data) == "" and mode(data) == 0o700
    assert prepare(data) == ""
    for before in (0o755, 0o750, 0o701, 0o777):
        data.chmod(before)
        said = prepare(data)
        assert f"mode {before:o}" in said and "revoke the tokens" in said
        assert mode(data) == 0o700


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    write_small(tmp_path / "secrets", b"kept")
    (tmp_path / f".secrets.{'0123456789abcdef'}").write_bytes(b"half of the secr")
    (tmp_path / ".hidden").touch()
    prepare(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "secrets"]


def test_the_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a directory to another user")
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(FileProblem, match=r"belongs to user 12345, and the server runs as 0; start the server as"):
        prepare(tmp_path)


def test_a_server_makes_its_directory_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    server = Server(data)
    try:
        assert mode(data) == 0o700
    finally:
        server.close()
