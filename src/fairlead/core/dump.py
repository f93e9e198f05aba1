"""Dump and load the state as canonical bytes: equal states give equal bytes. Derived values are left out.

Snapshots of the journal are dumps, and tests compare states by their dumps. A record is dumped as an array. So a new
field must come last and have a default; any other alteration needs a higher FORMAT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import astuple

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
    Mix,
    NodeOrder,
    OrderCause,
    Pairs,
    Pending,
    Pool,
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
    after_of,
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
    earlier: tuple[int, ...] = ()
    throttle: int = 0
    blocked: tuple[int, ...] = ()


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
    known_until: int = 0


class _Order(msgspec.Struct, frozen=True, array_like=True):
    number: int
    pool: str
    since: int
    cause: OrderCause
    coming: tuple[tuple[str, tuple[Meant, ...]], ...]
    failed: tuple[tuple[str, int, int], ...] = ()


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


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a dump."""

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
    pools: tuple[Pool, ...]
    nodes: tuple[msgspec.Raw, ...]
    jobs: tuple[msgspec.Raw, ...]
    allocations: tuple[msgspec.Raw, ...]
    """Nodes, jobs and allocations are packed one by one, so that only one at a time is in memory twice."""
    managers: tuple[Manager, ...]
    keys: tuple[tuple[str, str, KeptKey], ...]
    avoided: tuple[NodeAvoided, ...] = ()
    holds: tuple[Hold, ...] = ()
    promises: tuple[Promise, ...] = ()
    orders: tuple[_Order, ...] = ()
    idle: tuple[tuple[int, int], ...] = ()
    unwanted: tuple[tuple[int, int], ...] = ()
    disconnected: tuple[tuple[int, int], ...] = ()
    landmark: int = 0
    pasts: tuple[_Past, ...] = ()
    runs: tuple[tuple[RunsKey, Runs], ...] = ()
    strange: tuple[tuple[tuple[int, str], int, tuple[tuple[int, tuple[int, ...]], ...]], ...] = ()
    closures: tuple[tuple[Pairs, Closure], ...] = ()
    era: int = 0
    skipped: tuple[int, ...] = ()
    mix: Mix = Mix()


class NotADump(Exception):
    """The bytes are not a dump, or have a format that this version cannot read."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Document).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_node = msgspec.msgpack.Decoder(NodeAdded).decode
_decode_job = msgspec.msgpack.Decoder(_Job).decode
_decode_allocation = msgspec.msgpack.Decoder(_Allocation).decode

T = TypeVar("T")
Record = TypeVar("Record", bound=msgspec.Struct)


def _recorder(record: type[Record], **paths: str) -> Callable[[object], Record]:
    """Return a function that copies an object's attributes into a record; `paths` has the attributes of other names."""
    values = attrgetter(*[paths.get(name, name) for name in record.__struct_fields__])
    return lambda source: record(*values(source))


_dump_queue = _recorder(_Queue)
_dump_ask = _recorder(_Ask)
_dump_allocation = _recorder(_Allocation, job="stage.job.id", stage="stage.position")

_LATER = _Stage.__struct_fields__[_Stage.__struct_fields__.index("short_since") :]
"""The fields of a stage's record that a loaded stage gets as they are."""
_later_values = attrgetter(*_LATER)


def dumped_at(content: bytes) -> int:
    """Return the time of a dump, without loading it."""
    return _decode_head(content).now


# -- dumping -----------------------------------------------------------------------------------------------------


def dump(partition: Partition) -> bytes:
    """Return the state as canonical bytes."""
    nodes = partition.nodes
    return _encode(
        _Document(
            FORMAT,
            partition.name,
            partition.now,
            partition.config_version,
            partition.removed,
            partition.settings,
            partition.counters,
            tuple(map(_dump_queue, _in_order(partition.queues))),
            _in_order(partition.pools),
            _packed(as_added(partition, node_id) for node_id in sorted(nodes.rows)),
            _packed(_dump_job(job) for job in sorted(partition.jobs.values(), key=attrgetter("number"))),
            _packed(map(_dump_allocation, _in_order(partition.allocations))),
            _in_order(partition.managers),
            tuple((*user_key, entry) for user_key, entry in sorted(partition.keys.items(), key=itemgetter(0))),
            tuple(
                NodeAvoided(node_id, nodes.failures[row], nodes.pauses[row], nodes.avoided.get(node_id, 0))
                for node_id, row in sorted(nodes.rows.items())
                if nodes.failures[row]
            ),
            _in_order(partition.holds),
            _in_order(partition.promises),
            tuple(
                _Order(order.number, order.pool, order.since, order.cause, tuple(order.coming.items()), order.failed)
                for order in _in_order(partition.orders)
            ),
            tuple(sorted(partition.idle.items())),
            tuple(sorted(partition.unwanted.items())),
            tuple(sorted(nodes.disconnected.items())),
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
            tuple(sorted(partition.closures.items(), key=itemgetter(0))),
            partition.era,
            partition.skipped.flat(),
            partition.mix,
        )
    )


def _in_order(records: dict[Any, T]) -> tuple[T, ...]:
    return tuple(records[key] for key in sorted(records))


