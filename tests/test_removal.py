"""A partition that leaves the configuration: everything in it is released, whenever the server ends meanwhile."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from fairlead.agent.node_key import prove
from fairlead.control.feed import Feed
from fairlead.core.config import parse_config
from fairlead.core.dump import dump
from fairlead.journal import SqliteJournal
from fairlead.journal.codec import restore
from fairlead.journal.stream_copy import Point, copy_journal
from fairlead.journal.verify import verify
from fairlead.pools.pool_service import PoolService
from fairlead.pools.provider import ProviderError
from fairlead.testing import World
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import PATH, Tasks, decode_from_server, encode
from fairlead.wire.api import Event
from fairlead.wire.handshake import Key, split_token
from fairlead.writer.cluster import Cluster
from fairlead.writer.writer import Stopped
from tests.agent.plant import Machine
from tests.http.serving import SECONDS, Serving, serving, submit
from tests.http.test_watch import watching
from tests.pools.memory_provider import MemoryProvider
from tests.until import until

BOTH: dict[str, Any] = {"partitions": {"day": {}, "night": {}}}
DAY: dict[str, Any] = {"partitions": {"day": {}}}
NONE = {"w-1-0": "no credentials", "w-1-1": "no credentials"}


def at_night() -> World:
    """Two partitions. By night two tasks run, one of them a manager's, and one is launched and not acknowledged."""
    w = World(BOTH)
    for name in ("day", "night"):
        w.node(f"{name}-1", partition=name, cpu=2)
        w.submit(name=f"job-{name}", partition=name, stages=[{"resources": {"cpu": 1}}])
    rm = w.rm("k8s", "night")
    rm.register()
    rm.update(
        nodes=[{"name": "k1", "resources": {"cpu": 1}}],
        jobs=[{"job": "app", "queue": "root.default"}],
        asks=[{"job": "app", "ask": "x", "resources": {"cpu": 1}}],
    )
    w.advance(1)
    w.hold_acks("night-1")
    w.submit(name="late", partition="night", stages=[{"resources": {"cpu": 1}}])
    w.cycle()
    assert {each.job for each in w.fleets["night"].at_work()} == {"job-night"}
    rm.events()
    w.effects()
    return w


def is_gone(w: World) -> None:
    """Check that agents stopped everything, that the manager was informed, and that nothing is left in the journal."""
    w.fleets["night"].release_acks("night-1", w.now)
    w.advance(1)
    assert list(w.cluster.writers) == ["day"] and len(w.placements("job-day")) == 1
    assert not list(w.fleets["night"].at_work())
    assert [event.ask for event in w.rm("k8s", "night").events() if event.what == "released"] == ["x"]
    assert w.journal.streams() == ["cluster", "partition/day", "removed/night"]


@pytest.mark.parametrize("how", ["failed", "unknown"])
def test_a_configuration_that_may_not_be_written(how: Any) -> None:
    """The write of the configuration fails, or its outcome is unknown though it was written."""
    w = at_night()
    w.break_journal(how, written=how == "unknown")
    w.configure(DAY)
    w.cycle()
    is_gone(w)


def test_a_server_that_ends_before_the_partition_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration is written. The first partition that follows it cannot write, so the server ends."""
    w = at_night()
    append = w.journal.append

    def failing(stream: str, *rest: Any) -> None:
        if stream == "partition/day":
            monkeypatch.undo()
            w.break_journal("failed")
        append(stream, *rest)

    monkeypatch.setattr(w.journal, "append", failing)
    w.configure(DAY)
    w.cycle()
    is_gone(w)


def test_a_server_that_ends_between_the_removal_and_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the removal is durable but the configuration, so the next server derives the same messages."""
    w = at_night()

    def ends(cluster: Cluster, now: int, user: str) -> Any:
        monkeypatch.undo()  # the next server follows its configuration
        cluster._follow(now, user)
        raise Stopped("the server ended")

    monkeypatch.setattr(Cluster, "_follow", ends)
    w.configure(DAY)
    w.cycle()
    is_gone(w)


