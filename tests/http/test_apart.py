"""Partitions of one server apart from each other: their cycles, and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Lock

import pytest

from fairlead.control.control import Control
from fairlead.control.dependencies import Dependencies
from fairlead.core.commands import MarkReady, Submit
from fairlead.core.config import parse_partition
from fairlead.core.cycle import Cycle
from fairlead.core.documents import parse_job
from fairlead.core.state import Partition
from fairlead.journal.codec import stream_of
from fairlead.journal.journal import Journal, NotWritten
from fairlead.journal.pgroster import PostgresRoster
from fairlead.journal.postgresql import PostgresJournal
from fairlead.journal.roster import Roster
from fairlead.journal.sql import SqliteJournal
from fairlead.wire.unserved import Unserved
from tests.http.test_control import Listener

SECONDS = 60.0
JOB = Submit(spec=parse_job({"queue": "root.a", "stages": [{"command": ["true"]}]}), operator=True)
CONFIG = parse_partition({"queues": {"root": {"a": {}}}}, "test")
Parts = tuple[Callable[[], Journal], Roster | None]


@pytest.fixture(params=["sqlite", "postgresql"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> Parts:
    if request.param == "sqlite":
        turn = Lock()
        return lambda: SqliteJournal(tmp_path / "journal", synchronous="off", turn=turn), None
    url = request.getfixturevalue("database")
    return (
        lambda: PostgresJournal(url, "one", "http://one", SECONDS),
        PostgresRoster(url, "one", "http://one", SECONDS),
    )


class LongCycle:
    """An observer that makes each cycle of partition `a` with a submission last until it is released."""

    def __init__(self) -> None:
        self.entered, self.released = Event(), Event()

    def began(self, partition: Partition) -> None:
        pass

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        if decided.plan.partition.name == "a" and any(isinstance(command, Submit) for command in decided.commands):
            self.entered.set()
            assert self.released.wait(SECONDS)

    def stopped(self, partition: Partition, why: str) -> None:
        pass


def test_a_submission_is_answered_while_another_partition_is_in_a_cycle(parts: Parts) -> None:
    async def story() -> None:
        open_journal, roster = parts
        long = LongCycle()
        control = Control(Dependencies(open_journal, Listener(), [long], {"a": CONFIG, "b": CONFIG}, roster=roster))
        await control.start()
        try:
            for name in "ab":
                await control.find(name).execute(MarkReady(operator=True))
            in_a = asyncio.create_task(control.find("a").execute(JOB))
            assert await asyncio.to_thread(long.entered.wait, SECONDS)
            async with asyncio.timeout(SECONDS):
                answer = await control.find("b").execute(JOB)
                known = await control.find("b").read(lambda state: answer.job in state.jobs)
            assert known
            assert not in_a.done()
            long.released.set()
            await in_a
        finally:
            long.released.set()
            await control.close()

    asyncio.run(story())


class FailingOnce(SqliteJournal):
    """A journal whose next record of one stream is not written."""

    fails = ""

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        if stream == FailingOnce.fails:
            FailingOnce.fails = ""
            raise NotWritten("a test says so")
        super().append(stream, epoch, seq, payload)


def test_a_partition_recovers_while_the_others_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        first = {"a": CONFIG, "b": CONFIG}
        control = Control(
            Dependencies(lambda: FailingOnce(tmp_path / "journal", synchronous="off"), Listener(), first=first)
        )
        await control.start()
        try:
            first, other = control.find("a"), control.find("b")
            kept = await first.execute(JOB)
            FailingOnce.fails = stream_of("a")
            with pytest.raises(Unserved, match="nothing was done"):
                await first.execute(JOB)
            async with asyncio.timeout(SECONDS):
                while control.led() != ["a", "b"] or control.find("a") is first:
                    assert control.find("b") is other
                    await other.execute(JOB)
            assert list(await control.find("a").read(lambda state: list(state.jobs))) == [kept.job]
            assert control.find("a").epoch > first.epoch
            assert control.find("b") is other
        finally:
            await control.close()

    asyncio.run(story())
