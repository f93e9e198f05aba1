"""Dump and load the state as canonical bytes: equal states give equal bytes. Derived values are left out.

Snapshots of the journal are dumps, and tests compare states by their dumps. A record is dumped as an array. So a new
field must come last and have a default; any other alteration needs a higher FORMAT.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify
from typing import cast

import msgspec

from fairlead.core.changes import NodeAdded, NodeAvoided, as_added
from fairlead.core.model import (
    NEW,
    REPLACE,
    Account,
    Allocation,
    AllocationState,
    Ask,
    Closure,
    HeldBy,
    History,
    Hold,
    Job,
    JobSpec,
    JobState,
    KeptKey,
    Manager,
    Meant,
    Members,
    NodeOrder,
    OrderCause,
    Pairs,
    Pending,
    Place,
    Pool,
    PoolSettings,
    Promise,
    Queue,
    QueueSettings,
    QueueState,
    Runs,
    RunsKey,
    Stage,
    StageSpec,
    StopCause,
    Strange,
    all_pending,
    pack_spec,
    terms_of,
)
from fairlead.core.ranges import Ranges
from fairlead.core.settings import PartitionSettings
from fairlead.core.state import Counters, Partition

FORMAT = 1


class _Ask(msgspec.Struct, frozen=True, array_like=True):
    kind: int
    asked: int
    waiting_since: int
    seq: int
    round: int
    front: int
    whole: bool = False
    """True for the shared ask of a whole job, which is written with the first stage."""
    unheld_until: int = 0
    unclaimed_until: int = 0
    failed_orders: int = 0
    tie: int = 0
    latest: int = 0


class _Stage(msgspec.Struct, frozen=True, array_like=True):
    count: int
    pending: tuple[tuple[int, ...], ...]
    asks: tuple[_Ask, ...]
    ended: tuple[tuple[str, tuple[int, ...]], ...]
    history: tuple[tuple[int, History], ...]
    started: bool
    top: int
    floor: int
    spec: StageSpec | None = None
    """The specification of a stage that was added after the job was submitted."""
    short_since: int | None = None
    ran: int | None = None
    last_ask: tuple[int, int] | None = None
    last_place: int = 0
    generation: int = 0
    members: Members = ()
    failures: int = 0


class _Job(msgspec.Struct, frozen=True, array_like=True):
    id: str
    number: int
    spec: JobSpec
    submitted: int
    state: JobState
    priority: int
    ended_at: int | None
    reason: str
    stages: tuple[_Stage, ...]
    held_by: HeldBy | None = None


class _Allocation(msgspec.Struct, frozen=True, array_like=True):
    id: int
    job: str
    stage: int
    node: int
    indices: tuple[int, ...]
    attempt: int
    devices: tuple[int, ...]
    state: AllocationState
    since: int
    started: int | None
    cause: StopCause
    kind: int
    group: int
    chain: int = 0
    slots: int = 0
    safe_until: int = 0
    overdue: bool = False
    stopped_for: str = ""
    expected: int | None = None
    generation: int = 0


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    since: int


class _Hold(_Kept, frozen=True, array_like=True):
    large: bool
    recalled: bool = False


class _Promise(_Kept, frozen=True, array_like=True):
    victims: tuple[int, ...]
    ordered: bool = False


class _Order(msgspec.Struct, frozen=True, array_like=True):
    number: int
    pool: str
    since: int
    cause: OrderCause
    coming: tuple[tuple[str, tuple[Meant, ...]], ...]
    failed: tuple[tuple[str, int, int], ...] = ()


class _Pool(msgspec.Struct, frozen=True, array_like=True):
    name: str
    settings: PoolSettings
    paused: bool = False
    paused_until: int = 0
    problem: str = ""
    grew: int | None = None
    shrank: int | None = None


class _Queue(msgspec.Struct, frozen=True, array_like=True):
    path: str
    settings: QueueSettings
    state: QueueState
    uneven_since: int | None = None


class _Past(msgspec.Struct, frozen=True, array_like=True):
    """The past use of a queue, or of a user in a queue. Amounts can exceed 64 bits, so they are stored as bytes."""

    queue: str
    user: str
    amounts: tuple[tuple[str, bytes], ...]


class _Manager(msgspec.Struct, frozen=True, array_like=True):
    name: str
    registered: int


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format: int


class _Stamp(msgspec.Struct, frozen=True, array_like=True):
    format: int
    name: str
    now: int


class _Document(msgspec.Struct, frozen=True, array_like=True):
    format: int
    name: str
    now: int
    config_version: int
    removed: bool
    settings: PartitionSettings
    counters: Counters
    queues: tuple[_Queue, ...]
    pools: tuple[_Pool, ...]
    nodes: tuple[msgspec.Raw, ...]
    jobs: tuple[msgspec.Raw, ...]
    allocations: tuple[msgspec.Raw, ...]
    """Nodes, jobs and allocations are packed one by one, so that only one at a time is in memory twice."""
    managers: tuple[_Manager, ...]
    keys: tuple[tuple[str, str, KeptKey], ...]
    avoided: tuple[NodeAvoided, ...] = ()
    holds: tuple[_Hold, ...] = ()
    promises: tuple[_Promise, ...] = ()
    orders: tuple[_Order, ...] = ()
    idle: tuple[tuple[int, int], ...] = ()
    unwanted: tuple[tuple[int, int], ...] = ()
    disconnected: tuple[tuple[int, int], ...] = ()
    landmark: int = 0
    pasts: tuple[_Past, ...] = ()
    runs: tuple[tuple[RunsKey, Runs], ...] = ()
    strange: tuple[tuple[tuple[int, str], int, tuple[tuple[int, tuple[int, ...]], ...]], ...] = ()
    closures: tuple[tuple[Pairs, Closure], ...] = ()


class NotADump(Exception):
    """The bytes are not a dump, or have a format that this version cannot read."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Document)
