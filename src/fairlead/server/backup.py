"""Copies all data of a server, for `fairlead db copy`, `fairlead backup` and `fairlead restore`.

The same functions copy journal, history and documents between a data directory, a database and a backup. A backup is a
folder with the files of a data directory, in which the server's own key is encrypted, and with a `backup.json`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import quote

import msgspec

from fairlead.core.model import Micros
from fairlead.history.transfer import copy_history
from fairlead.identity.datafolder import prepare
from fairlead.identity.node_keys import Documents
from fairlead.identity.sealed import SealedFile, key_path
from fairlead.identity.smallfile import SmallFile
from fairlead.identity.tokens import Tokens
from fairlead.journal.locate import is_url, need_driver, open_journal
from fairlead.journal.stream_copy import PartDone, Point, Progress, Span, check_point, copy_journal, shown_time
from fairlead.server.failure import Failed, storage_problems_as_failed
from fairlead.server.storage import SERVER_KEY, documents_of
from fairlead.server.verification import verify_backup

__all__ = ["Failed", "Point", "back_up", "copy_data", "keeps_token", "restore_backup", "shown_time"]

MANIFEST = "backup.json"
FORMAT = 1
ALWAYS = 2**62
"""A time after all others."""
DOCUMENTS = (SERVER_KEY, "tokens", "nodes", "secrets")
REPLACED = "replaced_"
"""Prefix of the names of folders and schemas with replaced data."""
FILES = ("journal", "history")
"""The databases of a data directory. Each has more files, with a suffix to this name."""


class Manifest(msgspec.Struct):
    """The content of `backup.json`."""

    format: int
    version: str
    """The version of the program that made the backup."""
    source: str
    made: Micros
    partitions: dict[str, Span]


def copy_data(source: str, target: str, secrets_key: Path | None, part_done: PartDone) -> Path:
    """Copy all data of a server to an empty target, and compare the copy. Return the key file, which both share.

    `part_done` is called with the name and the number of rows of each part.
    """
    folders = [Path(place).absolute() for place in (source, target) if not is_url(place)]
    _need_data(source)
    with ExitStack() as stack, storage_problems_as_failed():
        if not is_url(target):
            prepare(Path(target).absolute())
        for folder in folders:
            stack.enter_context(_unused(folder))
        key = _key_of(secrets_key, *folders)
        with (
            open_journal(_place_of("journal", source), read_only=True) as old,
            open_journal(_place_of("journal", target)) as new,
        ):
            if old.held_by():
                raise Failed(f"{old.path}: the server {old.held_by()} runs on it; stop all its servers first")
            if new.reigned():
                raise Failed(f"{new.path}: there is a journal already; name an empty place")
            _copy_documents(_documents(source, key), _documents(target, key), part_done)
            _copy_history(source, target, part_done, {})
            copy_journal(old, new, part_done)
    return key


def back_up(
    source: str, target: Path, secrets_key: Path | None, version: str, part_done: PartDone, progress: Progress
) -> Manifest:
    """Copy all data of a server, which may be running, into a new folder. The folder appears when it is complete."""
    _need_data(source)
    target = target.absolute()
    if target.exists():
        raise Failed(f"{target}: it exists already; name a new folder")
    with storage_problems_as_failed():
        key = _key_of(secrets_key, *([] if is_url(source) else [Path(source).absolute()]))
        try:
            folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as problem:
            raise Failed(f"{target.parent}: {problem.strerror}; name another folder") from problem
        try:
            with (
                open_journal(_place_of("journal", source), read_only=True) as old,
                open_journal(folder / "journal") as new,
            ):
                made = time.time_ns() // 1000
                spans = copy_journal(old, new, part_done, progress)
                where = old.path
            _copy_history(source, str(folder), part_done, spans)
            _copy_documents(_documents(source, key), _sealed_documents(folder, key), part_done)
            manifest = Manifest(FORMAT, version, where, made, spans)
            (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
            folder.rename(target)
        except BaseException as problem:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(problem, OSError):
                raise Failed(f"{target}: {problem.strerror}; make room, or name another folder") from problem
            raise
    return manifest


def restore_backup(
    backup: Path,
    target: str,
    secrets_key: Path | None,
    point: Point | None,
    replace: bool,
    part_done: PartDone,
    progress: Progress,
) -> tuple[dict[str, Span], str]:
    """Copy a backup, as of a point in time, to a target. With `replace`, move existing data aside first.

    Return the restored partitions, and where the replaced data are. Epochs continue above those of the backup and of
    the replaced data, so that agents accept the restored servers, and no number is given again. The backup is checked
    first; if the restore fails, the target is as before.
    """
    backup = backup.absolute()
    manifest = _manifest(backup)
    if point is not None and point.time > manifest.made:
        raise Failed(f"{backup}: it was made at {shown_time(manifest.made)}; name that time or an earlier one")
    with ExitStack() as stack, storage_problems_as_failed():
        folders = [] if is_url(target) else [Path(target).absolute()]
        for folder in folders:
            stack.enter_context(_undone_on_failure(folder))
            prepare(folder)
            stack.enter_context(_unused(folder))
        key = _key_of(secrets_key, *folders)
        if not key.exists():
            raise Failed(f"{key}: the key file of the backup is missing; put it there, or name it with --secrets-key")
        documents = _sealed_documents(backup, key)
        documents(SERVER_KEY).read()  # fail on a wrong key file before the long check
        _check_backup(backup, key, point, progress)
        if is_url(target):
            replaced, above = _make_empty_database(target, replace)
            stack.enter_context(_renamed_back_on_failure(target, replaced.removeprefix("schema ")))
        else:
            above = _highest_epoch(folders[0] / "journal")
            replaced = _make_empty_folder(folders[0], replace)
        _copy_documents(documents, _documents(target, key), part_done)
        with open_journal(backup / "journal", read_only=True) as old, open_journal(_place_of("journal", target)) as new:
            spans = copy_journal(old, new, part_done, progress, point, above)
        others = ALWAYS if point is None else point.time or spans[point.partition].last_time
        _copy_history(str(backup), target, part_done, spans, others)
    return spans, replaced


def _check_backup(backup: Path, key: Path, point: Point | None, progress: Progress) -> None:
    """Raise `Failed` if a backup is damaged or lacks the wanted moment, before existing data are moved."""
    for report in verify_backup(backup, key, progress):
        if report.problem:
            raise Failed(f"{backup}: {report.stream}: {report.problem}; name another backup")
    if point is not None:
        with open_journal(backup / "journal", read_only=True) as journal:
            check_point(journal, point)


def keeps_token(target: str) -> bool:
    """True if the file `token` of a data directory has one of the restored tokens, so that it stays valid.

    A database has no such file, because each server has one in its own data directory.
    """
    file = Path(target) / "token"
    return (
        not is_url(target)
        and file.exists()
        and Tokens(Path(target) / "tokens").find(file.read_text().strip()) is not None
    )


def _copy_history(
    source: str, target: str, part_done: PartDone, spans: dict[str, Span], others: Micros = ALWAYS
) -> None:
    """Copy the history of each partition up to the end of its span, and of other partitions up to `others`."""
    ends = {name: span.last_time for name, span in spans.items()}
    records = {name: span.last for name, span in spans.items()}
    copy_history(_place_of("history", source), _place_of("history", target), part_done, ends, others, records)


def _copy_documents(old: Documents, new: Documents, part_done: PartDone) -> None:
    for name in DOCUMENTS:
        content = old(name).read()
        document = new(name)
        if document.read() is not None:
            raise Failed(f"{document.name}: it exists already; name an empty place")
        if content is not None:
            document.write(content)
            if new(name).read() != content:
                raise Failed(f"{document.name}: it is not equal to its original; remove the copy")
        part_done(name, int(content is not None))


def _documents(place: str, key: Path) -> Documents:
    return documents_of(Path(place).absolute(), place if is_url(place) else "", key)


def _sealed_documents(backup: Path, key: Path) -> Documents:
    """Return the documents of a backup. The server's key is encrypted, because people pass backups on."""
    return lambda name: SealedFile(backup / name, key) if name == SERVER_KEY else SmallFile(backup / name)


