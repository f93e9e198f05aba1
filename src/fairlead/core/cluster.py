"""The cluster: which partitions there are, and the version of the configuration they follow.

It has a small log of its own. A new version is written there first; each partition then follows it in a cycle of
its own, and one that missed it (a crash in between) follows at the next start.
"""

from __future__ import annotations

import msgspec

from fairlead.core.settings import PartitionConfig


class ClusterConfigured(msgspec.Struct, frozen=True, array_like=True, tag="cluster configured"):
    """All partitions, with their configurations. One that is missing here is removed."""

    version: int
    partitions: tuple[tuple[str, PartitionConfig], ...]


NOTHING = ClusterConfigured(0, ())
