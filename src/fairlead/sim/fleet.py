"""A virtual fleet: what agents would do with launches and stops, on a virtual clock, and as badly as asked.

Agents acknowledge at once, tasks run until they are told to end or their duration is over, and stops are confirmed.
Tasks of a chain run in as many rooms as it has, one after another, and what became of them is gathered for a moment.
Reports come out as commands, in the order in which they fell due.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from fairlead.core.commands import AnyCommand, MoveNode, Report, ReportState
from fairlead.core.effects import ForNode, Launch, Stop
from fairlead.core.model import Micros
from fairlead.core.ranges import Ranges, count, difference, split

GATHER: Micros = 10_000
"""For so long an agent gathers what became of the tasks of a chain before it reports it."""


class Running(msgspec.Struct):
    """A block of tasks that an agent runs."""

    node: str
    job: str
    stage: str
    attempt: int
    indices: tuple[int, ...]
    number: int = 0
    chain: int = 0
    told: bool = True
    """Whether it was reported as running."""

    def key(self) -> tuple[str, str, str, int]:
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


class Line(msgspec.Struct):
    """A chain at an agent."""

    rooms: int = 0
    waiting: list[Running] = msgspec.field(default_factory=list)
    ended: list[Running] = msgspec.field(default_factory=list)
    """What was not reported yet."""
    gathers: bool = False


class Flush(msgspec.Struct, frozen=True):
    """An agent reports what it gathered of a chain."""

    node: str
    chain: int


class Fleet:
    def __init__(self) -> None:
        self.durations: dict[tuple[str, str], Micros] = {}
        """(job, stage) → how long each of its tasks runs; others run until told."""
        self._running: list[Running] = []
        self._held: dict[str, list[Launch]] = {}
        self._refusing: set[str] = set()
        self._silent: set[str] = set()
        self._lines: dict[tuple[str, int], Line] = {}
        """(node, chain) → what the agent has of it."""
        self._due: list[tuple[Micros, int, AnyCommand | Flush]] = []
        self._unheard: list[AnyCommand] = []
        self._count = 0

    # -- misbehaviour --------------------------------------------------------------------------------------------

    def hold_acks(self, node: str) -> None:
        """The agent takes launches but does not start them until released."""
        self._held.setdefault(node, [])

    def release_acks(self, node: str, now: Micros) -> None:
        for launch in self._held.pop(node, []):
            self._launch(node, launch, now)

    def refuse_launches(self, node: str) -> None:
        self._refusing.add(node)

    def silence(self, node: str) -> None:
        """Nothing is heard of the agent any more, and nothing reaches it. When it is lost is for others to say."""
        self._silent.add(node)

    def fail(self, node: str, now: Micros) -> None:
        """The machine dies with everything on it, and that is noticed at once."""
        self.silence(node)
        self._at(now, MoveNode(name=node, action="lose", operator=True))
        self._running = [each for each in self._running if each.node != node]
        self._lines = {key: line for key, line in self._lines.items() if key[0] != node}
        if node in self._held:
            self._held[node] = []

    def return_node(self, node: str, now: Micros) -> None:
        """The agent is back and has stopped what it ran; a server that still counts on it hears that it is lost."""
        self._silent.discard(node)
        self._refusing.discard(node)
        self._due = [entry for entry in self._due if not _is_about(entry[2], node)]
        heapify(self._due)
        self._unheard = [each for each in self._unheard if not _is_about(each, node)]
        had = [each for each in self._running if each.node == node]
        self._running = [each for each in self._running if each.node != node]
        for key in [key for key in self._lines if key[0] == node]:
            line = self._lines.pop(key)
            had += line.ended + line.waiting
        if node in self._held:
            had += [_running(node, launch) for launch in self._held[node]]
            self._held[node] = []
        for each in had:
            self._at(now, each.report("lost", reason=f"node {node} came back without it"))

    # -- work ----------------------------------------------------------------------------------------------------

    def deliver(self, effects: Iterable[object], now: Micros) -> None:
        """Do what the core asks. Messages to a silent node are lost."""
        for effect in effects:
            if isinstance(effect, ForNode) and effect.node not in self._silent:
                for stop in effect.stops:
                    self._stop(effect.node, stop, now)
                self._go_on(effect.node, now)
                for launch in effect.launches:
                    self._launch(effect.node, launch, now)

    def ended(self, job: str, stage: str, index: int, now: Micros) -> None:
        """Somebody reports this task by hand: the fleet runs it no more."""
        for where in (self._running, *(line.waiting for line in self._lines.values())):
            for each in list(where):
                if each.job == job and each.stage == stage:
                    _drop(where, each, Ranges(each.indices).overlap((index, index + 1)))
        for node, _ in list(self._lines):
            self._go_on(node, now)

    def next_due(self) -> Micros | None:
        if self._unheard:
            return 0
        return self._due[0][0] if self._due else None

    def reports(self, now: Micros) -> list[AnyCommand]:
        """What has fallen due by now."""
        due = [each for each in self._unheard if not (isinstance(each, Report) and each.node in self._silent)]
        self._unheard = []
        while self._due and self._due[0][0] <= now:
            when, _, command = heappop(self._due)
            told: list[AnyCommand] = []
            if isinstance(command, Flush):
                told += self._flush(command)
            elif isinstance(command, Report) and command.state == "succeeded":
                told += self._end(command, when)
            else:
                told.append(command)
            due += [each for each in told if not (isinstance(each, Report) and each.node in self._silent)]
        return due

    def send_again(self, reports: Iterable[AnyCommand]) -> None:
        """The server ended before it had taken these. Agents send until they are heard."""
        self._unheard += reports

    # -- inside --------------------------------------------------------------------------------------------------

    def _launch(self, node: str, launch: Launch, now: Micros) -> None:
        if node in self._held:
            self._held[node].append(launch)
            return
        block = _running(node, launch)
        if node in self._refusing:
            self._at(now, block.report("refused", reason=f"node {node} refused the launch"))
            return
        known = [*self._running, *(each for line in self._lines.values() for each in line.waiting + line.ended)]
        if any(_same(each, block) for each in known) or any(_is_of(each, block) for each in self._unheard):
            return  # sent again: (task, attempt) is started once
        if launch.rooms:
            line = self._lines.setdefault((node, launch.chain), Line())
            line.rooms = launch.rooms
            line.waiting.append(block)
            self._go_on(node, now)
        else:
            self._at(now, block.report("running"))
            self._start(block, now)

    def _start(self, block: Running, now: Micros) -> None:
        self._running.append(block)
        duration = self.durations.get((block.job, block.stage))
        if duration is not None:
            self._at(now + duration, block.report("succeeded", 0, ran=duration))

    def _end(self, command: Report, now: Micros) -> list[Report]:
        """A task ends by itself. One of a chain is reported later, and the next one starts at once."""
        for each in self._running:
            still = Ranges(each.indices).overlap(command.indices)
            if still and each.key() == (command.node, command.job, command.stage, command.attempt):
                _drop(self._running, each, still)
                if (each.node, each.chain) not in self._lines:
                    return [msgspec.structs.replace(command, indices=still)]
                self._lines[each.node, each.chain].ended.append(msgspec.structs.replace(each, indices=still))
                self._go_on(each.node, now)
                break
        return []

    def _go_on(self, node: str, now: Micros) -> None:
        """Start what waits where a room of its chain is free, and see that the ends are reported."""
        for key in [key for key in self._lines if key[0] == node]:
            line = self._lines[key]
            at_work = [each for each in self._running if (each.node, each.chain) == key]
            free = line.rooms - sum(count(each.indices) for each in at_work)
            news = bool(line.ended)
            while free > 0 and line.waiting:
                first = min(line.waiting, key=lambda each: each.indices)
                one = msgspec.structs.replace(first, indices=split(first.indices, 1)[0], told=False)
                _drop(line.waiting, first, one.indices)
                self._start(one, now)
                free, news = free - 1, True
            if not line.waiting and not at_work and not news:
                del self._lines[key]
            elif line.ended and not any((each.node, each.chain) == key for each in self._running):
                self._at(now, Flush(*key))
            elif news and not line.gathers:
                line.gathers = True
                self._at(now + GATHER, Flush(*key))

    def _flush(self, flush: Flush) -> list[Report]:
        line = self._lines.get((flush.node, flush.chain))
        if line is None:
            return []
        ended: dict[tuple[str, str, str, int], Running] = {}
        for each in line.ended:
            known = ended.setdefault(each.key(), each)
            if known is not each:
                joined = Ranges(known.indices)
                joined.add(each.indices)
                known.indices = joined.flat()
        line.ended, line.gathers = [], False
        reports = [
            each.report("succeeded", 0, ran=self.durations.get((each.job, each.stage), 0)) for each in ended.values()
        ]
        for each in self._running:
            if not each.told and (each.node, each.chain) == (flush.node, flush.chain):
                each.told = True
                reports.append(each.report("running"))
        return reports

    def _stop(self, node: str, stop: Stop, now: Micros) -> None:
        stopping = Running(node, stop.job, stop.stage, stop.attempt, stop.indices, stop.number)
        if node in self._held:
            key = (stop.job, stop.stage, stop.attempt)
            held = [
                each
                if (each.job, each.stage, each.attempt) != key
                else msgspec.structs.replace(each, indices=difference(each.indices, stop.indices))
                for each in self._held[node]
            ]
            self._held[node] = [each for each in held if each.indices]
        lines = [(place, line) for place, line in self._lines.items() if place[0] == node]
        for _, line in lines:
            for each in [each for each in line.waiting if each.key() == stopping.key()]:
                _drop(line.waiting, each, Ranges(each.indices).overlap(stop.indices))
        for each in [each for each in self._running if each.key() == stopping.key()]:
            if stop.cause == "return":
                stopping.indices = difference(stopping.indices, Ranges(each.indices).overlap(stop.indices))
            else:
                _drop(self._running, each, Ranges(each.indices).overlap(stop.indices))
        for place, line in lines:
            if line.ended:
                self._at(now, Flush(*place))  # what has ended was not stopped
        if stopping.indices:
            self._at(now, stopping.report("stopped"))

    def _at(self, when: Micros, command: AnyCommand | Flush) -> None:
        self._count += 1
        heappush(self._due, (when, self._count, command))


def _drop(where: list[Running], running: Running, block: tuple[int, ...]) -> None:
    running.indices = difference(running.indices, block)
    if not running.indices:
        where.remove(running)


def _running(node: str, launch: Launch) -> Running:
    return Running(node, launch.job, launch.stage, launch.attempt, launch.indices, launch.number, launch.chain)


def _same(one: Running, other: Running) -> bool:
    return one.key() == other.key() and bool(Ranges(one.indices).overlap(other.indices))


def _is_of(command: AnyCommand, running: Running) -> bool:
    """Whether a report is of that attempt: the agent has had it, and may be done with it."""
    return (
        isinstance(command, Report)
        and command.state != "refused"
        and (command.node, command.job, command.stage, command.attempt) == running.key()
        and bool(Ranges(command.indices).overlap(running.indices))
    )


def _is_about(command: AnyCommand | Flush, node: str) -> bool:
    return (isinstance(command, Report | Flush) and command.node == node) or (
        isinstance(command, MoveNode) and command.name == node
    )
