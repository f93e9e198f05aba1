"""The root helper: starts a spawner for each user with tasks on this node, when the agent, which is not root, asks.

It is started with `python -I -S -c '…main(DIRECTORY, …)'`, and its standard input is a socket to the agent. There are
two requests: `start USER`, and `end USER` for a spawner that does not answer. The answer is `ok`, or `no` or `later`
with the reason. The helper does not use the network. Not the agent but the map file and the range of uids that the
helper was started with decide which system user runs the tasks of a user.

Each user has two processes: the keeper, which stays root, sets up the cgroups and cleans up at the end; and the
spawner, which is forked from the keeper and becomes that user. Both outlive the helper and the agent.
"""

from __future__ import annotations

import _socket
import gc
import os
import signal
import traceback

from fairlead.agent.spawner import confine
from fairlead.agent.spawner.cgroups import Limits
from fairlead.agent.spawner.devices import gpus
from fairlead.agent.spawner.files import FOLDER, close_all_but
from fairlead.agent.spawner.guard import Lease
from fairlead.agent.spawner.keeper import END, Keeping, can_guard, end_descendants
from fairlead.agent.spawner.keeper_client import AskedLimits
from fairlead.agent.spawner.ledger import open_files
from fairlead.agent.spawner.processes import ignore_termination
from fairlead.agent.spawner.shared_logs import SharedLogs
from fairlead.agent.spawner.spawner import TUNNELS, Spawner, enough_descriptors, listen, take_lock
from fairlead.agent.spawner.users import NotAllowed, Person, find_person, read_map

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_USERS = 200
"""Largest number of users with a spawner at the same time."""
LONGEST = 200
"""Largest number of bytes of a request."""


