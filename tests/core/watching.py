"""Checkers that are not the code under test: agents that count what they run, and a search over all nodes.

`Watch` is a fleet that adds up what its nodes run, from the messages it gets. `Play` performs drawn steps in a World
with such a fleet and checks the end of every instant: no allowed head fits, and no gang runs in part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from fairlead.core.commands import Command, Rejected, Report
from fairlead.core.effects import ForNode, Launch
from fairlead.core.model import NEW, SCALE, Account, Ask, Promise
from fairlead.core.ranges import indices
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.sim.fleet import Fleet
from fairlead.testing import World

Step = tuple[Any, ...]

LAUNCH_TIMEOUT = 5 * SECOND
REPLACE_WITHIN = 10 * SECOND
SETTINGS: dict[str, Any] = {
    "launch_timeout": "5s",
    "replace_within": "10s",
    "max_launch_tries": 1000,
    "lease": "6s",
    "heartbeat": "1s",
    "ready_after": "1h",
    "queues": {
        "root": {
            "limit": {"cpu": 11},
            "a": {"users": {"ann": {"limit": {"cpu": 5}}}},
            "b": {"order": "fair", "max_jobs": 3},
        }
    },
}
UNLIMITED: dict[str, Any] = {"queues": {"root": {"a": {}, "b": {"order": "fair"}}}}
NODES: dict[str, dict[str, Any]] = {
    "n0": {"cpu": 4},
    "n1": {"cpu": 4, "gpu": 2},
    "n2": {"cpu": 3, "labels": {"zone": "z"}},
    "n3": {"cpu": 2, "gpu": 1},
}


class Wanted(msgspec.Struct):
    """What a job asked for, as its submitter remembers it, and what the agents saw of it."""

    count: int
    least: int
    cpu: int
    gpu: int
    """In thousandths, as one task has it."""
    on_loss: str
    loose: bool
    """True if the job was scaled, or its tasks are tried again one by one: then parts of it may run."""
    done: set[int] = msgspec.field(default_factory=set)
    whole: bool = False
    """True if enough tasks ran together, and the gang has not been given up since."""
    short_since: int | None = None


class Watch(Fleet):
    """Agents that notice when a launch does not fit, or when a task runs in two places."""

    def __init__(self, wanted: dict[str, Wanted], nodes: dict[str, dict[str, Any]]) -> None:
        super().__init__()
        self.wanted = wanted
        self.nodes = nodes
        self.devices: dict[tuple[str, int, int], tuple[int, ...]] = {}
        """(Job, attempt, index) → the devices it was given."""
        self.starts: Counter[tuple[str, int]] = Counter()
        """(Job, index) → how often an agent was told to start it, other than by the same message again."""
        self.silent_launches: dict[tuple[str, int, int], tuple[str, int]] = {}
        """(Job, attempt, index) → a silent node, and when."""

    def deliver(self, effects: Iterable[object], now: int) -> None:
        effects = list(effects)
        messages = [effect for effect in effects if isinstance(effect, ForNode)]
        new = [
            message.node
            for message in messages
            if any([self._note(message.node, one, now) for one in message.launches])
        ]
        super().deliver(effects, now)
        for node in new:
            if node not in self._silent:
                self._check_room(node)

    def reports(self, now: int) -> list[Command]:
        due = super().reports(now)
        for each in due:
            if isinstance(each, Report) and each.state == "succeeded":
                self.wanted[each.job].done.update(indices(each.indices))
        return due

    def on(self, node: str) -> list[tuple[str, int, int]]:
        """What a node runs, or holds back: job, attempt, index."""
        blocks = [(each.job, each.attempt, each.indices) for each in self.at_work() if each.node == node]
        blocks += [(each.job, each.attempt, each.indices) for each in self._held.get(node, ()) if not each.slots]
        return sorted({(job, attempt, index) for job, attempt, block in blocks for index in indices(block)})

    def held(self) -> set[str]:
        return {launch.job for launches in self._held.values() for launch in launches}

    def is_silent(self, node: str) -> bool:
        return node in self._silent

    def _note(self, node: str, launch: Launch, now: int) -> bool:
        """Record a launch; return True if it is new. After a restart, standing launches are sent again."""
        new = False
        each_has = len(launch.devices) // max(1, len(list(indices(launch.indices))))
        for at, index in enumerate(indices(launch.indices)):
            key = (launch.job, launch.attempt, index)
            if key not in self.devices:
                self.starts[launch.job, index] += 1
                new = True
            self.devices[key] = launch.devices[at * each_has : (at + 1) * each_has]
            if node in self._silent:
                self.silent_launches.setdefault(key, (node, now))
            else:
                self.silent_launches.pop(key, None)
        return new

    def _check_room(self, node: str) -> None:
        cpu = 0
        devices: Counter[int] = Counter()
        for job, attempt, index in self.on(node):
            wanted = self.wanted[job]
            cpu += wanted.cpu
            given = self.devices[job, attempt, index]
            assert len(given) * 1000 == wanted.gpu if wanted.gpu >= 1000 else len(given) == bool(wanted.gpu)
            for device in given:
                devices[device] += min(wanted.gpu, 1000)
        has = self.nodes[node]
        assert cpu <= has["cpu"], f"{node} has {has['cpu']} cpu and was given {cpu}: {self.on(node)}"
        assert all(device < has.get("gpu", 0) and used <= 1000 for device, used in devices.items()), (node, devices)


class Play:
    """A world and drawn steps for it. Jobs are chosen by number among all that were submitted.

    With `restarts` the control plane restarts after every cycle.
    """

    def __init__(self, *, looking: bool = True, restarts: bool = False, **settings: Any) -> None:
        self.looking = looking
        self.restarts = restarts
        self.w = World({**SETTINGS, **settings})
        self.jobs: dict[str, Wanted] = {}
        self.nodes = {name: dict(has) for name, has in NODES.items()}
        self.agents = self.w.fleets["default"] = Watch(self.jobs, self.nodes)
        for name, has in self.nodes.items():
            self.w.node(name, **has)
        self.w.cycle()
        self.w.answers()

    def run(self, steps: Iterable[Step]) -> Play:
        for step in steps:
            self.do(*step)
        return self

    def do(self, name: str, *given: Any) -> None:
        """Do a step and the cycles of its instant, and check the world."""
        getattr(self, f"_{name}")(*given)
        again = self.restarts and self.w._next_due() in (0, self.w.now)
        while again:
            self.w.cycle()
            again = self.w._next_due() in (0, self.w.now)  # after a start there is always a cycle
            self.w.restart()
        self.w.advance(0)
        if self.looking:
            self.look()

    # -- steps ---------------------------------------------------------------------------------------------------

    def _submit(self, document: dict[str, Any], times: int = 1) -> None:
        asked = [self._ask(document) for _ in range(times)]
        self.w.cycle()
        # If the journal was broken, only the state says whether the job exists.
        for job, answer in zip(asked, self.w.answers()[-times:], strict=True):
            if isinstance(answer, Rejected) and job not in self.w.partition().jobs:
                del self.jobs[job]

    def _ask(self, document: dict[str, Any]) -> str:
        document = dict(document)
        stage = {key: document.pop(key) for key in STAGE_KEYS if key in document}
        gpu = stage.pop("gpu", None)
        cpu = stage.pop("cpu")
        stage["resources"] = {"cpu": cpu, **({"gpu": gpu} if gpu is not None else {})}
        job = self.w.submit(name="j", stages=[{"name": "w", **stage}], **document)
        least = stage.get("min") or stage["count"]
        loose = stage.get("tries", 1) > 1
        strict = stage["count"] > 1 and least == stage["count"]
        on_loss = stage.get("on_loss", "restart" if strict else "replace")
        milli = round(1000 * float(gpu or 0))
        self.jobs[job] = Wanted(stage["count"], least, cpu, milli, on_loss, loose)
        return job

    def _finish(self, number: int, code: int) -> None:
        live = [
            (job, index)
            for job, wanted in self.jobs.items()
            for _, _, index, node in self._running(job)
            if not self.agents.is_silent(node) and index not in wanted.done and job not in self.agents.held()
        ]
        if live:
            job, index = live[number % len(live)]
            self.w.finish(job, "w", index, code)
            wanted = self.jobs[job]
            if code == 0 or not wanted.loose:
                wanted.done.add(index)

    def _kill(self, number: int) -> None:
        if self.jobs:
            self.w.kill([*self.jobs][number % len(self.jobs)])

    def _scale(self, number: int, count: int) -> None:
        if self.jobs:
            job = [*self.jobs][number % len(self.jobs)]
            self.jobs[job].loose = True
            self.w.scale(job, "w", count)

    def _agent(self, action: str, node: str) -> None:
        """hold_acks, release_acks, refuse_launches, silence, fail_node, return_node, drain, enable, remove_node."""
        if action == "hold_acks" and self.agents.is_silent(node):
            return
        getattr(self.w, action)(node)
        if action == "remove_node":
            self.w.cycle()
            self.w.return_node(node)  # another machine of that name
            self.w.node(node, **self.nodes[node])

    def _resize(self, node: str, cpu: int) -> None:
        self.nodes[node]["cpu"] = cpu
        self.w.update_node(node, cpu=cpu)

    def _limit(self, queue: str, cpu: int | None) -> None:
        self.w.queue(f"root.{queue}", **({} if cpu is None else {"limit": {"cpu": cpu}}))

    def _break(self, how: str, document: dict[str, Any]) -> None:
        kind, _, written = how.partition(", ")
        self.w.break_journal(kind, bool(written))  # type: ignore[arg-type]
        self._submit(document)

    def _restart(self) -> None:
        self.w.restart()

    def _advance(self, seconds: int) -> None:
        # An agent that starts a task that was taken back overlaps until it stops it: test_stories.py tests that.
        for node in self.nodes:
            self.w.release_acks(node)
        self.w.advance(seconds)

    # -- checks --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        missed = overlooked(self.w.partition())
        assert not missed, f"room was left for {missed}"
        for job, wanted in self.jobs.items():
            self._look_at(job, wanted)

    def live(self) -> dict[tuple[str, int], tuple[int, str]]:
        """Job and index of the tasks that the server counts on, with attempt and node."""
        return {
            (job, index): (self.w.task(job, "w", index).attempt, node)
            for job in self.jobs
            if job in self.w.partition().jobs
            for (_, index), node in self.w.placements(job).items()
        }

    def is_done(self, job: str, index: int) -> bool:
        return index in self.jobs[job].done

    def _look_at(self, job: str, wanted: Wanted) -> None:
        running = self._running(job)
        here = [index for _, _, index, node in running if not self.agents.is_silent(node)]
        assert len(here) == len(set(here)), f"{job} runs twice: {running}"
        state = self.w.job(job).state if job in self.w.partition().jobs else "forgotten"
        if state not in ("pending", "running"):
            assert not here, f"{job} is over ({state}) and runs: {running}"
            return
        if wanted.loose:
            return
        away = {index for _, _, index, node in running if self.agents.is_silent(node) and self._counts_on(node)}
        away |= {
            index
            for (other, _, index), (node, when) in self.agents.silent_launches.items()
            if other == job and self._counts_on(node) and self.w.now < when + LAUNCH_TIMEOUT
        }
        # Members that succeeded no longer run, and tasks beyond the minimum need not run.
        need = wanted.least - len(wanted.done) if wanted.whole else min(wanted.least, wanted.count - len(wanted.done))
        enough = len({*here, *away} - wanted.done) >= need
        if enough:
            wanted.whole = wanted.whole or (bool(here) and job not in self.agents.held() and not away)
            wanted.short_since = None
        elif wanted.short_since is None:
            wanted.short_since = self.w.now
        elif self._patience_ends(wanted.short_since) <= self.w.now:
            wanted.whole = False
        replaced = wanted.whole and wanted.on_loss == "replace"
        assert enough or not here or replaced, f"{job} needs {need} together, and agents run {running}, away {away}"

    def _patience_ends(self, since: int) -> int:
        """Return when a gang without a replacement is taken back. The clock starts again at ready."""
        readiness = self.w.partition().readiness
        return max(since, readiness.ready_at if readiness.ready else self.w.now) + REPLACE_WITHIN

    def _running(self, job: str) -> list[tuple[str, int, int, str]]:
        return [(*each, node) for node in self.nodes for each in self.agents.on(node) if each[0] == job]

    def _counts_on(self, node: str) -> bool:
        """True if the server still counts on the node."""
        nodes = self.w.partition().nodes
        node_id = nodes.find(node)
        return node_id is not None and nodes.state[nodes.rows[node_id]] != "lost"


STAGE_KEYS = ("count", "min", "cpu", "gpu", "on_loss", "duration", "tries", "selectors")


# -- a search by hand --------------------------------------------------------------------------------------------


def overlooked(partition: Partition) -> list[str]:
    """Return heads of lanes that are allowed and would fit, found by trying every node. There must be none."""
    if not partition.readiness.ready:
        return []
    return [found for lane in partition.lanes.values() for found in _overlooked_in(partition, lane)]


def _overlooked_in(partition: Partition, lane: Iterable[Ask]) -> list[str]:
    for ask in lane:
        stage = ask.stage
        together = _together(ask)
        if not _allowed(partition, ask, together) or slots(partition, ask, empty=True) < together:
            continue  # passed over; it keeps its place and does not block its lane
        if slots(partition, ask, empty=False) < together:
            return []
        return [f"{together} of {stage.job.id} {stage.name}"]
    return []


def _together(ask: Ask) -> int:
    stage = ask.stage
    if ask.kind == NEW and not stage.started:
        over = sum(len(ranges) for ranges in (stage.ended or {}).values())
        return max(1, min(stage.terms.min or stage.count, stage.count, stage.count - over))
    if ask.kind == SCALE and not stage.terms.min and stage.terms.scaling == "strict":
        return ask.count
    return 1


def _allowed(partition: Partition, ask: Ask, together: int) -> bool:
    stage = ask.stage
    job = stage.job
    first = not stage.started or ask.kind == SCALE
    causes = ("gang",) if stage.started else ("gang", "preempt")
    if first and any(each.cause in causes for each in (stage.live or {}).values()):
        return False  # old members have yet to stop
    if ask.count < together or any(queue.state == "stopped" for queue in job.queue.line()):
        return False
    for account in job.accounts:
        own = [
            allocation
            for allocation in partition.allocations.values()
            if not allocation.slots and account in allocation.stage.job.accounts
        ]
        jobs = {each.stage.job.id for each in own}
        if account.max_jobs is not None and job.id not in jobs and len(jobs) >= account.max_jobs:
            return False
        for name, most in (account.limit or {}).items():
            used = sum(dict(each.stage.shape.amounts).get(name, 0) * len(list(indices(each.indices))) for each in own)
            used += sum(_claimed(partition, claim, name) for claim in _claims(partition, ask, account))
            asked = dict(stage.shape.amounts).get(name, 0)
            if asked and used + together * asked > most:
                return False
    return True


def _claims(partition: Partition, ask: Ask, account: Account) -> list[Promise]:
    """Return the promises to other asks of an account for which tasks stop. Their part is not free."""
    promises = [promise for promise in partition.promises.values() if not promise.ordered and promise.seq != ask.seq]
    return [promise for promise in promises if account in partition.jobs[promise.job].accounts]


def _claimed(partition: Partition, promise: Promise, name: str) -> int:
    stages = partition.jobs[promise.job].stages
    return sum(dict(stages[position].shape.amounts).get(name, 0) * tasks for _, position, tasks in promise.places)


def slots(partition: Partition, ask: Ask, empty: bool) -> int:
    """Return how many tasks of the ask fit: now, on nodes that take work, or ever, with all nodes `empty`."""
    shape, manager = ask.stage.shape, ask.stage.job.manager
    nodes = partition.nodes
    total = 0
    for node_id, row in nodes.rows.items():
        if nodes.manager[row] != manager or not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row]):
            continue
        there = (
            []
            if empty
            else [
                allocation
                for allocation in partition.allocations.values()
                if allocation.node == node_id and not allocation.slots
            ]
        )
        if not empty and (nodes.state[row] != "up" or node_id in nodes.avoided):
            continue
        total += _slots_on(nodes.capacity_of(row), there, dict(shape.amounts))
    return total


def _slots_on(capacity: dict[str, int], there: list[Any], asked: dict[str, int]) -> int:
    free = dict(capacity)
    devices = [1000] * (capacity.get("gpu", 0) // 1000)
    for each in there:
        for name, amount in each.stage.shape.amounts:
            free[name] = free.get(name, 0) - amount * len(list(indices(each.indices)))
        for device in each.devices:
            if device >= len(devices):
                return 0  # a device that the node has no more
            devices[device] -= min(1000, dict(each.stage.shape.amounts)["gpu"])
    if min(free.values(), default=0) < 0 or min(devices, default=0) < 0:
        return 0  # over-used: no task is placed there until that is gone
    fitting = [free.get(name, 0) // amount for name, amount in asked.items() if name != "gpu"]
    gpu = asked.get("gpu", 0)
    if gpu >= 1000:
        fitting.append(devices.count(1000) // (gpu // 1000))
    elif gpu:
        fitting.append(sum(left // gpu for left in devices))
    return min(fitting, default=1_000_000)