def _key_of(given: Path | None, *folders: Path) -> Path:
    """Return the path of the key file: the given one, or that of the first data directory."""
    if given is None and not folders:
        raise Failed("--secrets-key: name the key file of the secrets, because a database has none beside it")
    return key_path(folders[0], given) if folders else cast(Path, given)


def _need_data(place: str) -> None:
    if not is_url(place) and not (Path(place) / "journal").exists():
        raise Failed(f"{place}: no data of a server; name a data directory or a database")


def _manifest(backup: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((backup / MANIFEST).read_bytes(), type=Manifest)
    except OSError as problem:
        why = f"not a backup ({MANIFEST}: {problem.strerror})"
        raise Failed(f"{backup}: {why}; name a folder of `fairlead backup`") from problem
    except msgspec.MsgspecError as problem:
        raise Failed(f"{backup / MANIFEST}: damaged ({problem}); name another backup") from problem
    if manifest.format > FORMAT:
        raise Failed(f"{backup}: format {manifest.format} is newer than this program's {FORMAT}; upgrade Fairlead")
    return manifest


def _make_empty_folder(folder: Path, replace: bool) -> str:
    """Move the data of a directory into a folder inside it, and return that folder; empty if there are no data."""
    found = _data_in(folder)
    if not found:
        return ""
    if not replace:
        raise Failed(f"{folder}: there are data of a server already; name an empty place, or add --replace")
    away = folder / _replaced()
    away.mkdir(mode=0o700)
    for path in found:
        path.rename(away / path.name)
    return str(away)


def _data_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name in DOCUMENTS or path.name.startswith(FILES)]


