"""Reads a configuration (fairlead.yaml) into one `PartitionConfig` per partition, and checks it as a whole.

    partitions:
      default:
        starving_after: 30min
        queues: {root: {ml: {share: 60, guarantee: {gpu: 8}}, ci: {share: 40}}}

The mapping of a queue has the settings of the queue; all other keys are names of child queues.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import cast, get_args

import msgspec

from fairlead.core.admission import CHECKS, checks_to_add
from fairlead.core.documents import MAX_PRIORITY
from fairlead.core.errors import Refused
from fairlead.core.model import Amounts, Limits, Micros, PoolSettings, QueueSettings, Unit
from fairlead.core.policy.fit import HOLD_SCORES
from fairlead.core.policy.order import ORDERS
from fairlead.core.policy.placement import PLACEMENTS, placement_names
from fairlead.core.policy.victim_sets import VICTIMS
from fairlead.core.reader import Reader, check_entries, check_name, check_text, suggestion
from fairlead.core.requestors import problem_of
from fairlead.core.resources import (
    MEMORY,
    MINUTE,
    format_duration,
    format_quantity,
    parse_capacity,
    parse_limits,
    parse_quantity,
    printable,
    shown,
)
from fairlead.core.settings import (
    DEFAULT_QUEUES,
    Backfill,
    Estimates,
    Fence,
    PartitionConfig,
    PartitionSettings,
    Preempt,
    Requestor,
)

QUEUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@+-]{0,62}")
PARTITION_KEYS = (*PartitionSettings.__struct_fields__, "queues", "pools")
_TEMPLATE = (
    'queues are not made by submissions; write each queue, or let users share one, with order: fair and users: {"*": …}'
)
OF_YUNIKORN = {
    "template": _TEMPLATE,
    "childtemplate": _TEMPLATE,
    "properties": "write order, preemptible or max_priority",
    "resources": "write guarantee and limit",
}
"""YuniKorn's settings that have a mapping as their value, as queues have here → what to write instead."""
QUEUE_KEYS = QueueSettings.__struct_fields__
LOOK_ALIKES = ("users", "groups", "limit", "guarantee")
"""Settings that are mappings, as queues are. A queue name close to one of them is refused as a likely typing error."""
BACKFILL_MODES = get_args(Backfill)
MAX_DEPTH = 20
MAX_PATH = 1_000
MAX_QUEUES = 100_000
MAX_REQUESTORS = 10_000
MAX_PROVIDER = 1_000

MIN_BEATS = 3
"""Heartbeats in the shortest lease."""


def parse_config(doc: object) -> dict[str, PartitionConfig]:
    """Read a whole configuration; return that of each partition by name."""
    read = Reader(doc, "", "a configuration")
    for key in read.doc:
        if key in PARTITION_KEYS:
            raise Refused(key, "it belongs to a partition; write it below partitions.default")
    partitions = Reader(read.get("partitions", {"default": {}}), "partitions", "the list of partitions")
    configs: dict[str, PartitionConfig] = {}
    for name in partitions.doc:
        check_name(name, partitions.at(name))
        configs[name] = parse_partition(partitions.get(name, {}), f"partitions.{name}")
    read.close()
    if not configs:
        raise Refused("partitions", "a cluster needs at least one; write partitions: {default: {}}")
    return configs


