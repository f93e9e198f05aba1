"""The writer of a partition: a cycle is one call of the core and one durable write; answers and effects come after.

If the write certainly failed, the plan is undone. If its outcome is unknown, the state is left as it is. Either way
the writer stops, and a new one recovers from the journal.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.core import cycle
from fairlead.core.commands import AnyCommand, RemovePartition
from fairlead.core.config import missing_policies
from fairlead.core.cycle import Cycle
from fairlead.core.lanes import LaneKey, lane_key
from fairlead.core.model import Micros
from fairlead.core.reasons import Reason
from fairlead.core.state import Partition
from fairlead.journal.base import Journal, JournalError, PolicyMissing, UnknownOutcome
from fairlead.journal.codec import encode, restore, stream_of
from fairlead.writer.clock import Stopwatch
from fairlead.writer.observer import Observer, ReplayObserver

FEW = 100
"""Removed lanes are forgotten when more than twice the current number of lanes, plus this, are remembered."""


class Stopped(Exception):
    """The writer has stopped, and the commands of this cycle have no answer. Recover from the journal."""


class Writer:
    """Owns the state of a partition. Nothing else changes it."""

    def __init__(self, journal: Journal, partition: str, observers: Sequence[Observer] = ()) -> None:
        """Take over the partition and recover it. From now on appends of earlier writers are refused."""
        self.journal = journal
        self.stream = stream_of(partition)
        self.epoch = journal.reign(self.stream)
        self.skipped = journal.skipped(self.stream)
        """Epochs before this one that are in no record, because the data were set back."""
        replayed = [observer.replayed for observer in observers if isinstance(observer, ReplayObserver)]
        state, seq = restore(journal, partition, replayed)
        missing = missing_policies(state.settings, [queue.settings for queue in state.queues.values()])
        if missing:
            raise PolicyMissing(partition, missing)
        self._begin(state, seq, observers)

    def _begin(self, state: Partition, seq: int, observers: Sequence[Observer]) -> None:
        self.state, self.seq = state, seq
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Why asks wait, as of the last cycle that tried them: (job, stage, kind of ask) → reason."""
        self._keys_by_lane: dict[LaneKey, list[tuple[str, str, int]]] = {}
        """Lane → the keys of its asks that have a reason."""
        self.more = False
        """True if the last cycle left work, as at a limit, so that the next should follow at once."""
        self._stopped: str = ""
        self._observers = observers
        for observer in observers:
            observer.began(self.state)

    @property
    def partition(self) -> Partition:
        """The state, for reading."""
        return self.state

    @property
    def stopped(self) -> str:
        """Why the writer has stopped; empty if it has not. Once stopped, the state may have unwritten changes."""
        return self._stopped

    def cycle(self, commands: Sequence[AnyCommand], now: Micros) -> Cycle:
        """Run one cycle. When it returns, all its changes are durable."""
        if self._stopped:
            raise Stopped(self._stopped)
        watch = Stopwatch()
        decided = cycle.run(self.state, commands, now, watch)
        if not decided.changes:
            decided.plan.abandon()
        else:
            self._commit(decided, now, watch)
        self._remember(decided)
        for observer in self._observers:
            observer.cycle(decided, watch.seconds)
        return decided

    def remove(self, now: Micros) -> Cycle:
        """Run the last cycle of a partition that left the configuration: release everything in it.

        Nothing is written: the configuration without the partition is the record of its removal. A server that ends
        before the stream is dropped finds the state as it was, removes the partition again and derives the same stops.
        """
        watch = Stopwatch()
        decided = cycle.run(self.state, [RemovePartition(operator=True)], max(now, self.state.now), watch)
        self.seq += 1  # news of the removal come after all news of written cycles
        for observer in self._observers:
            observer.cycle(decided, watch.seconds)
        return decided

    def take_over(self, other: Writer) -> None:
        """Copy the reasons of another writer of the same state: lanes that sleep are not tried, so they give none."""
        self.reasons, self._keys_by_lane = dict(other.reasons), {}
        for key in self.reasons:  # lane keys contain shapes, which are other objects in this state
            lane = self._lane_of(*key)
            if lane is not None:
                self._keys_by_lane.setdefault(lane, []).append(key)

    def _remember(self, decided: Cycle) -> None:
        """Keep the reasons of a cycle. A sleeping lane is not tried, and the reason of its head still holds."""
        self.more = decided.more
        for lane in decided.plan.looked:
            for key in self._keys_by_lane.pop(lane, ()):
                self.reasons.pop(key, None)
        for key, reason in decided.reasons.items():
            lane_of = self._lane_of(*key)
            if lane_of is not None:
                self.reasons[key] = reason
                self._keys_by_lane.setdefault(lane_of, []).append(key)
        if len(self._keys_by_lane) > 2 * len(self.state.lanes) + FEW:
            self._forget_lanes()

    def _forget_lanes(self) -> None:
        """Forget the reasons of removed lanes, which are never tried again."""
        for lane in [lane for lane in self._keys_by_lane if lane not in self.state.lanes]:
            for key in self._keys_by_lane.pop(lane):
                if self._lane_of(*key) in (None, lane):
                    self.reasons.pop(key, None)

    def _lane_of(self, job_id: str, stage_name: str, kind: int) -> LaneKey | None:
        job = self.state.jobs.get(job_id)
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
            # Interrupted in the middle: it is unknown if the record was written.
            self._stop(f"writing cycle {self.seq + 1} was interrupted: {problem!r}")
            raise
        watch("journal")
        self.seq += 1

    def _stop(self, why: str) -> Stopped:
        self._stopped = why
        for observer in self._observers:
            observer.stopped(self.state, why)
        return Stopped(why)
