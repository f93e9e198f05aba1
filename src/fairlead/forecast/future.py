"""One possible future: a copy of a partition runs forward on a virtual clock, with drawn run times and arrivals.

The shipped code runs: `ScratchWriter` runs the cycles, and the simulator's virtual fleet carries out their effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from time import monotonic

from msgspec.structs import replace

from fairlead.core.commands import Command, Configure, MarkReady, MoveNode, Submit
from fairlead.core.cycle import Cycle, due
from fairlead.core.effects import ForManager, ForNode, outstanding_effects, outstanding_orders
from fairlead.core.model import Allocation, Micros, Stage
from fairlead.core.ranges import Ranges, difference
from fairlead.core.resources import MAX_DURATION
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Partition
from fairlead.forecast.recorded import PastJob
from fairlead.forecast.runtimes import Runtimes
from fairlead.sim.fleet import Fleet, Running
from fairlead.sim.machines import Machines
from fairlead.writer.writer import ScratchWriter

MOST_TIMERS = 200
"""A future ends if this number of timers of the scheduler fire and nothing else happens in between."""
SHARED = 0.4
"""The probability that a run time is drawn at the same quantile as other run times of the same user."""


class Future:
    """Runs a partition forward. The partition changes, so it must be a copy."""

    def __init__(
        self,
        partition: Partition,
        now: Micros,
        runtimes: Runtimes,
        arrivals: Iterator[PastJob],
        rng: Random,
        first: Sequence[Command] = (),
        resource: str = "",
    ) -> None:
        """`first` are commands that are carried out before anything is placed. The use of a `resource` is recorded."""
        self.partition = partition
        self.now = max(now, partition.now)
        self.fleet = DrawingFleet(partition, runtimes, rng)
        self.machines = Machines()
        self.starts: dict[str, Micros] = {}
        """Job → its first start from now on."""
        self.used: list[tuple[Micros, int]] = []
        """The times at which the use of the resource changed, and the amount in use from then on."""
        self.stuck = False
        """True if nothing more can happen."""
        self._resource = resource
        self._arrivals = arrivals
        self._waiting = frozenset(partition.jobs)
        self._managed = False
        self._next = next(arrivals, None)
        # No message is lost here, and starts are reported with the next event, however late.
        partition.set_settings(_patient(partition.settings))
        first = [_with_patience(command) for command in first]
        self.writer = ScratchWriter(partition)
        self._adopt()
        for command in first:
            if isinstance(command, MoveNode) and command.action == "lose":
                self.fleet.fail(command.name, self.now)
        self.answers = self._cycle([*first, MarkReady(operator=True)]).answers[: len(first)]

    def run(self, wanted: Iterable[str], until: Micros, deadline: float) -> bool:
        """Run until all wanted jobs have started; return True then.

        Return False if the future gets stuck, or if it reaches `until` or the deadline (`monotonic`) before.
        """
        left = set(wanted) - self.starts.keys()
        seen = len(self.starts)
        cycles = timers = 0
        while left:
            when: Micros | None = self.now
            if not self.writer.more:
                when, timer = self._next_event(), due(self.partition, forgetting=False)
                timers = timers + 1 if when is None else 0
                if timer is not None and (when is None or timer < when):
                    when = timer
            if when is None or timers > MOST_TIMERS:
                self.stuck = True
                return False
            if when > until:
                self.now = until
                return False
            cycles += 1
            if not cycles % 16 and monotonic() > deadline:
                return False
            self.now = max(self.now, when)
            self.step()
            left.difference_update(islice(reversed(self.starts), len(self.starts) - seen))
            seen = len(self.starts)
        return True

    def step(self) -> None:
        """Run one cycle at the current time."""
        commands = [*self.machines.happen(self.partition, self.now), *self.fleet.reports(self.now)]
        while self._next is not None and self._next.at <= self.now:
            arrival = self._next
            spec = arrival.spec
            for stage, duration in zip(spec.stages, arrival.durations, strict=True):
                if duration is not None:
                    self.fleet.durations[arrival.id, stage.name] = duration
            commands.append(Submit(spec=spec, id=arrival.id, user=spec.user, groups=spec.groups, operator=True))
            self._next = next(self._arrivals, None)
        self._cycle(commands)

    def unknown_running(self) -> int:
        """Return the number of tasks that ran at the beginning and whose end cannot be estimated. They never end."""
        return sum(map(len, self.fleet.running_on.values()))

    def unknown_ahead(self) -> int:
        """Return the number of tasks that waited at the beginning, have started since, and have no known end."""
        return sum(len(tasks) for (job, _), tasks in self.fleet.started_on.items() if job in self._waiting)

    def is_known(self) -> bool:
        """True if the ends of all tasks can be estimated, also of tasks that arrived in this future."""
        return not (self.fleet.running_on or self.fleet.started_on or self._managed)

    def _cycle(self, commands: list[Command]) -> Cycle:
        done = self.writer.cycle(commands, self.now)
        self.fleet.deliver(done.effects, self.now)
        self._managed = self._managed or any(isinstance(effect, ForManager) for effect in done.effects)
        self.machines.receive(done.effects, self.now)
        self._observe()
        return done

    def _observe(self) -> None:
        """Record first starts of jobs and the use of the resource after a cycle."""
        partition = self.partition
        for job_id in partition.touched.jobs:
            job = partition.jobs.get(job_id)
            if job is not None and job.live and job_id not in self.starts:
                self.starts[job_id] = partition.now
        used = partition.root.account.used.get(self._resource, 0)
        if self._resource and (not self.used or self.used[-1][1] != used):
            self.used.append((partition.now, used))

    def _adopt(self) -> None:
        """Give the fleet the tasks that already run, and the pools the machines that are already ordered."""
        partition = self.partition
        names = {node_id: partition.nodes.name[row] for node_id, row in partition.nodes.rows.items()}
        for number in sorted(partition.allocations):
            allocation = partition.allocations[number]
            if allocation.state == "stopping" or allocation.slots or allocation.cause:
                continue
            self.fleet.adopt(names[allocation.node], allocation, self.now)
        for effect in outstanding_effects(partition):
            launches = tuple(launch for launch in effect.launches if launch.slots)
            if launches or effect.stops:
                self.fleet.deliver([ForNode(effect.node, launches, effect.stops)], self.now)
        self.machines.receive(outstanding_orders(partition), self.now)

    def _next_event(self) -> Micros | None:
        """Return the time of the next event that is not a timer of the scheduler."""
        reported = self.fleet.next_due()
        if reported is not None and reported <= self.now:
            return self.now
        times = [reported, self.machines.next_due(self.now)]
        if self._next is not None:
            times.append(self._next.at)
        return min([when for when in times if when is not None], default=None)


def _patient(settings: PartitionSettings) -> PartitionSettings:
    return replace(settings, launch_timeout=MAX_DURATION)


def _with_patience(command: Command) -> Command:
    if not isinstance(command, Configure):
        return command
    return replace(command, config=replace(command.config, settings=_patient(command.config.settings)))


class DrawingFleet(Fleet):
    """A fleet that draws the run time of a task when it starts, unless `durations` has it."""

    def __init__(self, partition: Partition, runtimes: Runtimes, rng: Random) -> None:
        super().__init__(prompt=False)
        self._partition = partition
        self._runtimes = runtimes
        self._rng = rng
        self._parts: dict[str, float] = {}
        """User → the quantile, from 0 to 1, at which shared run times are drawn."""
        self._late: dict[tuple[str, str], float] = {}
        """(Job, stage) → the quantile for tasks that run longer than all recorded ones."""
        self._gangs: dict[tuple[str, str, int], Micros | None] = {}
        self.running_on: dict[tuple[str, str], Ranges] = {}
        """(Job, stage) → tasks that ran at the start and have no known end."""
        self.started_on: dict[tuple[str, str], Ranges] = {}
        """(Job, stage) → other tasks that started later and have no known end."""

    def adopt(self, node: str, allocation: Allocation, now: Micros) -> None:
        stage = allocation.stage
        began = allocation.since if allocation.started is None else allocation.started
        job, attempt = stage.job, allocation.attempt
        block = Running(node, job.id, stage.name, attempt, allocation.indices, job.number, allocation.chain)
        duration = self._drawn(stage, allocation.attempt, max(0, now - began))
        self._running.setdefault(block.key(), []).append(block)
        if duration is None or stage.job.manager:
            self.running_on.setdefault((block.job, block.stage), Ranges()).add(block.indices)
            return
        self._at(max(now, began + duration), block.report("succeeded", 0, ran=duration))

    def duration_of(self, block: Running) -> Micros | None:
        duration = self.durations.get((block.job, block.stage))
        if duration is not None:
            return duration
        job = self._partition.jobs.get(block.job)
        stage = None if job is None else job.stage(block.stage)
        duration = None if stage is None else self._drawn(stage, block.attempt, 0)
        if duration is None:
            new = block.indices
            for noted in (self.running_on, self.started_on):
                new = difference(new, noted.get((block.job, block.stage), Ranges()).flat())
            if new:
                self.started_on.setdefault((block.job, block.stage), Ranges()).add(new)
        return duration

    def _drawn(self, stage: Stage, attempt: int, elapsed: Micros) -> Micros | None:
        """Return a run time above `elapsed`: one for all tasks of a gang, otherwise one per block."""
        if stage.min <= 1:
            return self._draw(stage, elapsed)
        key = (stage.job.id, stage.name, attempt)
        if key not in self._gangs:
            self._gangs[key] = self._draw(stage, elapsed)
        return self._gangs[key]

    def _draw(self, stage: Stage, elapsed: Micros) -> Micros | None:
        table = self._runtimes.table(stage)
        if table is None:
            return None
        part = None
        if table.is_outlasted(elapsed):  # the tasks of a stage are mostly late for the same cause
            part = self._late.setdefault((stage.job.id, stage.name), self._rng.random())
        elif self._rng.random() < SHARED:
            part = self._parts.setdefault(stage.job.owner[0], self._rng.random())
        return table.draw(self._rng, elapsed, part)
