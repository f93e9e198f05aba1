"""Changes of holds and promises, both called earmarks: nodes are kept for an ask, or released."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fairlead.core.changes.change import Change, Line, Names
from fairlead.core.model import Ask, ClaimCause, Earmark, Hold, Micros, Place, Promise
from fairlead.core.ranges import count
from fairlead.core.state import Partition


class Held(Change[Hold], frozen=True, tag="held"):
    """Holds nodes for an ask: only its tasks may start there. With `recalled`, it waits for tasks on loan to end."""

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    large: bool = False
    recalled: bool = False

    def apply(self, partition: Partition) -> Hold:
        seq = _unserved(partition, self.job, self.stage, self.kind).seq
        hold = Hold(
            seq, self.job, self.stage, self.kind, self.places, partition.now, large=self.large, recalled=self.recalled
        )
        partition.add_earmark(hold)
        partition.touched.jobs[self.job] = None
        return hold

    def undo(self, partition: Partition, before: Hold) -> None:
        partition.remove_earmark(before)

    def lines(self, names: Names, before: Hold) -> Iterator[Line]:
        ask = names.partition.ask_of_earmark(before)
        waited = None if ask is None else names.seconds_since(ask.waiting_since)
        yield Line(
            "info",
            "nodes held",
            {**_fields(names, before), "large": self.large, "recalled": self.recalled, "waited_seconds": waited},
        )


class Promised(Change[Promise], frozen=True, tag="promised"):
    """Promises nodes to an ask: the allocations `victims` stop there, and only this ask may use the freed capacity.

    With the cause `order`, the nodes were ordered for the ask and are kept until the other ordered nodes have joined.
    """

    job: str
    stage: int
    kind: int
    places: tuple[Place, ...]
    victims: tuple[int, ...]
    cause: ClaimCause

    def apply(self, partition: Partition) -> Promise:
        seq = _unserved(partition, self.job, self.stage, self.kind).seq
        promise = Promise(
            seq,
            self.job,
            self.stage,
            self.kind,
            self.places,
            partition.now,
            victims=self.victims,
            ordered=self.cause == "order",
        )
        partition.add_earmark(promise)
        partition.touched.jobs[self.job] = None
        return promise

    def undo(self, partition: Partition, before: Promise) -> None:
        partition.remove_earmark(before)

    def counts(self, partition: Partition, before: Promise) -> Iterable[tuple[str, int]]:
        if self.cause == "order":
            return ()  # no task is stopped for an ordered node
        stopping = [partition.allocations[number] for number in self.victims if number in partition.allocations]
        tasks = sum(count(allocation.indices) for allocation in stopping)
        return ((f"claim by {self.cause}", 1), (f"victims by {self.cause}", tasks))

    def lines(self, names: Names, before: Promise) -> Iterator[Line]:
        fields = {"victims": len(self.victims), "cause": self.cause}
        yield Line("info", "nodes promised", {**_fields(names, before), **fields})


class TrimmedUndo(msgspec.Struct, frozen=True, gc=False):
    earmark: Hold | Promise
    places: tuple[Place, ...]


class Trimmed(Change[TrimmedUndo], frozen=True, tag="trimmed"):
    """Releases the nodes of an earmark that can no longer serve its ask. The end of the earmark does not change."""

    ask: int
    places: tuple[Place, ...]
    """The remaining places."""
    why: str

    def apply(self, partition: Partition) -> TrimmedUndo:
        earmark = partition.earmark_of(self.ask)
        if earmark is None or not self.places:
            raise ValueError(f"no nodes are kept for ask {self.ask}, or none would be left")
        before = TrimmedUndo(earmark, earmark.places)
        partition.move_earmark(earmark, self.places)
        partition.touched.jobs[earmark.job] = None
        return before

    def undo(self, partition: Partition, before: TrimmedUndo) -> None:
        partition.move_earmark(before.earmark, before.places)

    def lines(self, names: Names, before: TrimmedUndo) -> Iterator[Line]:
        left = before.earmark.nodes
        released = {place[0] for place in before.places} - left.keys()
        fields = {"job": before.earmark.job, "nodes": len(released), "kept": len(left), "reason": self.why}
        yield Line("info", "some nodes released", fields)


class ReleasedUndo(msgspec.Struct, frozen=True, gc=False):
    earmark: Hold | Promise
    until: Micros
    """The earlier value of the time that the change sets; 0 if it sets none."""


class Released(Change[ReleasedUndo], frozen=True, tag="released"):
    """Opens earmarked nodes to all asks. With `until` above 0, their ask gets no new earmark before that time."""

    ask: int
    why: str
    until: Micros = 0

    def apply(self, partition: Partition) -> ReleasedUndo:
        earmark = partition.earmark_of(self.ask)
        if earmark is None:
            raise ValueError(f"no nodes are kept for ask {self.ask}")
        partition.remove_earmark(earmark)
        return ReleasedUndo(earmark, self._bar(partition, earmark, self.until) if self.until else 0)

    def undo(self, partition: Partition, before: ReleasedUndo) -> None:
        if self.until:
            self._bar(partition, before.earmark, before.until)
        partition.add_earmark(before.earmark)

    def lines(self, names: Names, before: ReleasedUndo) -> Iterator[Line]:
        earmark = before.earmark
        fields = {"job": earmark.job, "nodes": len(earmark.nodes), "kept_seconds": names.seconds_since(earmark.since)}
        yield Line("info", "nodes released", {**fields, "reason": self.why})

    def _bar(self, partition: Partition, earmark: Hold | Promise, until: Micros) -> Micros:
        """Set the time before which the ask gets no new earmark of this type. Returns the earlier value."""
        ask = partition.ask_of_earmark(earmark)
        if ask is None:
            return 0
        if isinstance(earmark, Hold):
            before, ask.unheld_until = ask.unheld_until, until
        else:
            before, ask.unclaimed_until = ask.unclaimed_until, until
        return before


def _unserved(partition: Partition, job: str, stage: int, kind: int) -> Ask:
    ask = partition.jobs[job].stages[stage].asks[kind]
    if ask is None or partition.earmark_of(ask.seq) is not None:
        raise ValueError(f"job {job} asks for nothing of kind {kind}, or has nodes already")
    return ask


def _fields(names: Names, earmark: Earmark) -> dict[str, Any]:
    return {
        "job": earmark.job,
        "stage": names.partition.jobs[earmark.job].stages[earmark.stage].name,
        "tasks": earmark.tasks,
        "nodes": len(earmark.nodes),
        "on": names.nodes(earmark.nodes),
    }
