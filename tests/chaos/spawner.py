"""A virtual spawner, with the protocol of the real one. Its processes are only names and times.

It starts each (task, attempt) once. Accepted tasks are in its ledger, so it can report their results after it or its
machine was down. When the lease has expired it stops its tasks, whatever its agent does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Literal, Protocol

import msgspec

from fairlead.agent.spawner.records import Key, Meta, Result
from fairlead.agent.task_table import Frame
from tests.chaos.loop import Process, VirtualLoop
from tests.chaos.tasks import Live, Micros, Task

NEVER = float("inf")
PROMPT = 0.005
"""The most seconds that a message between agent and spawner takes."""
BUSY = 1.0
"""The most seconds that the start of a process takes; most starts are much faster."""
LEASE_PAUSE = 0.5
"""Seconds between two checks of an expired lease."""
STOPPING = 1.0
"""The most seconds that a task takes to stop, if its grace is not shorter."""


class Taken(msgspec.Struct):
    """A task in the spawner's ledger."""

    live: Live
    meta: Meta
    state: Literal["waiting", "running", "ended"] = "waiting"
    result: Result | None = None
    stopped_at: float = NEVER
    """When a stopping task will have ended."""
    cause: str = ""
    began: float = 0.0


class Wires(Protocol):
    """The trial, as a spawner sees it: run times and exit codes of tasks, and the checkers' callbacks."""

    def duration(self, task: Task) -> Micros: ...
    def exit_code(self, task: Task, attempt: int) -> int: ...
    def started(self, node: str, live: Live) -> None: ...
    def ended(self, node: str, live: Live, how: str) -> None: ...


class Spawner:
    def __init__(self, loop: VirtualLoop, rng: Random, wires: Wires, node: str, refuses: Callable[[], bool]) -> None:
        self.known: dict[Key, Taken] = {}
        self.link: SpawnerLink | None = None
        self.up = True
        self._loop = loop
        self._rng = rng
        self._wires = wires
        self._node = node
        self._refuses = refuses
        self._ask_at = self._end_at = NEVER

    @property
    def running(self) -> Iterable[Live]:
        return (taken.live for taken in self.known.values() if taken.state == "running")

    @property
    def is_quiet(self) -> bool:
        """True if its agent is connected and no task waits to start."""
        return (
            self.link is not None
            and self.link.spoken
            and all(taken.state != "waiting" for taken in self.known.values())
        )

    # -- the agent -----------------------------------------------------------------------------------------------

    def accept(self, link: SpawnerLink) -> None:
        """Accept an agent's connection and send it all known tasks."""
        self.link = link
        tasks = [
            (taken.meta, taken.live.task.index, 0, taken.state, taken.result, taken.began)
            for taken in self.known.values()
        ]
        link.deliver("state", tasks, "", "none")

    def handle(self, what: str, *rest: Any) -> None:
        if what == "launch":
            groups, slots = rest
            assert not slots, "a trial has no chains"
            for meta, _, indices, _, _, own in groups:
                self._take(meta, indices, own)
        elif what == "stop":
            self._stop(rest[0], "stop")
        elif what == "return":
            for key in rest[0]:
                taken = self.known.get(key)
                if taken is not None and taken.state == "waiting":
                    self._end(key, taken, ("returned", 0, "", 0, 0, 0))
        elif what == "confirm":
            for key in rest[0]:
                if key in self.known and self.known[key].state == "ended":
                    del self.known[key]
        elif what == "lease":
            self._ask_at, self._end_at = rest[0], rest[1]
            for when in (self._ask_at, self._end_at):
                if when != NEVER:
                    self._loop.world_at(when, self._look_at_lease)
        else:
            assert what == "why", "tasks here do not ask why they stop"

    def die(self) -> None:
        """Kill the spawner. Its guard ends all its tasks."""
        self.up = False
        for taken in self.known.values():
            if taken.state != "ended":
                if taken.state == "running":
                    self._over(taken, "lost")
                taken.state, taken.result = "ended", ("lost", 0, "its spawner was killed", 0, 0, 0)
        if self.link is not None:
            self.link.lose()
        self.link = None
        self._ask_at = self._end_at = NEVER

    def rise(self) -> None:
        self.up = True

    # -- tasks ---------------------------------------------------------------------------------------------------

    def _take(self, meta: Meta, indices: Sequence[int], own: Sequence[dict[str, str]] | None) -> None:
        job, number, stage, attempt = meta
        fresh: dict[Key, Taken] = {}
        for at, index in enumerate(indices):
            key = (number, stage, attempt, index)
            if key in self.known:
                continue
            named = own[at].get("CUDA_VISIBLE_DEVICES", "") if own else ""
            devices = tuple(map(int, named.split(","))) if named else ()
            fresh[key] = self.known[key] = Taken(Live(Task(job, number, stage, index), attempt, devices), meta)
        if fresh:
            self._loop.world_at(self._loop.time() + self._rng.random() ** 8 * BUSY, self._start, fresh)
        if self._loop.time() >= self._ask_at:
            self._loop.world_at(self._loop.time() + LEASE_PAUSE, self._look_at_lease)

    def _start(self, fresh: dict[Key, Taken]) -> None:
        started: list[Key] = []
        ended: list[tuple[Key, Result]] = []
        for key, taken in fresh.items():
            if taken.state != "waiting" or not self.up:
                continue
            if self._refuses():
                taken.state, taken.result = "ended", ("refused", 0, "not now", 0, 0, 0)
                ended.append((key, taken.result))
                continue
            taken.state, taken.began = "running", self._loop.time()
            started.append(key)
            self._wires.started(self._node, taken.live)
            duration = self._wires.duration(taken.live.task) / 1e6
            self._loop.world_at(self._loop.time() + duration, self._run_out, key, taken)
        if started or ended:
            self._report(started, ended)

    def _run_out(self, key: Key, taken: Taken) -> None:
        """End a process when its run time is over, whether or not an agent is connected."""
        if taken.state == "running":
            code = self._wires.exit_code(taken.live.task, taken.live.attempt)
            self._over(taken, "failed" if code else "succeeded")
            self._end(key, taken, ("exit", code, "", 1, 0, 0))

    def _stop(self, keys: Iterable[tuple[Key, float]], cause: str) -> None:
        now = self._loop.time()
        for key, grace in keys:
            taken = self.known.get(key)
            if taken is None or taken.state == "ended":
                continue
            if taken.state == "waiting":
                self._end(key, taken, ("returned", 0, "", 0, 0, 0))
                continue
            when = now + min(grace, self._rng.random() * STOPPING)
            if when < taken.stopped_at:
                taken.stopped_at, taken.cause = when, taken.cause or cause
                self._loop.world_at(when, self._stopped, key, taken)

    def _stopped(self, key: Key, taken: Taken) -> None:
        if taken.state == "running":
            lease = taken.cause == "lease"
            self._over(taken, "lost" if lease else "stopped")
            self._end(key, taken, ("lost", 0, "its lease expired", 1, 0, 0) if lease else ("stopped", 143, "", 1, 0, 0))

    def _look_at_lease(self) -> None:
        now = self._loop.time()
        if self.up and now >= self._ask_at:
            live = [key for key, taken in self.known.items() if taken.state != "ended"]
            self._stop([(key, max(0.0, self._end_at - now)) for key in live], "lease")

    def _over(self, taken: Taken, how: str) -> None:
        taken.state = "ended"
        self._wires.ended(self._node, taken.live, how)

    def _end(self, key: Key, taken: Taken, result: Result) -> None:
        taken.state, taken.result = "ended", result
        self._report([], [(key, result)])

    def _report(self, started: list[Key], ended: list[tuple[Key, Result]]) -> None:
        if self.link is not None:
            self.link.deliver("events", started, ended)


