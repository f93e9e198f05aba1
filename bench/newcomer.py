"""The first minutes of a new user: a clone with empty caches, `make up`, a job, and `make up` once more.

`make first-minutes` runs it and prints the time of each step; `make first-minutes TESTS=1` also measures how long
`make test` takes to its first test, in a second clone. It uses only the standard library, and cleans up after itself.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep

ROOT = Path(__file__).parent.parent
UP, AGAIN, TEST = 20.0, 3.0, 30.0
"""Goals in seconds: to the end of the first job, for the second start, and to the first test."""
LONGEST = 900.0
STOPPING = 30.0


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all is cleaned up
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="fairlead-first-") as folder:
        first_minutes(Path(folder))
    if "--tests" in arguments:
        with tempfile.TemporaryDirectory(prefix="fairlead-first-") as folder:
            first_test(Path(folder))
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


def first_minutes(folder: Path) -> None:
    """Clone, set up, run a job, and start again."""
    began = perf_counter()
    clone = clone_into(folder)
    tell("clone", began)
    environment = environment_in(folder)
    program = str(clone / ".venv" / "bin" / "fairlead")
    made = perf_counter()
    with running(clone, environment, "up", "UP=--port 0") as output:
        url = next(line.split(" is up at ")[1].split(",")[0] for line in shown(output) if " is up at " in line)
        tell("make up, until it is up", made)
        submitted = perf_counter()
        subprocess.run([program, "run", "echo", "hello"], env=environment, check=True, timeout=LONGEST)
        tell("fairlead run echo hello", submitted)
        tell("in all", began, UP)
        while "being built" in page(url):
            sleep(0.05)
        tell("the web page is there, after", began)
        stop(program, environment)
    made = perf_counter()
    with running(clone, environment, "up", "UP=--port 0") as output:
        next(line for line in shown(output) if " is up at " in line)
        tell("make up once more, until it is up", made, AGAIN)
        stop(program, environment)


def first_test(folder: Path) -> None:
    """Clone, and run the tests until the first has ended."""
    clone = clone_into(folder)
    environment = environment_in(folder) | {"PYTEST_ADDOPTS": "-vv"}
    made = perf_counter()
    with running(clone, environment, "test") as output:
        next(line for line in shown(output) if " PASSED " in line)
        tell("make test, until the first test has passed", made, TEST)


# -- parts -------------------------------------------------------------------------------------------------------


def clone_into(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    return folder / "clone"


def environment_in(folder: Path) -> dict[str, str]:
    """Return the environment of a user who has never installed anything."""
    (folder / "home").mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FAIRLEAD_", "XDG_", "PYTHON", "MAKE", "MFLAGS", "VIRTUAL_ENV"))
    }
    caches = {name: str(folder / name.lower()) for name in ("UV_CACHE_DIR", "PIP_CACHE_DIR", "npm_config_cache")}
    return kept | caches | {"HOME": str(folder / "home"), "FAIRLEAD_DATA": str(folder / "data")}


@contextmanager
def running(clone: Path, environment: dict[str, str], *targets: str) -> Iterator[subprocess.Popen[str]]:
    """Run make in a session of its own, and end all its processes."""
    python = Path(sys.executable).resolve()
    process = subprocess.Popen(
        ["make", f"PYTHON={python}", *targets],
        cwd=clone,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOPPING)
                break
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def shown(process: subprocess.Popen[str]) -> Iterator[str]:
    """Show the lines of a program as they come, and return them."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"    {line}", end="", flush=True)
        yield line
    raise SystemExit(f"error: make ended with code {process.wait()}")


def stop(program: str, environment: dict[str, str]) -> None:
    subprocess.run([program, "down", "--kill"], env=environment, check=True, timeout=LONGEST, capture_output=True)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=STOPPING) as answer:
        text: str = answer.read().decode()
    return text


def tell(what: str, began: float, goal: float | None = None) -> None:
    took = perf_counter() - began
    verdict = "" if goal is None else f", goal {goal:.0f} s: {'met' if took < goal else 'MISSED'}"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{what}: {took:.1f} s{verdict} (CPU of ended processes so far: {used.ru_utime + used.ru_stime:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    if shutil.which("git") is None or shutil.which("make") is None:
        sys.exit("error: git and make are needed")
    sys.exit(main(sys.argv[1:]))
