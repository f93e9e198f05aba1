"""kill -9 of the real program, part by part and together: server, agent and spawners as `fairlead up` starts them.

The rules are those of test_kill.py: none twice at once, no attempt twice, none lost in silence.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from tests.agent.test_kill import TASK
from tests.live import Up, spawners

PARTS = ("server", "agent", "spawner")
COMBINATIONS = [combination for many in (1, 2, 3) for combination in combinations(PARTS, many)]


def processes(up: Up, part: str) -> list[int]:
    if part == "server":
        return [up.process.pid]
    if part == "agent":
        return [process.pid for process in up.agents()]
    found = spawners(up.folder / "agent")
    return [process.pid for process in found] + [guard.pid for process in found for guard in guards_of(process)]


def guards_of(spawner: psutil.Process) -> list[psutil.Process]:
    """Return the guard of a spawner, and tasks that are just starting: forks with the words of the spawner."""
    with suppress(psutil.Error):
        return [child for child in spawner.children() if child.cmdline() == spawner.cmdline()]
    return []


def strike(up: Up, parts: tuple[str, ...]) -> None:
    for pid in [pid for part in parts for pid in processes(up, part)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if "server" in parts:
        up.process.communicate()
        up.start()


def story(path: Path, strikes: list[tuple[str, ...]], seed: int, tasks: int) -> None:
    chance = random.Random(seed)
    ran = path / "ran"
    ran.mkdir()
    up = Up(path / "data", "--name", "box", "--resource", "cpu=4", "--resource", "memory=8Gi")
    try:
        script = TASK.format(folder=ran, seconds=0.02)
        job = up.run("submit", "--array", str(tasks), "--", "sh", "-c", script).split()[0]
        for parts in strikes:
            time.sleep(chance.uniform(0.05, 0.5))
            strike(up, parts)
        assert up.ask("wait", job).returncode == 0, up.run("show", job)
    finally:
        up.close()
    assert not (ran / "twice").exists()
    started = Counter((ran / "started").read_text().split())
    assert max(started.values()) == 1, started.most_common(3)
    assert {int(each.partition(".")[0]) for each in started} == set(range(tasks))


def test_every_combination_once(tmp_path: Path) -> None:
    story(tmp_path, COMBINATIONS, seed=1, tasks=300)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_many_of_them(tmp_path: Path, seed: int) -> None:
    strikes = random.Random(seed).choices(COMBINATIONS, k=15)
    story(tmp_path, strikes, seed, tasks=1000)
