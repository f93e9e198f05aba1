"""Causes as typed values: why tasks run on their nodes, why they stop, and how earlier attempts ended.

Reasons say why tasks wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.admission import is_unpreemptible
from fairlead.core.entitlement import has_shares
from fairlead.core.index.scored import ScoreIndex
from fairlead.core.model import Allocation, Job, Micros, Stage
from fairlead.core.outcomes import claimant_of, live_of
from fairlead.core.policy.expected_loss import Good
from fairlead.core.policy.placement import PACK, PLACEMENTS
from fairlead.core.preempt.loans import is_on
from fairlead.core.ranges import count
from fairlead.core.resources import format_moment
from fairlead.core.state import Partition
from fairlead.core.why.never import could_take
from fairlead.core.why.reasons import Reason, of_stage
from fairlead.views.outlook import listed, number_of_tasks

NAMED = 5
"""At most this many nodes, and this many ways in which earlier attempts ended, are named."""
LOOKED_AT = 1_000
"""At most this many tasks are searched for the ends of earlier attempts."""


GOOD: dict[Good, str] = {
    "full": "no GPU stays idle",
    "parts": "no unusable part of a GPU is left",
    "others": "enough of all other resources is left for the idle GPUs",
    "least": "the fewest GPUs are expected to stay unusable",
}


class Cause(Reason, frozen=True):
    """Base class of causes. Each concerns a number of tasks of a stage."""

    stage: str
    tasks: int

    @property
    def _counted(self) -> str:
        return number_of_tasks(self.tasks)

    def _verb(self, one: str, several: str) -> str:
        return one if self.tasks == 1 else several


class OnNodes(Cause, frozen=True):
    """Base class of causes that concern tasks on nodes."""

    nodes: tuple[str, ...]
    """The first of the nodes."""
    of: int
    """The number of the nodes."""

    @property
    def where(self) -> str:
        return listed(self.nodes, self.of)


class RunsOn(OnNodes, frozen=True):
    """Tasks run on nodes that placement chose."""

    place: str
    """The placement of the partition."""
    suitable: int
    """The number of nodes that accept such tasks and are large enough for one."""
    known: int
    """The number of all nodes."""
    held: bool = False
    """True if nodes were held for the tasks before they started."""
    near: str = ""
    """The label by which nodes close to each other were chosen."""
    by_cost: bool = False
    """True if the cost of pools had an influence, because the suitable nodes have different costs."""
    good: Good | None = None
    """What is good about the nodes, if the placement reckons with lost GPUs."""

    def __str__(self) -> str:
        return f"{of_stage(self.stage)}{self._counted} {self._verb('runs', 'run')} on {self.where}, {self.why}"

    @property
    def why(self) -> str:
        """Return why they run there, as the end of a sentence."""
        of = "" if self.known == self.suitable else f" of {self.known}"
        tasks = self._verb("such a task", "such tasks")
        if self.suitable == 1:
            chosen = f"the only {f'one{of} nodes' if of else 'node'} that can run {tasks}"
        else:
            by = f"{'the cost of pools and ' * self.by_cost}placement `{self.place}`"
            chosen = f"chosen by {by} from the {self.suitable}{of} nodes that can run {tasks}"
            chosen += f", where {GOOD[self.good]}" if self.good else ""
        chosen += f", close together by label {self.near}" if self.near else ""
        return chosen + (", after nodes were held for it" if self.held else "")


class Launching(OnNodes, frozen=True):
    """Tasks were sent to their nodes, and the agents there have not acknowledged them yet."""

    since: Micros

    def __str__(self) -> str:
        starting = f"{self._verb('is', 'are')} starting on {self.where} since {format_moment(self.since)}"
        return f"{of_stage(self.stage)}{self._counted} {starting}"


class Stopping(OnNodes, frozen=True):
    """Tasks were told to stop and have not stopped yet."""

    cause: str
    """The cause of the stop: `kill`, `scale`, `time limit`, `preempt`, `gang`, `requeue`, `replace` or `done`."""
    stops_for: str
    """The job or queue for which tasks are preempted, as its owner may know it; otherwise empty."""
    since: Micros

    def __str__(self) -> str:
        why = f" for {self.stops_for}" if self.stops_for else f" ({self.cause})"
        where = f"{self.where} since {format_moment(self.since)}"
        return f"{of_stage(self.stage)}{self._counted} {self._verb('stops', 'stop')} on {where}{why}"


class OnLoan(Cause, frozen=True):
    """Tasks run in a queue that uses more than its share, so that the newest tasks of the queue may be stopped."""

    queue: str
    use: int
    share: int
    """Both in percent of the whole partition."""

    def __str__(self) -> str:
        whose = f"queue {self.queue} uses {self.use} % of the cluster and its share is {self.share} %"
        return f"{whose}, so its newest tasks may be stopped when other queues need their shares"


class LastAttempt(Cause, frozen=True):
    """How the last attempt of waiting tasks ended, such as by a failure, a preemption or a failed launch."""

    ended: str
    tries_used: int
    tries: int
    launches_failed: int = 0
    """The number of launches in a row that were not acknowledged."""
    max_launches: int = 0

    def __str__(self) -> str:
        return f"{of_stage(self.stage)}{self._counted} {self.again}"

    @property
    def again(self) -> str:
        """Return "waits again", with the end of the last attempt, for a sentence about the tasks."""
        waits = self._verb("waits", "wait")
        again = f"; try {self.tries_used} of {self.tries}" if self.tries_used else ""
        if self.launches_failed:
            again += f"; launch {self.launches_failed} of {self.max_launches}"
        return f"{waits} again (last attempt: {self.ended}{again})"


class Over(Cause, frozen=True):
    """The job is over."""

    state: str
    ended: str
    """Why it ended; empty if all tasks succeeded."""

    def __str__(self) -> str:
        if self.ended.startswith(f"{self.state} "):
            return self.ended
        return f"{self.state}, {self.ended}" if self.ended else self.state


def causes_of(partition: Partition, job: Job) -> list[Cause]:
    """Return the causes of a job's present state. Reasons for waiting are not among them."""
    causes: list[Cause] = []
    if job.over:
        tasks = sum(stage.size for stage in job.stages)
        causes.append(Over("", tasks, job.state, job.reason))
    for stage in job.stages:
        causes += _live(partition, stage)
        causes += [] if job.over else _last_attempts(partition, stage)
    running = sum(cause.tasks for cause in causes if isinstance(cause, RunsOn))
    return [*causes, *_on_loan(partition, job, running)] if running else causes


