"""A server with three nodes and Slurm's commands, for the tests of these."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import psutil

from tests.live import PROGRAM, Up, spawners
from tests.until import SECONDS, until

CONFIG = """
partitions:
  default:
    ready_after: 5s
    queues: {root: {main: {}, ml: {}}}
    requestors: [{match: ".*", queue: root.main}]
"""


class Cluster:
    """A server with nodes n1 to n3, each an agent of four CPUs, and the commands in a directory."""

    def __init__(self, folder: Path) -> None:
        (folder / "fairlead.yaml").write_text(CONFIG)
        self.up = Up(folder / "data", "--config", str(folder / "fairlead.yaml"), agent=False)
        self.work = folder / "work"
        self.work.mkdir()
        self.bin = folder / "bin"
        self.up.run("slurm", "install", str(self.bin))
        token = self.up.run("token", "create", "--role", "join", "--uses", "3").splitlines()[-1].split()[-1]
        user = pwd.getpwuid(os.geteuid()).pw_name
        self._folders = [folder / name for name in ("n1", "n2", "n3")]
        self._agents = [
            subprocess.Popen(
                [PROGRAM, "agent", "--join", self.up.url, "--user", user, "--for", "ann",
                 "--name", place.name, "--directory", str(place),
                 "--resource", "cpu=4", "--resource", "memory=4Gi",
                 "--label", "blue="],
                env={**self.up.environment, "FAIRLEAD_TOKEN": token, "HOME": str(folder)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for place in self._folders
        ]  # fmt: skip
        until(lambda: len(self.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle").splitlines()) == 3)

    def ask(self, *words: str, text: str | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.up.environment, "PATH": f"{self.bin}:{os.environ['PATH']}", **more}
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]], env=environment, cwd=self.work, capture_output=True,
            input=text or "", text=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    def run(self, *words: str, text: str | None = None, **more: str) -> str:
        done = self.ask(*words, text=text, **more)
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def sbatch(self, *words: str, text: str | None = None) -> str:
        return self.run("sbatch", "--parsable", *words, text=text).strip()

    def ended(self, job: str) -> str:
        """Wait for the end of a job, and return its state."""
        return until(lambda: state if (state := self.run("squeue", "-h", "-j", job, "-t", "all", "-o", "%T").split()[0])
                     not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") else "")  # fmt: skip

    def file(self, name: str) -> str:
        return until(lambda: path.read_text() if (path := self.work / name).exists() else "")

    def close(self) -> None:
        self.ask("scancel", "--me")
        until(lambda: not self.ask("squeue", "-h").stdout)
        for agent in self._agents:
            agent.terminate()
            agent.wait(SECONDS)
        left = [process for folder in self._folders for process in spawners(folder)]
        self.up.close()
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
