"""One hostile job: `python3 attack.py KIND TARGETS`. It says `tried N`, and `SUCCESS …` for each attack that worked.

It runs as a task's own user, with the system's Python, and knows what an attacker on the node could find out: paths,
process numbers, names of users and jobs. It touches only what the test has started, and ends by itself.
"""

from __future__ import annotations

import base64
import ctypes
import http.client
import json
import os
import re
import secrets
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

FILL, FORKS, GUESSES = 16, 100, 40
"""MiB to write, processes to start, tokens to try."""

ME = os.environ["FAIRLEAD_USER_UNDER_TEST"]
tries: list[None] = []


def attempt() -> None:
    tries.append(None)


def success(what: str) -> None:
    print("SUCCESS", what, flush=True)


def foreign(data: bytes) -> bool:
    """True if data holds what belongs to another user, or a token that is not the own one."""
    owners = re.findall(rb"OWNED" rb"-BY-([a-z0-9]+)-", data)
    found = re.findall(rb"f[lj]" rb"_[A-Za-z0-9_-]{43}", data)
    return any(owner != ME.encode() for owner in owners) or any(
        token.decode() != os.environ["OWN_TOKEN"] for token in found
    )


# -- files -------------------------------------------------------------------------------------------------------


def read(targets: dict[str, Any]) -> None:
    """Read tokens, secrets, keys, homes and output, wherever they are."""
    for top in targets["folders"]:
        for folder, folders, files in os.walk(top):
            for name in [*files, *(each for each in folders if os.path.islink(os.path.join(folder, each)))]:
                attempt()
                look_at(Path(folder) / name)
    for path in targets["paths"]:  # their places are known, whatever a listing shows
        attempt()
        look_at(Path(path))


def look_at(path: Path) -> None:
    with suppress(OSError):
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                if foreign(file.read(1 << 20)):
                    success(f"read {path}")


def write(targets: dict[str, Any]) -> None:
    """Write, replace and link where others read, also through /tmp."""
    for path in map(Path, targets["paths"]):
        for way in (
            lambda path=path: path.open("ab").close(),
            lambda path=path: os.unlink(path),
            lambda path=path: os.rename(path, f"{path}.moved"),
            lambda path=path: os.chmod(path, 0o777),
            lambda path=path: (path.parent / f"planted-by-{ME}").write_text("planted"),
        ):
            attempt()
            with suppress(OSError):
                way()
                success(f"changed {path}")
    with suppress(OSError):
        Path("/tmp/planted").write_text(f"planted by {ME}\n")
        with open("/tmp/filled", "wb") as file:
            for _ in range(FILL):
                file.write(bytes(1 << 20))


def logs(targets: dict[str, Any]) -> None:
    """Replace the log of this task by something that makes the agent read or write elsewhere, or block."""
    own = next(Path(f"/proc/self/fd/{number}").resolve() for number in (1,))
    victim = targets["paths"][0]
    aim = int(os.environ["FAIRLEAD_JOB"]) % 3
    attempt()
    with suppress(OSError):
        os.unlink(own)
        if aim == 0:
            os.symlink(victim, own)
        elif aim == 1:
            os.mkfifo(own)
        else:
            os.link(victim, own)
    for other in targets["logs"]:
        attempt()
        with suppress(OSError):
            os.unlink(other)
            success(f"removed {other}")
        with suppress(OSError):
            os.symlink("/etc/passwd", f"{other}.1")
            success(f"linked beside {other}")


# -- processes ---------------------------------------------------------------------------------------------------


def alive(targets: dict[str, Any]) -> Iterator[int]:
    """Yield the target processes that still exist: a number may belong to another process by now."""
    for pid, started in targets["pids"]:
        if start_of(pid) == started:
            yield pid