def _on_loan(partition: Partition, job: Job, running: int) -> Iterator[OnLoan]:
    """Find the first level on which the queue of a job has a loan that may be taken back from it."""
    if not is_on(partition) or is_unpreemptible(partition, job):
        return
    rights = partition.entitlements()
    for queue in job.queue.line()[1:] if rights.whole else ():
        if queue.parent is not None and has_shares(queue.parent) and rights.loaned(queue):
            use, share = (100 * part // rights.whole for part in (rights.used(queue), rights.of(queue)))
            yield OnLoan("", running, queue.path, use, share)
            return


def _live(partition: Partition, stage: Stage) -> Iterator[Cause]:
    groups: dict[tuple[str, str, str], list[Allocation]] = {}
    for allocation in live_of(stage):
        if allocation.slots and allocation.state == "assigned":
            continue  # waiting in a chain is a reason, not a cause
        stops_for = claimant_of(partition, allocation) if allocation.stopped_for else ""
        cause: str = allocation.cause if allocation.state == "stopping" else ""
        groups.setdefault((allocation.state, cause, stops_for), []).append(allocation)
    for (state, cause, stops_for), allocations in groups.items():
        tasks = sum(count(allocation.indices) for allocation in allocations)
        rows = {partition.nodes.rows[allocation.node]: None for allocation in allocations}
        names, of = tuple(partition.nodes.name[row] for row in list(rows)[:NAMED]), len(rows)
        since = min(allocation.since for allocation in allocations)
        if state == "stopping":
            yield Stopping(stage.name, tasks, names, of, cause, stops_for, since)
        elif state == "assigned":
            yield Launching(stage.name, tasks, names, of, since)
        else:
            held = any(allocation.safe_until for allocation in allocations)
            yield _runs_on(partition, stage, tasks, names, of, held)


def _runs_on(partition: Partition, stage: Stage, tasks: int, names: tuple[str, ...], of: int, held: bool) -> RunsOn:
    nodes, shape = partition.nodes, stage.shape
    suitable = [row for row in nodes.rows.values() if could_take(partition, row, shape)]
    place, by_cost = partition.settings.place, len({nodes.cost_of(nodes.pool[row]) for row in suitable}) > 1
    prices = place in PLACEMENTS and PLACEMENTS[place].prices
    if prices and not any(
        nodes.gpus[row] or nodes.plugged[row] for row in [nodes.rows[nodes.joins[name]] for name in names]
    ):
        place = PACK
    index, good = partition.derived.index, None
    if prices and shape.gpus and isinstance(index, ScoreIndex):
        found = [index.good_about(allocation.node, shape, allocation.devices) for allocation in live_of(stage)[:NAMED]]
        good = found[0] if len(set(found)) == 1 else "least"
    return RunsOn(
        stage.name, tasks, names, of, place, len(suitable), len(nodes.rows), held, shape.key.near, by_cost, good
    )


def _last_attempts(partition: Partition, stage: Stage) -> Iterator[LastAttempt]:
    groups: dict[tuple[str, int, int], int] = {}
    waiting = [wanted for wanted in stage.pending if wanted is not None]
    for looked_at, (index, past) in enumerate((stage.history or {}).items() if waiting else ()):
        if looked_at == LOOKED_AT:
            break
        if past.reason and any(index in wanted for wanted in waiting):
            used = stage.tries_used(index) if past.tries_used else 0
            key = (past.reason, used, past.launches_failed)
            groups[key] = groups.get(key, 0) + 1
    most = partition.settings.max_launch_tries
    for (ended, used, launches), tasks in sorted(groups.items(), key=lambda group: -group[1])[:NAMED]:
        yield LastAttempt(stage.name, tasks, ended, used, stage.terms.tries, launches, most)
