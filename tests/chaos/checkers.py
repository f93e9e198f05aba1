"""Checkers of a trial. They use machines, clients and allocations, and none of the core's sums."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from fairlead.core.changes import Chained, Change, Placed, SinglesPlaced
from fairlead.core.commands import Accepted, Answer
from fairlead.core.model import SCALE, Allocation, Job, Stage
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE
from fairlead.core.state import Partition
from tests.chaos.tasks import Live, Micros, Task, indices


class CheckFailed(AssertionError):
    """A rule of the trial is broken."""


def need(holds: bool, text: str) -> None:
    """Raise `CheckFailed` with the text unless the rule holds."""
    if not holds:
        raise CheckFailed(text)


class Runs(Protocol):
    """What the checkers read of a machine."""

    @property
    def name(self) -> str: ...

    @property
    def running(self) -> Mapping[Task, Live]: ...


class AttemptChecker:
    """Checks that no task has two running attempts and that each new attempt has a higher number."""

    def __init__(self) -> None:
        self.live: dict[Task, tuple[int, str]] = {}
        self.succeeded: dict[Task, int] = {}
        self._begun: dict[Task, int] = {}
        """The highest attempt that ever ran."""

    def started(self, node: str, live: Live) -> None:
        task, attempt = live.task, live.attempt
        other = self.live.get(task)
        need(other is None, f"{task} runs as attempt {other} and starts as attempt {attempt} on {node}")
        need(attempt > self._begun.get(task, 0), f"{task} starts as attempt {attempt}, which is not a new one")
        self._begun[task] = attempt
        self.live[task] = (attempt, node)

    def ended(self, live: Live, how: str) -> None:
        del self.live[live.task]
        if how == "succeeded":
            self.succeeded[live.task] = live.attempt


class RoomChecker:
    """Checks that no machine runs more than its capacity, and no GPU device more than one whole GPU."""

    def __init__(
        self, capacity: Mapping[str, Mapping[str, int]], asked: Mapping[tuple[str, str], Mapping[str, int]]
    ) -> None:
        self.capacity = capacity
        self.asked = asked
        """(Job, stage) → resources of one task, in milli-units."""

    def check(self, agent: Runs) -> None:
        cpu = 0
        devices: dict[int, int] = {}
        for live in agent.running.values():
            asked = self.asked[live.task.job, live.task.stage]
            cpu += asked.get("cpu", 0)
            for device in live.devices:
                devices[device] = devices.get(device, 0) + min(WHOLE_DEVICE, asked.get(GPU, 0))
        has = self.capacity[agent.name]
        need(cpu <= 1000 * has["cpu"], f"{agent.name} runs {cpu} milli-CPU of {1000 * has['cpu']}")
        for device, used in devices.items():
            need(0 <= device < has.get("gpu", 0), f"{agent.name} has no device {device}")
            need(used <= WHOLE_DEVICE, f"{agent.name} runs {used} milli-GPU on device {device}")


def check_agreement(partition: Partition, agent: Runs) -> None:
    """Check that an agent runs the tasks that the server expects. Call it only while no message is under way."""
    node_id = partition.nodes.find(agent.name)
    allocations: dict[int, Allocation] = {}
    if node_id is not None:
        allocations = partition.nodes.allocations[partition.nodes.rows[node_id]]
    believed = {
        Task(allocation.stage.job.id, allocation.stage.job.number, allocation.stage.name, index): allocation.attempt
        for allocation in allocations.values()
        for index in indices(allocation.indices)
    }
    real = {task: live.attempt for task, live in agent.running.items()}
    need(believed == real, f"{agent.name} runs {real}, and the server believes {believed}")


class StopChecker:
    """Checks that stopping tasks end.

    Tasks have time to stop between two checks of a quiet node, which has no message under way.
    """

    def __init__(self) -> None:
        self._stopping: set[int] = set()
        """Ids of the allocations that were stopping at the last check."""

    def look(self, partition: Partition, quiet: Iterable[str]) -> None:
        """Check the stopping tasks of the nodes `quiet`, which have no message under way."""
        stopping: set[int] = set()
        for name in quiet:
            node_id = partition.nodes.find(name)
            if node_id is None:
                continue
            for allocation in partition.nodes.allocations[partition.nodes.rows[node_id]].values():
                if allocation.state == "stopping":
                    stopping.add(allocation.id)
                    tasks = f"{allocation.stage.job.id} {allocation.stage.name} {allocation.indices}"
                    need(allocation.id not in self._stopping, f"{tasks} on {name} was told to stop and has not")
        self._stopping = stopping


class SilenceChecker:
    """Checks that a silent node is declared lost in time. Only time while the server is ready counts.

    If an operator moves a lost node to another state, its time starts anew.
    """

    def __init__(self, allowed: Micros) -> None:
        self.allowed = allowed
        self._silent: dict[str, Micros] = {}
        self._ready_at: Micros = 0

    def decided(self, partition: Partition) -> None:
        """Note which nodes are lost. Called after every cycle, because an operator may at once move a lost node."""
        for name in [name for name in self._silent if _is_lost(partition, name)]:
            del self._silent[name]

    def look(self, partition: Partition, down: Iterable[str], passed: Micros) -> None:
        """Check the nodes `down`, which have no power, after some time has passed."""
        if not partition.readiness.ready or partition.readiness.ready_at != self._ready_at:
            self._ready_at = partition.readiness.ready_at
            self._silent = {}
            return
        self._silent = {name: self._silent.get(name, 0) + passed for name in down if not _is_lost(partition, name)}
        for name, silent in self._silent.items():
            need(silent <= self.allowed, f"{name} has been silent for {silent} us and is not lost")


def _is_lost(partition: Partition, name: str) -> bool:
    """True if the node is lost or removed."""
    node_id = partition.nodes.find(name)
    return node_id is None or partition.nodes.state[partition.nodes.rows[node_id]] == "lost"


def nodes_of(partition: Partition, change: Change[Any]) -> list[int]:
    """Return the ids of the nodes on which a change places tasks."""
    if isinstance(change, Placed):
        return [part.node for part in change.parts]
    if isinstance(change, SinglesPlaced):
        return [change.node]
    before = partition.allocations.get(change.allocation) if isinstance(change, Chained) else None
    return [] if before is None else [before.node]


class ConnectionChecker:
    """Checks that a node gets no new task after its agent disconnected, apart from a moment to notice it."""

    def __init__(self, allowed: Micros) -> None:
        self.allowed = allowed
        self._gone: dict[int, Micros] = {}
        """Id of a node without a connection → the time of the first check without it."""

    def decided(
        self, partition: Partition, changes: Iterable[Change[Any]], connected: Collection[str], now: Micros
    ) -> None:
        nodes = partition.nodes
        self._gone = {
            node_id: self._gone.get(node_id, now)
            for node_id, row in nodes.rows.items()
            if nodes.name[row] not in connected and not nodes.manager[row]
        }
        for change in changes:
            for node_id in nodes_of(partition, change):
                gone = now - self._gone.get(node_id, now)
                need(gone <= self.allowed, f"a task is placed on a node without an agent for {gone} us: {change}")


class AnswerChecker:
    """Checks that no accepted job is lost and that a repeated request gets the same answer."""

    def __init__(self) -> None:
        self.accepted: dict[str, str] = {}
        """Job → the idempotency key of its submission."""
        self.over: set[str] = set()
        self._answers: dict[str, Answer] = {}

    def answered(self, key: str, answer: Answer, job: str = "") -> None:
        if not isinstance(answer, Accepted):
            need(key not in self._answers, f"the request {key} was accepted and is then refused: {answer}")
            return
        before = self._answers.setdefault(key, answer)
        need(before == answer, f"the request {key} was answered with {before} and then with {answer}")
        if job:
            self.accepted[job] = key

    def seen(self, partition: Partition, jobs: Iterable[str]) -> None:
        """Record which of the jobs that a cycle touched are over."""
        self.over.update(job for job in jobs if partition.jobs[job].over)

    def check(self, partition: Partition) -> None:
        for job in self.accepted:
            need(job in partition.jobs or job in self.over, f"job {job} was accepted, has not ended, and is not known")

    def check_ends(self, partition: Partition, succeeded: Mapping[Task, int]) -> None:
        """Check that each task that the state counts as succeeded has really succeeded."""
        for job in partition.jobs.values():
            for stage in job.stages:
                for index in indices(stage.ended_as("succeeded").flat()):
                    task = Task(job.id, job.number, stage.name, index)
                    need(task in succeeded, f"{task} counts as succeeded and never did")


class GangChecker:
    """Checks that a gang does not stay short: its live and ended tasks reach `min`, or it is stopped.

    Time counts only while the server is ready and every agent is connected, because otherwise a loss cannot be noticed.
    After a restart of the server, the time of every gang starts anew.
    """

    def __init__(self, allowed: Micros) -> None:
        self.allowed = allowed
        self._short: dict[tuple[str, str], Micros] = {}
        self._last: Micros = 0
        self._ready_at: Micros = 0

    def check(self, partition: Partition, live: Mapping[Task, object], now: Micros, in_touch: bool) -> None:
        passed, self._last = now - self._last, now
        if partition.readiness.ready_at != self._ready_at:
            self._ready_at = partition.readiness.ready_at
            self._short = dict.fromkeys(self._short, 0)
        running: dict[tuple[str, str], int] = {}
        for task in live:
            running[task.job, task.stage] = running.get((task.job, task.stage), 0) + 1
        for (job_id, name), count in running.items():
            job = partition.jobs.get(job_id)
            stage = job.stage(name) if job is not None else None
            if job is None or stage is None or job.over or not self._is_short(stage, count):
                self._short.pop((job_id, name), None)
            else:
                before = self._short.get((job_id, name))
                short = 0 if before is None else before + (passed if in_touch else 0)
                self._short[job_id, name] = short
                need(short <= self.allowed, f"{job_id} {name} has run {count} of {stage.min} for {short} us")
        for key in [key for key in self._short if key not in running]:
            del self._short[key]

    @staticmethod
    def _is_short(stage: Stage, running: int) -> bool:
        """True if a gang has fewer than `min` tasks.

        Stages that wait for added tasks are left out, and stages with another `on_loss` than `replace`, which have no
        `min`.
        """
        if stage.on_loss != "replace" or stage.asks[SCALE] is not None:
            return False
        return running + len(stage.ended_as("succeeded")) + len(stage.ended_as("failed")) < stage.min


class GenerationChecker:
    """Checks that a strict gang restarts as a gang: its live members have one attempt, and each costs at most one try.

    Gangs that were scaled are left out: tasks that are added to a running gang have attempts of their own.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, str], int] = {}
        """Number of a job and stage → its size when it was first seen; 0 once it was scaled."""

    def check(self, partition: Partition) -> None:
        for job in partition.jobs.values():
            for stage in job.stages:
                size = self._sizes.setdefault((job.number, stage.name), stage.count)
                if size != stage.count:
                    self._sizes[job.number, stage.name] = 0
                elif size > 1 and self._restarts(stage):
                    attempts = {allocation.attempt for allocation in (stage.live or {}).values()}
                    need(len(attempts) < 2, f"{job.id} {stage.name} has live members of attempts {sorted(attempts)}")
                    used = stage.tries_used(0)
                    need(used <= stage.top, f"{job.id} {stage.name} used {used} tries in {stage.top} attempts")

    @staticmethod
    def _restarts(stage: Stage) -> bool:
        spec = stage.spec
        whole = spec.min in (0, stage.count) and not stage.job.manager
        return whole and {spec.on_failure, spec.on_loss} <= {"", "restart"}


