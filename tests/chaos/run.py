"""A trial: runs one scenario on virtual time, with all checkers. `CheckFailed` names the broken rule.

The shipped parts run: the control plane with its live writer, hub and pools, and the agents with their task tables.
This module connects them, plays the clients and checks the end: when all faults are over, every job that can run must
have ended, and no machine may run a task that the server does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec

from fairlead.agent.session import KeyRenewed, Refused
from fairlead.core.commands import (
    Answer,
    BringToFront,
    Command,
    Configure,
    HoldJob,
    Kill,
    MarkReady,
    MoveNode,
    MovePool,
    ReleaseJob,
    RemoveNode,
    Requeue,
    Scale,
    ScalePool,
    SetPriority,
    Submit,
)
from fairlead.core.config import parse_partition
from fairlead.core.cycle import Cycle
from fairlead.core.documents import parse_job
from fairlead.core.invariants import check_all
from fairlead.core.model import JobSpec, Micros
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.engines.engine import Closed
from fairlead.pools.provider import ProviderError
from fairlead.wire.agent_messages import Hello
from fairlead.writer.inbox import Inbox
from fairlead.writer.writer import Writer
from tests.chaos.agents import Machine
from tests.chaos.checkers import (
    AnswerChecker,
    AttemptChecker,
    CheckFailed,
    ConnectionChecker,
    GangChecker,
    GenerationChecker,
    KeepingChecker,
    RoomChecker,
    SilenceChecker,
    StopChecker,
    check_agreement,
    check_conserving,
    need,
)
from tests.chaos.cloud import Cloud
from tests.chaos.faults import (
    AgentFault,
    CloudFault,
    Event,
    LeaderFault,
    MachineFault,
    Request,
    Scenario,
    ServerFault,
    Submission,
)
from tests.chaos.feasible import Need, could_run
from tests.chaos.leader_checker import LeaderChecker
from tests.chaos.loop import Process, VirtualLoop
from tests.chaos.network import QUICK, Line, Wire
from tests.chaos.pool_checker import PoolChecker
from tests.chaos.rebalance_checker import LoanChecker
from tests.chaos.server import PARTITION, Server
from tests.chaos.servers import Servers
from tests.chaos.start_checker import DoorChecker
from tests.chaos.tasks import Live, Task

QUIET_TIME = 10 * SECOND
"""A client without an answer repeats its request after this time."""
REPEATED = 0.1
"""Fraction of the answered requests that are sent a second time."""
LONGEST = 20_000 * SECOND
"""The trial must have ended by this time."""
SETTLING = 1_000 * SECOND
LOOKING = 3_700_000
"""Interval between comparisons of machines with the server's state, chosen not to coincide with regular timers."""
EXPECTED = (Closed, OSError, ProviderError, Refused, KeyRenewed)
"""Exceptions with which tasks of the server and of agents may end."""


