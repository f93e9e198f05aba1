"""Steps of remedies, as typed values. Each step can be shown as text and carried out by commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from fairlead.core import commands as cmd
from fairlead.core.changes import NodeSpec
from fairlead.core.changes.nodes import spec_of
from fairlead.core.model import Allocation, Amounts, JobSpec, Limits, Pairs, QueueSettings, StageSpec
from fairlead.core.ranges import Ranges, count, difference, indices, split
from fairlead.core.resources import CPU, GPU, format_amount, format_amounts
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.core.why.reasons import HIDDEN, MAIN, Sees, in_words, tasks_of


class Step(msgspec.Struct, frozen=True, tag=in_words):
    """Base class of steps. The tag is the name of a step in the API, such as "end tasks"."""

    operator: ClassVar[bool] = True
    """True if only an operator may do the step; False if the owner of the job may do it too."""
    cost: ClassVar[int] = 2
    """0: costs nothing; 1: tasks end; 2: settings or the order change; 3: the request changes; 4: new machines."""

    def __str__(self) -> str:
        """Return the step as a condition, such as "node n1 is enabled"."""
        raise NotImplementedError

    def commands(self, partition: Partition) -> list[cmd.Command]:
        """Return the commands that carry out the step."""
        return []

    varies: ClassVar[str] = ""
    """The field that differs from the present value, `now`, by the amount of the step; empty for other steps."""

    @property
    def unit(self) -> int:
        """The smallest amount by which the field `varies` can change."""
        return 1

    @property
    def amount(self) -> int:
        """Return how much the step changes, if it can change less; otherwise 0."""
        return abs(getattr(self, self.varies) - self._now) // self.unit if self.varies else 0

    def with_amount(self, amount: int) -> Step:
        """Return the step with another amount, above 0."""
        if not self.varies:
            return self
        way = self.unit if getattr(self, self.varies) > self._now else -self.unit
        return replace(self, **{self.varies: self._now + way * amount})

    @property
    def _now(self) -> int:
        return int(getattr(self, "now", 0))

    def shown_to(self, sees: Sees) -> Step:
        """Return the step without the ids of jobs that a reader may not see."""
        return self


class Remedy(msgspec.Struct, frozen=True):
    """Steps that are enough together: when all are done, the tasks start in the next cycle. Fewer are not enough."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        ends = [step for step in self.steps if isinstance(step, EndTasks)]
        others = [str(step) for step in self.steps if not isinstance(step, EndTasks)]
        return " and ".join([ends_in_words(ends), *others] if ends else others)

    @property
    def cost(self) -> tuple[int, int, int]:
        """The sort key of remedies: the cost of the dearest step, the number of kinds of steps, the sum of amounts."""
        kinds = {type(step) for step in self.steps}
        return max([step.cost for step in self.steps], default=0), len(kinds), sum(step.amount for step in self.steps)

    @property
    def operator(self) -> bool:
        """True if a step needs an operator."""
        return any(step.operator for step in self.steps)

    def shown_to(self, sees: Sees) -> Remedy:
        return Remedy(tuple(step.shown_to(sees) for step in self.steps))


# -- tasks and nodes ---------------------------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True):
    """Tasks of a stage on a node."""

    job: str
    """Empty for a reader that may not see it."""
    stage: str
    indices: tuple[int, ...]
    """Spans of task indices: the first index, the index after the last one, and so on."""

    def shown_to(self, sees: Sees) -> Block:
        return self if sees(self.job) else Block("", "", (0, count(self.indices)))


