"""Makes the providers of machines for pools, and the credentials with which new machines join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.core.errors import Refused
from fairlead.identity.node_keys import Identities
from fairlead.identity.smallfile import FileProblem
from fairlead.pools.command import CommandProvider
from fairlead.pools.local import LocalProvider, end_machines
from fairlead.pools.provider import Join, Log, PoolKind, Provider, ProviderError, parse_provider
from fairlead.server.failure import Failed


def provider_of(kind: PoolKind, folder: Path, log: Log) -> Provider:
    """Return the provider that the settings of a pool name. `folder` is for the files of local machines."""
    settings = parse_provider(kind.settings, f"partitions.{kind.partition}.pools.{kind.pool}")
    if settings.kind == "local":
        return LocalProvider(kind, folder / kind.partition / kind.pool, log)
    return CommandProvider(kind, settings.command, settings.timeout)


def join_by(identities: Identities, addresses: Callable[[], str], log: Log) -> Join:
    """Return what pools need for new machines to join: join tokens, and the addresses of the servers."""

    def invite(partition: str, pool: str, names: Sequence[str]) -> dict[str, str]:
        try:
            tokens = identities.invite(names, partition=partition, pool=pool, note=f"for a machine of pool {pool}")
        except (FileProblem, Refused) as problem:
            raise ProviderError(str(problem), names) from problem
        return {name: secret for name, (secret, _) in zip(names, tokens, strict=True)}

    def forget(partition: str, names: Sequence[str]) -> None:
        try:
            identities.forget(partition, names)
        except FileProblem as problem:
            log("warning", "credentials not removed", {"problem": str(problem)})

    return Join(addresses, invite, forget)


def end_local_machines(directory: Path) -> int:
    """End the machines of pools that are processes on this machine, and return their number."""
    try:
        return end_machines(directory / "pools")
    except (OSError, ProviderError) as problem:
        raise Failed(f"machines of pools: {problem}; end them by hand") from problem
