"""20 users and 200 hostile jobs on one node: nothing works across users, and legitimate jobs beside them finish.

A real server and a real root agent with real system users. `hostile_job.py` is what an attacker runs.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fairlead.agent.spawner_link import end_all
from fairlead.client import Client, Problem
from fairlead.wire import agent_messages as wire
from tests.live import PROGRAM
from tests.people import People, needs_root, people
from tests.until import until

PYTHON = "/usr/bin/python3"
pytestmark = [
    needs_root,
    pytest.mark.long,
    pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"needs {PYTHON}, which every user can run"),
]

SECONDS = 300.0  # no wait may take longer; none depends on it
USERS = [f"u{number:02}" for number in range(20)]
KINDS = ["read", "write", "logs", "environ", "signals", "ptrace", "forks", "tokens", "sockets", "reports"]
LEGITIMATE = 5
"""Legitimate jobs of each user beside the hostile ones."""
SMALL = {"cpu": 0.5}

VICTIM = """
echo OWNED-BY-$FAIRLEAD_USER_UNDER_TEST-output pid $$
until [ -e ~/go ]; do sleep 0.2; done
[ ! -e /tmp/planted ] || cat /tmp/planted
cat ~/private
"""


def mark(user: str, what: str) -> str:
    return f"OWNED-BY-{user}-{what}"


class Services:
    """A server, and an agent that was started as root."""

    def __init__(self, found: People) -> None:
        self.people = found
        self.base = found.folder
        self.server = subprocess.Popen(
            [PROGRAM, "server", "--data", str(self.base / "server"), "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        self.url: str = json.loads(self.server.stdout.readline())["url"]
        self.admin = Client(self.url, (self.base / "server" / "token").read_text().strip())
        self.tokens = {user: self.token(role="user", user=user) for user in found.names}
        self.clients = {user: Client(self.url, token) for user, token in self.tokens.items()}
        join = self.base / "join-token"
        join.touch(0o600)
        join.write_text(self.token(role="join", node="n1"))
        self.agent = subprocess.Popen(
            [
                sys.executable,
                *("-P", "-c", "from fairlead.cli import main; main()", "agent", "--join", self.url, "--name=n1"),
                *(f"--directory={self.base / 'node'}", f"--token-file={join}", "--resource=cpu=100"),
                *found.options,
            ],
            stderr=(self.base / "agent.log").open("w"),
        )
        until(lambda: [node.state for node in self.admin.nodes()] == ["up"], SECONDS)

    def token(self, **document: Any) -> str:
        return self.admin.create_token(**document).secret

    def submit(self, user: str, command: list[str], **stage: Any) -> str:
        environment = {"FAIRLEAD_USER_UNDER_TEST": user} | stage.pop("environment", {})
        return self.clients[user].submit(command, resources=SMALL, environment=environment, **stage)

    def output(self, job: str) -> str:
        """What a job has written so far."""
        try:
            return b"".join(self.admin.log(job)).decode(errors="replace")
        except Problem:
            return ""  # it has not started, or has no log any more

    def uid(self, user: str) -> int:
        return pwd.getpwnam(self.people.names[user]).pw_uid

    def processes(self) -> dict[int, int]:
        """The processes of the server, the agent, its helper and the spawners, with their uids."""
        found: dict[int, int] = {}
        for each in (self.server.pid, self.agent.pid):
            one = psutil.Process(each)
            for process in (one, *one.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # those of tasks come and go
                    if process.name() != "sleep":
                        found[process.pid] = process.uids().real
        return found

    def close(self) -> None:
        for client in (self.admin, *self.clients.values()):
            client.close()
        for process in (self.agent, self.server):
            process.terminate()
            process.wait(SECONDS)
        end_all(self.base / "node", 0.0)


@contextmanager
def answers(path: Path) -> Iterator[None]:
    """A socket that every user can speak to, and that answers."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o666)
        listening.listen()

        def answer() -> None:
            while True:
                link, _ = listening.accept()
                with link:
                    if link.recv(1 << 10) == b"end":
                        return
                    link.sendall(b"hello")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
                last.sendall(b"end")
            thread.join(SECONDS)


@contextmanager
def serving() -> Iterator[Services]:
    with people(*USERS) as found:
        site = Services(found)
        try:
            yield site
        finally:
            site.close()


def frames(*messages: wire.FromAgent) -> str:
    """Messages as an agent sends them; a mask of zeros changes nothing."""
    sent = [wire.encode(message) for message in messages]
    return base64.b64encode(
        b"".join(b"\x82\xfe" + len(each).to_bytes(2, "big") + bytes(4) + each for each in sent)
    ).decode()


