"""One partition's writer: a cycle is one call of the core and one durable write; answers and effects come after.

If the write certainly failed the plan is taken back; if its outcome is unknown nothing is guessed. Either way the
writer stops, and a new one recovers from the journal.
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
from fairlead.writer.observer import Observer

FEW = 100
"""Lanes that are gone are forgotten when there are so many more than there should be."""


class Stopped(Exception):
    """The writer has stopped: what it was asked in this cycle has no answer. Start anew from the journal."""


class Writer:
    """Holds the state of a partition and is alone in altering it."""

    def __init__(self, journal: Journal, partition: str, observers: Sequence[Observer] = ()) -> None:
        """Take over the partition: from here on any earlier writer's appends are refused."""
        self.journal = journal
        self.stream = stream_of(partition)
        self.epoch = journal.reign(self.stream)
        self.state, self.seq = restore(journal, partition)
        missing = missing_policies(self.state.settings, [queue.settings for queue in self.state.queues.values()])
        if missing:
            raise PolicyMissing(partition, missing)
        self.reasons: dict[tuple[str, str, int], Reason] = {}
        """Why heads of lanes wait, as the last cycle that looked at them found."""
        self._said: dict[LaneKey, list[tuple[str, str, int]]] = {}
        """Lane → of whom in it something was said."""
        self.more = False
        """Whether the last cycle reached its bounds, so that the next should follow at once."""
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
        """Why it has stopped, if it has. Then the state may have what never was written."""
        return self._stopped

    def cycle(self, commands: Sequence[AnyCommand], now: Micros) -> Cycle:
        """One cycle. When it returns, everything in it is durable."""
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
        """The last cycle of a partition that left the configuration: everything in it is released.

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
        """Say what another one said of the same state: a lane that slept there sleeps here until something changes."""
        self.reasons, self._said = dict(other.reasons), {}
        for key in self.reasons:  # lanes are known by their shapes, and those are others here
            lane = self._lane_of(*key)
            if lane is not None:
                self._said.setdefault(lane, []).append(key)

    def _remember(self, decided: Cycle) -> None:
        """Keep what was said. A lane that sleeps is not looked at, and what was said of its head still holds."""
        self.more = decided.more
        for lane in decided.plan.looked:
            for key in self._said.pop(lane, ()):
                self.reasons.pop(key, None)
        for key, reason in decided.reasons.items():
            lane_of = self._lane_of(*key)
            if lane_of is not None:
                self.reasons[key] = reason
                self._said.setdefault(lane_of, []).append(key)
        if len(self._said) > 2 * len(self.state.lanes) + FEW:
            self._forget_lanes()

    def _forget_lanes(self) -> None:
        """Lanes that are gone are not looked at again."""
        for lane in [lane for lane in self._said if lane not in self.state.lanes]:
            for key in self._said.pop(lane):
                if self._lane_of(*key) in (None, lane):
                    self.reasons.pop(key, None)

    def _lane_of(self, job_id: str, stage_name: str, kind: int) -> LaneKey | None:
        job = self.state.jobs.get(job_id)
        stage = job.stage(stage_name) if job is not None else None
        ask = stage.asks[kind] if stage is not None else None
        return None if ask is None else lane_key(ask)

    def _commit(self, decided: Cycle, now: Micros, watch: Stopwatch) -> None:
        try:
            payload = encode(now, decided.changes)
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
            # Interrupted in the middle: nobody can say what was written.
            self._stop(f"writing cycle {self.seq + 1} was interrupted: {problem!r}")
            raise
        watch("journal")
        self.seq += 1

    def _stop(self, why: str) -> Stopped:
        self._stopped = why
        for observer in self._observers:
            observer.stopped(self.state, why)
        return Stopped(why)