def test_a_task_that_was_asked_back_has_to_stop_too() -> None:
    """A drained node returns what waits in its chain. A task that started meanwhile stops when the node goes."""
    w = World({"partitions": {"day": {}, "night": {"chain": "1s"}}})
    w.node("n", partition="night", cpu=1)
    w.submit(name="many", partition="night", stages=[{"count": 50, "min": 1, "resources": {"cpu": 1}, "duration": 0.1}])
    w.advance(2)
    w.drain("n")
    w.cycle()
    assert any(allocation.cause == "return" for allocation in w.partition("night").allocations.values())
    w.effects()
    w.configure(DAY)
    w.cycle()
    (message,) = [effect for effect in w.effects() if getattr(effect, "node", "") == "n"]
    assert message.stops and "return" not in {stop.cause for stop in message.stops}  # type: ignore[union-attr]


NIGHT: dict[str, Any] = {
    "partitions": {"day": {}, "night": {"pools": {"w": {"node": {"cpu": 1}, "provider": {"command": ["true"]}}}}}
}
ONE = [{"resources": {"cpu": 1}}]


def test_a_partition_that_is_made_again_goes_on_with_the_numbers_of_the_old_one() -> None:
    w = World(NIGHT)
    w.submit(name="first", partition="night", stages=[{**ONE[0], "pool": "w"}])
    w.advance(1)
    (node,) = w.partition("night").order_of
    assert (w.partition("night").jobs["first"].number, node) == (1, "w-1-0")
    w.configure(DAY)
    w.cycle()
    for number in (2, 3):
        w.configure(NIGHT)
        w.advance(1)
        job = w.submit(name="next", partition="night", stages=[{**ONE[0], "pool": "w"}])
        w.advance(1)
        (node,) = w.partition("night").order_of
        assert (w.partition("night").jobs[job].number, node) == (number, f"w-{number}-0")
        state, _ = restore(w.journal, "night")
        assert dump(state) == dump(w.partition("night"))  # its own records are enough
        w.configure(DAY)
        w.cycle()


def test_a_server_that_ends_before_a_partition_made_again_has_records(monkeypatch: pytest.MonkeyPatch) -> None:
    w = at_night()
    w.configure(DAY)
    w.cycle()
    cluster = Cluster(w.journal)
    with monkeypatch.context() as patched:
        patched.setattr(Cluster, "_follow", lambda *_: {})
        cluster.configure(parse_config(BOTH), w.now)
    cluster = Cluster(w.journal)
    cluster.begin(w.now)
    assert cluster.writers["night"].partition.counters.job == 4


@pytest.mark.parametrize("point", [False, True], ids=["all", "earlier"])
def test_a_copy_of_the_journal_knows_the_numbers_of_removed_partitions(tmp_path: Path, point: bool) -> None:
    with SqliteJournal(tmp_path / "old", synchronous="off") as old, SqliteJournal(tmp_path / "new") as new:
        w = World(BOTH, journal=old)
        w.submit(name="job", partition="night", stages=ONE)
        w.cycle()
        w.configure(DAY)
        w.cycle()
        w.submit(name="job", partition="day", stages=ONE)
        w.advance(1)
        limit = Point(partition="day", revision=old.last("partition/day") - 1) if point else None
        copy_journal(old, new, lambda *_: None, point=limit, above=0 if point else None)
        reports = {report.stream: report.problem for report in verify(new, lambda *_: None)}
        assert reports == {"cluster": "", "partition/day": "", "removed/night": ""}
        cluster = Cluster(new)
        cluster.configure(parse_config(BOTH), w.now)
        assert cluster.writers["night"].partition.counters.job == 2


def test_a_feed_that_closes_gives_out_its_last_news() -> None:
    async def story() -> None:
        feed = Feed(4)
        feed.add(5, (Event(what="state", at=0.0, job="1"),))
        feed.close()
        assert [batch.seq async for batch in feed.follow(4) if batch is not None] == [5]

    asyncio.run(story())


