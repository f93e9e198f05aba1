"""The hub, with agents that say just what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from fairlead.core.commands import MoveNode
from fairlead.engines.base import Peer
from fairlead.wire import agent as wire
from fairlead.wire.agent import PATH, Tasks, decode_from_server, encode
from tests.agent.plant import PARTITION, SECONDS, Plant

HELLO = wire.Hello(wire.VERSION, "n1", {"cpu": 4, "memory": "4Gi"}, address="10.0.0.1")


class Puppet:
    """An agent whose every word is a test's."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.number = 0
        self._confirmed: list[wire.FromServer] = []

    async def say(self, message: wire.FromAgent) -> None:
        await self.connection.send(encode(message))

    async def hear(self) -> wire.FromServer:
        if self._confirmed:
            return self._confirmed.pop(0)
        data = await self.connection.recv()
        assert isinstance(data, bytes)
        message = decode_from_server(data)
        if isinstance(message, wire.Work):
            self._confirmed += [wire.Confirmed(number) for number in message.confirmed]
        return message

    async def wait_for(self, kind: type[Any]) -> Any:
        while not isinstance(message := await self.hear(), kind):
            pass
        return message

    async def launched(self) -> wire.Launch:
        """The first launch that comes."""
        while not (work := await self.wait_for(wire.Work)).launches:
            pass
        launch: wire.Launch = work.launches[0]
        return launch

    async def report(self, *reports: wire.Report) -> None:
        self.number += 1
        await self.say(wire.Reports(self.number, reports))
        confirmed = await self.wait_for(wire.Confirmed)
        assert confirmed.number == self.number


@asynccontextmanager
async def puppet(plant: Plant, hello: wire.Hello = HELLO) -> AsyncIterator[Puppet]:
    async with connect(plant.url.replace("http", "ws") + PATH, compression=None) as connection:
        one = Puppet(connection)
        await one.say(hello)
        yield one


