"""Free capacity of nodes over time, from the expected ends of running tasks and the starts of planned asks.

Used by `backfill: conservative`. The future of a node is a list of pieces of time. Each lasts until the next begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile

import msgspec

from fairlead.core.ahead.expected_ends import Forecast
from fairlead.core.ahead.whatif import WhatIf
from fairlead.core.asks import Needs
from fairlead.core.changes import Part
from fairlead.core.model import FAR, Allocation, Micros
from fairlead.core.node_fit import fitting_in
from fairlead.core.policy.fit import WHOLE
from fairlead.core.ranges import count
from fairlead.core.resources import Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.why.never import MANY


class Piece(msgspec.Struct):
    """The free capacity of a node during a piece of time."""

    since: Micros
    free: Vector
    used: list[int]
    """The used part of each device."""

    def take(self, shape: Shape, tasks: int, devices: tuple[int, ...]) -> None:
        """Add tasks, or remove them if `tasks` is negative."""
        add(self.free, shape.resources, -tasks)
        for device in devices:
            if device < len(self.used):
                self.used[device] += shape.device_milli if tasks > 0 else -shape.device_milli

    def fits(self, shape: Shape, tasks: int, devices: tuple[int, ...]) -> bool:
        """True if tasks fit with exactly these devices."""
        if any(self.free.get(name, 0) < amount * tasks for name, amount in shape.amounts):
            return False
        return all(
            device >= len(self.used) or self.used[device] + devices.count(device) * shape.device_milli <= WHOLE
            for device in devices
        )


class Taken(msgspec.Struct):
    """Tasks that use capacity of a node for a span of time."""

    node: int
    shape: Shape
    tasks: int
    since: Micros
    until: Micros
    devices: list[tuple[Micros, tuple[int, ...]]]
    """The start of each piece of that time, and the devices there."""
    job: str = ""
    """The job of a planned ask."""
    when: Micros = 0
    """Its planned start."""

    def devices_in(self, piece: Piece) -> tuple[int, ...]:
        """Return the devices in a piece, which may be a part of an earlier, longer piece."""
        return next((devices for since, devices in reversed(self.devices) if since <= piece.since), ())


class Timeline:
    def __init__(self, partition: Partition, now: Micros, forecast: Forecast) -> None:
        self.partition = partition
        self.looks = 0
        """The number of pieces examined so far, as a measure of the work done."""
        self.reserved: dict[int, None] = {}
        """The nodes on which planned asks use capacity."""
        self._nodes_of: dict[str, dict[int, None]] = {}
        """Job → the nodes on which it is planned, in the order in which jobs were planned."""
        self._began = now
        self._whatif = WhatIf(partition)
        self._ends: dict[int, list[tuple[Micros, Allocation]]] = {}
        for end, allocation in forecast.in_order(now):
            self._ends.setdefault(allocation.node, []).append((end, allocation))
        self._nodes: dict[int, list[Piece]] = {}
        self._planned: dict[int, list[Taken]] = {}
        """Node → the tasks of planned asks there, in the order in which these were planned."""
        self._fitting: dict[int, dict[Shape, list[int]]] = {}
        """Node → shape → the number of tasks that fit in each piece; removed when the pieces change."""

    def plan(self, now: Micros, job: str, needs: Needs, length: Micros | None) -> Micros | None:
        """Reserve capacity for an ask as early as all of it fits. Returns the start; None if it never fits."""
        when: Micros | None = now
        for stage, wanted in needs:
            earliest = self._earliest(now, stage.shape, wanted, length)
            if earliest is None or when is None:
                return None
            when = max(when, earliest)
        assert when is not None
        if self._place(when, job, needs, length):
            return when
        for later in sorted({piece.since for node_id in self._ends for piece in self._pieces(node_id)}):
            if later > when and self._place(later, job, needs, length):
                return later
        return None

    def delayed(
        self, now: Micros, placed: Iterable[tuple[Shape, Part]], length: Micros | None
    ) -> tuple[str, Micros] | None:
        """Return a planned job, with its start, that no longer fits beside tasks placed now.

        If there is none, count the tasks and return None. Tasks on earmarked nodes do not count, because no planned ask
        uses these nodes.
        """
        takes: list[Taken] = []
        until = FAR if length is None else now + length
        for shape, part in placed:
            if self._whatif.is_kept(part.node):
                continue
            tasks = count(part.indices)
            if part.node not in self._nodes:
                self._pieces(part.node)
                self._alter(part.node, shape, -tasks, part.devices, 0, FAR)
            for piece in self._during(part.node, now, until):
                if not piece.fits(shape, tasks, part.devices):
                    self._undo(takes)
                    return self._first_not_fitting(piece, shape, part)
            takes.append(self._take(part.node, shape, tasks, now, length, part.devices))
        return None

    def closed(self, now: Micros, shape: Shape, length: Micros | None) -> list[int]:
        """Return the nodes on which no task of a shape may start now because of planned asks."""
        return [node_id for node_id in sorted(self.reserved) if not self._fitting_at(node_id, shape, now, length)]

    def reserved_before(self, job: str) -> tuple[int, ...]:
        """Return the nodes of the jobs that were planned before a job."""
        before = takewhile(lambda entry: entry[0] != job, self._nodes_of.items())
        return tuple(sorted({node_id for _, nodes in before for node_id in nodes}))

    def _earliest(self, now: Micros, shape: Shape, wanted: int, length: Micros | None) -> Micros | None:
        """Return the earliest time from which a number of tasks fits for their whole run time."""
        total = 0
        changes: list[tuple[Micros, int]] = []
        for node_id in sorted(self.partition.nodes.rows):
            if not self._whatif.takes(node_id, shape):
                continue
            before = 0
            for when, tasks in self._windows(node_id, shape, now, length):
                if when <= now:
                    total += tasks - before
                elif tasks != before:
                    changes.append((when, tasks - before))
                before = tasks
        if total >= wanted:
            return now
        changes.sort()
        for at, (when, change) in enumerate(changes):
            total += change
            if total >= wanted and (at + 1 == len(changes) or changes[at + 1][0] > when):
                return when
        return None

    def _windows(self, node_id: int, shape: Shape, now: Micros, length: Micros | None) -> Iterator[tuple[Micros, int]]:
        """Yield start times in order, with the number of tasks that fit a node from there on for their run time."""
        pieces, fitting = self._pieces(node_id), self._fitting_of(node_id, shape)
        self.looks += len(pieces)
        if len(pieces) == 1:
            yield now, fitting[0]
            return
        span = FAR if length is None else max(1, length)
        starts = [piece.since for piece in pieces]
        times = sorted([at for at in {now, *starts, *[at - span + 1 for at in starts]} if at >= now])
        window: deque[int] = deque()  # positions of pieces, with increasing capacity
        entered = 0
        for when in times:
            while entered < len(pieces) and (starts[entered] < when + span or entered == 0):
                while window and fitting[window[-1]] >= fitting[entered]:
                    window.pop()
                window.append(entered)
                entered += 1
            while len(window) > 1 and starts[window[0] + 1] <= when:
                window.popleft()
            yield when, fitting[window[0]]

    def _fitting_at(self, node_id: int, shape: Shape, when: Micros, length: Micros | None) -> int:
        """Return the number of tasks that fit a node from a time on for their whole run time."""
        if not self._whatif.takes(node_id, shape):
            return 0
        pieces, fitting = self._pieces(node_id), self._fitting_of(node_id, shape)
        self.looks += len(pieces)
        until = FAR if length is None else when + length
        least = MANY
        for at, piece in enumerate(pieces):
            over = at + 1 < len(pieces) and pieces[at + 1].since <= when
            if not over and (piece.since < until or piece.since <= when):
                least = min(least, fitting[at])
        return least

    def _during(self, node_id: int, when: Micros, until: Micros) -> list[Piece]:
        pieces = self._pieces(node_id)
        self.looks += len(pieces)
        ends = [piece.since for piece in pieces[1:]] + [FAR]
        return [
            piece
            for piece, end in zip(pieces, ends, strict=True)
            if end > when and (piece.since < until or piece.since <= when)
        ]

    def _first_not_fitting(self, piece: Piece, shape: Shape, part: Part) -> tuple[str, Micros]:
        """Return the first planned job that does not fit in a piece beside further tasks, and its planned start."""
        planned = [taken for taken in self._planned.get(part.node, ()) if taken.since <= piece.since < taken.until]
        beside = Piece(piece.since, dict(piece.free), list(piece.used))
        for taken in planned:
            beside.take(taken.shape, -taken.tasks, taken.devices_in(piece))
        beside.take(shape, count(part.indices), part.devices)
        for taken in planned:
            devices = taken.devices_in(piece)
            if not beside.fits(taken.shape, taken.tasks, devices):
                return taken.job, taken.when
            beside.take(taken.shape, taken.tasks, devices)
        return "", 0

    def _place(self, when: Micros, job: str, needs: Needs, length: Micros | None) -> bool:
        """Reserve capacity for all stages of an ask from a time on; False if they do not fit."""
        takes: list[Taken] = []
        for stage, wanted in needs:
            left = wanted
            for node_id in sorted(self.partition.nodes.rows):
                tasks = min(left, self._fitting_at(node_id, stage.shape, when, length))
                if tasks:
                    takes.append(self._take(node_id, stage.shape, tasks, when, length))
                    left -= tasks
                if not left:
                    break
            if left:
                self._undo(takes)
                return False
        for taken in takes:
            taken.job, taken.when = job, when
            self.reserved[taken.node] = None
            self._nodes_of.setdefault(job, {})[taken.node] = None
            self._planned.setdefault(taken.node, []).append(taken)
        return True

    def _take(
        self,
        node_id: int,
        shape: Shape,
        tasks: int,
        when: Micros,
        length: Micros | None,
        devices: tuple[int, ...] | None = None,
    ) -> Taken:
        until = FAR if length is None else when + length
        return Taken(node_id, shape, tasks, when, until, self._alter(node_id, shape, tasks, devices, when, until))

    def _undo(self, takes: list[Taken]) -> None:
        for taken in reversed(takes):
            for piece in self._nodes[taken.node]:
                if taken.since <= piece.since < taken.until:
                    piece.take(taken.shape, -taken.tasks, taken.devices_in(piece))
            self._fitting.pop(taken.node, None)

    def _alter(
        self, node_id: int, shape: Shape, tasks: int, devices: tuple[int, ...] | None, since: Micros, until: Micros
    ) -> list[tuple[Micros, tuple[int, ...]]]:
        """Add tasks to a node for a span of time. Returns the devices in each piece; if not given, they are chosen."""
        self._split(node_id, since)
        self._split(node_id, until)
        taken: list[tuple[Micros, tuple[int, ...]]] = []
        for piece in self._nodes[node_id]:
            if since <= piece.since < until:
                chosen = devices
                if chosen is None:
                    chosen = fitting_in(piece.free, piece.used, shape, tasks)[1] if shape.devices else ()
                piece.take(shape, tasks, chosen)
                taken.append((piece.since, chosen))
        self._fitting.pop(node_id, None)
        return taken

    def _split(self, node_id: int, when: Micros) -> None:
        pieces = self._pieces(node_id)
        for at in range(len(pieces) - 1, -1, -1):
            if pieces[at].since == when:
                return
            if pieces[at].since < when < FAR:
                pieces.insert(at + 1, Piece(when, dict(pieces[at].free), list(pieces[at].used)))
                return

    def _pieces(self, node_id: int) -> list[Piece]:
        pieces = self._nodes.get(node_id)
        if pieces is None:
            pieces = self._nodes[node_id] = [Piece(self._began, *self._whatif.without_some(node_id, ()))]
            for end, allocation in self._ends.get(node_id, ()):
                last = pieces[-1]
                if last.since < end:
                    last = Piece(end, dict(last.free), list(last.used))
                    pieces.append(last)
                last.take(allocation.stage.shape, -count(allocation.indices), allocation.devices)
        return pieces

    def _fitting_of(self, node_id: int, shape: Shape) -> list[int]:
        by_shape = self._fitting.setdefault(node_id, {})
        fitting = by_shape.get(shape)
        if fitting is None:
            most = 1 if shape.key.apart else MANY
            pieces = self._pieces(node_id)
            fitting = by_shape[shape] = [fitting_in(piece.free, piece.used, shape, most)[0] for piece in pieces]
        return fitting
