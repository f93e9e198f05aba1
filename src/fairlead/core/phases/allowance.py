"""Who among all that wait would be allowed to start, one after the other, as if there were room for everybody.

In turns as in matching: down the queue tree by share, in the leaf by its order. Limits, numbers of running jobs and
shares count what would have started before. Nothing is altered.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace, merge

import msgspec

from fairlead.core.entitlement import Entitlements
from fairlead.core.lanes import Lane
from fairlead.core.model import REPLACE, Job, Promise, Reservation, Stage
from fairlead.core.phases.tree import Branch, Tree
from fairlead.core.phases.turn import is_admitted, is_firm, needs_of, together_of
from fairlead.core.policy.limits import allowed, may_run, tasks_allowed
from fairlead.core.resources import Vector, add
from fairlead.core.state import Partition


class Want(msgspec.Struct, eq=False):
    """Tasks that would start: all of them together, or one by one."""

    reservation: Reservation
    needs: list[tuple[Stage, int]]
    together: bool


class Allowance:
    """What limits, running jobs and shares leave, counting what would have started."""

    def __init__(self, p: Partition) -> None:
        self.p = p
        self._more: dict[int, Vector] = {}
        """Account → what it would use more."""
        self._jobs: dict[int, int] = {}
        """Account → how many more jobs would run."""
        self._begun: dict[str, None] = {}
        self._tasks: dict[int, int] = {}
        """Account → how many more tasks it would have."""
        self._bound: dict[int, bool] = {}
        """Accounts of a job → whether what they use matters to anybody."""
        self._firm = p.facts().firm or any(not job.preemptible for job in p.jobs.values() if not job.over)

    def serves(self, reservation: Reservation) -> bool:
        """Whether it may start at all, and nothing else is done for it: its nodes are held, or others stop."""
        p, stage = self.p, reservation.stage
        job = stage.job
        if job.manager or reservation.orders >= p.settings.max_orders:
            return False
        if p.holds or p.promises:
            kept = p.kept(reservation.seq)
            if kept is not None and not (isinstance(kept, Promise) and kept.ordered):
                return False
        if stage.count > 1 or reservation.whole:
            needs = needs_of(reservation)
            if any(len(stage.wanted(reservation.kind)) < needed for stage, needed in needs):
                return False  # some of it still stop
        if not p.stopped and not self._counts(job):
            return True
        if not is_admitted(p, job):
            return False
        if job.allocations or job.id in self._begun:
            return True
        bounded = [(each.name, each.max_jobs, each.running + self._jobs.get(id(each), 0)) for each in job.accounts]
        return may_run(bounded) is None

    def take(self, reservation: Reservation, needs: list[tuple[Stage, int]]) -> bool:
        """Whether all of these may start together; if so they count from here on."""
        if not self._counts(reservation.stage.job):
            return True
        asked: Vector = {}
        for stage, tasks in needs:
            add(asked, stage.shape.resources, tasks)
        if allowed(self._limits(reservation), asked) is not None:
            return False
        if not self._below_share(reservation, needs[0][0], 1):
            return False
        self._count(reservation, asked, sum(tasks for _, tasks in needs))
        return True

    def take_some(self, reservation: Reservation, stage: Stage, most: int) -> int:
        """How many tasks may start one by one, up to a number; they count from here on."""
        if not self._counts(stage.job):
            return most
        most = tasks_allowed(self._limits(reservation), stage.shape.resources, most)
        most = self._below_share(reservation, stage, most)
        if most:
            asked: Vector = {}
            add(asked, stage.shape.resources, most)
            self._count(reservation, asked, most)
        return most

    def _counts(self, job: Job) -> bool:
        """Whether anything bounds what jobs of these accounts use, so that it has to be counted."""
        known = self._bound.get(id(job.accounts))
        if known is None:
            bounds = any(each.limit is not None or each.max_jobs is not None for each in job.accounts)
            known = self._bound[id(job.accounts)] = self._firm or bounds
        return known

    def _limits(self, reservation: Reservation) -> list[tuple[str, Vector, Vector]]:
        found: list[tuple[str, Vector, Vector]] = []
        for account in reservation.stage.job.accounts:
            if account.limit is not None:
                used = dict(account.used)
                add(used, self._more.get(id(account), {}))
                found.append((account.name, account.limit, used))
        return found

    def _below_share(self, reservation: Reservation, stage: Stage, most: int) -> int:
        """What cannot be taken back starts within the share only. Where there are no nodes yet there are no shares."""
        p, job = self.p, stage.job
        if reservation.kind == REPLACE or not p.nodes.many or not is_firm(p, job):
            return most
        rights = p.entitlements()
        for queue in job.queue.line()[1:]:
            if most and rights.of(queue) != rights.whole:
                used = dict(queue.account.used)
                add(used, self._more.get(id(queue.account), {}))
                tasks = queue.account.tasks + self._tasks.get(id(queue.account), 0)
                most = rights.starts_below(rights.of(queue), used, tasks, stage.shape.resources, most)
        return most

    def _count(self, reservation: Reservation, asked: Vector, tasks: int) -> None:
        job = reservation.stage.job
        begins = not job.allocations and job.id not in self._begun
        self._begun[job.id] = None
        for account in job.accounts:
            add(self._more.setdefault(id(account), {}), asked)
            self._tasks[id(account)] = self._tasks.get(id(account), 0) + tasks
            if begins:
                self._jobs[id(account)] = self._jobs.get(id(account), 0) + 1


class Leaf:
    """The reservations of a leaf in the order of their turns. Under `fair` each turn is one task or one gang."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.fair = lanes[0].queue.settings.order == "fair"
        self._key = lanes[0].key
        self._walk: Iterator[Reservation] = merge(*lanes, key=self._key)
        self._more: dict[str, int] = {}
        """Job → how many of its tasks would have started."""
        self._heap: list[tuple[tuple[int, ...], Reservation]] = []
        if self.fair:
            self._heap = [(self._place(each), each) for each in self._walk]
            heapify(self._heap)
        self._now = None if self.fair else next(self._walk, None)

    def current(self) -> Reservation | None:
        return (self._heap[0][1] if self._heap else None) if self.fair else self._now

    def go_on(self, tasks: int, over: bool) -> None:
        """So many tasks of the present one would have started. It is over when it wants, or may have, no more."""
        if not self.fair:
            self._now = next(self._walk, None) if over else self._now
            return
        reservation = self._heap[0][1]
        job = reservation.stage.job.id
        self._more[job] = self._more.get(job, 0) + tasks
        if over:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (self._place(reservation), reservation))

    def _place(self, reservation: Reservation) -> tuple[int, ...]:
        """Its key, with the job's tasks that would have started counted as running."""
        key = self._key(reservation)
        more = self._more.get(reservation.stage.job.id, 0)
        return (*key[:3], key[3] + more, *key[4:])


