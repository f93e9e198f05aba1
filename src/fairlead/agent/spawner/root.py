"""The root helper: it starts a spawner for each user that has tasks here. The agent, which is not root, asks it to.

`python -I -S -c '…main(DIRECTORY, …)'`, with a socket to the agent as its standard input. It understands two requests:
`start USER`, and `end USER` for a spawner that does not answer. It answers `ok`, or `no` or `later` with the reason. It
has no network. What a user may run is decided by the map and the uids that it was started with, never by the agent.

For each user there are two processes: a keeper, root, which sets cgroups up and cleans up at the end, and the spawner,
which is made from it and has become that user. Both outlive the helper and the agent.
"""

from __future__ import annotations

import _socket
import gc
import os
import signal
import traceback

from fairlead.agent.spawner import confine
from fairlead.agent.spawner.asking import AskedLimits
from fairlead.agent.spawner.devices import gpus
from fairlead.agent.spawner.keeping import Keeping, can_guard
from fairlead.agent.spawner.ledger import open_files
from fairlead.agent.spawner.limits import Limits
from fairlead.agent.spawner.main import Spawner, enough_descriptors, listen, take_lock
from fairlead.agent.spawner.users import NotAllowed, Person, find_person, read_map

MAX_USERS = 200
"""Users that can have a spawner at a time."""
LONGEST = 200
"""Bytes of a request."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        """Serve the agent until it is gone. Keepers and spawners stay."""
        limits = Limits(f"probe-{os.getpid()}")
        limits.close()
        facts = f"facts cgroup={limits.kind} tmp={'private' if self.private_tmp else 'shared'}"
        self._say(facts + (f" gpus={'separate' if self.guards else 'shared'}" if gpus() else ""))
        rest = b""
        while data := self._link.recv(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._say(self._answer(line))
            if len(rest) > LONGEST:
                return

    def _answer(self, line: bytes) -> str:
        what, _, user = line[:LONGEST].decode("ascii", "replace").partition(" ")
        work = {"start": self._start, "end": self._end}.get(what)
        if work is None:
            return "no unknown request"
        try:
            work(user)
        except NotAllowed as problem:
            return f"no {problem}"
        except OSError as problem:
            return f"later {problem}"
        return "ok"

    def _say(self, text: str) -> None:
        self._link.sendall(text.replace("\n", " ").encode() + b"\n")

    def _start(self, user: str) -> None:
        person = find_person(user, read_map(self._map), self._uids, self._agent)
        for pid in tuple(self._keepers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._keepers.discard(pid)
        if len(self._keepers) >= MAX_USERS:
            raise OSError(f"{MAX_USERS} users have tasks here already")
        folder = self._prepare(user, person)
        pid = os.fork()
        if pid:
            self._keepers.add(pid)
            return
        code = 1
        try:
            code = keep(folder, person, self._agent, self.private_tmp, self.guards)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _end(self, user: str) -> None:
        """Kill the spawner of a user, and its guard: those that have its lock. The keeper lives, and cleans up."""
        if user not in os.listdir(self._users):
            raise NotAllowed("the user has no spawner here")
        path = f"{self._users}/{user}/lock"
        with open(path) as file:
            keeper = file.read()
        for name in os.listdir("/proc"):
            if name.isdigit() and name != keeper and _has_open(name, path):
                os.kill(int(name), signal.SIGKILL)

    def _prepare(self, user: str, person: Person) -> str:
        """The folders of a user. Only root can write to the first, so that the user cannot replace the others."""
        folder = f"{self._users}/{user}"
        gid = self._agent[1]
        for path, owner, group, mode in (
            (folder, 0, gid, 0o711),
            (folder + "/tmp", person.uid, person.gid, 0o700),
            (folder + "/logs", person.uid, gid, 0o2770),
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
    """Make the spawner of a user, keep its limits until it ends, and end what it leaves behind."""
    os.setsid()
    log = os.open(folder + "/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    os.fchown(log, 0, agent[1])
    null = os.open(os.devnull, os.O_RDWR)
    for fd, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lock = take_lock(folder, 0.0)
    if lock is None or not enough_descriptors():
        return 0  # there is a spawner, or one that ends just now; the agent asks again
    mark = _mark(folder)
    keeping = Keeping(mark.rstrip(":"), person.uid, gpus() if guards else ())
    path = folder + "/socket"
    if os.path.lexists(path):
        os.unlink(path)
    listener = listen(folder)
    os.chown(path, 0, agent[1])
    os.chmod(path, 0o660)
    ours, its = _socketpair()
    files = open_files(folder + "/ledger")
    processes = confine.most_processes()
    gc.disable()
    ready = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(ready[1])
            if not os.read(ready[0], 1):  # until the cgroups are around it
                os._exit(1)  # they never will be: the keeper is gone
            _close_but(0, 1, 2, listener.fileno(), its.fileno(), lock, *files)
            code = _become(
                folder,
                person,
                agent[0],
                mark,
                lock,
                files,
                AskedLimits(its, keeping.limits, guards),
                listener,
                private_tmp,
                processes,
            )
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    listener.close()
    its.close()
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
        keeping.end()
    if status == 0:
        os.unlink(path)  # nothing is left to tell: the next agent need not look here
    return 0


def _become(
    folder: str,
    person: Person,
    agent: int,
    mark: str,
    lock: int,
    files: tuple[int, int],
    limits: AskedLimits,
    listener: _socket.socket,
    private_tmp: bool,
    processes: int,
) -> int:
    if private_tmp:
        confine.own_tmp(folder + "/tmp")
    confine.limit(processes)
    confine.become(person)
    os.umask(0o022)
    home = person.home if os.path.isdir(person.home) else "/"
    spawner = Spawner(files, mark, lock, folder + "/logs", limits, listener, agent, home, person.environment)
    if not spawner.run():
        return 4
    _clear(folder + "/tmp")
    return 0


def _mark(folder: str) -> str:
    """The mark of every process below this user's spawners, in a file that only root can write."""
    try:
        with open(folder + "/id") as file:
            return file.read()
    except FileNotFoundError:
        mark = f"{os.urandom(8).hex()}:"
        fresh = os.open(folder + "/id", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fresh, mark.encode())
        os.close(fresh)
        return mark