class KeepingChecker:
    """Checks holds and promises: each belongs to a waiting ask, holds are within their limit, and all end in time.

    Because holds end in time, every starving ask gets its nodes in the end.
    """

    def check(self, partition: Partition, now: Micros) -> None:
        waiting = {ask.seq for lane in partition.lanes.values() for ask in lane}
        for earmark in (*partition.holds.values(), *partition.promises.values()):
            need(earmark.seq in waiting, f"nodes are kept for {earmark.job}, which does not wait")
        if not partition.readiness.ready:
            return
        for earmark in (*partition.holds.values(), *partition.promises.values()):
            need(partition.jobs[earmark.job].held_by is None, f"nodes are kept for {earmark.job}, which is held back")
        held: set[int] = set()
        for hold in partition.holds.values():
            since = max(hold.since, partition.readiness.ready_at)
            # Nodes set aside for an owner are kept until the loans there have ended.
            lasts = hold.recalled or now <= since + partition.settings.hold_for
            need(lasts, f"nodes have been held for {hold.job} since {hold.since}")
            for node_id in hold.nodes:
                row = partition.nodes.rows.get(node_id)
                need(
                    row is not None and partition.nodes.state[row] == "up",
                    f"a node that takes no work is held for {hold.job}",
                )
                if not (hold.large or hold.recalled):
                    held.add(node_id)
        most = -(-len(partition.nodes.rows) * partition.settings.held_nodes_percent // 100)
        need(len(held) <= most, f"{len(held)} nodes are held, and at most {most} may be")


def check_conserving(partition: Partition) -> None:
    """Check that no lane head that may start waits although it fits. Free capacity is counted from the allocations."""
    if not partition.readiness.ready or partition.derived.forecast:
        return
    for lane in partition.lanes.values():
        head = lane.head()
        if head is None or head.whole or head.stage.shape.key.apart or head.stage.shape.key.near:
            continue
        stage = head.stage
        # A gang waits until its old members have stopped.
        if any(allocation.state == "stopping" for allocation in (stage.live or {}).values()) or not _allowed(stage.job):
            continue
        wanted = len(indices(stage.wanted(head.kind).flat()))
        least = 1 if stage.started else stage.needed
        if head.kind == SCALE and stage.terms.scaling == "strict" and not stage.terms.min:
            least = wanted
        need(
            room(partition, stage) < max(1, least),
            f"{stage.job.id} {stage.name} waits for {least} and there is room for them",
        )


def _allowed(job: Job) -> bool:
    """True if the job has no limit, is preemptible and is not held. Other checkers cover the other jobs."""
    if job.held_by is not None:
        return False
    return job.spec.preemptible and all(account.limit is None and account.max_jobs is None for account in job.accounts)


def room(partition: Partition, stage: Stage) -> int:
    """Return the number of tasks of a stage that fit now, summed over the nodes."""
    wanted = stage.shape.key.pool
    return sum(
        _room_on(partition, row, stage)
        for node_id, row in partition.nodes.rows.items()
        if takes_work(partition, node_id, row) and wanted in ("", partition.nodes.pool[row])
    )


def takes_work(partition: Partition, node_id: int, row: int) -> bool:
    """True if a node accepts new work. Held nodes do not; `KeepingChecker` checks holds."""
    return (
        partition.nodes.state[row] == "up"
        and node_id not in partition.nodes.avoided
        and node_id not in partition.nodes.disconnected
        and node_id not in partition.nodes.held
    )


def used_on(partition: Partition, row: int) -> tuple[dict[str, int], list[int]]:
    """Return the use of each resource by a node's allocations, and of each GPU device."""
    used: dict[str, int] = {}
    devices = [0] * (partition.nodes.capacity.get(GPU, [0] * (row + 1))[row] // WHOLE_DEVICE)
    for allocation in partition.nodes.allocations[row].values():
        tasks = len(indices(allocation.indices))
        resources = dict(allocation.stage.shape.key.resources)
        for name, amount in resources.items():
            used[name] = used.get(name, 0) + amount * tasks
        for device in allocation.devices:
            devices[device] += min(WHOLE_DEVICE, resources[GPU])
    return used, devices


def _room_on(partition: Partition, row: int, stage: Stage) -> int:
    asked = dict(stage.shape.key.resources)
    used, devices = used_on(partition, row)
    fits = [
        (partition.nodes.capacity[name][row] - used.get(name, 0)) // amount if name in partition.nodes.capacity else 0
        for name, amount in asked.items()
        if name != GPU
    ]
    if asked.get(GPU):
        milli = min(WHOLE_DEVICE, asked[GPU])
        fits.append(sum((WHOLE_DEVICE - load) // milli for load in devices) // max(1, asked[GPU] // WHOLE_DEVICE))
    return min(fits, default=0)
