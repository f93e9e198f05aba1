"""A second implementation of the rules for starting tasks: which asks may start, and which fit.

The checkers use it; the core does not. Use is summed over the allocations. Only the arithmetic of shares is the core's;
it has its own tests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from fairlead.core.entitlement import Entitlements
from fairlead.core.model import NEW, REPLACE, SCALE, Account, Ask, Job, Stage
from fairlead.core.resources import GPU
from fairlead.core.shape import WHOLE_DEVICE, Shape
from fairlead.core.state import Partition
from tests.chaos.tasks import indices
from tests.chaos.users import UserUses

Tasks = Sequence[tuple[Stage, int]]
"""Stages and a number of tasks of each."""

UNBOUNDED = 1_000_000
"""Number of tasks without resources that fit a node."""


# -- asks --------------------------------------------------------------------------------------------------------


def together(ask: Ask) -> list[tuple[Stage, int]]:
    """Return the tasks of an ask that start together or not at all."""
    if ask.whole:
        return [(stage, stage.needed) for stage in ask.stages if stage.needed]
    stage = ask.stage
    if ask.kind == SCALE and stage.terms.scaling == "strict" and not stage.terms.min:
        return [(stage, ask.count)]
    if ask.kind in (REPLACE, SCALE) or stage.started:
        return [(stage, 1)]
    return [(stage, max(1, stage.needed))]


def has_one_shape(ask: Ask) -> bool:
    """True if the numbers of tasks that fit each node decide whether the ask fits."""
    key = ask.stage.shape.key
    return not (ask.whole or key.near or key.apart)


def is_unpreemptible(job: Job) -> bool:
    """True if the tasks of a job cannot be preempted."""
    return not job.preemptible or not all(queue.settings.preemptible for queue in job.queue.line())


def is_missed(ask: Ask) -> bool:
    """True for replacements that a started gang needs to have enough tasks."""
    return ask.kind == REPLACE and ask.stage.running() < ask.stage.needed


def comes_before(
    partition: Partition, uses: UserUses, one: Ask, other: Ask, more: Sequence[tuple[Stage, int]] = ()
) -> bool:
    """True if the ask `one` is certainly tried before `other`, of the same queue.

    `more` are tasks that count as started. With `order: priority`, and among the jobs of one user with `fair`, this is
    certain only if `one` is behind `other` neither in priority nor in kind; then a replacement that a gang needs comes
    first. With an ordering policy of another package it is never certain.
    """
    settings = one.stage.job.queue.settings
    places = [(ask.round, -ask.front) for ask in (one, other)]
    if places[0] != places[1]:
        return places[0] < places[1]
    kinds = [NEW if ask.kind == SCALE and not settings.scale_first else ask.kind for ask in (one, other)]
    jobs = (one.stage.job, other.stage.job)
    ages = [(ask.asked, ask.place, ask.seq) for ask in (one, other)]
    if settings.order == "fair" and jobs[0].spec.user != jobs[1].spec.user:
        return uses.compare(partition, one, other, list(more)) < 0
    live = [0, 0]
    if settings.order in ("fair", "jobs"):
        live = [job.live + sum(tasks for stage, tasks in more if stage.job is job) for job in jobs]
    if settings.order in ("priority", "fair"):
        if is_missed(one) != is_missed(other):
            return is_missed(one) and kinds[0] <= kinds[1] and jobs[0].priority >= jobs[1].priority
        if kinds[0] > kinds[1] or jobs[0].priority < jobs[1].priority:
            return False
        return (kinds[0], -jobs[0].priority, live[0], ages[0]) < (kinds[1], -jobs[1].priority, live[1], ages[1])
    if settings.order == "jobs":
        return (kinds[0], live[0], ages[0]) < (kinds[1], live[1], ages[1])
    return settings.order == "fifo" and (kinds[0], ages[0]) < (kinds[1], ages[1])


def set_aside(partition: Partition, without: Ask | None = None) -> Iterator[tuple[Stage, int]]:
    """Yield the tasks for which nodes are set aside until loans end. They count as use of their queues."""
    for hold in partition.holds.values():
        ask = partition.ask_of_earmark(hold) if hold.recalled else None
        if ask is None or ask is without:
            continue
        needs = together(ask)
        if not ask.whole and sum(tasks for _, tasks in needs) == 1:
            yield ask.stage, min(ask.count, sum(tasks for _, _, tasks in hold.places))
        else:
            yield from needs


# -- permission --------------------------------------------------------------------------------------------------


class More:
    """Starts that are decided but not in the state yet."""

    def __init__(self) -> None:
        self._starts: list[tuple[Job, Shape, int]] = []

    def add(self, tasks: Tasks) -> None:
        self._starts += [(stage.job, stage.shape, many) for stage, many in tasks]

    def used(self, account: Account) -> dict[str, int]:
        return _sum((shape, many) for job, shape, many in self._starts if account in job.accounts)

    def jobs(self, account: Account) -> set[str]:
        return {job.id for job, _, _ in self._starts if account in job.accounts}


NOTHING = More()


def refusal(
    partition: Partition,
    ask: Ask | None,
    tasks: Tasks,
    *,
    gang: bool = False,
    more: More = NOTHING,
    rights: Entitlements | None = None,
) -> str:
    """Return why these tasks of an ask may not start now, in addition to `more`; "" if they may.

    Tasks that cannot be preempted may start only while their queue is below its entitlement. A gang needs this only
    before its first task, because its tasks start together.
    """
    if ask is None:
        return "no ask waits for them"
    job = ask.stage.job
    return (
        _not_active(partition, job)
        or _stopping_members(ask)
        or _throttled(tasks)
        or _too_many_jobs(partition, job, more)
        or _over_limit(partition, ask, tasks, more)
        or _share_spent(partition, ask, tasks, gang, more, rights or partition.entitlements())
    )


def refusal_to_wait_behind(partition: Partition, ask: Ask | None, stage: Stage) -> str:
    """Return why a task of an ask may not take over the slot of another task of its stage; "" if it may.

    Limits and shares are checked as if the other task had just ended.
    """
    if ask is None:
        return "no ask waits for them"
    job = stage.job
    reason = _not_active(partition, job) or _stopping_members(ask)
    if not reason and ask.kind != REPLACE and is_unpreemptible(job) and ask not in list(_claimants(partition)):
        passed = More()
        passed.add([(stage, -1)])
        reason = _share_spent(partition, ask, [(stage, 1)], False, passed, partition.entitlements())
    return reason or _over_limit(partition, None, [(stage, 0)], NOTHING)


def refusal_to_claim(partition: Partition, ask: Ask | None) -> str:
    """Return why no task may be stopped for an ask; "" if some may be stopped.

    Limits and shares are not checked, because the stops may free them.
    """
    return "no ask waits for them" if ask is None else _not_active(partition, ask.stage.job)


def waits_whole(partition: Partition, ask: Ask) -> bool:
    """True if all tasks of an ask that start together may certainly start now. Checks of other packages are unknown."""
    if partition.settings.checks:
        return False
    tasks = together(ask)
    if any(len(stage.wanted(ask.kind)) < many for stage, many in tasks):
        return False
    return not refusal(partition, ask, tasks, gang=True)


def _not_active(partition: Partition, job: Job) -> str:
    for queue in job.queue.line():
        if queue.state == "stopped":
            return f"queue {queue.path} is stopped"
    if job.over:
        return "its job is over"
    if job.held_by is not None:
        return f"its job is held by {job.held_by.user}"
    unmet = [f"{name}:{when}" for name, when in job.after if not _is_met(partition.jobs.get(name), when)]
    return f"it comes after {unmet}" if unmet else ""


def _is_met(before: Job | None, when: str) -> bool:
    """True if a job may start after another one, which may have been forgotten since."""
    if before is None:
        return True
    runs = any(stage.live for stage in before.stages)
    if when == "ok":
        return before.state == "succeeded"
    if when == "started":
        past = [past for stage in before.stages for past in (stage.history or {}).values()]
        return runs or any(stage.ended_as("succeeded") for stage in before.stages) or any(p.attempt for p in past)
    if when == "each":
        return True  # judged task by task, see `is_followed`
    return not runs and before.over and (when == "any" or before.state != "succeeded")


def is_followed(partition: Partition, job_id: str, position: int, index: int) -> bool:
    """True if the tasks that a task follows one by one have succeeded, or have been forgotten."""
    followed = [partition.jobs.get(name) for name, when in partition.jobs[job_id].after if when == "each"]
    return all(before is None or index in before.stages[position].ended_as("succeeded") for before in followed)


def _stopping_members(ask: Ask) -> str:
    """Return why a gang must wait: its old members are still stopping. A started gang continues with its members."""
    started = ask.stage.started
    if started and ask.kind != SCALE:
        return ""
    causes = ("gang",) if started else ("gang", "preempt", "requeue")
    stopping = [member for stage in ask.stages for member in (stage.live or {}).values() if member.cause in causes]
    return f"{len(stopping)} old members still stop" if stopping else ""


def _throttled(tasks: Tasks) -> str:
    for stage, many in tasks:
        running = sum(not allocation.slots for allocation in (stage.live or {}).values())
        if stage.throttle and running + many > stage.throttle:
            return f"{running} tasks run, and the throttle is {stage.throttle}"
    return ""


def _too_many_jobs(partition: Partition, job: Job, more: More) -> str:
    if job.allocations:
        return ""
    for account in job.accounts:
        if account.max_jobs is not None:
            jobs = {
                allocation.stage.job.id
                for allocation in partition.allocations.values()
                if account in allocation.stage.job.accounts
            }
            jobs |= {
                claimant.stage.job.id for claimant in _claimants(partition) if account in claimant.stage.job.accounts
            }
            jobs = (jobs | more.jobs(account)) - {job.id}
            if len(jobs) >= account.max_jobs:
                return f"{account.name} runs {sorted(jobs)}, and may run {account.max_jobs}"
    return ""


def _over_limit(partition: Partition, ask: Ask | None, tasks: Tasks, more: More) -> str:
    """Return the limit that these tasks would exceed. With an ask, promises to other asks count as used."""
    asked = _sum((stage.shape, many) for stage, many in tasks)
    for account in tasks[0][0].job.accounts:
        if account.limit is None:
            continue
        used = _add(used_by(partition, account), more.used(account))
        for claimant in _claimants(partition) if ask is not None else ():
            if claimant is not ask and account in claimant.stage.job.accounts:
                used = _add(used, _sum((stage.shape, many) for stage, many in together(claimant)))
        for name in asked:
            if name in account.limit and used.get(name, 0) + asked[name] > account.limit[name]:
                return f"{account.name} uses {used}, its limit is {account.limit}, and {asked} is asked"
    return ""


def _share_spent(partition: Partition, ask: Ask, tasks: Tasks, gang: bool, more: More, rights: Entitlements) -> str:
    """Return the queue whose share is spent, for tasks that cannot be preempted. Claims were checked when made."""
    job = ask.stage.job
    if ask.kind == REPLACE or not is_unpreemptible(job) or ask in list(_claimants(partition)) or not rights.nodes:
        return ""
    before = [] if gang else [(stage.shape, many - 1) for stage, many in tasks]
    for queue in job.queue.line()[1:]:
        entitled = rights.of(queue)
        if entitled != rights.whole:
            used = _add(_add(used_by(partition, queue.account), more.used(queue.account)), _sum(before))
            many = tasks_of(partition, queue.account) + sum(tasks for _, tasks in before)
            if rights.measure(used, many) >= entitled:
                return f"queue {queue.path} has spent its share, and the job cannot be stopped"
    return ""


def _claimants(partition: Partition) -> Iterator[Ask]:
    """Yield the asks for which tasks are being stopped."""
    for promise in partition.promises.values():
        claimant = None if promise.ordered else partition.ask_of_earmark(promise)
        if claimant is not None:
            yield claimant


def used_by(partition: Partition, account: Account) -> dict[str, int]:
    """Return the use of an account, summed over the allocations. Tasks that wait in a chain use nothing."""
    own = [
        allocation
        for allocation in partition.allocations.values()
        if not allocation.slots and account in allocation.stage.job.accounts
    ]
    return _sum((allocation.stage.shape, len(indices(allocation.indices))) for allocation in own)


def tasks_of(partition: Partition, account: Account) -> int:
    own = [
        allocation
        for allocation in partition.allocations.values()
        if not allocation.slots and account in allocation.stage.job.accounts
    ]
    return sum(len(indices(allocation.indices)) for allocation in own)


def _sum(tasks: Iterator[tuple[Shape, int]] | Sequence[tuple[Shape, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for shape, many in tasks:
        for name, amount in shape.key.resources:
            total[name] = total.get(name, 0) + amount * many
    return total


def _add(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


# -- free capacity -----------------------------------------------------------------------------------------------


class Rooms:
    """Free capacity of each node, by node id. `end` frees the capacity of tasks as if they had ended."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._free: dict[int, tuple[dict[str, int], list[int]]] = {}

    def end(self, node_id: int, shape: Shape, tasks: int, devices: Sequence[int]) -> None:
        free, left = self._node(node_id)
        for name, amount in shape.key.resources:
            free[name] = free.get(name, 0) + amount * tasks
        for device in devices:
            if device < len(left):
                left[device] += min(WHOLE_DEVICE, dict(shape.key.resources)[GPU])

    def on(self, node_id: int, shape: Shape) -> int:
        """Return how many tasks of a shape fit a node, regardless of holds."""
        nodes = self.partition.nodes
        row = nodes.rows[node_id]
        without_work = node_id in nodes.avoided or node_id in nodes.disconnected
        if nodes.state[row] != "up" or without_work or nodes.manager[row] != shape.key.manager:
            return 0
        if not shape.accepts(nodes.labels[row], nodes.taints[row], nodes.pool[row], nodes.users[row]):
            return 0
        free, left = self._node(node_id)
        if min(free.values(), default=0) < 0 or min(left, default=0) < 0:
            return 0  # overcommitted nodes take no tasks
        asked = dict(shape.key.resources)
        gpu = asked.pop(GPU, 0)
        fits = [free.get(name, 0) // amount for name, amount in asked.items()]
        if gpu >= WHOLE_DEVICE:
            fits.append(left.count(WHOLE_DEVICE) // (gpu // WHOLE_DEVICE))
        elif gpu:
            fits.append(sum(free_milli // gpu for free_milli in left))
        return min(fits, default=UNBOUNDED)

    def whole(self, ask: Ask, closed: Collection[int] | None = None) -> bool:
        """True if an ask of one shape fits on the nodes held for it and those that are not held."""
        stage, needed = together(ask)[0]
        return self.count(ask, stage, self.partition.nodes.held if closed is None else closed) >= needed

    def count(self, ask: Ask, stage: Stage, closed: Collection[int], without: Collection[int] = ()) -> int:
        """Return how many tasks fit on the nodes held for an ask, except `without`, and on nodes not in `closed`."""
        own = self.partition.earmark_of(ask.seq)
        mine: dict[int, int] = {}
        for node_id, position, tasks in own.places if own is not None else ():
            if position == stage.position and node_id not in without:
                mine[node_id] = mine.get(node_id, 0) + tasks
        total = 0
        for node_id in self.partition.nodes.rows:
            if node_id in mine:
                # Which devices leave the other owners of a node enough is not decided here.
                if not (stage.shape.devices and len(self.partition.nodes.held[node_id]) > 1):
                    total += min(mine[node_id], self.on(node_id, stage.shape))
            elif node_id not in closed:
                total += self.on(node_id, stage.shape)
        return total

    def _node(self, node_id: int) -> tuple[dict[str, int], list[int]]:
        known = self._free.get(node_id)
        if known is None:
            nodes = self.partition.nodes
            row = nodes.rows[node_id]
            free = nodes.capacity_of(row)
            left = [WHOLE_DEVICE] * (free.get(GPU, 0) // WHOLE_DEVICE)
            known = self._free[node_id] = (free, left)
            gone = 0
            for allocation in nodes.allocations[row].values():
                if allocation.slots:
                    continue
                asked = dict(allocation.stage.shape.key.resources)
                for name, amount in asked.items():
                    free[name] = free.get(name, 0) - amount * len(indices(allocation.indices))
                for device in allocation.devices:
                    if device < len(left):
                        left[device] -= min(WHOLE_DEVICE, asked[GPU])
                    else:
                        gone += 1
            if gone:
                free["devices that the node has no more"] = -gone
        return known
