"""Names the one cause for which a job waits at a moment, from the state alone.

A bill of waiting time replays the journal, which has no reasons of match. The cause is found again from the state after
each record, in the order in which match decides: conditions of the job, checks of admission, the place in its lane,
nodes, queues.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead.core.admission import held_back, refusal
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import minimum_by_stage
from fairlead.core.entitlement import has_shares
from fairlead.core.lanes import lane_key
from fairlead.core.model import Ask, Job, Stage
from fairlead.core.node_fit import may_take
from fairlead.core.state import Partition
from fairlead.core.why import reasons
from fairlead.core.why.explain import kept, ordered_for
from fairlead.core.why.never import never_fits, never_whole
from fairlead.core.why.reasons import Reason, after_tasks

WALKED = 20
"""Of the asks ahead in a lane, this number is examined. An ask behind more of them counts as behind others."""

TEXTS = {
    "held": "held by {}",
    "begin": "until its time to begin",
    "after": "for job {}, after which it starts",
    "after tasks": "for the tasks of job {} with the same indices",
    "limit": "at the limit of {}",
    "max_jobs": "at max_jobs of {}",
    "throttle": "at its own throttle",
    "no loan": "because queue {} used its share and its tasks cannot be preempted",
    "queue stopped": "while queue {} was stopped",
    "old tasks": "until its old tasks had stopped",
    "refused": "because of {}",
    "stops": "until tasks had stopped for it",
    "machines": "for machines that were ordered",
    "never fits": "because no node could run it",
    "no node": "until nodes joined",
    "behind": "behind other jobs of queue {}",
    "broken": "for nodes that were lost, drained or disabled",
    "held nodes": "for nodes that were held for other jobs",
    "planned": "so that planned starts of other jobs were not delayed",
    "loans": "for loans of queue {} that were not yet returned",
    "share": "because queue {} used its whole share",
    "busy": "for nodes busy with jobs of queue {}",
    "sent ahead": "on its node, behind quick tasks",
    "turn": "for its turn",
}
"""Kind of a cause → the end of a sentence that begins with a duration, such as "2h waiting"."""


class WaitCause(msgspec.Struct, frozen=True, gc=False):
    kind: str
    """A key of `TEXTS`."""
    of: str = ""
    """The queue, account, user or job that it is about, if any."""

    def __str__(self) -> str:
        return TEXTS[self.kind].format(self.of)


def wait_cause(partition: Partition, job: Job) -> WaitCause | None:
    """Return the cause for which tasks of a job wait now; None if none waits. Of several asks the first one counts."""
    if job.over:
        return None
    if any([stage.unstarted() for stage in job.stages]):
        held = held_back(job)
        if held is not None:
            return WaitCause("begin") if held.until else WaitCause("held", held.by)
        unmet = partition.unmet(job)
        if unmet:
            return WaitCause("after", unmet[0].job)
        for stage in job.stages:
            for kind, wanted in enumerate(stage.pending):
                if wanted is not None:
                    ask = stage.asks[kind]
                    return WaitCause("turn") if ask is None else _of_ask(partition, ask)
        return WaitCause("after tasks", after_tasks(job).jobs[0])
    chained = [task for stage in job.stages for task in (stage.live or {}).values() if task.slots]
    return WaitCause("sent ahead") if any(task.state == "assigned" for task in chained) else None


def _of_ask(partition: Partition, ask: Ask) -> WaitCause:
    reason = _refused(partition, ask)
    if reason is not None:
        return _of_reason(reason)
    promise = partition.promises.get(ask.seq)
    if promise is not None:
        return WaitCause("machines" if promise.ordered else "stops")
    if partition.orders and ordered_for(partition, ask.stage):
        return WaitCause("machines")
    if ask.seq not in partition.holds and _is_behind(partition, ask):
        return WaitCause("behind", ask.stage.job.queue.path)
    stage, wanted = minimum_by_stage(ask)[0]
    return _of_nodes(partition, ask, stage, wanted) or _of_queues(partition, ask.stage.job)


def _refused(partition: Partition, ask: Ask) -> Reason | None:
    """Return why an ask may not start now, whatever other asks wait."""
    needs = minimum_by_stage(ask)
    never = never_whole(partition, needs) if ask.whole else never_fits(partition, *needs[0])
    return never or refusal(partition, ask)


def _of_reason(reason: Reason) -> WaitCause:
    match reason:
        case reasons.NoNodeYet():
            return WaitCause("no node")
        case reasons.NeverFits():
            return WaitCause("never fits")
        case reasons.OverLimit(account=account):
            return WaitCause("limit", account)
        case reasons.TooManyJobs(account=account):
            return WaitCause("max_jobs", account)
        case reasons.Throttled():
            return WaitCause("throttle")
        case reasons.ShareSpent(queue=queue):
            return WaitCause("no loan", queue)
        case reasons.NotActive(queue=queue):
            return WaitCause("queue stopped", queue)
        case reasons.StillStopping():
            return WaitCause("old tasks")
    return WaitCause("refused", reason.short)


def _is_behind(partition: Partition, ask: Ask) -> bool:
    """True if an ask ahead in the lane could start if there were capacity."""
    lane = partition.lanes[lane_key(ask)]
    if lane.head() is ask:
        return False
    for at, other in enumerate(lane):
        if other is ask:
            return False
        if at == WALKED or _refused(partition, other) is None:
            return True
    return False


def _of_nodes(partition: Partition, ask: Ask, stage: Stage, wanted: int) -> WaitCause | None:
    """Return the cause if the tasks would fit with the nodes that are out of use, or without plans and holds."""
    nodes, shape = partition.nodes, stage.shape
    whatif = WhatIf(partition)

    def fitting(rows: Iterable[int]) -> int:
        """Return how many of the tasks fit on nodes; no more are counted when all do."""
        found = 0
        for row in rows:
            if found < wanted and may_take(nodes, row, shape):
                found += whatif.slots(nodes.node_id[row], shape, 1 if shape.key.apart else wanted - found)
        return found

    away = [nodes.rows[node_id] for node_id in (*nodes.avoided, *nodes.disconnected)]
    broken = dict.fromkeys([*(row for row in nodes.rows.values() if nodes.state[row] != "up"), *away])
    mine = (ask.seq,)
    held = {row: None for row in map(nodes.rows.__getitem__, nodes.held) if kept(partition, shape, row, mine)}
    more = [fitting(row for row in held if row not in broken), fitting(broken)]
    backfills = partition.settings.backfills
    if not backfills and (not any(more) or sum(more) < wanted == 1):
        return None  # match would have started it
    if max(more) < wanted or backfills:  # else the tasks would fit on these nodes alone
        free = fitting(row for row in nodes.in_order() if row not in broken and row not in held)
        if free >= wanted:
            return WaitCause("planned" if backfills else "turn")
        more = [free + more[0] if more[0] else 0, free + sum(more) if more[1] else 0]
    if more[0] >= wanted:
        return WaitCause("held nodes")
    return WaitCause("broken") if more[1] >= wanted else None


def _of_queues(partition: Partition, job: Job) -> WaitCause:
    """Return the queues that use the capacity that the job lacks."""
    rights = partition.entitlements()
    spent = ""
    for queue in job.queue.line()[1:]:
        assert queue.parent is not None
        siblings = queue.parent.children.values()
        if len(siblings) > 1 and has_shares(queue.parent):
            if rights.used(queue) >= rights.of(queue):
                spent = spent or queue.path
                continue
            most, lender = max((rights.loaned(other), other.path) for other in siblings)
            if most:
                return WaitCause("loans", lender)
    if spent:
        return WaitCause("share", spent)
    used, path = max((rights.used(leaf), leaf.path) for leaf in partition.leaves())
    return WaitCause("busy", path) if used else WaitCause("turn")
