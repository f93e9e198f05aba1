"""Agents with a link that breaks: what a real one would do with launches and stops, lost connections and leases.

An agent knows (task, attempt) and starts it once. What it reports is sent again until it is confirmed. Without an
answer for as long as the lease it stops what it runs. A machine that crashed comes back knowing what it had, and says
that it is lost. Tasks are taken one by one: this is the other side of the wire, and shares no arithmetic with the core.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import msgspec

from fairlead.core.commands import Report, ReportState
from fairlead.core.effects import ForNode, Launch, Stop

Micros = int
SECOND = 1_000_000
QUICK, SLOW = SECOND // 50, 8 * SECOND
"""The longest a message takes, usually and in bad times. The server gives launches more time than that."""


class Task(msgspec.Struct, frozen=True):
    """A task of a job, whatever its attempt. The number tells jobs apart that had one id after another."""

    job: str
    number: int
    stage: str
    index: int


class Live(msgspec.Struct):
    """A process."""

    task: Task
    attempt: int
    devices: tuple[int, ...]


class Wires(Protocol):
    """What an agent is connected to: time, the server, and those who watch."""

    now: Micros
    rng: Random
    lease: Micros
    heartbeat: Micros

    def at(self, when: Micros, what: Callable[[], None]) -> None: ...
    def to_server(self, agent: Agent, what: str, body: Any, when: Micros, link: int) -> None: ...
    def duration(self, task: Task) -> Micros: ...
    def exit_code(self, task: Task, attempt: int) -> int: ...
    def started(self, agent: Agent, live: Live) -> None: ...
    def ended(self, agent: Agent, live: Live, how: str) -> None: ...
    def log(self, text: str) -> None: ...


class Agent:
    def __init__(self, name: str, wires: Wires, links: int = 0) -> None:
        self.name = name
        self.wires = wires
        self.link = 0
        """The number of its connection; 0 for none."""
        self.links = links
        """The highest such number. Machines that have one name after another have other numbers."""
        self.gone = False
        self.running: dict[Task, Live] = {}
        self.known: set[tuple[Task, int]] = set()
        """Every attempt that it was told to start."""
        self.outbox: dict[int, Report] = {}
        """Reports that are not confirmed, by number."""
        self.until: dict[str, Micros] = {}
        """Trouble → when it is over."""
        self._answered: Micros = -1
        """When the last heartbeat was sent that was answered."""
        self._reports = 0
        self._old = 0
        """The reports up to this one were there at the last beat: if they are still, they are sent again."""
        self._last_sent: Micros = 0
        wires.at(wires.now, self._beat)

    def has(self, trouble: str) -> bool:
        return self.until.get(trouble, -1) > self.wires.now

    @property
    def is_off(self) -> bool:
        """Nothing goes in or out."""
        return self.gone or self.has("crash") or self.has("hang")

    # -- trouble -------------------------------------------------------------------------------------------------

    def trouble(self, what: str, lasts: Micros) -> None:
        self.until[what] = max(self.until.get(what, 0), self.wires.now + lasts)
        if what in ("break", "crash"):
            self.drop_link("trouble")
        if what == "crash":
            self._lose_all("the machine crashed")

    def vanish(self) -> None:
        """The machine is gone for good, and nobody hears what became of its tasks."""
        self.gone = True
        self.drop_link("the machine is gone")
        self._lose_all("the machine is gone")
        self.outbox.clear()

    def drop_link(self, why: str) -> None:
        if self.link:
            self.wires.log(f"{self.name}: link {self.link} is down ({why})")
        self.link = 0

    def _lose_all(self, why: str) -> None:
        for live in list(self.running.values()):
            self._end(live, "lost")
            self._report(live.task, live.attempt, "lost", reason=why)

    # -- the link ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Every now and then: connect, or say that it is alive."""
        wires = self.wires
        if self.gone:
            return
        wires.at(wires.now + wires.heartbeat, self._beat)
        if self.is_off or self.has("break"):
            return
        if not self.link:
            self.links += 1
            self._send("register", None, self.links)
            return
        self._send("heartbeat", wires.now, self.link)
        for number in [each for each in self.outbox if each <= self._old]:
            self._send_report(number)
        self._old = self._reports

    def welcomed(self, link: int, sent: Micros) -> None:
        """The server has taken it in, and hears what it has not heard."""
        if self.is_off or self.has("break") or link != self.links:
            return
        self.link = link
        self.answered(sent)
        for number in list(self.outbox):
            self._send_report(number)

    def answered(self, sent: Micros) -> None:
        """The server heard what was sent then: from then on the lease counts anew."""
        if sent > self._answered:
            self._answered = sent
            self.wires.at(sent + self.wires.lease, self._look_at_lease)

    def _look_at_lease(self) -> None:
        """A watchdog beside the agent: it works also while the agent hangs."""
        if self.wires.now >= self._answered + self.wires.lease:
            self._lose_all("the lease is over")
            self.drop_link("the lease is over")

    def confirmed(self, numbers: list[int]) -> None:
        for number in numbers:
            self.outbox.pop(number, None)

    def _send(self, what: str, body: Any, link: int, loose: bool = False) -> None:
        """One after another, unless they may overtake each other."""
        wires = self.wires
        when = wires.now + wires.rng.randrange(SLOW if self.has("slow") or loose else QUICK)
        if not loose:
            when = self._last_sent = max(when, self._last_sent + 1)
        wires.to_server(self, what, body, when, link)

    # -- work ----------------------------------------------------------------------------------------------------

    def receive(self, message: ForNode) -> None:
        for stop in message.stops:
            self._stop(stop)
        for launch in message.launches:
            self._launch(launch)

    def _launch(self, launch: Launch) -> None:
        each = indices(launch.indices)
        per_task = len(launch.devices) // len(each)
        begun: list[int] = []
        for at, index in enumerate(each):
            task = Task(launch.job, launch.number, launch.stage, index)
            if (task, launch.attempt) in self.known:
                continue
            self.known.add((task, launch.attempt))
            if self.has("refuse"):
                # For good: if it is sent again before the server has heard of it, it must not be started either.
                self._report(task, launch.attempt, "refused", reason="not now")
                continue
            live = Live(task, launch.attempt, launch.devices[at * per_task : (at + 1) * per_task])
            begun.append(index)
            self.wires.started(self, live)
            self.running[task] = live
            self.wires.at(self.wires.now + self.wires.duration(task), lambda live=live: self._run_out(live))  # type: ignore[misc]
        if begun:
            self._report_block(launch.job, launch.number, launch.stage, begun, launch.attempt, "running")

    def _run_out(self, live: Live) -> None:
        """A process ends by itself, also while nobody can hear of it."""
        if self.running.get(live.task) is live:
            code = self.wires.exit_code(live.task, live.attempt)
            self._end(live, "failed" if code else "succeeded")
            self._report(live.task, live.attempt, "failed" if code else "succeeded", code)

    def _stop(self, stop: Stop) -> None:
        """What it does not run has stopped as well."""
        for index in indices(stop.indices):
            task = Task(stop.job, stop.number, stop.stage, index)
            live = self.running.get(task)
            if live is not None and live.attempt == stop.attempt:
                self._end(live, "stopped")
            self.known.add((task, stop.attempt))
        self._report_block(stop.job, stop.number, stop.stage, indices(stop.indices), stop.attempt, "stopped")

    def _end(self, live: Live, how: str) -> None:
        del self.running[live.task]
        self.wires.ended(self, live, how)

    def _report(self, task: Task, attempt: int, state: ReportState, code: int | None = None, reason: str = "") -> None:
        self._report_block(task.job, task.number, task.stage, [task.index], attempt, state, code, reason)

    def _report_block(
        self,
        job: str,
        number: int,
        stage: str,
        block: list[int],
        attempt: int,
        state: ReportState,
        code: int | None = None,
        reason: str = "",
    ) -> None:
        self._reports += 1
        self.outbox[self._reports] = Report(
            node=self.name,
            job=job,
            stage=stage,
            indices=flat(block),
            attempt=attempt,
            state=state,
            exit_code=code,
            reason=reason,
            number=number,
            operator=True,
        )
        if self.link and not self.is_off:
            self._send_report(self._reports)

    def _send_report(self, number: int) -> None:
        for _ in range(2 if self.has("double") else 1):
            self._send("report", (number, self.outbox[number]), self.link, loose=self.has("reorder"))


def indices(block: tuple[int, ...]) -> list[int]:
    """The numbers of half-open spans."""
    return [index for start, end in zip(block[::2], block[1::2], strict=True) for index in range(start, end)]


def flat(numbers: list[int]) -> tuple[int, ...]:
    """The reverse."""
    spans: list[int] = []
    for number in sorted(numbers):
        if spans and spans[-1] == number:
            spans[-1] += 1
        else:
            spans += (number, number + 1)
    return tuple(spans)
