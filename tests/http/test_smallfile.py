"""Small files of the data directory: parallel writes, a crash in the middle of one, damage."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.identity.secrets import Secrets
from fairlead.identity.smallfile import FileProblem, write_small
from fairlead.identity.tokens import Tokens
from tests.http.serving import Serving
from tests.live import PROGRAM, SECONDS

WRITERS, WRITES = 8, 12


def in_parallel(work: Callable[[int], None]) -> list[BaseException]:
    faults: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(WRITERS)]
    for each in threads:
        each.start()
    for thread in threads:
        thread.join()
    return faults


def test_parallel_secrets_are_all_kept(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path / "secrets", tmp_path / "key")

    def write(number: int) -> None:
        for at in range(WRITES):
            secrets.set(f"user{number}", f"s{at}", "x" * (1 + 997 * number))

    assert not in_parallel(write)
    again = Secrets(tmp_path / "secrets", tmp_path / "key")
    assert [len(again.names(f"user{number}")) for number in range(WRITERS)] == [WRITES] * WRITERS
    assert sorted(os.listdir(tmp_path)) == [".secrets.spare", "key", "secrets"]


def test_parallel_tokens_are_all_kept(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens")

    def write(number: int) -> None:
        for at in range(WRITES):
            _, token = tokens.create("user", f"user{number}", note="x" * number)
            if at % 2:
                tokens.revoke(token.id)

    assert not in_parallel(write)
    assert len(Tokens(tmp_path / "tokens").all()) == WRITERS * WRITES // 2


def test_parallel_requests_set_secrets(site: Serving) -> None:
    clients = [site.as_user(f"user{number}") for number in range(WRITERS)]

    def write(number: int) -> None:
        for at in range(WRITES):
            answer = clients[number].put(f"/api/v1/secrets/s{at}", json={"value": "x" * (1 + 997 * number)})
            assert answer.status_code == 200, answer.text

    assert not in_parallel(write)
    again = Secrets(site.folder / "secrets", site.folder / "secrets-key")
    assert [len(again.names(f"user{number}")) for number in range(WRITERS)] == [WRITES] * WRITERS


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_small(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileProblem, match="No space"):
            write_small(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_secret_that_was_not_written_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Secrets(tmp_path / "secrets", tmp_path / "key")
    secrets.set("ann", "a", "1")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FileProblem, match="No space"):
            secrets.set("ann", "b", "2")
        with pytest.raises(FileProblem, match="No space"):
            secrets.remove("ann", "a")
    assert secrets.names("ann") == Secrets(tmp_path / "secrets", tmp_path / "key").names("ann") == ["a"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"ann": {"a": 1}}', b"\xff"])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content)
    with pytest.raises(FileProblem) as found:
        Tokens(path)
    said = str(found.value)
    assert str(path) in said and "restore it from a copy" in said and "ann" not in said


def test_a_server_with_a_damaged_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"{")
    command = [PROGRAM, "server", "--data", str(tmp_path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert f"error: {tmp_path / 'tokens'}: the file is damaged; restore it from a copy" in done.stderr
    assert "Traceback" not in done.stderr