def parse_partition(doc: object, field: str) -> PartitionConfig:
    read = Reader(doc, field, "a partition")
    tree = read.get("queues")
    queues = DEFAULT_QUEUES if tree is None else _parse_queues(tree, read.at("queues"))
    pools_doc = Reader(read.get("pools", {}), read.at("pools"), "the list of pools")
    pools = tuple(
        (check_name(name, pools_doc.at(name)), _parse_pool(pools_doc.get(name, {}), pools_doc.at(name)))
        for name in sorted(pools_doc.doc)
    )
    default = PartitionSettings()
    settings = PartitionSettings(
        unit=cast(Unit, read.choice("unit", ("dominant", "slots"), default.unit)),
        place=read.choice("place", placement_names(), default.place),
        seed=read.count("seed", default.seed, 0),
        max_batch=read.count("max_batch", default.max_batch, 1, 1_000_000),
        batch_window=read.duration("batch_window", default.batch_window),
        max_placed=read.count("max_placed", default.max_placed, 1),
        launch_timeout=read.duration("launch_timeout", default.launch_timeout),
        max_launch_tries=read.count("max_launch_tries", default.max_launch_tries, 1, 1_000),
        replace_within=read.duration("replace_within", default.replace_within),
        ready_after=read.duration("ready_after", default.ready_after),
        heartbeat=read.duration("heartbeat", default.heartbeat),
        lease=read.duration("lease", default.lease),
        fence=cast(Fence, read.choice("fence", ("lease", "none"), default.fence)),
        chain=read.duration("chain", default.chain),
        starving_after=read.duration("starving_after", default.starving_after),
        held_nodes_percent=read.count("held_nodes_percent", default.held_nodes_percent, 0, 100),
        hold_large=read.flag("hold_large", default.hold_large),
        hold_for=read.duration("hold_for", default.hold_for),
        backfill=_backfill(read, default.backfill),
        preempt_grace=read.duration("preempt_grace", default.preempt_grace),
        rebalance_threshold=read.optional_count("rebalance_threshold", 0, 100),
        rebalance_after=read.duration("rebalance_after", default.rebalance_after),
        promise_for=read.duration("promise_for", default.promise_for),
        max_orders=read.count("max_orders", default.max_orders, 1, 1_000),
        pool_pause=read.duration("pool_pause", default.pool_pause),
        keep_ended=read.duration("keep_ended", default.keep_ended),
        keep_keys=read.duration("keep_keys", default.keep_keys),
        requestors=_parse_requestors(read.get("requestors", []), read.at("requestors"), queues),
        preempt=cast(Preempt, read.choice("preempt", ("priority", "guarantees", "off"), default.preempt)),
        max_queued_jobs=read.count("max_queued_jobs", default.max_queued_jobs, 1),
        max_queued_bytes=_bytes(read, "max_queued_bytes", default.max_queued_bytes),
        checks=_checks(read, "checks"),
        max_result_files=read.count("max_result_files", default.max_result_files, 1, 100_000),
        max_result_bytes=_bytes(read, "max_result_bytes", default.max_result_bytes),
        share_memory=_share_memory(read),
        estimates=cast(Estimates, read.choice("estimates", get_args(Estimates), default.estimates)),
        recall_after=read.duration("recall_after", default.recall_after),
        min_runtime=read.optional_duration("min_runtime"),
        hold_score=read.choice("hold_score", tuple(HOLD_SCORES), default.hold_score),
        victims=read.choice("victims", tuple(VICTIMS), default.victims),
    )
    read.close()
    if settings.fence == "lease" and settings.lease < MIN_BEATS * settings.heartbeat:
        given, least = format_duration(settings.lease), format_duration(MIN_BEATS * settings.heartbeat)
        problem = (
            f"{given} is shorter than {MIN_BEATS} heartbeats, so that one lost answer ends the tasks of a node; "
            f"write {least} or more, or a shorter heartbeat"
        )
        raise Refused(read.at("lease"), problem)
    return PartitionConfig(settings, queues, pools)


def _backfill(read: Reader, default: Backfill | bool) -> Backfill:
    if read.get("backfill") is True:
        raise Refused(read.at("backfill"), f"true is not one of {', '.join(BACKFILL_MODES)}; write easy")
    return cast(Backfill, read.choice("backfill", BACKFILL_MODES, str(default)))


def _share_memory(read: Reader) -> Micros:
    half_life = read.duration("share_memory", 0)
    if 0 < half_life < MINUTE:
        raise Refused(
            read.at("share_memory"), f"{shown(read.get('share_memory'))} is too short; write 1min or more, or 0 for off"
        )
    return half_life


def missing_policies(settings: PartitionSettings, queues: Iterable[QueueSettings]) -> list[str]:
    """Return the policies, such as "order night_first", that settings name and that are not installed."""
    orders = sorted({queue.order for queue in queues})
    return [
        *PLACEMENTS.missing((settings.place,)),
        *ORDERS.missing(orders),
        *CHECKS.missing(settings.checks),
        *HOLD_SCORES.missing((settings.hold_score,)),
        *VICTIMS.missing((settings.victims,)),
    ]


# -- queues ------------------------------------------------------------------------------------------------------


def _parse_queues(doc: object, field: str) -> tuple[tuple[str, QueueSettings], ...]:
    top = Reader(doc, field, "the queue tree")
    for name in top.doc:
        if name != "root":
            raise Refused(top.at(name), "the tree has one queue at the top, root; write this one below it")
    if "root" not in top.doc:
        raise Refused(f"{field}.root", "missing; the queue tree starts with it")
    queues: dict[str, QueueSettings] = {}
    _parse_queue("root", top.get("root", {}), f"{field}.root", queues, (id(doc),))
    _check_guarantees(queues, field)
    return tuple(queues.items())


