"""The events that will help waiting tasks without any remedy: held or ordered nodes, tasks that stop or end, the
return of loans, later holds. `what_comes` calls one function for each kind of event.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.core.ahead.easy import is_planned
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
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.why.never import could_take
from fairlead.core.why.reasons import HIDDEN, NoCapacity, OverLimit, Reason, Sees, ShareSpent

NAMED = 3
"""The greatest number of nodes and of jobs that are named."""
LOOKED_AT = 1_000
"""The greatest number of nodes, and of allocations on each, that are searched for tasks that will end."""
SEARCHED = 20_000
"""The greatest product of the tasks of an ask and of all nodes for which it is found out which loans return."""


class Coming(msgspec.Struct, frozen=True):
    """An event that will help waiting tasks without any remedy."""

    text: str
    """The event in words. `{jobs}` stands for the jobs that it names."""
    jobs: tuple[str, ...] = ()
    """The first of these jobs, without those that the reader may not see."""
    of: int = 0
    """The number of these jobs."""

    def __str__(self) -> str:
        named = f"{'job' if self.of == 1 else 'jobs'} {listed(self.jobs, self.of)}" if self.jobs else ""
        return self.text.replace("{jobs}", named or (HIDDEN if self.of == 1 else "other users' jobs"))

    def shown_to(self, sees: Sees) -> Coming:
        """Return this event without the ids of jobs that a reader may not see."""
        return msgspec.structs.replace(self, jobs=tuple(job for job in self.jobs if sees(job)))


def what_comes(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> tuple[Coming, ...]:
    """Return what will help the first ask of a lane by itself, as far as it is known at a time."""
    found = [
        *_held_nodes(partition, ask),
        *_stopping_tasks(partition, ask),
        *_end_of_protection(partition, ask, now),
        *_ordered_nodes(reason),
    ]
    ends = list(_ending_tasks(partition, ask, reason, now))
    found += ends
    if not any(ask.stage.job.id in coming.jobs for coming in ends):
        found += _own_tasks(ask, reason)
    found += [*_loans(partition, ask, reason, now), *_later_hold(partition, ask, reason, now)]
    return tuple(found)


def _held_nodes(partition: Partition, ask: Ask) -> Iterator[Coming]:
    hold = partition.holds.get(ask.seq)
    if hold is None:
        return
    nodes = partition.nodes
    number = len(hold.nodes)
    names = listed(tuple(nodes.name[nodes.rows[node_id]] for node_id in list(hold.nodes)[:NAMED]), number)
    if hold.recalled:
        yield Coming(f"{names} {are(number)} set aside for it until the tasks on loan there end")
    else:
        yield Coming(f"{names} {are(number)} held for it and {'takes' if number == 1 else 'take'} no other tasks")


def _stopping_tasks(partition: Partition, ask: Ask) -> Iterator[Coming]:
    promise = partition.promises.get(ask.seq)
    victims = [] if promise is None else [partition.allocations.get(number) for number in promise.victims]
    live = [victim for victim in victims if victim is not None]
    if live:
        nodes = partition.nodes
        names = list(dict.fromkeys(nodes.name[nodes.rows[victim.node]] for victim in live))
        tasks = sum(count(victim.indices) for victim in live)
        stop = f"{number_of_tasks(tasks)} {'stops' if tasks == 1 else 'stop'}"
        yield Coming(f"{stop} for it on {listed(tuple(names[:NAMED]), len(names))}")


def _end_of_protection(partition: Partition, ask: Ask, now: Micros) -> Iterator[Coming]:
    until = claims_again_at(partition, ask)
    if now < until < FAR:
        when = shortened(until - now)
        yield Coming(f"running tasks may stop for it in {when}: until then min_runtime or hold_for protects them")


def _ordered_nodes(reason: Reason | None) -> Iterator[Coming]:
    if isinstance(reason, NoCapacity) and reason.ordered:
        yield Coming(f"{number_of_nodes(reason.ordered)} {are(reason.ordered)} ordered for it")


def _ending_tasks(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    """Find when the tasks of an ask will fit, if running tasks end as expected and nothing else starts."""
    if not isinstance(reason, NoCapacity) or reason.stages or partition.earmark_of(ask.seq) is not None:
        return
    shape, wanted = ask.stage.shape, gang_size(ask)
    most = 1 if shape.key.apart else wanted
    whatif = WhatIf(partition)
    suitable = _suitable_nodes(partition, whatif, shape)
    if suitable is None:
        return
    fitting = {node_id: whatif.slots(node_id, shape, most) for node_id in suitable}
    ends = sorted(
        ((end, each.id, each) for each, end in _expected_ends(partition, suitable, now)), key=lambda entry: entry[:2]
    )
    for at, (end, _, allocation) in enumerate(ends):
        whatif.end(allocation)
        fitting[allocation.node] = whatif.slots(allocation.node, shape, most)
        if sum(fitting.values()) >= wanted:
            needed = [each for _, _, each in ends[: at + 1] if fitting[each.node]]
            yield _end_of_tasks(needed, end - now)
            return


def _suitable_nodes(partition: Partition, whatif: WhatIf, shape: Shape) -> list[int] | None:
    """Return the nodes that can run a shape; None if there are too many to look at."""
    nodes = partition.nodes
    found: list[int] = []
    for row in nodes.in_order():
        if len(found) == LOOKED_AT:
            return None
        if whatif.takes(nodes.node_id[row], shape) and could_take(partition, row, shape):
            found.append(nodes.node_id[row])
    return found


def _expected_ends(partition: Partition, node_ids: list[int], now: Micros) -> Iterator[tuple[Allocation, Micros]]:
    """Yield the running tasks of nodes whose end is known by a time limit or an estimate."""
    nodes = partition.nodes
    for node_id in node_ids:
        for allocation in list(nodes.allocations[nodes.rows[node_id]].values())[:LOOKED_AT]:
            end = None if allocation.slots or allocation.state != "running" else end_of(allocation, now)
            if end is not None:
                yield allocation, end


def _end_of_tasks(needed: list[Allocation], left: Micros) -> Coming:
    jobs = list(dict.fromkeys(each.stage.job.id for each in needed))
    tasks = sum(count(each.indices) for each in needed)
    if all(each.expected is None and each.stage.terms.estimate is None for each in needed):
        when = f"in {shortened(left)} at the latest (time limit)"
    else:
        when = f"in about {shortened(left)} (estimate)"
    text = f"{number_of_tasks(tasks)} of {{jobs}} {'ends' if tasks == 1 else 'end'} {when}"
    return Coming(text, tuple(jobs[:NAMED]), len(jobs))


def _own_tasks(ask: Ask, reason: Reason | None) -> Iterator[Coming]:
    if isinstance(reason, NoCapacity | OverLimit | ShareSpent) and gang_size(ask) == 1 and not ask.whole:
        running = sum(allocation.state == "running" for allocation in (ask.stage.live or {}).values())
        if running:
            ends = "its running task ends" if running == 1 else f"one of its {running} running tasks ends"
            yield Coming(f"1 can start when {ends}")


def _loans(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    """Say when loans return to the ask's queue, or to the first queue above it that waits below its entitlement."""
    if not isinstance(reason, NoCapacity) or partition.earmark_of(ask.seq) in partition.promises.values():
        return
    rights = partition.entitlements()
    for queue in ask.stage.job.queue.line()[1:] if rights.whole else ():
        since = queue.parent.uneven_since if queue.parent is not None else None
        if since is None or rights.used(queue) >= rights.of(queue):
            continue
        assert queue.parent is not None
        looks_at = max(now, partition.readiness.counts_from(since) + partition.settings.rebalance_after + 1)
        use, share = (100 * part // rights.whole for part in (rights.used(queue), rights.of(queue)))
        text = f"queue {queue.path} uses {use} % of its {share} %"
        when = shortened(looks_at - now)
        if reason.wanted * len(partition.nodes.rows) > SEARCHED:
            yield Coming(f"{text}: if enough tasks on loan can be stopped for it, that begins in {when}")
            return
        found = Balance(partition, queue.parent, looks_at).settle().served.get(ask.seq)
        if found is None:
            yield Coming(f"{text}: no tasks on loan can be stopped for it so far; the next look is in {when}")
            return
        when_returned, ends, stops = found
        counts = [f"{number_of_tasks(ends)} {'ends' if ends == 1 else 'end'}"] if ends else []
        counts += [f"{number_of_tasks(stops)} {are(stops)} stopped"] if stops else []
        within = f"{shortened(when_returned - now)} ({', '.join(counts) or 'nothing is stopped'})"
        yield Coming(f"{text}: loans return within {within}")
        return


def _later_hold(partition: Partition, ask: Ask, reason: Reason | None, now: Micros) -> Iterator[Coming]:
    """Say when nodes will be held for the ask if it still waits, within a day, or which holds must end first."""
    if not _may_be_held_for(partition, ask, reason):
        return
    chance, when = hold_chance(partition, ask), starves_at(partition, ask)
    if chance.holders:
        holders = tuple(chance.holders[:NAMED])
        yield Coming("nodes can be held for it once none are held for {jobs}", holders, len(chance.holders))
    elif chance.possible and now < when <= now + DAY:
        kept_back = is_planned(partition, ask)
        smaller = "tasks that fit and do not delay it (backfill)" if kept_back else "smaller tasks that fit"
        held = f"if it still waits in {shortened(when - now - 1)} (starving_after), nodes are held for it"
        yield Coming(f"{held}; until then {smaller} may start before it")


def _may_be_held_for(partition: Partition, ask: Ask, reason: Reason | None) -> bool:
    """True if nodes are held for an ask when it has waited long enough, unless something else prevents the hold."""
    lane = partition.lanes[lane_key(ask)]
    waits = isinstance(reason, NoCapacity) and lane.no_capacity() is ask
    return waits and partition.settings.hold_for > 0 and may_starve(partition, lane, ask)


def why_no_hold(partition: Partition, ask: Ask, reason: Reason | None) -> str:
    """Say why no nodes will be held for the first ask of a lane, however long it waits; empty if nothing prevents it.

    The only cause is that it needs more nodes than `held_nodes_percent` allows.
    """
    percent = hold_chance(partition, ask).percent if _may_be_held_for(partition, ask, reason) else None
    if percent is None:
        return ""
    allowed = f"held_nodes_percent: {partition.settings.held_nodes_percent}"
    return (
        f"no nodes will be held for it: it needs more nodes than {allowed} allows; "
        f"an operator can raise it to {percent}, or set hold_large"
    )


def listed(names: tuple[str, ...], of: int) -> str:
    """Return names as "n1, n2 and 3 more"."""
    more = of - len(names)
    if more > 0:
        return f"{', '.join(names)} and {more} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def are(number: int) -> str:
    return "is" if number == 1 else "are"


def number_of_tasks(number: int) -> str:
    """Return a number of tasks in words, such as "1 task" or "3 tasks"."""
    return "1 task" if number == 1 else f"{number} tasks"


def number_of_nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def shortened(span: Micros) -> str:
    """Return a duration in one or two units, such as 45s, 12min or 3h20min."""
    if span < 2 * MINUTE:
        return f"{max(1, -(-span // SECOND))}s"
    step = MINUTE if span < DAY else HOUR
    span = -(-span // step) * step
    parts = [(span // DAY, "d"), (span % DAY // HOUR, "h"), (span % HOUR // MINUTE, "min")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)
