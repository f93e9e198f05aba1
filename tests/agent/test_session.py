"""A session with a server that is scripted by the test."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from threading import get_ident
from time import monotonic
from typing import Any, cast

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve

from fairlead.agent import session
from fairlead.agent.coordinator import Epoch, Joining
from fairlead.agent.process import Agent, Settings
from fairlead.agent.result_lists import ResultLists
from fairlead.agent.session import KeyRenewed, Refused, Session
from fairlead.agent.task_logs import PART, SharedOutput, log_path, read_log, read_outputs
from fairlead.agent.task_table import TaskTable
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import Hello, LogRequest, NewKey, Tasks, Welcome, decode_from_agent, encode
from fairlead.wire.handshake import Key, join_token
from tests.agent.test_task_table import AROUND, launch

HELLO = Hello("n1", {"cpu": 1})
WELCOME = Welcome(3, 20_000, 1_000_000, 100_000)


class Line:
    """The server's end of a connection."""

    def __init__(self) -> None:
        self.to_agent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.to_server: asyncio.Queue[wire.FromAgent] = asyncio.Queue()

    async def send(self, data: bytes) -> None:
        self.to_server.put_nowait(decode_from_agent(data))

    async def recv(self) -> bytes:
        data = await self.to_agent.get()
        if data is None:
            raise ConnectionError("cut")
        return data

    def say(self, message: wire.FromServer) -> None:
        self.to_agent.put_nowait(encode(message))


