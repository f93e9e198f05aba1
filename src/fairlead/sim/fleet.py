"""A virtual fleet: what agents would do with launches and stops, on a virtual clock, and as badly as asked.

Agents acknowledge at once, tasks run until they are told to end or their duration is over, and stops are confirmed.
Reports come out as commands, in the order in which they fell due.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import msgspec

from fairlead.core.commands import AnyCommand, MoveNode, Report, ReportState
from fairlead.core.effects import ForNode, Launch, Stop
from fairlead.core.model import Micros
from fairlead.core.ranges import Ranges, difference


class Running(msgspec.Struct):
    """A block of tasks that an agent runs."""

    node: str
    job: str
    stage: str
    attempt: int
    indices: tuple[int, ...]
    number: int = 0

    def key(self) -> tuple[str, str, str, int]:
        return (self.node, self.job, self.stage, self.attempt)

    def report(self, state: ReportState, exit_code: int | None = None, reason: str = "") -> Report:
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
            operator=True,
        )


class Fleet:
    def __init__(self) -> None:
        self.durations: dict[tuple[str, str], Micros] = {}
        """(job, stage) → how long each of its tasks runs; others run until told."""
        self._running: list[Running] = []
        self._held: dict[str, list[Launch]] = {}
        self._refusing: set[str] = set()
        self._silent: set[str] = set()
        self._due: list[tuple[Micros, int, AnyCommand]] = []
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
                for launch in effect.launches:
                    self._launch(effect.node, launch, now)

    def ended(self, job: str, stage: str, index: int) -> None:
        """Somebody reports this task by hand: the fleet runs it no more."""
        for each in list(self._running):
            if each.job == job and each.stage == stage:
                self._drop(each, Ranges(each.indices).overlap((index, index + 1)))

    def next_due(self) -> Micros | None:
        if self._unheard:
            return 0
        return self._due[0][0] if self._due else None

    def reports(self, now: Micros) -> list[AnyCommand]:
        """What has fallen due by now."""
        due = [each for each in self._unheard if not (isinstance(each, Report) and each.node in self._silent)]
        self._unheard = []
        while self._due and self._due[0][0] <= now:
            command = heappop(self._due)[2]
            if isinstance(command, Report) and command.state == "succeeded":
                still = self._still_running(command)
                if not still:
                    continue
                command = msgspec.structs.replace(command, indices=still)
            if not (isinstance(command, Report) and command.node in self._silent):
                due.append(command)
        return due

    def send_again(self, reports: Iterable[AnyCommand]) -> None:
        """The server ended before it had taken these. Agents send until they are heard."""
        self._unheard += reports

    # -- inside --------------------------------------------------------------------------------------------------

    def _launch(self, node: str, launch: Launch, now: Micros) -> None:
        if node in self._held:
            self._held[node].append(launch)
            return
        running = _running(node, launch)
        if node in self._refusing:
            self._at(now, running.report("refused", reason=f"node {node} refused the launch"))
            return
        if any(_same(each, running) for each in self._running) or any(_is_of(each, running) for each in self._unheard):
            return  # sent again: (task, attempt) is started once
        self._running.append(running)
        self._at(now, running.report("running"))
        duration = self.durations.get((launch.job, launch.stage))
        if duration is not None:
            self._at(now + duration, running.report("succeeded", 0))

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
        for each in list(self._running):
            if each.key() == stopping.key():
                self._drop(each, Ranges(each.indices).overlap(stop.indices))
        self._at(now, stopping.report("stopped"))

    def _drop(self, running: Running, block: tuple[int, ...]) -> None:
        running.indices = difference(running.indices, block)
        if not running.indices:
            self._running.remove(running)

    def _still_running(self, command: Report) -> tuple[int, ...]:
        for each in self._running:
            if each.key() == (command.node, command.job, command.stage, command.attempt):
                still = Ranges(each.indices).overlap(command.indices)
                if still:
                    self._drop(each, still)
                    return still
        return ()

    def _at(self, when: Micros, command: AnyCommand) -> None:
        self._count += 1
        heappush(self._due, (when, self._count, command))


def _running(node: str, launch: Launch) -> Running:
    return Running(node, launch.job, launch.stage, launch.attempt, launch.indices, launch.number)


def _same(one: Running, other: Running) -> bool:
    return one.key() == other.key() and bool(Ranges(one.indices).overlap(other.indices))


def _is_of(command: AnyCommand, running: Running) -> bool:
    """Whether a report is of that attempt: the agent has had it, and may be done with it."""
    return (
        isinstance(command, Report)
        and command.state != "refused"
        and (command.node, command.job, command.stage, command.attempt) == running.key()
    )


def _is_about(command: AnyCommand, node: str) -> bool:
    return (isinstance(command, Report) and command.node == node) or (
        isinstance(command, MoveNode) and command.name == node
    )
