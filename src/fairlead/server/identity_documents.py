"""The documents with tokens, node keys, secrets and the key of a server: files, or rows of a database."""

from __future__ import annotations

from pathlib import Path

from fairlead.identity.node_keys import Documents
from fairlead.identity.sealed import SealedFile, key_path
from fairlead.identity.smallfile import Document, SmallFile, StoredDocument
from fairlead.journal.locate import need_driver
from fairlead.server.failure import storage_problems_as_failed

SERVER_KEY = "server-key"


def documents_of(directory: Path, database: str, secrets_key: Path | None) -> Documents:
    """Return the documents of a server. Raise `Failed` if the database or the key file cannot be used.

    In a database the server's own key is encrypted too, because people pass copies of a database on.
    """
    if not database:
        return lambda name: SmallFile(directory / name)
    with storage_problems_as_failed():
        need_driver()
        from fairlead.journal.pgdocuments import PostgresDocuments

        rows, key = PostgresDocuments(database), key_path(directory, secrets_key)

    def named(name: str) -> Document:
        document = StoredDocument(rows, name)
        return SealedFile(document, key) if name == SERVER_KEY else document

    return named


def rotate_secrets_key(directory: Path, given: Path | None, database: str = "") -> Path:
    """Encrypt the secrets of a server with a new key, and return the path of the key file. No server may run."""
    documents = documents_of(directory, database, given)
    with storage_problems_as_failed():
        key = key_path(directory, given)
        sealed = documents(SERVER_KEY)
        others = [sealed] if isinstance(sealed, SealedFile) else []
        SealedFile(documents("secrets"), key).rotate(*others)
    return key
