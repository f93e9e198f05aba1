"""Real servers on one PostgreSQL database, as processes, with real agents if a test needs them."""

import getpass
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import fairlead
from fairlead.agent.spawner_link import end_all
from tests.people import People

# The clock of a process can be stepped without touching that of the machine: by the seconds in a file.
STEPPED = """
import os, time
def step(real, unit):
    def stepped():
        try:
            with open(os.environ["STEP_FILE"]) as file:
                return real() + int(file.read() or 0) * unit
        except OSError:
            return real()
    return stepped
time.time, time.time_ns = step(time.time, 1), step(time.time_ns, 10**9)
from fairlead.cli import main; main()
"""
PROGRAM = [sys.executable, "-P", "-c", "from fairlead.cli import main; main()"]


class Server:
    """One `fairlead server` with its own data directory and the key file of all."""

    def __init__(self, folder: Path, name: str, database: str, *options: str, tree: Path | None = None) -> None:
        """`tree` is the `src` of another version of the program."""
        self.tree = tree
        self.data = folder / name
        self._folder = folder
        """Without a database the data are in the directory."""
        self._options = ("--secrets-key", str(folder / "key"), *options)
        if database:
            self._options += ("--database", database)
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> "Server":
        """Start the server; again with the same port as before."""
        port = self.url.rpartition(":")[2] or "0"
        self.process = subprocess.Popen(
            [*PROGRAM[:-1], STEPPED, "server", "--data", str(self.data), "--json", "--port", port, *self._options],
            stdout=subprocess.PIPE,
            stderr=(self._folder / f"{self.data.name}.err").open("ab"),
            env={**os.environ, **_paths(self.tree), "STEP_FILE": str(self.data.with_suffix(".clock"))},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self._folder / f"{self.data.name}.err").read_text()
        self.url = json.loads(line)["url"]
        return self

    def step_clock(self, seconds: int) -> None:
        """Set how far the clock of the process is from that of the machine."""
        self.data.with_suffix(".clock").write_text(str(seconds))

    @property
    def token(self) -> str:
        return (self.data / "token").read_text().strip()

    def client(self, partition: str = "") -> fairlead.Client:
        return fairlead.Client(self.url, self.token, partition=partition)

    def leads(self) -> bool:
        with suppress(OSError), urlopen(f"{self.url}/healthz", timeout=5) as answer:
            return not json.load(answer)["problem"]
        return False

    def led(self) -> list[str]:
        """Return the partitions that this server leads."""
        with suppress(OSError), urlopen(f"{self.url}/healthz", timeout=5) as answer:
            return sorted(json.load(answer)["partitions"])
        return []

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def log(self) -> str:
        return (self.data / "server.log").read_text()


def fairlead_program(urls: str, token: str, *arguments: str, tree: Path | None = None) -> str:
    """Run a command of `fairlead` against servers and return what it prints."""
    done = _ran(urls, token, *arguments, tree=tree)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def failing_program(urls: str, token: str, *arguments: str) -> str:
    """Run a command of `fairlead` that fails, and return its error."""
    done = _ran(urls, token, *arguments)
    assert done.returncode == 1, (arguments, done.stdout, done.stderr)
    return done.stderr


def _ran(urls: str, token: str, *arguments: str, tree: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, **_paths(tree), "FAIRLEAD_URL": urls, "FAIRLEAD_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


class Agent:
    """One `fairlead agent` that knows some servers."""

    def __init__(
        self,
        folder: Path,
        name: str,
        urls: str,
        token: str,
        *options: str,
        doors: str = "",
        tree: Path | None = None,
        user: str = "",
        users: People | None = None,
    ) -> None:
        """`doors` are the addresses at which the agent reaches the servers, if not `urls`.

        The node takes only the tasks of one user, by default this one, or runs the tasks of `users` as themselves.
        """
        self.tree = tree
        secret = fairlead_program(urls, token, "token", "create", "--role", "join", "--node", name, "--json")
        (folder / f"{name}.token").write_text(json.loads(secret)["secret"])
        self.folder = folder / f"agent-{name}"
        self._log = folder / f"{name}.log"
        self._command = [*PROGRAM, "agent", "--join", doors or urls, "--name", name, "--directory", str(self.folder)]
        self.own = self.folder / "agent" if users else self.folder
        """The folder of the agent's own state."""
        as_root = ["--user", "root"] if os.geteuid() == 0 else []
        about = users.options if users else ["--for", user or getpass.getuser(), *as_root]
        self._command += ["--token-file", str(folder / f"{name}.token"), *about, "--resource", "cpu=4", *options]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **_paths(self.tree)}
            )

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> None:
        """Stop the agent and all its tasks."""
        self.process.terminate()
        self.process.wait(60)
        end_all(self.folder, 1.0)


def _paths(tree: Path | None = None) -> dict[str, str]:
    if tree is not None:
        return {"PYTHONPATH": str(tree)}
    return {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
