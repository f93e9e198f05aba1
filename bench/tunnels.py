"""Measures terminals and pipes of tasks: `python -m bench.tunnels`, on one machine with server, agent and task.

Prints the time from `fairlead run --pty bash` to its first prompt, and the rate of a pipe through `fairlead run`.
"""

from __future__ import annotations

import os
import pty
import select
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.live import PROGRAM, Up

PROMPTS = 15
BYTES = 200_000_000


def first_prompt(up: Up) -> float:
    """Return the seconds from the start of the command to the first prompt."""
    begun = time.monotonic()
    pid, terminal = pty.fork()
    if not pid:
        os.execve(PROGRAM, [PROGRAM, "run", "--pty", "-e", "PS1=ready> ", "bash", "--norc"], up.environment)
    seen = b""
    while b"ready>" not in seen:
        select.select([terminal], [], [])
        seen += os.read(terminal, 1 << 16)
    taken = time.monotonic() - begun
    os.write(terminal, b"exit\n")
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return taken


def pipe(up: Up, command: str, source: Path) -> float:
    """Return the seconds of a command whose standard input is a file."""
    begun = time.monotonic()
    with source.open("rb") as file:
        subprocess.run(
            [PROGRAM, "run", *command.split()], env=up.environment, stdin=file, stdout=subprocess.PIPE, check=True
        )
    return time.monotonic() - begun


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        up = Up(Path(folder) / "data")
        try:
            up.until("node", "list", said="box")
            source = Path(folder) / "input"
            source.write_bytes(os.urandom(1 << 20) * (BYTES >> 20) + os.urandom(BYTES & (1 << 20) - 1))
            prompts = sorted(first_prompt(up) for _ in range(PROMPTS))
            middle = statistics.median(prompts)
            print(
                f"first prompt: {1e3 * prompts[0]:.0f} ms at best, {1e3 * middle:.0f} ms in the middle, "
                f"{1e3 * prompts[-1]:.0f} ms at worst"
            )
            start = min(pipe(up, "true", Path(os.devnull)) for _ in range(3))
            for command in ("wc -c", "cat"):
                taken = pipe(up, command, source)
                rate = BYTES / 1e6 / taken
                print(
                    f"{BYTES / 1e6:.0f} MB to {command}: {taken:.2f} s, {rate:.0f} MB/s, with {start:.2f} s "
                    "to start and end"
                )
        finally:
            up.close()


if __name__ == "__main__":
    main()
