"""The control plane alone, with an engine that only records messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from fairlead.control.control import Control
from fairlead.control.dependencies import Dependencies
from fairlead.control.streams import FIRST_PAUSE
from fairlead.core.commands import AddNode, Configure, Kill, MarkReady, Submit
from fairlead.core.config import parse_partition
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.effects import ForNode
from fairlead.engines.engine import PartitionHandle
from fairlead.journal.codec import CLUSTER_STREAM, stream_of
from fairlead.journal.in_memory import MemoryJournal
from fairlead.journal.journal import JournalError
from fairlead.journal.roster import Alone, Lease, Member, Membership
from fairlead.wire.unserved import Unserved
from fairlead.writer.cluster import ConfigurationLog
from fairlead.writer.writer import Writer


class Listener:
    """An engine that records the messages to nodes."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def begin(self, partition: str, desk: PartitionHandle) -> None:
        pass

    def dispatch(self, partition: str, messages: Sequence[ForNode]) -> None:
        for message in messages:
            self.messages += ["launch" for _ in message.launches] + ["stop" for _ in message.stops]

    def end(self, partition: str) -> None:
        pass


def config(**queue: Any) -> Any:
    return parse_partition({"queues": {"root": {"a": queue}}}, "test")


def test_launches_of_a_configuration_are_sent_before_later_stops() -> None:
    async def story() -> list[str]:
        journal, engine = MemoryJournal(), Listener()
        control = Control(Dependencies(lambda: journal, engine, first={"default": config(limit={"cpu": 1})}))
        await control.start()
        served = control.find()
        name, node = parse_node({"name": "n0", "resources": {"cpu": 4}})
        spec = parse_job({"queue": "root.a", "stages": [{"command": ["true"], "resources": {"cpu": 2}}]})
        for command in (MarkReady(operator=True), AddNode(name=name, spec=node, operator=True)):
            await served.execute(command)
        await served.execute(Submit(spec=spec, id="j", operator=True))
        await control.configure({"default": config()})
        await served.execute(Kill(job="j", operator=True))
        await control.close()
        return engine.messages

    assert asyncio.run(story()) == ["launch", "stop"]


class PlannedRoster(Alone):
    """A roster with the servers and leases that a test gives it."""

    def __init__(self) -> None:
        self.leases: dict[str, Lease] = {}
        self.others: tuple[Member, ...] = (Member("x", "http://x", 9),)

    def heartbeat(self, version: int, takes: bool) -> Membership:
        return Membership("me", (Member("me", "http://me", version), *self.others), dict(self.leases))


@pytest.mark.parametrize("apart", [False, True])
def test_a_configuration_that_meets_the_end_of_the_writers_starts_no_partition(apart: bool) -> None:
    """The next control plane follows it: it is durable."""

    async def story() -> list[str]:
        journal, roster = MemoryJournal(), PlannedRoster()
        roster.others = ()
        first = {"default": config()}
        control = Control(Dependencies(lambda: journal, Listener(), first=first, roster=roster if apart else None))
        await control.start()
        if apart:
            roster.leases = {CLUSTER_STREAM: Lease("me", "http://me", 1), stream_of("default"): Lease("me", "", 1)}
        configuring = asyncio.create_task(control.configure({"default": config(), "other": config()}))
        while journal.last(CLUSTER_STREAM) < 2:
            await asyncio.sleep(0)
        await control.close()
        with pytest.raises(Unserved):
            await configuring
        assert control.names() == []
        control = Control(Dependencies(lambda: journal, Listener(), first={"default": config()}))
        await control.start()
        try:
            return control.names()
        finally:
            await control.close()

    assert asyncio.run(story()) == ["default", "other"]


