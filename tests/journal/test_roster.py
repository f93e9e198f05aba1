"""Which server leads which stream: equal numbers, few moves, and the rows of servers on PostgreSQL."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.journal.journal import Held
from fairlead.journal.pgroster import PostgresRoster
from fairlead.journal.postgresql import PostgresJournal
from fairlead.journal.roster import Lease, Member, Membership, places, spread


@pytest.mark.parametrize(
    ("counts", "streams", "expected"),
    [
        ({"a": 4}, 4, {"a": 4}),
        ({"a": 4, "b": 0}, 4, {"a": 2, "b": 2}),
        ({"a": 0, "b": 1}, 1, {"a": 0, "b": 1}),
        ({"a": 1, "b": 2}, 3, {"a": 1, "b": 2}),
        ({"a": 0, "b": 0, "c": 0}, 4, {"a": 2, "b": 1, "c": 1}),
        ({}, 4, {}),
    ],
)
def test_places(counts: dict[str, int], streams: int, expected: dict[str, int]) -> None:
    assert places(counts, streams) == expected


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(("", "x", "y", "z", "gone")), min_size=1),
    st.sets(st.sampled_from("xyz")),
)
def test_streams_spread_evenly_and_then_rest(held: dict[str, str], draining: set[str]) -> None:
    """Servers that look in turn spread the streams, and then nothing moves any more."""
    members = [Member(id, id, takes=id not in draining, draining=id in draining) for id in "xyz"]
    taking = [member.id for member in members if member.takes]
    held = {stream: "" if holder == "gone" else holder for stream, holder in held.items()}
    for _ in range(4 * len(held)):
        before = dict(held)
        for me in "xyz":
            leases = {stream: Lease(holder, holder) for stream, holder in held.items() if holder}
            take, give = spread(Membership(me, members, leases), sorted(held))
            assert not (take and give) and len(give) <= 1
            held.update(dict.fromkeys(take, me))
            held.update(dict.fromkeys(give, ""))
        if held == before:
            break
    counts = [sum(holder == me for holder in held.values()) for me in taking]
    if taking:
        assert sum(counts) == len(held) and max(counts) - min(counts) <= 1


def test_servers_of_a_database(database: str) -> None:
    one, two = PostgresRoster(database, "one", "http://one", 60.0), PostgresRoster(database, "two", "http://two", 60.0)
    try:
        assert [member.id for member in one.heartbeat(1, True).members] == ["one"]
        two.heartbeat(2, True)
        assert one.heartbeat(1, True).members == [Member("one", "http://one", 1), Member("two", "http://two", 2)]
        woken = threading.Event()
        two.listen(woken.set)
        deadline = time.monotonic() + 60
        while not woken.is_set() and time.monotonic() < deadline:
            one.notify()
            woken.wait(0.1)
        assert woken.is_set()
        assert one.drain("two", True)
        assert not two.drain("one", True)  # no server could lead then
        assert one.heartbeat(1, True).members[1] == Member("two", "http://two", 2, takes=False, draining=True)
        assert one.drain("two", False)
        with PostgresJournal(database, "one", "http://one", 60.0) as journal:
            journal.reign("partition/p")
            journal.append("partition/p", 1, 1, b"x")
            assert two.heartbeat(2, True).leases["partition/p"] == Lease("one", "http://one", 1)
            with PostgresJournal(database, "two", "http://two", 60.0) as other, pytest.raises(Held):
                other.reign("partition/p")
        assert two.heartbeat(2, True).leases["partition/p"] == Lease(seq=1)
    finally:
        one.close()
        assert [member.id for member in two.heartbeat(2, True).members] == ["two"]
        two.close()


def test_a_server_that_lets_a_lease_end_is_not_up(database: str) -> None:
    """Its partitions are taken at once, even if its own row lasts longer."""
    one, two = PostgresRoster(database, "one", "http://one", 60.0), PostgresRoster(database, "two", "http://two", 60.0)
    try:
        one.heartbeat(1, True)
        with PostgresJournal(database, "one", "http://one", 60.0) as journal:
            journal.reign("partition/p")
            assert len(two.heartbeat(1, True).members) == 2
            journal._db.execute("UPDATE reigns SET expires = 'epoch'")
            membership = two.heartbeat(1, True)
            assert [member.id for member in membership.members] == ["two"]
            assert spread(membership, ["partition/p"]) == (["partition/p"], [])
    finally:
        one.close()
        two.close()
