"""The cluster: its partitions and the version of their configuration.

The cluster has a small journal of its own. A new version of the configuration is written there first. Then each
partition applies that version in a cycle of its own. A partition that missed a version because of a crash applies it at
the next start.
"""

from __future__ import annotations

import msgspec

from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Counters


class ClusterConfigured(msgspec.Struct, frozen=True, array_like=True, tag="cluster configured"):
    """Sets all partitions with their configurations. Partitions that are not listed are removed."""

    version: int
    partitions: tuple[tuple[str, PartitionConfig], ...]


NOTHING = ClusterConfigured(0, ())


class LeftMachine(msgspec.Struct, frozen=True, array_like=True):
    """A machine of a removed partition's pool that was not destroyed, as far as is known."""

    pool: str
    name: str
    reason: str


class Remains(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a removed partition: its next numbers, and machines that were not destroyed.

    A later partition of the same name continues with these numbers. Then no job of it has the number of an older job.
    """

    counters: Counters
    machines: tuple[LeftMachine, ...] = ()
