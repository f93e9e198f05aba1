"""The cluster: its partitions and the version of their configuration.

It has a small journal of its own. A new version is written there first. Then each partition applies it in a cycle of
its own; a partition that missed it because of a crash applies it at the next start.
"""

from __future__ import annotations

import msgspec

from fairlead.core.settings import PartitionConfig


class ClusterConfigured(msgspec.Struct, frozen=True, array_like=True, tag="cluster configured"):
    """All partitions with their configurations. Other partitions are removed."""

    version: int
    partitions: tuple[tuple[str, PartitionConfig], ...]


NOTHING = ClusterConfigured(0, ())
