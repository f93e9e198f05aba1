"""The hub, with agents that send exactly what a test wants."""

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

from fairlead.core.commands import Command, Configure, MoveNode
from fairlead.core.config import parse_partition
from fairlead.core.ranges import count
from fairlead.engines.agents import Agents
from fairlead.engines.engine import Away
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import PATH, Tasks, decode_from_server, encode
from fairlead.wire.handshake import Exchange, Key
from tests.agent.plant import PARTITION, SECONDS, Plant

HELLO = wire.Hello("n1", {"cpu": 4, "memory": "4Gi"}, address="10.0.0.1")


class Puppet:
    """An agent that is scripted by the test."""

    exchange: Exchange

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.number = 0
        self._confirmed: list[wire.FromServer] = []

    async def say(self, message: wire.FromAgent) -> None:
        await self.connection.send(encode(message))

    async def receive(self) -> wire.FromServer:
        if self._confirmed:
            return self._confirmed.pop(0)
        data = await self.connection.recv()
        assert isinstance(data, bytes)
        message = decode_from_server(data)
        if isinstance(message, wire.Work):
            self._confirmed += [wire.Confirmed(number) for number in message.confirmed]
        return message

    async def wait_for(self, kind: type[Any]) -> Any:
        while not isinstance(message := await self.receive(), kind):
            pass
        return message

    async def launched(self) -> wire.Launch:
        """Wait for the next launch."""
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
async def puppet(plant: Plant, hello: wire.Hello = HELLO, instance: str = "") -> AsyncIterator[Puppet]:
    address = plant.url.replace("http", "ws") + PATH
    async with connect(address, compression=None, max_size=wire.MAX_MESSAGE_BYTES) as connection:
        one = Puppet(connection)
        one.exchange = await plant.prove(connection, hello.node, instance)  # type: ignore[arg-type]
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
    return lambda partition: "".join(
        {allocation.state for allocation in partition.allocations.values() if allocation.stage.job.id == job}
    )


def test_a_greeting_is_answered_with_the_standing_work(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        job = await plant.submit(["true"])
        async with puppet(plant) as one:
            welcome = await one.wait_for(wire.Welcome)
            assert (welcome.epoch, welcome.heartbeat, welcome.lease) == (1, 50_000, 60_000_000)
            launch = await one.launched()
            assert launch.tasks == Tasks(job, 1, "main", 1, (0, 1))
        async with puppet(plant) as again:  # it was not acknowledged, so it is sent again
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
def test_an_agent_that_can_be_fenced_has_a_lease(tmp_path: Path, machine: str, fence: str, lease: int) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant, msgspec.structs.replace(HELLO, machine=machine)) as one:
            assert (await one.wait_for(wire.Welcome)).lease == lease

    tell(tmp_path, story, fence=fence)


def test_others_go_on_while_a_node_lists_many_tasks(tmp_path: Path) -> None:
    """All commands of its greeting were made and offered at once, which took seconds."""

    async def story(plant: Plant) -> None:
        known = tuple(Tasks(f"j{at}", at, "main", 1, (0, 1)) for at in range(5_000))
        offered: list[int] = []
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        offer = plant.inbox.offer

        def counted(command: Command) -> Any:
            offered.append(turns)
            return offer(command)

        plant.inbox.offer = counted  # type: ignore[method-assign]
        going_on = asyncio.create_task(others())
        async with puppet(plant, msgspec.structs.replace(HELLO, running=known)) as one:
            await one.wait_for(wire.Welcome)
        going_on.cancel()
        most = max(offered.count(turn) for turn in {*offered})
        assert len(offered) > 5_000 and most <= 400

    tell(tmp_path, story)


