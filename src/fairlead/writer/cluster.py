"""The configuration of the cluster, and all partitions of a cluster on one journal.

A new configuration is tried on every partition, then written to the cluster's own log, and then applied to the
partitions. `ConfigurationLog` is that log. `Cluster` performs these steps for all partitions of one journal object,
without threads or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.core.cluster_config import ClusterConfigured
from fairlead.core.commands import Configure, Rejected
from fairlead.core.config import missing_policies
from fairlead.core.cycle import Cycle
from fairlead.core.errors import Refused
from fairlead.core.intake import intake
from fairlead.core.model import Micros
from fairlead.core.plan import Plan
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.journal.codec import CLUSTER_STREAM, encode_cluster, restore_cluster, stream_of
from fairlead.journal.journal import Journal, JournalError, PolicyMissing
from fairlead.writer.writer import Observer, Stopped, Writer


class ConfigurationLog:
    """The log of configurations. One server leads it, like the journal of a partition."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._epoch = journal.reign(CLUSTER_STREAM)
        self.current, self.seq = restore_cluster(journal)
        check_policies(self.current)

    def write(self, configs: Mapping[str, PartitionConfig]) -> bool:
        """Write a configuration that every partition accepts. False if it equals the present one."""
        wanted = tuple(sorted(configs.items()))
        if wanted == self.current.partitions:
            return False
        configured = ClusterConfigured(self.current.version + 1, wanted)
        try:
            self._journal.append(CLUSTER_STREAM, self._epoch, self.seq + 1, encode_cluster(configured))
        except JournalError as problem:
            raise Stopped(f"configuration {configured.version} was not written: {problem}") from problem
        self.seq += 1
        self.current = configured
        return True


def check_policies(configured: ClusterConfigured) -> None:
    """Raise `PolicyMissing` if a configuration names policies that are not installed."""
    for name, config in configured.partitions:
        missing = missing_policies(config.settings, [settings for _, settings in config.queues])
        if missing:
            raise PolicyMissing(name, missing)


def try_configuration(partition: Partition, config: PartitionConfig, now: Micros) -> None:
    """Raise `Refused` if a partition would reject a configuration. The partition is not changed."""
    plan = Plan(partition, max(now, partition.now))
    try:
        [answer], _ = intake(plan, [Configure(config=config, operator=True)])
    finally:
        plan.abandon()
    if isinstance(answer, Rejected):
        raise Refused(f"partitions.{partition.name}.{answer.field}", answer.problem, answer.code)


class Cluster:
    """The writers of all partitions of a cluster, on one journal object."""

    def __init__(self, journal: Journal, observers: Sequence[Observer] = ()) -> None:
        self.journal = journal
        self._observers = observers
        self.configuration = ConfigurationLog(journal)
        self.writers: dict[str, Writer] = {name: self._writer(name) for name, _ in self.configured.partitions}
        self._removed: list[Writer] = []
        """Removed partitions whose streams are not dropped yet."""

    @property
    def configured(self) -> ClusterConfigured:
        return self.configuration.current

    def begin(self, now: Micros) -> dict[str, Cycle]:
        """Finish the last change of the configuration, if a crash interrupted it. Returns the cycles by partition."""
        prefix = stream_of("")
        names = [stream.removeprefix(prefix) for stream in self.journal.streams() if stream.startswith(prefix)]
        removed = {name: self._remove(self._writer(name), now) for name in names if name not in self.writers}
        return removed | self._follow(now)

    def configure(self, configs: dict[str, PartitionConfig], now: Micros, user: str = "") -> dict[str, Cycle]:
        """Apply a user's configuration to all partitions or to none. Returns the cycles by partition.

        The caller must send the effects of these cycles, and then call `drop_removed`.
        """
        wanted = tuple(sorted(configs.items()))
        if wanted == self.configured.partitions:
            return {}
        for name, config in wanted:
            writer = self.writers.get(name)
            try_configuration(Partition(name) if writer is None else writer.partition, config, now)
        self.configuration.write(configs)
        return self._follow(now, user)

    def _writer(self, name: str) -> Writer:
        return Writer(self.journal, name, self._observers)

    def _follow(self, now: Micros, user: str = "") -> dict[str, Cycle]:
        """Apply the configuration to all partitions that have an older version or are not in it."""
        cycles: dict[str, Cycle] = {}
        for name, config in self.configured.partitions:
            if name not in self.writers:
                self.writers[name] = self._writer(name)
            writer = self.writers[name]
            if writer.partition.config_version < self.configured.version:
                cycles[name] = writer.cycle([writer.configuring(config, self.configured.version, user)], now)
        for name in sorted(self.writers.keys() - dict(self.configured.partitions)):
            cycles[name] = self._remove(self.writers.pop(name), now)
        return cycles

    def drop_removed(self) -> None:
        """Drop the streams of removed partitions. After a crash before this call, `begin` removes them again."""
        while self._removed:
            writer = self._removed[0]
            try:
                writer.drop()
            except JournalError as problem:
                raise Stopped(f"the journal of {writer.partition.name} was not dropped: {problem}") from problem
            del self._removed[0]

    def _remove(self, writer: Writer, now: Micros) -> Cycle:
        self._removed.append(writer)
        return writer.remove(now)