def tell(path: Path, story: Callable[[Plant], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def in_time() -> None:
        async with (
            asyncio.timeout(SECONDS),
            Plant(path / "journal", {"heartbeat": "50ms", **settings}).at_work() as plant,
        ):
            await story(plant)

    asyncio.run(in_time())


def state_of(plant: Plant, job: str) -> Callable[[Any], str]:
    return lambda p: "".join({each.state for each in p.allocations.values() if each.stage.job.id == job})


def test_a_greeting_is_answered_with_what_stands(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        job = await plant.submit(["true"])
        async with puppet(plant) as one:
            welcome = await one.wait_for(wire.Welcome)
            assert (welcome.epoch, welcome.heartbeat, welcome.lease) == (1, 50_000, 60_000_000)
            launch = await one.launched()
            assert launch.tasks == Tasks(job, 1, "main", 1, (0, 1))
        async with puppet(plant) as again:  # it was not acknowledged: it stands
            work = await again.wait_for(wire.Work)
            assert work.standing
            assert [each.tasks for each in work.launches] == [launch.tasks]
            await again.report(wire.Report(launch.tasks, "succeeded", 0))
            assert await plant.over(job) == "succeeded"

    tell(tmp_path, story)


@pytest.mark.parametrize(
    ("machine", "fence", "lease"),
    [
        ("", "lease", 60_000_000),
        ("another", "lease", 60_000_000),
        ("", "none", 0),
        (wire.this_machine(), "lease", 60_000_000),
    ],
)
def test_who_may_be_cut_off_has_a_lease(tmp_path: Path, machine: str, fence: str, lease: int) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant, msgspec.structs.replace(HELLO, machine=machine)) as one:
            assert (await one.wait_for(wire.Welcome)).lease == lease

    tell(tmp_path, story, fence=fence)


def test_what_an_agent_comes_back_without_is_lost(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.submit(["true"], count=2, min=1)
        async with puppet(plant) as one:
            launch = await one.launched()
            assert launch.tasks.indices == (0, 2)
            await one.report(wire.Report(launch.tasks, "running"))
        half = msgspec.structs.replace(launch.tasks, indices=(0, 1))
        async with puppet(plant, msgspec.structs.replace(HELLO, running=(half,))) as again:
            anew = await again.launched()
            assert (anew.tasks.indices, anew.tasks.attempt) == ((1, 2), 2)

    tell(tmp_path, story, chain=0)


def test_what_a_sign_of_life_does_not_list_is_lost(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.submit(["true"])
        async with puppet(plant) as one:
            launch = await one.launched()
            await one.report(wire.Report(launch.tasks, "running"))
            await one.say(wire.Beat(1, (launch.tasks,)))
            await one.wait_for(wire.Beaten)
            await one.say(wire.Beat(2, ()))
            assert (await one.launched()).tasks.attempt == 2

    tell(tmp_path, story)


def test_attempts_that_were_given_up_are_stopped_when_their_agent_is_back(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.submit(["true"])
        async with puppet(plant) as one:
            launch = await one.launched()
            await one.report(wire.Report(launch.tasks, "running"))
        await plant.ask(MoveNode(name="n1", action="lose", operator=True))
        async with puppet(plant, msgspec.structs.replace(HELLO, running=(launch.tasks,))) as again:
            work = await again.wait_for(wire.Work)
            assert [each.tasks for each in work.stops] == [launch.tasks]

    tell(tmp_path, story)


def test_the_silent_are_lost_after_their_lease(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.submit(["true"])
        async with puppet(plant) as one:
            launch = await one.launched()
            await one.report(wire.Report(launch.tasks, "running"))
            await plant.until(lambda p: p.nodes.state == ["lost"])
            with pytest.raises(ConnectionClosed):
                while True:
                    await one.hear()

    tell(tmp_path, story, lease="200ms")


def test_who_never_comes_back_after_a_restart_is_lost_too(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)

    async def later(plant: Plant) -> None:
        await plant.until(lambda p: p.nodes.state == ["lost"])

    tell(tmp_path, story, lease="200ms", ready_after="100ms")
    tell(tmp_path, later, lease="200ms", ready_after="100ms")


def test_who_is_lost_in_the_turn_in_which_it_joins_joins_again(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.turns.lock.acquire()
        async with puppet(plant) as one:
            while not plant.inbox.waiting:  # the node is to be added, and then it is lost, in one turn
                await asyncio.sleep(0.01)
            plant.offer(MoveNode(name="n1", action="lose", operator=True))
            plant.turns.lock.release()
            with pytest.raises(ConnectionClosed):
                while True:
                    await one.hear()
        async with puppet(plant) as again:
            await again.wait_for(wire.Work)
            job = await plant.submit(["true"])
            assert (await again.launched()).tasks.job == job

    tell(tmp_path, story)


def test_nobody_is_told_what_may_never_have_been_written(tmp_path: Path) -> None:
    """Between a write of unknown outcome and the end of its writer's reign an agent joins."""

    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Work)
        await plant.turns.lock.acquire()
        async with puppet(plant) as one:
            while not plant.inbox.waiting:
                await asyncio.sleep(0.01)
            plant.turns.lock.release()
            await plant.turns.lock.acquire()  # its turn is over, and it has yet to look
            plant._writer._stop("it is not known whether that was written")
            plant.turns.lock.release()
            with pytest.raises(ConnectionClosed):
                while True:
                    assert not isinstance(await one.hear(), wire.Work)

    tell(tmp_path, story)


def test_a_new_connection_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            async with puppet(plant) as two:
                await two.wait_for(wire.Welcome)
                with pytest.raises(ConnectionClosed):
                    while True:
                        await one.hear()
                await two.say(wire.Beat(1, ()))
                await two.wait_for(wire.Beaten)
                assert list(plant.hub.connected(PARTITION)) == ["n1"]

    tell(tmp_path, story)


def test_another_agent_of_the_same_name_is_refused_until_the_first_is_lost(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        one, other = (msgspec.structs.replace(HELLO, identity=each) for each in ("one", "other"))
        async with puppet(plant, one) as first:
            await first.wait_for(wire.Welcome)
            async with puppet(plant, other) as second:
                refusal = await second.hear()
                assert isinstance(refusal, wire.Refusal)
                assert "another agent speaks for n1" in refusal.problem
            await first.say(wire.Beat(1, ()))
            await first.wait_for(wire.Beaten)
            async with puppet(plant, one) as again:
                await again.wait_for(wire.Welcome)
        await plant.until(lambda p: p.nodes.state == ["lost"])
        async with puppet(plant, other) as second:
            await second.wait_for(wire.Welcome)

    tell(tmp_path, story, lease="1s")


def test_a_fault_in_what_hears_of_ends_makes_the_agent_send_again(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        def fail(ended: Any) -> None:
            raise RuntimeError("no room")

        plant.hub._ended = fail
        job = await plant.submit(["true"])
        async with puppet(plant) as one:
            launch = await one.launched()
            await one.say(
                wire.Reports(1, (wire.Report(launch.tasks, "succeeded", 0, ran=(1,), cpu=(1,), memory=(1,)),))
            )
            with pytest.raises(ConnectionClosed):
                while True:
                    await one.hear()
        assert await plant.over(job) == "succeeded"

    tell(tmp_path, story)


def test_gangs_are_told_where_their_members_are(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        two = msgspec.structs.replace(HELLO, node="n2", address="10.0.0.2")
        async with puppet(plant) as first, puppet(plant, two) as second:
            await first.wait_for(wire.Welcome)
            await second.wait_for(wire.Welcome)
            await plant.submit(["true"], count=3, resources={"cpu": 2})
            gangs = [(await each.launched()).gang for each in (first, second)]
            assert gangs[0] == gangs[1] is not None
            assert gangs[0].size == 3
            assert {(place.node, place.address) for place in gangs[0].places} == {
                ("n1", "10.0.0.1"),
                ("n2", "10.0.0.2"),
            }
            assert sorted(bound for place in gangs[0].places for bound in place.ranks) == [0, 2, 2, 3]

    tell(tmp_path, story)


def test_secrets_join_at_dispatch_only(tmp_path: Path) -> None:
    asked = []

    def secrets(user: str, names: tuple[str, ...]) -> dict[str, str]:
        asked.append((user, names))
        return {"db": "hush"}

    async def story() -> None:
        async with asyncio.timeout(SECONDS), Plant(tmp_path / "journal", {}, secrets=secrets).at_work() as plant:
            await plant.submit(["true"], secrets={"PASSWORD": "db", "OTHER": "none"})
            async with puppet(plant) as one:
                while not (work := await one.wait_for(wire.Work)).launches:
                    pass
                assert work.specs[0].secrets == (("PASSWORD", "hush"),)

    asyncio.run(story())
    assert asked == [("ann", ("none", "db"))]
    assert all(b"hush" not in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


REFUSED = {
    "no greeting": (encode(wire.Beat(1, ())), "greeting: an agent has to greet first"),
    "no message": (b"\xc1", "MessagePack data is malformed"),
    "another version": (encode(msgspec.structs.replace(HELLO, version=99)), "version: the agent speaks version 99"),
    "no resources": (encode(msgspec.structs.replace(HELLO, resources={})), "resources: a node without resources"),
    "another's node": (
        encode(msgspec.structs.replace(HELLO, node="n7")),
        "node: this token is for node n1, not for n7",
    ),
    "no name": (encode(msgspec.structs.replace(HELLO, node="../x")), 'name: "../x" is not a name'),
    "wrong ranges": (
        encode(msgspec.structs.replace(HELLO, running=(Tasks("a", 1, "m", 1, (4, 2)),))),
        "indices[1]: a range must end after its start",
    ),
}


@pytest.mark.parametrize(("data", "problem"), REFUSED.values(), ids=REFUSED)
def test_bad_greetings_are_refused_with_the_reason(tmp_path: Path, data: bytes, problem: str) -> None:
    async def story(plant: Plant) -> None:
        plant.peer = Peer(node="n1")
        async with connect(plant.url.replace("http", "ws") + PATH) as connection:
            await connection.send(data)
            refusal = decode_from_server(await connection.recv())  # type: ignore[arg-type]
            assert isinstance(refusal, wire.Refusal)
            assert problem in refusal.problem

    tell(tmp_path, story)


BROKEN = {
    "no message": b"\xff\x00",
    "text": b'{"a": 1}',
    "a second greeting": encode(HELLO),
    "endless ranges": encode(wire.Beat(1, (Tasks("a", 1, "m", 1, (5, 1)),))),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_who_breaks_the_rules_is_cut_off_and_harms_nobody(tmp_path: Path, data: bytes) -> None:
    async def story(plant: Plant) -> None:
        other = msgspec.structs.replace(HELLO, node="n2")
        async with puppet(plant) as bad, puppet(plant, other) as good:
            await bad.wait_for(wire.Welcome)
            await good.wait_for(wire.Welcome)
            await bad.connection.send(data)
            with pytest.raises(ConnectionClosed):
                while True:
                    await bad.hear()
            await good.say(wire.Beat(1, ()))
            await good.wait_for(wire.Beaten)

    tell(tmp_path, story)


def test_a_report_that_cannot_be_is_confirmed_and_changes_nothing(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            for tasks in (
                Tasks("a", 99, "m", 1, (0, 1)),
                Tasks("a", 1, "m", -1, (0, 1)),
                Tasks("a", 1, "m", 1, (3, 1)),
            ):
                await one.report(wire.Report(tasks, "running"))
            assert any(event == "report refused" for event, _ in plant.log)
            assert not await plant.read(lambda p: p.allocations)

    tell(tmp_path, story)
