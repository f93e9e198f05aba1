"""Verifies the data of a server, for `fairlead journal verify` and before a restore: journal, history and documents."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from fairlead.history.check import check_history
from fairlead.identity.node_keys import Credential, Documents
from fairlead.identity.sealed import SealedFile
from fairlead.identity.secrets import Content
from fairlead.identity.smallfile import FileProblem, SmallFile, StoredDocument
from fairlead.identity.tokens import Token
from fairlead.journal.chained import ChainedJournal
from fairlead.journal.codec import CLUSTER_STREAM, restore_cluster, stream_of
from fairlead.journal.journal import JournalError
from fairlead.journal.locate import is_url, need_driver, open_journal
from fairlead.journal.verify import Progress, StreamReport, verify
from fairlead.server.failure import storage_problems_as_failed
from fairlead.server.storage import SERVER_KEY
from fairlead.wire.handshake import Key

SEALED = b"\x80"
"""The first byte of an encrypted document, below its encoding as text."""


def verify_data(place: str, progress: Progress) -> Iterator[StreamReport]:
    """Check a journal, in a file or a database, and the data beside it. Yield a report on each stream and part.

    Beside a file `journal` are the history and the documents of its server. Without their key file, encrypted documents
    are checked only for their form.
    """
    with storage_problems_as_failed():
        if not is_url(place) and Path(place).name != "journal":
            with open_journal(place, read_only=True) as journal:
                return (yield from verify(journal, progress))
        named = _documents_beside(place)
        used = any(named(name).read() is not None for name in ("tokens", "nodes"))
        with open_journal(place, read_only=True) as journal:
            yield from verify(journal, progress)
            if used:
                yield from _empty_streams(journal)
        yield from _parts(place if is_url(place) else Path(place).absolute().parent, named)


def verify_backup(folder: Path, key: Path, progress: Progress) -> Iterator[StreamReport]:
    """Check a backup, whose encrypted documents the key file must open."""
    with open_journal(folder / "journal", read_only=True) as journal:
        yield from verify(journal, progress)
        yield from _empty_streams(journal)

    def named(name: str) -> SmallFile | SealedFile:
        return SealedFile(folder / name, key) if name in (SERVER_KEY, "secrets") else SmallFile(folder / name)

    yield from _parts(folder, named)


def _documents_beside(place: str) -> Documents:
    """Return the documents beside a journal, encrypted ones as they are."""
    if not is_url(place):
        folder = Path(place).absolute().parent
        key = folder.with_name(f"{folder.name}.secrets-key")

        def in_folder(name: str) -> SmallFile | SealedFile:
            return SealedFile(folder / name, key) if name == "secrets" and key.exists() else SmallFile(folder / name)

        return in_folder
    need_driver()
    from fairlead.journal.pgdocuments import PostgresDocuments

    rows = PostgresDocuments(place)
    return lambda name: StoredDocument(rows, name)


def _empty_streams(journal: ChainedJournal) -> Iterator[StreamReport]:
    """Yield a report on each stream without records that a server which has run must have."""
    present = journal.streams()
    try:
        names = [stream_of(name) for name, _ in restore_cluster(journal)[0].partitions]
    except JournalError:
        return  # the report on that stream says it
    for stream in (CLUSTER_STREAM, *names):
        if stream not in present:
            problem = f"{journal.path}: no records, though a server has run on these data; restore them from a backup"
            yield StreamReport(stream, problem=problem)


def _parts(place: str | Path, named: Documents) -> Iterator[StreamReport]:
    history = place if isinstance(place, str) else place / "history"
    if isinstance(history, str) or history.exists():
        yield _history(history)
    for name, count in (("tokens", _tokens), ("nodes", _nodes), (SERVER_KEY, _server_key), ("secrets", _secrets)):
        try:
            content = named(name).read()
            if content is not None:
                yield StreamReport(name, records=count(content))
        except FileProblem as problem:
            yield StreamReport(name, problem=str(problem))
        except (msgspec.MsgspecError, ValueError):  # without its text, which may quote the content
            yield StreamReport(name, problem=f"{named(name).name}: the content is damaged; restore it from a backup")


def _history(place: str | Path) -> StreamReport:
    try:
        return StreamReport("history", records=check_history(place))
    except JournalError as problem:
        return StreamReport("history", problem=str(problem))


def _tokens(content: bytes) -> int:
    return len(msgspec.json.decode(content, type=list[Token]))


def _nodes(content: bytes) -> int:
    return len(msgspec.json.decode(content, type=list[Credential]))


def _server_key(content: bytes) -> int:
    if not _is_sealed(content):
        Key(msgspec.json.decode(content, type=str))
    return 1


def _secrets(content: bytes) -> int:
    return 1 if _is_sealed(content) else len(msgspec.json.decode(content, type=Content).users)


def _is_sealed(content: bytes) -> bool:
    """True if a content has the form of an encrypted document."""
    with suppress(ValueError):
        return base64.urlsafe_b64decode(content)[:1] == SEALED
    return False


def shown_place(place: str) -> str:
    """Return the location of a journal for messages, without passwords."""
    if not is_url(place):
        return place
    from fairlead.journal.pgconnection import shown_url

    return shown_url(place)
