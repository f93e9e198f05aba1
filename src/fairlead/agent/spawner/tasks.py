"""The tasks of a spawner: taken, started when there is a room for them, watched, stopped, and kept until confirmed.

From the top: records, taking and stopping, starting, ending, what happens from time to time.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import deque
from heapq import heappop, heappush
from time import monotonic

from fairlead.agent.spawner.files import rotate
from fairlead.agent.spawner.ledger import Ledger
from fairlead.agent.spawner.limits import Limits
from fairlead.agent.spawner.processes import MARK, all_processes, owners, signal_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.agent.spawner.limits import Room

    Key = tuple[int, str, int, int]
    """The number of the job, the stage, the attempt, the index."""
    Meta = tuple[str, int, str, int]
    """The job's id and number, the stage, the attempt."""
    Result = tuple[str, int, str, int, int, int]
    """How it ended, exit code or signal, why, microseconds it ran and computed, most bytes of memory.

    How: `exit`, `signal`, `stopped` (as it was told to), `failed` (it could not be started, by its own fault),
    `refused` (by the machine's), `lost`, or `returned` (it was never started).
    """
    Spec = tuple[tuple[str, ...], dict[str, str], str, str, int, int]
    """Arguments, environment, working directory, directory of logs, milli-CPUs and bytes of memory (0: no limit)."""

WAITING, RUNNING, LEAVING, ENDED = "waiting", "running", "leaving", "ended"
OPEN = os.O_WRONLY | os.O_CREAT | os.O_APPEND
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MACHINE_FAULTS = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EDQUOT, errno.EROFS)
SCAN_PAUSE = 0.02
WATCH_PAUSE = 0.5
NEVER = float("inf")


class Task:
    __slots__ = (
        "began", "cause", "chain", "index", "key", "kill_at", "meta", "own", "pid", "result", "room", "spec", "state",
    )  # fmt: skip

    def __init__(self, key: Key, meta: Meta, chain: int, spec: Spec | None, own: dict[str, str] | None) -> None:
        self.key = key
        self.meta = meta
        self.index = key[3]
        self.chain = chain
        self.spec = spec
        self.own = own
        self.state = WAITING
        self.pid = 0
        self.began = 0.0
        self.room: Room | None = None
        self.cause = ""
        """Why it was told to stop; empty if it was not."""
        self.kill_at = NEVER
        self.result: Result | None = None


class Chain:
    __slots__ = ("rooms", "running", "waiting")

    def __init__(self) -> None:
        self.rooms = 0
        self.running = 0
        self.waiting: list[tuple[int, int, Task]] = []


