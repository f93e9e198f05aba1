"""The server's log file: its size is bounded, and a full disk loses lines but does not stop the server."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from fairlead.server.logfile import OLDER, LogFile, logger_to


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_old_lines_go(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    log = LogFile(path, total=(OLDER + 1) * 1_000)
    for number in range(1_000):
        log.write(f"{number:099}\n")
    log.close()
    names = sorted(os.listdir(tmp_path))
    assert names == ["server.log", *(f"server.log.{number}" for number in range(1, OLDER + 1))]
    assert all((tmp_path / name).stat().st_size <= 1_000 for name in names)
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in names)
    kept = [int(line) for name in [*reversed(names[1:]), names[0]] for line in lines(tmp_path / name)]
    assert kept == list(range(1_000 - len(kept), 1_000)) and len(kept) > 10 * OLDER


def test_a_restart_goes_on_with_the_same_file(tmp_path: Path) -> None:
    for number in range(3):
        log = LogFile(tmp_path / "server.log", total=10**6)
        log.write(f"{number}\n")
        log.close()
    assert lines(tmp_path / "server.log") == ["0", "1", "2"]


def test_a_full_disk_costs_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = LogFile(tmp_path / "server.log", total=10**6)
    log = logger_to(out, "json")
    log.info("before")
    real = os.write

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def nearly_full(fd: int, data: bytes) -> int:
        return real(fd, data[:5])

    for disk in (full, nearly_full):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", disk)
            log.info("lost")
            log.info("lost")
    log.info("after")
    out.close()
    found = [json.loads(line) for line in lines(tmp_path / "server.log")]
    assert [each["event"] for each in found] == ["before", "log lines lost", "after"]
    assert found[1]["lines"] == 4


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "server.log", total=(OLDER + 1) * 10_000)
    threads = [threading.Thread(target=lambda: [log.write("x" * 99 + "\n") for _ in range(200)]) for _ in range(4)]
    for each in threads:
        each.start()
    for thread in threads:
        thread.join()
    log.close()
    assert {line for path in tmp_path.iterdir() for line in lines(path)} == {"x" * 99}
