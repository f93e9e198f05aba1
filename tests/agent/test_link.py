"""The agent's end of a spawner, with a spawner whose every word is a test's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fairlead.agent.link import Link, prepare
from fairlead.agent.spawner.frames import Unpacker, pack


def test_nothing_is_sent_before_the_spawner_has_said_what_it_knows(tmp_path: Path) -> None:
    """It would take a launch that its first message cannot name, and the agent would call that task not started."""
    directory = prepare(tmp_path / "spawner-0")
    got: list[Any] = []

    async def story() -> None:
        connected, told = asyncio.Event(), asyncio.Event()
        link: Link

        def heard(what: str, *rest: Any) -> None:
            link.send(("lease",))
            told.set()

        async def spawner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await asyncio.sleep(0.1)  # what the agent sends meanwhile is there
            writer.write(pack(("state", [], "")))
            await told.wait()
            unpacker = Unpacker()
            while not any(frame == ("lease",) for frame in got):
                got.extend(unpacker.feed(await reader.read(1 << 16)))
            writer.close()

        async def start() -> str:
            return ""

        link = Link(directory, start, heard, lambda problem, gone: None)
        async with asyncio.timeout(30), await asyncio.start_unix_server(spawner, directory / "socket"):
            keeping = asyncio.create_task(link.keep())
            await connected.wait()
            await asyncio.sleep(0)
            link.send(("launch", [], {}))
            await told.wait()
            while ("lease",) not in got:
                await asyncio.sleep(0.01)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(story())
    assert got == [("lease",)]
