"""A simulation: the real writer, core and journal on a virtual clock, with a virtual fleet and the jobs of a trace.

All events of one instant are one batch for one cycle: first reports, then arrivals. An event that the cycle causes at
the same instant, such as the end of a job with run time 0, is in the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from fairlead.core.commands import AddNode, Command, Configure, MarkReady, Rejected, Submit
from fairlead.core.cycle import due
from fairlead.core.errors import Refused
from fairlead.core.model import Micros
from fairlead.core.resources import MAX_DURATION
from fairlead.journal.in_memory import MemoryJournal
from fairlead.sim.fleet import Fleet
from fairlead.sim.machines import Machines, Outages
from fairlead.sim.policy_files import Policy
from fairlead.sim.record import Record
from fairlead.sim.traces import Arrival, Trace
from fairlead.writer.writer import Observer, Writer


class Simulation:
    def __init__(
        self, trace: Trace, policy: Policy, outages: Outages | None = None, observers: Sequence[Observer] = ()
    ) -> None:
        self.trace = trace
        self.policy = policy
        self.outages = outages
        self.record = Record(trace)
        self.fleet = Fleet(prompt=False)
        self.machines = Machines()
        """Machines of the policy's pools."""
        self.writer = Writer(MemoryJournal(), "default", [self.record, *observers])
        self.now: Micros = 0
        self._next = 0
        """Position of the next arrival in the trace."""
        self._open()

    def run(self, until: Micros | None = None, stop: Callable[[Simulation], bool] = lambda simulation: False) -> bool:
        """Run until all jobs have ended, no event is left, or `until` is reached; return True then.

        `stop` is called before each cycle. If it returns True, `run` returns False and may be called again to go on.
        """
        while not stop(self):
            when = self._next_due()
            if self.record.is_over or when is None or (until is not None and when > until):
                return True
            if self.outages is not None and self._is_stuck(self.outages):
                return True
            self.now = max(self.now, when)
            self.step()
        return False

    def step(self) -> None:
        """Run one cycle at the current time."""
        back = self._break() if self.outages is not None else []
        machines = self.machines.happen(self.writer.partition, self.now)
        reports = [*back, *machines, *self.fleet.reports(self.now)]
        first = self._next
        arrivals = self._arrivals()
        self.record.arrive(len(arrivals))
        done = self.writer.cycle([*reports, *arrivals], self.now)
        for at, answer in enumerate(done.answers[len(reports) :], first):
            if isinstance(answer, Rejected):
                self.record.refuse(at, str(answer))
            else:
                self.record.accept(at, self.writer.partition.jobs[answer.job].queue.path)
        self.fleet.deliver(done.effects, self.now)
        self.machines.receive(done.effects, self.now)

    def _open(self) -> None:
        # A start is reported only with the next event, however late, so launches must not time out.
        settings = replace(self.policy.config.settings, launch_timeout=MAX_DURATION)
        config = replace(self.policy.config, settings=settings)
        commands: list[Command] = [Configure(config=config, version=1, operator=True)]
        commands += [AddNode(name=name, spec=spec, operator=True) for name, spec in self.trace.nodes]
        commands.append(MarkReady(operator=True))
        done = self.writer.cycle(commands, self.now)
        for answer in done.answers:
            if isinstance(answer, Rejected):
                raise Refused(answer.field, answer.problem, answer.code)
        self.machines.receive(done.effects, self.now)

    def _break(self) -> list[Command]:
        """Make nodes fail and recover as the outages say; return the commands that add returned nodes."""
        assert self.outages is not None
        specs = dict(self.trace.nodes)
        back: list[Command] = []
        for node, what in self.outages.happen(self.now):
            if what == "fails":
                self.fleet.fail(node, self.now)
            elif what == "refuses":
                self.fleet.refuse_launches(node)
            elif what == "accepts":
                self.fleet.accept_launches(node)
            else:
                self.fleet.return_node(node, self.now)
                back.append(AddNode(name=node, spec=specs[node], operator=True))
        return back

    def _is_stuck(self, outages: Outages) -> bool:
        """True if nothing but further outages can happen. A node in back-off will be tried again."""
        if outages.out or self.writer.more or self._next < len(self.trace.arrivals):
            return False
        partition = self.writer.partition
        return not partition.allocations and not partition.nodes.avoided and self.fleet.next_due() is None

    def _next_due(self) -> Micros | None:
        if self.writer.more:
            return self.now
        # The scheduler forgets ended jobs at the next event. A cycle of its own for that would decide nothing.
        reported = self.fleet.next_due()
        if reported == self.now:
            return reported
        times = [reported, due(self.writer.partition, forgetting=False), self.machines.next_due(self.now)]
        if self.outages is not None:
            times.append(self.outages.next_due())
        if self._next < len(self.trace.arrivals):
            times.append(self.trace.arrivals[self._next].at)
        return min([when for when in times if when is not None], default=None)

    def _arrivals(self) -> Sequence[Submit]:
        commands: list[Submit] = []
        arrivals = self.trace.arrivals
        while self._next < len(arrivals) and arrivals[self._next].at <= self.now:
            commands.append(self._submit(arrivals[self._next]))
            self._next += 1
        return commands

    def _submit(self, arrival: Arrival) -> Submit:
        spec = self.policy.place(arrival.spec)
        for stage, duration in zip(spec.stages, arrival.durations, strict=True):
            self.fleet.durations[arrival.job, stage.name] = duration
        return Submit(spec=spec, id=arrival.job, user=spec.user, groups=spec.groups, operator=True)
