"""One SQLite file: opens and checks it, runs transactions, and raises errors that say whether something was written.

The head file beside a journal has the last record of each stream, and shows if the journal was truncated.
"""

import contextlib
import hashlib
import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

from fairlead.journal.chained import Mark
from fairlead.journal.journal import Damaged, JournalError, Locked, NotWritten, TooNew, UnknownOutcome


class HeadFile:
    """The last committed record of each stream, in one slot per stream.

    SQLite silently truncates a damaged write-ahead log. Then the head file is ahead of the journal. It is written after
    each commit without waiting for the disk, so after a crash of the machine it may be behind the journal, or missing.
    It is never ahead of an intact journal, unless `synchronous` is not full.
    """

    _SLOT = struct.Struct(">4s16sQQ16s12s")  # stays inside one sector, so that a crash does not tear it
    _PAGE = 4096

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    @staticmethod
    def key(stream: str) -> bytes:
        return hashlib.blake2b(
            stream.encode(errors="surrogatepass"), digest_size=16, person=b"fairlead-stream"
        ).digest()

    @staticmethod
    def _check(body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=12, person=b"fairlead-head").digest()

    def marks(self) -> dict[bytes, Mark]:
        """Return the last record of each stream, by `key`. Call it before reading the journal, which may grow."""
        before = None
        while True:
            try:
                content = Path(self.path).read_bytes()
            except FileNotFoundError:
                return {}
            except OSError as error:
                raise JournalError(f"{self.path}: {error.strerror}; check the rights on the file") from error
            marks, wrong = self._parse(content)
            if not wrong:
                return marks
            if content == before:  # a read during a write gives other content the next time
                raise Damaged(self.path, wrong, "if the journal itself verifies, delete this file to go on without it")
            before = content

    def _parse(self, content: bytes) -> tuple[dict[bytes, Mark], str]:
        marks: dict[bytes, Mark] = {}
        if len(content) % self._PAGE:
            return marks, f"cut to {len(content)} bytes"
        for at in range(0, len(content), self._SLOT.size):
            slot = content[at : at + self._SLOT.size]
            if any(slot):
                magic, key, seq, epoch, digest, check = self._SLOT.unpack(slot)
                if magic != b"FLH1" or check != self._check(slot[:-12]):
                    return marks, f"the mark at byte {at} does not match its checksum"
                marks[key] = Mark(seq, epoch, digest)
        return marks, ""

    def reserve(self, slot: int) -> None:
        """Open the file and allocate space for a slot, so that a later write cannot fail on a full disk."""
        try:
            if self._fd < 0:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            size = os.fstat(self._fd).st_size
            wanted = -(-(slot + 1) * self._SLOT.size // self._PAGE) * self._PAGE
            if wanted > size and os.pwrite(self._fd, bytes(wanted - size), size) != wanted - size:
                os.ftruncate(self._fd, size)
                raise NotWritten(f"{self.path}: no space for the mark of a stream; free some disk space")
        except OSError as error:
            raise NotWritten(f"{self.path}: {error.strerror}; check the disk and the rights on the file") from error

    def write(self, slot: int, stream: str, mark: Mark) -> None:
        body = self._SLOT.pack(b"FLH1", self.key(stream), mark.seq, mark.epoch, mark.digest, bytes(12))[:-12]
        with contextlib.suppress(OSError):  # the record is committed and the head may be behind, so this is no error
            os.pwrite(self._fd, body + self._check(body), slot * self._SLOT.size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


_VERSION = 1


class File:
    """One SQLite file. Errors of SQLite become `JournalError`s."""

    def __init__(
        self,
        path: str,
        application: int,
        schema: dict[str, str],
        pragmas: dict[str, str],
        busy_ms: int,
        read_only: bool = False,
        fresh: bool = True,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        """Open the file. The lock `turn` is held during writes."""
        self.path = path
        self._turn = turn or contextlib.nullcontext()
        self._in_doubt = False
        mode = "ro" if read_only else "rwc"
        try:
            self._db = sqlite3.connect(
                f"file:{quote(path)}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._explain(error, "opening", writing=False) from error
        try:
            self.run(f"PRAGMA busy_timeout = {busy_ms}")
            self.run("PRAGMA secure_delete = off")  # else some builds overwrite, and so log, all deleted data
            new = self._check(application, schema)
            if new and not fresh:
                raise Damaged(path, "the file holds nothing, though its head does")
            if new and read_only:
                raise JournalError(f"{path}: no journal yet; open it for writing first")
            if not read_only:
                for name, value in pragmas.items():
                    self.run(f"PRAGMA {name} = {value}")
            if new:
                self._create(application, schema)
        except sqlite3.Error as error:
            self._db.close()
            raise self._explain(error, "opening", writing=False) from error
        except JournalError:
            self._db.close()
            raise

    def _check(self, application: int, schema: dict[str, str]) -> bool:
        """True if the file is new. Raises if an existing file has another kind or version."""
        [(file_application,)] = self.run("PRAGMA application_id")
        [(version,)] = self.run("PRAGMA user_version")
        tables = dict(self.run("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        if not file_application and not version and not tables:
            return True
        if file_application != application:
            raise Damaged(
                self.path, f"not a file of a Fairlead journal (application id {file_application:#x})", "name another"
            )
        if version > _VERSION:
            raise TooNew(f"{self.path}: schema {version} is newer than this program's {_VERSION}; upgrade Fairlead")
        if version != _VERSION or any(tables.get(name) != sql for name, sql in schema.items()):
            raise Damaged(self.path, f"its tables are not those of schema {_VERSION} (it says {version})")
        return False

    def _create(self, application: int, schema: dict[str, str]) -> None:
        with self.writing("creating the tables"):
            if self._check(application, schema):  # another process may have been first
                for sql in schema.values():
                    self.run(sql)
                self.run(f"PRAGMA application_id = {application}")
                self.run(f"PRAGMA user_version = {_VERSION}")

    def run(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    @contextlib.contextmanager
    def reading(self, doing: str) -> Iterator[None]:
        """Run a block in one read transaction, so that all its reads see the same state of the file."""
        try:
            self.run("BEGIN")
            yield
        except sqlite3.Error as error:
            raise self._explain(error, doing, writing=False) from error
        finally:
            self._roll_back()

    @contextlib.contextmanager
    def writing(self, doing: str) -> Iterator[None]:
        """Run a block in one durable write transaction. If this raises `NotWritten`, nothing was written."""
        if self._in_doubt:
            raise UnknownOutcome(
                f"{self.path}: {doing}: refused after a write of unknown outcome; open the journal again"
            )
        with self._turn:
            yield from self._written(doing)

    def _written(self, doing: str) -> Iterator[None]:
        try:
            self.run("BEGIN IMMEDIATE")
            yield
        except BaseException as error:
            self._in_doubt = not self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise self._explain(error, doing, writing=True) from error
            raise
        try:
            self.run("COMMIT")
        except sqlite3.Error as error:
            if self._commit_left_nothing(error):
                raise self._explain(error, doing, writing=True) from error
            self._in_doubt = True
            raise UnknownOutcome(
                f"{self.path}: {doing}: the commit failed and may yet have happened ({error}); "
                "stop, open the journal again and recover from it"
            ) from error

    def _roll_back(self) -> bool:
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:  # SQLite itself ends the transaction after some errors
                self.run("ROLLBACK")
            return True
        return False

    def _commit_left_nothing(self, error: sqlite3.Error) -> bool:
        if self._db.in_transaction:
            return self._roll_back()
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_FULL:
            return True  # no space for a frame, and the last frame is the one that commits
        if code != sqlite3.SQLITE_IOERR_WRITE:
            return False  # mostly a failed sync: the frames may or may not be on disk
        # A failed write may still have left its bytes: another commit overwrites them in the log.
        with contextlib.suppress(sqlite3.Error):
            self.run("BEGIN IMMEDIATE")
            self.run(f"PRAGMA user_version = {_VERSION}")
            self.run("COMMIT")
            return True
        self._roll_back()
        return False

    def _explain(self, error: sqlite3.Error, doing: str, writing: bool) -> JournalError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        what = f"{doing}: {error}"
        if isinstance(error, sqlite3.ProgrammingError):  # the object was closed
            return JournalError(f"{self.path}: {what}; open the journal again")
        match code & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return Locked(f"{self.path}: {what}; another process holds it, find and end that one or try again")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                return JournalError(f"{self.path}: {what}; check that it and its directory exist and allow access")
            case sqlite3.SQLITE_FULL | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_TOOBIG if writing:
                return NotWritten(f"{self.path}: {what}; nothing was written")
            case sqlite3.SQLITE_CONSTRAINT if writing:
                return NotWritten(f"{self.path}: {what}; another object writes under this epoch, nothing was written")
            case sqlite3.SQLITE_IOERR if writing:
                return NotWritten(f"{self.path}: {what}; nothing was written, check the disk")
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_READONLY:
                return JournalError(f"{self.path}: {what}; check the disk and the rights on the file")
            case _:
                return Damaged(self.path, what)

    def close(self) -> None:
        self._db.close()
