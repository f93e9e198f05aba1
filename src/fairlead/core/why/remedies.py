"""Searches for remedies: asks the core why an ask does not start, adds a step against that reason, and repeats.

There are several ways to get capacity: end tasks, add nodes, bring nodes back, release holds, ask for less. Each gives
a remedy of its own. A remedy that works is then reduced until no part can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.model import Allocation, Job, Micros, Stage
from fairlead.core.node_fit import fitting_now, may_take
from fairlead.core.ranges import count
from fairlead.core.resources import GPU
from fairlead.core.shape import SOFT, WHOLE_DEVICE, Shape
from fairlead.core.state import WILDCARD, Partition
from fairlead.core.why import reasons
from fairlead.core.why.reasons import NeverFits, NoCapacity, OverLimit, Reason, TooManyJobs
from fairlead.core.why.remedy_steps import (
    AddNodes,
    AllowPreemption,
    AskLess,
    Block,
    BringNodeBack,
    DropAfter,
    DropPool,
    DropSelector,
    DropWhere,
    EnableNode,
    EndTasks,
    FewerTasks,
    JobsSucceed,
    LimitStep,
    MoveToFront,
    QueueStep,
    RaiseLimit,
    RaiseMaxJobs,
    RaiseShare,
    RaiseThrottle,
    Ready,
    ReleaseHold,
    ReleaseJob,
    ReleaseJobAsOperator,
    Remedy,
    Request,
    StartQueue,
    Step,
    Tolerate,
)
from fairlead.core.why.remedy_trial import Outcome, Trials

Steps = tuple[Step, ...]
Way = Callable[[Steps, Reason], Steps | None]
"""A function that returns steps with more capacity than the given ones; None if there is nothing more to try."""

LONGEST = 24
"""The most steps on one way."""
MOST = 400
"""The most trials for one ask."""
FEW = 8
"""At most this number of nodes, taints and selectors are tried one by one."""
LOOKED_AT = 300
"""At most this number of suitable nodes are searched for tasks that could end, and for free capacity."""
LARGEST = 2**16
"""The most tasks for which nodes are added."""


def find_remedies(
    partition: Partition, stage: Stage, kind: int, now: Micros, expired: Callable[[], bool] = lambda: False
) -> list[Remedy]:
    """Return remedies, the cheapest first. Each is enough to start the pending tasks in the next cycle.

    `partition` is a copy, which changes. The search ends early when `expired` returns True. A remedy without steps
    means that the tasks start in the next cycle anyway.
    """
    return Search(Trials(partition, stage, kind, now), expired).find()


class Search:
    def __init__(self, trials: Trials, expired: Callable[[], bool]) -> None:
        self.trials = trials
        self.partition, self.job, self.ask = trials.partition, trials.job, trials.ask
        self._expired = expired
        self._borrows = False
        """True if the job is made preemptible when its share is used up; False if the share is raised."""

    def find(self) -> list[Remedy]:
        first = self.trials.run(())
        if first.started:
            return [Remedy(())]
        ways: list[Steps | None] = []
        may_borrow = not self.job.preemptible and self._may_change()
        for borrows in (True, False) if may_borrow else (False,):
            self._borrows = borrows
            ways += [self._follow((), way) for way in self._ways()]
        enough = [*filter(None, ways), *[steps for steps in self._requests() if self._starts(steps)]]
        found = dict.fromkeys(self._least(steps) for steps in enough)
        return sorted([Remedy(steps) for steps in found if steps], key=lambda remedy: remedy.cost)

    def _over(self) -> bool:
        return self.trials.runs >= MOST or self._expired()

    def _starts(self, steps: Steps) -> bool:
        return not self._over() and self.trials.run(steps).started

    def _follow(self, steps: Steps, way: Way) -> Steps | None:
        """Add steps against one reason after another until the ask starts; None if it does not. `way` gets capacity."""
        for _ in range(LONGEST):
            if self._over():
                return None
            outcome = self.trials.run(steps)
            if outcome.started:
                return steps
            more = None if outcome.refused else self._cured(steps, outcome, way)
            if more is None or more == steps:
                return None
            steps = more
        return None

    def _cured(self, steps: Steps, outcome: Outcome, way: Way) -> Steps | None:
        reason = outcome.reason
        if isinstance(reason, NoCapacity | NeverFits):
            return way(steps, reason) or self._to_front(steps)
        if reason is None or isinstance(reason, reasons.WouldDelay):
            return self._to_front(steps)
        if isinstance(reason, OverLimit) and way == self._end_tasks:
            return self._end_in_account(steps, reason)
        if isinstance(reason, TooManyJobs) and way == self._end_tasks and (more := self._end_job(steps, reason)):
            return more
        cure = self._cure(steps, reason)
        return None if cure is None else _with(steps, cure)

    def _to_front(self, steps: Steps) -> Steps | None:
        front = MoveToFront(self.job.id, self.ask.stage.name)
        return None if front in steps else (*steps, front)

    def _cure(self, steps: Steps, reason: Reason) -> Step | None:
        """Return the step against a reason other than missing capacity."""
        match reason:
            case OverLimit() | TooManyJobs():
                return self._raise_limit(steps, reason)
            case reasons.Throttled():
                wanted = self.trials.needs[0][1]
                now = next((step.now for step in steps if isinstance(step, RaiseThrottle)), reason.throttle)
                more = max(wanted, 2 * (reason.throttle - now))
                return RaiseThrottle(job=self.job.id, stage=reason.stage, throttle=now + more, now=now)
            case reasons.NotActive():
                return StartQueue(reason.queue)
            case reasons.HeldBack():
                return ReleaseJobAsOperator(self.job.id) if reason.operator else ReleaseJob(self.job.id)
            case reasons.AfterUnmet():
                return self._after(reason)
            case reasons.ShareSpent():
                return self._more_share(steps, reason.queue)
            case reasons.StillStopping():
                return self._own_stops(steps)
            case reasons.NotReady():
                return Ready()
        return None

    def _raise_limit(self, steps: Steps, reason: OverLimit | TooManyJobs) -> Step | None:
        place = self._limit_of(reason.account)
        if place is None:
            return None
        queue, user, group = place
        if isinstance(reason, OverLimit):
            now = next((step.now for step in _same(steps, RaiseLimit, place, reason.resource)), reason.limit)
            limit = reason.used + reason.asked
            return RaiseLimit(queue, user=user, group=group, resource=reason.resource, limit=limit, now=now)
        now = next((step.now for step in _same(steps, RaiseMaxJobs, place)), reason.max_jobs)
        more = max(1, 2 * (reason.max_jobs - now))
        return RaiseMaxJobs(queue, user=user, group=group, max_jobs=now + more, now=now)

    def _limit_of(self, account_name: str) -> tuple[str, str, str] | None:
        """Return where the limit of an account is set: the queue and, for such a limit, the user or the group."""
        for queue in self.job.queue.line():
            if queue.account.name == account_name:
                return queue.path, "", ""
            for user, account in queue.users.items():
                if account.name == account_name:
                    return queue.path, user if user in dict(queue.settings.users) else WILDCARD, ""
            for group, account in queue.groups.items():
                if account.name == account_name:
                    return queue.path, "", group
        return None

    def _after(self, reason: reasons.AfterUnmet) -> Step:
        """Return the step that the jobs in `after` succeed; if that does not help, the step that drops `after`."""
        names = reason.jobs
        jobs = [self.partition.jobs.get(name) for name in names]
        if "failed" not in reason.conditions and all(
            job is not None and not any(stage.unstarted() for stage in job.stages) for job in jobs
        ):
            return JobsSucceed(tuple(names))
        return DropAfter()

    def _more_share(self, steps: Steps, path: str) -> Step | None:
        if self._borrows:
            return AllowPreemption()
        now = self.partition.queues[path].settings.share or 0
        before = next((step.share for step in steps if isinstance(step, RaiseShare) and step.queue == path), now)
        share = now + 1 if before == now else now + 2 * (before - now)
        return RaiseShare(path, share=share, now=now) if share < 2**20 else None

    def _own_stops(self, steps: Steps) -> Step | None:
        """Return the step in which the stopping tasks of the job on one node end."""
        done = {step.node for step in steps if isinstance(step, EndTasks)}
        live = {live.id: live for stage in self.job.stages for live in (stage.live or {}).values()}.values()
        stopping = [allocation for allocation in live if allocation.state == "stopping"]
        node = next((node for node in map(self._node, stopping) if node not in done), None)
        if node is None:
            return None
        return EndTasks(node, tuple(_block(allocation) for allocation in stopping if self._node(allocation) == node))

    # -- ways to capacity ------------------------------------------------------------------------------------------

    def _ways(self) -> Iterator[Way]:
        yield self._end_tasks
        yield self._add_nodes
        if any(self._absent_nodes(self.ask.stage)):
            yield self._bring_back
        if self.partition.holds:
            yield self._release

    def _lacking(self, reason: Reason) -> tuple[Stage, int]:
        """Return the stage that lacks capacity, and the number of its tasks without capacity."""
        stage, wanted = self.trials.needs[0]
        if isinstance(reason, NoCapacity | NeverFits) and reason.stages:
            name, wanted, fitting = reason.stages[-1]
            return self.job.stage(name.split(" and ")[0]) or stage, max(1, wanted - fitting)
        if isinstance(reason, NoCapacity):
            return stage, max(1, wanted - reason.fitting)
        return stage, max(1, wanted - (reason.most if isinstance(reason, NeverFits) else 0))

    def _add_nodes(self, steps: Steps, reason: Reason) -> Steps | None:
        stage, missing = self._lacking(reason)
        names = f"new-{stage.position}"
        before = next((step for step in steps if isinstance(step, AddNodes) and step.names == names), None)
        if before is not None:
            # Other asks take the new capacity: move ahead of them, or add enough for them too.
            more = None if before.tasks >= LARGEST else _with(steps, before.with_amount(2 * before.tasks))
            return self._to_front(steps) or more
        labels = self._labels_for(stage.shape)
        if labels is None:
            return None
        shape = stage.shape
        parts = WHOLE_DEVICE // shape.device_milli if shape.devices else 1
        key = shape.key
        user = self.job.user if self._is_closed_to_user(shape) else ""
        return (*steps, AddNodes(missing, shape.amounts, key.apart, parts, labels, key.pool, names, user))

    def _is_closed_to_user(self, shape: Shape) -> bool:
        """True if a node would accept tasks of a shape, but not of this user."""
        nodes = self.partition.nodes
        return any(
            nodes.users[row]
            and shape.key.user not in nodes.users[row]
            and shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row])
            for row in nodes.rows.values()
        )

    def _labels_for(self, shape: Shape) -> tuple[tuple[str, str], ...] | None:
        """Return labels with which a new node would accept a shape; None if they are unknown."""
        if shape.key.manager:
            return None
        if shape.key.where:
            nodes = self.partition.nodes
            for row in nodes.in_order():
                if shape.accepts(nodes.labels[row], (), shape.key.pool):
                    wanted = nodes.labels[row]
                    return tuple(sorted((name, wanted[name]) for name in shape.selecting if name in wanted))
            return None
        return tuple(
            (label, next((value for value in values if value != "*"), "yes")) for label, values in shape.key.selectors
        )

    def _end_tasks(self, steps: Steps, reason: Reason) -> Steps | None:
        stage, missing = self._lacking(reason)
        if isinstance(reason, NeverFits):
            return None
        chosen = [step for step in steps if isinstance(step, EndTasks)]
        more = self._victims(stage, missing, {step.node for step in chosen})
        return (*steps, *more) if more else None

    def _victims(self, stage: Stage, missing: int, without: set[str]) -> list[EndTasks]:
        """Return steps that end tasks on nodes, until all missing tasks fit; first where the fewest have to end."""
        nodes, shape = self.partition.nodes, stage.shape
        own = self.partition.earmark_of(self.ask.seq)
        offers: list[tuple[int, int, int, EndTasks]] = []
        looked_at = cheap = 0
        for row in nodes.in_order():
            node_id = nodes.node_id[row]
            held = node_id in nodes.held and (own is None or node_id not in own.nodes)
            if nodes.name[row] in without or held or not nodes.placeable(row) or not may_take(nodes, row, shape):
                continue
            looked_at += 1
            if looked_at > LOOKED_AT or cheap >= missing:
                break
            step, gained = self._end_on(row, shape, missing)
            if gained:
                offers.append((step.amount * 1000 // gained, -gained, node_id, step))
                cheap += gained if step.amount <= gained else 0  # no other node needs fewer tasks to end
        chosen: list[EndTasks] = []
        for _, gained, _, step in sorted(offers, key=lambda offer: offer[:3]):
            if missing > 0:
                chosen.append(step)
                missing += gained
        return chosen

    def _end_on(self, row: int, shape: Shape, missing: int) -> tuple[EndTasks, int]:
        """Return the step that ends tasks on a node until no more tasks of a shape fit, and how many more fit then."""
        nodes, what_if = self.partition.nodes, WhatIf(self.partition)
        node_id, most = nodes.node_id[row], 1 if shape.key.apart else missing
        before = what_if.slots(node_id, shape, missing)
        blocks: list[Block] = []
        gained = enough = 0
        for allocation in self._by_ease(row):
            if gained < most:
                what_if.end(allocation)
                blocks.append(_block(allocation))
                now = min(most, what_if.slots(node_id, shape, before + most) - before)
                if now > gained:
                    gained, enough = now, len(blocks)
        return EndTasks(nodes.name[row], tuple(blocks[:enough])), gained

    def _by_ease(self, row: int) -> list[Allocation]:
        """Return the tasks of other jobs on a node: first tasks that stop already, then the largest and newest."""
        live = self.partition.nodes.allocations[row].values()
        return sorted(
            [allocation for allocation in live if not allocation.slots and allocation.stage.job is not self.job],
            key=lambda allocation: (
                allocation.state != "stopping",
                [-amount for _, amount in allocation.stage.shape.amounts],
                -allocation.since,
                allocation.id,
            ),
        )

    def _end_in_account(self, steps: Steps, reason: OverLimit) -> Steps | None:
        """End the tasks that use most of a limited resource, until the ask fits under the limit."""
        left = reason.used + reason.asked - reason.limit
        if reason.asked > reason.limit:
            return None
        ended = {(step.node, block.job) for step in steps if isinstance(step, EndTasks) for block in step.blocks}
        uses: list[tuple[int, int, Allocation]] = []
        for number, allocation in self.partition.allocations.items():
            job = allocation.stage.job
            use = dict(allocation.stage.shape.amounts).get(reason.resource, 0) * count(allocation.indices)
            others = job is not self.job and (self._node(allocation), job.id) not in ended
            if use and others and not allocation.slots and _counts_for(job, reason.account):
                uses.append((-use, number, allocation))
        more: list[Step] = []
        for use, _, allocation in sorted(uses, key=lambda entry: entry[:2]):
            if left > 0:
                more.append(EndTasks(self._node(allocation), (_block(allocation),)))
                left += use
        return (*steps, *more) if left <= 0 else None

    def _end_job(self, steps: Steps, reason: TooManyJobs) -> Steps | None:
        """End all tasks of one other job of an account: the smallest one that runs on few nodes."""
        ended = {block.job for step in steps if isinstance(step, EndTasks) for block in step.blocks}
        ended |= {entry.stage.job.id for entry in self.partition.allocations.values() if entry.slots}  # in chains
        live: dict[str, dict[str, list[Block]]] = {}
        for allocation in self.partition.allocations.values():
            job = allocation.stage.job
            if job is not self.job and job.id not in ended and _counts_for(job, reason.account):
                live.setdefault(job.id, {}).setdefault(self._node(allocation), []).append(_block(allocation))
        few = [name for name, places in live.items() if len(places) <= FEW]
        if not few or not reason.max_jobs:
            return None
        chosen = min(few, key=lambda name: (*self._size(name), name))
        return (*steps, *[EndTasks(node, tuple(blocks)) for node, blocks in live[chosen].items()])

    def _size(self, name: str) -> tuple[bool, int]:
        """Return True if tasks of a job wait, and the number of its running tasks."""
        job = self.partition.jobs[name]
        return any(stage.unstarted() for stage in job.stages), job.live

    def _node(self, allocation: Allocation) -> str:
        return self.partition.nodes.name[self.partition.nodes.rows[allocation.node]]

    def _absent_nodes(self, stage: Stage) -> Iterator[Step]:
        """Yield steps that enable or bring back a node with capacity for a task."""
        nodes = self.partition.nodes
        for row in nodes.in_order():
            node_id = nodes.node_id[row]
            away = nodes.state[row] == "lost" or node_id in nodes.disconnected
            if not away and nodes.state[row] == "up":
                continue
            if may_take(nodes, row, stage.shape) and fitting_now(nodes, node_id, stage.shape, 1)[0]:
                yield BringNodeBack(nodes.name[row]) if away else EnableNode(nodes.name[row])

    def _bring_back(self, steps: Steps, reason: Reason) -> Steps | None:
        stage, _ = self._lacking(reason)
        absent = (step for step in self._absent_nodes(stage) if step not in steps)
        step = next(absent, None)
        return None if step is None else (*steps, step)

    def _release(self, steps: Steps, reason: Reason) -> Steps | None:
        for _, hold in sorted(self.partition.holds.items()):
            step = ReleaseHold(hold.job)
            if hold.job != self.job.id and step not in steps:
                return (*steps, step)
        return None

    # -- another request -------------------------------------------------------------------------------------------

    def _may_change(self) -> bool:
        """True if the job can be killed and submitted again without loss of work."""
        job = self.job
        return not job.manager and not job.allocations and not any(stage.ended for stage in job.stages)

    def _requests(self) -> Iterator[Steps]:
        """Yield changes of the job's request with which it may start at once."""
        if not self._may_change():
            return
        reason = self.trials.run(()).reason
        if isinstance(reason, reasons.AfterUnmet):
            yield (DropAfter(),)
        stage, missing = self._lacking(reason) if reason is not None else (self.trials.needs[0][0], 1)
        if isinstance(reason, OverLimit | NoCapacity | NeverFits) and not self.ask.whole:
            size = self.trials.needs[0][1]
            if size > 1 and size == stage.count:
                smaller = _most_allowed(reason, size) if isinstance(reason, OverLimit) else size - missing
                if smaller > 0:
                    yield (FewerTasks(stage.name, tasks=smaller, now=size),)
        if isinstance(reason, NoCapacity | NeverFits):
            loose = list(self._looser(stage))
            for step in loose:
                yield (step,)
            if 1 < len(loose) <= FEW:
                yield tuple(loose)
            yield from self._smaller(stage)

    def _looser(self, stage: Stage) -> Iterator[Step]:
        key, nodes = stage.shape.key, self.partition.nodes
        for label, values in key.selectors[:FEW]:
            yield DropSelector(stage.name, label, values)
        if key.where:
            yield DropWhere(stage.name)
        if key.pool:
            yield DropPool(stage.name, key.pool)
        taints: dict[str, None] = {}
        for row in nodes.in_order():
            for taint in nodes.taints[row]:
                if not taint.endswith(SOFT) and not stage.shape.tolerates(taint):
                    taints[taint] = None
            if len(taints) >= FEW:
                break
        for taint in taints:
            yield Tolerate(stage.name, taint)

    def _smaller(self, stage: Stage) -> Iterator[Steps]:
        """Yield steps that make tasks smaller, to fit the free capacity of a node, the smallest reduction first."""
        nodes = self.partition.nodes
        rows = (
            row
            for row in nodes.in_order()
            if nodes.placeable(row) and may_take(nodes, row, stage.shape) and nodes.node_id[row] not in nodes.held
        )
        offers: dict[Steps, int] = {}
        for row in islice(rows, LOOKED_AT):
            steps = [
                AskLess(stage.name, resource=name, amount_asked=free, now=amount)
                for name, amount in stage.shape.amounts
                if (free := self._free(row, name, amount)) < amount
            ]
            if steps and all(step.amount_asked > 0 for step in steps):
                offers.setdefault(
                    tuple(steps), sum((step.now - step.amount_asked) * 1000 // step.now for step in steps)
                )
        yield from sorted(offers, key=lambda steps: offers[steps])[:2]

    def _free(self, row: int, name: str, amount: int) -> int:
        """Return how much of a resource is free on a node. If a task asks for whole GPUs, only whole GPUs count."""
        nodes = self.partition.nodes
        if name == GPU and amount >= WHOLE_DEVICE:
            return sum(not used for used in nodes.devices[row][: nodes.gpus[row]]) * WHOLE_DEVICE
        return nodes.capacity[name][row] - nodes.used[name][row] if name in nodes.capacity else 0

    def _least(self, steps: Steps) -> Steps:
        """Leave out steps, then parts of steps, as long as the rest is enough."""
        ordered = _in_order(steps)
        steps = ordered if self._starts(ordered) else steps
        before: Steps | None = None
        while steps != before:
            before = steps
            for step in steps:
                fewer = tuple(other for other in steps if other != step)
                if self._starts(fewer):
                    steps = fewer
            for at, step in enumerate(steps):
                steps = (*steps[:at], self._smallest(steps, at, step), *steps[at + 1 :])
        return steps

    def _smallest(self, steps: Steps, at: int, step: Step) -> Step:
        """Return a step with the least amount that is enough together with the other steps."""

        def enough(candidate: Step) -> bool:
            return self._starts((*steps[:at], candidate, *steps[at + 1 :]))

        if isinstance(step, EndTasks) and 1 < len(step.blocks) <= FEW:
            for block in step.blocks:
                fewer = EndTasks(step.node, tuple(other for other in step.blocks if other != block))
                if fewer.blocks and enough(fewer):
                    step = fewer
        if step.amount < 2 or not enough(step.with_amount(step.amount - 1)):
            return step
        too_little, amount = 0, step.amount - 1
        while amount - too_little > 1:
            middle = (too_little + amount) // 2
            if enough(step.with_amount(middle)):
                amount = middle
            else:
                too_little = middle
        return step.with_amount(amount)


def _most_allowed(reason: OverLimit, size: int) -> int:
    """Return how many of a gang's tasks the limit would allow."""
    return max(0, reason.limit - reason.used) * size // reason.asked if reason.asked else 0


def _block(allocation: Allocation) -> Block:
    return Block(allocation.stage.job.id, allocation.stage.name, allocation.indices)


def _counts_for(job: Job, account_name: str) -> bool:
    """True if a job counts for an account."""
    return any(account.name == account_name for account in job.accounts)


def _in_order(steps: Steps) -> Steps:
    """Return the steps in the order of a trial: settings of queues first, a new submission last."""
    return tuple(sorted(steps, key=lambda step: (not isinstance(step, QueueStep), isinstance(step, Request))))


def _with(steps: Steps, step: Step) -> Steps:
    """Add a step, in place of the same step with another amount."""
    return (*[other for other in steps if not _replaces(step, other)], step)


def _replaces(step: Step, other: Step) -> bool:
    """True if two steps differ only in the amount."""
    return type(step) is type(other) and step.amount > 0 and other == step.with_amount(max(1, other.amount))


def _same(steps: Steps, kind: type[LimitStep], place: tuple[str, str, str], resource: str = "") -> list[LimitStep]:
    return [
        step
        for step in steps
        if isinstance(step, kind)
        and (step.queue, step.user, step.group) == place
        and getattr(step, "resource", "") == resource
    ]
