"""The agent's end of a spawner; the spawner is scripted by the test."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

from fairlead.agent.spawner.frames import VERSION, Unpacker, pack
from fairlead.agent.spawner_link import Link, _open, prepare


def test_nothing_is_sent_before_the_spawner_has_said_what_it_knows(tmp_path: Path) -> None:
    """Its first message would not name a launch that was sent earlier, and the agent would report it as not started."""
    directory = prepare(tmp_path / "spawner-0")
    got: list[Any] = []

    async def story() -> None:
        connected, received = asyncio.Event(), asyncio.Event()
        link: Link

        def on_message(what: str, *rest: Any) -> None:
            link.send(("lease",))
            received.set()

        async def spawner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await asyncio.sleep(0.1)  # what the agent sends meanwhile is there
            writer.write(pack(("state", [], "")))
            await received.wait()
            unpacker = Unpacker()
            while not any(frame == ("lease",) for frame in got):
                got.extend(unpacker.feed(await reader.read(1 << 16)))
            writer.close()

        async def start() -> str:
            return ""

        link = Link(directory, start, on_message, lambda problem, gone, node_fault: None)
        async with asyncio.timeout(30), await asyncio.start_unix_server(spawner, directory / "socket"):
            keeping = asyncio.create_task(link.keep())
            await connected.wait()
            await asyncio.sleep(0)
            link.send(("launch", [], {}))
            await received.wait()
            while ("lease",) not in got:
                await asyncio.sleep(0.01)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(story())
    assert got == [("version", VERSION), ("lease",)]


def test_a_spawner_that_is_not_understood_is_told_to_end_and_named_once(tmp_path: Path) -> None:
    """An agent over spawners of another version connected again 4,000 times a second, and the node was lost."""
    directory = prepare(tmp_path / "spawner-0")
    got: list[Any] = []
    said: list[tuple[str, bool]] = []

    async def story() -> None:
        connections = 0

        async def spawner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            unpacker = Unpacker()
            writer.write(pack(("state", [(1, 2)], "", "", "", "more")))
            while not any(frame[0] == "end" for frame in got):
                got.extend(unpacker.feed(await reader.read(1 << 16)))
            writer.write(pack(("events", 1, 2, 3, 4)))
            writer.close()

        async def start() -> str:
            return ""

        def heard(kind: str, tasks: list[Any], note: str, cgroup: str) -> None:
            raise AssertionError("it is not understood")

        link = Link(directory, start, heard, lambda problem, gone, node_fault: said.append((problem, gone)))
        async with asyncio.timeout(30), await asyncio.start_unix_server(spawner, directory / "socket"):
            keeping = asyncio.create_task(link.keep())
            while connections < 2:
                await asyncio.sleep(0.01)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            assert connections == 2

    asyncio.run(story())
    assert [frame for frame in got if frame[0] == "end"][:1] == [("end", 10.0)]
    assert len(said) == 1 and "its version is too old or too new" in said[0][0] and not said[0][1]


def test_a_spawner_of_a_later_version_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    link = Link(tmp_path, None, lambda *message: None, lambda problem, gone, node_fault: said.append(problem))  # type: ignore[arg-type]
    for version in (VERSION, VERSION + 1, VERSION + 1):
        link.data_received(pack(("version", version)))
    assert len(said) == 1 and "speaks version 3, this agent 2" in said[0]


def test_a_spawner_that_accepts_no_connection_is_not_waited_for(tmp_path: Path) -> None:
    """The agent has one loop for all spawners."""

    def wait_no_longer(number: int, frame: Any) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, wait_no_longer)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(1)
        signal.alarm(5)
        taken = []
        try:
            while (link := _open(tmp_path)) is not None:
                taken.append(link)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            for link in taken:
                link.close()
    assert len(taken) == 2
