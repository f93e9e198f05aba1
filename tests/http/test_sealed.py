"""Secrets on the disk: encrypted with a key outside the data directory, which can be rotated and must not be lost."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from fairlead.identity.sealed import SealedFile, key_path
from fairlead.identity.secrets import Secrets
from fairlead.identity.smallfile import FileProblem
from tests.live import PROGRAM, SECONDS

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLEAD_", "CREDENTIALS_"))}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    return folder


@pytest.fixture
def key(data: Path) -> Path:
    """The key file of a data directory that holds a secret."""
    key = key_path(data, None)
    Secrets(data / "secrets", key).set("ann", "db", "hidden-value")
    return key


def held(data: Path, key: Path) -> dict[str, str]:
    return Secrets(data / "secrets", key).values("ann", ("db",))


def test_the_file_is_encrypted_and_its_key_is_elsewhere(data: Path, key: Path) -> None:
    assert key.parent == data.parent and stat.S_IMODE(key.stat().st_mode) == 0o600
    sealed = (data / "secrets").read_bytes()
    assert not any(word in sealed for word in (b"hidden-value", b"ann", b'db"'))
    assert held(data, key) == {"db": "hidden-value"}


def test_the_key_is_found_as_given_or_as_a_credential(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = data.parent / "key"
    assert key_path(data, given) == given
    with pytest.raises(FileProblem, match="inside the data directory"):
        key_path(data, data / "below" / "key")
    folder = data.parent / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    assert key_path(data, None) == data.parent / "data.secrets-key"
    (folder / "secrets-key").write_bytes(Fernet.generate_key())
    (folder / "secrets-key").chmod(0o440)  # as the access list of a credential makes it look
    assert key_path(data, None) == folder / "secrets-key"
    Secrets(data / "secrets", key_path(data, None))


@pytest.mark.parametrize("trouble", ["missing", "another", "damaged", "empty", "readable", "file damaged"])
def test_a_wrong_key_is_named_with_the_remedy_and_nothing_changes(data: Path, key: Path, trouble: str) -> None:
    right, sealed = key.read_bytes(), (data / "secrets").read_bytes()
    wrong = {"another": Fernet.generate_key(), "damaged": right[:-9], "empty": b""}
    if trouble == "missing":
        key.unlink()
    elif trouble == "readable":
        key.chmod(0o644)
    elif trouble == "file damaged":
        (data / "secrets").write_bytes(sealed[:-1])
    else:
        key.write_bytes(wrong[trouble])
    before = {each: each.read_bytes() for each in (key, data / "secrets") if each.exists()}
    with pytest.raises(FileProblem) as refused:
        held(data, key)
    said = {
        "missing": f"{key}: the key of {data / 'secrets'} is missing; put the key file back",
        "another": f"{data / 'secrets'}: the key in {key} does not open the file",
        "damaged": f"{key}: this is not a key file; put the right one back",
        "empty": f"{key}: this is not a key file; put the right one back",
        "readable": f"{key}: other users can read the key; run `chmod 600 {key}`",
        "file damaged": "or restore the file from a copy",
    }
    assert said[trouble] in str(refused.value)
    assert {each: each.read_bytes() for each in (key, data / "secrets") if each.exists()} == before
    key.write_bytes(right)
    key.chmod(0o600)
    (data / "secrets").write_bytes(sealed)
    assert held(data, key) == {"db": "hidden-value"}


def test_a_server_without_the_key_does_not_start(data: Path, key: Path) -> None:
    right = key.read_bytes()
    key.unlink()
    command = [PROGRAM, "server", "--data", str(data), "--port", "0"]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"error: {key}: the key of {data / 'secrets'} is missing" in done.stderr
    assert not key.exists()
    key.write_bytes(right)
    key.chmod(0o600)
    assert held(data, key) == {"db": "hidden-value"}


def test_the_key_is_rotated_by_one_command(data: Path, key: Path) -> None:
    old, seed = key.read_bytes(), Secrets(data / "secrets", key).gang_seed
    command = [PROGRAM, "secret", "rotate-key", "--data", str(data)]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout) == (0, f"{key} has a new key\n"), done.stderr
    assert held(data, key) == {"db": "hidden-value"} and Secrets(data / "secrets", key).gang_seed == seed
    assert old.strip() not in key.read_bytes()
    key.write_bytes(old)
    with pytest.raises(FileProblem, match="does not open"):
        held(data, key)


def test_a_rotation_that_is_cut_short_loses_nothing(data: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at each write of it."""
    replace = Path.replace
    for last in range(3):
        done = 0

        def cut(self: Path, target: Path, last: int = last) -> Path:
            nonlocal done
            if done == last:
                raise OSError(5, "Input/output error")
            done += 1
            return replace(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", cut)
            with pytest.raises(FileProblem):
                SealedFile(data / "secrets", key).rotate()
        assert held(data, key) == {"db": "hidden-value"}
    SealedFile(data / "secrets", key).rotate()
    assert held(data, key) == {"db": "hidden-value"} and len(key.read_bytes().split()) == 1


def test_the_key_is_not_rotated_under_a_server(data: Path, key: Path) -> None:
    import fcntl

    with open(data / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [PROGRAM, "secret", "rotate-key", "--data", str(data)]
        done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1 and "a server runs on" in done.stderr
