"""Handlers for the configuration: get, compare and apply it; add, change and remove partitions; set shares."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.params import PathParameter, QueryParameter

from fairlead.api.context import ADMINS, OPERATORS, PartitionName, Shaped, caller_of, services_of
from fairlead.core.config import parse_config, parse_partition
from fairlead.core.errors import Refused
from fairlead.core.reader import Reader, check_name, suggestion
from fairlead.core.resources import SECOND, shown
from fairlead.core.settings import PartitionConfig
from fairlead.pools.settings import check_providers
from fairlead.views.answers import differences
from fairlead.views.config import config_view
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]
PathName = Annotated[str, PathParameter(max_length=63)]


@get("/config", operation_id="config", guards=[OPERATORS], summary="The configuration of the server")
async def get_config(
    request: HttpRequest,
    defaults: Annotated[
        bool, QueryParameter(required=False, description="Also return settings that have their default.")
    ] = False,
) -> wire.Config:
    """Return the configuration as it would be written in fairlead.yaml."""
    version, configs = services_of(request).control.configured
    return wire.Config(version=version, **config_view(configs, defaults))


@post("/config/validate", operation_id="validateConfig", guards=[OPERATORS], status_code=200)
async def validate(request: HttpRequest, data: Annotated[Any, Shaped(wire.ConfigDocument)]) -> wire.Applied:
    """Check a configuration, and return what it would change. Nothing is changed."""
    return _compared(request, parse_config(data))


@put("/config", operation_id="applyConfig", guards=[ADMINS], summary="Apply a configuration")
async def apply(request: HttpRequest, data: Annotated[Any, Shaped(wire.ConfigDocument)]) -> wire.Applied:
    """Apply a configuration, all of it or nothing. The answer lists what changed."""
    return await _apply(request, parse_config(data))


@put("/partitions/{partition_name:str}", operation_id="setPartition", guards=[ADMINS])
async def set_partition(
    request: HttpRequest, partition_name: PathName, data: Annotated[Any, Shaped(wire.PartitionDocument)]
) -> wire.Applied:
    """Add a partition, or replace its configuration."""
    check_name(partition_name, "partition")
    config = parse_partition(data, f"partitions.{partition_name}")
    _, configs = services_of(request).control.configured
    return await _apply(request, {**configs, partition_name: config})


@delete("/partitions/{partition_name:str}", operation_id="removePartition", guards=[ADMINS], status_code=200)
async def remove_partition(request: HttpRequest, partition_name: PathName) -> wire.Applied:
    """Remove a partition, and release its jobs, allocations and nodes at once."""
    _, configs = services_of(request).control.configured
    if partition_name not in configs:
        raise Refused("partition", f"there is no partition {shown(partition_name)}; name one that is known", "missing")
    if len(configs) == 1:
        raise Refused("partition", "a cluster needs at least one; add another one first", "conflict")
    return await _apply(request, {name: config for name, config in configs.items() if name != partition_name})


@get("/shares", operation_id="shares", guards=[OPERATORS], summary="Shares of queues")
async def shares(request: HttpRequest, partition: PartitionName = "") -> wire.Shares:
    """Return the shares of queues, the patterns that choose a queue by user, and the delay before loans return."""
    control = services_of(request).control
    _, configs = control.configured
    config = configs[control.find(partition).name]
    settings = config.settings
    return wire.Shares(
        shares={path: queue.share for path, queue in config.queues if path != "root"},
        requestors=[wire.Requestor(match=rule.match, queue=rule.queue) for rule in settings.requestors],
        rebalance_threshold=settings.rebalance_threshold,
        rebalance_after=settings.rebalance_after / SECOND,
    )


@put("/shares", operation_id="setShares", guards=[OPERATORS], summary="Set shares of queues")
async def set_shares(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.SharesDocument)], partition: PartitionName = ""
) -> wire.Applied:
    """Change the given keys of the configuration. They last until the next configuration, also over restarts."""
    control = services_of(request).control
    name = control.find(partition).name
    _, configs = control.configured
    document = config_view({name: configs[name]}, defaults=False)["partitions"][name]
    read = Reader(data, "", "a division")
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


async def _apply(request: HttpRequest, configs: dict[str, PartitionConfig]) -> wire.Applied:
    compared = _compared(request, configs)
    control = services_of(request).control
    await control.configure(configs, caller_of(request).user)
    version, _ = control.configured
    return wire.Applied(version=version, differences=compared.differences)


def _compared(request: HttpRequest, configs: dict[str, PartitionConfig]) -> wire.Applied:
    check_providers(configs)
    version, current = services_of(request).control.configured
    before, after = (config_view(config, defaults=False)["partitions"] for config in (current, configs))
    return wire.Applied(version=version, differences=differences(before, after))


HANDLERS = [get_config, validate, apply, set_partition, remove_partition, shares, set_shares]
