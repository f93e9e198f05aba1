"""The state as canonical bytes, and back: equal states give equal bytes, and nothing derived is written.

The same bytes are the snapshot of the journal and the yardstick of the tests. Records are arrays: a new field goes
to the end, with a default, or FORMAT rises.
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
    History,
    Hold,
    Job,
    JobSpec,
    JobState,
    KeptKey,
    Manager,
    Meant,
    NodeOrder,
    OrderCause,
    Pending,
    Place,
    Pool,
    PoolSettings,
    Promise,
    Queue,
    QueueSettings,
    QueueState,
    Stage,
    StageSpec,
    StopCause,
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
    """It speaks for all stages of the job, and is written with the first."""
    unheld_until: int = 0
    unclaimed_until: int = 0
    orders: int = 0
    tie: int = 0


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
    """Only of a stage that came after the job was submitted."""
    short_since: int | None = None
    ran: int | None = None
    last_ask: tuple[int, int] | None = None
    last_place: int = 0


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
    rooms: int = 0
    safe_until: int = 0
    overdue: bool = False


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    seq: int
    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    since: int


class _Hold(_Kept, frozen=True, array_like=True):
    large: bool


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


class _Manager(msgspec.Struct, frozen=True, array_like=True):
    name: str
    registered: int


class _Head(msgspec.Struct, frozen=True, array_like=True):
    format: int


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
    """Of these three there are many: packed one by one, so that never all of them are there twice."""
    managers: tuple[_Manager, ...]
    keys: tuple[tuple[str, str, KeptKey], ...]
    avoided: tuple[NodeAvoided, ...] = ()
    holds: tuple[_Hold, ...] = ()
    promises: tuple[_Promise, ...] = ()
    orders: tuple[_Order, ...] = ()
    idle: tuple[tuple[int, int], ...] = ()
    unwanted: tuple[tuple[int, int], ...] = ()


class NotADump(Exception):
    """Bytes that are no dump of a version this program reads."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Document)
_decode_node = msgspec.msgpack.Decoder(NodeAdded).decode
_decode_job = msgspec.msgpack.Decoder(_Job).decode
_decode_allocation = msgspec.msgpack.Decoder(_Allocation).decode
_head_decoder = msgspec.msgpack.Decoder(_Head)


def dump(partition: Partition) -> bytes:
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
                _Pool(name, each.settings, each.paused, each.paused_until, each.problem, each.grew, each.shrank)
                for name, each in sorted(partition.pools.items())
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
                _Hold(each.seq, each.job, each.stage, each.kind, each.places, each.since, each.large)
                for _, each in sorted(partition.holds.items())
            ),
            tuple(
                _Promise(each.seq, each.job, each.stage, each.kind, each.places, each.since, each.victims, each.ordered)
                for _, each in sorted(partition.promises.items())
            ),
            tuple(
                _Order(number, each.pool, each.since, each.cause, tuple(each.coming.items()), each.failed)
                for number, each in sorted(partition.orders.items())
            ),
            tuple(sorted(partition.idle.items())),
            tuple(sorted(partition.unwanted.items())),
        )
    )


def load(data: bytes) -> Partition:
    """The state that was dumped, with everything derived worked out anew."""
    try:
        version = _head_decoder.decode(data).format
        if version != FORMAT:
            raise NotADump(f"format {version} is not {FORMAT}; use the program that wrote it")
        return _load(_decoder.decode(data))
    except msgspec.MsgspecError as problem:
        raise NotADump(f"not a dump: {problem}") from None


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
    )


def _dump_stage(stage: Stage) -> _Stage:
    return _Stage(
        stage.count,
        tuple(() if ranges is None else ranges.flat() for ranges in stage.pending),
        tuple(
            _Ask(
                each.kind,
                each.asked,
                each.waiting_since,
                each.seq,
                each.round,
                each.front,
                each.whole,
                each.unheld_until,
                each.unclaimed_until,
                each.orders,
                each.tie,
            )
            for each in stage.asks
            if each is not None and each.stage is stage
        ),
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
    )


def _dump_allocation(each: Allocation) -> _Allocation:
    return _Allocation(
        each.id,
        each.stage.job.id,
        each.stage.position,
        each.node,
        each.indices,
        each.attempt,
        each.devices,
        each.state,
        each.since,
        each.started,
        each.cause,
        each.kind,
        each.group,
        each.chain,
        each.rooms,
        each.safe_until,
        each.overdue,
    )