def _socketpair() -> tuple[_socket.socket, _socket.socket]:
    one, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    other.setblocking(False)
    return one, other


def _close_but(*kept: int) -> None:
    """Close what root has opened: cgroups, and the other end of the sockets."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # that of the listing itself


def _has_open(pid: str, path: str) -> bool:
    """True if a process has opened a file, which only root can."""
    try:
        return any(_is_at(f"/proc/{pid}/fd/{each}", path) for each in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # it has ended


def _is_at(link: str, path: str) -> bool:
    try:
        return os.path.samefile(link, path)
    except OSError:
        return False  # it was closed, or is no file


def _clear(folder: str) -> None:
    """Remove what the tasks of a user left in their /tmp, as that user.

    Folders in folders are moved to the top and removed from there, so that it does not matter how deep they are.
    """
    top = os.open(folder, FOLDER)
    moved = True
    while moved:
        moved = False
        for name in os.listdir(top):
            if _remove(name, top):
                continue
            try:
                at = os.open(name, FOLDER, dir_fd=top)
            except OSError:
                continue
            for each in os.listdir(at):
                if not _remove(each, at):
                    try:
                        os.rename(each, os.urandom(16).hex(), src_dir_fd=at, dst_dir_fd=top)
                        moved = True
                    except OSError:
                        continue
            os.close(at)
            _remove(name, top)
    os.close(top)


def _remove(name: str, at: int) -> bool:
    """Remove a file or an empty folder; False if that cannot be."""
    for way in (os.unlink, os.rmdir):
        try:
            way(name, dir_fd=at)
            return True
        except OSError:
            continue
    return False


def _can_mount(folder: str) -> bool:
    """True if a process here can have its own /tmp."""
    pid = os.fork()
    if not pid:
        try:
            confine.own_tmp(folder)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def main(directory: str, agent_uid: str, agent_gid: str, first: str, last: str, map_path: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the agent
    os.umask(0o077)
    os.chdir("/")
    agent = (int(agent_uid), int(agent_gid))
    Helper(directory, agent, (int(first), int(last)), map_path).run()
    return 0
