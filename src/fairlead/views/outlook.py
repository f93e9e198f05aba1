"""What comes by itself for tasks that wait: held and ordered nodes, tasks that stop or end, loans, holds of later.

Each kind is a small value with a text, made by one function. A new kind is one more of both, and a row of `LOOKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import gang_size
from fairlead.core.holds.starvation import hold_chance, may_starve, starves_at
from fairlead.core.lanes import lane_key
from fairlead.core.model import FAR, Allocation, Ask, Micros
from fairlead.core.preempt.preempt import claims_again_at
from fairlead.core.preempt.rebalance import Balance
from fairlead.core.ranges import count
from fairlead.core.resources import DAY, HOUR, MINUTE, SECOND
from fairlead.core.state import Partition
from fairlead.core.why.never import could_take
from fairlead.core.why.reasons import HIDDEN, NoCapacity, OverLimit, Reason, Sees, ShareSpent, in_words

NAMED = 3
"""At most this number of nodes and of jobs is named."""
LOOKED_AT = 1_000
"""At most this number of nodes, and of tasks on each of them, is looked at for tasks that end."""


class Coming(msgspec.Struct, frozen=True, tag=in_words):
    """Base class of what comes by itself."""

    def __str__(self) -> str:
        raise NotImplementedError

    def shown_to(self, sees: Sees) -> Coming:
        """Return this without the ids of jobs that a reader may not see."""
        return self


class NodesHeld(Coming, frozen=True):
    """Nodes are held for the tasks and take no other work."""

    nodes: tuple[str, ...]
    of: int
    recalled: bool = False
    """True if tasks on loan run there, which are not followed by others."""

    def __str__(self) -> str:
        names = listed(self.nodes, self.of)
        if self.recalled:
            return f"{names} {'is' if self.of == 1 else 'are'} set aside for it until the tasks on loan there end"
        return f"{names} {'is held for it and takes' if self.of == 1 else 'are held for it and take'} no other tasks"


class TasksStop(Coming, frozen=True):
    """Tasks were told to stop for these tasks."""

    tasks: int
    nodes: tuple[str, ...]
    of: int

    def __str__(self) -> str:
        stop = "1 task stops" if self.tasks == 1 else f"{self.tasks} tasks stop"
        return f"{stop} for it on {listed(self.nodes, self.of)}"


class TasksProtected(Coming, frozen=True):
    """Running tasks could stop for these tasks, but are still protected: they have just begun, or began from a hold."""

    left: Micros

    def __str__(self) -> str:
        return (
            f"running tasks may stop for it in {shortened(self.left)}: until then min_runtime or hold_for protects them"
        )


class NodesOrdered(Coming, frozen=True):
    """Nodes are ordered from a pool for these tasks."""

    nodes: int

    def __str__(self) -> str:
        return f"{'1 node is' if self.nodes == 1 else f'{self.nodes} nodes are'} ordered for it"


class TasksEnd(Coming, frozen=True):
    """Running tasks end by their time limit or estimate, and then these tasks fit."""

    tasks: int
    jobs: tuple[str, ...]
    """The first of their jobs, of those that the reader may see."""
    of: int
    """The number of their jobs."""
    left: Micros
    sure: bool
    """True if all of them have a time limit, so that they end by then."""

    def __str__(self) -> str:
        end = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        whose = f"{'job' if self.of == 1 else 'jobs'} {listed(self.jobs, self.of)}" if self.jobs else ""
        whose = whose or (HIDDEN if self.of == 1 else "other users' jobs")
        when = f"in {shortened(self.left)} at the latest (time limit)" if self.sure else ""
        when = when or f"in about {shortened(self.left)} (estimate)"
        return f"{end} of {whose} {'ends' if self.tasks == 1 else 'end'} {when}"

    def shown_to(self, sees: Sees) -> TasksEnd:
        return msgspec.structs.replace(self, jobs=tuple(job for job in self.jobs if sees(job)))


class OwnTasksEnd(Coming, frozen=True):
    """Tasks of the same stage run. When one of them ends, another one can start."""

    tasks: int

    def __str__(self) -> str:
        running = "its running task ends" if self.tasks == 1 else f"one of its {self.tasks} running tasks ends"
        return f"1 can start when {running}"


class LoansStop(Coming, frozen=True):
    """The queue of the tasks is below its share, and tasks on loan to other queues are stopped at a time."""

    queue: str
    use: int
    share: int
    """Both in percent of the whole partition."""
    left: Micros
    """The time until the loans have returned, or until the next look if none can be stopped then."""
    ends: int = 0
    """The number of tasks that end by themselves."""
    stops: int = 0
    """The number of tasks that are stopped."""
    possible: bool = True
    """False if no tasks on loan may be stopped for the ask: it can start when they end."""

    def __str__(self) -> str:
        text = f"queue {self.queue} uses {self.use} % of its {self.share} %"
        when = shortened(self.left)
        if not self.possible:
            return f"{text}: no tasks on loan can be stopped for it so far; the next look is in {when}"
        counts = [f"{_tasks(self.ends)} {'ends' if self.ends == 1 else 'end'}"] if self.ends else []
        counts += [f"{_tasks(self.stops)} {'is' if self.stops == 1 else 'are'} stopped"] if self.stops else []
        return f"{text}: loans return within {when} ({', '.join(counts) or 'nothing is stopped'})"


class HoldLater(Coming, frozen=True):
    """Nodes will be held for the tasks if they still wait after the time `left`, which is at most a day."""

    left: Micros
    backfills: bool = False

    def __str__(self) -> str:
        smaller = "tasks that fit and do not delay it (backfill)" if self.backfills else "smaller tasks that fit"
        held = f"if it still waits in {shortened(self.left)} (starving_after), nodes are held for it"
        return f"{held}; until then {smaller} may start before it"


class HoldAfterOthers(Coming, frozen=True):
    """Nodes can be held for the tasks once no nodes are held for other jobs."""

    jobs: tuple[str, ...]
    """The first of these jobs, of those that the reader may see."""
    of: int
    """The number of these jobs."""

    def __str__(self) -> str:
        whose = f"{'job' if self.of == 1 else 'jobs'} {listed(self.jobs, self.of)}" if self.jobs else ""
        whose = whose or (HIDDEN if self.of == 1 else "other users' jobs")
        return f"nodes can be held for it once none are held for {whose}"

    def shown_to(self, sees: Sees) -> HoldAfterOthers:
        return msgspec.structs.replace(self, jobs=tuple(job for job in self.jobs if sees(job)))


class NoHold(msgspec.Struct, frozen=True):
    """No nodes are held for the tasks, however long they wait: they need more than `held_nodes_percent` allows."""

    now: int
    enough: int

    def __str__(self) -> str:
        return (
            f"no nodes will be held for it: it needs more nodes than held_nodes_percent: {self.now} allows; "
            f"an operator can raise it to {self.enough}, or set hold_large"
        )


def what_comes(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> tuple[Coming, ...]:
    """Return what comes by itself for the first ask of a lane, as far as it is known at a time."""
    found: list[Coming] = []
    for look in LOOKS:
        found += look(partition, ask, reason, now)
    if any(isinstance(coming, TasksEnd) and ask.stage.job.id in coming.jobs for coming in found):
        found = [coming for coming in found if not isinstance(coming, OwnTasksEnd)]
    return tuple(found)


def _held(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    hold = partition.holds.get(ask.seq)
    if hold is not None:
        nodes = partition.nodes
        names = tuple(nodes.name[nodes.rows[each]] for each in list(hold.nodes)[:NAMED])
        yield NodesHeld(names, len(hold.nodes), hold.recalled)


def _stopping(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    promise = partition.promises.get(ask.seq)
    victims = [] if promise is None else [partition.allocations.get(number) for number in promise.victims]
    live = [victim for victim in victims if victim is not None]
    if live:
        nodes = partition.nodes
        names = list(dict.fromkeys(nodes.name[nodes.rows[victim.node]] for victim in live))
        yield TasksStop(sum(count(victim.indices) for victim in live), tuple(names[:NAMED]), len(names))


def _protected(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    until = claims_again_at(partition, ask)
    if now < until < FAR:
        yield TasksProtected(until - now)


def _ordered(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    if isinstance(reason, NoCapacity) and reason.ordered:
        yield NodesOrdered(reason.ordered)


def _ending(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    """Find the first time at which the tasks fit if running tasks end as expected, and nothing else starts."""
    if not isinstance(reason, NoCapacity) or reason.stages or partition.earmark_of(ask.seq) is not None:
        return
    nodes, shape, wanted = partition.nodes, ask.stage.shape, gang_size(ask)
    whatif = WhatIf(partition)
    most = 1 if shape.key.apart else wanted
    ends: list[tuple[Micros, int, Allocation]] = []
    fitting: dict[int, int] = {}
    for row in nodes.in_order():
        node_id = nodes.node_id[row]
        if len(fitting) == LOOKED_AT:
            return  # which of more nodes is free first is not known
        if whatif.takes(node_id, shape) and could_take(partition, row, shape):
            fitting[node_id] = whatif.slots(node_id, shape, most)
            live = list(nodes.allocations[row].values())[:LOOKED_AT]
            known = [(end_of(each, now), each) for each in live if not each.slots and each.state == "running"]
            ends += [(end, each.id, each) for end, each in known if end is not None]
    ended: list[Allocation] = []
    for end, _, allocation in sorted(ends, key=lambda entry: entry[:2]):
        whatif.end(allocation)
        ended.append(allocation)
        fitting[allocation.node] = whatif.slots(allocation.node, shape, most)
        if sum(fitting.values()) >= wanted:
            needed = [each for each in ended if fitting[each.node]]
            jobs = list(dict.fromkeys(each.stage.job.id for each in needed))
            sure = all(each.expected is None and each.stage.terms.estimate is None for each in needed)
            tasks = sum(count(each.indices) for each in needed)
            yield TasksEnd(tasks, tuple(jobs[:NAMED]), len(jobs), end - now, sure)
            return


def _own(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    stage = ask.stage
    if isinstance(reason, NoCapacity | OverLimit | ShareSpent) and gang_size(ask) == 1 and not ask.whole:
        running = sum(allocation.state == "running" for allocation in (stage.live or {}).values())
        if running:
            yield OwnTasksEnd(running)


def _loans(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    """Find the first level on which the queue of the ask waits below its entitlement while a sibling has a loan."""
    if not isinstance(reason, NoCapacity) or partition.earmark_of(ask.seq) in partition.promises.values():
        return
    rights = partition.entitlements()
    for queue in ask.stage.job.queue.line()[1:] if rights.whole else ():
        since = queue.parent.uneven_since if queue.parent is not None else None
        if since is not None and rights.used(queue) < rights.of(queue):
            assert queue.parent is not None
            looks_at = max(now, partition.readiness.counts_from(since) + partition.settings.rebalance_after + 1)
            use, share = (100 * part // rights.whole for part in (rights.used(queue), rights.of(queue)))
            found = Balance(partition, queue.parent, looks_at).settle().served.get(ask.seq)
            when, ends, stops = (looks_at, 0, 0) if found is None else found
            yield LoansStop(queue.path, use, share, when - now, ends, stops, found is not None)
            return


def _held_later(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    if not _may_be_held_for(partition, ask, reason):
        return
    chance, when = hold_chance(partition, ask), starves_at(partition, ask)
    if chance.holders:
        yield HoldAfterOthers(chance.holders[:NAMED], len(chance.holders))
    elif chance.possible and now < when <= now + DAY:
        yield HoldLater(when - now - 1, partition.settings.backfills)


def _may_be_held_for(partition: Partition, ask: Ask, reason: Reason | None) -> bool:
    """True if nodes are held for an ask once it has waited long enough and if they can be."""
    lane = partition.lanes[lane_key(ask)]
    waits = isinstance(reason, NoCapacity) and lane.no_capacity() is ask
    return waits and partition.settings.hold_for > 0 and may_starve(partition, lane, ask)


def why_no_hold(partition: Partition, ask: Ask, reason: Reason | None) -> NoHold | None:
    """Return what keeps the first ask of a lane from a hold, however long it waits; None if nothing does."""
    percent = hold_chance(partition, ask).percent if _may_be_held_for(partition, ask, reason) else None
    return None if percent is None else NoHold(partition.settings.held_nodes_percent, percent)


LOOKS: tuple[Callable[[Partition, Ask, Reason | None, Micros], Iterator[Coming]], ...] = (
    _held,
    _stopping,
    _protected,
    _ordered,
    _ending,
    _own,
    _loans,
    _held_later,
)


def listed(names: tuple[str, ...], of: int) -> str:
    """Return names as "n1, n2 and 3 more"."""
    more = of - len(names)
    if more > 0:
        return f"{', '.join(names)} and {more} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _tasks(number: int) -> str:
    return "1 task" if number == 1 else f"{number} tasks"


def shortened(span: Micros) -> str:
    """Return a duration with as many digits as a reader needs, such as 45s, 12min or 3h20min."""
    if span < 2 * MINUTE:
        return f"{max(1, -(-span // SECOND))}s"
    step = MINUTE if span < DAY else HOUR
    span = -(-span // step) * step
    parts = [(span // DAY, "d"), (span % DAY // HOUR, "h"), (span % HOUR // MINUTE, "min")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)