def _load(document: _Document) -> Partition:
    partition = Partition(document.name)
    partition.now = document.now
    partition.config_version = document.config_version
    partition.removed = document.removed
    partition.set_settings(document.settings)
    for queue in document.queues:
        partition.add_queue(queue.path, queue.settings)
        partition.move_queue(queue.path, queue.state)
        partition.mark_uneven(partition.queues[queue.path], queue.uneven_since)
    partition.pools = {
        each.name: Pool(each.name, each.settings, each.paused, each.paused_until, each.problem, each.grew, each.shrank)
        for each in document.pools
    }
    for node in document.nodes:
        _decode_node(node).apply(partition)
    for avoided in document.avoided:
        avoided.apply(partition)
    times: dict[int, int] = {}
    replacing: list[Stage] = []
    """The stages that ask for replacements: where these stand depends on what is live."""
    for job in document.jobs:
        _load_job(partition, _decode_job(job), times, replacing)
    for packed in document.allocations:
        each = _decode_allocation(packed)
        stage = partition.jobs[each.job].stages[each.stage]
        partition.book(
            Allocation(
                each.id,
                stage,
                each.node,
                each.indices,
                each.attempt,
                each.devices,
                each.state,
                each.since,
                each.started,
                each.cause,
                each.kind,
                each.group,
                each.chain,
                each.rooms,
                each.safe_until,
                each.overdue,
            )
        )
    for stage in replacing:
        partition.update_missing(stage)
    for hold in document.holds:
        partition.keep(Hold(hold.seq, hold.job, hold.stage, hold.kind, hold.places, hold.since, large=hold.large))
    for one in document.promises:
        kept = Promise(one.seq, one.job, one.stage, one.kind, one.places, one.since)
        kept.victims, kept.ordered = one.victims, one.ordered
        partition.keep(kept)
    for order in document.orders:
        coming = dict(order.coming)
        partition.orders[order.number] = NodeOrder(
            order.number, order.pool, order.since, order.cause, coming, order.failed
        )
        partition.order_of.update({name: order.number for name, _ in order.coming})
    partition.idle, partition.unwanted = dict(document.idle), dict(document.unwanted)
    for manager in document.managers:
        partition.managers[manager.name] = Manager(manager.name, manager.registered)
    for user, key, entry in document.keys:
        partition.keep_key(user, key, entry)
    heapify(partition.forgetting)
    partition.counters = document.counters
    return partition


def _load_job(partition: Partition, each: _Job, times: dict[int, int], replacing: list[Stage]) -> None:
    """`times` has one object for each point in time: most of a job's are the same, and those of its neighbours."""
    spec = each.spec
    # The queue of a job that has ended may be gone; it then hangs on a queue of its own that nobody else sees.
    queue = partition.queues.get(spec.queue)
    if queue is None:
        queue = Queue(spec.queue, spec.queue.rpartition(".")[2], None, QueueSettings(), Account(spec.queue))
    accounts = partition.accounts_for(queue, spec.user, spec.groups)
    submitted = times.setdefault(each.submitted, each.submitted)
    job = Job(each.id, each.number, pack_spec(spec), submitted, queue, accounts)
    job.manager, job.after, job.whole, job.preemptible = spec.manager, spec.after, spec.whole, spec.preemptible
    job.state, job.priority, job.ended_at, job.reason = each.state, each.priority, each.ended_at, each.reason
    job.stages = tuple(_load_stage(partition, job, spec, position, stage) for position, stage in enumerate(each.stages))
    partition.jobs[job.id] = job
    partition.count_priority(job.priority, 1)
    for stage, document in zip(job.stages, each.stages, strict=True):
        for one in document.asks:
            if one.kind == REPLACE:
                replacing.append(stage)
            asked = times.setdefault(one.asked, one.asked)
            since = times.setdefault(one.waiting_since, one.waiting_since)
            partition.add_ask(
                Ask(
                    stage,
                    one.kind,
                    asked,
                    since,
                    one.seq,
                    one.round,
                    one.front,
                    one.whole,
                    one.unheld_until,
                    one.unclaimed_until,
                    one.orders,
                    one.tie,
                )
            )
    if job.ended_at is None:
        for name in spec.after:
            partition.followers.setdefault(name, []).append(job.id)
        partition.list_or_unlist(job)
    else:
        partition.forgetting.append((job.ended_at, job.number, job.id))


def _load_pending(flats: tuple[tuple[int, ...], ...]) -> Pending:
    untouched = all_pending(flats[NEW][-1] if flats[NEW] else 0)
    if flats == tuple(ranges.flat() if ranges else () for ranges in untouched):
        return untouched
    return tuple(Ranges(flat) if flat else None for flat in flats)


def _load_stage(partition: Partition, job: Job, spec: JobSpec, position: int, each: _Stage) -> Stage:
    asked = each.spec or spec.stages[position]
    stage = Stage(
        job,
        position,
        each.spec,
        terms_of(asked),
        partition.take_shape(asked.shape_key(spec.manager, spec.shape_user)),
        each.count,
        _load_pending(each.pending),
        (None, None, None),
        None,
        {name: Ranges(flat) for name, flat in each.ended} or None,
        dict(each.history) or None,
        each.started,
        each.top,
        each.floor,
    )
    partition.mark_short(stage, each.short_since)
    stage.ran = each.ran
    stage.last_ask, stage.last_place = each.last_ask, each.last_place
    return stage