class EndTasks(Step, frozen=True):
    """Tasks on a node end or are killed."""

    cost: ClassVar[int] = 1
    node: str
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return ends_in_words([self])

    def commands(self, partition: Partition) -> list[cmd.Command]:
        commands: list[cmd.Command] = []
        for block in self.blocks:
            stage = partition.jobs[block.job].stage(block.stage)
            assert stage is not None
            left = block.indices
            while left:
                allocation = (stage.live or {})[left[0]]
                rest = difference(left, allocation.indices)
                commands.append(report_end(partition, allocation, difference(left, rest)))
                left = rest
        return commands

    @property
    def amount(self) -> int:
        return sum(count(block.indices) for block in self.blocks)

    def with_amount(self, amount: int) -> EndTasks:
        blocks: list[Block] = []
        for block in self.blocks:
            taken, _ = split(block.indices, min(amount, count(block.indices)))
            amount -= count(taken)
            if taken:
                blocks.append(Block(block.job, block.stage, taken))
        return EndTasks(self.node, tuple(blocks))

    def shown_to(self, sees: Sees) -> EndTasks:
        return EndTasks(self.node, tuple(block.shown_to(sees) for block in _merged(self.blocks)))


def report_end(partition: Partition, allocation: Allocation, tasks: tuple[int, ...]) -> cmd.Report:
    """Return the report that tasks of an allocation have succeeded; if they are stopping, that they have stopped."""
    stopping = allocation.state == "stopping"
    return cmd.Report(
        node=partition.nodes.name[partition.nodes.rows[allocation.node]],
        job=allocation.stage.job.id,
        stage=allocation.stage.name,
        indices=tasks,
        attempt=allocation.attempt,
        state="stopped" if stopping else "succeeded",
        exit_code=None if stopping else 0,
        operator=True,
    )


def _merged(blocks: tuple[Block, ...]) -> list[Block]:
    """Return one block for all tasks of a stage. Blocks without a job may be of several jobs and stay separate."""
    merged: dict[tuple[str, str, int], list[int]] = {}
    for at, block in enumerate(blocks):
        merged.setdefault((block.job, block.stage, 0 if block.job else at), []).extend(indices(block.indices))
    return [Block(job, stage, Ranges.from_indices(sorted(tasks)).flat()) for (job, stage, _), tasks in merged.items()]


ONE_NODE = 4
"""Nodes for more tasks than this are described by their tasks, because one node may be too small for them."""
ONE_NODE_GPUS = 8
"""Likewise for tasks that need more GPUs than this together."""
NAMED = 3
"""A remedy names at most this number of nodes, and of stages whose tasks end."""


def ends_in_words(steps: Sequence[EndTasks]) -> str:
    """Return in words which tasks end, by job, such as "6 tasks of job 3 on n1 and n2 end"."""
    tasks: dict[tuple[str, str], int] = {}
    for step in steps:
        for block in step.blocks:
            key = (block.job, block.stage)
            tasks[key] = tasks.get(key, 0) + count(block.indices)
    parts = []
    for (job, stage), ended in tasks.items():
        whose = tasks_of(job, stage) if job or ended == 1 else "other users' jobs"
        parts.append(f"{ended} {'task' if ended == 1 else 'tasks'} of {whose}")
    if len(parts) > NAMED:
        jobs = {job for job, _ in tasks}
        parts = [f"{sum(tasks.values())} tasks of {'several' if '' in jobs else len(jobs)} jobs"]
    nodes = list(dict.fromkeys(step.node for step in steps))
    where = f"{', '.join(nodes[:-1])} and {nodes[-1]}" if 1 < len(nodes) <= NAMED else nodes[0]
    where = f"{len(nodes)} nodes" if len(nodes) > NAMED else where
    return f"{' and '.join(parts)} on {where} {'ends' if sum(tasks.values()) == 1 else 'end'}"