def start_of(pid: int) -> int:
    """When a process was started, in ticks; 0 if there is none. Every user can read this."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def reached(pid: int, what: str, targets: dict[str, Any]) -> None:
    """Print a success, if the number still belongs to the attacked process."""
    started = dict(targets["pids"])[pid]
    if start_of(pid) == started:
        success(f"{what} of process {pid}, uid {os.stat(f'/proc/{pid}').st_uid}")


def environ(targets: dict[str, Any]) -> None:
    """Look into processes through /proc."""
    for pid in alive(targets):
        for name in ("environ", "mem", "maps", "io", "syscall"):
            attempt()
            with suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
                if file.read(1):  # the maps of a process that has ended can be opened, and are empty
                    reached(pid, name, targets)
        for name in ("cwd", "root", "exe", "fd/1"):
            attempt()
            with suppress(OSError):
                os.readlink(f"/proc/{pid}/{name}")
                reached(pid, name, targets)


def signals(targets: dict[str, Any]) -> None:
    for pid in alive(targets):
        for number in (0, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
            attempt()
            with suppress(OSError):
                os.kill(pid, number)
                reached(pid, f"signal {int(number)}", targets)


def ptrace(targets: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    for pid in alive(targets):
        for request, name in ((16, "attach"), (0x4206, "seize")):
            attempt()
            if libc.ptrace(request, pid, None, None) == 0:
                reached(pid, name, targets)
        attempt()
        with suppress(OSError):
            os.sched_setaffinity(pid, {0})
            reached(pid, "affinity", targets)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, 19)
            reached(pid, "priority", targets)


def forks(targets: dict[str, Any]) -> None:
    """Start processes that leave the session to outlive the task. The test looks for them later."""
    for _ in range(FORKS):
        attempt()
        try:
            pid = os.fork()
        except OSError:
            break
        if not pid:
            os.setsid()
            with suppress(OSError):
                if os.fork():
                    os._exit(0)
            os.write(1, f"left {os.getpid()}\n".encode())
            time.sleep(600)
            os._exit(0)


# -- the network -------------------------------------------------------------------------------------------------


def ask(
    targets: dict[str, Any], method: str, path: str, token: str, body: object = None, **headers: str
) -> tuple[int, bytes]:
    link = http.client.HTTPConnection(targets["host"], targets["port"], timeout=20)
    try:
        link.request(
            method,
            path,
            None if body is None else json.dumps(body),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers},
        )
        answer = link.getresponse()
        return answer.status, answer.read(1 << 20) if answer.status != 101 else b""
    except OSError:
        return 0, b""  # the server refuses more from this address
    finally:
        link.close()


def tokens(targets: dict[str, Any]) -> None:
    """Guess tokens, and ask with the own one for what is another user's."""
    guesses = [
        "",
        "fl_",
        "admin",
        "owner",
        ME,
        "fl_" + "A" * 43,
        *(f"fl_{secrets.token_urlsafe(32)}" for _ in range(GUESSES)),
    ]
    for guess in guesses:
        attempt()
        if ask(targets, "GET", "/api/v1/whoami", guess)[0] == 200:
            success(f"token {guess!r}")
    own = os.environ["OWN_TOKEN"]
    assert ask(targets, "GET", "/api/v1/whoami", own)[0] in (200, 429, 0)
    for job, user in targets["jobs"]:
        stage = {"command": ["env"], "secrets": {"X": "mine"}, "resources": {"cpu": 0.01}}
        for method, path, body in (
            ("GET", f"jobs/{job}", None),
            ("GET", f"jobs/{job}/log", None),
            ("GET", f"jobs/{job}/attempts", None),
            ("POST", f"jobs/{job}/kill", None),
            ("POST", f"jobs/{job}/scale", {"count": 5}),
            ("POST", "jobs", {"user": user, "stages": [stage]}),
            ("POST", "jobs", {"user": user, "stages": [{**stage, "secrets": {}}]}),
            ("POST", "tokens", {"role": "admin", "user": ME}),
            ("GET", "config", None),
            ("GET", "tokens", None),
        ):
            attempt()
            status, text = ask(targets, method, f"/api/v1/{path}", own, body)
            if 200 <= status < 300 or foreign(text):
                success(f"{method} {path}: {status}")


def sockets(targets: dict[str, Any]) -> None:
    """Speak to the sockets of the agent, its helper and the spawners."""
    for top in targets["folders"]:
        for folder, _, files in os.walk(top):
            for name in files:
                path = os.path.join(folder, name)
                with suppress(OSError):
                    if stat.S_ISSOCK(os.stat(path).st_mode):
                        knock(path)
    for path in targets["sockets"]:
        knock(path)


def knock(path: str) -> None:
    attempt()
    with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(2)
        link.connect(path)
        link.sendall(b"start root\n" + bytes(64))
        if link.recv(1):
            success(f"answer from {path}")


def reports(targets: dict[str, Any]) -> None:
    """Join as a node, to be given tasks and to report those of others. The test judges the answers."""
    for token in ("", os.environ["OWN_TOKEN"], f"fl_{secrets.token_urlsafe(32)}"):
        for frames in targets["greetings"]:
            attempt()
            with suppress(OSError), socket.create_connection((targets["host"], targets["port"]), 5) as link:
                key = base64.b64encode(os.urandom(16)).decode()
                link.sendall(
                    f"GET {targets['join']} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
                    f"Authorization: Bearer {token}\r\n\r\n".encode()
                )
                received = b""
                with suppress(OSError):  # the server waits for more, or closes the connection
                    while b"\r\n\r\n" not in received and (part := link.recv(65536)):
                        received += part
                    link.sendall(base64.b64decode(frames))
                    while part := link.recv(65536):
                        received += part
                print("received", base64.b64encode(received).decode(), flush=True)


KINDS = {each.__name__: each for each in (read, write, logs, environ, signals, ptrace, forks, tokens, sockets, reports)}

if __name__ == "__main__":
    KINDS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
    print("tried", len(tries), flush=True)
