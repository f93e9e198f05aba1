"""A trial: a scenario played out on a virtual clock, with everybody watching. `Broken` says what does not hold.

Here are the wires between the server and the agents, the clients, and the end: when all trouble is over, every job that
can run must have ended, and nobody may run anything that the other side does not know of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from fairlead.core.changes import NodeSpec
from fairlead.core.commands import (
    AddNode,
    Answer,
    AnyCommand,
    BringToFront,
    Configure,
    Kill,
    MarkReady,
    MoveNode,
    MovePool,
    RemoveNode,
    Scale,
    ScalePool,
    SetPriority,
    Submit,
)
from fairlead.core.config import parse_partition
from fairlead.core.cycle import Cycle
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.invariants import check_all
from fairlead.core.model import JobSpec
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.sim.agents import QUICK, Agent, Live, Micros, Task
from fairlead.sim.checkers import (
    AnswerChecker,
    AttemptChecker,
    GangChecker,
    KeepingChecker,
    RoomChecker,
    check_agreement,
    check_conserving,
    need,
)
from fairlead.sim.cloud import Cloud
from fairlead.sim.doorchecker import DoorChecker
from fairlead.sim.faults import (
    AgentTrouble,
    Asking,
    CloudTrouble,
    Event,
    MachineTrouble,
    Scenario,
    ServerTrouble,
    Submission,
)
from fairlead.sim.feasible import Need, could_run
from fairlead.sim.loanchecker import LoanChecker
from fairlead.sim.poolchecker import PoolChecker
from fairlead.sim.server import Item, Server

QUIET_TIME = 10 * SECOND
"""A client without an answer asks again after this."""
REPEATED = 0.1
"""So many of the requests are made once more although they were answered."""
LONGEST = 20_000 * SECOND
"""By then everything must be over."""
SETTLING = 1_000 * SECOND


class Trial:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.now: Micros = 0
        self.rng = Random(scenario.seed + 1)
        self.lines: list[str] = []
        self._heap: list[tuple[Micros, int, Callable[[], None]]] = []
        self._count = 0
        self._under_way: dict[str, int] = defaultdict(int)
        """Messages between the server and each agent."""
        self._received: dict[str, Micros] = {}
        """When the last message from the server arrives, so that they stay in order."""
        self._done = False
        self._version = 1
        self._limit: int = scenario.config["queues"]["root"]["a"].get("limit", {}).get("cpu", 0)
        self._most: dict[str, int] = {}
        """Pool → how many nodes it may have, where that is not what it was; 0 if it is not configured."""
        self.config = parse_partition(scenario.config, "scenario")
        self.lease, self.heartbeat = self.config.settings.lease, self.config.settings.heartbeat
        self._jobs = {event.job: event for event in scenario.events if isinstance(event, Submission)}
        self._specs: dict[str, JobSpec] = {job: parse_job(event.document) for job, event in self._jobs.items()}
        self._nodes: dict[str, NodeSpec] = dict(
            parse_node({"name": name, "resources": resources}) for name, resources in scenario.nodes.items()
        )
        self.attempts = AttemptChecker()
        self.answers = AnswerChecker()
        asked = {(job, stage.name): dict(stage.resources) for job, spec in self._specs.items() for stage in spec.stages}
        self._capacity = dict(scenario.nodes)
        """What each machine has, those of pools too."""
        self.rooms = RoomChecker(self._capacity, asked)
        self.gangs = GangChecker(self.config.settings.replace_within + self.lease + self.heartbeat + 30 * SECOND)
        self.keeping = KeepingChecker()
        self.pools = PoolChecker()
        self.door = DoorChecker()
        self.loans = LoanChecker()
        self.cloud = Cloud(self, scenario.seed, scenario.config.get("pools", {}))
        self.server = Server(self, self)
        self.agents: dict[str, Agent] = {}
        self._booted = 0

    def run(self) -> None:
        """Play it out; `Broken` and any other error says that something is wrong with us."""
        self.server.start()
        self._request(Configure(config=self.config, version=1, operator=True), "")
        self._request(MarkReady(operator=True), "")
        self.agents = {name: Agent(name, self) for name in self.scenario.nodes}
        for event in self.scenario.events:
            self.at(event.at, lambda event=event: self._happen(event))  # type: ignore[misc]
        over = max((_over(event) for event in self.scenario.events), default=0)
        quiet = over + SETTLING
        self.at(over + SETTLING // 10, self._put_right)  # when also what was asked while the server was down is done
        self.at(quiet, self._kill_what_cannot_run)
        self.at(quiet + SECOND, self._look_for_end)
        while not self._done:
            self.now, _, what = heappop(self._heap)
            need(self.now < LONGEST, f"it does not end: {self._unended()} {self._unsettled()}")
            what()
        self._check_end()

    # -- the wires -----------------------------------------------------------------------------------------------

    def at(self, when: Micros, what: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (max(when, self.now), self._count, what))

    def to_server(self, agent: Agent, what: str, body: Any, when: Micros, link: int) -> None:
        sent = self.now
        self._under_way[agent.name] += 1

        def arrive() -> None:
            self._under_way[agent.name] -= 1
            if self.server.writer is None:
                agent.drop_link("the server is down")
            elif what == "register":
                command = AddNode(name=agent.name, spec=self._nodes[agent.name], operator=True)
                self.server.offer(Item(command, lambda answer: None, link, sent))
            elif agent.link != link or self.server.links.get(agent.name) != link:
                if agent.link == link:
                    agent.drop_link("the server does not know it")
            else:
                self.server.hear(agent.name)
                self._hear(agent, what, body)

        self.at(when, arrive)

    def _hear(self, agent: Agent, what: str, body: Any) -> None:
        if what == "heartbeat":
            self.to_agent(agent.name, "alive", body)
        else:
            number, report = body
            self.server.offer(Item(report, lambda answer: self.to_agent(agent.name, "confirm", [number])))

    def to_agent(self, node: str, what: str, body: Any) -> None:
        """In order, while the link stands. An agent that hangs takes it when it is back."""
        agent, link = self.agents.get(node), self.server.links.get(node)
        if agent is None or link is None:
            return
        when = max(self.now + self.rng.randrange(QUICK), self._received.get(node, 0) + 1)
        self._received[node] = when
        self._under_way[node] += 1

        def arrive() -> None:
            if agent.has("hang") and agent.link == link:
                self.at(agent.until["hang"], arrive)
                return
            self._under_way[node] -= 1
            if what == "welcome":
                agent.welcomed(*body)
            elif agent.link != link:
                return
            elif what == "work":
                agent.receive(body)
            elif what == "alive":
                agent.answered(body)
            else:
                agent.confirmed(body)

        self.at(when, arrive)

    def to_pool(self, pool: str) -> None:
        self.cloud.wake(pool)

    def tell(self, command: AnyCommand) -> None:
        """What the cloud has to say. What is lost it says again, if it is still so."""
        self.server.offer(Item(command, lambda answer: self.log(f"{type(command).__name__}: {answer}")))

    def reigning(self) -> Partition | None:
        return None if self.server.writer is None else self.server.partition

    def boot(self, name: str, pool: str) -> Agent:
        """A machine of a pool is up."""
        resources = self.scenario.config["pools"][pool]["node"]
        self._capacity[name] = resources
        _, self._nodes[name] = parse_node({"name": name, "resources": resources, "pool": pool})
        self._booted += 1
        self.agents[name] = Agent(name, self, 10_000 * self._booted)
        return self.agents[name]

    def unplug(self, name: str) -> None:
        self.agents.pop(name).vanish()

    def duration(self, task: Task) -> Micros:
        at = [stage.name for stage in self._specs[task.job].stages].index(task.stage)
        return self._jobs[task.job].durations[at]

    def exit_code(self, task: Task, attempt: int) -> int:
        text = f"{self.scenario.seed} {task.job} {task.stage} {task.index} {attempt}"
        drawn = int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "big") % 100
        return 1 if drawn < self._jobs[task.job].failing else 0

    def log(self, text: str) -> None:
        self.lines.append(f"{self.now / SECOND:10.3f}  {text}")

    # -- what happens --------------------------------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if isinstance(event, Submission):
            self.log(f"submit {event.job}: {event.document['stages']} gang {event.document['gang']}")
            spec = self._specs[event.job]
            self._request(
                Submit(spec=spec, id=event.job, user=spec.user, key=f"submit {event.job}"),
                f"submit {event.job}",
                event.job,
            )
        elif isinstance(event, AgentTrouble):
            self.log(f"{event.node}: {event.what} for {event.lasts / SECOND:.1f} s")
            self.agents[event.node].trouble(event.what, event.lasts)
        elif isinstance(event, ServerTrouble):
            if self.server.writer is not None and self.server.trouble is None:
                self.server.trouble = event
        elif isinstance(event, CloudTrouble):
            self.log(f"the cloud: {event.what} for {event.lasts / SECOND:.1f} s")
            self.cloud.trouble(event.what, event.lasts)
        elif isinstance(event, MachineTrouble):
            names = sorted(self.cloud.agents)
            if names:
                self._trouble_machine(names[event.which % len(names)], event)
        elif event.what == "remove":
            self._remove(event.target, event.value * 20 * SECOND)
        else:
            self.log(f"{event.what} {event.target} {event.value}")
            self._request(self._command(event), "")

    def _trouble_machine(self, name: str, event: MachineTrouble) -> None:
        if event.what == "vanish":
            self.cloud.vanish(name)
        elif event.what == "remove":
            self._remove(name, event.lasts)
        elif event.what == "drain":
            self._happen(Asking(event.at, "drain", name))
        elif event.what == "disable":
            self._happen(Asking(event.at, "disable", name))
        else:
            self._happen(AgentTrouble(event.at, name, event.what, event.lasts))

    def _remove(self, node: str, back_after: Micros) -> None:
        """Only once: by the time of a second try the machine may be back at work."""
        self.log(f"{node} is switched off and removed")
        self.agents[node].trouble("crash", back_after)
        self.server.offer(Item(RemoveNode(name=node, operator=True), lambda answer: None))

    def _command(self, event: Asking) -> AnyCommand:
        target, value = event.target, event.value
        if event.what == "kill":
            return Kill(job=target, operator=True)
        if event.what == "scale":
            return Scale(job=target, stage="s0", count=value, operator=True)
        if event.what == "priority":
            return SetPriority(job=target, priority=value, operator=True)
        if event.what == "front":
            return BringToFront(job=target, stage="s0", operator=True)
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
        """The configuration as it is now wanted."""
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

    def _request(self, command: AnyCommand, key: str, job: str = "") -> None:
        """Ask until there is an answer, and sometimes once more."""
        done: list[Answer] = []

        def reply(answer: Answer) -> None:
            done.append(answer)
            self.log(f"{type(command).__name__} {job}: {answer}")
            if key:
                self.answers.answered(key, answer, job)

        def send() -> None:
            if not done or (len(done) == 1 and key and self.rng.random() < REPEATED):
                self.at(self.now + self.rng.randrange(QUICK), lambda: self.server.offer(Item(command, reply)))
                self.at(self.now + QUIET_TIME, send)

        send()

    # -- watching ------------------------------------------------------------------------------------------------

    def began(self, partition: Partition) -> None:
        self.answers.seen(partition, partition.jobs)  # the last cycle may have been written without a word
        self.answers.check(partition)
        self.pools.began(partition)
        self.door.began(partition)
        self.loans.began(partition)
        self.at(self.now, self.cloud.begin)

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        self.answers.seen(decided.plan.partition, decided.plan.partition.touched.jobs)
        self.pools.decided(decided.plan.partition, decided.changes)
        self.door.cycle(decided, seconds)

    def stopped(self, partition: Partition, why: str) -> None:
        """Whoever starts next is checked."""

    def turned(self, partition: Partition, now: Micros) -> None:
        """A turn is over; `now` is the time by the server's clock."""
        assert self.server.writer is not None
        check_all(partition, settled=not self.server.writer.more)
        self.answers.check(partition)
        self.answers.check_ends(partition, self.attempts.succeeded)
        settled = not self.server.writer.more and not self.server.inbox
        if settled:
            check_conserving(partition)
        self.loans.look(partition, now, settled)
        self.keeping.check(partition, now)
        self.pools.check(partition, now)
        self._watch_gangs()
        waiting = {getattr(item.command, "node", "") for item in self.server.inbox}
        for agent in self.agents.values():
            known = self.server.links.get(agent.name) == agent.link != 0
            if known and not self._under_way[agent.name] and not agent.outbox and agent.name not in waiting:
                check_agreement(partition, agent)

    def _watch_gangs(self) -> None:
        """Whenever tasks start or end: in between they are as many as they were."""
        if self.server.writer is not None:
            partition = self.server.partition
            in_touch = partition.reign.ready and all(self._in_touch(agent) for agent in self.agents.values())
            self.gangs.check(partition, self.attempts.live, self.now, in_touch)

    def _in_touch(self, agent: Agent) -> bool:
        return bool(agent.link) and not any(agent.has(trouble) for trouble in agent.until)

    def started(self, agent: Agent, live: Live) -> None:
        self.log(f"{agent.name} starts {live.task.job} {live.task.stage}[{live.task.index}] attempt {live.attempt}")
        self.attempts.started(agent, live)
        self._watch_gangs()
        self.at(self.now, lambda: self.rooms.check(agent))

    def ended(self, agent: Agent, live: Live, how: str) -> None:
        self.log(f"{agent.name}: {live.task.job} {live.task.stage}[{live.task.index}] attempt {live.attempt} {how}")
        self.attempts.ended(live, how)
        self._watch_gangs()

    # -- the end -------------------------------------------------------------------------------------------------

    def _unended(self) -> list[str]:
        return sorted(self.answers.accepted.keys() - self.answers.over)

    def _unsettled(self) -> str:
        return "" if self.server.writer is None else self.pools.unsettled(self.server.partition)

    def _is_over(self) -> bool:
        busy = any(agent.running or agent.outbox for agent in self.agents.values())
        if busy or self._unended() or self.server.writer is None or self.server.inbox:
            return False
        return not self.pools.unsettled(self.server.partition)

    def _look_for_end(self) -> None:
        if self._is_over():
            self._done = True
        else:
            self.at(self.now + QUIET_TIME, self._look_for_end)

    def _put_right(self) -> None:
        """Whatever was switched off or limited is not any more, so that every job can end."""
        for node in self.agents:
            self._happen(Asking(self.now, "enable", node))
        for pool in self.cloud.pools:
            self._happen(Asking(self.now, "resume pool", pool))
        self._most.clear()
        self._happen(Asking(self.now, "configure", "", 0))

    def _kill_what_cannot_run(self) -> None:
        if self.server.writer is None:
            self.at(self.now + QUIET_TIME, self._kill_what_cannot_run)
            return
        for job_id in self._unended():
            job = self.server.partition.jobs[job_id]
            needs = [Need(stage) for stage in job.stages]
            # Stages that start together are placed one after the other; what fits in one way may not in another.
            mixed = self.cloud.pools and job.whole and len({each.kind for each in needs}) > 1
            if mixed or not could_run(self.scenario, needs):
                self._request(Kill(job=job_id, operator=True), "")

    def _check_end(self) -> None:
        partition = self.server.partition
        need(
            not partition.allocations and not partition.lanes, "something is allocated or asked for, and no job is left"
        )
        need(not self.attempts.live, f"somebody still runs {self.attempts.live}")
        for agent in self.agents.values():
            check_agreement(partition, agent)


def _over(event: Event) -> Micros:
    if isinstance(event, AgentTrouble | CloudTrouble | MachineTrouble):
        return event.at + event.lasts
    return event.at + (event.down if isinstance(event, ServerTrouble) else 0)


class Failure(msgspec.Struct, frozen=True):
    scenario: Scenario
    problem: str
    lines: list[str]


def try_out(scenario: Scenario) -> Failure | None:
    """Play a scenario out; what went wrong, if anything did."""
    trial = Trial(scenario)
    try:
        trial.run()
    except Exception as problem:
        return Failure(scenario, f"{type(problem).__name__}: {problem}", trial.lines)
    return None