class AddNodes(Step, frozen=True):
    """New nodes join, with capacity for a number of tasks."""

    cost: ClassVar[int] = 4
    varies: ClassVar[str] = "tasks"
    tasks: int
    per_task: Amounts
    apart: bool = False
    """True if each task needs a node of its own."""
    gpu_parts: int = 1
    """The number of tasks that share a GPU."""
    labels: Pairs = ()
    pool: str = ""
    names: str = "new"
    """The prefix of the node names, followed by a number."""
    user: str = ""
    """A user whose tasks similar nodes refuse, and the new nodes must accept; empty if there is none."""

    @property
    def nodes(self) -> int:
        return self.tasks if self.apart else 1

    @property
    def resources(self) -> Amounts:
        """Return the resources of each node."""
        tasks = 1 if self.apart else self.tasks
        if not self.per_task:
            return ((CPU, 1000),)
        return tuple(
            (name, -(-tasks // self.gpu_parts) * 1000 if name == GPU and amount < 1000 else amount * tasks)
            for name, amount in self.per_task
        )

    def __str__(self) -> str:
        gpus = dict(self.resources).get(GPU, 0)
        if self.nodes == 1 and self.tasks > 1 and (self.tasks > ONE_NODE or gpus > ONE_NODE_GPUS * 1000):
            each = format_amounts(sorted(self.per_task)) or "any resources"
            nodes, has, several = "nodes", f"capacity for {self.tasks} tasks of {each}", True
        else:
            several = self.nodes > 1
            nodes, has = f"{self.nodes} nodes" if several else "a node", format_amounts(sorted(self.resources))
        labels = "".join(f" {key}={value}" for key, value in self.labels)
        noun = "label" if len(self.labels) == 1 else "labels"
        where = f" to pool {self.pool}" if self.pool else ""
        user = f" that {'take' if several else 'takes'} tasks of user {self.user}" if self.user else ""
        added = "are added" if several else "is added"
        return f"{nodes} with {has}{labels and f' and the {noun}' + labels}{user} {added}{where}"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        spec = NodeSpec(self.resources, self.labels, (), self.pool)
        return [cmd.AddNode(name=f"{self.names}-{n}", spec=spec, operator=True) for n in range(self.nodes)]


class EnableNode(Step, frozen=True):
    """A node that is drained or disabled is enabled again."""

    cost: ClassVar[int] = 0
    node: str

    def __str__(self) -> str:
        return f"node {self.node} is enabled"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.MoveNode(name=self.node, action="enable", operator=True)]


class BringNodeBack(Step, frozen=True):
    """A node that is lost or disconnected joins again."""

    cost: ClassVar[int] = 0
    node: str

    def __str__(self) -> str:
        return f"node {self.node} comes back"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        node_id = partition.nodes.find(self.node)
        assert node_id is not None
        return [cmd.AddNode(name=self.node, spec=spec_of(partition, node_id), operator=True)]


class ReleaseHold(Step, frozen=True):
    """The nodes that are held for another job are released."""

    job: str
    """Empty for a reader that may not see it."""

    def __str__(self) -> str:
        return f"the nodes held for {f'job {self.job}' if self.job else HIDDEN} are released"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.ReleaseHold(job=self.job, operator=True)]

    def shown_to(self, sees: Sees) -> ReleaseHold:
        return self if sees(self.job) else ReleaseHold("")


class ReleaseJob(Step, frozen=True):
    """The held job is released."""

    operator = False
    cost: ClassVar[int] = 0

    job: str

    def __str__(self) -> str:
        return f"job {self.job} is released"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.ReleaseJob(job=self.job, operator=True)]


class ReleaseJobAsOperator(ReleaseJob, frozen=True, tag="release job"):
    """The job, held by an operator, is released."""

    operator = True


class Ready(Step, frozen=True):
    """The partition becomes ready: all agents report, or an operator says so."""

    cost: ClassVar[int] = 0

    def __str__(self) -> str:
        return "all agents have reported (or an operator marks the partition ready)"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.MarkReady(operator=True)]


# -- queues and limits -------------------------------------------------------------------------------------------


class QueueStep(Step, frozen=True):
    """Base class of steps that change the settings of a queue."""

    queue: str

    def changed(self, settings: QueueSettings) -> QueueSettings:
        """Return the settings after the step."""
        raise NotImplementedError