# -- machines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "left"),
    [
        ({}, {"stray": "it was no node of the partition"}),
        ({"destroy": ProviderError("no credentials")}, {"stray": "it was no node of the partition", **NONE}),
        ({"destroy": ProviderError("it is locked", ["w-1-1"])}, {"stray": "it was", "w-1-1": "it is locked"}),
        ({"list": ProviderError("no credentials")}, NONE),
    ],
    ids=["destroyed", "none", "one", "unknown"],
)
def test_the_machines_of_a_removed_partition_are_destroyed_or_named(
    tmp_path: Path, failing: dict[str, ProviderError], left: dict[str, str]
) -> None:
    provider, log = MemoryProvider(), list[tuple[str, dict[str, Any]]]()
    pools = PoolService(lambda kind: provider, log=lambda level, event, fields: log.append((event, fields)))
    pool = {"node": {"cpu": 4, "memory": "8Gi"}, "provider": {"command": ["true"]}}
    with serving(
        tmp_path, {"partitions": {"day": {}, "night": {"ready_after": 0, "pools": {"w": pool}}}}, pools=pools
    ) as site:
        provider.machines["stray"] = 1
        assert site.as_owner.post("/api/v1/partitions/night/ready").is_success
        scaled = site.as_owner.post("/api/v1/pools/w/scale", params={"partition": "night"}, json={"nodes": 2})
        assert scaled.is_success, scaled.text
        until(lambda: len(provider.machines) == 3)
        site.node("w-1-0", partition="night", pool="w")
        provider.failing.update(failing)
        done = site.as_owner.delete("/api/v1/partitions/night").json()
        assert done["losses"] == [{"key": "night", "jobs": 0, "nodes": 2}]
        named = {machine["name"]: machine["reason"] for machine in done["machines"]}
        assert named.keys() == left.keys() and all(left[name] in reason for name, reason in named.items())
        assert [fields["name"] for event, fields in log if event == "machine left"] == [*named]
        if not failing:
            assert provider.machines == {"stray": 1}


def test_a_provider_that_does_not_answer_does_not_keep_a_partition_from_its_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.pools.pool_service.DESTROYED", 0.05)
    provider = MemoryProvider()
    pool = {"node": {"cpu": 4, "memory": "8Gi"}, "min": 1, "provider": {"command": ["true"]}}
    config = {"partitions": {"day": {}, "night": {"ready_after": 0, "pools": {"w": pool}}}}
    with serving(tmp_path, config, pools=PoolService(lambda kind: provider)) as site:
        until(lambda: provider.machines)
        provider.slow["destroy"] = asyncio.Event()
        (machine,) = site.as_owner.delete("/api/v1/partitions/night").json()["machines"]
        assert (machine["name"], machine["reason"]) == ("w-1-0", "the provider did not answer within 0.05 s")
        assert [each["name"] for each in site.as_owner.get("/api/v1/partitions").json()["partitions"]] == ["day"]
        assert site.as_owner.put("/api/v1/partitions/night", json={"ready_after": 0, "pools": {"w": pool}}).is_success
        site.do(_set(provider.slow["destroy"]))
        until(lambda: provider.machines.keys() == {"w-2-0"})


async def _set(event: asyncio.Event) -> None:
    event.set()


# -- live --------------------------------------------------------------------------------------------------------


def joining(site: Serving) -> Any:
    url = site.url.replace("http", "ws") + f"{PATH}?partition=night"
    return connect(url, compression=None, proxy=None)


async def receive(connection: ClientConnection, kind: type[Any]) -> Any:
    async with asyncio.timeout(SECONDS):
        while not isinstance(message := decode_from_server(await connection.recv()), kind):  # type: ignore[arg-type]
            pass
    return message


KEY = Key()


async def greet(site: Serving, connection: ClientConnection, *running: Tasks) -> Any:
    secret, server = split_token(site.join_token())  # needed for the first connection with this key only
    await prove(connection, "n1", KEY, server, "", secret)  # type: ignore[arg-type]
    await connection.send(encode(wire.Hello("n1", {"cpu": 4, "memory": "8Gi"}, running=running)))
    return await receive(connection, wire.Welcome)