def _to_bytes(amount: int) -> bytes:
    return amount.to_bytes((amount.bit_length() + 7) // 8, "big")


def _packed(records: Iterable[msgspec.Struct]) -> tuple[msgspec.Raw, ...]:
    return tuple(msgspec.Raw(_encode(record)) for record in records)


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
        *_later_values(stage),
    )


# -- loading -----------------------------------------------------------------------------------------------------


def load(data: bytes) -> Partition:
    """Return the dumped state, with all derived values computed again."""
    try:
        version = _decode_head(data).format
        if version != FORMAT:
            raise NotADump(f"format {version} is not {FORMAT}; use the program that wrote it")
        return _load(_decode(data))
    except msgspec.MsgspecError as problem:
        raise NotADump(f"not a dump: {problem}") from None


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
    partition.set_pools({pool.name: pool for pool in document.pools})
    for node in document.nodes:
        _decode_node(node).apply(partition)
    for avoided in document.avoided:
        avoided.apply(partition)
    for node_id, since in document.disconnected:
        partition.nodes.connect(node_id, since)
    _load_jobs(partition, document)
    for strange_key, floor, tasks in document.strange:
        partition.strange[strange_key] = Strange(floor, dict(tasks))
    partition.set_mix(document.mix)
    for runs_key, runs in document.runs:
        partition.note_runs(runs_key, runs)
    earmarks: list[Hold | Promise] = [*document.holds, *document.promises]
    for earmark in earmarks:
        partition.add_earmark(earmark)
    for number, pool, since, cause, coming, failed in map(astuple, document.orders):
        partition.orders[number] = NodeOrder(number, pool, since, cause, dict(coming), failed)
        partition.order_of.update({name: number for name, _ in coming})
    partition.idle, partition.unwanted = dict(document.idle), dict(document.unwanted)
    partition.closures = dict(document.closures)
    partition.managers = {manager.name: manager for manager in document.managers}
    for user, key, kept_key in document.keys:
        partition.keep_key(user, key, kept_key)
    heapify(partition.derived.forgetting)
    partition.counters = document.counters
    partition.era, partition.skipped = document.era, Ranges(document.skipped)
    return partition


def _load_jobs(partition: Partition, document: _Document) -> None:
    times: dict[int, int] = {}
    for job in document.jobs:
        _load_job(partition, _decode_job(job), times)
    for packed in document.allocations:
        number, job_id, stage, *rest = astuple(_decode_allocation(packed))
        partition.book(Allocation(number, partition.jobs[job_id].stages[stage], *rest))
    if document.settings.share_memory:
        partition.set_pasts(
            {
                (past.queue, past.user): {name: int.from_bytes(amount, "big") for name, amount in past.amounts}
                for past in document.pasts
            }
        )
    # The places of replacements depend on live tasks, so they are updated last.
    for record in partition.jobs.values():
        for replacing in record.stages:
            if replacing.asks[REPLACE] is not None:
                partition.update_missing(replacing)


def _load_job(partition: Partition, record: _Job, times: dict[int, int]) -> None:
    """Add a job to the state. `times` makes equal times one object, to save memory."""
    spec = record.spec
    # The queue of an ended job may have been removed; then the job gets a queue of its own outside the tree.
    queue = partition.queues.get(spec.queue)
    if queue is None:
        queue = Queue(spec.queue, spec.queue.rpartition(".")[2], None, QueueSettings(), Account(spec.queue))
    accounts = partition.accounts_for(queue, spec.user, spec.groups)
    submitted = times.setdefault(record.submitted, record.submitted)
    job = Job(record.id, record.number, pack_spec(spec), submitted, queue, accounts)
    job.manager, job.whole, job.preemptible = spec.manager, spec.whole, spec.preemptible
    job.after = after_of(spec.after) if spec.after else ()
    job.preempts, job.held_by, job.done_when = spec.preempts, record.held_by, spec.done_when
    partition.derived.note_begin(job)
    job.state, job.priority, job.ended_at, job.reason = record.state, record.priority, record.ended_at, record.reason
    job.stages = tuple(
        _load_stage(partition, job, spec, position, stage) for position, stage in enumerate(record.stages)
    )
    job.throttled = any([stage.throttle for stage in job.stages])
    partition.jobs[job.id] = job
    partition.count_priority(job.priority, 1)
    for stage, document in zip(job.stages, record.stages, strict=True):
        for kind, asked, since, *rest in map(astuple, document.asks):
            ask = Ask(stage, kind, times.setdefault(asked, asked), times.setdefault(since, since), *rest)
            partition.add_ask(ask)
    if job.ended_at is None:
        for name, _ in job.after:
            partition.derived.followers.setdefault(name, []).append(job.id)
        partition.list_or_unlist(job)
    else:
        partition.derived.forgetting.append((job.ended_at, job.number, job.id))


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
        ended={name: Ranges(flat) for name, flat in record.ended} or None,
        history=dict(record.history) or None,
        started=record.started,
        top=record.top,
        floor=record.floor,
    )
    partition.mark_short(stage, record.short_since)
    for name in _LATER:
        setattr(stage, name, getattr(record, name))
    return stage


def _load_pending(flats: tuple[tuple[int, ...], ...]) -> Pending:
    untouched = all_pending(flats[NEW][-1] if flats[NEW] else 0)
    if flats == tuple(ranges.flat() if ranges else () for ranges in untouched):
        return untouched
    return tuple(Ranges(flat) if flat else None for flat in flats)