class Tasks:
    def __init__(self, ledger: Ledger, limits: Limits, mark: str) -> None:
        self.known: dict[Key, Task] = {}
        self.started: list[Key] = []
        """Since the agent was last told."""
        self.ended: list[tuple[Key, Result]] = []
        self._ledger = ledger
        self._limits = limits
        self._mark = mark
        self._by_pid: dict[int, Task] = {}
        self._chains: dict[int, Chain] = {}
        self._ready: deque[Task] = deque()
        """Those that start now. They have their rooms already."""
        self._leaving: dict[Key, Task] = {}
        """Told to stop, or ended with children left."""
        self._pids: list[tuple[Key, int]] = []
        self._results: list[tuple[Key, Result]] = []
        self._scan_at = NEVER
        self._watch_at = monotonic()
        self._directory = ""
        self._paths: dict[tuple[str, str], str] = {}
        for key, (meta, chain) in ledger.tasks.items():
            task = self.known[key] = Task(key, meta, chain, None, None)
            if key in ledger.ended:
                task.state, task.result = ENDED, ledger.ended[key]
            else:
                self._settle(task, ("lost", 0, "its spawner ended without a word", 0, 0, 0))

    @property
    def starting(self) -> bool:
        return bool(self._ready)

    @property
    def at_work(self) -> bool:
        return any(task.state != ENDED for task in self.known.values())

    @property
    def next_due(self) -> float:
        watch = self._watch_at if self._by_pid else NEVER
        return min(watch, self._scan_at, min((task.kill_at for task in self._leaving.values()), default=NEVER))

    # -- taking and stopping -------------------------------------------------------------------------------------

    def launch(
        self,
        groups: Iterable[tuple[Meta, Spec, list[int], int, bool, list[dict[str, str]] | None]],
        rooms: dict[int, int],
    ) -> None:
        """Take tasks, by groups that have a specification in common. Some wait for a room of their chain."""
        fresh: list[Task] = []
        waits: set[Key] = set()
        for meta, spec, indices, chain, waiting, own in groups:
            _, number, stage, attempt = meta
            taken: list[int] = []
            for at, index in enumerate(indices):
                key = (number, stage, attempt, index)
                if key not in self.known:
                    taken.append(index)
                    task = self.known[key] = Task(key, meta, chain, spec, own[at] if own else None)
                    fresh.append(task)
                    if waiting:
                        waits.add(key)
            if taken:
                self._ledger.take(meta, taken, chain)
        for number, many in rooms.items():
            self._chains.setdefault(number, Chain()).rooms = many
        try:
            self._ledger.write()  # before anything starts
        except OSError as problem:
            for task in fresh:
                self._settle(task, ("refused", 0, f"the ledger cannot be written: {problem}", 0, 0, 0))
            return
        for task in fresh:
            if task.key in waits:
                chain_of = self._chains.setdefault(task.chain, Chain())
                heappush(chain_of.waiting, (task.index, task.key[2], task))
            else:
                if task.chain:
                    self._chains.setdefault(task.chain, Chain()).running += 1
                self._ready.append(task)
        for number in rooms:
            self._go_on(self._chains[number], number)

    def stop(self, keys: Iterable[tuple[Key, float]], cause: str = "stop") -> None:
        """End tasks: ask them, and after so many seconds make them. Those that have not started are returned."""
        self.reap()  # what has ended by itself was not stopped
        now = monotonic()
        asked: dict[int, Task] = {}
        for key, grace in keys:
            task = self.known.get(key)
            if task is None:
                continue
            if task.state == WAITING:
                self._give_back(task)
            elif task.state == RUNNING and (not task.cause or now + grace < task.kill_at):
                if not task.cause:
                    asked[task.pid] = task
                task.cause = cause
                task.kill_at = now + grace
                self._leaving[key] = task
        if asked:
            self._signal(asked, signal.SIGTERM)

    def give_back(self, keys: Iterable[Key]) -> None:
        """Return those that have not started; the others go on."""
        for key in keys:
            task = self.known.get(key)
            if task is not None and task.state == WAITING:
                self._give_back(task)

    def stop_all(self, grace: float, cause: str) -> None:
        self.stop([(key, grace) for key, task in self.known.items() if task.state != ENDED], cause)

    def confirm(self, keys: Iterable[Key]) -> None:
        """The agent has no more need of these."""
        gone = [key for key in keys if key in self.known and self.known[key].state == ENDED]
        for key in gone:
            del self.known[key]
        self._ledger.forget(gone)

    def _give_back(self, task: Task) -> None:
        self._settle(task, ("returned", 0, "", 0, 0, 0))

    # -- starting ------------------------------------------------------------------------------------------------

    def start(self, most: int) -> None:
        """Start what is ready, up to so many."""
        for _ in range(min(most, len(self._ready))):
            task = self._ready.popleft()
            problem = self._start(task) if task.state == WAITING else None
            if task.state == RUNNING:
                self.started.append(task.key)
                continue
            self._leave(task)
            if problem is not None:
                self._settle(task, problem)

    def _start(self, task: Task) -> Result | None:
        spec = task.spec
        assert spec is not None
        command, environment, directory, logs, cpu, memory = spec
        number, stage, attempt, index = task.key
        environment = environment.copy()
        if task.own:
            environment.update(task.own)
        environment["FAIRLEAD_INDEX"] = str(index)
        environment[MARK] = self._mark_of(task)
        log = f"{logs}/{number}.{stage}.{index}.{attempt}"
        try:
            if directory != self._directory:
                os.chdir(directory)
                self._directory = directory
        except OSError as problem:
            return ("failed", 126, f"its working directory {directory}: {problem.strerror}", 0, 0, 0)
        path = self._path(command[0] if command else "", environment.get("PATH", os.defpath))
        room = self._limits.take(cpu, memory)
        for again in (True, False):
            try:
                began = monotonic()
                pid = os.posix_spawn(
                    path,
                    command,
                    environment,
                    file_actions=(
                        (os.POSIX_SPAWN_OPEN, 1, log + ".out", OPEN, 0o600),
                        (os.POSIX_SPAWN_OPEN, 2, log + ".err", OPEN, 0o600),
                    ),
                    setsid=True,
                    setsigmask=(),
                    setsigdef=DEFAULT_SIGNALS,
                )
                break
            except (OSError, ValueError) as problem:
                if again and not os.path.isdir(logs):
                    os.makedirs(logs, 0o700, exist_ok=True)
                    continue
                self._limits.give(room)
                self._paths.clear()
                return _why(problem, command)
        self._limits.put(room, pid)
        task.room = room
        task.state = RUNNING
        task.pid = pid
        task.began = began
        self._by_pid[pid] = task
        self._pids.append((task.key, pid))
        return None

    def _path(self, name: str, search: str) -> str:
        if "/" in name or not name:
            return name
        found = self._paths.get((name, search))
        if found is None:
            found = name
            for folder in search.split(os.pathsep):
                candidate = f"{folder or '.'}/{name}"
                if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                    found = candidate
                    break
            if found.startswith("/"):
                self._paths[name, search] = found
        return found

    def _mark_of(self, task: Task) -> str:
        number, stage, attempt, index = task.key
        return f"{self._mark}{number}/{stage}/{index}/{attempt}"

    # -- chains --------------------------------------------------------------------------------------------------

    def _leave(self, task: Task) -> None:
        chain = self._chains.get(task.chain) if task.chain else None
        if chain is not None:
            chain.running -= 1
            self._go_on(chain, task.chain)

    def _go_on(self, chain: Chain, number: int) -> None:
        while chain.waiting and chain.running < chain.rooms:
            task = heappop(chain.waiting)[2]
            if task.state == WAITING:  # else it was returned
                chain.running += 1
                self._ready.append(task)
        if not chain.waiting and not chain.running:
            del self._chains[number]

    # -- ending --------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take note of every child that has ended."""
        while True:
            try:
                news = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if news is None:
                return
            pid = news.si_pid
            task = self._by_pid.pop(pid, None)
            if task is not None:
                # Its number is still taken, so that this cannot reach a stranger.
                _kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            if task is None:
                continue  # an orphan of a task
            ran = monotonic() - task.began
            code = os.waitstatus_to_exitcode(status)
            how = "exit" if code >= 0 else "signal"
            cpu = usage.ru_utime + usage.ru_stime
            task.result = (how, abs(code), "", int(ran * 1e6), int(cpu * 1e6), usage.ru_maxrss * 1024)
            if task.cause:
                # What it has left behind goes first: its room is free only then.
                task.state = LEAVING
                self._leaving[task.key] = task
                self._scan_at = min(self._scan_at, monotonic())
            else:
                self._over(task)

    def _over(self, task: Task) -> None:
        result = task.result
        assert result is not None
        if task.cause == "stop":
            result = ("stopped", *result[1:])
        elif task.cause == "lease":
            result = ("lost", 0, "its lease was over", *result[3:])
        elif task.cause:
            result = (*result[:2], task.cause, *result[3:])
        if task.room is not None:
            self._limits.give(task.room)
        self._leave(task)
        self._settle(task, result)

    def _settle(self, task: Task, result: Result) -> None:
        task.state = ENDED
        task.result = result
        task.spec = task.own = task.room = None
        self._leaving.pop(task.key, None)
        self._results.append((task.key, result))

    def note(self) -> None:
        """Write down what has begun and ended; only then may anybody hear of it."""
        if self._pids:
            self._ledger.began(self._pids)
            self._pids = []
        if self._results:
            self._ledger.end(self._results)
            self.ended += self._results
            self._results = []
        try:
            self._ledger.write()
        except OSError:
            return  # the disk is full, it seems; it stays noted, and is lost only if this process ends before

    # -- from time to time ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        now = monotonic()
        if self._leaving and (now >= self._scan_at or any(now >= task.kill_at for task in self._leaving.values())):
            self._clear(now)
        if now >= self._watch_at:
            self._watch_at = now + WATCH_PAUSE
            if self._by_pid:
                self._watch(now)
            else:
                self._end_orphans()

    def _clear(self, now: float) -> None:
        """Kill what is left of tasks whose time to stop is over, and see which of them are gone."""
        left = {task.pid: task for task in self._leaving.values()}
        found = self._members(left)
        self._scan_at = NEVER
        for pid, task in left.items():
            if task.state == RUNNING:
                if now >= task.kill_at:
                    signal_all(found[pid], signal.SIGKILL)
                    task.kill_at = now + SCAN_PAUSE
            elif found[pid]:
                signal_all(found[pid], signal.SIGKILL)
                self._scan_at = now + SCAN_PAUSE
            else:
                self._over(task)

    def _members(self, tasks: dict[int, Task]) -> dict[int, list[int]]:
        """The living processes of tasks, by the first process of each."""
        processes = all_processes()
        found: dict[int, list[int]] = {pid: [] for pid in tasks}
        marks = {pid: self._mark_of(task) for pid, task in (self._by_pid | tasks).items()}
        for pid, owner in owners(marks, processes, os.getpid()).items():
            if owner in found and processes[pid].alive:
                found[owner].append(pid)
        return found

    def _signal(self, tasks: dict[int, Task], number: int) -> None:
        for pids in self._members(tasks).values():
            signal_all(pids, number)

    def _watch(self, now: float) -> None:
        """Logs that grow too large are cut, and so is who uses too much memory where nothing else sees to it."""
        limited: dict[int, Task] = {}
        for pid, task in self._by_pid.items():
            if now - task.began < WATCH_PAUSE or task.spec is None:
                continue
            number, stage, attempt, index = task.key
            log = f"{task.spec[3]}/{number}.{stage}.{index}.{attempt}"
            rotate(log + ".out")
            rotate(log + ".err")
            if task.spec[5] and not (task.room is not None and task.room.memory):
                limited[pid] = task
        if limited:
            processes = all_processes()
            marks = {pid: self._mark_of(task) for pid, task in self._by_pid.items()}
            used = dict.fromkeys(limited, 0)
            for pid, owner in owners(marks, processes, os.getpid()).items():
                if owner in used:
                    used[owner] += processes[pid].resident
            for pid, task in limited.items():
                assert task.spec is not None
                if used[pid] > task.spec[5] and not task.cause:
                    why = f"it used {used[pid] >> 20} MiB of memory; its limit is {task.spec[5] >> 20} MiB"
                    self.stop([(task.key, 0.0)], why)
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Whoever a task left behind in a session of its own ends when the task is over."""
        with open("/proc/thread-self/children", "rb") as file:
            strangers = [pid for pid in map(int, file.read().split()) if pid not in self._by_pid]
        if not strangers:
            return
        processes = all_processes()
        marks = {task.pid: self._mark_of(task) for task in self.known.values() if task.state in (RUNNING, LEAVING)}
        owned = owners(marks, processes, os.getpid())
        below = [pid for pid in strangers if pid in processes and pid not in owned]
        signal_all([pid for pid in below if processes[pid].alive], signal.SIGKILL)


def _kill_group(number: int) -> None:
    try:
        os.killpg(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _why(problem: OSError | ValueError, command: tuple[str, ...]) -> Result:
    """A command that cannot be started is its own fault, unless the machine is out of something."""
    if isinstance(problem, ValueError):
        return ("failed", 126, f"it cannot be started: {problem}", 0, 0, 0)
    if problem.errno in MACHINE_FAULTS:
        return ("refused", 0, f"no process could be started: {problem.strerror}", 0, 0, 0)
    name = command[0] if command else ""
    if problem.errno == errno.ENOENT:
        return ("failed", 127, f"command not found: {name}", 0, 0, 0)
    return ("failed", 126, f"{name}: {problem.strerror}", 0, 0, 0)