def test_a_server_that_its_database_does_not_answer_still_knows_its_configuration() -> None:
    """A server that starts on a slow database compares its file with the configuration after the lease has ended."""

    async def story() -> None:
        journal, roster, ahead = MemoryJournal(), PlannedRoster(), 0.0
        roster.lasts = 60.0
        first, steady = {"a": config()}, lambda: time.monotonic() + ahead
        control = Control(Dependencies(lambda: journal, Listener(), first=first, roster=roster, steady=steady))
        await control.start()
        assert control.configured[1] == control.last_configured == {"a": config()}
        ahead = 1_000_000.0
        with pytest.raises(Unserved, match="does not answer"):
            _ = control.configured
        assert control.last_configured == {"a": config()}
        await control.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_server_with_an_old_configuration_removes_no_partition_that_was_just_added() -> None:
    """It sees the records of the partition before the configuration that has it."""

    async def story() -> None:
        journal, roster = MemoryJournal(), PlannedRoster()
        other = ConfigurationLog(journal)
        other.write({"a": config()})
        roster.leases = {CLUSTER_STREAM: Lease("x", "http://x", 1), stream_of("a"): Lease("x", "http://x", 0)}
        notes: list[str] = []
        control = Control(Dependencies(lambda: journal, Listener(), roster=roster, note=notes.append))
        await control.start()
        assert (control.names(), control.led()) == (["a"], [])
        with pytest.raises(Unserved, match="http://x leads partition a") as refused:
            control.find()
        assert refused.value.leader == "http://x"
        other.write({"a": config(), "b": config()})
        writer = Writer(journal, "b")
        writer.cycle([Configure(config=config(), version=2, operator=True)], 1)
        roster.leases[stream_of("b")] = Lease(seq=1)  # free, and the old configuration lacks it
        while not any("just added" in note for note in notes):
            await asyncio.sleep(0.01)
        assert journal.last(stream_of("b")) == 1
        roster.leases[CLUSTER_STREAM] = Lease("x", "http://x", 2)
        while control.led() != ["b"]:
            await asyncio.sleep(0.01)
        # The partition is led elsewhere and follows the next configuration: then it is followed here too.
        assert (await control.reader("a")).seq == 0
        await control.close()

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("broken", [False, True])
def test_a_reconcile_pass_while_a_partition_is_removed_does_not_remove_it_again(broken: bool) -> None:
    """If the writer stops meanwhile, the next pass removes the partition."""

    async def story() -> None:
        journal, roster, notes = MemoryJournal(), PlannedRoster(), list[str]()
        roster.others = ()
        first = {"a": config(), "b": config()}
        control = Control(Dependencies(lambda: journal, Listener(), first=first, roster=roster, note=notes.append))
        await control.start()
        roster.leases = {stream_of(name): Lease("me", "http://me", 1) for name in "ab"}
        roster.leases[CLUSTER_STREAM] = Lease("me", "http://me", 1)
        service = control.find("b")
        close = service.live.close

        async def reconcile_and_close() -> None:
            if broken:
                control._streams.fail(control._streams.threads[stream_of("b")], "the test breaks it")
            await control._supervisor.reconcile()
            while stream_of("b") in control._streams.threads and journal.last(stream_of("b")):
                await asyncio.sleep(0.01)
                if not broken:
                    break
            await close()

        service.live.close = reconcile_and_close  # type: ignore[method-assign]
        configuring = asyncio.create_task(control.configure({"a": config()}))
        while journal.last(stream_of("b")):
            await asyncio.sleep(0.01)
        del roster.leases[stream_of("b")]
        await configuring
        assert (control.led(), control.names()) == (["a"], ["a"])
        assert not [note for note in notes if "Error" in note]
        await control.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_deposed_server_reads_the_configuration_again() -> None:
    async def story() -> None:
        journal, roster = MemoryJournal(), PlannedRoster()
        control = Control(Dependencies(lambda: journal, Listener(), first={"a": config()}, roster=roster))
        await control.start()
        assert control.led() == ["a"]
        roster.leases = {CLUSTER_STREAM: Lease("x", "http://x", 2), stream_of("a"): Lease("me", "http://me", 1)}
        ConfigurationLog(journal).write({"a": config(), "b": config()})
        while control.names() != ["a", "b"]:
            await asyncio.sleep(0.01)
        with pytest.raises(Unserved, match="http://x leads the configuration"):
            await control.configure({"a": config()})
        assert control.led()[:1] == ["a"]
        await control.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_requests_do_not_lengthen_the_pause_after_a_lease_has_lapsed() -> None:
    async def story() -> None:
        journal, roster = MemoryJournal(), PlannedRoster()
        control = Control(Dependencies(lambda: journal, Listener(), first={"a": config()}, roster=roster))
        await control.start()
        journal.leads_until = lambda: float("-inf")  # type: ignore[method-assign]
        for _ in range(20):
            with pytest.raises(Unserved):
                control.find()
        assert 0 < control._streams.until_retry() <= FIRST_PAUSE
        await control.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_agent_of_a_removed_partition_is_turned_away_while_the_records_cannot_be_read() -> None:
    async def story() -> None:
        journal = MemoryJournal()
        control = Control(Dependencies(lambda: journal, Listener(), first={"a": config()}))
        await control.start()
        assert await control.removed("b") == 0

        def fail(stream: str) -> int:
            raise JournalError("a test says so")

        journal.epoch = fail  # type: ignore[method-assign]
        with pytest.raises(Unserved, match="cannot be read: a test says so"):
            await control.removed("b")
        await control.close()

    asyncio.run(asyncio.wait_for(story(), 60))
