"""Finds and opens what a server stores: journal, snapshots, history, outputs, and the documents with identities."""

from __future__ import annotations

import threading
from pathlib import Path
from secrets import token_hex

from structlog.typing import FilteringBoundLogger

from fairlead.history.s3 import SCHEME, ObjectStore, Unusable
from fairlead.history.store import History
from fairlead.history.stores import FolderStore, Store
from fairlead.identity.node_keys import Documents
from fairlead.identity.sealed import SealedFile, key_path
from fairlead.identity.smallfile import Document, SmallFile, StoredDocument
from fairlead.journal.disk_space import DiskFull, need_disk_space, release, reserve
from fairlead.journal.journal import Journal, JournalError
from fairlead.journal.leases import Sightings
from fairlead.journal.locate import need_driver
from fairlead.journal.roster import Roster
from fairlead.journal.snapshot import Snapshots, renew_all
from fairlead.journal.sql import SqliteJournal
from fairlead.server.failure import Failed, storage_problems_as_failed
from fairlead.server.start_options import Limits, ServerOptions


class Storage:
    """The journal and the history of a server, in its data directory or in a database."""

    def __init__(self, options: ServerOptions, limits: Limits, log: FilteringBoundLogger) -> None:
        self.journal_place = options.database or options.directory / "journal"
        self.history_place = options.database or options.directory / "history"
        with storage_problems_as_failed():
            self.history = History(
                self.history_place, limits.history_size, note=lambda text: log.error("history", problem=text)
            )
        self._options = options
        self._limits = limits
        self._server = token_hex(8)
        """The id of this process in leases and heartbeats."""
        self._sightings = Sightings()
        self._turn = threading.Lock()
        """Held by the journal object that writes, because an SQLite file has one writer at a time."""
        self._making_room = threading.Lock()
        self._log = log
        self._snapshots: dict[str, Snapshots] = {}

    def open_journal(self) -> Journal:
        """Open the journal for one thread."""
        if self._options.database:
            from fairlead.journal.postgresql import PostgresJournal

            return PostgresJournal(
                self._options.database,
                self._server,
                self._options.url,
                self._limits.lease,
                sightings=self._sightings,
            )
        folder = self._options.directory
        try:
            need_disk_space(folder)
        except DiskFull:
            with self._making_room:
                if not release(folder):
                    raise
                renew_all(self.journal_place)
                self._log.warning("disk full", done="old records were dropped to make room")
            need_disk_space(folder)
        reserve(folder)
        return SqliteJournal(self.journal_place, turn=self._turn)

    def roster(self) -> Roster | None:
        """Return the roster of the servers on the database. None for a data directory, which only one server uses."""
        if not self._options.database:
            return None
        from fairlead.journal.pgroster import PostgresRoster

        return PostgresRoster(
            self._options.database,
            self._server,
            self._options.url,
            self._limits.lease,
            self._sightings,
            self._options.version,
        )

    def snapshot(self, partition: str, seq: int) -> None:
        """Start a snapshot of a partition if one is due after record `seq`."""
        if partition not in self._snapshots:
            self._snapshots[partition] = Snapshots(self.journal_place, partition, seq, age=self._limits.journal_age)
        self._snapshots[partition].poll(seq)

    def warnings(self) -> list[str]:
        """Return the settings of the database with which committed data can be lost, as warnings."""
        if not self._options.database:
            return []
        from fairlead.journal.pgconnection import connect, warnings_of

        try:
            with connect(self._options.database, "check") as connection:
                return warnings_of(connection)
        except JournalError as problem:
            return [f"the settings of the database cannot be read: {problem}"]

    def close(self) -> None:
        for snapshots in self._snapshots.values():
            snapshots.close()
        self.history.close()


def output_place(options: ServerOptions) -> Store:
    """Return the folder or object store for outputs. Raise `Failed` if it cannot be used."""
    named = options.outputs
    try:
        if named.startswith(SCHEME):
            return ObjectStore(named, options.directory / "incoming", options.outputs_endpoint)
        if "://" in named:
            raise Unusable(f"{named} is neither a folder nor s3://BUCKET/PREFIX; write one of them with --outputs")
        if options.outputs_endpoint:
            raise Unusable("--outputs-endpoint is for an object store; name one with --outputs s3://BUCKET/PREFIX")
        return FolderStore(Path(named) if named else options.directory / "outputs")
    except Unusable as problem:
        raise Failed(str(problem)) from problem
    except OSError as problem:
        raise Failed(f"{problem.filename}: {problem.strerror}; name another folder with --outputs") from problem


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
