"""What every journal does: the same tests on each, then all against each other on random operations."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead.journal
from fairlead.journal import (
    Fenced,
    Journal,
    JournalError,
    MemoryJournal,
    NotWritten,
    Pruned,
    Record,
    Snapshot,
    SqliteJournal,
    UnknownOutcome,
)
from fairlead.journal.postgresql import PostgresJournal
from tests.postgres import Postgres


def filled(journal: Journal, stream: str, count: int) -> int:
    epoch = journal.reign(stream)
    for seq in range(1, count + 1):
        journal.append(stream, epoch, seq, b"%d" % seq)
    return epoch


def test_public_names() -> None:
    assert fairlead.journal.__all__ == sorted(
        "Damaged Fenced Held Journal JournalError Locked MemoryJournal NotWritten Pruned Record Snapshot "
        "SqliteJournal TooNew UnknownOutcome".split()
    )


def test_empty(journal: Journal) -> None:
    assert journal.streams() == []
    assert journal.last("a") == 0
    assert list(journal.read("a")) == []
    assert journal.snapshot("a") is None
    journal.drop("a")


def test_records_come_back_in_order(journal: Journal) -> None:
    epoch = filled(journal, "a", 12)
    assert list(journal.read("a")) == [Record(seq, epoch, b"%d" % seq) for seq in range(1, 13)]
    assert [record.seq for record in journal.read("a", after=10)] == [11, 12]
    assert list(journal.read("a", after=12)) == []
    assert journal.last("a") == 12


def test_any_bytes(journal: Journal) -> None:
    epoch = journal.reign("a")
    payloads = [b"", b"\0", bytes(range(256)), b"x" * 300_000]
    for seq, payload in enumerate(payloads, 1):
        journal.append("a", epoch, seq, payload)
    assert [record.payload for record in journal.read("a")] == payloads


def test_reading_behind_the_end(journal: Journal) -> None:
    filled(journal, "a", 2)
    with pytest.raises(JournalError, match=r"no record 3 .* the last is 2"):
        list(journal.read("a", after=3))


def test_streams_are_apart(journal: Journal) -> None:
    filled(journal, "b", 2)
    filled(journal, "a", 3)
    journal.reign("reigned, never written")
    assert journal.streams() == ["a", "b"]
    assert (journal.last("a"), journal.last("b")) == (3, 2)


def test_each_reign_fences_the_ones_before(journal: Journal) -> None:
    first = filled(journal, "a", 2)
    second = journal.reign("a")
    assert second > first
    with pytest.raises(Fenced, match=rf"epoch {first} is fenced.*epoch {second}") as fenced:
        journal.append("a", first, 3, b"old")
    assert (fenced.value.stream, fenced.value.epoch, fenced.value.current) == ("a", first, second)
    journal.append("a", second, 3, b"new")
    assert [record.payload for record in journal.read("a")] == [b"1", b"2", b"new"]


def test_a_reign_of_one_stream_leaves_others_alone(journal: Journal) -> None:
    epoch = filled(journal, "a", 1)
    journal.reign("b")
    journal.append("a", epoch, 2, b"2")


@pytest.mark.parametrize("seq", [0, 1, 2, 4])
def test_out_of_sequence(journal: Journal, seq: int) -> None:
    epoch = filled(journal, "a", 2)
    with pytest.raises(NotWritten, match=f"record {seq} is out of sequence, the last is 2"):
        journal.append("a", epoch, seq, b"")
    assert journal.last("a") == 2
    journal.append("a", epoch, 3, b"3")


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_epoch_that_never_began(journal: Journal, epoch: int) -> None:
    with pytest.raises(NotWritten, match="call reign"):
        journal.append("a", epoch, 1, b"")


def test_two_newest_snapshots_are_kept(journal: Journal) -> None:
    filled(journal, "a", 9)
    for seq in (2, 9, 5):
        journal.save_snapshot("a", seq, b"state %d" % seq)
    assert journal.snapshot("a") == Snapshot(9, b"state 9")
    journal.save_snapshot("a", 9, b"again")
    assert journal.snapshot("a") == Snapshot(9, b"again")


@pytest.mark.parametrize("seq", [0, 4])
def test_a_snapshot_needs_its_record(journal: Journal, seq: int) -> None:
    filled(journal, "a", 3)
    with pytest.raises(NotWritten, match=f"snapshot at {seq} refused.* 1 to 3"):
        journal.save_snapshot("a", seq, b"")
    assert journal.snapshot("a") is None


def test_pruning(journal: Journal) -> None:
    epoch = filled(journal, "a", 200)
    journal.save_snapshot("a", 150, b"s")
    journal.prune("a", 149)
    journal.prune("a", 20)
    assert [record.seq for record in journal.read("a", after=149)] == list(range(150, 201))
    with pytest.raises(Pruned, match="record 149 is pruned, as all up to 149"):
        list(journal.read("a", after=148))
    with pytest.raises(NotWritten, match="snapshot at 148 refused"):
        journal.save_snapshot("a", 148, b"")
    journal.append("a", epoch, 201, b"201")
    assert journal.last("a") == 201
    assert journal.snapshot("a") == Snapshot(150, b"s")


def test_pruning_everything(journal: Journal) -> None:
    filled(journal, "a", 70)
    journal.save_snapshot("a", 70, b"s")
    journal.prune("a", 70)
    assert journal.last("a") == 70
    assert journal.streams() == ["a"]
    assert list(journal.read("a", after=70)) == []
    epoch = journal.reign("a")
    journal.append("a", epoch, 71, b"71")
    assert [record.seq for record in journal.read("a", after=70)] == [71]


@pytest.mark.parametrize("at", [None, 2])
def test_pruning_beyond_the_snapshot_is_refused(journal: Journal, at: int | None) -> None:
    filled(journal, "a", 5)
    if at:
        journal.save_snapshot("a", at, b"")
    with pytest.raises(NotWritten, match=f"pruning to 3 refused, .* at {at or 0}"):
        journal.prune("a", 3)
    assert len(list(journal.read("a"))) == 5


def test_reading_goes_on_while_the_writer_appends_and_prunes(journal: Journal) -> None:
    epoch = filled(journal, "a", 3)
    reader = journal.read("a")
    assert next(reader).seq == 1
    journal.append("a", epoch, 4, b"4")
    assert [record.seq for record in reader] == [2, 3, 4]
    assert list(reader) == []


def test_dropping(journal: Journal) -> None:
    epoch = filled(journal, "a", 5)
    filled(journal, "b", 1)
    journal.save_snapshot("a", 4, b"old")
    journal.prune("a", 2)
    journal.drop("a")
    assert journal.streams() == ["b"]
    assert journal.last("a") == 0
    assert journal.snapshot("a") is None
    with pytest.raises(Fenced):
        journal.append("a", epoch, 6, b"6")
    assert (journal.epoch("a"), journal.epoch("never")) == (epoch + 1, 0)
    again = journal.reign("a")
    assert again > epoch + 1
    journal.append("a", again, 1, b"new life")
    assert list(journal.read("a")) == [Record(1, again, b"new life")]


def test_memory_faults() -> None:
    journal = MemoryJournal()
    epoch = filled(journal, "a", 1)
    journal.break_next("failed")
    with pytest.raises(NotWritten):
        journal.append("a", epoch, 2, b"2")
    journal.append("a", epoch, 2, b"2")
    for written in (False, True):
        journal.break_next("unknown", written=written)
        with pytest.raises(UnknownOutcome):
            journal.append("a", epoch, 3, b"3")
        assert journal.last("a") == 2 + written
        with pytest.raises(UnknownOutcome):
            journal.append("a", epoch, journal.last("a") + 1, b"")
        epoch = journal.reign("a")
    journal.append("a", epoch, 4, b"4")


OPERATIONS = st.one_of(
    st.tuples(st.just("reign"), st.sampled_from("ab")),
    st.tuples(st.just("append"), st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 9), st.binary(max_size=9)),
    st.tuples(st.just("next"), st.sampled_from("ab"), st.binary(max_size=9)),
    st.tuples(st.just("read"), st.sampled_from("ab"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["last", "epoch", "snapshot", "drop"]), st.sampled_from("ab")),
    st.tuples(st.just("save_snapshot"), st.sampled_from("ab"), st.integers(0, 9), st.binary(max_size=9)),
    st.tuples(st.just("prune"), st.sampled_from("ab"), st.integers(0, 9)),
    st.tuples(st.just("streams")),
)


def outcome(journal: Journal, epochs: dict[str, int], operation: tuple[object, ...]) -> object:
    name, *arguments = operation
    if name == "next":  # what a writer in good order does; random numbers alone would rarely hit it
        stream = str(arguments[0])
        name, arguments = "append", [stream, epochs.get(stream, 0), journal.last(stream) + 1, arguments[1]]
    method: Callable[..., object] = getattr(journal, str(name))
    try:
        result = method(*arguments)
        if name == "read":
            result = list(result)  # type: ignore[call-overload]
    except JournalError as error:
        return type(error)
    if name == "reign":
        assert isinstance(result, int)
        epochs[str(arguments[0])] = result
    return result


@given(st.lists(OPERATIONS, max_size=40))
def test_both_journals_answer_alike(operations: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers_alike(operations, lambda: SqliteJournal(Path(folder) / "j", synchronous="off"))


@settings(max_examples=20)
@given(st.lists(OPERATIONS, max_size=40))
def test_postgresql_answers_like_the_others(postgres: Postgres, operations: list[tuple[object, ...]]) -> None:
    url = postgres.create()
    try:
        answers_alike(operations, lambda: PostgresJournal(url))
    finally:
        postgres.drop(url)


def answers_alike(operations: list[tuple[object, ...]], opened: Callable[[], Journal]) -> None:
    memory = MemoryJournal()
    epochs: tuple[dict[str, int], dict[str, int]] = ({}, {})
    with opened() as journal:
        for operation in operations:
            assert outcome(memory, epochs[0], operation) == outcome(journal, epochs[1], operation), operation
    with opened() as again:
        for name in "ab":
            base = memory.last(name) if memory.snapshot(name) else 0
            assert list(again.read(name, base)) == list(memory.read(name, base))
            assert again.snapshot(name) == memory.snapshot(name)