def _parse_queue(path: str, doc: object, field: str, queues: dict[str, QueueSettings], above: tuple[int, ...]) -> None:
    # Python objects and YAML with anchors can contain themselves.
    if id(doc) in above:
        raise Refused(field, "the queue contains itself; a queue stands in the tree once")
    if len(above) > MAX_DEPTH or len(path) > MAX_PATH:
        raise Refused(field[:200], f"the tree is too deep; at most {MAX_DEPTH} levels and {MAX_PATH} characters")
    if len(queues) >= MAX_QUEUES:
        raise Refused(field[:200], f"the tree has more than {MAX_QUEUES} queues; write fewer")
    read = Reader(doc, field, "a queue")
    settings = QueueSettings(
        share=read.optional_count("share", 0, 10_000),
        guarantee=read.optional("guarantee", _amounts, ()),
        limit=_limit(read),
        max_jobs=read.optional_count("max_jobs"),
        order=read.choice("order", tuple(ORDERS), "priority"),
        scale_first=read.flag("scale_first", True),
        preemptible=read.flag("preemptible", True),
        submit=_acl(read, "submit"),
        admin=_acl(read, "admin"),
        users=_limits(read, "users"),
        groups=_limits(read, "groups"),
        max_priority=_max_priority(read),
        max_grace=read.optional_duration("max_grace"),
    )
    queues[path] = settings
    for name in sorted(read.doc):
        if name in QUEUE_KEYS:
            continue
        child = read.get(name, {})
        if not isinstance(child, Mapping) or get_close_matches(name[:64].lower(), LOOK_ALIKES, cutoff=0.87):
            raise Refused(
                read.at(name),
                f"a queue has no such setting{suggestion(name, QUEUE_KEYS)}; "
                f"it has {', '.join(QUEUE_KEYS)}, and other queues as mappings",
            )
        if name.lower() in OF_YUNIKORN:
            raise Refused(
                read.at(name),
                f"{shown(name)} is a setting of YuniKorn and no name for a queue here: {OF_YUNIKORN[name.lower()]}; "
                "`fairlead config import yunikorn` converts a whole file",
            )
        if not QUEUE_NAME.fullmatch(name):
            raise Refused(
                read.at(name),
                f"{shown(name)} is not a queue's name; use 1 to 63 letters, digits or _ @ + - and no dots",
            )
        _parse_queue(f"{path}.{name}", child, read.at(name), queues, (*above, id(doc)))


def _amounts(doc: object, field: str) -> Amounts:
    return tuple(sorted(parse_limits(doc, field).items()))


def _acl(read: Reader, key: str) -> tuple[str, ...]:
    entries = read.texts(key, most=10_000)
    for at, entry in enumerate(entries):
        if entry != "*":
            check_name(entry.removeprefix("@"), read.at(f"{key}[{at}]"))
    return entries


def _limits(read: Reader, key: str) -> tuple[tuple[str, Limits], ...]:
    table = Reader(read.get(key, {}), read.at(key), f"the limits of {key}")
    limits: list[tuple[str, Limits]] = []
    for name in sorted(table.doc):
        if name != "*":
            check_name(name, table.at(name))
        entry = Reader(table.get(name, {}), table.at(name), "a limit")
        limits.append((name, Limits(_limit(entry), entry.optional_count("max_jobs"), _max_priority(entry))))
        entry.close()
    return tuple(limits)


def _limit(read: Reader) -> Amounts | None:
    value = read.get("limit")
    return None if value is None else _amounts(value, read.at("limit"))


def _max_priority(read: Reader) -> int | None:
    return read.optional_count("max_priority", 0, MAX_PRIORITY)


def _check_guarantees(queues: dict[str, QueueSettings], field: str) -> None:
    """Refuse a guarantee above a limit of its queue or an ancestor.

    Also refuse guarantees of siblings whose sum is above the guarantee of their parent or, without one, its limit.
    """
    promised: dict[str, dict[str, int]] = {path: {} for path in queues}
    for path, settings in queues.items():
        parent = path.rpartition(".")[0]
        for name, amount in settings.guarantee:
            _check_guarantee(queues, path, name, amount, field)
            if parent:
                promised[parent][name] = promised[parent].get(name, 0) + amount
    for path, settings in queues.items():
        bounds = {**dict(settings.limit or ()), **dict(settings.guarantee)}
        for name, amount in sorted(promised[path].items()):
            if name in bounds and amount > bounds[name]:
                word = "guarantee" if name in dict(settings.guarantee) else "limit"
                raise Refused(
                    f"{field}.{path}.{word}",
                    f"the queues below are guaranteed {name} {format_quantity(name, amount)} together, more than "
                    f"{format_quantity(name, bounds[name])}; raise it or lower theirs",
                )


def _check_guarantee(queues: dict[str, QueueSettings], path: str, name: str, amount: int, field: str) -> None:
    above = path
    while above:
        limit = dict(queues[above].limit or ()).get(name)
        if limit is not None and limit < amount:
            of = "" if above == path else f" of queue {above}"
            raise Refused(
                f"{field}.{path}.guarantee",
                f"limit {name} {format_quantity(name, limit)}{of} is below the guarantee "
                f"{format_quantity(name, amount)}; raise the limit or lower the guarantee",
            )
        above = above.rpartition(".")[0]


