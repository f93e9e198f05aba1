"""What-if comparisons: futures with and without a change, or the recorded past run again with and without it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from time import monotonic
from typing import Any, Literal, get_args

import msgspec
from msgspec import to_builtins
from msgspec.structs import replace

from fairlead.core.changes import NodeSpec
from fairlead.core.commands import AddNode, Command, Configure, MoveNode, SetPriority
from fairlead.core.documents import parse_node
from fairlead.core.errors import Refused
from fairlead.core.model import Job, Micros, QueueSettings, renamed
from fairlead.core.reader import Reader, check_name, suggestion
from fairlead.core.resources import CPU, GPU, SECOND, parse_count, shown
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.forecast.eta import Sample, draw_futures, in_processes, sum_up
from fairlead.forecast.recorded import PastJob
from fairlead.forecast.recorded_trace import node_documents
from fairlead.forecast.replica import Follower
from fairlead.forecast.waits import LOOKS, Sums, add_wait, waited_for
from fairlead.sim.figures import figures
from fairlead.sim.policy_files import MAX_CANDIDATES, MODES, Policy, policy_of
from fairlead.sim.simulation import Simulation
from fairlead.sim.traces import Arrival, LeftOut, Trace
from fairlead.sim.traces.trace import job_id
from fairlead.views.bills import Bills
from fairlead.wire.preview import WhatIfQuestion

SAMPLES = 9
SECONDS = 3.0
"""After this number of seconds no new future of one side begins."""
REPLAY_SECONDS = 120.0
MOST_JOBS = 1_000
"""At most this number of waiting jobs is compared."""
SAME: Micros = SECOND
"""A start that moves by less counts as unchanged."""
MOST_ADDED = 10_000
"""Nodes that a what-if may add."""
Move = Literal["earlier", "later", "same", "no_longer", "never", "unknown"]
"""How a change moves the start of a job. `no_longer`: it starts only without the change; `never`: in neither case."""
MOVED: tuple[Move, ...] = ("earlier", "later", "no_longer")


class Supposed(msgspec.Struct, frozen=True):
    """A supposed change."""

    nodes: tuple[tuple[str, NodeSpec], ...]
    """Nodes that are added."""
    removed: tuple[str, ...]
    priorities: tuple[tuple[str, int], ...]
    config: PartitionConfig | None
    """The configuration with the change; None if it stays the same."""
    without: tuple[str, ...] = ()
    """Users and queues whose jobs were not submitted; only for a replay."""

    def commands(self) -> list[Command]:
        commands: list[Command] = []
        if self.config is not None:
            commands.append(Configure(config=self.config, operator=True))
        commands += [AddNode(name=name, spec=spec, operator=True) for name, spec in self.nodes]
        commands += [MoveNode(name=name, action="lose", operator=True) for name in self.removed]
        commands += [SetPriority(job=job, priority=priority, operator=True) for job, priority in self.priorities]
        return commands


def compare(follower: Follower, question: WhatIfQuestion) -> dict[str, Any]:
    """Return the document that compares the present with a supposed change."""
    supposed = read_changes(question.changes, follower.state)
    if question.replay:
        return _replayed(follower, question, supposed)
    if supposed.without:
        raise Refused("without", "only jobs of the past can be left out; name a time in replay, too")
    return _live(follower, question, supposed)


# -- the change --------------------------------------------------------------------------------------------------


def read_changes(document: Mapping[str, Any], partition: Partition) -> Supposed:
    """Read a supposed change: `add_nodes`, `remove_nodes`, `shares`, `priorities`, `policy` and `without`."""
    read = Reader(document, "", "a what-if")
    nodes: list[tuple[str, NodeSpec]] = []
    for name, number in _mapping(read, "add_nodes").items():
        field = f"add_nodes.{name}"
        spec = _like(partition, name, field)
        count = parse_count(number, field, 1, MOST_ADDED)
        if len(nodes) + count > MOST_ADDED:
            raise Refused(field, f"with it, more than {MOST_ADDED:,} nodes are added; add at most that many in all")
        nodes += [(f"{name}-added-{at}", spec) for at in range(count)]
    removed = read.names("remove_nodes")
    given: set[str] = set()
    for at, node in enumerate(removed):
        if partition.nodes.find(node) is None:
            near = suggestion(node, partition.nodes.joins)
            problem = f"there is no node {shown(node)}{near}; `fairlead node list` lists them"
            raise Refused(f"remove_nodes[{at}]", problem)
        if node in given:
            raise Refused(f"remove_nodes[{at}]", f"{node} is given twice; drop one of them")
        given.add(node)
    priorities: list[tuple[str, int]] = []
    for job, priority in _mapping(read, "priorities").items():
        if job not in partition.jobs:
            raise Refused(
                f"priorities.{job}", f"there is no job {shown(job)}; `fairlead ps` lists those that are known"
            )
        if partition.jobs[job].over:
            raise Refused(f"priorities.{job}", f"job {job} is over; name a job that waits or runs")
        priorities.append((job, parse_count(priority, f"priorities.{job}", -(2**31), 2**31 - 1)))
    config = _config(read, partition)
    without = read.texts("without")
    read.get("replay")  # the server has read and checked it
    read.close()
    if not (nodes or removed or priorities or config or without):
        raise Refused("", "nothing is supposed; name nodes to add or remove, shares, priorities or a policy")
    return Supposed(tuple(nodes), removed, tuple(priorities), config, without)


def _mapping(read: Reader, key: str) -> Mapping[str, Any]:
    value = read.get(key, {})
    if not isinstance(value, Mapping):
        raise Refused(key, f"{shown(value)} is not a mapping; write name: number")
    return value


def _like(partition: Partition, name: str, field: str) -> NodeSpec:
    """Return the specification of a new node: as in the pool with this name, or as the node with this name."""
    pool = partition.pools.get(check_name(name, field))
    if pool is not None:
        settings = pool.settings
        return NodeSpec(settings.node, settings.labels, settings.taints)
    for node in node_documents(partition):
        if node["name"] == name:
            spec = parse_node(node)[1]
            return replace(spec, pool="")
    if partition.nodes.find(name) is not None:
        raise Refused(field, f"node {shown(name)} has no agent now; name a node that is up, or a pool, to have more of")
    names = [*partition.pools, *(str(node["name"]) for node in node_documents(partition))]
    raise Refused(
        field, f"there is no pool and no node {shown(name)}{suggestion(name, names)}; name one to have more of"
    )


def _config(read: Reader, partition: Partition) -> PartitionConfig | None:
    config = present_config(partition)
    policy = read.get("policy")
    if isinstance(policy, str):
        if policy not in MODES:
            raise Refused(
                "policy",
                f"there is no policy {shown(policy)}{suggestion(policy, MODES)}; name one of {', '.join(MODES)} "
                "or a configuration file",
            )
        config = replace(config, settings=replace(config.settings, **MODES[policy]))
    elif policy is not None:
        config = policy_of("policy", policy).config
    queues = dict(config.queues)
    shares = _mapping(read, "shares")
    for path, share in shares.items():
        if path not in queues:
            raise Refused(f"shares.{path}", f"there is no queue {shown(path)}{suggestion(path, queues)}; name one")
        queues[path] = replace(queues[path], share=parse_count(share, f"shares.{path}", 0, 1_000_000))
    if policy is None and not shares:
        return None
    return replace(config, queues=tuple(queues.items()))


def present_config(partition: Partition) -> PartitionConfig:
    queues: list[tuple[str, QueueSettings]] = [(path, queue.settings) for path, queue in partition.queues.items()]
    pools = [(name, pool.settings) for name, pool in partition.pools.items()]
    return PartitionConfig(partition.settings, tuple(queues), tuple(pools))


# -- on the present state ----------------------------------------------------------------------------------------


def _live(follower: Follower, question: WhatIfQuestion, supposed: Supposed) -> dict[str, Any]:
    partition, now = follower.state, question.now
    past, runtimes = follower.past(now)
    waiting = [job for job in partition.jobs.values() if not job.over and not job.live and not job.manager]
    compared = waiting[:MOST_JOBS]
    wanted = [job.id for job in compared if job.held_by is None]
    resource = GPU if any(partition.nodes.capacity.get(GPU, ())) else CPU
    workers = max(1, os.cpu_count() or 1)

    def drawn(first: Sequence[Command]) -> list[Sample]:
        return draw_futures(
            partition, now, runtimes, past, wanted, SECONDS, SAMPLES, workers, first=first, resource=resource
        )

    before, after = drawn([]), drawn(supposed.commands())
    for at, why in after[0].refused.items():
        raise Refused("", f"the change would be refused: {why}", at)
    until = min(sample.until for sample in (*before, *after))
    rows = [
        _row((job.id, job.spec.name, job.user, job.queue.path), now, _start(job, before), _start(job, after))
        for job in compared
    ]
    capacity, changed = _capacities(partition, supposed, resource)
    used = partition.root.account.used.get(resource, 0)
    return {
        **_moves(rows),
        "jobs": [row for row in rows if _move(row) in MOVED],
        "waiting": len(waiting),
        "compared": len(rows),
        "futures": len(before),
        "utilisation_before": _utilisation(before, now, until, used, capacity),
        "utilisation_after": _utilisation(after, now, until, used, changed),
        "until": until / SECOND,
        "unknown_running": max(sample.unknown_running for sample in before),
        "recorded_jobs": len(past.jobs),
    }


def _capacities(partition: Partition, supposed: Supposed, resource: str) -> tuple[int, int]:
    """Return the amount of a resource on all nodes, without and with the change."""
    nodes, column = partition.nodes, partition.nodes.capacity.get(resource)
    amounts = {nodes.name[row]: column[row] for row in nodes.rows.values()} if column else {}
    present = sum(amounts.values())
    added = sum(dict(spec.capacity).get(resource, 0) for _, spec in supposed.nodes)
    return present, present + added - sum(amounts.get(name, 0) for name in supposed.removed)


Start = tuple[Micros | None, bool]
"""The start of a job, and True if it never starts. With None and False, the start is unknown."""


def _row(job: tuple[str, str, str, str], since: Micros, before: Start, after: Start) -> dict[str, Any]:
    """Return the waits of a job since a time, without and with the change; `job` is its id, name, user and queue."""
    return {
        **dict(zip(("job", "name", "user", "queue"), job, strict=True)),
        "wait_before": None if before[0] is None else (before[0] - since) / SECOND,
        "wait_after": None if after[0] is None else (after[0] - since) / SECOND,
        "never_before": before[1],
        "never_after": after[1],
    }


def _start(job: Job, samples: Sequence[Sample]) -> Start:
    found = sum_up(job.id, samples)
    whole = all(sample.whole for sample in samples if job.id not in sample.starts)
    never = found.stuck or (found.median is None and found.not_before is not None and whole)
    return found.median, never or job.held_by is not None


def _move(row: Mapping[str, Any]) -> Move:
    """Return how the start of a job moves. A job whose start is unknown counts as starting after all known starts."""
    before, after = row["wait_before"], row["wait_after"]
    if row["never_after"]:
        return "never" if row["never_before"] else "no_longer"
    if before is None or after is None:
        return "earlier" if after is not None else "later" if before is not None else "unknown"
    return "same" if abs(after - before) * SECOND < SAME else "later" if after > before else "earlier"


def _moves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of jobs by the move of their start, and the mean waits without and with the change.

    The means are over the jobs with a known start in both cases. If there are no such jobs, each mean is over the jobs
    with a known start in its case.
    """
    moved = [_move(row) for row in rows]
    both = [row for row in rows if row["wait_before"] is not None and row["wait_after"] is not None] or rows
    means = {}
    for side in ("before", "after"):
        waits = [row[f"wait_{side}"] for row in both if row[f"wait_{side}"] is not None]
        means[f"mean_wait_{side}"] = round(fmean(waits), 3) if waits else None
    return {**{move: moved.count(move) for move in get_args(Move)}, **means}


