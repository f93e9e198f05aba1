"""Fixtures of the journal's tests: every journal, and real child processes."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.journal import Journal, MemoryJournal, SqliteJournal
from fairlead.journal.postgresql import PostgresJournal

Child = Callable[..., subprocess.Popen[str]]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    with made(request.param, tmp_path, request) as journal:
        yield journal


def made(kind: str, folder: Path, request: pytest.FixtureRequest) -> Journal:
    if kind == "memory":
        return MemoryJournal()
    if kind == "sqlite":
        return SqliteJournal(folder / "j", synchronous="off")
    return PostgresJournal(request.getfixturevalue("database"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the place of a history: a file, or a database."""
    return str(tmp_path / "history") if request.param == "sqlite" else str(request.getfixturevalue("database"))


@pytest.fixture
def child() -> Iterator[Child]:
    """Start a Python script with arguments in a process of its own; its stdin and stdout are pipes."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
