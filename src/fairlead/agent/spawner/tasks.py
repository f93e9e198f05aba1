"""The tasks of a spawner, from their launch until the agent has confirmed their end.

A task is accepted, started when its chain has a free slot, watched and stopped.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from heapq import heappop, heappush
from time import monotonic, time

from fairlead.agent.spawner.cgroups import LIMITED_AFTER
from fairlead.agent.spawner.processes import signal_all, with_children
from fairlead.agent.spawner.records import ENDED, LEAVING, NEVER, PTY, RUNNING, WAITING, Task
from fairlead.agent.spawner.result_copies import Collecting
from fairlead.agent.spawner.watchdog import cut_logs, end_orphans, members, orphans, too_large

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairlead.agent.spawner.cgroups import Limits
    from fairlead.agent.spawner.ledger import Ledger
    from fairlead.agent.spawner.records import Key, Listing, Meta, Result, Spec
    from fairlead.agent.spawner.task_start import Ends, Starter
    from fairlead.agent.spawner.tunnel_relays import Tunnels

SCAN_PAUSE = 0.02
WATCH_PAUSE = 0.5
LEASE_OVER = "its node has lost the server"
END_TIME = 10.0
"""Seconds from SIGTERM to SIGKILL, at most, for a task that a stop asked with another signal first."""


class Chain:
    """Tasks that run one after another, at most `slots` of them at a time."""

    __slots__ = ("running", "slots", "waiting")

    def __init__(self) -> None:
        self.slots = 0
        self.running = 0
        self.waiting: list[tuple[int, int, Task]] = []


class Tasks:
    def __init__(self, ledger: Ledger, limits: Limits, starter: Starter, guard: int = 0) -> None:
        """Start with the tasks of the ledger. `guard` is the pid of the guard, a child process that is not a task."""
        self.by_key: dict[Key, Task] = {}
        self.started: list[Key] = []
        """Tasks that have started since the last report to the agent."""
        self.ended: list[tuple[Key, Result]] = []
        """Results that were recorded since the last report to the agent."""
        self._ledger = ledger
        self._limits = limits
        self._starter = starter
        self._shared = starter.shared
        self._logs = starter.shared.logs
        self.guard = guard
        self.tunnels: Tunnels | None = None
        self._by_pid: dict[int, Task] = {}
        self._chains: dict[int, Chain] = {}
        self._ready: deque[Task] = deque()
        """Tasks to start now. They already count as running in their chains."""
        self._leaving: dict[Key, Task] = {}
        """Tasks that were asked to stop, or that ended and have processes left."""
        self._collecting: dict[int, Collecting] = {}
        """Process that collects result files of a task, which has ended."""
        self._young: deque[Task] = deque()
        """Tasks that started less than `LIMITED_AFTER` ago, oldest first: without a cgroup and logs of their own."""
        self._pids: list[tuple[Key, int]] = []
        self._results: list[tuple[Key, Result]] = []
        self._signals: dict[Key, float] = {}
        """Task that gets a signal before its time limit → when."""
        self._scan_at = NEVER
        self._watch_at = monotonic()
        self._orphans = True
        """True if ended tasks may have left processes behind."""
        lost: list[Task] = []
        for key, (meta, chain) in ledger.tasks.items():
            task = self.by_key[key] = Task(key, meta, chain, None, None)
            if key in ledger.ended:
                task.state, task.result = ENDED, ledger.ended[key]
            else:
                lost.append(task)
                self._settle(task, ("lost", 0, "its spawner died", 0, 0, 0))
        self._shared.take_over(lost)

    @property
    def starting(self) -> bool:
        return bool(self._ready)

    @property
    def running(self) -> int:
        return len(self._by_pid)

    @property
    def waiting(self) -> bool:
        """True if tasks wait here for a free slot of their chain."""
        return any(chain.waiting for chain in self._chains.values())

    @property
    def at_work(self) -> bool:
        return any(task.state != ENDED for task in self.by_key.values())

    @property
    def next_due(self) -> float:
        watch = self._watch_at if self._by_pid or self._orphans else NEVER
        limit = self._young[0].began + LIMITED_AFTER if self._young else NEVER
        stops = min((min(task.kill_at, task.end_at) for task in self._leaving.values()), default=NEVER)
        return min(watch, limit, self._scan_at, stops, min(self._signals.values(), default=NEVER))

    # -- taking and stopping -------------------------------------------------------------------------------------

    def launch(
        self,
        groups: Iterable[tuple[Meta, Spec, list[int], int, bool, list[dict[str, str]] | None]],
        slots: dict[int, int],
    ) -> None:
        """Accept groups of tasks that share a specification, and set the number of `slots` of chains.

        The fifth entry of a group is True if its tasks wait for a free slot of their chain.
        """
        new_tasks: list[tuple[Task, bool]] = []
        for meta, spec, indices, chain, waits, own in groups:
            _, number, stage, attempt = meta
            taken: list[int] = []
            for at, index in enumerate(indices):
                key = (number, stage, attempt, index)
                if key not in self.by_key:
                    taken.append(index)
                    task = self.by_key[key] = Task(key, meta, chain, spec, own[at] if own else None)
                    new_tasks.append((task, waits))
            if taken:
                self._ledger.take(meta, taken, chain)
        for number, count in slots.items():
            self._chains.setdefault(number, Chain()).slots = count
        try:
            self._ledger.write()  # on disk before any of them starts
        except OSError as problem:
            for task, _ in new_tasks:
                self._settle(task, ("refused", 0, f"the ledger cannot be written: {problem}", 0, 0, 0))
            return
        for task, waits in new_tasks:
            if waits:
                heappush(self._chains.setdefault(task.chain, Chain()).waiting, (task.index, task.key[2], task))
                continue
            if task.chain:
                self._chains.setdefault(task.chain, Chain()).running += 1
            self._ready.append(task)
        for number in slots:
            self._go_on(self._chains[number], number)

    def stop(self, keys: Iterable[tuple[Key, float]], cause: str = "stop") -> None:
        """Ask tasks to stop, and kill them after their grace in seconds. Tasks that have not started are returned."""
        self.reap()  # a task that has ended by itself is not reported as stopped
        now = monotonic()
        asked: list[Task] = []
        collectors = {each.task.key: pid for pid, each in self._collecting.items()}
        for key, grace in keys:
            if key in collectors:
                signal_all([collectors[key]], signal.SIGKILL)
                continue
            task = self.by_key.get(key)
            if task is None:
                continue
            if task.state == WAITING:
                self.give_back([key])
            elif task.state == RUNNING and (not task.cause or now + grace < task.kill_at):
                if not task.cause:
                    asked.append(task)
                task.cause = cause
                task.kill_at = now + grace
                self._leaving[key] = task
        if asked:
            self._begin_stop(asked, now)

    def _begin_stop(self, tasks: list[Task], now: float) -> None:
        """Tell tasks why and until when, and send the first signal to their processes."""
        for task in tasks:
            self._starter.write_stop_file(task, task.why or LEASE_OVER, time() + max(0.0, task.kill_at - now))
        asked = [task.pid for task in tasks]
        try:
            processes = members(asked, self._marks())
        except OSError:
            processes = {pid: [pid] for pid in asked}  # their other processes are found when they are killed
        for pid, pids in processes.items():
            task = self._by_pid[pid]
            number = task.signal[0]
            if number and task.kill_at > now:
                task.end_at = task.kill_at - min(END_TIME, (task.kill_at - now) / 2)
            self._ask(task, pids, number or signal.SIGTERM)

    def _ask(self, task: Task, pids: list[int], number: int) -> None:
        """Send a signal to the processes of a task."""
        if task.pid not in pids:
            _signal_group(task.pid, number)  # /proc hides the process
        signal_all(pids, number)
        if task.stdin == PTY and number == signal.SIGTERM:
            signal_all(pids, signal.SIGHUP)  # shells with a terminal ignore SIGTERM

    def tell(self, keys: Iterable[Key], why: str) -> None:
        """Note why tasks will be asked to stop."""
        for key in keys:
            if key in self.by_key:
                self.by_key[key].why = why

    def give_back(self, keys: Iterable[Key]) -> None:
        """Return the tasks that have not started to the agent; the others keep running."""
        for key in keys:
            task = self.by_key.get(key)
            if task is not None and task.state == WAITING:
                self._settle(task, ("returned", 0, "", 0, 0, 0))

    def stop_all(self, grace: float, cause: str) -> None:
        self.stop([(key, grace) for key, task in self.by_key.items() if task.state != ENDED], cause)

    def confirm(self, keys: Iterable[Key]) -> None:
        """Forget ended tasks, whose results the agent has."""
        gone = {key for key in keys if key in self.by_key and self.by_key[key].state == ENDED}
        for key in gone:
            del self.by_key[key]
        self._ledger.forget(gone)

    # -- starting ------------------------------------------------------------------------------------------------

    def start(self, most: int) -> None:
        """Start at most `most` of the tasks that are ready."""
        for _ in range(min(most, len(self._ready))):
            task = self._ready.popleft()
            problem = self._starter.start(task) if task.state == WAITING else None
            if task.state == RUNNING:
                self._by_pid[task.pid] = task
                self._pids.append((task.key, task.pid))
                self.started.append(task.key)
                self._young.append(task)
                if task.signal[1]:
                    self._signals[task.key] = task.began + task.signal[1]
                if task.ends is not None:
                    self._relay(task)
                continue
            if task.ends is not None:
                task.ends.close()
                task.ends = None
            self._leave(task)
            if problem is not None:
                self._settle(task, problem)

    def _relay(self, task: Task) -> None:
        """Start the relay between a task and its tunnel. Without one the task would wait for its input forever."""
        assert task.ends is not None
        try:
            if self.tunnels is not None:
                self.tunnels.relay_task(task)
        except OSError as problem:
            self.stop([(task.key, 0.0)], f"its standard input could not be relayed: {problem.strerror}")
        finally:
            task.ends.close()
            task.ends = None

    def start_beside(
        self, task: Task, command: tuple[str, ...], extra: dict[str, str], directory: str, ends: Ends
    ) -> int:
        """Start a process beside a running task, as `Starter` does, and return its pid."""
        if task.room is None and task in self._young:
            self._confine([task])
        return self._starter.start_beside(task, command, extra, directory, ends)

    # -- chains --------------------------------------------------------------------------------------------------

    def _leave(self, task: Task) -> None:
        chain = self._chains.get(task.chain) if task.chain else None
        if chain is not None:
            chain.running -= 1
            self._go_on(chain, task.chain)

    def _go_on(self, chain: Chain, number: int) -> None:
        while chain.waiting and chain.running < chain.slots:
            task = heappop(chain.waiting)[2]
            if task.state == WAITING:  # else the task was given back
                chain.running += 1
                self._ready.append(task)
        if not chain.waiting and not chain.running:
            del self._chains[number]

    # -- ending --------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Process every child that has exited."""
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if child is None:
                return
            pid = child.si_pid
            task = self._by_pid.pop(pid, None)
            if task is not None:
                # No other process can have this pid yet, because the child was not waited for.
                _signal_group(pid, signal.SIGKILL)
            self._orphans = True
            _, status, usage = os.wait4(pid, 0)
            if self.tunnels is not None:
                ended = os.waitstatus_to_exitcode(status)
                self.tunnels.reaped(pid, ended if ended >= 0 else 128 - ended)
            if task is None:
                collecting = self._collecting.pop(pid, None)
                if collecting is not None:
                    listing = collecting.listing() if not status else None
                    self._end_collected(collecting.task, listing or ([], ["collecting its files was interrupted"]))
                continue  # an orphan of a task
            code = os.waitstatus_to_exitcode(status)
            how = "exit" if code >= 0 else "signal"
            why = self._ran_over(task) if code else ""
            ran, cpu = monotonic() - task.began, usage.ru_utime + usage.ru_stime
            task.result = (how, abs(code), why, int(ran * 1e6), int(cpu * 1e6), usage.ru_maxrss * 1024)
            if task.cause:
                # Its slot is free only when its remaining processes are gone.
                task.state = LEAVING
                self._leaving[task.key] = task
                self._scan_at = min(self._scan_at, monotonic())
            else:
                self._over(task)

    def _ran_over(self, task: Task) -> str:
        """Return a reason if the kernel killed a process of the task for its memory use, else an empty text."""
        room, spec = task.room, task.spec
        if room is None or spec is None or not room.memory or not spec[4] or not self._limits.ran_over(room):
            return ""
        return f"it used too much memory; its limit is {spec[4] >> 20} MiB"

    def _over(self, task: Task) -> None:
        result = task.result
        assert result is not None
        if task.cause == "stop":
            code = result[1] + 128 if result[0] == "signal" else result[1]
            result = ("stopped", code, *result[2:])
        elif task.cause == "lease":
            result = ("lost", 0, "its lease was over", *result[3:])
        else:
            result = (*result[:2], task.cause or result[2], *result[3:])
            if task.spec is not None and task.spec[7]:
                return self._collect(task, result)
        self._free(task, result)

    def _free(self, task: Task, result: Result) -> None:
        if task.room is not None:
            self._limits.give(task.room)
        self._leave(task)
        self._settle(task, result)

    def _collect(self, task: Task, result: Result) -> None:
        """Start collecting the result files of an ended task. Afterwards its end is reported and its slot is freed."""
        self._leaving.pop(task.key, None)
        task.state, task.result = LEAVING, result
        try:
            collecting = Collecting(task, f"{self._logs}/{task.folder}/{task.name}", self._starter.directory_of(task))
        except OSError:
            self._end_collected(task, ([], ["its files could not be collected: no process could be started"]))
        else:
            self._collecting[collecting.pid] = collecting

    def _end_collected(self, task: Task, listing: Listing) -> None:
        assert task.result is not None
        self._free(task, (*task.result[:6], listing))

    def _settle(self, task: Task, result: Result) -> None:
        self._shared.end(task)
        task.state = ENDED
        task.result = result
        task.spec = task.own = task.room = None
        self._signals.pop(task.key, None)
        self._leaving.pop(task.key, None)
        self._results.append((task.key, result))

    def record(self) -> None:
        """Write outputs, then starts and results to the ledger. Results are reported to the agent only afterwards."""
        self._shared.write()
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
            return  # probably a full disk; the records stay in the buffer and are lost only if this process dies

    # -- periodic work -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the periodic work: kill tasks that do not stop, put new tasks into cgroups, watch running ones."""
        now = monotonic()
        if self._leaving and (now >= self._scan_at or any(now >= task.kill_at for task in self._leaving.values())):
            self._clear(now)
        if self._signals or self._leaving:
            self._send_due_signals(now)
        if self._young and now >= self._young[0].began + LIMITED_AFTER:
            self._grow(now)
        if now >= self._watch_at:
            self._watch_at = now + WATCH_PAUSE
            running = self._by_pid.values()
            cut_logs(running, self._logs, now)
            for task, why in too_large(running, self._marks(), now):
                self.stop([(task.key, 0.0)], why)
            if self._orphans or self._by_pid:
                self._orphans = end_orphans(self._marks(), self._own())

    def _send_due_signals(self, now: float) -> None:
        """Send the signals that come before time limits, and SIGTERM to stopped tasks that got another signal first."""
        due = [task for task in self._leaving.values() if now >= task.end_at and task.state == RUNNING]
        for key in [key for key, at in self._signals.items() if now >= at]:
            del self._signals[key]
            task = self.by_key.get(key)
            if task is not None and task.state == RUNNING and not task.cause:
                due.append(task)
        if not due:
            return
        processes = members([task.pid for task in due], self._marks())
        for task in due:
            early = task.end_at == NEVER
            task.end_at = NEVER
            if early:
                self._starter.write_stop_file(task, "time limit", time() + task.began + task.signal[2] - now)
            self._ask(task, processes[task.pid], task.signal[0] if early else signal.SIGTERM)

    def _clear(self, now: float) -> None:
        """Kill the processes of tasks whose grace is over, and finish the tasks that have no processes left."""
        left = {task.pid: task for task in self._leaving.values()}
        try:
            processes = members(left, self._marks())
        except OSError:  # a task may have taken the descriptors of this process; the first processes are killed anyway
            for pid, task in left.items():
                if task.state == RUNNING and now >= task.kill_at:
                    _signal_group(pid, signal.SIGKILL)
            raise
        self._scan_at = NEVER
        for pid, task in left.items():
            if task.state == RUNNING:
                if now >= task.kill_at:
                    _signal_group(pid, signal.SIGKILL)  # this works even if /proc hides the process
                    signal_all(processes[pid], signal.SIGKILL)
                    task.kill_at = now + SCAN_PAUSE
            elif processes[pid]:
                signal_all(processes[pid], signal.SIGKILL)
                self._scan_at = now + SCAN_PAUSE
            else:
                self._over(task)

    def _grow(self, now: float) -> None:
        """Give tasks that have run for `LIMITED_AFTER` seconds their own logs, and cgroups with all their processes."""
        due: list[Task] = []
        while self._young and now >= self._young[0].began + LIMITED_AFTER:
            task = self._young.popleft()
            if task.state == ENDED:
                continue
            self._shared.part(task)
            if task.state == RUNNING and task.room is None and task.spec is not None:
                due.append(task)
        if due:
            self._confine(due)

    def _confine(self, tasks: list[Task]) -> None:
        """Put tasks into cgroups with all their processes."""
        due = {task.pid: task for task in tasks}
        # Orphans of a task are children of the spawner. Finding them takes a slower scan of all processes.
        marks = self._marks()
        processes = members(due, marks) if orphans(marks, self._own()) else {pid: with_children(pid) for pid in due}
        for pid, task in due.items():
            assert task.spec is not None
            task.room = self._limits.take(task.spec[3], task.spec[4])
            if task.room is not None:
                self._limits.put(task.room, processes[pid])

    def _own(self) -> set[int]:
        """Return the children of the spawner that belong to no task."""
        return {self.guard} if self.tunnels is None else {self.guard, *self.tunnels.pids}

    def _marks(self) -> dict[int, str]:
        """Return the first process and the mark of each task that may have processes."""
        tasks = [*self._by_pid.values(), *self._leaving.values()]
        marks = {task.pid: self._starter.mark_of(task) for task in tasks}
        return marks | {pid: f"{self._starter.mark_of(each.task)}:collect" for pid, each in self._collecting.items()}


def _signal_group(number: int, signal_number: int) -> None:
    """Signal the process group of a task. Its first process must not have been waited for yet."""
    try:
        os.killpg(number, signal_number)
    except (ProcessLookupError, PermissionError):
        return
