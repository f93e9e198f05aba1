"""Searches for remedies: asks the core why an ask does not start, adds a step against that reason, and repeats.

Each way to get capacity is followed on its own: end tasks, add nodes, bring nodes back, release holds, ask for less. A
remedy that works is then reduced until no part can be left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.fitting import fitting_now, may_take
from fairlead.core.model import Micros, Queue, Stage
from fairlead.core.ranges import count
from fairlead.core.resources import GPU
from fairlead.core.shape import SOFT, WHOLE_DEVICE, Shape
from fairlead.core.state import WILDCARD, Partition
from fairlead.core.why.reasons import (
    AfterUnmet,
    HeldBack,
    NeverFits,
    NoCapacity,
    NotActive,
    NotReady,
    OverLimit,
    Reason,
    ShareSpent,
    StillStopping,
    TooManyJobs,
    WouldDelay,
)
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
"""Returns steps that give more capacity than the present ones; None if there is nothing more to try."""

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
    """Return what would be enough to start pending tasks in the next cycle, each remedy for itself, the cheapest first.

    `partition` is a copy that may be altered. The search ends early when `expired` returns True. A remedy without steps
    means that the tasks start in the next cycle anyway.
    """
    return Search(Trials(partition, stage, kind, now), expired).find()


class Search:
    def __init__(self, trials: Trials, expired: Callable[[], bool]) -> None:
        self.trials = trials
        self.partition, self.job, self.ask = trials.partition, trials.job, trials.ask
        self._expired = expired
        self._borrows = False
        """True while a spent share is cured by making the job preemptible instead of by a larger share."""

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

    # -- one way to enough -----------------------------------------------------------------------------------------

    def _follow(self, steps: Steps, way: Way) -> Steps | None:
        """Add a step against each reason, using `way` for capacity, until the ask starts; None if it does not."""
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
        if reason is None or isinstance(reason, WouldDelay):
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
            case OverLimit():
                place = self._limit_of(reason.account)
                if place is not None:
                    queue, user, group = place
                    now = next((step.now for step in _same(steps, RaiseLimit, place, reason.resource)), reason.limit)
                    limit = reason.used + reason.asked
                    return RaiseLimit(queue, user=user, group=group, resource=reason.resource, limit=limit, now=now)
            case TooManyJobs():
                place = self._limit_of(reason.account)
                if place is not None:
                    queue, user, group = place
                    now = next((step.now for step in _same(steps, RaiseMaxJobs, place)), reason.max_jobs)
                    more = max(1, 2 * (reason.max_jobs - now))
                    return RaiseMaxJobs(queue, user=user, group=group, max_jobs=now + more, now=now)
            case NotActive():
                return StartQueue(reason.queue)
            case HeldBack():
                return ReleaseJobAsOperator(self.job.id) if reason.operator else ReleaseJob(self.job.id)
            case AfterUnmet():
                return self._after(reason.jobs)
            case ShareSpent():
                return self._more_share(steps, reason.queue)
            case StillStopping():
                return self._own_stops(steps)
            case NotReady():
                return Ready()
        return None

    def _limit_of(self, account_name: str) -> tuple[str, str, str] | None:
        """Return the queue, and the user or group, whose settings have the limit of an account."""
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

    def _after(self, names: Sequence[str]) -> Step:
        """Return the step that the jobs in `after` succeed; that `after` is dropped if some of their tasks wait."""
        jobs = [self.partition.jobs.get(name) for name in names]
        if all(job is not None and not any(stage.waiting() for stage in job.stages) for job in jobs):
            return JobsSucceed(tuple(names))
        return DropAfter()

    def _more_share(self, steps: Steps, path: str) -> Step | None:
        if self._borrows:
            return AllowPreemption()
        queue: Queue = self.partition.queues[path]
        now = queue.settings.share or 0
        before = next((step.share for step in steps if isinstance(step, RaiseShare) and step.queue == path), now)
        share = now + 1 if before == now else now + 2 * (before - now)
        return RaiseShare(path, share=share, now=now) if share < 2**20 else None

    def _own_stops(self, steps: Steps) -> Step | None:
        """Return the step that stopping tasks of the same job on one node have stopped."""
        done = {step.node for step in steps if isinstance(step, EndTasks)}
        nodes = self.partition.nodes
        for stage in self.job.stages:
            for allocation in (stage.live or {}).values():
                node = nodes.name[nodes.rows[allocation.node]]
                if allocation.state == "stopping" and node not in done:
                    stopping = [
                        Block(self.job.id, other.name, live.indices)
                        for other in self.job.stages
                        for live in {live.id: live for live in (other.live or {}).values()}.values()
                        if live.state == "stopping" and live.node == allocation.node
                    ]
                    return EndTasks(node, tuple(stopping))
        return None

    # -- ways to capacity ------------------------------------------------------------------------------------------

    def _ways(self) -> Iterator[Way]:
        yield self._end_tasks
        yield self._add_nodes
        if any(self._absent_nodes(self.ask.stage)):
            yield self._bring_back
        if self.partition.holds:
            yield self._release

    def _lacking(self, reason: Reason) -> tuple[Stage, int]:
        """Return the stage that lacks capacity, and how many of its tasks do."""
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
        """True if a node would accept such tasks, but not of this user."""
        nodes = self.partition.nodes
        return any(
            nodes.users[row]
            and shape.key.user not in nodes.users[row]
            and shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row])
            for row in nodes.rows.values()
        )

    def _labels_for(self, shape: Shape) -> tuple[tuple[str, str], ...] | None:
        """Return labels that a node needs to accept a shape; None if they cannot be determined."""
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
        """End tasks on the node where the fewest have to end for the missing capacity."""
        stage, missing = self._lacking(reason)
        if isinstance(reason, NeverFits):
            return None
        chosen = [step for step in steps if isinstance(step, EndTasks)]
        more = self._victims(stage, missing, {step.node for step in chosen})
        return (*steps, *more) if more else None

    def _victims(self, stage: Stage, missing: int, without: set[str]) -> list[EndTasks]:
        partition, nodes, shape = self.partition, self.partition.nodes, stage.shape
        offers: list[tuple[int, int, int, EndTasks]] = []
        own = self.partition.earmark_of(self.ask.seq)
        looked_at = cheap = 0
        for row in nodes.in_order():
            node_id, name = nodes.node_id[row], nodes.name[row]
            held = node_id in nodes.held and (own is None or node_id not in own.nodes)
            if name in without or held or not nodes.placeable(row) or not may_take(nodes, row, shape):
                continue
            looked_at += 1
            if looked_at > LOOKED_AT or cheap >= missing:
                break
            what_if = WhatIf(partition)
            before = what_if.slots(node_id, shape, missing)
            most = 1 if shape.key.apart else missing
            blocks: list[Block] = []
            gained = ended = 0
            best: tuple[int, int, EndTasks] | None = None
            live = [
                entry
                for entry in nodes.allocations[row].values()
                if not entry.slots and entry.stage.job is not self.job
            ]
            live.sort(
                key=lambda entry: (
                    entry.state != "stopping",
                    [-amount for _, amount in entry.stage.shape.amounts],
                    -entry.since,
                    entry.id,
                )
            )
            for allocation in live:
                what_if.end(allocation)
                blocks.append(Block(allocation.stage.job.id, allocation.stage.name, allocation.indices))
                ended += count(allocation.indices)
                now = min(most, what_if.slots(node_id, shape, before + most) - before)
                if now > gained:
                    gained = now
                    best = (ended, gained, EndTasks(name, tuple(blocks)))
                if gained >= most:
                    break
            if best is not None:
                offers.append((best[0] * 1000 // best[1], -best[1], node_id, best[2]))
                cheap += best[1] if best[0] <= best[1] else 0  # no other node needs fewer tasks to end
        chosen: list[EndTasks] = []
        for _, gained, _, step in sorted(offers, key=lambda offer: offer[:3]):
            if missing <= 0:
                break
            chosen.append(step)
            missing += gained
        return chosen

    def _end_in_account(self, steps: Steps, reason: OverLimit) -> Steps | None:
        """End tasks that use most of a limit, until the ask fits under it."""
        left = reason.used + reason.asked - reason.limit
        if reason.asked > reason.limit:
            return None
        nodes = self.partition.nodes
        ended = {(step.node, block.job) for step in steps if isinstance(step, EndTasks) for block in step.blocks}
        uses: list[tuple[int, int, str, Block]] = []
        for number, allocation in self.partition.allocations.items():
            job = allocation.stage.job
            name = nodes.name[nodes.rows[allocation.node]]
            use = dict(allocation.stage.shape.amounts).get(reason.resource, 0) * count(allocation.indices)
            counts = any(account.name == reason.account for account in job.accounts)
            if counts and use and not allocation.slots and job is not self.job and (name, job.id) not in ended:
                uses.append((-use, number, name, Block(job.id, allocation.stage.name, allocation.indices)))
        more: list[Step] = []
        for use, _, name, block in sorted(uses, key=lambda entry: entry[:2]):
            if left > 0:
                more.append(EndTasks(name, (block,)))
                left += use
        return (*steps, *more) if left <= 0 else None

    def _end_job(self, steps: Steps, reason: TooManyJobs) -> Steps | None:
        """End all tasks of one running job of an account: a job with few tasks on few nodes."""
        nodes = self.partition.nodes
        ended = {block.job for step in steps if isinstance(step, EndTasks) for block in step.blocks}
        ended |= {entry.stage.job.id for entry in self.partition.allocations.values() if entry.slots}  # in chains
        live: dict[str, dict[str, list[Block]]] = {}
        for allocation in self.partition.allocations.values():
            job = allocation.stage.job
            if job is self.job or job.id in ended or all(account.name != reason.account for account in job.accounts):
                continue
            block = Block(job.id, allocation.stage.name, allocation.indices)
            live.setdefault(job.id, {}).setdefault(nodes.name[nodes.rows[allocation.node]], []).append(block)
        offers = [
            (any(stage.waiting() for stage in self.partition.jobs[name].stages), _tasks(places), name)
            for name, places in live.items()
            if len(places) <= FEW
        ]
        if not offers or not reason.max_jobs:
            return None
        _, _, chosen = min(offers)
        return (*steps, *[EndTasks(node, tuple(blocks)) for node, blocks in live[chosen].items()])

    def _absent_nodes(self, stage: Stage) -> Iterator[Step]:
        """Yield the nodes that would have capacity if they were enabled or came back."""
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
        """True if the job can be killed and submitted again without losing work."""
        job = self.job
        return not job.manager and not job.allocations and not any(stage.ended for stage in job.stages)

    def _requests(self) -> Iterator[Steps]:
        """Yield changes of the submission that may let it start at once."""
        if not self._may_change():
            return
        reason = self.trials.run(()).reason
        if isinstance(reason, AfterUnmet):
            yield (DropAfter(),)
        stage, missing = self._lacking(reason) if reason is not None else (self.trials.needs[0][0], 1)
        if isinstance(reason, OverLimit | NoCapacity | NeverFits) and not self.ask.whole:
            size = self.trials.needs[0][1]
            if size > 1 and size == stage.count:
                smaller = (
                    size - missing if not isinstance(reason, OverLimit) else self._most_allowed(stage, reason, size)
                )
                if smaller > 0:
                    yield (FewerTasks(stage.name, tasks=smaller, now=size),)
        if isinstance(reason, NoCapacity | NeverFits):
            loose = list(self._looser(stage))
            for step in loose:
                yield (step,)
            if 1 < len(loose) <= FEW:
                yield tuple(loose)
            yield from self._smaller(stage)

    def _most_allowed(self, stage: Stage, reason: OverLimit, size: int) -> int:
        return max(0, reason.limit - reason.used) * size // reason.asked if reason.asked else 0

    def _looser(self, stage: Stage) -> Iterator[Step]:
        """Yield steps that drop a condition of a stage on nodes."""
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
        nodes, shape = self.partition.nodes, stage.shape
        offers: dict[Steps, int] = {}
        looked_at = 0
        for row in nodes.in_order():
            if not nodes.placeable(row) or not may_take(nodes, row, shape) or nodes.node_id[row] in nodes.held:
                continue
            looked_at += 1
            if looked_at > LOOKED_AT:
                break
            steps: list[Step] = []
            loss = 0
            for name, amount in shape.amounts:
                free = nodes.capacity[name][row] - nodes.used[name][row] if name in nodes.capacity else 0
                if name == GPU and amount >= WHOLE_DEVICE:
                    free = sum(not used for used in nodes.devices[row][: nodes.gpus[row]]) * WHOLE_DEVICE
                if free < amount:
                    steps.append(AskLess(stage.name, resource=name, amount_asked=free, now=amount))
                    loss += (amount - free) * 1000 // amount
            if steps and all(isinstance(step, AskLess) and step.amount_asked > 0 for step in steps):
                offers.setdefault(tuple(steps), loss)
        yield from sorted(offers, key=lambda steps: offers[steps])[:2]

    # -- no more than needed ---------------------------------------------------------------------------------------

    def _least(self, steps: Steps) -> Steps:
        """Leave out steps, then parts of steps, until nothing more can be left out."""
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
        """Return the step with the least amount that is still enough together with the other steps."""

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


def _tasks(places: dict[str, list[Block]]) -> int:
    return sum(count(block.indices) for blocks in places.values() for block in blocks)


def _in_order(steps: Steps) -> Steps:
    """Return the steps in the order in which trials do them: settings of queues first, a new submission last."""
    return tuple(sorted(steps, key=lambda step: (not isinstance(step, QueueStep), isinstance(step, Request))))


def _with(steps: Steps, step: Step) -> Steps:
    """Return the steps with one more, which replaces a weaker step of its kind."""
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
