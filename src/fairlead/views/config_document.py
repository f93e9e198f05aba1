"""Configurations as documents, as people write them. Reading a document back gives the same configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.core.model import Amounts, Limits, PoolSettings, QueueSettings
from fairlead.core.resources import format_duration, format_quantity
from fairlead.core.settings import PartitionConfig, PartitionSettings

DURATIONS = {
    name
    for record in (PartitionSettings, PoolSettings)
    for name, kind in record.__annotations__.items()
    if kind.startswith("Micros")
}


def config_view(configs: Mapping[str, PartitionConfig], defaults: bool = True) -> dict[str, Any]:
    """Return the document of all partitions. Without `defaults`, settings with their default value are left out."""
    return {"partitions": {name: _partition(config, defaults) for name, config in configs.items()}}


def _partition(config: PartitionConfig, defaults: bool) -> dict[str, Any]:
    document = _fields(config.settings, PartitionSettings(), defaults)
    if "requestors" in document:
        requestors = config.settings.requestors
        document["requestors"] = [{"match": requestor.match, "queue": requestor.queue} for requestor in requestors]
    document["queues"] = _queues(config.queues, defaults)
    if config.pools or defaults:
        document["pools"] = {name: _pool(pool, defaults) for name, pool in config.pools}
    return document


def _queues(queues: tuple[tuple[str, QueueSettings], ...], defaults: bool) -> dict[str, Any]:
    top: dict[str, Any] = {}
    for path, settings in queues:
        parent = top
        *ancestors, name = path.split(".")
        for ancestor in ancestors:
            parent = parent[ancestor]
        document = _fields(settings, QueueSettings(), defaults)
        _amounts(document, "guarantee", "limit")
        for key in ("users", "groups"):
            if key in document:
                document[key] = {user: _limits(limits, defaults) for user, limits in getattr(settings, key)}
        parent[name] = document
    return top


def _limits(limits: Limits, defaults: bool) -> dict[str, Any]:
    document = _fields(limits, Limits(), defaults)
    _amounts(document, "limit")
    return document


def _pool(pool: PoolSettings, defaults: bool) -> dict[str, Any]:
    document = _fields(pool, PoolSettings(), defaults)
    _amounts(document, "node")
    _amounts(document, "min_free")
    if "labels" in document:
        document["labels"] = dict(pool.labels)
    if pool.provider:
        document["provider"] = msgspec.json.decode(pool.provider)
    else:
        document.pop("provider", None)
    return document


def _fields(record: msgspec.Struct, default: msgspec.Struct, defaults: bool) -> dict[str, Any]:
    """Return the fields of a record by name, without those that are None."""
    document: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if value is None or not (defaults or value != getattr(default, name)):
            continue
        if name in DURATIONS:
            value = format_duration(value)
        document[name] = list(value) if isinstance(value, tuple) else value
    return document


def _amounts(document: dict[str, Any], *keys: str) -> None:
    for key in keys:
        if key in document:
            amounts: Amounts = document[key]
            document[key] = {name: _amount(name, amount) for name, amount in amounts}


def _amount(name: str, amount: int) -> str | int | float:
    text = format_quantity(name, amount)
    return int(text) if text.isdigit() else text
