"""The agent's folder on a disk that is full for a while: no task is lost, and no process of Fairlead dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.agent import spawner_link
from fairlead.agent.spawner import files
from fairlead.agent.spawner.ledger import Ledger, open_files
from fairlead.agent.spawner_link import end_all, prepare
from tests.agent.plant import JOIN_TOKEN, SECONDS, Plant, machine
from tests.agent.test_spawner import Spawner
from tests.agent.test_stories import SHORT

RESOURCES = ("--resource=cpu=5", "--resource=memory=1Gi")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("no tmpfs can be mounted here; run the tests as root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free. Returns the file that fills the disk."""
    filler = disk / "filler"
    with filler.open("wb", 0) as file:
        for size in (1 << 16, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def test_a_full_disk_delays_tasks_and_loses_none(tmp_path: Path, disk: Path) -> None:
    """While the disk is full, running tasks go on and end, and killed agents and spawners come back."""
    go = tmp_path / "go"
    script = f"echo $FAIRLEAD_INDEX >>{tmp_path}/started; while ! [ -e {go} ]; do sleep 0.05; done"

    async def story() -> None:
        async with (
            asyncio.timeout(SECONDS),
            Plant(tmp_path / "journal", SHORT).at_work() as plant,
            machine(disk / "agent", plant.url, *RESOURCES, f"--token-file={tmp_path / JOIN_TOKEN}") as one,
        ):
            job = await plant.submit(["sh", "-c", script], count=4, min=1, resources={"cpu": 1})
            started = tmp_path / "started"
            while not started.exists() or len(started.read_text().split()) < 4:
                await asyncio.sleep(0.01)
            await plant.until(
                lambda partition: {allocation.state for allocation in partition.allocations.values()} == {"running"}
            )
            filler = fill(disk)
            later = await plant.submit(["sh", "-c", f"echo $FAIRLEAD_INDEX >>{tmp_path}/later"], count=200, min=1)
            spawners = one.spawners()
            await one.kill()
            await one.start()
            go.touch()
            assert await plant.over(job) == "succeeded", "the ends were not written to disk, but they are reported"
            assert one.spawners() == spawners
            assert sorted(started.read_text().split()) == ["0", "1", "2", "3"]
            one.kill_spawners()
            while not one.spawners() or set(one.spawners()) & set(spawners):
                await asyncio.sleep(0.01)
            filler.unlink()
            assert await plant.over(later) == "succeeded"
            assert set((tmp_path / "later").read_text().split()) == set(map(str, range(200)))

    asyncio.run(story())


def test_a_spawner_starts_on_a_full_disk(disk: Path) -> None:
    directory = prepare(disk / "spawner-0")
    one = Spawner(directory)
    (key,) = one.launch("sleep 1000")
    one.until(lambda: key in one.started)
    filler = fill(disk)
    one.process.kill()
    one.process.wait()
    again = Spawner(directory)
    assert again.ended[key][0] == "lost"
    filler.unlink()
    (later,) = again.launch("true", number=2)
    again.until(lambda: later in again.ended)
    assert again.ended[later][:2] == ("exit", 0)
    end_all(disk, 0.0)
    again.process.wait()
    assert key in Ledger(open_files(str(directory / "ledger"))).ended


def test_the_name_of_a_spawner_is_never_empty(disk: Path) -> None:
    """Processes are found by that name to end them: an empty one would match all processes of the machine."""
    directory = prepare(disk / "spawner-0")
    filler = fill(disk)
    with pytest.raises(OSError, match="No space left"):
        spawner_link._mark(directory)
    filler.unlink()
    assert len(spawner_link._mark(directory)) > 8
    (directory / "id").write_text("")
    assert len(spawner_link._mark(directory)) > 8


def test_a_large_log_on_a_full_disk_stays_as_it_is(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = disk / "log"
    log.write_bytes(bytes(3 << 20))
    monkeypatch.setattr(files, "LARGE", 1 << 20)
    files.rotate(str(log))
    assert os.listdir(disk) == ["log"]
    assert log.stat().st_size == 3 << 20