def _utilisation(samples: Sequence[Sample], now: Micros, until: Micros, present: int, capacity: int) -> float | None:
    """Return the mean used part of a capacity until a time, over all futures; None if there is no capacity.

    If no job waits, the futures have no length. Then their use at the beginning counts.
    """
    if not capacity:
        return None
    parts = []
    for sample in samples:
        if until <= now:
            parts.append((sample.used[-1][1] if sample.used else present) / capacity)
            continue
        # A future begins with a state that may be seconds old, so its first entries may lie before now.
        series = [(now, present), *sample.used, (until, 0)]
        work = sum(used * max(0, min(until, end) - max(now, when)) for (when, used), (end, _) in pairwise(series))
        parts.append(work / (capacity * (until - now)))
    return round(fmean(parts), 4)


# -- over the recorded past --------------------------------------------------------------------------------------


def _replayed(follower: Follower, question: WhatIfQuestion, supposed: Supposed) -> dict[str, Any]:
    if supposed.priorities:
        raise Refused("priorities", "a replay runs jobs of the past; leave priorities out, or leave the replay out")
    past, _ = follower.past(question.now)
    ended = past.replayed(question.now - question.replay).jobs
    if not ended:
        raise Refused("replay", "no job that ran and has ended was submitted in this time; name a longer time")
    partition = follower.state
    nodes = [parse_node(node) for node in node_documents(partition)]
    config = present_config(partition)
    left = [(name, spec) for name, spec in nodes if name not in supposed.removed]
    sides = [(config, nodes), (supposed.config or config, [*left, *supposed.nodes])]
    for at, name in enumerate(supposed.without):
        if not any(_is_left_out(job, (name,)) for job in ended):
            raise Refused(f"without[{at}]", f"no job of that time is of a user or in a queue {shown(name)}")
    kept = [job for job in ended if not _is_left_out(job, supposed.without)]
    deadline = monotonic() + REPLAY_SECONDS

    def one(side: int) -> dict[str, Any]:
        jobs, sums = (ended, kept)[side], Sums()
        bills = Bills(partial(add_wait, sums), max(1, (ended[-1].at - ended[0].at) // LOOKS))
        settings, machines = sides[side]
        # As in the simulator's own policies, all tasks that may start at one instant start in one cycle.
        settings = replace(settings, settings=replace(settings.settings, max_placed=MAX_CANDIDATES))
        trace = Trace("the past", [_arrival(job, ended[0].at) for job in jobs], machines, LeftOut())
        simulation = Simulation(trace, Policy("whatif", settings), observers=[bills])
        whole = simulation.run(None, lambda _: monotonic() > deadline)
        starts = {arrival.id: simulation.record.job(at).started for at, arrival in enumerate(trace.arrivals)}
        bills.close(simulation.now)
        found = {"starts": starts, "figures": figures(simulation.record, "whatif", 0.0), "whole": whole, "side": side}
        return found | {"waits": to_builtins(waited_for(sums))}

    before, after = sorted(in_processes(one, (0, 1), dict, 2), key=lambda result: int(result["side"]))
    rows = []
    for job in kept:
        old, new = before["starts"][job.id], after["starts"][job.id]
        rows.append(
            _row(
                (job.id, job.spec.name, job.spec.user, job.spec.queue),
                job.at - ended[0].at,
                (old, old is None and before["whole"]),
                (new, new is None and after["whole"]),
            )
        )
    return {
        **_moves(rows),
        "jobs": [row for row in rows if _move(row) in MOVED][:MOST_JOBS],
        "compared": len(rows),
        "whole": before["whole"] and after["whole"],
        "waits_before": before["waits"],
        "waits_after": after["waits"],
        **{
            f"{key}_{when}": side["figures"][key]
            for when, side in (("before", before), ("after", after))
            for key in ("utilisation", "median_wait_s", "p95_wait_s", "max_wait_s", "mean_bounded_slowdown_10s")
        },
    }


def _is_left_out(job: PastJob, without: Sequence[str]) -> bool:
    """True if the user of a job, its queue or a queue above that is among names."""
    return any(name == job.spec.user or f"{job.spec.queue}.".startswith(f"{name}.") for name in without)


def _arrival(job: PastJob, first: Micros) -> Arrival:
    spec = replace(job.spec, after=renamed(job.spec.after, job_id))
    return Arrival(job.at - first, job.id, spec, job.run_times())