_decode_node = msgspec.msgpack.Decoder(NodeAdded).decode
_decode_job = msgspec.msgpack.Decoder(_Job).decode
_decode_allocation = msgspec.msgpack.Decoder(_Allocation).decode
_head_decoder = msgspec.msgpack.Decoder(_Head)
_decode_stamp = msgspec.msgpack.Decoder(_Stamp).decode


def dumped_at(content: bytes) -> int:
    """Return the time of a dump, without loading it."""
    return _decode_stamp(content).now


def dump(partition: Partition) -> bytes:
    """Return the state as canonical bytes."""
    return _encoder.encode(
        _Document(
            FORMAT,
            partition.name,
            partition.now,
            partition.config_version,
            partition.removed,
            partition.settings,
            partition.counters,
            tuple(
                _Queue(
                    path,
                    partition.queues[path].settings,
                    partition.queues[path].state,
                    partition.queues[path].uneven_since,
                )
                for path in sorted(partition.queues)
            ),
            tuple(
                _Pool(name, pool.settings, pool.paused, pool.paused_until, pool.problem, pool.grew, pool.shrank)
                for name, pool in sorted(partition.pools.items())
            ),
            _packed(as_added(partition, node_id) for node_id in sorted(partition.nodes.rows)),
            _packed(_dump_job(job) for job in sorted(partition.jobs.values(), key=lambda job: job.number)),
            _packed(_dump_allocation(partition.allocations[number]) for number in sorted(partition.allocations)),
            tuple(_Manager(name, partition.managers[name].registered) for name in sorted(partition.managers)),
            tuple((user, key, partition.keys[user, key]) for user, key in sorted(partition.keys)),
            tuple(
                NodeAvoided(
                    node_id,
                    partition.nodes.failures[row],
                    partition.nodes.pauses[row],
                    partition.nodes.avoided.get(node_id, 0),
                )
                for node_id, row in sorted(partition.nodes.rows.items())
                if partition.nodes.failures[row]
            ),
            tuple(
                _Hold(hold.seq, hold.job, hold.stage, hold.kind, hold.places, hold.since, hold.large, hold.recalled)
                for _, hold in sorted(partition.holds.items())
            ),
            tuple(_dump_promise(promise) for _, promise in sorted(partition.promises.items())),
            tuple(
                _Order(number, order.pool, order.since, order.cause, tuple(order.coming.items()), order.failed)
                for number, order in sorted(partition.orders.items())
            ),
            tuple(sorted(partition.idle.items())),
            tuple(sorted(partition.unwanted.items())),
            tuple(sorted(partition.nodes.disconnected.items())),
            partition.landmark,
            tuple(
                _Past(path, user, tuple((name, _to_bytes(amount)) for name, amount in sorted(past.items())))
                for (path, user), past in partition.pasts().items()
            ),
            tuple(sorted(partition.runs.items())),
            tuple(
                (key, found.floor, tuple(sorted(found.tasks.items())))
                for key, found in sorted(partition.strange.items())
            ),
            tuple(sorted(partition.closures.items(), key=lambda closure: closure[0])),
        )
    )


def load(data: bytes) -> Partition:
    """Return the dumped state, with all derived values computed again."""
    try:
        version = _head_decoder.decode(data).format
        if version != FORMAT:
            raise NotADump(f"format {version} is not {FORMAT}; use the program that wrote it")
        return _load(_decoder.decode(data))
    except msgspec.MsgspecError as problem:
        raise NotADump(f"not a dump: {problem}") from None


