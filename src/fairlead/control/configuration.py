"""The configuration of the cluster. One server leads its stream in the journal; the others read the stream."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.control.dependencies import Dependencies
from fairlead.control.heartbeat import Heartbeat
from fairlead.control.streams import Streams
from fairlead.core.cluster_config import NOTHING, ClusterConfigured
from fairlead.core.errors import Refused
from fairlead.core.reader import suggestion
from fairlead.core.resources import shown
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.journal.codec import CLUSTER_STREAM, restore_cluster, stream_of
from fairlead.journal.journal import Held, Journal, JournalError, PolicyMissing
from fairlead.journal.roster import Lease
from fairlead.wire.unserved import Unserved
from fairlead.writer.cluster import ConfigurationLog, check_policies, try_configuration
from fairlead.writer.writer import Stopped


class ClusterConfiguration:
    """The configuration of the cluster, and the names of its partitions."""

    def __init__(self, given: Dependencies, heartbeat: Heartbeat, streams: Streams) -> None:
        self.current: ClusterConfigured = NOTHING
        """The configuration that this server knows."""
        self._given = given
        self._heartbeat = heartbeat
        self._streams = streams
        self._log: ConfigurationLog | None = None
        """The stream of configurations, if this server leads it."""
        self._known = 0
        """The number of the last record read from that stream."""
        self._found: list[str] = []
        """The streams of the journal when it was opened. Used only if no other server shares the journal."""

    @property
    def usable(self) -> bool:
        """True if a configuration is known. Without other servers, this one must also lead its stream."""
        return self.current is not NOTHING and (self._log is not None or self._heartbeat.shared)

    @property
    def partitions(self) -> dict[str, PartitionConfig]:
        return dict(self.current.partitions)

    def names(self) -> list[str]:
        """Return the names of all partitions."""
        return [name for name, _ in self.current.partitions]

    def named(self, name: str = "") -> str:
        """Return the name of an existing partition. If `name` is empty, it is that of the only one, or `default`."""
        names = self.names()
        if not name:
            name = names[0] if len(names) == 1 else "default"
        if name not in names:
            raise Refused(
                "partition",
                f"there is no partition {shown(name)}{suggestion(name, names)}; name one of {', '.join(names[:20])}",
                "missing",
            )
        return name

    def left_over(self) -> list[str]:
        """Return partitions that have a stream but are not in the configuration, so that they have to be removed."""
        prefix, names, leases = stream_of(""), self.names(), self._heartbeat.membership.leases
        streams = [stream for stream, lease in leases.items() if lease.seq] if self._heartbeat.shared else self._found
        found = [stream.removeprefix(prefix) for stream in streams if stream.startswith(prefix)]
        return [name for name in found if name not in names]

    def forget(self, stream: str) -> None:
        """Forget a stream that was dropped."""
        self._found = [other for other in self._found if other != stream]

    def led_log(self) -> ConfigurationLog:
        """Return the stream of configurations. Raise `Unserved` if this server does not lead it."""
        if self._log is None:
            raise self._streams.not_led(CLUSTER_STREAM, "the configuration")
        return self._log

    async def write(self, log: ConfigurationLog, configs: Mapping[str, PartitionConfig]) -> None:
        """Write a configuration. Raise `Unserved` if this server has lost the stream since `led_log`."""
        thread = self._streams.threads.get(CLUSTER_STREAM)
        if thread is None or self._log is not log:
            raise self._streams.not_led(CLUSTER_STREAM, "the configuration")
        try:
            await thread.run(lambda journal: log.write(configs))
        except (Stopped, JournalError) as stopped:
            self._streams.fail(thread, stopped)
            raise Unserved("unavailable", f"{stopped}; ask again in a moment", 1) from None
        self.current = log.current
        self._heartbeat.notify()

    async def refresh(self) -> None:
        """Lead the stream of configurations if possible; otherwise read the newest configuration from it."""
        membership = self._heartbeat.membership
        able = {member.id for member in membership.members if member.takes}
        takes = membership.me in able
        if self._log is not None:
            deposed = self._heartbeat.shared and not membership.leads(CLUSTER_STREAM)
            if deposed or (able and not takes):
                await self._streams.end(self._streams.threads[CLUSTER_STREAM])
            if not deposed:
                return
        free = membership.holder(CLUSTER_STREAM) in ("", membership.me)
        if free and takes and self._streams.may_try(CLUSTER_STREAM):
            await self._lead()
        elif self._heartbeat.shared and membership.leases.get(CLUSTER_STREAM, Lease()).seq != self._known:
            self.current, self._known = await self._streams.reader.run(restore_cluster)
            try:
                check_policies(self.current)
            except PolicyMissing as problem:
                self._given.note(f"this server cannot lead: {problem}")
                self._heartbeat.able = False

    async def _lead(self) -> None:
        thread = self._streams.thread(CLUSTER_STREAM)

        def take_over(journal: Journal) -> ConfigurationLog:
            log = ConfigurationLog(journal)
            self._found = journal.streams()
            if log.current is NOTHING:
                for name, config in self._given.first.items():
                    try_configuration(Partition(name), config, 0)
                log.write(self._given.first)
            return log

        try:
            log = await thread.run(take_over)
        except Held:
            await self._streams.end(thread)
        except Exception as problem:
            self._streams.fail(thread, problem)
            if not self._streams.started:
                raise
        else:
            self._log, thread.release = log, self._release
            self.current, self._known = log.current, log.seq
            self._streams.succeed(CLUSTER_STREAM)

    async def _release(self) -> None:
        self._log = None
