"""The attacks of a hostile task. It runs as a task, with the standard library only, and prints successful attacks.

Arguments: the data directory of the server, the node's directory, the process of the other user's task, and processes
of Fairlead itself.
"""

import ctypes
import glob
import json
import os
import signal
import socket
import sys

data, node, victim, *system = sys.argv[1:]
mine, other = os.environ["ATTACKER"], os.environ["VICTIM"]
own_spawner = os.getppid()
won = []


def attempt(name, action):
    try:
        if action():
            won.append(name)
    except Exception:
        return  # refused, as it should be


def read(path):
    with open(path, "rb") as file:
        return bool(file.read(1))


def write(path):
    with open(path, "ab") as file:
        return file.write(b"x") == 1


def create(folder):
    os.close(os.open(folder + "/planted", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    return True


def connect(path):
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(1)
        link.connect(path)
        return bool(link.recv(1))


def send(pid, number):
    os.kill(pid, number)
    return True


def trace(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, None, None) != 0:
        return False
    os.waitpid(pid, 0)
    libc.ptrace(17, pid, None, None)
    return True


for path in ("token", "agent-token", "tokens", "secrets", "secrets.key", "journal", "server.log", "server.json"):
    attempt(f"read {path}", lambda path=path: read(f"{data}/{path}"))
    attempt(f"write {path}", lambda path=path: write(f"{data}/{path}"))
attempt("list the data directory", lambda: os.listdir(data))
for path in ("agent", "users", f"users/{other}", f"users/{other}/logs", f"users/{other}/tmp"):
    attempt(f"list {path}", lambda path=path: os.listdir(f"{node}/{path}"))
    attempt(f"write to {path}", lambda path=path: create(f"{node}/{path}"))
attempt("write to the node's folder", lambda: create(node))
attempt("write to its own user's folder", lambda: create(f"{node}/users/{mine}"))
for path in (
    "agent/identity",
    "agent/lock",
    f"users/{other}/ledger",
    f"users/{mine}/ledger",
    f"users/{other}/log",
    f"users/{other}/id",
):
    attempt(f"read {path}", lambda path=path: read(f"{node}/{path}"))
for number in range(1, 20):
    path = f"{node}/users/{other}/logs/0.0/{number}.main.0.1.out"
    attempt(f"read {path}", lambda path=path: read(path))
    attempt(f"link {path}", lambda path=path: os.link(path, f"{os.environ['HOME']}/linked") is None)
for path in (f"users/{other}/socket", f"users/{mine}/socket"):
    attempt(f"connect to {path}", lambda path=path: connect(f"{node}/{path}"))
for pid in map(int, (victim, *system)):
    for what in ("environ", "mem", "maps", "root/", "cwd/", "fd/"):
        attempt(
            f"read {what} of {pid}",
            lambda pid=pid, what=what: (
                os.listdir(f"/proc/{pid}/{what}") if what.endswith("/") else read(f"/proc/{pid}/{what}")
            ),
        )
    attempt(f"signal {pid}", lambda pid=pid: send(pid, signal.SIGCONT))
    attempt(f"trace {pid}", lambda pid=pid: trace(pid))
attempt("read environ of its own spawner", lambda: read(f"/proc/{own_spawner}/environ"))
attempt("list files of its own spawner", lambda: os.listdir(f"/proc/{own_spawner}/fd"))
attempt("trace its own spawner", lambda: trace(own_spawner))
attempt("become root", lambda: os.setuid(0) is None)
attempt(
    "see the other's /tmp", lambda: os.path.exists("/tmp/of-the-victim") or glob.glob(f"{node}/users/{other}/tmp/*")
)
for group in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:500]:
    attempt(f"join {group}", lambda group=group: os.access(group, os.W_OK))
with open("/proc/self/status") as file:
    status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
attempt(
    "have privileges", lambda: int(status["CapEff"], 16) or int(status["CapPrm"], 16) or status["NoNewPrivs"] == "0"
)
print(json.dumps(won))
