"""A virtual fleet: what agents would do with launches and stops, on a virtual clock, and as badly as asked.

Agents acknowledge at once, or with whatever happens next; tasks run until they are told to end or their duration is
over, and stops are confirmed.
Tasks of a chain run in as many rooms as it has, one after another, and what became of them is gathered for a moment.
Reports come out as commands, in the order in which they fell due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

import msgspec

from fairlead.core.commands import AnyCommand, MoveNode, Report, ReportState
from fairlead.core.effects import ForNode, Launch, Stop
from fairlead.core.model import Micros
from fairlead.core.ranges import Ranges, count, difference, split

GATHER: Micros = 10_000
"""For so long an agent gathers what became of the tasks of a chain before it reports it."""


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
    told: bool = True
    """Whether it was reported as running."""

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

    rooms: int = 0
    waiting: list[Running] = msgspec.field(default_factory=list)
    running: list[Running] = msgspec.field(default_factory=list)
    ended: list[Running] = msgspec.field(default_factory=list)
    """What was not reported yet."""
    gathers: bool = False


class Flush(msgspec.Struct, frozen=True):
    """An agent reports what it gathered of a chain."""

    node: str
    chain: int


class Fleet:
    def __init__(self, prompt: bool = True) -> None:
        """Unless they are prompt, agents say that something runs only when something else is due, and since when."""
        self._prompt = prompt
        self._begun: list[tuple[Micros, Running]] = []
        self.durations: dict[tuple[str, str], Micros] = {}
        """(job, stage) → how long each of its tasks runs; others run until told."""
        self._running: dict[Key, list[Running]] = {}
        self._held: dict[str, list[Launch]] = {}
        self._refusing: set[str] = set()
        self._silent: set[str] = set()
        self._hanging: set[str] = set()
        """The jobs whose tasks ignore a stop."""
        self._lines: dict[str, dict[int, ChainQueue]] = {}
        """Node → chain → what the agent has of it."""
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

    def accept_launches(self, node: str) -> None:
        self._refusing.discard(node)

    def ignore_stops(self, job: str) -> None:
        """Tasks of the job do not stop when they are told to."""
        self._hanging.add(job)

    def silence(self, node: str) -> None:
        """Nothing is heard of the agent any more, and nothing reaches it. When it is lost is for others to say."""
        self._silent.add(node)

    def fail(self, node: str, now: Micros) -> None:
        """The machine dies with everything on it, and that is noticed at once."""
        self.silence(node)
        self._at(now, MoveNode(name=node, action="lose", operator=True))
        self._empty(node)

    def return_node(self, node: str, now: Micros) -> None:
        """The agent is back and has stopped what it ran; a server that still counts on it hears that it is lost."""
        self._silent.discard(node)
        self._refusing.discard(node)
        self._due = [entry for entry in self._due if not _is_about(entry[2], node)]
        heapify(self._due)
        self._unheard = [each for each in self._unheard if not _is_about(each, node)]
        for each in self._empty(node):
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
        for where in (*self._running.values(), *(line.waiting for line in self._all_lines())):
            for each in list(where):
                if each.job == job and each.stage == stage:
                    self._drop(where, each, Ranges(each.indices).overlap((index, index + 1)))
        for node in list(self._lines):
            self._go_on(node, now)

    def at_work(self) -> Iterator[Running]:
        """What the agents really run."""
        for blocks in self._running.values():
            yield from blocks

    def next_due(self) -> Micros | None:
        if self._unheard:
            return 0
        return self._due[0][0] if self._due else None

    def reports(self, now: Micros) -> list[AnyCommand]:
        """What has fallen due by now."""
        due = [each for each in self._unheard if not self._is_unheard(each)]
        self._unheard = []
        if self._begun:
            due += [
                each.report("running", ran=now - when) for when, each in self._begun if each.node not in self._silent
            ]
            self._begun = []
        while self._due and self._due[0][0] <= now:
            when, _, command = heappop(self._due)
            told: list[AnyCommand] = []
            if isinstance(command, Flush):
                told += self._flush(command)
            elif isinstance(command, Report) and command.state == "succeeded":
                told += self._end(command, when)
            else:
                told.append(command)
            due += [each for each in told if not self._is_unheard(each)] if self._silent else told
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
        if self._has_had(block):
            return  # sent again: (task, attempt) is started once, and who has taken it does not refuse it any more
        if node in self._refusing:
            self._at(now, block.report("refused", reason=f"node {node} refused the launch"))
            return
        if launch.rooms:
            line = self._line(block) or self._new_line(node, launch.chain)
            line.rooms = launch.rooms
            line.waiting.append(block)
            self._go_on(node, now)
        else:
            if self._prompt:
                self._at(now, block.report("running"))
            else:
                self._begun.append((now, block))
            self._start(block, now)

    def _has_had(self, block: Running) -> bool:
        """Whether the agent was told of that attempt before."""
        known = self._running.get(block.key(), [])
        if not (known or self._lines or self._unheard):
            return False
        for line in self._lines.get(block.node, {}).values():
            known = [*known, *line.waiting, *line.ended]
        return any(_same(each, block) for each in known) or any(_is_of(each, block) for each in self._unheard)

    def _start(self, block: Running, now: Micros) -> None:
        self._running.setdefault(block.key(), []).append(block)
        line = self._line(block)
        if line is not None:
            line.running.append(block)
        duration = self.durations.get((block.job, block.stage))
        if duration is not None:
            self._at(now + duration, block.report("succeeded", 0, ran=duration))

    def _end(self, command: Report, now: Micros) -> list[Report]:
        """A task ends by itself. One of a chain is reported later, and the next one starts at once."""
        where = self._running.get((command.node, command.job, command.stage, command.attempt), [])
        for each in where:
            still = each.indices
            if still != command.indices:
                still = Ranges(still).overlap(command.indices)
            if still:
                line = self._line(each)
                self._drop(where, each, still)
                if line is None:
                    return [command if still == command.indices else msgspec.structs.replace(command, indices=still)]
                line.ended.append(msgspec.structs.replace(each, indices=still))
                self._go_on(each.node, now)
                break
        return []

    def _go_on(self, node: str, now: Micros) -> None:
        """Start what waits where a room of its chain is free, and see that the ends are reported."""
        lines = self._lines.get(node)
        if lines is None:
            return
        for chain, line in list(lines.items()):
            free = line.rooms - sum(count(each.indices) for each in line.running)
            idle, news = not line.running, bool(line.ended)
            while free > 0 and line.waiting:
                first = min(line.waiting, key=lambda each: each.indices)
                one = msgspec.structs.replace(first, indices=split(first.indices, 1)[0], told=False)
                self._drop(line.waiting, first, one.indices)
                self._start(one, now)
                free, news = free - 1, True
            if not line.waiting and idle and not news:
                del lines[chain]
            elif line.ended and not line.running:
                self._at(now, Flush(node, chain))
            elif news and not line.gathers:
                line.gathers = True
                self._at(now + GATHER, Flush(node, chain))
        if not lines:
            del self._lines[node]

    def _flush(self, flush: Flush) -> list[Report]:
        line = self._lines.get(flush.node, {}).get(flush.chain)
        if line is None:
            return []
        ended: dict[Key, Running] = {}
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
        for each in line.running:
            if not each.told:
                each.told = True
                reports.append(each.report("running"))
        return reports

    def _stop(self, node: str, stop: Stop, now: Micros) -> None:
        if stop.job in self._hanging:
            return
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
        lines = self._lines.get(node, {})
        for line in lines.values():
            for each in [each for each in line.waiting if each.key() == stopping.key()]:
                self._drop(line.waiting, each, Ranges(each.indices).overlap(stop.indices))
        where = self._running.get(stopping.key(), [])
        for each in list(where):
            if stop.cause == "return":
                stopping.indices = difference(stopping.indices, Ranges(each.indices).overlap(stop.indices))
            else:
                self._drop(where, each, Ranges(each.indices).overlap(stop.indices))
        for chain, line in lines.items():
            if line.ended:
                self._at(now, Flush(node, chain))  # what has ended was not stopped
        if stopping.indices:
            self._at(now, stopping.report("stopped"))

    def _empty(self, node: str) -> list[Running]:
        """Everything at an agent is gone; what it was."""
        had: list[Running] = []
        self._begun = [each for each in self._begun if each[1].node != node]
        for key in [key for key in self._running if key[0] == node]:
            had += self._running.pop(key)
        for line in self._lines.pop(node, {}).values():
            had += line.ended + line.waiting
        if node in self._held:
            had += [_running(node, launch) for launch in self._held[node]]
            self._held[node] = []
        return had

    def _line(self, block: Running) -> ChainQueue | None:
        """The chain that it is in, if it is in one."""
        return self._lines[block.node].get(block.chain) if block.node in self._lines else None

    def _new_line(self, node: str, chain: int) -> ChainQueue:
        """A chain begins behind those that run in its rooms already."""
        line = ChainQueue(running=[each for each in self.at_work() if (each.node, each.chain) == (node, chain)])
        self._lines.setdefault(node, {})[chain] = line
        return line

    def _all_lines(self) -> Iterator[ChainQueue]:
        for lines in self._lines.values():
            yield from lines.values()

    def _drop(self, where: list[Running], running: Running, block: tuple[int, ...]) -> None:
        """Tasks are not there any more; without any left, neither is what held them."""
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

    def _is_unheard(self, command: AnyCommand) -> bool:
        return isinstance(command, Report) and command.node in self._silent

    def _at(self, when: Micros, command: AnyCommand | Flush) -> None:
        self._count += 1
        heappush(self._due, (when, self._count, command))


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
