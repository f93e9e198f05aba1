"""An encrypted document in the data directory or a database. The key file is elsewhere.

The key file has one key per line. The first key encrypts. During a rotation there are others, which only decrypt.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from fairlead.identity.smallfile import Document, FileProblem, document_at, write_small

CREDENTIALS = "CREDENTIALS_DIRECTORY"
"""The variable that systemd sets to the folder of a unit's credentials."""
CREDENTIAL = "secrets-key"


def key_path(directory: Path, given: Path | None) -> Path:
    """Return the path of the key file: the given one, else a credential of systemd, else beside the data directory."""
    if given is not None:
        if given.resolve().is_relative_to(directory.resolve()):
            raise FileProblem(
                f"{given}: the key is inside the data directory, where a copy of the data holds it too; "
                "choose a place outside"
            )
        return given
    if CREDENTIALS in os.environ:
        credential = Path(os.environ[CREDENTIALS]) / CREDENTIAL
        if credential.exists():
            return credential
    return directory.with_name(f"{directory.name}.{CREDENTIAL}")


class SealedFile:
    """An encrypted document. A missing key file is created for a new document, and is an error for an existing one."""

    def __init__(self, place: Path | Document, key: Path) -> None:
        self._document = document_at(place)
        self.name = self._document.name
        self._key = key
        self._keys = self._read_keys()
        if not self._keys:
            if self._document.read() is not None:
                raise FileProblem(
                    f"{key}: the key of {self.name} is missing; put the key file back, or name its place with "
                    "--secrets-key. All servers of a database have the same key file"
                )
            self._keys = [Fernet.generate_key()]
            self._write_keys()

    def read(self) -> bytes | None:
        """Return the content, or None if the document does not exist."""
        sealed = self._document.read()
        if sealed is None:
            return None
        try:
            return self._box().decrypt(sealed)
        except InvalidToken:
            raise FileProblem(
                f"{self.name}: the key in {self._key} does not open the file, or the file is damaged; "
                "put the right key file back, or restore the file from a copy"
            ) from None

    def write(self, content: bytes, spare: bool = False) -> None:
        self._document.write(self._box().encrypt(content), spare)

    def is_changed(self) -> bool:
        return self._document.is_changed()

    def rotate(self, *others: SealedFile) -> None:
        """Encrypt this document, and others with the same key file, with a new key.

        The key file opens all documents at any moment, also after a crash.
        """
        documents = (self, *others)
        contents = [document.read() for document in documents]
        self._keys.insert(0, Fernet.generate_key())
        self._write_keys()
        for document, content in zip(documents, contents, strict=True):
            document._keys = self._keys
            if content is not None:
                document.write(content)
        del self._keys[1:]
        self._write_keys()

    def _box(self) -> MultiFernet:
        return MultiFernet([Fernet(key) for key in self._keys])

    def _read_keys(self) -> list[bytes]:
        try:
            mode = self._key.stat().st_mode
            keys = self._key.read_bytes().split()
            for key in keys:
                Fernet(key)
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise FileProblem(f"{self._key}: {problem.strerror}; check the rights on the key file") from None
        except ValueError:
            keys = []
        if not keys:
            raise FileProblem(f"{self._key}: this is not a key file; put the right one back")
        # systemd closes its credential folder to other users, and the files' access-list mask appears as group rights.
        if mode & (stat.S_IRWXG | stat.S_IRWXO) and str(self._key.parent) != os.environ.get(CREDENTIALS):
            raise FileProblem(f"{self._key}: other users can read the key; run `chmod 600 {self._key}`")
        return keys

    def _write_keys(self) -> None:
        try:
            self._key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_small(self._key, b"".join(key + b"\n" for key in self._keys))
        except (OSError, FileProblem) as problem:
            raise FileProblem(
                f"the key of the secrets cannot be written: {problem}, or name another place with --secrets-key"
            ) from None