class Talk:
    def __init__(self) -> None:
        self.line = Line()
        self.table = TaskTable(AROUND, 1)
        self.leases: list[tuple[float, float]] = []
        self.epochs: list[int] = []
        self.has_new_key = False
        self.unknown: list[str] = []
        self.steady = monotonic
        self.lists = ResultLists(Path("/nowhere"), lambda event, fields: None)
        self.cores = 1
        self.outside = self.identity = self.epoch = self
        self.session = Session(cast(Joining, self), self.line)

    def logs_of(self, user: str) -> str:
        return "/nowhere"

    async def waiting_results(self) -> list[Tasks]:
        return self.lists.all()

    def owner_of(self, user: str) -> str:
        return ""

    def lease(self, ask_at: float, end_at: float, length: float, lock: str) -> None:
        self.leases.append((ask_at, end_at))

    def deliver(self) -> None:
        """Do nothing: there are no spawners."""

    def check(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def on_joined(self, session: Session, hello: wire.Hello) -> None:
        """Do nothing: the test looks at the messages."""

    def say_unknown(self, problem: str) -> None:
        self.unknown.append(problem)

    def new_key(self) -> NewKey:
        return NewKey(b"key", b"signature")

    def renewed(self) -> None:
        self.has_new_key = True

    async def run(self) -> None:
        await self.session.run(HELLO)


def tell(story: Callable[[Talk], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(30):
            await story(Talk())

    asyncio.run(in_time())


def test_a_lease_counts_from_when_the_server_was_asked() -> None:
    async def story(talk: Talk) -> None:
        before = monotonic()
        talk.line.say(WELCOME)
        running = asyncio.create_task(talk.run())
        assert await talk.line.to_server.get() == HELLO
        beat = await talk.line.to_server.get()
        assert isinstance(beat, wire.Beat)
        sent = monotonic()
        await asyncio.sleep(0.03)
        talk.line.say(wire.Beaten(beat.number))
        while len(talk.leases) < 2:
            await asyncio.sleep(0.001)
        (first_ask, first_end), (ask, end) = talk.leases[:2]
        assert before + 1.0 <= first_end <= end <= sent + 1.0
        assert first_end - first_ask == pytest.approx(0.1) == end - ask
        running.cancel()

    tell(story)


def test_a_message_of_a_newer_server_is_skipped() -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(WELCOME)
        running = asyncio.create_task(talk.run())
        assert await talk.line.to_server.get() == HELLO
        talk.line.to_agent.put_nowait(msgspec.msgpack.encode([99, "later"]))
        talk.line.to_agent.put_nowait(msgspec.msgpack.encode([3, 7, "a later field"]))
        while not talk.unknown:
            await asyncio.sleep(0.01)
        assert isinstance(await talk.line.to_server.get(), wire.Beat)
        assert not running.done()
        running.cancel()

    tell(story)


def test_an_agent_names_the_result_files_that_it_still_has_when_it_joins(tmp_path: Path) -> None:
    """As after a crash of the server that had confirmed the end of the task. They are removed when it has them."""
    lists = ResultLists(tmp_path, lambda event, fields: None)
    lists.add("", ("j", 1, "main", 2), 4, ([], ["a warning"]))
    left = Tasks("j", 1, "main", 2, (4, 5))

    async def story(talk: Talk) -> None:
        talk.lists = talk.session._lists = lists
        talk.line.say(WELCOME)
        running = asyncio.create_task(talk.run())
        assert await talk.line.to_server.get() == HELLO
        assert await talk.line.to_server.get() == wire.Staged((left,))
        talk.line.say(wire.OutputRequest(9, left, "ann", False, 1, 1))
        while not isinstance(part := await talk.line.to_server.get(), wire.OutputPart):
            pass
        assert (part.request, part.collected) == (9, (wire.Collected(4, (), "a warning"),))
        talk.line.say(wire.Taken(left, "ann"))
        while lists.all():
            await asyncio.sleep(0.01)
        running.cancel()

    tell(story)


def test_work_that_is_read_after_the_lease_is_over_is_not_started() -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(Welcome(3, 10_000_000, 50_000, 10_000))
        running = asyncio.create_task(talk.run())
        while not talk.leases:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.06)  # as if the agent had been stopped: the server may have called the node lost
        talk.line.say(wire.Work(3, (wire.Spec(("true",)),), (wire.Launch(Tasks("j", 1, "s", 1, (0, 1)), 0),)))
        with pytest.raises(ConnectionError, match="the lease was over"):
            await running
        assert len(talk.table) == 0

    tell(story)


def test_a_new_agent_leaves_the_lease_as_its_spawners_know_it() -> None:
    sent: list[Any] = []

    class Outside:
        server = "nowhere"

        def open_link(self, at: int, user: str) -> Any:
            return self

        def send(self, *frames: Any) -> bool:
            sent.extend(frames)
            return True

        def wake(self) -> None:
            pass

    async def story() -> None:
        log = lambda event, fields: None  # noqa: E731
        outside: Any = Outside()
        joining = Joining(TaskTable(AROUND, 1), outside, outside, Epoch(0, lambda epoch: None, "", log), log)
        joining.begin()
        joining.on_message(0, "state", [], "", "none")
        assert joining.all_found.is_set() and not sent
        joining.lease(1.0, 2.0, 3.0, "")
        joining.on_message(0, "state", [], "", "none")  # a new spawner in its place
        assert sent == [("lease", 1.0, 2.0, 3.0, "")] * 2

    asyncio.run(story())


def test_without_a_fence_there_is_no_lease() -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(Welcome(1, 20_000, 0, 100_000))
        running = asyncio.create_task(talk.run())
        while not talk.leases:
            await asyncio.sleep(0.001)
        assert talk.leases == [(float("inf"), float("inf"))]
        running.cancel()

    tell(story)


def test_an_agent_leaves_a_server_that_answers_no_heartbeat() -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(WELCOME)
        with pytest.raises(ConnectionError, match="answered none of 3"):
            await talk.run()

    tell(story)


@pytest.mark.parametrize("final", [True, False])
def test_a_refusal_says_whether_to_come_again(final: bool) -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(wire.Refusal("go away", final))
        with pytest.raises(Refused, match="go away") as refused:
            await talk.run()
        assert refused.value.final == final

    tell(story)


def test_orders_of_a_reign_that_is_over_are_not_taken(tmp_path: Path) -> None:
    async def story() -> None:
        token = join_token("secret", Key().public)
        settings = Settings(join="http://127.0.0.1:1", directory=tmp_path, token=token)
        first = Agent(settings, lambda event, fields: None)
        first.epoch.check(3)
        first.epoch.check(3)
        first.epoch.check(5)
        with pytest.raises(Refused, match="the server's epoch 4 is over, since 5 was seen"):
            first.epoch.check(4)
        os.close(first._lock)
        again = Agent(settings, lambda event, fields: None)
        with pytest.raises(Refused):
            again.epoch.check(4)
        os.close(again._lock)

    asyncio.run(story())


def test_a_renewed_key_is_kept_and_opens_the_next_connection() -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(WELCOME)
        talk.line.say(wire.Renew())
        running = asyncio.create_task(talk.run())
        while not isinstance(message := await talk.line.to_server.get(), NewKey):
            pass
        assert message.key == b"key" and not talk.has_new_key
        talk.line.say(wire.Renewed())
        with pytest.raises(KeyRenewed):
            await running
        assert talk.has_new_key

    tell(story)


def test_every_order_is_looked_at_for_its_epoch() -> None:
    async def story(talk: Talk) -> None:
        talk.line.say(WELCOME)
        talk.line.say(launch(0, 1))
        running = asyncio.create_task(talk.run())
        while len(talk.epochs) < 2:
            await asyncio.sleep(0.001)
        assert talk.epochs == [3, 1]
        running.cancel()

    tell(story)


@pytest.mark.parametrize("stage", ["../../etc", "a/b", "", ".hidden", "x" * 64, "a\0b"])
def test_a_log_is_never_looked_for_elsewhere(stage: str) -> None:
    assert log_path("/logs", LogRequest(1, 1, stage, 0, 1)) is None


def test_a_log_has_its_place() -> None:
    assert log_path("/logs", LogRequest(1, 1234, "main", 5, 2, "err")) == Path("/logs/12.0/1234.main.5.2.err")


def test_known_tasks_are_listed_in_heartbeats() -> None:
    async def story(talk: Talk) -> None:
        talk.table.handle(launch(0, 2))
        talk.table.record([(1, "main", 1, 0)], [])
        talk.line.say(WELCOME)
        running = asyncio.create_task(talk.run())
        while not isinstance(message := await talk.line.to_server.get(), wire.Beat):
            pass
        assert message.known == (Tasks("job", 1, "main", 1, (0, 1)),)
        running.cancel()

    tell(story)


@pytest.mark.parametrize("trick", ["fifo", "link", "second name", "huge file"])
def test_a_log_that_its_task_replaced_is_not_followed(tmp_path: Path, trick: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    asked = LogRequest(1, 1, "main", 0, 1)
    path = log_path(str(tmp_path), asked)
    assert path is not None
    path.parent.mkdir()
    for each in (path, path.with_name(path.name + ".1")):
        if trick == "fifo":
            os.mkfifo(each)
        elif trick == "link":
            each.symlink_to(secret)
        elif trick == "second name":
            each.hardlink_to(secret)
        else:
            each.touch()
            os.truncate(each, 1 << 40)

    async def read() -> list[wire.LogPart]:
        parts: list[wire.LogPart] = []
        async for part in read_log(str(tmp_path), asked, lambda: True):
            parts.append(part)
            if len(parts) == 3:
                break
        return parts

    data = [part.data for part in asyncio.run(read())]
    assert data == [bytes(PART)] * 3 if trick == "huge file" else data == [b""]


def test_a_huge_log_is_copied_up_to_a_limit(tmp_path: Path) -> None:
    """It costs its task nothing, as a sparse file, and would keep the copies of all others waiting."""
    for index, size in ((0, 1 << 40), (1, 5)):
        path = log_path(str(tmp_path), LogRequest(1, 1, "main", index, 1))
        assert path is not None
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.truncate(path, size)

    async def sizes() -> dict[int, int]:
        found = {0: 0, 1: 0}
        async with asyncio.timeout(30):
            async for part in read_outputs(
                str(tmp_path), wire.OutputRequest(1, Tasks("job", 1, "main", 1, (0, 2)), "ann")
            ):
                for output in part.outputs:
                    found[output.index] += len(output.data)
        return found

    assert asyncio.run(sizes()) == {0: wire.MAX_OUTPUT, 1: 5}


def test_logs_are_read_outside_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user can make a folder slow. While 40 large logs were read, the loop was half a second late."""
    for index in range(2):
        path = log_path(str(tmp_path), LogRequest(1, 1, "main", index, 1))
        assert path is not None
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 3 * PART)
    (path.parent / "000.shared").write_bytes(b"1.main.2.1 3 0\nabc")
    used: set[int] = set()
    for name in ("open", "pread", "fstat"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, real=real, **more: used.add(get_ident()) or real(*given, **more))

    async def read() -> list[int]:
        asked = wire.OutputRequest(1, Tasks("job", 1, "main", 1, (0, 3)), "ann")
        found = [0, 0, 0]
        async for part in read_outputs(str(tmp_path), asked):
            for output in part.outputs:
                found[output.index] += len(output.data)
        return found

    assert asyncio.run(read()) == [3 * PART, 3 * PART, 3]
    assert used and get_ident() not in used


def test_names_that_a_user_writes_into_shared_files_cost_no_memory(tmp_path: Path) -> None:
    """An agent took 2 GiB for the names in 200 files."""
    folder = tmp_path / "0.0"
    folder.mkdir()
    (folder / "000.shared").write_bytes(b"".join(b"1.main.%d.2 0 0\n" % index for index in range(20_000)))
    (folder / "001.shared").write_bytes(b"1.main.7.1 3 0\nabc" + b"".join(b"2.main.%d.1 0 0\n" % at for at in range(9)))
    shared = SharedOutput(str(tmp_path))
    assert asyncio.run(shared.read(LogRequest(1, 1, "main", 7, 1))) == b"abc"
    assert [len(places) for places in shared._places.values()] == [1]


def test_a_log_reader_that_is_replaced_is_informed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_LOGS", 3)
    monkeypatch.setattr(TaskTable, "is_over", lambda *task: False)

    async def story(talk: Talk) -> None:
        talk.line.say(Welcome(1, 3_600_000_000, 0, 0))
        running = asyncio.create_task(talk.run())
        for request, user in enumerate(("ann", "bob", "bob", "carl", "dora", "bob"), 1):
            talk.line.say(LogRequest(request, 1, "main", 0, 1, follow=True, user=user))
        assert await talk.line.to_server.get() == HELLO
        # First the older request of bob, because bob has two; then the oldest among users with one each.
        for request in (2, 1, 3):
            part = await talk.line.to_server.get()
            assert isinstance(part, wire.LogPart) and (part.request, part.last) == (request, True)
            assert "read it again in a while" in part.problem
        running.cancel()

    tell(story)


def test_a_dead_link_is_left_without_a_handshake(tmp_path: Path) -> None:
    """The closing handshake on a dead link took ten seconds, so a hole of five cost a lease of ten."""

    async def story() -> None:
        done = asyncio.Event()

        async def handle(connection: ServerConnection) -> None:
            connection.transport.pause_reading()
            await done.wait()

        async with serve(handle, "127.0.0.1", 0, close_timeout=0.1) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            token = join_token("secret", Key().public)
            settings = Settings(join=f"http://127.0.0.1:{port}", directory=tmp_path / "agent", token=token, name="n1")
            agent = Agent(settings, lambda event, fields: None)
            async with asyncio.timeout(8):
                async with agent.connect():
                    pass
            done.set()

    asyncio.run(story())
