"""Completion of names in bash, zsh and fish, with the real shells where they are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import PROGRAM, SECONDS, Up

CASES = [
    ("node drain ", "box"),
    ("show ", "1"),
    ("kill ", "1"),
    ("queue stop root.", "root.default"),
    ("submit --queue root.d", "root.default"),
    ("ps --label te", "team=red"),
    ("history --name sl", "sleep"),
    ("no", "node"),
    ("ps --wa", "--watch"),
]
"""The end of a line, and what it is completed to."""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    server = Up(tmp_path_factory.mktemp("completion") / "data")
    server.until("node", "list", said="box")
    server.run("submit", "--label", "team=red", "--label", "odd=$(touch x)", "sleep", "600")
    try:
        yield server
    finally:
        server.close()


def environment(up: Up) -> dict[str, str]:
    return {**up.environment, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}", "TERM": "xterm"}


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def said(up: Up, *command: str, **variables: str) -> list[str]:
    done = subprocess.run(
        command,
        env={**environment(up), **variables},
        cwd=up.folder.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "found"), CASES)
def test_each_shell_is_answered(up: Up, line: str, found: str) -> None:
    words = line.split(" ")
    bash = said(
        up,
        PROGRAM,
        _FAIRLEAD_COMPLETE="complete_bash",
        COMP_WORDS=f"fairlead {line}",
        COMP_CWORD=str(len(words)),
    )
    assert found in bash
    zsh = said(up, PROGRAM, _FAIRLEAD_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=f"fairlead {line}")
    assert f'"{found}"' in "".join(zsh)
    fish = said(
        up,
        PROGRAM,
        _FAIRLEAD_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
        _TYPER_COMPLETE_ARGS=f"fairlead {line}",
    )
    assert found in [answer.partition("\t")[0] for answer in fish]


def test_a_label_behind_the_equals_sign_in_bash(up: Up) -> None:
    words = {"COMP_WORDS": "fairlead ps --label team = r", "COMP_CWORD": "5"}
    assert said(up, PROGRAM, _FAIRLEAD_COMPLETE="complete_bash", **words) == ["red"]


def test_the_beginning_of_a_name_becomes_the_id_in_bash(up: Up) -> None:
    for name, found in (("sl", ["1"]), ("xy", [])):
        words = {"COMP_WORDS": f"fairlead kill {name}", "COMP_CWORD": "2"}
        assert [*filter(None, said(up, PROGRAM, _FAIRLEAD_COMPLETE="complete_bash", **words))] == found


def test_no_name_that_a_shell_could_run_is_offered(up: Up) -> None:
    words = {"COMP_WORDS": "fairlead ps --label ", "COMP_CWORD": "3"}
    assert said(up, PROGRAM, _FAIRLEAD_COMPLETE="complete_bash", **words) == ["team=red"]


def test_without_a_server_no_name_is_offered_and_nothing_is_said(up: Up, tmp_path: Path) -> None:
    words = {"COMP_WORDS": "fairlead node drain ", "COMP_CWORD": "3", "FAIRLEAD_DATA": str(tmp_path)}
    assert said(up, PROGRAM, _FAIRLEAD_COMPLETE="complete_bash", **words) in ([], [""])


@pytest.mark.parametrize(("line", "found"), CASES)
def test_bash(up: Up, line: str, found: str) -> None:
    words = " ".join(f"'{word}'" for word in line.split(" "))
    script = (
        'eval "$(_FAIRLEAD_COMPLETE=source_bash fairlead)"\n'
        f"COMP_WORDS=(fairlead {words}); COMP_CWORD={len(line.split(' '))}\n"
        "_fairlead_completion fairlead\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert found in said(up, shell("bash"), "--norc", "-c", script)


@pytest.mark.parametrize(("line", "found"), CASES)
def test_fish(up: Up, line: str, found: str, tmp_path: Path) -> None:
    script = f"_FAIRLEAD_COMPLETE=source_fish fairlead | source; complete -C 'fairlead {line}'"
    answers = said(up, shell("fish"), "--no-config", "-c", script, HOME=str(tmp_path))
    assert found in [answer.partition("\t")[0] for answer in answers]


def test_zsh(up: Up, tmp_path: Path) -> None:
    """Zsh completes only on a terminal: the tabulator completes the line, and the line is run."""
    program = shell("zsh")
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(up.folder.parent)
        os.execve(program, [program, "-f", "-i"], {**environment(up), "HOME": str(tmp_path), "PS1": "> "})
    shown = b""

    def until(text: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + SECONDS
        while text not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096)

    try:
        os.write(terminal, b'autoload -U compinit; compinit -D -u; eval "$(_FAIRLEAD_COMPLETE=source_zsh fairlead)"\n')
        os.write(terminal, b"echo rea''dy\n")
        until(b"ready")
        shown = b""
        os.write(terminal, b"fairlead node show b\t")
        until(b"box")
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