def greeting(node: str, job: str) -> str:
    """Return the frames of an agent with its own key that joins as a node and reports another user's task."""
    key = Ed25519PrivateKey.generate()
    knock = wire.Knock(wire.VERSION, node, bytes(32))
    proof = wire.Proof(key.public_key().public_bytes_raw(), key.sign(b"a guess"), "here", "fj_guessed")
    report = wire.Report(wire.Tasks(job, int(job), "main", 1, (0, 1)), "failed", exit_code=1)
    return frames(knock, proof, wire.Hello(node, {"cpu": 100}), wire.Reports(1, (report,)))


def messages_in(line: str) -> list[Any]:
    """Return the messages that a hostile job received from the server."""
    data = base64.b64decode(line).partition(b"\r\n\r\n")
    if not data[0].startswith(b"HTTP/1.1 101"):
        return []
    rest, found = data[2], []
    while len(rest) > 2:
        kind, size, at = rest[0] & 15, rest[1], 2
        if size == 126:
            size, at = int.from_bytes(rest[2:4], "big"), 4
        if kind == 2:
            found.append(wire.decode_from_server(rest[at : at + size]))
        rest = rest[at + size :]
    return found


def start_of(pid: int) -> int:
    """Return the start of a process in ticks: with the number it identifies one process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return 0  # one of a task that came and went


def is_left(pid: int, uid: int) -> bool:
    """True if a process that a hostile job started is still there; its number may be another process's by now."""
    try:
        process = psutil.Process(pid)
        return process.uids().real == uid and "forks" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def test_hostile_jobs_reach_no_other_user() -> None:
    with serving() as site:
        attack = site.base / "hostile_job.py"
        shutil.copyfile(Path(__file__).with_name("hostile_job.py"), attack)
        attack.chmod(0o644)
        for user, name in site.people.names.items():
            private = site.base / name / "private"
            private.touch(0o600)
            private.write_text(mark(user, "file") + "\n")
            shutil.chown(private, name, name)
            site.clients[user].set_secret("mine", mark(user, "secret"))
            site.clients[user].set_secret("own-token", site.tokens[user])

        def victim(user: str) -> tuple[str, int]:
            """A job that holds a secret and goes on until its user's file `go` is there: its id and its process."""
            job = site.submit(user, ["/bin/sh", "-c", VICTIM], secrets={"MINE": "mine"})
            until(lambda: "pid " in site.output(job), SECONDS)
            return job, int(site.output(job).split()[-1])

        victims = {user: victim(user) for user in USERS}
        decoy = victim(USERS[0])  # its own user attacks it, to see that the attacks work at all
        parts = site.processes()
        parts |= {pid: site.uid(user) for user, (_, pid) in victims.items()}
        answering = site.base / "answering.sock"
        logs = {user: str(next(site.base.rglob(f"{job}.*.out"))) for user, (job, _) in victims.items()}

        def targets(name: str, users: list[str], pids: list[int], jobs: list[tuple[str, str]]) -> str:
            server, node = site.base / "server", site.base / "node"
            homes = [str(site.base / site.people.names[each] / "private") for each in users]
            tops = [str(server), str(node), str(site.base)] if len(users) > 1 else []
            paths = [f"{server}/token", f"{server}/secrets", f"{server}.secrets-key", str(site.base / "join-token")]
            file = site.base / f"{name}.json"
            file.write_text(
                json.dumps(
                    {
                        "folders": tops or [str(Path(homes[0]).parent)],
                        "paths": [*homes, *(logs[each] for each in users), *(paths if tops else [])],
                        "logs": [logs[each] for each in users],
                        "pids": [(pid, start_of(pid)) for pid in pids],
                        "jobs": jobs,
                        "sockets": [f"{node}/users/{each}/socket" for each in USERS] if tops else [str(answering)],
                        "host": "127.0.0.1",
                        "port": int(site.url.rpartition(":")[2]),
                        "join": wire.PATH,
                        "greetings": [greeting(node, jobs[0][0]) for node in ("n1", "n2")],
                    }
                )
            )
            file.chmod(0o644)
            return str(file)

        hostile: dict[str, tuple[str, str]] = {}
        legitimate: dict[str, str] = {}
        own = {"OWN_TOKEN": "own-token"}
        for number, user in enumerate(USERS):
            others = [USERS[(number + step) % len(USERS)] for step in range(1, len(USERS))]
            pids = [pid for pid, uid in parts.items() if uid != site.uid(user)]
            file = targets(user, others, pids, [(victims[each][0], each) for each in others[:3]])
            for kind in KINDS:
                hostile[site.submit(user, [PYTHON, str(attack), kind, file], secrets=own)] = (user, kind)
            for _ in range(LEGITIMATE):
                legitimate[site.submit(user, ["/bin/sh", "-c", "echo $MINE"], secrets={"MINE": "mine"})] = user
        assert len(hostile) == 200

        tried: Counter[str] = Counter()
        for job, (user, kind) in hostile.items():
            state = site.admin.wait(job, SECONDS).state
            if kind == "logs":
                assert not any(mark(each, "") in site.output(job) for each in USERS if each != user), (user, kind)
                continue  # it has no log any more
            said = site.output(job).splitlines()
            assert state == "succeeded", (user, kind, said, b"".join(site.admin.log(job, stream="err")))
            assert not [line for line in said if line.startswith("SUCCESS")], (user, kind)
            for line in said:
                word, _, rest = line.partition(" ")
                if word == "tried":
                    tried[kind] += int(rest)
                elif word == "left":
                    tried["forks that meant to stay"] += 1
                    assert not is_left(int(rest), site.uid(user)), (user, kind)
                elif word == "received":
                    messages = messages_in(rest)
                    assert not any(isinstance(message, wire.Welcome | wire.Work) for message in messages), (user, kind)
                    tried["refused as a node"] += any(isinstance(message, wire.Refusal) for message in messages)
        judged = {*KINDS, "refused as a node", "forks that meant to stay"} - {"logs"}
        assert min(tried[each] for each in judged) >= 100, tried

        for job, user in legitimate.items():
            assert site.admin.wait(job, SECONDS).state == "succeeded", user
            assert site.output(job) == mark(user, "secret") + "\n"
        # The attacked jobs and processes are unchanged, and go on.
        assert [node.name for node in site.admin.nodes(state="up")] == ["n1"]
        assert site.agent.poll() is None and site.server.poll() is None
        assert not list(site.base.rglob("planted-by-*"))

        # The same attacks on the attacker's own jobs do work.
        file = targets("control", USERS[:1], [decoy[1]], [(decoy[0], USERS[0])])
        with answers(answering):
            for kind in ("read", "environ", "ptrace", "tokens", "signals", "sockets", "write"):
                pretend = {"FAIRLEAD_USER_UNDER_TEST": "other"}
                job = site.submit(USERS[0], [PYTHON, str(attack), kind, file], secrets=own, environment=pretend)
                site.admin.wait(job, SECONDS)
                assert "SUCCESS" in site.output(job), kind
        beside = Path(f"{logs[USERS[0]]}.1")
        assert not beside.exists()
        site.admin.wait(site.submit(USERS[0], [PYTHON, str(attack), "logs", file], secrets=own), SECONDS)
        assert beside.is_symlink(), "logs"

        # Without Fairlead, processes that leave their session outlive the one that started them.
        person = pwd.getpwnam(site.people.names[USERS[0]])
        left = site.base / "left"
        with left.open("wb") as output:
            own_user = {"user": person.pw_uid, "group": person.pw_gid, "extra_groups": []}
            environment = {"FAIRLEAD_USER_UNDER_TEST": USERS[0]}
            subprocess.run([PYTHON, str(attack), "forks", file], stdout=output, env=environment, check=True, **own_user)

        def remaining() -> list[int]:
            pids = [int(line.split()[1]) for line in left.read_text().splitlines() if line.startswith("left ")]
            return [pid for pid in pids if is_left(pid, person.pw_uid)]

        try:
            until(lambda: len(remaining()) >= 50, SECONDS)
        finally:
            for pid in remaining():
                os.kill(pid, signal.SIGKILL)

        private = next(iter(site.admin.nodes())).labels["tmp"] == "private"  # not where mounts are impossible
        for user in USERS[1:]:
            job, _ = victims[user]
            (site.base / site.people.names[user] / "go").touch()
            assert site.admin.wait(job, SECONDS).state == "succeeded"
            *planted, last = site.output(job).splitlines()[1:]
            assert last == mark(user, "file")
            assert planted == [f"planted by {user}"] or not private
        print(f"{len(hostile)} hostile jobs, {sum(tried[kind] for kind in KINDS)} attacks: {dict(tried)}; 0 successes")