def _to_bytes(amount: int) -> bytes:
    return amount.to_bytes((amount.bit_length() + 7) // 8, "big")


def _packed(records: Iterable[msgspec.Struct]) -> tuple[msgspec.Raw, ...]:
    return tuple(msgspec.Raw(_encoder.encode(record)) for record in records)


def _dump_job(job: Job) -> _Job:
    return _Job(
        job.id,
        job.number,
        cast(JobSpec, msgspec.Raw(job.packed)),
        job.submitted,
        job.state,
        job.priority,
        job.ended_at,
        job.reason,
        tuple(_dump_stage(stage) for stage in job.stages),
        job.held_by,
    )


def _dump_stage(stage: Stage) -> _Stage:
    return _Stage(
        stage.count,
        tuple(() if ranges is None else ranges.flat() for ranges in stage.pending),
        tuple(_dump_ask(ask) for ask in stage.asks if ask is not None and ask.stage is stage),
        tuple((name, stage.ended[name].flat()) for name in sorted(stage.ended)) if stage.ended else (),
        tuple(sorted(stage.history.items())) if stage.history else (),
        stage.started,
        stage.top,
        stage.floor,
        stage.own,
        stage.short_since,
        stage.ran,
        stage.last_ask,
        stage.last_place,
        stage.generation,
        stage.members,
        stage.failures,
    )


def _dump_ask(ask: Ask) -> _Ask:
    return _Ask(
        ask.kind,
        ask.asked,
        ask.waiting_since,
        ask.seq,
        ask.round,
        ask.front,
        ask.whole,
        ask.unheld_until,
        ask.unclaimed_until,
        ask.failed_orders,
        ask.tie,
        ask.latest,
    )


def _dump_promise(promise: Promise) -> _Promise:
    return _Promise(
        promise.seq,
        promise.job,
        promise.stage,
        promise.kind,
        promise.places,
        promise.since,
        promise.victims,
        promise.ordered,
    )


def _dump_allocation(allocation: Allocation) -> _Allocation:
    return _Allocation(
        allocation.id,
        allocation.stage.job.id,
        allocation.stage.position,
        allocation.node,
        allocation.indices,
        allocation.attempt,
        allocation.devices,
        allocation.state,
        allocation.since,
        allocation.started,
        allocation.cause,
        allocation.kind,
        allocation.group,
        allocation.chain,
        allocation.slots,
        allocation.safe_until,
        allocation.overdue,
        allocation.stopped_for,
        allocation.expected,
        allocation.generation,
    )


def _load(document: _Document) -> Partition:
    partition = Partition(document.name)
    partition.now = document.now
    partition.config_version = document.config_version
    partition.removed = document.removed
    partition.set_settings(document.settings)
    partition.landmark = document.landmark
    for queue in document.queues:
        partition.add_queue(queue.path, queue.settings)
        partition.move_queue(queue.path, queue.state)
        partition.mark_uneven(partition.queues[queue.path], queue.uneven_since)
    pools = [
        Pool(pool.name, pool.settings, pool.paused, pool.paused_until, pool.problem, pool.grew, pool.shrank)
        for pool in document.pools
    ]
    partition.set_pools({pool.name: pool for pool in pools})
    for node in document.nodes:
        _decode_node(node).apply(partition)
    for avoided in document.avoided:
        avoided.apply(partition)
    for node_id, since in document.disconnected:
        partition.nodes.connect(node_id, since)
    times: dict[int, int] = {}
    replacing: list[Stage] = []
    """Stages that ask for replacements. The places of these asks depend on live tasks, which are loaded later."""
    for job in document.jobs:
        _load_job(partition, _decode_job(job), times, replacing)
    for packed in document.allocations:
        partition.book(_allocation(partition, _decode_allocation(packed)))
    if document.settings.share_memory:
        pasts = {
            (past.queue, past.user): {name: int.from_bytes(amount, "big") for name, amount in past.amounts}
            for past in document.pasts
        }
        partition.set_pasts(pasts)
    for strange_key, floor, tasks in document.strange:
        partition.strange[strange_key] = Strange(floor, dict(tasks))
    for runs_key, runs in document.runs:
        partition.note_runs(runs_key, runs)
    for stage in replacing:
        partition.update_missing(stage)
    _load_earmarks(partition, document)
    for order in document.orders:
        coming = dict(order.coming)
        partition.orders[order.number] = NodeOrder(
            order.number, order.pool, order.since, order.cause, coming, order.failed
        )
        partition.order_of.update({name: order.number for name, _ in order.coming})
    partition.idle, partition.unwanted = dict(document.idle), dict(document.unwanted)
    partition.closures = dict(document.closures)
    for manager in document.managers:
        partition.managers[manager.name] = Manager(manager.name, manager.registered)
    for user, key, kept_key in document.keys:
        partition.keep_key(user, key, kept_key)
    heapify(partition.derived.forgetting)
    partition.counters = document.counters
    return partition


def _allocation(partition: Partition, record: _Allocation) -> Allocation:
    return Allocation(
        record.id,
        partition.jobs[record.job].stages[record.stage],
        record.node,
        record.indices,
        record.attempt,
        record.devices,
        record.state,
        record.since,
        record.started,
        record.cause,
        record.kind,
        record.group,
        record.chain,
        record.slots,
        record.safe_until,
        record.overdue,
        record.stopped_for,
        record.expected,
        record.generation,
    )


def _load_earmarks(partition: Partition, document: _Document) -> None:
    for entry in document.holds:
        hold = Hold(entry.seq, entry.job, entry.stage, entry.kind, entry.places, entry.since)
        hold.large, hold.recalled = entry.large, entry.recalled
        partition.add_earmark(hold)
    for promised in document.promises:
        promise = Promise(promised.seq, promised.job, promised.stage, promised.kind, promised.places, promised.since)
        promise.victims, promise.ordered = promised.victims, promised.ordered
        partition.add_earmark(promise)


def _load_job(partition: Partition, record: _Job, times: dict[int, int], replacing: list[Stage]) -> None:
    """Add a job to the state. `times` makes equal times one object, to save memory."""
    spec = record.spec
    # The queue of an ended job may have been removed; then the job gets a queue of its own outside the tree.
    queue = partition.queues.get(spec.queue)
    if queue is None:
        queue = Queue(spec.queue, spec.queue.rpartition(".")[2], None, QueueSettings(), Account(spec.queue))
    accounts = partition.accounts_for(queue, spec.user, spec.groups)
    submitted = times.setdefault(record.submitted, record.submitted)
    job = Job(record.id, record.number, pack_spec(spec), submitted, queue, accounts)
    job.manager, job.after, job.whole, job.preemptible = spec.manager, spec.after, spec.whole, spec.preemptible
    job.preempts, job.held_by, job.done_when = spec.preempts, record.held_by, spec.done_when
    job.state, job.priority, job.ended_at, job.reason = record.state, record.priority, record.ended_at, record.reason
    job.stages = tuple(
        _load_stage(partition, job, spec, position, stage) for position, stage in enumerate(record.stages)
    )
    partition.jobs[job.id] = job
    partition.count_priority(job.priority, 1)
    for stage, document in zip(job.stages, record.stages, strict=True):
        for ask in document.asks:
            if ask.kind == REPLACE:
                replacing.append(stage)
            asked = times.setdefault(ask.asked, ask.asked)
            since = times.setdefault(ask.waiting_since, ask.waiting_since)
            partition.add_ask(
                Ask(
                    stage,
                    ask.kind,
                    asked,
                    since,
                    ask.seq,
                    ask.round,
                    ask.front,
                    ask.whole,
                    ask.unheld_until,
                    ask.unclaimed_until,
                    ask.failed_orders,
                    ask.tie,
                    ask.latest,
                )
            )
    if job.ended_at is None:
        for name in spec.after:
            partition.derived.followers.setdefault(name, []).append(job.id)
        partition.list_or_unlist(job)
    else:
        partition.derived.forgetting.append((job.ended_at, job.number, job.id))


def _load_pending(flats: tuple[tuple[int, ...], ...]) -> Pending:
    untouched = all_pending(flats[NEW][-1] if flats[NEW] else 0)
    if flats == tuple(ranges.flat() if ranges else () for ranges in untouched):
        return untouched
    return tuple(Ranges(flat) if flat else None for flat in flats)


def _load_stage(partition: Partition, job: Job, spec: JobSpec, position: int, record: _Stage) -> Stage:
    stage_spec = record.spec or spec.stages[position]
    stage = Stage(
        job,
        position,
        record.spec,
        terms_of(stage_spec),
        partition.take_shape(stage_spec.shape_key(spec.manager, spec.shape_user)),
        record.count,
        _load_pending(record.pending),
        (None, None, None),
        None,
        {name: Ranges(flat) for name, flat in record.ended} or None,
        dict(record.history) or None,
        record.started,
        record.top,
        record.floor,
    )
    partition.mark_short(stage, record.short_since)
    stage.ran = record.ran
    stage.last_ask, stage.last_place = record.last_ask, record.last_place
    stage.generation, stage.members, stage.failures = record.generation, record.members, record.failures
    return stage
