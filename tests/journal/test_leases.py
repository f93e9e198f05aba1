"""What leases and rosters do on PostgreSQL and in the store that the fault simulation uses: the same tests on both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.journal.journal import Fenced, Held, Journal, JournalError, NotWritten, UnknownOutcome
from fairlead.journal.pgroster import PostgresRoster
from fairlead.journal.postgresql import PostgresJournal
from fairlead.journal.roster import Lease, Member, Roster
from tests.chaos.shared_journal import Link, SharedJournal, SharedRoster, SharedStore
from tests.postgres import Postgres, PostgresProxy
from tests.until import until

STREAM = "partition/p"
LONG = 600.0
"""Seconds of a lease that does not end in a test, unless the test ends it."""


class Place(Protocol):
    """A journal that servers share."""

    def journal(self, server: str, lease: float = LONG) -> Journal: ...
    def roster(self, server: str, lease: float = LONG) -> Roster: ...
    def expire(self) -> None:
        """End all leases of streams, as time does."""

    def cut(self, server: str, away: bool = True) -> None:
        """Cut a server off, or connect it again."""

    def lose(self, server: str, when: Literal["before", "after"]) -> None:
        """Lose the connection of a server in its next append."""

    def renewed(self, journal: Journal) -> None:
        """Let a server renew its leases."""


class Memory:
    def __init__(self) -> None:
        self.store = SharedStore()
        self.links: dict[str, BreakableLink] = {}

    def link(self, server: str) -> BreakableLink:
        return self.links.setdefault(server, BreakableLink())

    def journal(self, server: str, lease: float = LONG) -> Journal:
        return SharedJournal(self.store, server, f"http://{server}", lease, self.link(server))

    def roster(self, server: str, lease: float = LONG) -> Roster:
        return SharedRoster(self.store, server, f"http://{server}", lease, self.link(server))

    def expire(self) -> None:
        for row in self.store.leases.values():
            row.expires = float("-inf")

    def cut(self, server: str, away: bool = True) -> None:
        self.link(server).away = away

    def lose(self, server: str, when: Literal["before", "after"]) -> None:
        self.link(server).losing = when

    def renewed(self, journal: Journal) -> None:
        assert isinstance(journal, SharedJournal)
        journal.renew()


class BreakableLink(Link):
    def __init__(self) -> None:
        self.away = False
        self.losing: Literal["", "before", "after"] = ""

    def check(self) -> None:
        if self.away:
            raise JournalError("it is cut off")

    def loses(self) -> Literal["", "before", "after"]:
        losing, self.losing = self.losing, ""
        return losing


class Database:
    """PostgreSQL, with a proxy for each server."""

    def __init__(self, postgres: Postgres, url: str, folder: Path) -> None:
        self.postgres = postgres
        self.url = url
        self.folder = folder
        self.proxies: dict[str, PostgresProxy] = {}

    def proxy(self, server: str) -> PostgresProxy:
        if server not in self.proxies:
            (self.folder / server).mkdir()
            self.proxies[server] = PostgresProxy(self.folder / server, self.postgres)
        return self.proxies[server]

    def journal(self, server: str, lease: float = LONG) -> Journal:
        url = self.proxy(server).url(self.url)
        return PostgresJournal(url, server, f"http://{server}", lease, patience=0.3)

    def roster(self, server: str, lease: float = LONG) -> Roster:
        return PostgresRoster(self.proxy(server).url(self.url), server, f"http://{server}", lease)

    def expire(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("UPDATE fairlead.reigns SET expires = 'epoch'")

    def cut(self, server: str, away: bool = True) -> None:
        proxy = self.proxy(server)
        proxy.open = not away
        if away:
            proxy.cut_all()

    def lose(self, server: str, when: Literal["before", "after"]) -> None:
        self.proxy(server).cut_next(STREAM, before=when == "before")

    def renewed(self, journal: Journal) -> None:
        assert isinstance(journal, PostgresJournal)
        before = journal.leads_until()
        until(lambda: journal.leads_until() > before)

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()


@pytest.fixture(params=["memory", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield Memory()
        return
    database = Database(request.getfixturevalue("postgres"), request.getfixturevalue("database"), tmp_path)
    yield database
    database.close()


def written(journal: Journal) -> list[tuple[int, bytes]]:
    return [(record.epoch, record.payload) for record in journal.read(STREAM)]


# Leases


def test_a_stream_with_a_lease_is_held(place: Place) -> None:
    with place.journal("one") as one, place.journal("two") as two:
        epoch = one.reign(STREAM)
        with pytest.raises(Held) as held:
            two.reign(STREAM)
        assert held.value.leader == "http://one" and LONG / 2 < held.value.seconds <= LONG
        with pytest.raises(Held):
            two.drop(STREAM)
        one.append(STREAM, epoch, 1, b"1")
        assert written(two) == [(epoch, b"1")]  # reading needs no lease


def test_a_lease_that_ended_is_taken_and_the_old_leader_is_fenced(place: Place) -> None:
    with place.journal("one") as one, place.journal("two") as two:
        old = one.reign(STREAM)
        one.append(STREAM, old, 1, b"1")
        place.expire()
        new = two.reign(STREAM)
        assert new > old
        with pytest.raises(Fenced):  # before its successor has written
            one.append(STREAM, old, 2, b"late")
        two.append(STREAM, new, 2, b"2")
        with pytest.raises(Fenced):
            one.append(STREAM, old, 3, b"late")
        with pytest.raises(Held):
            one.reign(STREAM)
        assert written(two) == [(old, b"1"), (new, b"2")]


def test_an_ended_lease_still_lets_its_leader_write_until_it_is_taken(place: Place) -> None:
    with place.journal("one") as one:
        epoch = one.reign(STREAM)
        place.expire()
        one.append(STREAM, epoch, 1, b"1")


def test_an_epoch_of_another_object(place: Place) -> None:
    with place.journal("one") as one, place.journal("two") as two:
        epoch = one.reign(STREAM)
        with pytest.raises(NotWritten, match="was not begun by this object"):
            two.append(STREAM, epoch, 1, b"1")
        with pytest.raises(NotWritten, match="out of sequence"):
            one.append(STREAM, epoch, 2, b"2")


def test_closing_gives_the_lease_back(place: Place) -> None:
    with place.journal("one") as one:
        epoch = one.reign(STREAM)
    with place.journal("two") as two:
        assert two.reign(STREAM) > epoch


def test_closing_leaves_the_lease_of_a_successor_alone(place: Place) -> None:
    with place.journal("two") as two, place.journal("three") as three:
        with place.journal("one") as one:
            one.reign(STREAM)
            place.expire()
            two.reign(STREAM)
        with pytest.raises(Held):
            three.reign(STREAM)


def test_two_objects_of_one_server(place: Place) -> None:
    with place.journal("one") as first, place.journal("one") as second:
        epoch = first.reign(STREAM)
        later = second.reign(STREAM)
        assert later > epoch
        with pytest.raises(Fenced):
            first.append(STREAM, epoch, 1, b"1")
        second.append(STREAM, later, 1, b"1")


def test_a_lease_is_renewed(place: Place) -> None:
    began = time.monotonic()
    with place.journal("one", lease=20) as one, place.journal("two") as two:
        one.reign(STREAM)
        assert began < one.leads_until() <= time.monotonic() + 18
        place.expire()
        place.renewed(one)
        with pytest.raises(Held):
            two.reign(STREAM)


def test_the_lease_of_a_successor_is_not_renewed(place: Place) -> None:
    with place.journal("one", lease=1) as one, place.journal("two") as two:
        one.reign(STREAM)
        place.expire()
        two.reign(STREAM)
        until(lambda: one.leads_until() < time.monotonic())


def test_dropping_ends_the_lease(place: Place) -> None:
    with place.journal("one") as one, place.journal("two") as two:
        epoch = one.reign(STREAM)
        one.drop(STREAM)
        assert one.leads_until() == float("inf")  # it leads nothing
        assert two.reign(STREAM) > epoch + 1


# Lost connections


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_lost_in_an_append(place: Place, when: Literal["before", "after"]) -> None:
    """The record is written once, whether the connection was lost before it was written or before its answer."""
    with place.journal("one") as one:
        epoch = one.reign(STREAM)
        one.append(STREAM, epoch, 1, b"1")
        place.lose("one", when)
        one.append(STREAM, epoch, 2, b"2")
        one.append(STREAM, epoch, 3, b"3")
        assert written(one) == [(epoch, b"1"), (epoch, b"2"), (epoch, b"3")]


def test_a_server_that_is_cut_off(place: Place) -> None:
    with place.journal("two") as two:
        one = place.journal("one")
        epoch = one.reign(STREAM)
        one.append(STREAM, epoch, 1, b"1")
        place.cut("one")
        with pytest.raises(UnknownOutcome):
            one.append(STREAM, epoch, 2, b"2")
        place.cut("one", away=False)
        with pytest.raises(UnknownOutcome):  # recovery has to read first
            one.append(STREAM, epoch, 2, b"2")
        one.close()
        place.expire()
        later = two.reign(STREAM)
        two.append(STREAM, later, two.last(STREAM) + 1, b"2")
        assert written(two)[0] == (epoch, b"1") and written(two)[-1] == (later, b"2")


def test_the_journal_cannot_be_opened_without_the_database(place: Place) -> None:
    place.journal("one").close()
    place.cut("one")
    with pytest.raises(JournalError):
        place.journal("one")


# Rosters


def test_servers(place: Place) -> None:
    one, two = place.roster("one"), place.roster("two")
    try:
        assert list(one.heartbeat(1, True).members) == [Member("one", "http://one", 1)]
        two.heartbeat(2, True)
        assert list(one.heartbeat(1, True).members) == [Member("one", "http://one", 1), Member("two", "http://two", 2)]
        two.heartbeat(3, False)
        assert one.heartbeat(1, True).members[1] == Member("two", "http://two", 3, takes=False)
        two.heartbeat(3, True)
        assert one.drain("two", True) and not two.drain("one", True)  # one server has to lead
        assert one.heartbeat(1, True).members[1] == Member("two", "http://two", 3, takes=False, draining=True)
        two.heartbeat(3, True)  # it says that it takes, and drains all the same
        assert one.heartbeat(1, True).members[1].draining
        assert one.drain("two", False) and not one.drain("nobody", True)
        two.close()
        assert [member.id for member in one.heartbeat(1, True).members] == ["one"]
    finally:
        one.close()


def test_leases_in_the_roster(place: Place) -> None:
    one, two = place.roster("one"), place.roster("two")
    with place.journal("one") as journal:
        one.heartbeat(1, True)
        epoch = journal.reign(STREAM)
        assert two.heartbeat(1, True).leases == {STREAM: Lease("one", "http://one", 0)}
        journal.append(STREAM, epoch, 1, b"1")
        assert two.heartbeat(1, True).leases == {STREAM: Lease("one", "http://one", 1)}
        place.expire()  # a server that let a lease end is not up, except to itself
        membership = two.heartbeat(1, True)
        assert membership.leases == {STREAM: Lease(seq=1)} and [member.id for member in membership.members] == ["two"]
        assert [member.id for member in one.heartbeat(1, True).members] == ["one", "two"]
    assert two.heartbeat(1, True).leases == {STREAM: Lease(seq=1)}
    one.close()
    two.close()


def test_a_server_is_woken(place: Place) -> None:
    one, two = place.roster("one"), place.roster("two")
    woken: list[int] = []
    two.listen(lambda: woken.append(1))
    one.heartbeat(1, True)

    def called() -> bool:
        one.notify()
        return bool(woken)

    until(called)
    one.close()
    two.close()


def test_a_roster_that_is_cut_off(place: Place) -> None:
    one = place.roster("one")
    one.heartbeat(1, True)
    place.cut("one")
    with pytest.raises(JournalError):
        one.heartbeat(1, True)
    place.cut("one", away=False)
    assert [member.id for member in one.heartbeat(1, True).members] == ["one"]
    one.close()


# Random operations get the same answers from both.

SERVERS = ("one", "two", "three")
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["reign", "append", "append", "look", "reopen", "drop"]), st.sampled_from(SERVERS)),
    st.tuples(st.sampled_from(["drain", "undrain"]), st.sampled_from(SERVERS)),
    st.tuples(st.just("expire"), st.just("")),
)


def done(place: Place, journals: dict[str, Journal], epochs: dict[str, int], operation: tuple[str, str]) -> object:
    what, server = operation
    journal = journals.get(server)
    try:
        if what == "expire":
            place.expire()
        elif what == "look":
            membership = roster_of(place, server).heartbeat(1, True)
            return list(membership.members), membership.leases
        elif what in ("drain", "undrain"):
            roster = roster_of(place, "one")
            roster.heartbeat(1, True)
            return roster.drain(server, what == "drain")
        elif what == "reopen":
            assert journal is not None
            journal.close()
            journals[server] = place.journal(server)
        elif what == "reign":
            assert journal is not None
            epochs[server] = journal.reign(STREAM)
            return epochs[server]
        elif what == "drop":
            assert journal is not None
            journal.drop(STREAM)
        else:
            assert journal is not None
            journal.append(STREAM, epochs.get(server, 0), journal.last(STREAM) + 1, server.encode())
            return written(journal)
    except JournalError as problem:
        return type(problem)
    return None


ROSTERS: dict[tuple[Place, str], Roster] = {}


def roster_of(place: Place, server: str) -> Roster:
    return ROSTERS.setdefault((place, server), place.roster(server))


@settings(max_examples=25, deadline=None)
@given(st.lists(OPERATIONS, max_size=25))
def test_both_answer_alike(postgres: Postgres, operations: list[tuple[str, str]]) -> None:
    url = postgres.create()
    places: tuple[Place, Place] = (Memory(), Plain(url))
    journals: tuple[dict[str, Journal], dict[str, Journal]] = ({}, {})
    epochs: tuple[dict[str, int], dict[str, int]] = ({}, {})
    try:
        for at, place in enumerate(places):
            journals[at].update({server: place.journal(server) for server in SERVERS})
        for operation in operations:
            one, other = (done(places[at], journals[at], epochs[at], operation) for at in range(2))
            assert one == other, operation
    finally:
        for opened in journals:
            for journal in opened.values():
                with suppress(JournalError):
                    journal.close()
        for roster in ROSTERS.values():
            roster.close()
        ROSTERS.clear()
        postgres.drop(url)


class Plain(Database):
    """PostgreSQL without proxies."""

    def __init__(self, url: str) -> None:
        self.url = url

    def journal(self, server: str, lease: float = LONG) -> Journal:
        return PostgresJournal(self.url, server, f"http://{server}", lease)

    def roster(self, server: str, lease: float = LONG) -> Roster:
        return PostgresRoster(self.url, server, f"http://{server}", lease)