def wants_in_turn(p: Partition, rights: Entitlements) -> Iterator[Want]:
    """All that would start if there were room, in turn. `rights` are of the capacity that there would be."""
    lanes: dict[str, list[Lane]] = {}
    for lane in p.lanes.values():
        lanes.setdefault(lane.queue.path, []).append(lane)
    leaves = {path: Leaf(each) for path, each in lanes.items()}
    tree = Tree([p.queues[path] for path in sorted(leaves)], rights, {})
    allowance = Allowance(p)
    given: dict[int, int] = {}
    """Reservation → how many of its tasks have had their turn."""
    branch = tree.next()
    while branch is not None:
        leaf = leaves[branch.queue.path]
        reservation = leaf.current()
        while reservation is not None:
            wants, over = _turn(allowance, reservation, given, _most(tree, branch, leaf, reservation))
            tasks = sum([tasks for want in wants for _, tasks in want.needs])
            leaf.go_on(tasks, over)
            yield from wants
            if branch.rivals:
                taken: Vector = {}
                for want in wants:
                    for stage, some in want.needs:
                        add(taken, stage.shape.resources, some)
                tree.after(branch, False, taken, 1, tasks)
                break
            reservation = leaf.current()
        else:
            tree.after(branch, True, {}, 0, 0)
        branch = tree.next()


def _most(tree: Tree, branch: Branch, leaf: Leaf, reservation: Reservation) -> int:
    """How many single tasks the turn may have."""
    if leaf.fair:
        return 1
    return (
        tree.run(branch, reservation.stage.shape.resources, reservation.count) if branch.rivals else reservation.count
    )


def _turn(allowance: Allowance, reservation: Reservation, given: dict[int, int], most: int) -> tuple[list[Want], bool]:
    """What a turn gives, and whether the reservation has had its last."""
    kind, seq = reservation.kind, reservation.seq
    before = given.get(seq, 0)
    if not before:
        if not allowance.serves(reservation):
            return [], True
        together = together_of(reservation)
        if together > 1 or reservation.whole:
            needs = needs_of(reservation)
            if not allowance.take(reservation, needs):
                return [], True
            given[seq] = together
            return [Want(reservation, needs, True)], together >= reservation.count
    if reservation.whole:
        return _rest_of_whole(allowance, reservation), True
    stage = reservation.stage
    tasks = allowance.take_some(reservation, stage, min(most, len(stage.wanted(kind)) - before))
    given[seq] = before + tasks
    wants = [Want(reservation, [(stage, tasks)], False)] if tasks else []
    return wants, not tasks or given[seq] >= reservation.count


def _rest_of_whole(allowance: Allowance, reservation: Reservation) -> list[Want]:
    """What the stages of a job want beyond what has to start together."""
    wants: list[Want] = []
    for stage in reservation.stages:
        rest = len(stage.wanted(reservation.kind)) - stage.needed
        tasks = allowance.take_some(reservation, stage, rest) if rest > 0 else 0
        if tasks:
            wants.append(Want(reservation, [(stage, tasks)], False))
    return wants