class LimitStep(QueueStep, frozen=True, kw_only=True):
    """Base class of steps that change a limit of a queue, or of users or groups in it."""

    user: str = ""
    """A user, or `*` if the limit is for each user; empty for another limit."""
    group: str = ""
    now: int
    """The present limit."""

    @property
    def account(self) -> str:
        """Return the name of the account with the limit."""
        if self.user:
            return f"{'each user' if self.user == '*' else f'user {self.user}'} in queue {self.queue}"
        return f"group {self.group} in queue {self.queue}" if self.group else f"queue {self.queue}"

    def changed(self, settings: QueueSettings) -> QueueSettings:
        if self.user:
            return replace(settings, users=self._raised_for(self.user, settings.users))
        if self.group:
            return replace(settings, groups=self._raised_for(self.group, settings.groups))
        whole = self._raised(Limits(settings.limit, settings.max_jobs))
        return replace(settings, limit=whole.limit, max_jobs=whole.max_jobs)

    def _raised_for(self, which: str, limits: tuple[tuple[str, Limits], ...]) -> tuple[tuple[str, Limits], ...]:
        return tuple((name, self._raised(of) if name == which else of) for name, of in limits)

    def _raised(self, limits: Limits) -> Limits:
        raise NotImplementedError


class RaiseLimit(LimitStep, frozen=True, kw_only=True):
    """A limit of a resource is raised."""

    varies: ClassVar[str] = "limit"
    resource: str
    limit: int

    def __str__(self) -> str:
        return f"the limit of {self.account} is raised to {format_amount(self.resource, self.limit)}"

    def _raised(self, limits: Limits) -> Limits:
        amounts = tuple((name, self.limit if name == self.resource else old) for name, old in limits.limit or ())
        return replace(limits, limit=amounts)


class RaiseMaxJobs(LimitStep, frozen=True, kw_only=True):
    """More jobs of a queue, user or group may run at once."""

    varies: ClassVar[str] = "max_jobs"
    max_jobs: int

    def __str__(self) -> str:
        return f"max_jobs of {self.account} is raised to {self.max_jobs}"

    def _raised(self, limits: Limits) -> Limits:
        return replace(limits, max_jobs=self.max_jobs)


class RaiseThrottle(Step, frozen=True, kw_only=True):
    """More tasks of a stage may run at a time."""

    operator: ClassVar[bool] = False
    varies: ClassVar[str] = "throttle"
    job: str
    stage: str
    throttle: int
    now: int
    """The present throttle."""

    def __str__(self) -> str:
        return f"the throttle of job {self.job} is raised to {self.throttle} (`fairlead update`)"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.UpdateJob(job=self.job, stage=self.stage, throttle=self.throttle, operator=True)]


class RaiseShare(QueueStep, frozen=True, kw_only=True):
    """A queue gets a larger share."""

    varies: ClassVar[str] = "share"
    share: int
    now: int
    """The present share."""

    def __str__(self) -> str:
        return f"the share of queue {self.queue} is raised to {self.share}"

    def changed(self, settings: QueueSettings) -> QueueSettings:
        return replace(settings, share=self.share)


class StartQueue(Step, frozen=True):
    """A stopped queue is started."""

    cost: ClassVar[int] = 0
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue} is started"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.MoveQueue(queue=self.queue, action="start", operator=True)]


def configured(partition: Partition, steps: tuple[Step, ...]) -> cmd.Configure | None:
    """Return the command for all steps that change settings of queues; None if there are no such steps."""
    changes = [step for step in steps if isinstance(step, QueueStep)]
    if not changes:
        return None
    queues = {path: queue.settings for path, queue in partition.queues.items() if queue.state != "draining"}
    for step in changes:
        queues[step.queue] = step.changed(queues[step.queue])
    pools = tuple((name, pool.settings) for name, pool in partition.pools.items())
    return cmd.Configure(config=PartitionConfig(partition.settings, tuple(queues.items()), pools), operator=True)


# -- order -------------------------------------------------------------------------------------------------------


class MoveToFront(Step, frozen=True):
    """The ask is brought to the front of its lane."""

    job: str
    stage: str

    def __str__(self) -> str:
        return "this job is brought to the front of its queue"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [cmd.BringToFront(job=self.job, stage=self.stage, operator=True)]


