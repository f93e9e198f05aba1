"""Journals of earlier versions are readable: the golden journals of tests/golden, see make.py there.

Replaying each of them must give the state that was dumped then. Today's encoder must also write the newest one to the
same bytes. If that fails because a record got a new field or a change was added, make another golden journal.
"""

import struct
from pathlib import Path

import msgspec
import pytest

from fairlead.core.changes import ALL_CHANGES
from fairlead.core.dump import dump, load
from fairlead.core.invariants import check_all
from fairlead.core.state import Partition
from fairlead.journal import MemoryJournal, TooNew
from fairlead.journal.codec import (
    CLUSTER_STREAM,
    FORMAT,
    actors_of,
    decode,
    decode_remains,
    encode,
    encode_cluster,
    encode_remains,
    replay,
    restore_cluster,
)
from tests.golden.make import PARTITION, REMAINS, Script, goldens, play, read_records

NEWEST = goldens()[-1]
ADVICE = "run `python tests/golden/make.py` if this is meant, and read what it says first"


def dumps(golden: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in golden.glob("*.dump")}


def replayed(golden: Path) -> dict[int, bytes]:
    """The dumps after the same records, from replaying them today."""
    wanted = dumps(golden)
    state = Partition(PARTITION)
    found: dict[int, bytes] = {}
    for seq, payload in enumerate(read_records(golden / "partition.records"), 1):
        replay(state, payload, f"record {seq} of {golden.name}")
        check_all(state)
        if seq in wanted:
            found[seq] = dump(state)
    return found


@pytest.mark.parametrize("golden", goldens(), ids=lambda golden: golden.name)
def test_replay(golden: Path) -> None:
    wanted = dumps(golden)
    assert len(wanted) > 3
    found = replayed(golden)
    for seq in wanted:
        # The old dump is loaded first, because fields may have been added since.
        loaded = load(wanted[seq])
        check_all(loaded)
        assert found[seq] == dump(loaded), f"record {seq}"


def test_todays_dumps_are_the_same_bytes() -> None:
    assert replayed(NEWEST) == dumps(NEWEST), ADVICE


def test_todays_records_are_the_same_bytes() -> None:
    for seq, payload in enumerate(read_records(NEWEST / "partition.records"), 1):
        assert encode(*decode(payload, "golden"), actors_of(payload, "golden")) == payload, f"record {seq}: {ADVICE}"


@pytest.mark.parametrize("golden", goldens(), ids=lambda golden: golden.name)
def test_the_clusters_log(golden: Path) -> None:
    journal = MemoryJournal()
    epoch = journal.reign(CLUSTER_STREAM)
    payloads = read_records(golden / "cluster.records")
    for seq, payload in enumerate(payloads, 1):
        journal.append(CLUSTER_STREAM, epoch, seq, payload)
    configured, seq = restore_cluster(journal)
    assert (configured.version, seq) == (3, len(payloads))
    assert [name for name, _ in configured.partitions] == [PARTITION]
    if golden == NEWEST:
        assert encode_cluster(configured) == payloads[-1], ADVICE


@pytest.mark.parametrize("golden", goldens()[8:], ids=lambda golden: golden.name)
def test_what_is_kept_of_a_removed_partition(golden: Path) -> None:
    (payload,) = read_records(golden / "removed.records")
    assert decode_remains(payload, "golden") == REMAINS
    if golden == NEWEST:
        assert encode_remains(REMAINS) == payload, ADVICE


def test_every_change_occurs() -> None:
    seen = {
        type(change)
        for golden in goldens()
        for payload in read_records(golden / "partition.records")
        for change in decode(payload, "golden")[1]
    }
    assert not set(ALL_CHANGES) - seen, ADVICE


def test_every_field_is_set_somewhere() -> None:
    """A field that always had its default would not show that it moved."""
    unset = {(kind.__name__, field.name) for kind in ALL_CHANGES for field in msgspec.structs.fields(kind)}
    # Only dumps need them: a node that joins is up.
    unset -= {("NodeAdded", name) for name in ("state", "lost_from", "reason", "until", "begin")}
    for golden in goldens():
        for payload in read_records(golden / "partition.records"):
            for change in decode(payload, "golden")[1]:
                for field in msgspec.structs.fields(change):
                    if getattr(change, field.name) != field.default:
                        unset.discard((type(change).__name__, field.name))
    assert not unset, ADVICE


def test_the_number_of_the_format_comes_first() -> None:
    for payload in read_records(NEWEST / "partition.records"):
        assert msgspec.msgpack.decode(payload)[0] == FORMAT


def test_a_newer_format_is_refused() -> None:
    payload = msgspec.msgpack.encode((FORMAT + 1, "unknown"))
    with pytest.raises(TooNew, match=f"format {FORMAT + 1}"):
        decode(payload, "a record")


def test_the_script_still_plays() -> None:
    """The policy may decide otherwise than when the golden one was made; the script must still cover everything."""
    script = Script()
    play(script)
    assert script.partition.removed


def test_files_of_records(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(struct.pack(">I", 2) + b"ab" + struct.pack(">I", 0))
    assert read_records(path) == [b"ab", b""]
