"""Clocks that leap by years: the server's time goes on, and nothing expires for it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fairlead.api.walltime import HOUR, kept_wall, steady_wall
from fairlead.journal import NotWritten, SqliteJournal
from tests.api.serving import JOB, SECONDS, serving, submit

YEARS = 10 * 365 * 24 * HOUR


class Clocks:
    def __init__(self) -> None:
        self.wall = 1_000 * HOUR
        self.steady = 5 * HOUR

    def go_on(self, nanoseconds: int) -> None:
        self.wall += nanoseconds
        self.steady += nanoseconds


def test_a_clock_goes_on_over_leaps_and_restarts(tmp_path: Path) -> None:
    clocks = Clocks()
    notes: list[str] = []

    def start(boot: str = "one") -> int:
        clock = kept_wall(tmp_path / "clock", notes.append, lambda: clocks.wall, lambda: clocks.steady, boot)
        return clock()

    assert start() == 1_000 * HOUR
    clocks.go_on(HOUR)
    clocks.wall += YEARS
    assert start() == 1_001 * HOUR  # the leap was none
    assert len(notes) == 1 and "leapt by 87600 hours" in notes[0]
    clocks.wall -= 2 * YEARS
    assert start() == 1_001 * HOUR
    clocks.wall += YEARS + HOUR // 2
    assert start() == 1_001 * HOUR + HOUR // 2  # a small correction is followed
    clocks.wall += YEARS
    assert start("two") == clocks.wall  # another start of the machine
    assert len(notes) == 2


def test_a_clock_does_not_follow_the_wall() -> None:
    clocks = Clocks()
    clock = steady_wall(lambda: clocks.wall, lambda: clocks.steady)
    before = clock()
    clocks.wall += YEARS
    assert clock() == before
    clocks.go_on(7)
    assert clock() == before + 7


def test_nothing_expires_when_the_clock_leaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane begins anew, as after a full disk, while the clock is wrong."""
    failing = False

    class Failing(SqliteJournal):
        def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
            nonlocal failing
            if failing:
                failing = False
                raise NotWritten("no room; free some")
            super().append(stream, epoch, seq, payload)

    with serving(tmp_path, open_journal=lambda: Failing(tmp_path / "journal", synchronous="off")) as site:
        name = submit(site.as_owner)
        site.as_owner.post(f"/api/v1/jobs/{name}/kill")
        real = time.time_ns
        monkeypatch.setattr("fairlead.writer.clock.time_ns", lambda: real() + YEARS)
        monkeypatch.setattr("fairlead.api.walltime.time_ns", lambda: real() + YEARS)
        monkeypatch.setattr("time.time_ns", lambda: real() + YEARS)
        epoch = site.control.find("").epoch
        failing = True
        site.as_owner.post("/api/v1/jobs", json=JOB)
        deadline = time.monotonic() + SECONDS
        while site.control.problem or site.control.find("").epoch == epoch:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        later = submit(site.as_owner)
        found = site.as_owner.get(f"/api/v1/jobs/{name}")
        assert (found.status_code, found.json()["state"]) == (200, "killed")  # it is kept for a day
        assert abs(site.as_owner.get(f"/api/v1/jobs/{later}").json()["submitted"] - time.time()) < 3_600
