"""A virtual fleet: agents that carry out launches and stops on a virtual clock, with faults on request.

Agents acknowledge a launch at once or with their next report. Tasks run until they are stopped or their run time is
over, and stops are confirmed. Tasks of a chain run one after another in the slots of the chain, and several of their
ends are reported together. Reports are returned as commands, in the order in which they fell due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

import msgspec

from fairlead.core.commands import Command, MoveNode, Report, ReportState
from fairlead.core.effects import ForNode, Launch, Stop
from fairlead.core.model import Micros
from fairlead.core.ranges import Ranges, count, difference, split

GATHER: Micros = 10_000
"""Time for which an agent collects ended tasks of a chain before it reports them together."""

Key = tuple[str, str, str, int]
"""Node, job, stage and attempt of a block."""


class Running(msgspec.Struct, eq=False):
    """A block of tasks that an agent runs."""

    node: str
    job: str
    stage: str
    attempt: int
    indices: tuple[int, ...]
    number: int = 0
    chain: int = 0
    is_reported: bool = True
    """False for tasks of a chain that run and have not been reported as running."""

    @classmethod
    def of_launch(cls, node: str, launch: Launch) -> Running:
        return cls(node, launch.job, launch.stage, launch.attempt, launch.indices, launch.number, launch.chain)

    def key(self) -> Key:
        return (self.node, self.job, self.stage, self.attempt)

    def report(self, state: ReportState, exit_code: int | None = None, reason: str = "", ran: Micros = 0) -> Report:
        return Report(
            node=self.node,
            job=self.job,
            stage=self.stage,
            indices=self.indices,
            attempt=self.attempt,
            state=state,
            exit_code=exit_code,
            reason=reason,
            number=self.number,
            ran=ran,
            operator=True,
        )


class ChainQueue(msgspec.Struct):
    """A chain at an agent."""

    slots: int = 0
    waiting: list[Running] = msgspec.field(default_factory=list)
    running: list[Running] = msgspec.field(default_factory=list)
    ended: list[Running] = msgspec.field(default_factory=list)
    """Ended tasks that are not reported yet."""
    report_is_due: bool = False


class Flush(msgspec.Struct, frozen=True):
    """Stands for the report of the collected ends of a chain, which is made when it is due."""

    node: str
    chain: int


class Fleet:
    def __init__(self, prompt: bool = True) -> None:
        """With `prompt`, agents report starts at once; otherwise together with the next report that falls due."""
        self._prompt = prompt
        self._begun: list[tuple[Micros, Running]] = []
        self.durations: dict[tuple[str, str], Micros] = {}
        """(Job, stage) → run time of its tasks. Tasks of other stages run until the caller ends them."""
        self._running: dict[Key, list[Running]] = {}
        self._held: dict[str, list[Launch]] = {}
        self._refusing: set[str] = set()
        self._silent: set[str] = set()
        self._disconnected: dict[str, list[Report]] = {}
        """Silent node whose tasks go on → the reports that it will send when it connects again."""
        self._missed: dict[str, list[Report]] = {}
        """Silent node → reports about ended tasks that the server has not received."""
        self._hanging: set[str] = set()
        """Jobs with tasks that ignore stops."""
        self._lines: dict[str, dict[int, ChainQueue]] = {}
        """Node → chain → the tasks of the chain on that node."""
        self._due: list[tuple[Micros, int, Command | Flush]] = []
        self._unheard: list[Command] = []
        self._count = 0

    # -- misbehaviour --------------------------------------------------------------------------------------------

    def hold_acks(self, node: str) -> None:
        """Make an agent keep launches without starting them, until `release_acks`."""
        self._held.setdefault(node, [])

    def release_acks(self, node: str, now: Micros) -> None:
        for launch in self._held.pop(node, []):
            self._launch(node, launch, now)

    def refuse_launches(self, node: str) -> None:
        self._refusing.add(node)

    def accept_launches(self, node: str) -> None:
        self._refusing.discard(node)

    def ignore_stops(self, job: str) -> None:
        """Make the tasks of a job ignore stops."""
        self._hanging.add(job)

    def silence(self, node: str) -> None:
        """Drop all messages from and to an agent. The caller decides when the node is lost."""
        self._silent.add(node)

    def disconnect(self, node: str) -> None:
        """Disconnect an agent. It continues its tasks and keeps its reports until `connect`."""
        self.silence(node)
        self._disconnected.setdefault(node, [])

    def connect(self, node: str) -> None:
        self._silent.discard(node)
        self._missed.pop(node, None)
        self._unheard += self._disconnected.pop(node, [])

    def fail(self, node: str, now: Micros) -> None:
        """Kill a machine with all its tasks, and report the node as lost at once."""
        self.silence(node)
        self._at(now, MoveNode(name=node, action="lose", operator=True))
        self._empty(node)

    def return_node(self, node: str, now: Micros) -> None:
        """Bring an agent back without its tasks. They are reported as lost, also tasks whose end was not received."""
        reason = f"node {node} came back without it"
        self._silent.discard(node)
        self._disconnected.pop(node, None)
        self._refusing.discard(node)
        self._due = [entry for entry in self._due if not _is_about(entry[2], node)]
        heapify(self._due)
        self._unheard = [report for report in self._unheard if not _is_about(report, node)]
        for block in self._empty(node):
            self._at(now, block.report("lost", reason=reason))
        for report in self._missed.pop(node, []):
            self._at(now, msgspec.structs.replace(report, state="lost", reason=reason, exit_code=None))

    # -- work ----------------------------------------------------------------------------------------------------

    def deliver(self, effects: Iterable[object], now: Micros) -> None:
        """Carry out the effects of the core. Messages to a silent node are lost."""
        for effect in effects:
            if isinstance(effect, ForNode) and effect.node not in self._silent:
                for stop in effect.stops:
                    self._stop(effect.node, stop, now)
                self._go_on(effect.node, now)
                for launch in effect.launches:
                    self._launch(effect.node, launch, now)

    def ended(self, job: str, stage: str, index: int, now: Micros) -> None:
        """Remove a task that the caller reports itself."""
        waiting = [line.waiting for lines in self._lines.values() for line in lines.values()]
        for where in (*self._running.values(), *waiting):
            for block in list(where):
                if block.job == job and block.stage == stage:
                    self._drop(where, block, Ranges(block.indices).overlap((index, index + 1)))
        for node in list(self._lines):
            self._go_on(node, now)

    def at_work(self) -> Iterator[Running]:
        """Yield the blocks of tasks that the agents run."""
        for blocks in self._running.values():
            yield from blocks

    def next_due(self) -> Micros | None:
        """Return the time of the next report; 0 if one is due already."""
        if self._unheard:
            return 0
        return self._due[0][0] if self._due else None

    def reports(self, now: Micros) -> list[Command]:
        """Return the reports that have fallen due by now."""
        due = [report for report in self._unheard if not self._is_unheard(report)]
        self._unheard = []
        if self._begun:
            begun = [block.report("running", ran=now - when) for when, block in self._begun]
            due += [report for report in begun if not self._is_unheard(report)]
            self._begun = []
        while self._due and self._due[0][0] <= now:
            when, _, command = heappop(self._due)
            reports: list[Command] = []
            if isinstance(command, Flush):
                reports += self._flush(command)
            elif isinstance(command, Report) and command.state == "succeeded":
                reports += self._end(command, when)
            else:
                reports.append(command)
            due += [report for report in reports if not self._is_unheard(report)] if self._silent else reports
        return due

    def send_again(self, reports: Iterable[Command]) -> None:
        """Queue reports again that the server did not accept before it ended."""
        self._unheard += reports

    def _launch(self, node: str, launch: Launch, now: Micros) -> None:
        if node in self._held:
            self._held[node].append(launch)
            return
        block = Running.of_launch(node, launch)
        if self._has_had(block):
            return  # the launch was sent again, and an agent starts an attempt of a task only once
        if node in self._refusing:
            self._at(now, block.report("refused", reason=f"node {node} refused the launch"))
            return
        if launch.slots:
            line = self._line(block)
            if line is None:  # the chain begins behind the tasks that already run in its slots
                at_work = [other for other in self.at_work() if (other.node, other.chain) == (node, launch.chain)]
                line = self._lines.setdefault(node, {})[launch.chain] = ChainQueue(running=at_work)
            line.slots = launch.slots
            line.waiting.append(block)
            self._go_on(node, now)
        else:
            if self._prompt:
                self._at(now, block.report("running"))
            else:
                self._begun.append((now, block))
            self._start(block, now)

    def _has_had(self, block: Running) -> bool:
        blocks = self._running.get(block.key(), [])
        if not (blocks or self._lines or self._unheard):
            return False
        for line in self._lines.get(block.node, {}).values():
            blocks = [*blocks, *line.waiting, *line.ended]
        return any(_same(other, block) for other in blocks) or any(_is_of(report, block) for report in self._unheard)

    def _start(self, block: Running, now: Micros) -> None:
        self._running.setdefault(block.key(), []).append(block)
        line = self._line(block)
        if line is not None:
            line.running.append(block)
        duration = self.duration_of(block)
        if duration is not None:
            self._at(now + duration, block.report("succeeded", 0, ran=duration))

    def duration_of(self, block: Running) -> Micros | None:
        """Return the run time of tasks that start; None if they run until the caller ends them."""
        return self.durations.get((block.job, block.stage))

    def _end(self, command: Report, now: Micros) -> list[Report]:
        """End tasks whose run time is over, and return the reports. The ends of tasks in chains are reported later."""
        where = self._running.get((command.node, command.job, command.stage, command.attempt), [])
        for block in where:
            still = block.indices
            if still != command.indices:
                still = Ranges(still).overlap(command.indices)
            if still:
                line = self._line(block)
                self._drop(where, block, still)
                if line is None:
                    return [command if still == command.indices else msgspec.structs.replace(command, indices=still)]
                line.ended.append(msgspec.structs.replace(block, indices=still))
                self._go_on(block.node, now)
                break
        return []

    def _go_on(self, node: str, now: Micros) -> None:
        """Start waiting tasks in free slots of their chains, and schedule the reports of ended ones."""
        lines = self._lines.get(node)
        if lines is None:
            return
        for chain, line in list(lines.items()):
            free = line.slots - sum(count(block.indices) for block in line.running)
            idle, news = not line.running, bool(line.ended)
            while free > 0 and line.waiting:
                first = min(line.waiting, key=lambda block: block.indices)
                task = msgspec.structs.replace(first, indices=split(first.indices, 1)[0], is_reported=False)
                self._drop(line.waiting, first, task.indices)
                self._start(task, now)
                free, news = free - 1, True
            if not line.waiting and idle and not news:
                del lines[chain]
            elif line.ended and not line.running:
                self._at(now, Flush(node, chain))
            elif news and not line.report_is_due:
                line.report_is_due = True
                self._at(now + GATHER, Flush(node, chain))
        if not lines:
            del self._lines[node]

    def _flush(self, flush: Flush) -> list[Report]:
        line = self._lines.get(flush.node, {}).get(flush.chain)
        if line is None:
            return []
        ended: dict[Key, Running] = {}
        for block in line.ended:
            merged = ended.setdefault(block.key(), block)
            if merged is not block:
                joined = Ranges(merged.indices)
                joined.add(block.indices)
                merged.indices = joined.flat()
        line.ended, line.report_is_due = [], False
        reports = [
            block.report("succeeded", 0, ran=self.durations.get((block.job, block.stage), 0))
            for block in ended.values()
        ]
        for block in line.running:
            if not block.is_reported:
                block.is_reported = True
                reports.append(block.report("running"))
        return reports

    def _stop(self, node: str, stop: Stop, now: Micros) -> None:
        if stop.job in self._hanging:
            return
        stopping = Running(node, stop.job, stop.stage, stop.attempt, stop.indices, stop.number)
        if node in self._held:
            self._held[node] = [left for launch in self._held[node] if (left := _without(launch, stop)).indices]
        lines = self._lines.get(node, {})
        for line in lines.values():
            for block in [block for block in line.waiting if block.key() == stopping.key()]:
                self._drop(line.waiting, block, Ranges(block.indices).overlap(stop.indices))
        where = self._running.get(stopping.key(), [])
        for block in list(where):
            if stop.cause == "return":
                stopping.indices = difference(stopping.indices, Ranges(block.indices).overlap(stop.indices))
            else:
                self._drop(where, block, Ranges(block.indices).overlap(stop.indices))
        for chain, line in lines.items():
            if line.ended:
                self._at(now, Flush(node, chain))  # tasks that ended before the stop are reported first
        if stopping.indices:
            self._at(now, stopping.report("stopped"))

    def _empty(self, node: str) -> list[Running]:
        had: list[Running] = []
        self._begun = [entry for entry in self._begun if entry[1].node != node]
        for key in [key for key in self._running if key[0] == node]:
            had += self._running.pop(key)
        for line in self._lines.pop(node, {}).values():
            had += line.ended + line.waiting
        if node in self._held:
            had += [Running.of_launch(node, launch) for launch in self._held[node]]
            self._held[node] = []
        return had

    def _line(self, block: Running) -> ChainQueue | None:
        return self._lines[block.node].get(block.chain) if block.node in self._lines else None

    def _drop(self, where: list[Running], running: Running, block: tuple[int, ...]) -> None:
        """Remove tasks from a block, and the block from all lists when it is empty."""
        running.indices = () if block == running.indices else difference(running.indices, block)
        if running.indices:
            return
        where.remove(running)
        key = running.key()
        if not where and self._running.get(key) is where:
            del self._running[key]
        line = self._line(running)
        if line is not None and running in line.running:
            line.running.remove(running)

    def _is_unheard(self, command: Command) -> bool:
        if not isinstance(command, Report) or command.node not in self._silent:
            return False
        if command.state in ("succeeded", "failed"):
            self._missed.setdefault(command.node, []).append(command)
        if command.node in self._disconnected:
            self._disconnected[command.node].append(command)
        return True

    def _at(self, when: Micros, command: Command | Flush) -> None:
        self._count += 1
        heappush(self._due, (when, self._count, command))


def _without(launch: Launch, stop: Stop) -> Launch:
    if (launch.job, launch.stage, launch.attempt) != (stop.job, stop.stage, stop.attempt):
        return launch
    return msgspec.structs.replace(launch, indices=difference(launch.indices, stop.indices))


def _same(one: Running, other: Running) -> bool:
    return one.key() == other.key() and bool(Ranges(one.indices).overlap(other.indices))


def _is_of(command: Command, running: Running) -> bool:
    """True if a report shows that the agent has received this attempt."""
    return (
        isinstance(command, Report)
        and command.state != "refused"
        and (command.node, command.job, command.stage, command.attempt) == running.key()
        and bool(Ranges(command.indices).overlap(running.indices))
    )


def _is_about(command: Command | Flush, node: str) -> bool:
    return (isinstance(command, Report | Flush) and command.node == node) or (
        isinstance(command, MoveNode) and command.name == node
    )
