"""The configuration: get it, see what another one would overwrite, apply it; add, change and remove partitions."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.params import PathParameter, QueryParameter

from fairlead.api.context import ADMINS, OPERATORS, PartitionName, Shaped, services_of
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


@get("/config", operation_id="config", guards=[OPERATORS], summary="The configuration that is followed")
async def get_config(
    request: HttpRequest,
    defaults: Annotated[bool, QueryParameter(required=False, description="Also what has its default.")] = False,
) -> wire.Config:
    """As it would be written in fairlead.yaml."""
    version, configs = services_of(request).control.configured
    return wire.Config(version=version, **config_view(configs, defaults))


@post("/config/validate", operation_id="validateConfig", guards=[OPERATORS], status_code=200)
async def validate(request: HttpRequest, data: Annotated[Any, Shaped(wire.ConfigDocument)]) -> wire.Applied:
    """Whether a configuration is in order, and what it would overwrite. Nothing is changed."""
    return _overwritten(request, parse_config(data))


@put("/config", operation_id="applyConfig", guards=[ADMINS], summary="Apply a configuration")
async def apply(request: HttpRequest, data: Annotated[Any, Shaped(wire.ConfigDocument)]) -> wire.Applied:
    """All of it, or none. The answer says what it overwrote."""
    return await _apply(request, parse_config(data))


@put("/partitions/{partition_name:str}", operation_id="setPartition", guards=[ADMINS])
async def set_partition(
    request: HttpRequest, partition_name: PathName, data: Annotated[Any, Shaped(wire.PartitionDocument)]
) -> wire.Applied:
    """Add a partition, or give it another configuration."""
    check_name(partition_name, "partition")
    config = parse_partition(data, f"partitions.{partition_name}")
    _, configs = services_of(request).control.configured
    return await _apply(request, {**configs, partition_name: config})


@delete("/partitions/{partition_name:str}", operation_id="removePartition", guards=[ADMINS], status_code=200)
async def remove_partition(request: HttpRequest, partition_name: PathName) -> wire.Applied:
    """Everything under it is released at once: jobs, allocations, nodes."""
    _, configs = services_of(request).control.configured
    if partition_name not in configs:
        raise Refused("partition", f"there is no partition {shown(partition_name)}; name one that is known", "missing")
    if len(configs) == 1:
        raise Refused("partition", "a cluster needs at least one; add another one first", "conflict")
    return await _apply(request, {name: config for name, config in configs.items() if name != partition_name})


@get("/shares", operation_id="shares", guards=[OPERATORS], summary="How queues divide a partition")
async def shares(request: HttpRequest, partition: PartitionName = "") -> wire.Shares:
    """Shares of queues, patterns by which users reach them, and when loans are taken back."""
    control = services_of(request).control
    _, configs = control.configured
    config = configs[control.find(partition).name]
    settings = config.settings
    return wire.Shares(
        shares={path: queue.share for path, queue in config.queues if path != "root"},
        requestors=[wire.Requestor(match=each.match, queue=each.queue) for each in settings.requestors],
        rebalance_threshold=settings.rebalance_threshold,
        rebalance_after=settings.rebalance_after / SECOND,
    )


@put("/shares", operation_id="setShares", guards=[OPERATORS], summary="Divide a partition otherwise")
async def set_shares(
    request: HttpRequest, data: Annotated[Any, Shaped(wire.SharesDocument)], partition: PartitionName = ""
) -> wire.Applied:
    """Like a configuration that differs in these keys only. It holds until the next one, also after a restart."""
    control = services_of(request).control
    name = control.find(partition).name
    _, configs = control.configured
    document = config_view({name: configs[name]}, defaults=False)["partitions"][name]
    read = Reader(data, "", "a division")
    for path, share in Reader(read.get("shares", {}), "shares", "the list of shares").doc.items():
        if path not in dict(configs[name].queues):
            known = [each for each, _ in configs[name].queues]
            raise Refused(
                f"shares.{path}", f"there is no queue {shown(path)}{suggestion(path, known)}; name one that is known"
            )
        place = document["queues"]
        for part in path.split("."):
            place = place[part]
        place["share"] = share
    for key in ("requestors", "rebalance_threshold", "rebalance_after"):
        value = read.get(key)
        if value is not None:
            document[key] = value
    read.close()
    return await _apply(request, {**configs, name: parse_partition(document, "")})


async def _apply(request: HttpRequest, configs: dict[str, PartitionConfig]) -> wire.Applied:
    overwritten = _overwritten(request, configs)
    control = services_of(request).control
    await control.configure(configs)
    version, _ = control.configured
    return wire.Applied(version=version, differences=overwritten.differences)


def _overwritten(request: HttpRequest, configs: dict[str, PartitionConfig]) -> wire.Applied:
    check_providers(configs)
    version, known = services_of(request).control.configured
    before, after = (config_view(each, defaults=False)["partitions"] for each in (known, configs))
    return wire.Applied(version=version, differences=differences(before, after))


HANDLERS = [get_config, validate, apply, set_partition, remove_partition, shares, set_shares]
