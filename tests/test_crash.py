"""A server that is killed while many tasks end: afterwards the history knows where each one ran, and since when."""

from __future__ import annotations

from pathlib import Path

from fairlead.client import Client
from tests.live import SECONDS, Up
from tests.until import until

TASKS = 300
KILLS = 1


def test_where_tasks_ran_is_known_after_a_crash(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        with Client(up.url, up.token) as client:
            job = client.submit(["sh", "-c", "echo $FAIRLEAD_INDEX"], count=TASKS, min=1, resources={"cpu": 0.1})
        for kill in range(KILLS):
            until_succeeded(up, job, (kill + 1) * TASKS // (KILLS + 1))
            up.process.kill()
            up.process.wait(SECONDS)
            up.start()
        with Client(up.url, up.token) as client:
            assert client.wait(job, SECONDS).state == "succeeded"
            ran: dict[int, tuple[str, bool]] = {}
            for row in client.attempts(job).attempts:
                if row.outcome == "succeeded":
                    for first, end in zip(row.indices[::2], row.indices[1::2], strict=True):
                        ran |= dict.fromkeys(range(first, end), (row.node, row.started is not None))
            assert sorted(ran) == list(range(TASKS))
            assert {index: where for index, where in ran.items() if where != ("box", True)} == {}
    finally:
        up.close()


def until_succeeded(up: Up, job: str, count: int) -> None:
    with Client(up.url, up.token) as client:
        until(lambda: client.job(job).stages[0].ended.get("succeeded", 0) >= count, pause=0.005)
