"""Handlers for the configuration: read, compare and apply it, change and remove partitions, and set shares."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.core.config import parse_config, parse_partition
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, check_name, suggestion
from fairlead.core.resources import SECOND, shown
from fairlead.core.settings import PartitionConfig
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.pools.provider import check_providers
from fairlead.views.answers import differences, loss_of
from fairlead.views.config_document import config_view
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.unserved import Unserved


@serves(op.Config)
async def get_config(request: Request, asked: op.Config) -> wire.Config:
    version, configs = request.services.control.configured
    return wire.Config(version=version, **config_view(configs, asked.defaults))


@serves(op.ValidateConfig)
async def validate(request: Request, asked: op.ValidateConfig) -> wire.Applied:
    return await _compared(request, parse_config(asked.document))


@serves(op.ApplyConfig)
async def apply(request: Request, asked: op.ApplyConfig) -> wire.Applied:
    return await _apply(request, parse_config(asked.document))


@serves(op.SetPartition)
async def set_partition(request: Request, asked: op.SetPartition) -> wire.Applied:
    check_name(asked.partition, "partition")
    config = parse_partition(asked.document, f"partitions.{asked.partition}")
    _, configs = request.services.control.configured
    return await _apply(request, {**configs, asked.partition: config})


@serves(op.RemovePartition)
async def remove_partition(request: Request, asked: op.RemovePartition) -> wire.Applied:
    _, configs = request.services.control.configured
    if asked.partition not in configs:
        raise Refused("partition", f"there is no partition {shown(asked.partition)}; name one that is known", "missing")
    if len(configs) == 1:
        raise Refused("partition", "a cluster needs at least one; add another one first", "conflict")
    return await _apply(request, {name: config for name, config in configs.items() if name != asked.partition})


@serves(op.Shares)
async def shares(request: Request, asked: op.Shares) -> wire.Shares:
    control = request.services.control
    _, configs = control.configured
    config = configs[request.leader(asked).name]
    settings = config.settings
    return wire.Shares(
        shares={path: queue.share for path, queue in config.queues if path != "root"},
        requestors=[wire.Requestor(match=rule.match, queue=rule.queue) for rule in settings.requestors],
        rebalance_threshold=settings.rebalance_threshold,
        rebalance_after=settings.rebalance_after / SECOND,
    )


@serves(op.SetShares)
async def set_shares(request: Request, asked: op.SetShares) -> wire.Applied:
    control = request.services.control
    name = request.leader(asked).name
    _, configs = control.configured
    document = config_view({name: configs[name]}, defaults=False)["partitions"][name]
    read = Reader(asked.document, "", "a division")
    for path, share in Reader(read.get("shares", {}), "shares", "the list of shares").doc.items():
        if path not in dict(configs[name].queues):
            paths = [known for known, _ in configs[name].queues]
            raise Refused(
                f"shares.{path}", f"there is no queue {shown(path)}{suggestion(path, paths)}; name one that is known"
            )
        queue = document["queues"]
        for part in path.split("."):
            queue = queue[part]
        queue["share"] = share
    for key in ("requestors", "rebalance_threshold", "rebalance_after"):
        value = read.get(key)
        if value is not None:
            document[key] = value
    read.close()
    return await _apply(request, {**configs, name: parse_partition(document, "")})


async def _apply(request: Request, configs: dict[str, PartitionConfig]) -> wire.Applied:
    compared = await _compared(request, configs)
    control = request.services.control
    left = await control.configure(configs, request.caller.user)
    version, _ = control.configured
    machines = [
        wire.LeftMachine(partition=name, pool=machine.pool, name=machine.name, reason=machine.reason)
        for name, found in left.items()
        for machine in found
    ]
    return msgspec.structs.replace(compared, version=version, machines=machines)


async def _compared(request: Request, configs: dict[str, PartitionConfig]) -> wire.Applied:
    check_providers(configs)
    version, current = request.services.control.configured
    before, after = (config_view(config, defaults=False)["partitions"] for config in (current, configs))
    losses = [
        await _loss(request, *removed)
        for name, config in sorted(current.items())
        for removed in _removed(name, config, configs.get(name))
    ]
    return wire.Applied(
        version=version,
        differences=differences(before, after),
        losses=[loss for loss in losses if loss.jobs != 0 or loss.nodes != 0],
    )


def _removed(name: str, before: PartitionConfig, after: PartitionConfig | None) -> Iterator[tuple[str, str]]:
    """Yield the partition and each pool that it loses. If the whole partition is removed, the pool is empty."""
    if after is None:
        yield name, ""
    else:
        yield from ((name, pool) for pool in sorted({*dict(before.pools)} - {*dict(after.pools)}))


async def _loss(request: Request, name: str, pool: str) -> wire.Loss:
    """Return the jobs and nodes that are lost if a partition, or one of its pools, is removed."""
    key = f"{name}.pools.{pool}" if pool else name
    try:
        served = await request.services.control.reader(name)
        return await served.read(lambda state: loss_of(state, key, pool))
    except Unserved:
        return wire.Loss(key=key, jobs=None, nodes=None)