def test_a_disconnected_node_gets_nothing_until_it_reconnects(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            await plant.until(lambda partition: partition.readiness.ready)
        await plant.until(lambda partition: partition.nodes.disconnected)
        job = await plant.submit(["true"])
        await asyncio.sleep(0.1)
        assert await plant.job(job, lambda each: each.state) == "pending"
        async with puppet(plant) as again:
            assert (await again.launched()).tasks == Tasks(job, 1, "main", 1, (0, 1))
            assert not plant.partition.nodes.disconnected

    tell(tmp_path, story)


def test_a_launch_for_an_agent_that_is_gone_is_given_back_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer places the task before it hears that the agent has gone.
    monkeypatch.setattr(Agents, "_part", lambda self, partition, led, node: None)

    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            await plant.until(lambda partition: partition.readiness.ready)
        while plant.hub.connected(PARTITION):
            await asyncio.sleep(0.01)
        job = await plant.submit(["true"])

        def reason(each: Any) -> str:
            return each.stages[0].past(0).reason  # type: ignore[no-any-return]

        await plant.until(lambda partition: reason(partition.jobs[job]) == "node n1 is not connected")

    tell(tmp_path, story)


def test_a_launch_of_an_earlier_server_is_not_refused(tmp_path: Path) -> None:
    keys: dict[str, Key] = {}
    sent: list[Tasks] = []

    async def first(plant: Plant) -> None:
        await plant.submit(["true"])
        async with puppet(plant) as one:
            sent.append((await one.launched()).tasks)
            keys.update(plant.keys)

    async def second(plant: Plant) -> None:
        plant.keys = keys
        await asyncio.sleep(0.1)
        async with puppet(plant, msgspec.structs.replace(HELLO, running=tuple(sent))) as one:
            await one.wait_for(wire.Work)
            await plant.until(lambda partition: state_of(plant, sent[0].job)(partition) == "running")

    tell(tmp_path, first)
    tell(tmp_path, second)


def test_a_lost_node_that_is_enabled_after_a_restart_gets_nothing_without_its_agent(tmp_path: Path) -> None:
    async def first(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            await plant.until(lambda partition: partition.readiness.ready)
            plant.hub.end(PARTITION)  # the server stops before the lost connection is recorded
            await plant.ask(MoveNode(name="n1", action="lose", operator=True))

    tell(tmp_path, first)

    async def second(plant: Plant) -> None:
        await plant.until(lambda partition: partition.readiness.ready)
        await plant.ask(MoveNode(name="n1", action="enable", operator=True))
        job = await plant.submit(["true"])
        assert await plant.job(job, lambda seen: seen.state) == "pending"
        assert list(plant.partition.nodes.disconnected) == [plant.partition.nodes.joins["n1"]]

    tell(tmp_path, second)


def test_a_restart_does_not_wait_for_a_node_that_stays_away(tmp_path: Path) -> None:
    other = msgspec.structs.replace(HELLO, node="n2")
    keys: dict[str, Key] = {}

    async def first(plant: Plant) -> None:
        async with puppet(plant) as one, puppet(plant, other) as two:
            await one.wait_for(wire.Welcome)
            await two.wait_for(wire.Welcome)
            keys.update(plant.keys)
            plant.hub.end(PARTITION)  # the server stops before its agents: none of them has disconnected
        assert not plant.partition.nodes.disconnected

    tell(tmp_path, first, ready_after="300ms")

    async def second(plant: Plant) -> None:
        plant.keys = keys
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            await plant.until(lambda partition: partition.readiness.ready and partition.nodes.disconnected)
            jobs = [await plant.submit(["true"]) for _ in range(4)]
            nodes = plant.partition.nodes
            assert [nodes.name[nodes.rows[node_id]] for node_id in nodes.disconnected] == ["n2"]
            await plant.until(lambda partition: all(partition.jobs[job].allocations for job in jobs))
            placed = {allocation.node for allocation in plant.partition.allocations.values()}
            assert placed == {nodes.joins["n1"]}

    tell(tmp_path, second, ready_after="300ms")


def test_a_task_that_a_returning_agent_does_not_have_is_lost(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.submit(["true"], count=2, min=1)
        async with puppet(plant) as one:
            launch = await one.launched()
            assert launch.tasks.indices == (0, 2)
            await one.report(wire.Report(launch.tasks, "running"))
        half = msgspec.structs.replace(launch.tasks, indices=(0, 1))
        async with puppet(plant, msgspec.structs.replace(HELLO, running=(half,))) as again:
            reconnected = await again.launched()
            assert (reconnected.tasks.indices, reconnected.tasks.attempt) == ((1, 2), 2)

    tell(tmp_path, story, chain=0)


def test_a_task_that_a_heartbeat_does_not_list_is_lost(tmp_path: Path) -> None:
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
            assert [stop.tasks for stop in work.stops] == [launch.tasks]

    tell(tmp_path, story)


def test_silent_nodes_are_lost_after_their_lease(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.submit(["true"])
        async with puppet(plant) as one:
            launch = await one.launched()
            await one.report(wire.Report(launch.tasks, "running"))
            await plant.until(lambda partition: partition.nodes.state == ["lost"])
            with pytest.raises(ConnectionClosed):
                while True:
                    await one.receive()

    tell(tmp_path, story, lease="3s")


def test_a_shorter_lease_counts_once_the_agent_has_acknowledged_it(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            assert (await one.wait_for(wire.Welcome)).lease == 60_000_000
            shorter = parse_partition({"heartbeat": "50ms", "lease": "200ms"}, "default")
            await plant.ask(Configure(config=shorter, version=2, operator=True))
            await one.say(wire.Beat(1, (), 60_000_000))
            assert await one.wait_for(wire.Beaten) == wire.Beaten(1, 200_000)
            await asyncio.sleep(1.5)  # it was told, and may not have heard it
            assert await plant.read(lambda partition: partition.nodes.state) == ["up"]
            await one.say(wire.Beat(2, (), 200_000))
            await one.wait_for(wire.Beaten)
            await plant.until(lambda partition: partition.nodes.state == ["lost"])

    tell(tmp_path, story)


@pytest.mark.parametrize("action", ["enable", "drain"])
def test_a_lost_node_that_an_operator_expects_again_is_lost_again(tmp_path: Path, action: Any) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
        await plant.until(lambda partition: partition.nodes.state == ["lost"])
        await plant.inbox.offer(MoveNode(name="n1", action=action, operator=True))
        await plant.until(lambda partition: partition.nodes.state != ["lost"])
        await plant.until(lambda partition: partition.nodes.state == ["lost"])

    tell(tmp_path, story, lease="200ms")


def test_a_node_that_does_not_come_back_after_a_restart_is_lost_too(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)

    async def later(plant: Plant) -> None:
        await plant.until(lambda partition: partition.nodes.state == ["lost"])

    tell(tmp_path, story, lease="200ms", ready_after="100ms")
    tell(tmp_path, later, lease="200ms", ready_after="100ms")


def test_an_agent_that_is_lost_in_the_turn_in_which_it_joins_joins_again(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        await plant.thread.lock.acquire()
        async with puppet(plant) as one:
            while not plant.inbox.waiting:  # the node is to be added, and then it is lost, in one turn
                await asyncio.sleep(0.01)
            plant.offer(MoveNode(name="n1", action="lose", operator=True))
            plant.thread.lock.release()
            with pytest.raises(ConnectionClosed):
                while True:
                    await one.receive()
        async with puppet(plant) as again:
            await again.wait_for(wire.Work)
            job = await plant.submit(["true"])
            assert (await again.launched()).tasks.job == job

    tell(tmp_path, story)


def test_no_work_of_an_unknown_write_is_sent(tmp_path: Path) -> None:
    """Between a write of unknown outcome and the end of its writer's reign an agent joins."""

    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Work)
        await plant.thread.lock.acquire()
        async with puppet(plant) as one:
            while not plant.inbox.waiting:
                await asyncio.sleep(0.01)
            plant.thread.lock.release()
            await plant.thread.lock.acquire()  # the turn is over, and the hub has yet to read the state
            plant._writer._stop("it is not known whether that was written")
            plant.thread.lock.release()
            with pytest.raises(ConnectionClosed):
                while True:
                    assert not isinstance(await one.receive(), wire.Work)

    tell(tmp_path, story)


def test_a_new_connection_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            async with puppet(plant) as two:
                await two.wait_for(wire.Welcome)
                with pytest.raises(ConnectionClosed):
                    while True:
                        await one.receive()
                await two.say(wire.Beat(1, ()))
                await two.wait_for(wire.Beaten)
                assert list(plant.hub.connected(PARTITION)) == ["n1"]

    tell(tmp_path, story)


def test_a_greeting_that_was_held_up_does_not_replace_a_later_connection(tmp_path: Path) -> None:
    """An agent that was restarted has a task; the last greeting of the process before arrives after it."""

    async def story(plant: Plant) -> None:
        async with puppet(plant) as first:
            await first.wait_for(wire.Welcome)
        job = await plant.submit(["true"])
        async with connect(plant.url.replace("http", "ws") + PATH, compression=None) as connection:
            held_up = Puppet(connection)
            await plant.prove(connection, HELLO.node, "")  # type: ignore[arg-type]
            async with puppet(plant) as one:
                launch = await one.launched()
                await one.report(wire.Report(launch.tasks, "running"))
                await held_up.say(HELLO)
                with pytest.raises(ConnectionClosed):
                    await held_up.receive()
                await one.report(wire.Report(launch.tasks, "succeeded", 0))
                assert await plant.over(job) == "succeeded"

    tell(tmp_path, story)


def test_a_copy_of_an_identity_is_refused_until_the_first_is_lost(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant, instance="one") as first:
            await first.wait_for(wire.Welcome)
            async with puppet(plant, instance="copy") as second:
                refusal = await second.receive()
                assert isinstance(refusal, wire.Refusal)
                assert "another agent has the identity of node n1" in refusal.problem
            assert any(event == "agent refused" and "identity" in said["problem"] for event, said in plant.log)
            await first.say(wire.Beat(1, ()))
            await first.wait_for(wire.Beaten)
            async with puppet(plant, instance="one") as again:
                await again.wait_for(wire.Welcome)
        await plant.until(lambda partition: partition.nodes.state == ["lost"])
        async with puppet(plant, instance="copy") as second:
            await second.wait_for(wire.Welcome)

    tell(tmp_path, story, lease="4s")


def test_a_copy_is_refused_too_after_a_restart_of_the_server(tmp_path: Path) -> None:
    keys = {}

    async def story(plant: Plant) -> None:
        async with puppet(plant, instance="one") as first:
            await first.wait_for(wire.Welcome)
        keys.update(plant.keys)

    async def later(plant: Plant) -> None:
        plant.keys = keys
        async with puppet(plant, instance="copy") as second:
            assert isinstance(await second.receive(), wire.Refusal)
        async with puppet(plant, instance="one") as first:
            await first.wait_for(wire.Welcome)

    tell(tmp_path, story)
    tell(tmp_path, later)


def test_a_task_of_another_node_is_not_reported(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        job = await plant.submit(["true"])
        async with puppet(plant) as one:
            launch = await one.launched()
            async with puppet(plant, msgspec.structs.replace(HELLO, node="n2")) as liar:
                await liar.wait_for(wire.Welcome)
                await liar.report(wire.Report(launch.tasks, "succeeded", 0, ran=(5,), cpu=(5,), memory=(5,)))
            [(_, said)] = [each for each in plant.log if each[0] == "report refused"]
            assert said["node"] == "n2" and "was given to node n1, not to n2" in said["problem"]
            assert not plant.ended
            await one.report(wire.Report(launch.tasks, "failed", 1))
        assert await plant.over(job) == "failed"

    tell(tmp_path, story)


def test_a_key_is_renewed_over_the_connection(tmp_path: Path) -> None:
    """The old key is valid until the new one has opened a connection."""

    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            plant.identities.lasts *= 10  # less than a third of that is left
            await one.wait_for(wire.Renew)
            old, new = plant.keys["n1"], Key()
            await one.say(wire.NewKey(new.public, new.sign(one.exchange.for_new_key(new.public))))
            await one.wait_for(wire.Renewed)
        async with puppet(plant) as one:  # the answer may have been lost
            await one.wait_for(wire.Welcome)
        plant.keys["n1"] = new
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
        plant.keys["n1"] = old
        async with puppet(plant) as one:
            assert "node n1 has another key" in (await one.wait_for(wire.Refusal)).problem

    tell(tmp_path, story)


def test_a_new_key_has_to_sign_this_connection(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            new, other = Key(), Key()
            await one.say(wire.NewKey(new.public, other.sign(one.exchange.for_new_key(new.public))))
            assert "has not signed" in (await one.wait_for(wire.Refusal)).problem

    tell(tmp_path, story)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_credential_that_ends_ends_the_connection(tmp_path: Path, how: str) -> None:
    async def story(plant: Plant) -> None:
        plant.identities.lasts = 0.1 if how == "expired" else plant.identities.lasts
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            if how == "revoked":
                await asyncio.to_thread(plant.identities.revoke, PARTITION, "n1")
            refusal = await one.wait_for(wire.Refusal)
            assert (
                f"the credential of node n1 {'was revoked' if how == 'revoked' else 'has expired'}" in refusal.problem
            )
            with pytest.raises(ConnectionClosed):
                while True:
                    await one.receive()
        async with puppet(plant) as again:
            assert "fairlead token create --role join" in (await again.wait_for(wire.Refusal)).problem
        assert ("agent cut off", {"partition": PARTITION, "node": "n1", "credential": how}) in plant.log

    tell(tmp_path, story)


def test_a_credential_that_expired_by_a_leap_of_the_clock_is_renewed(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        plant.identities.lasts = 0.1
        async with puppet(plant) as one:
            await one.wait_for(wire.Renew)  # it has expired by now, too
            new = plant.keys["n1"] = Key()
            await one.say(wire.NewKey(new.public, new.sign(one.exchange.for_new_key(new.public))))
            await one.wait_for(wire.Renewed)
        plant.identities.lasts = 60.0
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)

    tell(tmp_path, story)


def test_a_fault_in_the_handler_of_ends_makes_the_agent_send_again(tmp_path: Path) -> None:
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
                    await one.receive()
        assert await plant.over(job) == "succeeded"

    tell(tmp_path, story)


@pytest.mark.parametrize("what", ["sweep", "jobs"])
def test_large_orders_reach_a_node(tmp_path: Path, what: str) -> None:
    """An agent accepts no message above 64 MiB. One user's large tasks disconnected a node again and again."""

    async def story(plant: Plant) -> None:
        if what == "sweep":
            sweep = {"A": ["x" * 100_000], "B": [str(number) for number in range(1_000)]}
            jobs = [await plant.submit(["true"], parameters=sweep)]
        else:
            jobs = [await plant.submit(["true", str(number), *["x" * 100_000] * 15]) for number in range(50)]
        async with puppet(plant) as one:  # its greeting is answered with all of them
            await one.wait_for(wire.Welcome)
            found, size = 0, 0
            while found < (1_000 if what == "sweep" else len(jobs)):
                work = await one.wait_for(wire.Work)
                size += len(encode(work))
                found += sum(count(each.tasks.indices) for each in work.launches)
                for each in work.launches:
                    assert work.specs[each.spec].command[0] == "true"
                    assert all(max(of_task) < len(work.texts) for of_task in each.values)
            assert size < (10 << 20 if what == "sweep" else 100 << 20)
        async with puppet(plant) as one:  # it has lost all, and is told again, at last by name only
            while not (work := await one.wait_for(wire.Work)).standing:
                assert work.specs[0].command[0] == "true"
            assert sum(count(each.tasks.indices) for each in work.launches) == found

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


def test_members_of_a_gang_start_when_the_agent_of_the_first_has_chosen_the_ports(tmp_path: Path) -> None:
    """Ports that follow from the number of the job could be bound by another user before the gang starts."""

    async def story(plant: Plant) -> None:
        one = msgspec.structs.replace(HELLO, speaks=2)
        two = msgspec.structs.replace(one, node="n2", address="10.0.0.2")
        async with puppet(plant, one) as first, puppet(plant, two) as second:
            for each in (first, second):
                await each.wait_for(wire.Welcome)
            await plant.submit(["true"], count=3, resources={"cpu": 2})
            puppets = {"n1": first, "n2": second}
            launched = {asyncio.create_task(each.launched()): name for name, each in puppets.items()}
            [done], [waits] = await asyncio.wait(launched, return_when=asyncio.FIRST_COMPLETED)
            launch = done.result()
            assert launch.gang is not None and launch.gang.port == 0
            assert launched[done] == launch.gang.places[0].node
            await puppets[launched[done]].say(wire.Meetings((wire.Meeting(launch.gang.key, 21_000, 22_000),)))
            other = (await waits).gang
            assert other is not None and (other.port, other.barrier, other.key) == (21_000, 22_000, launch.gang.key)

    tell(tmp_path, story)


def test_a_gang_has_a_key_of_its_own_that_a_restart_does_not_change(tmp_path: Path) -> None:
    keys: list[str] = []
    nodes: dict[str, Key] = {}

    async def story(first: bool) -> None:
        async with asyncio.timeout(SECONDS), Plant(tmp_path / "journal", {}, gang_seed=b"seed").at_work() as plant:
            plant.keys = nodes
            if first:
                for _ in range(2):
                    await plant.submit(["true"], count=2)
            async with puppet(plant) as one:
                launches: list[wire.Launch] = []
                while len(launches) < 2:
                    launches += (await one.wait_for(wire.Work)).launches
                keys.extend(
                    launch.gang.key for launch in sorted(launches, key=lambda each: each.tasks.job) if launch.gang
                )

    asyncio.run(story(True))
    asyncio.run(story(False))
    assert keys[:2] == keys[2:] and keys[0] != keys[1] and len(bytes.fromhex(keys[0])) == 32
    held = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert not any(key.encode() in held for key in keys)


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


KNOCK = wire.Knock(wire.VERSION, "n1", bytes(32))
REFUSED = {
    "no knock": (encode(HELLO), "greeting: an agent has to knock first"),
    "no message": (b"\xc1", "MessagePack data is malformed"),
    "another version": (encode(msgspec.structs.replace(KNOCK, version=99)), "version: the agent speaks version 99"),
    "no name": (encode(msgspec.structs.replace(KNOCK, node="../x")), 'node: "../x" is not a name'),
    "no nonce": (encode(msgspec.structs.replace(KNOCK, nonce=b"")), "nonce: it has 0 bytes"),
}


@pytest.mark.parametrize(("data", "problem"), REFUSED.values(), ids=REFUSED)
def test_bad_knocks_are_refused_with_the_reason(tmp_path: Path, data: bytes, problem: str) -> None:
    async def story(plant: Plant) -> None:
        async with connect(plant.url.replace("http", "ws") + PATH) as connection:
            await connection.send(data)
            refusal = decode_from_server(await connection.recv())  # type: ignore[arg-type]
            assert isinstance(refusal, wire.Refusal)
            assert problem in refusal.problem

    tell(tmp_path, story)


BAD = {
    "no greeting": (wire.Beat(1, ()), "greeting: an agent has to greet after its proof"),
    "no resources": (msgspec.structs.replace(HELLO, resources={}), "resources: a node without resources"),
    "another's node": (msgspec.structs.replace(HELLO, node="n7"), "node: this connection is for node n1, not for n7"),
    "no name": (msgspec.structs.replace(HELLO, node="../x"), 'name: "../x" is not a name'),
    "wrong ranges": (
        msgspec.structs.replace(HELLO, running=(Tasks("a", 1, "m", 1, (4, 2)),)),
        "indices[1]: a range must end after its start",
    ),
}


@pytest.mark.parametrize(("hello", "problem"), BAD.values(), ids=BAD)
def test_bad_greetings_are_refused_with_the_reason(tmp_path: Path, hello: wire.FromAgent, problem: str) -> None:
    async def story(plant: Plant) -> None:
        async with connect(plant.url.replace("http", "ws") + PATH) as connection:
            await plant.prove(connection, "n1")  # type: ignore[arg-type]
            one = Puppet(connection)
            await one.say(hello)
            assert problem in (await one.wait_for(wire.Refusal)).problem

    tell(tmp_path, story)


BROKEN = {
    "no message": b"\xff\x00",
    "text": b'{"a": 1}',
    "a second greeting": encode(HELLO),
    "a second knock": encode(wire.Knock(wire.VERSION, "n1", bytes(32))),
    "endless ranges": encode(wire.Beat(1, (Tasks("a", 1, "m", 1, (5, 1)),))),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_an_agent_that_breaks_the_protocol_is_cut_off_and_harms_no_other(tmp_path: Path, data: bytes) -> None:
    async def story(plant: Plant) -> None:
        other = msgspec.structs.replace(HELLO, node="n2")
        async with puppet(plant) as bad, puppet(plant, other) as good:
            await bad.wait_for(wire.Welcome)
            await good.wait_for(wire.Welcome)
            await bad.connection.send(data)
            with pytest.raises(ConnectionClosed):
                while True:
                    await bad.receive()
            await good.say(wire.Beat(1, ()))
            await good.wait_for(wire.Beaten)

    tell(tmp_path, story)


def test_a_report_that_cannot_be_is_confirmed_and_changes_nothing(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            for tasks in (
                Tasks("a", 99, "m", 1, (0, 1)),
                Tasks("a", 1, "m", 1, (3, 1)),
            ):
                await one.report(wire.Report(tasks, "running"))
            assert any(event == "report refused" for event, _ in plant.log)
            assert not await plant.read(lambda partition: partition.allocations)

    tell(tmp_path, story)


def test_logs_that_a_node_stops_sending_for_newer_readers_are_not_complete(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            await plant.until(lambda partition: "n1" in plant.hub.connected(PARTITION))
            asked = wire.OutputRequest(0, Tasks("a", 1, "main", 1, (0, 1)), "ann")
            parts = aiter(plant.hub.outputs(PARTITION, "n1", asked))
            first = asyncio.create_task(anext(parts))
            request = (await one.wait_for(wire.OutputRequest)).request
            await one.say(wire.OutputPart(request, (wire.Output(0, "out", 0, b"x"),)))
            assert (await first).outputs[0].data == b"x"
            await one.say(wire.LogPart(request, 0, b"", True, "newer readers replaced this one"))
            with pytest.raises(Away, match="newer readers"):
                await anext(parts)

    tell(tmp_path, story)


def test_a_node_that_floods_the_server_with_a_log_is_cut_off(tmp_path: Path) -> None:
    async def story(plant: Plant) -> None:
        async with puppet(plant) as one:
            await one.wait_for(wire.Welcome)
            parts = aiter(plant.hub.log(PARTITION, "n1", wire.LogRequest(0, 1, "main", 0, 1)))
            first = asyncio.create_task(anext(parts))
            request = (await one.wait_for(wire.LogRequest)).request
            for _ in range(2 * wire.LOG_PARTS):  # the reader takes the first and then no more
                await one.say(wire.LogPart(request, 0, b"x"))
            await first
            assert "more of a log than it may" in (await one.wait_for(wire.Refusal)).problem

    tell(tmp_path, story)