def write_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server writes the configuration without the night, and ends at once."""

    def ends(cluster: Cluster, now: int, user: str) -> Any:
        raise Stopped("the server ended")

    with monkeypatch.context() as patched, SqliteJournal(folder / "journal", synchronous="off") as journal:
        patched.setattr(Cluster, "_follow", ends)
        cluster = Cluster(journal)
        configs = {name: config for name, config in cluster.configured.partitions if name == "day"}
        with pytest.raises(Stopped):
            cluster.configure(configs, 0)


@pytest.mark.parametrize("away", [False, True], ids=["served", "server away"])
def test_an_agent_of_a_removed_partition_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    async def before(site: Serving) -> tuple[Tasks, int]:
        async with joining(site) as connection:
            epoch = (await greet(site, connection)).epoch
            await asyncio.to_thread(submit, site.as_owner, partition="night")
            while not (work := await receive(connection, wire.Work)).launches:
                pass
            tasks: Tasks = work.launches[0].tasks
            await connection.send(encode(wire.Reports(1, (wire.Report(tasks, "running"),))))
            return tasks, epoch

    async def after(site: Serving, tasks: Tasks, epoch: int) -> None:
        async with joining(site) as connection:
            assert (await greet(site, connection, tasks)).epoch > epoch
            work = await receive(connection, wire.Work)
            assert work.standing and [stop.tasks for stop in work.stops] == [tasks]
            late = Tasks(tasks.job, tasks.number, tasks.stage, 2, tasks.indices)
            await connection.send(encode(wire.Reports(1, (wire.Report(late, "running"),))))
            work = await receive(connection, wire.Work)
            assert work.confirmed == (1,) and [stop.tasks for stop in work.stops] == [late]
            await connection.send(encode(wire.Beat(1, (tasks, late))))
            assert (await receive(connection, wire.Beaten)).number == 1
            await connection.send(
                encode(wire.Reports(2, tuple(wire.Report(each, "stopped") for each in (tasks, late))))
            )
            refusal = await receive(connection, wire.Refusal)
            assert "partition night was removed" in refusal.problem and refusal.final
        async with joining(site) as connection:  # it has nothing to stop any more
            await greet(site, connection)
            assert isinstance(await receive(connection, wire.Refusal), wire.Refusal)

    with serving(tmp_path, BOTH) as site:
        found = asyncio.run(before(site))
        if not away:
            assert site.as_owner.delete("/api/v1/partitions/night").status_code == 200
            asyncio.run(after(site, *found))
    if away:
        write_only(tmp_path, monkeypatch)
        with serving(tmp_path) as site:
            asyncio.run(after(site, *found))
            # A new partition of that name takes the agent again.
            assert site.as_owner.put("/api/v1/partitions/night", json={}).status_code == 200
            asyncio.run(before(site))


def test_a_connected_manager_gets_what_was_released(tmp_path: Path) -> None:
    """Its stream ends after that, and it is refused from then on."""
    with serving(tmp_path, BOTH) as site:
        where = {"partition": "night"}
        site.as_owner.post("/api/v1/managers/k8s", params=where)
        with watching(site.as_owner, "managers/k8s/events", partition="night") as events:
            update = {
                "nodes": [{"name": "k1", "resources": {"cpu": 1}}],
                "jobs": [{"job": "app", "queue": "root.default"}],
                "asks": [{"job": "app", "ask": "x", "resources": {"cpu": 1}}],
            }
            assert site.as_owner.post("/api/v1/managers/k8s/updates", params=where, json=update).status_code == 200
            assert [next(events)[1] for _ in range(2)] == ["node", "allocated"]
            assert site.as_owner.delete("/api/v1/partitions/night").status_code == 200
            assert "released" in [kind for _, kind, _ in events]
        assert site.as_owner.post("/api/v1/managers/k8s/updates", params=where, json={}).status_code == 404


def test_a_real_agent_ends_the_tasks_of_a_removed_partition(tmp_path: Path) -> None:
    """The agent is away when the partition goes, and its task goes on. When the agent is back the task ends."""
    file = tmp_path / "pid"
    script = ["sh", "-c", f"echo $$ >{file}.new; mv {file}.new {file}; sleep 1000"]

    async def story(site: Serving) -> None:
        (tmp_path / "join-token").write_text(site.join_token())
        options = ("--partition=night", "--resource=cpu=2", "--for=owner", *["--user=root"] * (os.geteuid() == 0))
        machine = Machine(tmp_path / "agent", site.url, *options)
        await machine.start()
        try:
            job = {"stages": [{"command": script, "resources": {"cpu": 1}}]}
            name = await asyncio.to_thread(submit, site.as_owner, job, partition="night")
            await asyncio.to_thread(until, file.exists)
            pid = int(file.read_text())
            look = f"/api/v1/jobs/{name}?partition=night"
            while (await asyncio.to_thread(site.as_owner.get, look)).json()["state"] != "running":
                await asyncio.sleep(0.02)
            await machine.kill()
            assert (await asyncio.to_thread(site.as_owner.delete, "/api/v1/partitions/night")).status_code == 200
            time.sleep(0.1)
            assert psutil.pid_exists(pid)
            await machine.start()
            await asyncio.to_thread(until, lambda: not psutil.pid_exists(pid))
        finally:
            await machine.clear()

    with serving(tmp_path, BOTH) as site:
        asyncio.run(story(site))
