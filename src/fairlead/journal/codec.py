"""Encodes the changes and the time of a cycle as a record, and restores a state from records.

A restore applies the recorded changes and runs no policy, so that an upgrade cannot alter past decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from operator import or_
from typing import Any

import msgspec

from fairlead.core.changes import DEFINED, Change, News
from fairlead.core.cluster_config import NOTHING, ClusterConfigured, Remains
from fairlead.core.commands import Actor
from fairlead.core.dump import NotADump, load
from fairlead.core.model import Micros
from fairlead.core.state import Partition, Touched
from fairlead.journal.journal import NEWEST, Damaged, Journal, TooNew

FORMAT = 1
CLUSTER_STREAM = "cluster"
REMOVED = "removed/"
"""Prefix of the names of streams that keep the counters and machines of removed partitions."""


class _Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a record, with its changes still encoded."""

    format: int
    now: Micros
    changes: msgspec.Raw
    actors: list[Actor] | None = None
    """None in records of earlier versions."""


Decode = Callable[[bytes], Any]


def _decoder(**fields: Any) -> Decode:
    """Return a decoder of records that begin with a format number and `fields`. Further elements are ignored."""
    kind = msgspec.defstruct("Record", [("format", int), *fields.items()], frozen=True, array_like=True)
    return msgspec.msgpack.Decoder(kind).decode


@cache
def _changes_decoder(count: int) -> Decode:
    """Return a decoder of records for the first `count` kinds of changes (cached)."""
    return _decoder(now=Micros, changes=list[reduce(or_, DEFINED[:count])])  # type: ignore[misc]


_encode = msgspec.msgpack.Encoder().encode
_decode_format = _decoder()
_decode_stamp: Decode = msgspec.msgpack.Decoder(_Stamp).decode
_decode_cluster = _decoder(configured=ClusterConfigured)
_decode_remains = _decoder(remains=Remains)


def _decoded(decode: Decode, payload: bytes, where: str, what: str = f"a record of format {FORMAT}") -> Any:
    try:
        version = _decode_format(payload).format
        if version > FORMAT:
            raise TooNew(
                f"{where}: format {version} is newer than {FORMAT}; use the program that wrote it, or a newer one"
            )
        return decode(payload)
    except msgspec.MsgspecError as problem:
        raise Damaged(where, f"it is not {what} ({problem})") from None


def stream_of(partition: str) -> str:
    """Return the name of the stream with the records of a partition."""
    return f"partition/{partition}"


def removed_stream_of(partition: str) -> str:
    """Return the name of the stream with one record for each time that a partition of this name was removed."""
    return f"{REMOVED}{partition}"


def encode(now: Micros, changes: Sequence[Change[Any]], actors: Sequence[Actor] | None = ()) -> bytes:
    """Return the changes of a cycle as a record. `actors` are the callers that caused the changes; None if unknown."""
    return _encode((FORMAT, now, changes) if actors is None else (FORMAT, now, changes, actors))


def decode(payload: bytes, where: str) -> tuple[Micros, list[Change[Any]]]:
    """Return the time and the changes of a record. `where` names the record in error messages."""
    record = _decoded(_changes_decoder(len(DEFINED)), payload, where)
    return record.now, record.changes


def time_of(payload: bytes, where: str) -> Micros:
    """Return the time of a record, without decoding its changes."""
    return _decoded(_decode_stamp, payload, where).now  # type: ignore[no-any-return]


def actors_of(payload: bytes, where: str) -> list[Actor] | None:
    """Return the callers that caused the changes of a record; None for records of earlier versions."""
    return _decoded(_decode_stamp, payload, where).actors  # type: ignore[no-any-return]


def encode_cluster(configured: ClusterConfigured) -> bytes:
    return _encode((FORMAT, configured))


Replayed = Callable[[Partition, int, Iterable[News]], None]
"""Called after each replayed record, with the state, the number of the record and its news."""


def restore(
    journal: Journal, partition: str, replayed: Sequence[Replayed] = (), after: int = NEWEST
) -> tuple[Partition, int]:
    """Return a partition as of its last record, and the number of that record.

    The records after record `after` are replayed, as far as they are stored.
    """
    stream = stream_of(partition)
    snapshot = journal.snapshot(stream, after)
    state, seq = Partition(partition), 0
    if snapshot is not None:
        try:
            state, seq = load(snapshot.payload), snapshot.seq
        except NotADump as problem:
            raise Damaged(f"snapshot {snapshot.seq} of {stream}", str(problem)) from None
        except Exception as problem:
            raise Damaged(f"snapshot {snapshot.seq} of {stream}", f"it contradicts itself ({problem!r})") from problem
    for record in journal.read(stream, seq):
        done = replay(state, record.payload, f"record {record.seq} of {stream}")
        seq = record.seq
        for observe in replayed:
            observe(state, seq, (news for change, before in done for news in change.news(state, before)))
    state.touched = Touched()
    return state, seq


def replay(partition: Partition, payload: bytes, where: str) -> list[tuple[Change[Any], Any]]:
    """Apply a record to the state before it. Returns its changes, each with the data that undo it."""
    partition.now, changes = decode(payload, where)
    try:
        return [(change, change.apply(partition)) for change in changes]
    except Exception as problem:
        raise Damaged(where, f"it does not follow from the records before it ({problem!r})") from problem


def restore_cluster(journal: Journal) -> tuple[ClusterConfigured, int]:
    """Return the newest configuration of the cluster, and the number of its record."""
    configured, seq = NOTHING, 0
    for record in journal.read(CLUSTER_STREAM):
        configured, seq = decode_cluster(record.payload, f"record {record.seq} of {CLUSTER_STREAM}"), record.seq
    return configured, seq


def decode_cluster(payload: bytes, where: str) -> ClusterConfigured:
    return _decoded(_decode_cluster, payload, where, "a configuration").configured  # type: ignore[no-any-return]


def encode_remains(remains: Remains) -> bytes:
    return _encode((FORMAT, remains))


def restore_remains(journal: Journal, partition: str) -> Remains | None:
    """Return the counters and machines of the last removed partition of this name; None if there was none."""
    stream, remains = removed_stream_of(partition), None
    for record in journal.read(stream):
        remains = decode_remains(record.payload, f"record {record.seq} of {stream}")
    return remains


def decode_remains(payload: bytes, where: str) -> Remains:
    remains: Remains = _decoded(_decode_remains, payload, where, "what is kept of a removed partition").remains
    return remains