class Helper:
    def __init__(self, directory: str, agent: tuple[int, int], uids: tuple[int, int], map_path: str) -> None:
        self._users = directory + "/users"
        self._agent = agent
        self._uids = uids
        self._map = map_path
        self._keepers: set[int] = set()
        self._link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, 0)
        self.private_tmp = _can_mount(self._users)
        self.guards = bool(gpus()) and can_guard()

    def run(self) -> None:
        """Serve the agent until it exits. Keepers and spawners keep running."""
        limits = Limits(f"probe-{os.getpid()}")
        limits.close()
        facts = f"facts cgroup={limits.kind} tmp={'private' if self.private_tmp else 'shared'}"
        self._send(facts + (f" gpus={'separate' if self.guards else 'shared'}" if gpus() else ""))
        rest = b""
        while data := self._link.recv(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._send(self._answer(line))
            if len(rest) > LONGEST:
                return

    def _answer(self, line: bytes) -> str:
        request, _, user = line[:LONGEST].decode("ascii", "replace").partition(" ")
        work = {"start": self._start, "end": self._end}.get(request)
        if work is None:
            return "no unknown request"
        try:
            work(user)
        except NotAllowed as problem:
            return f"no {problem}"
        except OSError as problem:
            return f"later {problem}"
        return "ok"

    def _send(self, text: str) -> None:
        self._link.sendall(text.replace("\n", " ").encode() + b"\n")

    def _start(self, user: str) -> None:
        person = find_person(user, read_map(self._map), self._uids, self._agent)
        for pid in tuple(self._keepers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._keepers.discard(pid)
        if len(self._keepers) >= MAX_USERS:
            raise OSError(f"{MAX_USERS} users already have tasks here")
        folder = self._prepare(user, person)
        self._keepers.add(_fork(lambda: keep(folder, person, self._agent, self.private_tmp, self.guards)))

    def _end(self, user: str) -> None:
        """Let the keeper of a user end the spawner and all tasks."""
        if user not in os.listdir(self._users):
            raise NotAllowed("the user has no spawner here")
        with open(f"{self._users}/{user}/lock") as file:
            keeper = file.read()
        if keeper.isdigit() and _is_keeper(keeper, self._users):
            os.kill(int(keeper), END)

    def _prepare(self, user: str, person: Person) -> str:
        """Create the folders of a user, and return the outer one, where only root can replace the inner ones."""
        folder = f"{self._users}/{user}"
        gid = self._agent[1]
        for path, owner, group, mode in (
            (folder, 0, gid, 0o711),
            (folder + "/tmp", person.uid, person.gid, 0o700),
            (folder + "/logs", person.uid, gid, 0o2770),
            (folder + "/cache", person.uid, person.gid, 0o700),
        ):
            if not os.path.isdir(path):
                os.mkdir(path, 0o700)
            elif os.stat(path).st_uid != owner:
                raise NotAllowed(
                    f"user {user}: {path} belongs to uid {os.stat(path).st_uid}, not to {person.name}; remove {folder}"
                )
            os.chown(path, owner, group)
            os.chmod(path, mode)
        return folder


def keep(folder: str, person: Person, agent: tuple[int, int], private_tmp: bool, guards: bool) -> int:
    """Run as the keeper: start the spawner of a user, serve its limits until it exits, and kill what it leaves behind.

    Returns the exit code.
    """
    os.setsid()
    log = os.open(folder + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.fchown(log, 0, agent[1])
    null = os.open(os.devnull, os.O_RDWR)
    for fd, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, fd)
    ignore_termination()
    lock = take_lock(folder, 0.0)
    if lock is None or not enough_descriptors():
        return 0  # another spawner runs or is about to exit; the agent asks again
    mark = _mark(folder)
    lease = Lease()
    confine.adopt_orphans()  # what a killed spawner leaves behind
    keeping = Keeping(mark.rstrip(":"), person.uid, gpus() if guards else (), lease)
    listener, streams = listen(folder), listen(folder, TUNNELS)
    paths = (folder + "/socket", f"{folder}/{TUNNELS}")
    for path in paths:
        os.chown(path, 0, agent[1])
        os.chmod(path, 0o660)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    files = open_files(folder + "/ledger")
    processes = confine.most_processes()
    gc.disable()
    ready = os.pipe2(os.O_CLOEXEC)

    def run_spawner() -> int:
        os.close(ready[1])
        if not os.read(ready[0], 1):  # wait until the keeper has put this process into its cgroups
            return 1  # the keeper is gone
        # Root opened the other descriptors: those of cgroups, and the other ends of sockets.
        close_all_but(listener.fileno(), streams.fileno(), theirs.fileno(), lock, *files)
        limits = AskedLimits(theirs, keeping.limits, guards)
        if private_tmp:
            confine.own_tmp(folder + "/tmp")
        confine.limit(processes)
        confine.become(person)
        os.umask(0o022)
        home = person.home if os.path.isdir(person.home) else "/"
        shared = SharedLogs(folder + "/logs", "spawner")
        at = (listener, streams)
        spawner = Spawner(files, mark, lock, shared, limits, *at, agent[0], lease, home, person.environment)
        if not spawner.run():
            return 4
        _clear(folder + "/tmp")
        return 0

    pid = _fork(run_spawner)
    listener.close()
    streams.close()
    theirs.close()
    try:
        keeping.begin(pid, processes)
        os.write(ready[1], b".")
        os.close(ready[1])
        keeping.serve(ours)
    except BaseException:
        traceback.print_exc()
        os.kill(pid, signal.SIGKILL)
    finally:
        _, status = os.waitpid(pid, 0)
        end_descendants()
        keeping.end()
    if status == 0:
        for path in paths:  # no results wait for an agent, so the next agent need not connect
            os.unlink(path)
    return 0


def _fork(work: Callable[[], int]) -> int:
    """Start a child process that does `work` and exits with the code that it returns. Return the pid of the child."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _mark(folder: str) -> str:
    """Return the mark of this user's spawners and their processes, from a file that only root can write."""
    try:
        with open(folder + "/id") as file:
            return file.read()
    except FileNotFoundError:
        mark = f"{os.urandom(8).hex()}:"
        fresh = os.open(folder + "/id", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fresh, mark.encode())
        os.close(fresh)
        return mark


def _is_keeper(pid: str, users: str) -> bool:
    """True if a process is a keeper of this directory: it runs as root, with the arguments of the helper."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            arguments = file.read().split(b"\0")
        return os.stat(f"/proc/{pid}").st_uid == 0 and os.path.dirname(users).encode() in arguments
    except OSError:
        return False  # it has exited


def _clear(folder: str) -> None:
    """Remove what the tasks of a user left in their /tmp. This process runs as that user.

    Nested folders are moved to the top and removed from there, so that their depth does not matter.
    """
    top = os.open(folder, FOLDER)
    moved = True
    while moved:
        moved = False
        for name in os.listdir(top):
            if _remove(name, top):
                continue
            try:
                inner = os.open(name, FOLDER, dir_fd=top)
            except OSError:
                continue
            for child in os.listdir(inner):
                if not _remove(child, inner):
                    try:
                        os.rename(child, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=top)
                        moved = True
                    except OSError:
                        continue
            os.close(inner)
            _remove(name, top)
    os.close(top)


def _remove(name: str, folder: int) -> bool:
    for remove in (os.unlink, os.rmdir):
        try:
            remove(name, dir_fd=folder)
            return True
        except OSError:
            continue
    return False


def _can_mount(folder: str) -> bool:
    """True if a process can get its own /tmp here."""
    pid = os.fork()
    if not pid:
        try:
            confine.own_tmp(folder)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def main(directory: str, agent_uid: str, agent_gid: str, first: str, last: str, map_path: str) -> int:
    ignore_termination()  # the helper exits when the agent does
    os.umask(0o077)
    os.chdir("/")
    agent = (int(agent_uid), int(agent_gid))
    Helper(directory, agent, (int(first), int(last)), map_path).run()
    return 0
