"""Admission: decides whether an ask may start now, and gives the reason if not.

All code that starts tasks, or holds, frees or orders nodes for them, uses one list of checks. A check takes an ask and
the number of its tasks that would start, and returns a reason to refuse them, or None. The first reason counts. To add
a check, write one function and one row of `CHECKS`. Rows with `always` apply in every partition and come first. The
other rows follow in the order of the partition's setting `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from fairlead.core.asks import Needs, asked_by, asked_for, gang_size, minimum_by_stage
from fairlead.core.entitlement import Entitlements
from fairlead.core.model import OPERATOR, REPLACE, SCALE, Account, Ask, Job, Stage
from fairlead.core.policy.limits import allowed, may_run
from fairlead.core.policy.registry import Registry
from fairlead.core.ranges import count as tasks_in
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition
from fairlead.core.why.reasons import (
    HeldBack,
    NeverFits,
    NotActive,
    OverLimit,
    Reason,
    ShareSpent,
    StillStopping,
    Throttled,
    after_unmet,
)


class Admission:
    """Checks asks of one partition.

    Counted starts are starts that the caller has decided but not booked yet; `count` adds them. `rights` are the
    entitlements to use while there are no nodes.
    """

    def __init__(self, partition: Partition, rights: Entitlements | None = None) -> None:
        self.partition = partition
        self._rights = rights
        self._used: dict[int, Vector] = {}
        """Account → resources of counted starts."""
        self._tasks: dict[int, int] = {}
        """Account → tasks of counted starts."""
        self._running: dict[int, int] = {}
        """Account → the number of jobs of which all live tasks are counted starts."""
        self._begun: dict[str, None] = {}
        """The jobs that have counted starts."""
        self._given: dict[int, int] = {}
        """Ask → tasks of counted starts."""
        self._bounded: dict[int, bool] = {}
        self._all_count: bool | None = None
        """True if a check may depend on accounts without a limit."""
        self._checks = partition.facts().checks

    def checks_for(self, job: Job) -> tuple[Check, ...]:
        """Return the checks that can refuse asks of a job, in order."""
        key: object = id(job.accounts)  # enough for a new, preemptible job without `after`, throttle or a user's hold
        if job.allocations or job.after or job.throttled or job.held_by is not None or not job.preemptible:
            held = job.held_by is not None
            key = (key, job.preemptible, job.allocations > 0, bool(job.after), held, job.throttled)
        entry = self._checks.get(key)
        if entry is None:
            candidates = [check for check in CHECKS.values() if check.always]
            candidates += [CHECKS[name] for name in self.partition.settings.checks]
            checks = tuple([check for check in candidates if check.matters(self.partition, job)])
            entry = self._checks[key] = (checks, job.accounts)  # the reference keeps the id of the accounts unique
        return entry[0]

    def refusal(self, ask: Ask, needs: Needs, ignoring: Collection[Check] = ()) -> Reason | None:
        """Return why these tasks of an ask may not start together, or None. Checks in `ignoring` are skipped."""
        for check in self.checks_for(ask.stage.job):
            if check not in ignoring:
                reason = check.refuses(self, ask, needs)
                if reason is not None:
                    return reason
        return None

    def most(self, ask: Ask, stage: Stage, least: int, most: int) -> tuple[int, Reason | None]:
        """Return how many tasks of a stage may start, up to `most`; 0 and the reason if fewer than `least` may."""
        reason = self.refusal(ask, ((stage, least),))
        if reason is not None:
            return 0, reason
        if most > least and self.refusal(ask, ((stage, most),)) is not None:
            while most - least > 1:  # `least` tasks may start and `most` may not
                middle = (least + most) // 2
                if self.refusal(ask, ((stage, middle),)) is None:
                    least = middle
                else:
                    most = middle
            most = least
        return most, None

    def count(self, ask: Ask, needs: Needs) -> None:
        """Count tasks as started."""
        job = ask.stage.job
        if not self._counts(job):
            return
        asked = asked_for(needs)
        tasks = sum(tasks for _, tasks in needs)
        begins = not job.allocations and job.id not in self._begun
        self._begun[job.id] = None
        self._given[ask.seq] = self._given.get(ask.seq, 0) + tasks
        for account in job.accounts:
            key = id(account)
            add(self._used.setdefault(key, {}), asked)
            self._tasks[key] = self._tasks.get(key, 0) + tasks
            if begins:
                self._running[key] = self._running.get(key, 0) + 1

    def _counts(self, job: Job) -> bool:
        """True if counted starts of the job can make a check refuse another ask."""
        if self._all_count is None:
            partition = self.partition
            self._all_count = bool(partition.settings.checks) or partition.facts().firm
            self._all_count |= any(not job.preemptible for job in partition.jobs.values() if not job.over)
        bounded = self._bounded.get(id(job.accounts))
        if bounded is None:
            bounds = any(account.limit is not None or account.max_jobs is not None for account in job.accounts)
            bounded = self._bounded[id(job.accounts)] = self._all_count or bounds
        return bounded

    # -- values that checks read

    def rights(self) -> Entitlements | None:
        """Return the entitlements of queues; None if there are no nodes and no entitlements for that case."""
        return self.partition.entitlements() if self.partition.nodes.up_count else self._rights

    def used(self, account: Account) -> Vector:
        """Return the use of an account, with counted starts."""
        more = self._used.get(id(account))
        if not more:
            return account.used
        used = dict(account.used)
        add(used, more)
        return used

    def tasks(self, account: Account) -> int:
        """Return the live tasks of an account, with counted starts."""
        return account.tasks + self._tasks.get(id(account), 0)

    def runs(self, job: Job) -> bool:
        """True if the job has live tasks, or counted starts."""
        return job.allocations > 0 or job.id in self._begun

    def starts_as_gang(self, ask: Ask, needs: Needs) -> bool:
        """True if these tasks belong to the gang of the ask; False if they start one by one after the gang."""
        together = gang_size(ask)
        return together > 1 and self._given.get(ask.seq, 0) + sum(tasks for _, tasks in needs) <= together

    def running_jobs(self, account: Account) -> int:
        """Return the number of jobs of an account that have live tasks, with counted starts."""
        return account.running + self._running.get(id(account), 0)

    def running_tasks(self, ask: Ask, stage: Stage) -> int:
        """Return the number of tasks of a stage that run or are assigned, with counted starts of an ask."""
        if len(stage.job.stages) == 1:
            running = stage.job.live
        else:
            live = {task.id: task for task in (stage.live or {}).values() if not task.slots}
            running = sum(tasks_in(task.indices) for task in live.values())
        return running + self._given.get(ask.seq, 0)

    def claims(self, ask: Ask) -> list[Ask]:
        """Return the other asks for which tasks are stopping. The freed capacity is promised to these asks."""
        partition = self.partition
        claims = [partition.ask_of_earmark(promise) for promise in partition.promises.values() if not promise.ordered]
        return [claim for claim in claims if claim is not None and claim is not ask]

    def limits(self, ask: Ask) -> list[tuple[Account, Vector, Vector]]:
        """Return the accounts of an ask that have limits, each with its limit and the amounts used or claimed."""
        job = ask.stage.job
        claims = self.claims(ask)
        limits: list[tuple[Account, Vector, Vector]] = []
        for account in job.accounts:
            if account.limit is not None:
                used = self.used(account)
                for claim in claims:
                    if account in claim.stage.job.accounts:
                        used = dict(used)
                        add(used, asked_by(claim))
                limits.append((account, account.limit, used))
        return limits


class Check(NamedTuple):
    refuses: Callable[[Admission, Ask, Needs], Reason | None]
    """Return why tasks of an ask may not start together, or None. 0 tasks stand for chained tasks that take over the
    capacity of tasks that end."""
    matters: Callable[[Partition, Job], bool] = lambda partition, job: True
    """False if the check cannot refuse a job now.

    The answer is cached until settings or queue states change. Jobs share it if they have the same accounts and are
    equal in five properties: preemptible, has allocations, has `after`, is held, is throttled.
    """
    wakes: bool = False
    """True if the lane of an ask wakes whenever the answer changes. A sleeping lane then need not check again."""
    always: bool = False
    """True if the check applies to partitions that do not name it."""
    counts_use: bool = True
    """True if the answer can depend on tasks that started in the same cycle. Each start is then booked before the next
    check; otherwise starts are booked in batches."""


# -- the checks, in their order ----------------------------------------------------------------------------------


def members_stopping(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    """Refuse a gang while members of its previous generation are still stopping."""
    kind, started = ask.kind, ask.stage.started
    if any(len(stage.wanted(kind)) < tasks for stage, tasks in needs):
        return StillStopping()
    if started and kind != SCALE:
        return None
    # A started gang need not wait for tasks beyond `min` that stop for other asks.
    causes = ("gang",) if started else ("gang", "preempt", "requeue")
    if any(allocation.cause in causes for stage in ask.stages for allocation in (stage.live or {}).values()):
        return StillStopping()
    return None


def job_released(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    return held_back(ask.stage.job)


def dependencies(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    unmet = admission.partition.unmet(ask.stage.job)
    return after_unmet(unmet) if unmet else None


def throttle(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    for stage, tasks in needs:
        if stage.throttle and admission.running_tasks(ask, stage) + tasks > stage.throttle:
            return Throttled(stage.name, stage.throttle)
    return None


def queue_active(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    for queue in ask.stage.job.queue.line():
        if queue.state == "stopped":
            return NotActive(queue.path)
    return None


def running_jobs(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    job = ask.stage.job
    if admission.runs(job):
        return None
    claimants = {claim.stage.job.id: claim.stage.job for claim in admission.claims(ask)}
    coming = [other for other in claimants.values() if other is not job and not admission.runs(other)]
    return may_run(
        [
            (
                account.name,
                account.max_jobs,
                admission.running_jobs(account) + sum(account in other_job.accounts for other_job in coming),
            )
            for account in job.accounts
            if account.max_jobs is not None
        ]
    )


def share(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    """Refuse unpreemptible tasks if their queue, or one above it, uses its entitlement already: they would be a loan.

    Asks for which tasks were stopped pass, because the share was checked before the stop. Replacements pass, because it
    was checked when their stage started.
    """
    rights = admission.rights()
    if ask.kind == REPLACE or rights is None or has_claimed(admission.partition, ask):
        return None
    stage, tasks = needs[0]
    before = 0 if admission.starts_as_gang(ask, needs) else tasks - 1
    for queue in stage.job.queue.line()[1:]:
        entitled = rights.of(queue)
        if entitled == rights.whole:
            continue  # the queue is entitled to everything, so it cannot borrow
        used = admission.used(queue.account)
        if before:
            used = dict(used)
            add(used, stage.shape.resources, before)
        if rights.measure(used, admission.tasks(queue.account) + before) >= entitled:
            zero = not rights.share(queue)
            return ShareSpent(queue.path, zero=zero, small=not entitled and not zero)
    return None


def limits(admission: Admission, ask: Ask, needs: Needs) -> Reason | None:
    """Refuse tasks beyond a limit of a queue, user or group."""
    return allowed([(account.name, limit, used) for account, limit, used in admission.limits(ask)], asked_for(needs))


def is_unpreemptible(partition: Partition, job: Job) -> bool:
    return not job.preemptible or (
        partition.facts().firm and not all(queue.settings.preemptible for queue in job.queue.line())
    )


def _has_max_jobs(partition: Partition, job: Job) -> bool:
    return partition.facts().limits and any([account.max_jobs is not None for account in job.accounts])


def _has_limit(partition: Partition, job: Job) -> bool:
    return partition.facts().limits and any([account.limit is not None for account in job.accounts])


LIMITS = Check(limits, _has_limit, always=True)

CHECKS: Registry[Check] = Registry(
    "check",
    {
        "job_released": Check(job_released, lambda _, job: job.held_by is not None, True, True, counts_use=False),
        "members_stopping": Check(members_stopping, lambda _, job: job.allocations > 0, wakes=True, always=True),
        "dependencies": Check(dependencies, lambda _, job: bool(job.after), wakes=True, always=True),
        "throttle": Check(throttle, lambda _, job: job.throttled, always=True),
        "queue_active": Check(queue_active, lambda at, _: bool(at.derived.stopped_queues), wakes=True, always=True),
        "running_jobs": Check(running_jobs, _has_max_jobs, always=True),
        "share": Check(share, is_unpreemptible, always=True),
        "limits": LIMITS,
    },
)


def checks_to_add() -> list[str]:
    """Return the names that may be listed in the setting `checks`."""
    return [name for name, check in CHECKS.items() if not check.always]


# -- questions about asks ----------------------------------------------------------------------------------------


def held_back(job: Job) -> HeldBack | None:
    """Return why a held job may not start; None if it is not held."""
    held = job.held_by
    return None if held is None else HeldBack(held.user, held.level == OPERATOR, held.until)


def refusal(partition: Partition, ask: Ask) -> Reason | None:
    """Return why an ask may not start its first tasks; None if it waits for nothing but capacity."""
    return Admission(partition).refusal(ask, minimum_by_stage(ask))


def is_bounded(partition: Partition, job: Job) -> bool:
    """True if a check applies to the job whose answer can change without waking the lane of the job."""
    return any([not check.wakes for check in Admission(partition).checks_for(job)])


def blocks_lane(ask: Ask, reason: Reason) -> bool:
    """True if the reason applies to every ask of the lane."""
    line = ask.stage.job.queue.line()
    if isinstance(reason, OverLimit):
        return gang_size(ask) == 1 and any(reason.account == level.account.name for level in line)
    if isinstance(reason, NeverFits):
        return reason.most == 0 and not ask.whole
    return isinstance(reason, NotActive) and any(reason.queue == level.path for level in line)


def has_claimed(partition: Partition, ask: Ask) -> bool:
    """True if tasks are stopping for this ask."""
    promise = partition.promises.get(ask.seq)
    return promise is not None and not promise.ordered
