"""What must hold in a trial, judged from outside: by agents, clients and brute force, with none of the core's sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fairlead.core.commands import Accepted, Answer
from fairlead.core.model import SCALE, Allocation, Job, Stage
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE
from fairlead.core.state import Partition
from fairlead.sim.chaos.tasks import Live, Micros, Task, indices


class CheckFailed(AssertionError):
    """Something that must hold does not."""


def need(holds: bool, text: str) -> None:
    if not holds:
        raise CheckFailed(text)


class Runs(Protocol):
    """As much of a machine as is judged."""

    @property
    def name(self) -> str: ...

    @property
    def running(self) -> Mapping[Task, Live]: ...


class AttemptChecker:
    """No task runs twice at once, no attempt runs twice at all, and nothing that succeeded starts again."""

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
    """No machine runs more than it has, nor more than a whole GPU on one device."""

    def __init__(
        self, capacity: Mapping[str, Mapping[str, int]], asked: Mapping[tuple[str, str], Mapping[str, int]]
    ) -> None:
        self.capacity = capacity
        self.asked = asked
        """(Job, stage) → what each task asks for, in milli-units."""

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
    """Where nothing is under way between them, the server and an agent believe the same."""
    node_id = partition.nodes.find(agent.name)
    known: dict[int, Allocation] = {} if node_id is None else partition.nodes.allocations[partition.nodes.rows[node_id]]
    believed = {
        Task(each.stage.job.id, each.stage.job.number, each.stage.name, index): each.attempt
        for each in known.values()
        for index in indices(each.indices)
    }
    real = {task: live.attempt for task, live in agent.running.items()}
    need(believed == real, f"{agent.name} runs {real}, and the server believes {believed}")


class StopChecker:
    """What was told to stop stops: between two looks at which nothing is under way, tasks have the time to."""

    def __init__(self) -> None:
        self._stopping: set[int] = set()
        """Allocations that were told to stop, at the last look."""

    def look(self, partition: Partition, quiet: Iterable[str]) -> None:
        """`quiet` are the nodes with nothing under way, which have been told everything."""
        found: set[int] = set()
        for name in quiet:
            node_id = partition.nodes.find(name)
            for each in [] if node_id is None else partition.nodes.allocations[partition.nodes.rows[node_id]].values():
                if each.state == "stopping":
                    found.add(each.id)
                    text = (
                        f"{each.stage.job.id} {each.stage.name} {each.indices} on {name} was told to stop and has not"
                    )
                    need(each.id not in self._stopping, text)
        self._stopping = found


class SilenceChecker:
    """A node that is silent is lost, in time. What counts is the time for which the server is ready.

    An operator that enables a lost node has it expected for as long again.
    """

    def __init__(self, allowed: Micros) -> None:
        self.allowed = allowed
        self._silent: dict[str, Micros] = {}
        self._ready_at: Micros = 0

    def look(self, partition: Partition, down: Iterable[str], passed: Micros) -> None:
        """`down` are the nodes whose machines have no power."""
        if not partition.reign.ready or partition.reign.ready_at != self._ready_at:
            self._ready_at = partition.reign.ready_at
            self._silent = {}
            return
        self._silent = {
            name: self._silent.get(name, 0) + passed
            for name in down
            if (node_id := partition.nodes.find(name)) is not None
            and partition.nodes.state[partition.nodes.rows[node_id]] != "lost"
        }
        for name, silent in self._silent.items():
            need(silent <= self.allowed, f"{name} has been silent for {silent} us and is not lost")


class AnswerChecker:
    """Nothing that was answered is lost, and the same question has one answer."""

    def __init__(self) -> None:
        self.accepted: dict[str, str] = {}
        """Job → the key it was submitted with."""
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
        """These were touched by a cycle."""
        self.over.update(job for job in jobs if partition.jobs[job].over)

    def check(self, partition: Partition) -> None:
        for job in self.accepted:
            need(job in partition.jobs or job in self.over, f"job {job} was accepted, has not ended, and is not known")

    def check_ends(self, partition: Partition, succeeded: Mapping[Task, int]) -> None:
        """A task that the books call done has really been, as far as they still know it."""
        for job in partition.jobs.values():
            for stage in job.stages:
                for index in indices(stage.ended_as("succeeded").flat()):
                    task = Task(job.id, job.number, stage.name, index)
                    need(task in succeeded, f"{task} counts as succeeded and never did")


class GangChecker:
    """A gang does not run short for long: what lives and what is done is at least `min`, or it is taken back.

    Time counts only while the server is ready and every agent is in touch: otherwise nobody could know. A server that
    was away gives everybody its time anew.
    """

    def __init__(self, allowed: Micros) -> None:
        self.allowed = allowed
        self._short: dict[tuple[str, str], Micros] = {}
        self._last: Micros = 0
        self._ready_at: Micros = 0

    def check(self, partition: Partition, live: Mapping[Task, object], now: Micros, in_touch: bool) -> None:
        passed, self._last = now - self._last, now
        if partition.reign.ready_at != self._ready_at:
            self._ready_at = partition.reign.ready_at
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
        """Tasks that were added later are awaited by nobody, and other ways to deal with losses know no `min`."""
        if stage.terms.on_loss != "replace" or stage.asks[SCALE] is not None:
            return False
        return running + len(stage.ended_as("succeeded")) + len(stage.ended_as("failed")) < stage.min


class KeepingChecker:
    """Nodes are kept for those who wait, not too many, and not for long: whoever has them starts, or gives them back.

    Who starves has nodes in the end: what keeps it from them is over after as long as others may have theirs.
    """

    def check(self, partition: Partition, now: Micros) -> None:
        waiting = {each.seq: each for lane in partition.lanes.values() for each in lane}
        for kept in (*partition.holds.values(), *partition.promises.values()):
            need(kept.seq in waiting, f"nodes are kept for {kept.job}, which does not wait")
        if not partition.reign.ready:
            return
        held: set[int] = set()
        for hold in partition.holds.values():
            since = max(hold.since, partition.reign.ready_at)
            need(now <= since + partition.settings.hold_for, f"nodes have been held for {hold.job} since {hold.since}")
            for node_id in hold.nodes:
                row = partition.nodes.rows.get(node_id)
                need(
                    row is not None and partition.nodes.state[row] == "up",
                    f"a node that takes no work is held for {hold.job}",
                )
                if not hold.large:
                    held.add(node_id)
        most = -(-len(partition.nodes.rows) * partition.settings.held_nodes_percent // 100)
        need(len(held) <= most, f"{len(held)} nodes are held, and at most {most} may be")


def check_conserving(partition: Partition) -> None:
    """No allowed head of a lane waits beside nodes on which it would fit, counted from the allocations alone."""
    if not partition.reign.ready or partition.settings.backfill:
        return
    for lane in partition.lanes.values():
        head = lane.head()
        if head is None or head.whole or head.stage.shape.key.apart or head.stage.shape.key.near:
            continue
        stage = head.stage
        # Members of the same gang that still stop are waited for.
        if any(each.state == "stopping" for each in (stage.live or {}).values()) or not _allowed(stage.job):
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
    """Only where nothing bounds it: whether a limit, or a share that is spent, holds it back is for others to judge."""
    return job.spec.preemptible and all(each.limit is None and each.max_jobs is None for each in job.accounts)


def room(partition: Partition, stage: Stage) -> int:
    """How many tasks of a stage would find room now, node by node."""
    wanted = stage.shape.key.pool
    return sum(
        _room_on(partition, row, stage)
        for node_id, row in partition.nodes.rows.items()
        if takes_work(partition, node_id, row) and wanted in ("", partition.nodes.pool[row])
    )


def takes_work(partition: Partition, node_id: int, row: int) -> bool:
    """Not what is kept for somebody: whether it is kept rightly is another question."""
    return (
        partition.nodes.state[row] == "up"
        and node_id not in partition.nodes.avoided
        and node_id not in partition.nodes.held
    )


def used_on(partition: Partition, row: int) -> tuple[dict[str, int], list[int]]:
    """What a node's allocations use of its resources, and of each of its devices."""
    used: dict[str, int] = {}
    devices = [0] * (partition.nodes.capacity.get(GPU, [0] * (row + 1))[row] // WHOLE_DEVICE)
    for each in partition.nodes.allocations[row].values():
        tasks = len(indices(each.indices))
        for name, amount in each.stage.shape.key.resources:
            used[name] = used.get(name, 0) + amount * tasks
        for device in each.devices:
            devices[device] += min(WHOLE_DEVICE, dict(each.stage.shape.key.resources)[GPU])
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
        fits.append(sum((WHOLE_DEVICE - each) // milli for each in devices) // max(1, asked[GPU] // WHOLE_DEVICE))
    return min(fits, default=0)