class Trial:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.loop = VirtualLoop(EXPECTED)  # type: ignore[abstract]
        self.rng = Random(scenario.seed + 1)
        self.lines: list[str] = []
        self._processes: list[Process] = []
        self._done = False
        self._version = 1
        self._limit: int = scenario.config["queues"]["root"]["a"].get("limit", {}).get("cpu", 0)
        self._most: dict[str, int] = {}
        """Pool → its changed `max`; 0 if the pool is not configured."""
        config = parse_partition(scenario.config, "scenario")
        lease, heartbeat = config.settings.lease, config.settings.heartbeat
        self._jobs = {event.job: event for event in scenario.events if isinstance(event, Submission)}
        self._specs: dict[str, JobSpec] = {job: parse_job(event.document) for job, event in self._jobs.items()}
        self.attempts = AttemptChecker()
        self.answers = AnswerChecker()
        asked = {(job, stage.name): dict(stage.resources) for job, spec in self._specs.items() for stage in spec.stages}
        self._capacity = dict(scenario.nodes)
        """Capacity of each machine, including machines of pools."""
        self.rooms = RoomChecker(self._capacity, asked)
        self.generations = GenerationChecker()
        self.gangs = GangChecker(config.settings.replace_within + lease + heartbeat + 30 * SECOND)
        self.keeping = KeepingChecker()
        self.stops = StopChecker()
        self.connections = ConnectionChecker(2 * SECOND)
        self.silence = SilenceChecker(lease + heartbeat + 10 * SECOND)
        self.pools = PoolChecker()
        self.door = DoorChecker()
        self.loans = LoanChecker()
        self.cloud = Cloud(self, scenario.seed, scenario.config.get("pools", {}))
        self.leaders = LeaderChecker(PARTITION, self.loop.time)
        self.machines: dict[str, Machine] = {}
        self.server: Server | Servers
        if scenario.servers == 1:
            self.server = Server(self, config, self, self.cloud.provider)
        else:
            self.server = Servers(
                self, config, self, self.cloud.provider, scenario.servers, self.leaders, self.machines.values
            )
        self.servers = ",".join(f"server {at}" for at in range(scenario.servers))
        self._booted = 0

    @property
    def now(self) -> Micros:
        return round(self.loop.time() * SECOND)

    def run(self) -> None:
        """Run the scenario. `CheckFailed` and any other exception is a fault of Fairlead."""
        try:
            self.at(0, self._begin)
            self.loop.run(lambda: self._done)
            self._check_end()
        finally:
            self.server.end()
            self.loop.end(self._processes)

    def _begin(self) -> None:
        self.server.start()
        self._request(MarkReady(operator=True), "")
        for name, resources in self.scenario.nodes.items():
            self.machines[name] = Machine(self, Hello(name, dict(resources)))
        for event in self.scenario.events:
            self.at(event.at, lambda event=event: self._happen(event))  # type: ignore[misc]
        over = max((_over(event) for event in self.scenario.events), default=0)
        quiet = over + SETTLING
        self.at(over + SETTLING // 10, self._put_right)  # after requests that were repeated while the server was down
        self.at(quiet, self._kill_what_cannot_run)
        self.at(over + SETTLING // 5, self._look_for_end)
        self.at(LOOKING, self._compare)

    # -- connections --------------------------------------------------------------------------------------------

    def at(self, when: Micros, what: Callable[[], None]) -> None:
        self.loop.world_at(max(when / SECOND, self.loop.time()), what)

    def new_process(self, name: str) -> Process:
        process = Process(self.loop, name)
        self._processes.append(process)
        return process

    def connect(self, line: Line, agent: Process, turn: int) -> Wire | None:
        server = self.server.listen(turn)
        if server is None:
            return None
        wire = Wire(self.loop, self.rng, line, agent, server, ConnectionError, Closed)
        self.server.serve(wire.server)
        return wire

    def obeyed(self, node: str, epoch: int, server: str) -> None:
        try:
            self.leaders.obeyed(node, epoch, server)
        except CheckFailed as problem:
            self.loop.fail(problem)
            raise

    def hung_up(self, server: Process) -> None:
        for machine in self.machines.values():
            machine.hung_up(server)

    def boot(self, name: str, pool: str) -> Machine:
        """Start a machine of a pool."""
        resources = self.scenario.config["pools"][pool]["node"]
        self._capacity[name] = resources
        self._booted += 1
        self.machines[name] = Machine(self, Hello(name, dict(resources), pool=pool), 1_000 * self._booted)
        return self.machines[name]

    def unplug(self, name: str) -> None:
        self.machines.pop(name).vanish()

    def failed(self, names: Sequence[str]) -> None:
        self.cloud.check_failed(names)

    def duration(self, task: Task) -> Micros:
        at = [stage.name for stage in self._specs[task.job].stages].index(task.stage)
        return self._jobs[task.job].durations[at]

    def exit_code(self, task: Task, attempt: int) -> int:
        text = f"{self.scenario.seed} {task.job} {task.stage} {task.index} {attempt}"
        drawn = int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") % 100
        return 1 if drawn < self._jobs[task.job].failing else 0

    def log(self, text: str) -> None:
        self.lines.append(f"{self.loop.time():10.3f}  {text}")

    # -- events --------------------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if isinstance(event, Submission):
            self.log(f"submit {event.job}: {event.document['stages']} gang {event.document['gang']}")
            spec = self._specs[event.job]
            self._request(
                Submit(spec=spec, id=event.job, user=spec.user, key=f"submit {event.job}", operator=True),
                f"submit {event.job}",
                event.job,
            )
        elif isinstance(event, AgentFault):
            self.log(f"{event.node}: {event.what} for {event.lasts / SECOND:.1f} s")
            self.machines[event.node].inject(event.what, event.lasts / SECOND)
        elif isinstance(event, ServerFault):
            if self.server.is_up and self.server.fault is None:
                self.server.fault = event
        elif isinstance(event, LeaderFault):
            assert isinstance(self.server, Servers)
            self.server.inject(event)
        elif isinstance(event, CloudFault):
            self.log(f"the cloud: {event.what} for {event.lasts / SECOND:.1f} s")
            self.cloud.inject(event.what, event.lasts / SECOND)
        elif isinstance(event, MachineFault):
            names = sorted(self.cloud.booted)
            if names:
                self._fail_machine(names[event.which % len(names)], event)
        elif event.what == "remove":
            self._remove(event.target, event.value * 20 * SECOND)
        else:
            self.log(f"{event.what} {event.target} {event.value}")
            self._request(self._command(event), "")

    def _fail_machine(self, name: str, event: MachineFault) -> None:
        if event.what == "vanish":
            self.cloud.vanish(name)
        elif event.what == "remove":
            self._remove(name, event.lasts)
        elif event.what == "drain":
            self._happen(Request(event.at, "drain", name))
        elif event.what == "disable":
            self._happen(Request(event.at, "disable", name))
        else:
            self._happen(AgentFault(event.at, name, event.what, event.lasts))

    def _remove(self, node: str, back_after: Micros) -> None:
        """Switch a machine off and remove its node. Sent once, because at a second try the machine may be up again."""
        self.log(f"{node} is switched off and removed")
        self.machines[node].inject("crash", back_after / SECOND)
        self.server.execute(RemoveNode(name=node, operator=True), lambda answer: None)

    def _command(self, event: Request) -> Command:
        target, value = event.target, event.value
        if event.what == "kill":
            return Kill(job=target, operator=True)
        if event.what == "scale":
            return Scale(job=target, stage="s0", count=value, operator=True)
        if event.what == "priority":
            return SetPriority(job=target, priority=value, operator=True)
        if event.what == "front":
            return BringToFront(job=target, stage="s0", operator=True)
        if event.what == "hold":
            return HoldJob(job=target, operator=True)
        if event.what == "release":
            return ReleaseJob(job=target, operator=True)
        if event.what == "requeue":
            return Requeue(job=target, operator=True)
        if event.what == "configure":
            self._limit = value
            return self._configure()
        if event.what == "resize pool":
            self._most[target] = value
            return self._configure()
        if event.what == "scale pool":
            return ScalePool(pool=target, nodes=value, operator=True)
        if event.what in ("pause pool", "resume pool"):
            return MovePool(pool=target, action="pause" if event.what == "pause pool" else "resume", operator=True)
        assert event.what in ("drain", "disable", "enable")
        return MoveNode(name=target, action=event.what, operator=True)

    def _configure(self) -> Configure:
        """Return the configuration with the current limit and pool sizes."""
        document = dict(self.scenario.config)
        queues: dict[str, Mapping[str, Any]] = dict(document["queues"]["root"])
        queues["a"] = {key: value for key, value in queues["a"].items() if key != "limit"}
        if self._limit:
            queues["a"] = {**queues["a"], "limit": {"cpu": self._limit}}
        document["queues"] = {"root": queues}
        if "pools" in document:
            most = {name: self._most.get(name, pool["max"]) for name, pool in document["pools"].items()}
            document["pools"] = {
                name: {**pool, "max": max(most[name], pool.get("min", 0))}
                for name, pool in document["pools"].items()
                if most[name]
            }
        self._version += 1
        return Configure(config=parse_partition(document, "scenario"), version=self._version, operator=True)

    def _request(self, command: Command, key: str, job: str = "") -> None:
        """Send a command until it is answered, and sometimes once more."""
        done: list[Answer] = []

        def reply(answer: Answer) -> None:
            done.append(answer)
            self.log(f"{type(command).__name__} {job}: {answer}")
            if key:
                self.answers.answered(key, answer, job)

        def send() -> None:
            if not done or (len(done) == 1 and key and self.rng.random() < REPEATED):
                self.loop.world_at(self.loop.time() + self.rng.random() * QUICK, self.server.execute, command, reply)
                self.at(self.now + QUIET_TIME, send)

        send()

    # -- watching ------------------------------------------------------------------------------------------------

    def began(self, partition: Partition) -> None:
        self.answers.seen(
            partition, partition.jobs
        )  # no observer was called if the last write was reported as failed but was durable
        self.answers.check(partition)
        self.pools.began(partition)
        self.door.began(partition)
        self.loans.began(partition)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        self.answers.seen(decided.plan.partition, decided.plan.partition.touched.jobs)
        self.pools.decided(decided.plan.partition, decided.changes, decided.commands)
        self.door.cycle(decided, seconds)
        self.loans.decided(decided.plan)
        self.connections.decided(decided.plan.partition, decided.changes, self.server.connected, self.now)
        self.silence.decided(decided.plan.partition)

    def stopped(self, partition: Partition, why: str) -> None:
        """Do nothing: `began` checks the next writer."""

    def turned(self, writer: Writer, inbox: Inbox, now: Micros, changed: bool) -> None:
        """Check the state after a turn; `now` is the server's time, `changed` is true if the turn made changes."""
        partition = writer.partition
        if changed:
            check_all(partition, settled=not writer.more)
        self.answers.check(partition)
        self.answers.check_ends(partition, self.attempts.succeeded)
        settled = not writer.more and not inbox.waiting
        if settled:
            check_conserving(partition)
        self.loans.look(partition, now, settled)
        self.keeping.check(partition, now)
        self.pools.check(partition, now)
        self._watch_gangs()

    def _compare(self) -> None:
        """Check that machines with no message under way run the tasks that the server expects."""
        need(self.now < LONGEST, f"it does not end: {self._unended()} {self._unsettled()}")
        self.at(self.now + LOOKING, self._compare)
        if self.loop.is_idle and self.server.is_settled:
            quiet = [machine for machine in self.machines.values() if machine.is_quiet and self.server.serves(machine)]
            for machine in quiet:
                check_agreement(self.server.partition, machine)
            self.stops.look(self.server.partition, [machine.name for machine in quiet])
        if self.server.is_up:
            down = [machine.name for machine in self.machines.values() if machine.has("crash")]
            self.silence.look(self.server.partition, down, LOOKING)

    def _watch_gangs(self) -> None:
        """Check gangs. Called whenever tasks start or end."""
        if self.server.is_up:
            partition = self.server.partition
            in_touch = partition.readiness.ready and all(
                machine.in_touch and self.server.serves(machine) for machine in self.machines.values()
            )
            self.gangs.check(partition, self.attempts.live, self.now, in_touch)
            self.generations.check(partition)

    def started(self, node: str, live: Live) -> None:
        self.log(f"{node} starts {live.task.job} {live.task.stage}[{live.task.index}] attempt {live.attempt}")
        self.attempts.started(node, live)
        self._watch_gangs()
        self.rooms.check(self.machines[node])

    def ended(self, node: str, live: Live, how: str) -> None:
        self.log(f"{node}: {live.task.job} {live.task.stage}[{live.task.index}] attempt {live.attempt} {how}")
        self.attempts.ended(live, how)
        self._watch_gangs()

    # -- the end -------------------------------------------------------------------------------------------------

    def _unended(self) -> list[str]:
        return sorted(self.answers.accepted.keys() - self.answers.over)

    def _unsettled(self) -> str:
        return self.pools.unsettled(self.server.partition) if self.server.is_up else ""

    def _is_over(self) -> bool:
        busy = any(
            machine.running or not machine.is_quiet or not self.server.serves(machine)
            for machine in self.machines.values()
        )
        if busy or self._unended() or not self.server.is_settled:
            return False
        return not self.pools.unsettled(self.server.partition)

    def _look_for_end(self) -> None:
        if self._is_over():
            self.server.check_readers(self._end)
        else:
            self.at(self.now + LOOKING, self._look_for_end)

    def _end(self) -> None:
        self._done = True

    def _put_right(self) -> None:
        """Enable all nodes, resume all pools, release all jobs and remove limits, so that every job can end."""
        for node in self.machines:
            self._happen(Request(self.now, "enable", node))
        for pool in self.cloud.pools:
            self._happen(Request(self.now, "resume pool", pool))
        for job in self._jobs:
            self._happen(Request(self.now, "release", job))
        self._most.clear()
        self._happen(Request(self.now, "configure", "", 0))

    def _kill_what_cannot_run(self) -> None:
        if not self.server.is_up:
            self.at(self.now + QUIET_TIME, self._kill_what_cannot_run)
            return
        for job_id in self._unended():
            job = self.server.partition.jobs[job_id]
            needs = [Need(stage) for stage in job.stages]
            # Stages that start together are placed one after the other, so whether they fit depends on the placement.
            mixed = self.cloud.pools and job.whole and len({need.kind for need in needs}) > 1
            if mixed or not could_run(self.scenario, needs):
                self._request(Kill(job=job_id, operator=True), "")

    def _check_end(self) -> None:
        partition = self.server.partition
        need(
            not partition.allocations and not partition.lanes, "something is allocated or asked for, and no job is left"
        )
        need(not self.attempts.live, f"tasks still run after the end: {self.attempts.live}")
        for machine in self.machines.values():
            check_agreement(partition, machine)


def _over(event: Event) -> Micros:
    if isinstance(event, AgentFault | LeaderFault | CloudFault | MachineFault):
        return event.at + event.lasts
    return event.at + (event.down if isinstance(event, ServerFault) else 0)


class Failure(msgspec.Struct, frozen=True):
    scenario: Scenario
    problem: str
    lines: list[str]


def try_out(scenario: Scenario) -> Failure | None:
    """Run a scenario; return the failure, or None."""
    trial = Trial(scenario)
    try:
        trial.run()
    except Exception as problem:
        return Failure(scenario, f"{type(problem).__name__}: {problem}", trial.lines)
    return None