# -- requestors and pools ----------------------------------------------------------------------------------------


def _checks(read: Reader, key: str) -> tuple[str, ...]:
    names = read.texts(key, most=100)
    options = checks_to_add()
    for at, name in enumerate(names):
        problem = ""
        if name in names[:at]:
            problem = f"{shown(name)} is there already; write it once"
        elif name in CHECKS and name not in options:
            problem = f"{shown(name)} is always checked; leave it out"
        elif name not in CHECKS:
            listed = f"only {', '.join(options)}" if options else "and no package brings one"
            problem = f"there is no check {shown(name)}, {listed}; leave it out or install its package"
        if problem:
            raise Refused(read.at(f"{key}[{at}]"), problem)
    return names


def _bytes(read: Reader, key: str, default: int) -> int:
    return read.optional(key, lambda value, field: parse_quantity(MEMORY, value, field), default)


def _parse_requestors(doc: object, field: str, queues: tuple[tuple[str, QueueSettings], ...]) -> tuple[Requestor, ...]:
    if not isinstance(doc, list | tuple):
        raise Refused(field, f"{shown(doc)} is not a list; write [{{match: pattern, queue: path}}]")
    if len(doc) > MAX_REQUESTORS:
        raise Refused(field, f"{len(doc)} patterns are too many; at most {MAX_REQUESTORS} are allowed")
    paths = dict(queues)
    parents = {path.rpartition(".")[0] for path in paths}
    requestors: list[Requestor] = []
    for at, entry in enumerate(doc):
        read = Reader(entry, f"{field}[{at}]", "a requestor pattern")
        match = read.text("match", most=500)
        problem = problem_of(match)
        if problem:
            why = printable(problem, 200)
            raise Refused(read.at("match"), f"{shown(match)} is not a pattern for names ({why}); correct it")
        queue = read.text("queue", most=MAX_PATH)
        if queue not in paths:
            raise Refused(
                read.at("queue"),
                f"there is no queue {shown(queue)}{suggestion(queue, set(paths) - parents)}; "
                f"name one of {leaves_text(paths)}",
            )
        if queue in parents:
            raise Refused(
                read.at("queue"), f"{queue} has queues below it and takes no jobs; name one of {leaves_text(paths)}"
            )
        read.close()
        requestors.append(Requestor(match, queue))
    return tuple(requestors)


def leaves_text(paths: Collection[str]) -> str:
    """Return the names of the first few leaf queues, for a message."""
    parents = {path.rpartition(".")[0] for path in paths}
    leaves = sorted(path for path in paths if path not in parents)
    return ", ".join(leaves[:8]) + (f" and {len(leaves) - 8} more" if len(leaves) > 8 else "")


def _parse_pool(doc: object, field: str) -> PoolSettings:
    read = Reader(doc, field, "a pool")
    default = PoolSettings()
    node = parse_capacity(read.get("node", {}), read.at("node"))
    if not node:
        raise Refused(read.at("node"), "missing or empty; say what each node has, such as {cpu: 8, memory: 32Gi}")
    least = read.count("min", default.min)
    most = read.optional_count("max")
    if most is not None and most < least:
        raise Refused(read.at("max"), f"{most} is below min {least}; raise max or lower min")
    pool = PoolSettings(
        node=tuple(sorted(node.items())),
        labels=read.pairs("labels"),
        taints=tuple(sorted(set(read.texts("taints", most=100)))),
        min=least,
        max=most,
        min_idle=read.count("min_idle", default.min_idle),
        max_idle=read.count("max_idle", default.max_idle),
        idle_for=read.duration("idle_for", default.idle_for),
        cost=read.count("cost", default.cost),
        provider=read.optional("provider", _provider, ""),
        min_free=read.optional("min_free", _amounts, ()),
    )
    for name, _ in pool.min_free:
        if name not in node:
            raise Refused(
                f"{read.at('min_free')}.{name}",
                f"a node of the pool has no {name}, so no number of nodes is enough; name one of {', '.join(node)}",
            )
    read.close()
    return pool


def _provider(doc: object, field: str) -> str:
    if not isinstance(doc, Mapping):
        raise Refused(field, f"{shown(doc)} is not a mapping; write for example {{command: [./mycloud]}}")
    check_entries(doc, field, MAX_PROVIDER)
    try:
        return check_text(msgspec.json.encode(doc, order="deterministic").decode(), field)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        why = printable(str(problem), 100)
        raise Refused(field, f"it cannot be written as JSON ({why}); use texts, numbers and lists") from None
