"""Small documents on PostgreSQL, each with a version: tokens, secrets, and the keys of nodes and of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from fairlead.journal.pgconnection import Connection, connect, explained, is_broken, shown_url
from fairlead.journal.pgschema import prepare

Result = TypeVar("Result")


class PostgresDocuments:
    """Documents by name. Several threads may use it; a lost connection is replaced."""

    def __init__(self, url: str) -> None:
        self.where = shown_url(url)
        self._url = url
        self._lock = threading.Lock()
        self._db = connect(url, "documents")
        prepare(self._db, self.where)

    def get(self, name: str) -> tuple[int, bytes]:
        def read(db: Connection) -> tuple[int, bytes]:
            row = db.execute("SELECT version, content FROM documents WHERE name = %s", (name,)).fetchone()
            return (0, b"") if row is None else (row[0], row[1])

        return self._ask(read, f"reading document {name}")

    def version(self, name: str) -> int:
        def read(db: Connection) -> int:
            row = db.execute("SELECT version FROM documents WHERE name = %s", (name,)).fetchone()
            return 0 if row is None else int(row[0])

        return self._ask(read, f"reading the version of document {name}")

    def put(self, name: str, version: int, content: bytes) -> bool:
        def write(db: Connection) -> bool:
            if version:
                done = db.execute(
                    "UPDATE documents SET version = version + 1, content = %s WHERE name = %s AND version = %s",
                    (content, name, version),
                )
            else:
                done = db.execute("INSERT INTO documents VALUES (%s, 1, %s) ON CONFLICT DO NOTHING", (name, content))
            # If the connection was lost, the first try may have written it.
            return done.rowcount == 1 or stored(db) == (version + 1, content)

        def stored(db: Connection) -> tuple[Any, ...] | None:
            return db.execute("SELECT version, content FROM documents WHERE name = %s", (name,)).fetchone()

        return self._ask(write, f"writing document {name}")

    def close(self) -> None:
        self._db.close()

    def _ask(self, question: Callable[[Connection], Result], doing: str) -> Result:
        """Run a query, and run it again if the connection was lost.

        Repeating a write is safe: it names the version to replace.
        """
        with self._lock:
            try:
                try:
                    return question(self._db)
                except psycopg.Error:
                    if not is_broken(self._db):
                        raise
                    self._db.close()
                    self._db = connect(self._url, "documents")
                    return question(self._db)
            except psycopg.Error as problem:
                raise explained(problem, self.where, doing) from problem
