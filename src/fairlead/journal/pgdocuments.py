"""Small documents on PostgreSQL, each with a version: tokens, secrets, and the keys of nodes and of the server."""

from __future__ import annotations

import threading
from typing import Any

import psycopg

from fairlead.journal.pgconnection import connect, explained, is_broken, shown_url
from fairlead.journal.pglimit import limited
from fairlead.journal.pgschema import prepare

PATIENCE = 10.0
"""Seconds that a statement may take. A COMMIT on a former primary would take for ever."""


class PostgresDocuments:
    """Documents by name. Several threads may use the object. It replaces a lost connection."""

    def __init__(self, url: str) -> None:
        self.where = shown_url(url)
        self._url = url
        self._lock = threading.Lock()
        self._db = connect(url, "documents")
        prepare(self._db, self.where)

    def get(self, name: str) -> tuple[int, bytes]:
        """Return the version and the content of a document; 0 and no bytes if there is none."""
        query = "SELECT version, content FROM documents WHERE name = %s"
        return self._ask(f"reading document {name}", query, name) or (0, b"")

    def version(self, name: str) -> int:
        query = "SELECT version FROM documents WHERE name = %s"
        return int((self._ask(f"reading the version of document {name}", query, name) or (0,))[0])

    def put(self, name: str, version: int, content: bytes) -> bool:
        """Replace version `version` of a document, or create it if `version` is 0. False if it has another version."""
        doing = f"writing document {name}"
        if version:
            change = "SET version = version + 1, content = %s WHERE name = %s AND version = %s RETURNING 1"
            done = self._ask(doing, f"UPDATE documents {change}", content, name, version)
        else:
            insert = "INSERT INTO documents VALUES (%s, 1, %s) ON CONFLICT DO NOTHING RETURNING 1"
            done = self._ask(doing, insert, name, content)
        # If the connection was lost, the first try may have written it.
        return done is not None or self.get(name) == (version + 1, content)

    def close(self) -> None:
        self._db.close()

    def _ask(self, doing: str, sql: str, *values: object) -> Any:
        """Run a statement, and run it again if the connection was lost. Return the first row of its answer, or None.

        Repeating a write is safe, because the statement names the version to replace.
        """
        with self._lock:
            try:
                try:
                    with limited(self._db, PATIENCE):
                        return self._db.execute(sql.encode(), values).fetchone()
                except psycopg.Error:
                    if not is_broken(self._db):
                        raise
                    self._db.close()
                    self._db = connect(self._url, "documents")
                    with limited(self._db, PATIENCE):
                        return self._db.execute(sql.encode(), values).fetchone()
            except psycopg.Error as problem:
                raise explained(problem, self.where, doing) from problem