class SpawnerLink:
    """The agent's connection to a spawner. It lives as long as the agent."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: Random,
        process: Process,
        spawner: Spawner,
        received: Callable[..., None],
        missed: Callable[[str, bool], None],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._process = process
        self._spawner = spawner
        self._received = received
        self._missed = missed
        self.spoken = False
        self._tries = 0
        self._last = 0.0
        self.under_way = 0
        self._connect()

    def send(self, *frames: Frame) -> bool:
        if not self.spoken:
            return False
        for frame in frames:
            self._later(self._deliver, frame)
        return True

    def wake(self) -> None:
        """Do nothing: a virtual spawner is never idle."""

    def deliver(self, *message: Any) -> None:
        """Send a message of the spawner to the agent; the first one is its state."""
        self._later(self._arrive, message)

    def lose(self) -> None:
        """Reconnect after the end of the spawner."""
        self.spoken, self._tries = False, 0
        self._later(self._connect)

    def _connect(self) -> None:
        if not self._process.alive:
            return
        if self._spawner.up:
            self._spawner.accept(self)
            return
        self._tries += 1
        self._process.post(lambda: self._missed("no spawner could be started", self._tries > 1))
        self._loop.world_at(self._loop.time() + 1.0, self._connect)

    def _deliver(self, frame: Frame) -> None:
        if self._spawner.link is self:  # includes messages that an agent sent before it was killed
            self._spawner.handle(*frame)

    def _arrive(self, message: Sequence[Any]) -> None:
        if self._spawner.link is self:
            self._process.post(lambda: self._receive(message))

    def _receive(self, message: Sequence[Any]) -> None:
        if self._spawner.link is self:
            self.spoken = True
            self._received(*message)

    def _later(self, call: Callable[..., None], *args: Any) -> None:
        """Make a call after a short delay. Calls keep their order."""
        self._last = max(self._loop.time() + self._rng.random() * PROMPT, self._last + 1e-6)
        self.under_way += 1

        def happen() -> None:
            self.under_way -= 1
            call(*args)

        self._loop.world_at(self._last, happen)
