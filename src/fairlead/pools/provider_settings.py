"""The setting `provider` of a pool: checked when a configuration arrives, and read again to create the provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import PoolSettings
from fairlead.core.reader import Reader, suggestion
from fairlead.core.resources import GPU, SECOND, shown
from fairlead.core.settings import PartitionConfig

KINDS = ("local", "command")
FORMS = "{local: {}} or {command: [./mycloud]}"
TIMEOUT = 60 * SECOND


class ProviderSettings(msgspec.Struct, frozen=True):
    kind: Literal["local", "command"]
    command: tuple[str, ...] = ()
    timeout: float = 0.0
    """Longest time for a call of the command, in seconds."""


def check_providers(configs: Mapping[str, PartitionConfig]) -> None:
    for name, config in configs.items():
        for pool, settings in config.pools:
            if settings.provider:
                parse_provider(settings, f"partitions.{name}.pools.{pool}")


def kind_of(pool: PoolSettings) -> str:
    """Return the name of a pool's provider; empty if it has none."""
    named = msgspec.json.decode(pool.provider) if pool.provider else {}
    return next((kind for kind in KINDS if kind in named), ", ".join(named))


def parse_provider(pool: PoolSettings, field: str) -> ProviderSettings:
    """Read a pool's `provider`. `field` is the path of the pool in the configuration, for errors."""
    doc = msgspec.json.decode(pool.provider)
    read = Reader(doc, f"{field}.provider", "a provider")
    named = [kind for kind in KINDS if kind in read.doc]
    if not named:
        given = ", ".join(map(shown, read.doc))
        meant = suggestion(next(iter(read.doc), ""), KINDS)
        raise Refused(read.field, f"{given or 'it'} names no provider{meant}; write for example {FORMS}")
    if len(named) > 1:
        raise Refused(read.field, f"it names {' and '.join(named)}; a pool has one provider, so remove one")
    settings = _local(read, pool, field) if named == ["local"] else _command(read)
    read.close()
    return settings


def _local(read: Reader, pool: PoolSettings, field: str) -> ProviderSettings:
    inner = Reader(read.get("local", {}), read.at("local"), "a local provider")
    for key in inner.doc:
        raise Refused(inner.at(key), f"a local provider has no settings; write {FORMS}")
    if pool.max is None:
        raise Refused(f"{field}.max", "missing; a local pool starts agents on this machine, so say how many at most")
    if GPU in dict(pool.node):
        raise Refused(
            f"{field}.node.gpu",
            "local agents cannot divide the GPUs of this machine; start one agent that has all of them",
        )
    return ProviderSettings("local")


def _command(read: Reader) -> ProviderSettings:
    command = read.texts("command", most=100)
    if not command or not command[0]:
        raise Refused(read.at("command"), "empty; name the program, such as [./mycloud]")
    timeout = read.duration("timeout", TIMEOUT)
    if timeout <= 0:
        raise Refused(read.at("timeout"), "it has to be longer than 0 s; write for example 1min")
    return ProviderSettings("command", command, timeout / SECOND)
