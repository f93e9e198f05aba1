"""The writer of a partition. A cycle is one call of the core and one durable write; then answers and effects are sent.

If the write certainly failed, the changes of the cycle are undone. If its outcome is unknown, the state keeps them. In
both cases the writer stops, and a new writer must recover the state from the journal. Observers, such as metrics and
logs, read the plans of finished cycles. The core does not know about observers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from fairlead.core import cycle
from fairlead.core.changes import News
from fairlead.core.cluster_config import LeftMachine, Remains
from fairlead.core.commands import BeginEra, Command, Configure, RemovePartition
from fairlead.core.config import missing_policies
from fairlead.core.cycle import Cycle
from fairlead.core.lanes import LaneKey, lane_key
from fairlead.core.model import Micros
from fairlead.core.settings import PartitionConfig
from fairlead.core.state import Partition
from fairlead.core.why.reasons import Reason
from fairlead.journal.codec import encode, encode_remains, removed_stream_of, restore, restore_remains, stream_of
from fairlead.journal.journal import Journal, JournalError, PolicyMissing, UnknownOutcome, era_of
from fairlead.writer.clock import Stopwatch


class Observer(Protocol):
    """Observes a writer. Its methods are called in the writer's thread between cycles, so they may read the state.

    They must be quick and must not raise. Subclasses define the methods that they need. `Plan.news` lists the tasks,
    jobs and nodes that a cycle changed.
    """

    def began(self, partition: Partition) -> None:
        """Called when a writer has taken over and recovered a partition."""

    def cycle(self, decided: Cycle, seconds: Mapping[str, float]) -> None:
        """Called after each cycle, when its changes are durable.

        `decided.seq` is the number of its record. `seconds` has the duration of each phase. If there were changes, it
        also has `encode` and `journal`.
        """

    def stopped(self, partition: Partition, why: str) -> None:
        """Called when the writer has stopped. `cycle` is not called for the cycle that it could not write."""


@runtime_checkable
class ReplayObserver(Protocol):
    """An observer that also gets the records that a recovery replays, before `began` is called.

    If the last server crashed, its observers may have missed these records.
    """

    def reached(self, partition: str, last: int) -> int:
        """Return the record after which the observer needs the records up to `last`, the last one."""

    def replayed(self, partition: Partition, seq: int, news: Iterable[News]) -> None:
        """Called after each replayed record, with the state after it, its number, and its news, which are computed on
        iteration."""


FEW = 100
"""Reasons of removed lanes are dropped when more than twice the number of existing lanes, plus this, have reasons."""


class Stopped(Exception):
    """The writer stopped without answering the commands of this cycle. A new writer must recover from the journal."""


class Writer:
    """Owns the state of a partition. No other code changes that state."""

    def __init__(self, journal: Journal, partition: str, observers: Sequence[Observer] = ()) -> None:
        """Take over the partition and recover it. From now on the journal refuses appends of earlier writers."""
        self.journal = journal
        self.stream = stream_of(partition)
        self.epoch = journal.reign(self.stream)
        self.skipped = journal.skipped(self.stream)
        """Epochs before this one whose records were lost, because the data were restored to an earlier time."""
        replaying = [observer for observer in observers if isinstance(observer, ReplayObserver)]
        last = journal.last(self.stream)
        after = min((observer.reached(partition, last) for observer in replaying), default=last)
        state, seq = restore(journal, partition, [observer.replayed for observer in replaying], after)
        missing = missing_policies(state.settings, [queue.settings for queue in state.queues.values()])
        if missing:
            raise PolicyMissing(partition, missing)
        self._begin(state, seq, observers)

    def _begin(self, state: Partition, seq: int, observers: Sequence[Observer]) -> None:
        self.partition, self.seq = state, seq
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Why asks wait, found by the last cycle that tried them: (job, stage, kind of ask) → reason."""
        self._keys_by_lane: dict[LaneKey, list[tuple[str, str, int]]] = {}
        """Lane → the keys of its asks that have a reason."""
        self.more = False
        """True if the last cycle left work, so that the next one should follow at once."""
        self.stopped = ""
        """Why the writer has stopped; empty if it has not. After a stop, the state may have unwritten changes."""
        self._observers = observers
        for observer in observers:
            observer.began(self.partition)

    def cycle(self, commands: Sequence[Command], now: Micros) -> Cycle:
        """Run one cycle. When this returns, all changes of the cycle are durable."""
        if self.stopped:
            raise Stopped(self.stopped)
        watch = Stopwatch()
        decided = cycle.run(self.partition, commands, now, watch)
        if not decided.changes:
            decided.plan.abandon()
        else:
            self._commit(decided, now, watch)
            decided.seq = self.seq
        self._remember(decided)
        for observer in self._observers:
            observer.cycle(decided, watch.seconds)
        return decided

    def remove(self, now: Micros) -> Cycle:
        """Run the last cycle of a partition that was removed from the configuration: it stops all tasks.

        This cycle is not written to the journal, because the new configuration already records the removal. If the
        server ends before the stream is dropped, the next server removes the partition again and stops the same tasks.
        """
        watch = Stopwatch()
        decided = cycle.run(self.partition, [RemovePartition(operator=True)], max(now, self.partition.now), watch)
        self.seq += 1  # news of the removal follow all news of written cycles
        for observer in self._observers:
            observer.cycle(decided, watch.seconds)
        return decided

    def opening(self, config: PartitionConfig, version: int) -> list[Command]:
        """Return the commands that a new leader has to carry out before all others."""
        commands: list[Command] = []
        if self.partition.config_version < version:
            commands.append(self.configuring(config, version))
        if self.partition.era < era_of(self.epoch):
            commands.append(BeginEra(era=era_of(self.epoch), reached=self.partition.now, operator=True))
        return commands

    def configuring(self, config: PartitionConfig, version: int, user: str = "") -> Configure:
        """Return the command that applies a version of the cluster's configuration to the partition.

        If a partition of this name was removed before, the new one continues its counters, so that no id is used twice.
        """
        remains = None if self.seq else restore_remains(self.journal, self.partition.name)
        numbers = None if remains is None else remains.counters
        return Configure(config=config, version=version, numbers=numbers, user=user, operator=True)

    def drop(self, machines: tuple[LeftMachine, ...] = ()) -> None:
        """Drop the stream of the removed partition.

        Its counters, and the machines that still exist, are written to another stream first.
        """
        stream = removed_stream_of(self.partition.name)
        epoch = self.journal.reign(stream)
        remains = Remains(self.partition.counters, machines)
        self.journal.append(stream, epoch, self.journal.last(stream) + 1, encode_remains(remains))
        self.journal.drop(self.stream)

    def take_over(self, other: Writer) -> None:
        """Copy the reasons why asks wait from another writer of the same state.

        A cycle would not find them again, because it does not try lanes that sleep.
        """
        self.reasons, self._keys_by_lane = dict(other.reasons), {}
        for key in self.reasons:  # lane keys contain shapes, which differ in identity between states
            lane = self._lane_of(*key)
            if lane is not None:
                self._keys_by_lane.setdefault(lane, []).append(key)

    def _remember(self, decided: Cycle) -> None:
        """Store the reasons that a cycle found. Lanes that it did not try keep theirs, which are still true."""
        self.more = decided.more
        for lane in decided.plan.looked:
            for key in self._keys_by_lane.pop(lane, ()):
                self.reasons.pop(key, None)
        for key, reason in decided.reasons.items():
            waits_in = self._lane_of(*key)
            if waits_in is not None:
                self.reasons[key] = reason
                self._keys_by_lane.setdefault(waits_in, []).append(key)
        if len(self._keys_by_lane) > 2 * len(self.partition.lanes) + FEW:
            self._forget_lanes()

    def _forget_lanes(self) -> None:
        """Drop the reasons of lanes that no longer exist."""
        for lane in [lane for lane in self._keys_by_lane if lane not in self.partition.lanes]:
            for key in self._keys_by_lane.pop(lane):
                if self._lane_of(*key) in (None, lane):
                    self.reasons.pop(key, None)

    def _lane_of(self, job_id: str, stage_name: str, kind: int) -> LaneKey | None:
        job = self.partition.jobs.get(job_id)
        stage = job.stage(stage_name) if job is not None else None
        ask = stage.asks[kind] if stage is not None else None
        return None if ask is None else lane_key(ask)

    def _commit(self, decided: Cycle, now: Micros, watch: Stopwatch) -> None:
        try:
            payload = encode(now, decided.changes, decided.actors())
        except BaseException:
            decided.plan.abandon()
            raise
        watch("encode")
        try:
            self.journal.append(self.stream, self.epoch, self.seq + 1, payload)
        except UnknownOutcome as problem:
            why = f"it is not known whether cycle {self.seq + 1} was written: {problem}"
            raise self._stop(why) from problem
        except JournalError as problem:
            decided.plan.abandon()
            raise self._stop(f"cycle {self.seq + 1} was not written: {problem}") from problem
        except BaseException as problem:
            # Interrupted in the middle: it is unknown whether the record was written.
            self._stop(f"writing cycle {self.seq + 1} was interrupted: {problem!r}")
            raise
        watch("journal")
        self.seq += 1

    def _stop(self, why: str) -> Stopped:
        self.stopped = why
        for observer in self._observers:
            observer.stopped(self.partition, why)
        return Stopped(why)


class ScratchWriter(Writer):
    """A writer for previews: it runs cycles on a copy of a state and writes no journal."""

    def __init__(self, state: Partition, observers: Sequence[Observer] = ()) -> None:
        self._begin(state, 0, observers)

    def _commit(self, decided: Cycle, now: Micros, watch: Stopwatch) -> None:
        self.seq += 1