@contextmanager
def _undone_on_failure(folder: Path) -> Iterator[None]:
    """If the block fails, remove what it added to a directory, and move data that it replaced back."""
    before = {path.name for path in folder.iterdir()} if folder.is_dir() else None
    try:
        yield
    except BaseException:
        if before is None:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        added = [path for path in folder.iterdir() if path.name not in before]
        replaced = [path for path in added if path.name.startswith(REPLACED)]
        for path in {*added, *(_data_in(folder) if replaced else [])} - {*replaced}:
            path.unlink()
        for away in replaced:
            for path in away.iterdir():
                path.rename(folder / path.name)
            away.rmdir()
        raise


def _highest_epoch(journal: Path) -> int:
    """Return the highest epoch of a journal that will be replaced; 0 if there is none. It may be damaged otherwise."""
    if not journal.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{quote(str(journal))}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT coalesce(max(epoch), 0) FROM reigns").fetchone()[0])
    except sqlite3.Error:
        return 0


def _make_empty_database(url: str, replace: bool) -> tuple[str, int]:
    """Rename the schema with the data of a database. Return its new name and its highest epoch.

    The name is empty if there are no data.
    """
    need_driver()
    from fairlead.journal.postgresql import PostgresJournal

    with PostgresJournal(url) as journal:
        if journal.held_by():
            raise Failed(f"{journal.path}: the server {journal.held_by()} runs on it; stop all its servers first")
        if journal.users():
            raise Failed(f"{journal.path}: servers that stand by are connected to it; stop all its servers first")
        if journal.is_empty():
            return "", 0
        if not replace:
            raise Failed(f"{journal.path}: there are data already; name an empty database, or add --replace")
        name, above = _replaced(), journal.highest_epoch()
        journal.rename_schema(name)
    return f"schema {name}", above


@contextmanager
def _renamed_back_on_failure(url: str, before: str) -> Iterator[None]:
    """If the block fails, drop what it wrote to a database, and put the renamed schema `before` back, if any."""
    try:
        yield
    except BaseException:
        from fairlead.journal.pgconnection import SCHEMA, connect

        with connect(url, "restore") as connection, connection.transaction():
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
            if before:
                connection.execute(f"ALTER SCHEMA {before} RENAME TO {SCHEMA}".encode())
        raise


def _replaced() -> str:
    return REPLACED + time.strftime("%Y%m%d_%H%M%S", time.gmtime())


def _place_of(part: str, place: str) -> str:
    """Return where the journal or the history is, in a database or a data directory."""
    return place if is_url(place) else str(Path(place).absolute() / part)


@contextmanager
def _unused(folder: Path) -> Iterator[None]:
    """Lock a data directory. Raise `Failed` if a server runs on it."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Failed(f"a server runs on {folder}; stop it with `fairlead down`") from None
    finally:
        os.close(lock)
