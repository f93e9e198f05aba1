"""Clocks that leap by years: the server's time goes on, and nothing expires because of a leap."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from fairlead.control.walltime import HOUR, Anchor, in_seconds, kept_wall, since_boot, steady_wall
from fairlead.identity.secrets import Secrets
from fairlead.identity.tokens import Tokens
from fairlead.journal import NotWritten, SqliteJournal
from fairlead.wire.agent_messages import this_machine
from tests.http.serving import JOB, serving, submit
from tests.live import Up
from tests.until import until

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
    assert start() == 1_001 * HOUR  # the leap is ignored
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
    """A control plane restarts, as after a full disk, while the clock is wrong."""
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
        monkeypatch.setattr("fairlead.control.walltime.time_ns", lambda: real() + YEARS)
        monkeypatch.setattr("time.time_ns", lambda: real() + YEARS)
        epoch = site.control.find("").epoch
        failing = True
        site.as_owner.post("/api/v1/jobs", json=JOB)
        until(lambda: not site.control.problem and site.control.find("").epoch != epoch)
        later = submit(site.as_owner)
        found = site.as_owner.get(f"/api/v1/jobs/{name}")
        assert (found.status_code, found.json()["state"]) == (200, "killed")  # it is kept for a day
        assert abs(site.as_owner.get(f"/api/v1/jobs/{later}").json()["submitted"] - time.time()) < 3_600


def test_tokens_and_secrets_expire_by_time_and_not_by_leaps(tmp_path: Path) -> None:
    clocks = Clocks()
    now = in_seconds(steady_wall(lambda: clocks.wall, lambda: clocks.steady))
    tokens, secrets = Tokens(tmp_path / "tokens", now), Secrets(tmp_path / "secrets", tmp_path / "key", now)
    secret, _ = tokens.create("user", "ann", expires_in=3_600)
    secrets.set("ann", "db", "hidden", expires_in=3_600)
    for leap in (YEARS, -2 * YEARS):
        clocks.wall += leap
        assert tokens.find(secret) is not None and secrets.names("ann") == ["db"]
    clocks.go_on(HOUR)
    assert tokens.find(secret) is None and secrets.names("ann") == []


@pytest.mark.parametrize("leap", [YEARS, -YEARS])
def test_a_server_whose_clock_leapt_before_its_start_goes_on(tmp_path: Path, leap: int) -> None:
    """Its agent joins, and tokens count from the server's time, whatever the machine's clock says."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    anchor = Anchor(this_machine(), time.time_ns() - since_boot() - leap)
    (data / "clock").write_bytes(msgspec.json.encode(anchor))
    (data / "clock").chmod(0o600)
    up = Up(data)
    try:
        assert up.run("run", "--", "echo", "still here") == "still here\n"
        document = up.run("token", "create", "--role", "user", "--user", "ann", "--expires-in", "1h", "--json")
        made = msgspec.json.decode(document)
        assert abs(made["token"]["expires"] - (time.time() - leap / 1e9 + 3_600)) < 600
        up.environment["FAIRLEAD_TOKEN"] = made["secret"]
        assert "box" in up.run("node", "list")
    finally:
        up.environment.pop("FAIRLEAD_TOKEN", None)
        up.close()