class JobsSucceed(Step, frozen=True):
    """The jobs in `after` end with success."""

    operator: ClassVar[bool] = False
    cost: ClassVar[int] = 0
    jobs: tuple[str, ...]

    def __str__(self) -> str:
        if len(self.jobs) == 1:
            return f"job {self.jobs[0]} succeeds"
        return f"jobs {', '.join(self.jobs)} succeed"

    def commands(self, partition: Partition) -> list[cmd.Command]:
        return [
            report_end(partition, allocation, allocation.indices)
            for name in self.jobs
            for stage in partition.jobs[name].stages
            for allocation in {live.id: live for live in (stage.live or {}).values()}.values()
        ]


# -- another request ---------------------------------------------------------------------------------------------


class Request(Step, frozen=True):
    """Base class of steps that change the request: the job is killed and submitted again."""

    operator: ClassVar[bool] = False
    cost: ClassVar[int] = 3

    def __str__(self) -> str:
        return f"it is submitted {self._how()}"

    def _how(self) -> str:
        """Return the change in words."""
        raise NotImplementedError

    def changed(self, spec: JobSpec) -> JobSpec:
        """Return the specification after the step."""
        raise NotImplementedError


class StageRequest(Request, frozen=True):
    """Base class of steps that change one stage of the job."""

    stage: str

    def __str__(self) -> str:
        return f"{super().__str__()}{'' if self.stage == MAIN else f' in stage {self.stage}'}"

    def changed(self, spec: JobSpec) -> JobSpec:
        stages = [replace(each, **self._changes(each)) if each.name == self.stage else each for each in spec.stages]
        return replace(spec, stages=tuple(stages))

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        """Return the fields of the stage after the step."""
        raise NotImplementedError


class DropSelector(StageRequest, frozen=True):
    label: str
    values: tuple[str, ...]

    def _how(self) -> str:
        return f"without the selector {self.label}={','.join(self.values)}"

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        return {"selectors": tuple(pair for pair in stage.selectors if pair[0] != self.label)}


class DropWhere(StageRequest, frozen=True):
    def _how(self) -> str:
        return "without `where`"

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        return {"where": ()}


class DropPool(StageRequest, frozen=True):
    pool: str

    def _how(self) -> str:
        return f"without pool {self.pool}"

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        return {"pool": ""}


class Tolerate(StageRequest, frozen=True):
    taint: str

    def _how(self) -> str:
        return f"with a toleration of {self.taint}"

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        return {"tolerations": tuple(sorted({*stage.tolerations, self.taint}))}


class AskLess(StageRequest, frozen=True, kw_only=True):
    """A task asks for less of a resource."""

    varies: ClassVar[str] = "amount_asked"
    resource: str
    amount_asked: int
    """The smaller amount."""
    now: int
    """The present amount."""

    def _how(self) -> str:
        return f"with {format_amount(self.resource, self.amount_asked)} a task"

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        amounts = {**dict(stage.resources), self.resource: self.amount_asked}
        return {"resources": tuple((name, amount) for name, amount in amounts.items() if amount)}

    @property
    def unit(self) -> int:
        return 1000 if self.resource == GPU and self.now >= 1000 else 1  # whole GPUs, or parts of one


class FewerTasks(StageRequest, frozen=True, kw_only=True):
    """A gang is made smaller."""

    varies: ClassVar[str] = "tasks"
    tasks: int
    now: int
    """The present size."""

    def _how(self) -> str:
        return f"with {self.tasks} {'task' if self.tasks == 1 else 'tasks'}"

    def _changes(self, stage: StageSpec) -> dict[str, Any]:
        return {"count": self.tasks, "min": 0}


class AllowPreemption(Request, frozen=True):
    """The job is made preemptible, so that it may borrow capacity beyond the share of its queue."""

    def _how(self) -> str:
        return "as preemptible"

    def changed(self, spec: JobSpec) -> JobSpec:
        return replace(spec, preemptible=True)


class DropAfter(Request, frozen=True):
    """The job no longer waits for other jobs."""

    def _how(self) -> str:
        return "without `after`"

    def changed(self, spec: JobSpec) -> JobSpec:
        return replace(spec, after=())
