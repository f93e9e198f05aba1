"""Tasks run as the users that submitted them: a real root agent, and real system users."""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.agent import LogRequest
from tests.agent.plant import PARTITION, SECONDS, Machine, Plant
from tests.people import People, needs_root, people

pytestmark = needs_root


@pytest.fixture(scope="module")
def two() -> Iterator[People]:
    with people("ann", "bob") as found:
        yield found


@asynccontextmanager
async def node(two: People, path: Path, *options: str) -> AsyncIterator[tuple[Plant, Machine]]:
    settings = {"heartbeat": "1s", "preempt_grace": "300ms"}
    async with Plant(path / "journal", settings).at_work() as plant:
        one = Machine(two.folder / path.name / "node", plant.url, "--resource=cpu=8", *two.options, *options)
        one.directory.parent.mkdir(mode=0o711)
        await one.start()
        try:
            await plant.until(lambda p: p.nodes.find("n1") is not None)
            yield plant, one
        finally:
            await one.clear()


def tell(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(SECONDS):
            await story()

    asyncio.run(in_time())


async def run(plant: Plant, user: str, script: str, **stage: Any) -> tuple[str, str]:
    """Run a script as a user: how it ended, and what it wrote."""
    job = await plant.submit(["/bin/sh", "-c", script], user=user, **stage)
    state = await plant.over(job)
    return state, await log_of(plant, user, job)


async def log_of(plant: Plant, user: str, job: str) -> str:
    number = await plant.job(job, lambda each: each.number)
    asked = LogRequest(0, number, "main", 0, 1, user=user)
    return b"".join([part.data async for part in plant.hub.log(PARTITION, "n1", asked)]).decode()


def test_a_task_runs_as_its_user(two: People, tmp_path: Path) -> None:
    async def story() -> None:
        async with node(two, tmp_path) as (plant, _):
            for user, name in two.names.items():
                who = pwd.getpwnam(name)
                state, said = await run(plant, user, "id -u; id -g; id -G; pwd; echo $HOME $USER; umask")
                assert state == "succeeded"
                uid, gid, groups, folder, names, mask = said.splitlines()
                assert (int(uid), int(gid), groups.split()) == (who.pw_uid, who.pw_gid, [str(who.pw_gid)])
                assert (folder, names, mask) == (who.pw_dir, f"{who.pw_dir} {name}", "0022")
            labels = await plant.read(lambda p: p.nodes.labels[p.nodes.rows[p.nodes.joins["n1"]]])
            assert labels["users"] == "separate" and labels["tmp"] in ("private", "shared")

    tell(story)
