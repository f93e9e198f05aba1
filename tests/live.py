"""`fairlead up` for tests: the real program on a data directory of its own, and commands that talk to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.until import SECONDS, until

PROGRAM = str(Path(sys.executable).with_name("fairlead"))


def spawners(directory: Path) -> list[psutil.Process]:
    """Return the spawners of an agent's directory, by the ids that they write into their locks."""
    found = []
    for lock in sorted(directory.glob("spawner-*/lock")):
        with suppress(psutil.Error, ValueError):
            process = psutil.Process(int(lock.read_text()))
            if any(str(directory) in word for word in process.cmdline()):  # another process may have the id by now
                found.append(process)
    return found


class Up:
    """A server with an agent on the same machine, or without one."""

    _command = "up"

    def __init__(self, folder: Path, *options: str, here: Path | None = None, agent: bool = True) -> None:
        """`here` is the current folder of the server."""
        self.folder = folder
        if not agent:
            self._command = "server"
        self._here = here
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")},
            "FAIRLEAD_DATA": str(folder),
            "LOGNAME": "ann",
            "CUDA_VISIBLE_DEVICES": "",  # the node is the same on machines with GPUs
        }
        self._options = options or ("--name", "box", "--resource", "cpu=4", "--resource", "memory=8Gi") * agent
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, self._command, "--port", "0", "--json", *self._options],
            env=self.environment,
            cwd=self._here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.url: str = json.loads(line)["url"]
        self.token = (self.folder / "token").read_text().strip()

    def interrupt(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS)

    def run(self, *arguments: str, code: int | None = 0, text: str | None = None) -> str:
        done = self.ask(*arguments, text=text)
        assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def ask(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            env=self.environment,
            cwd=self.folder.parent,
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def until(self, *arguments: str, said: str) -> str:
        """Run a command again and again until it prints `said`, and return what it printed."""
        return until(lambda: shown if said in (shown := self.ask(*arguments).stdout) else "")

    def agents(self) -> list[psutil.Process]:
        """Return the agent that the server keeps, and those of its local pools."""
        return [] if self.process.poll() is not None else psutil.Process(self.process.pid).children()

    def close(self) -> None:
        """End everything: jobs, server, agent and spawners."""
        if self.process.poll() is not None:
            self.start()
        started = [*self.agents(), *spawners(self.folder / "agent")]
        self.ask("down", "--kill")
        self.process.wait(SECONDS)
        for process in [*started, *spawners(self.folder / "agent")]:
            with suppress(psutil.Error):
                process.kill()  # not if another process has its id now
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
