"""Free capacity of nodes over time, from expected ends of running tasks and asks that are already planned.

Used by `backfill: conservative`. The future of a node is a list of pieces, each lasting until the next begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from fairlead.core.asks import Needs
from fairlead.core.changes import Part
from fairlead.core.forecast import Forecast
from fairlead.core.holds.room import room_for
from fairlead.core.model import FAR, Allocation, Micros
from fairlead.core.never import MANY
from fairlead.core.ranges import count
from fairlead.core.resources import Vector, add
from fairlead.core.shape import Shape
from fairlead.core.state import Partition
from fairlead.core.whatif import WhatIf


class Piece(msgspec.Struct):
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


Taken = tuple[int, Shape, int, Micros, Micros]
"""A node, a shape, a number of tasks of it, and the time from and until which they use capacity there."""


class Timeline:
    def __init__(self, partition: Partition, now: Micros, forecast: Forecast) -> None:
        self.partition = partition
        self.looks = 0
        """The number of pieces examined so far, as a measure of the work done."""
        self.reserved: dict[int, None] = {}
        """The nodes on which planned asks use capacity."""
        self._began = now
        self._whatif = WhatIf(partition)
        self._ends: dict[int, list[tuple[Micros, Allocation]]] = {}
        for end, allocation in forecast.in_order(now):
            self._ends.setdefault(allocation.node, []).append((end, allocation))
        self._nodes: dict[int, list[Piece]] = {}
        self._rooms: dict[int, dict[Shape, list[int]]] = {}
        """Node → shape → the number of tasks that fit in each piece. Dropped when the pieces change."""

    def plan(self, now: Micros, needs: Needs, length: Micros | None) -> Micros | None:
        """Reserve capacity for an ask as early as all of it fits. Returns the time; None if there is none."""
        when: Micros | None = now
        for stage, wanted in needs:
            earliest = self._earliest(now, stage.shape, wanted, length)
            if earliest is None or when is None:
                return None
            when = max(when, earliest)
        assert when is not None
        if self._place(when, needs, length):
            return when
        for later in sorted({piece.since for node_id in self._ends for piece in self._pieces(node_id)}):
            if later > when and self._place(later, needs, length):
                return later
        return None

    def fits(self, now: Micros, placed: Iterable[tuple[Shape, Part]], length: Micros | None) -> bool:
        """True if tasks that were placed now leave the planned asks their capacity. The tasks are then counted.

        Tasks on earmarked nodes that are lent count as 0, because no planned ask uses these nodes.
        """
        takes: list[Taken] = []
        for shape, part in placed:
            if self._whatif.is_kept(part.node):
                continue
            tasks = count(part.indices)
            if part.node not in self._nodes:
                self._pieces(part.node)
                self._alter(part.node, shape, -tasks, part.devices, 0, FAR)
            if self._room(part.node, shape, now, length) < tasks:
                self._undo(takes)
                return False
            takes.append(self._take(part.node, shape, tasks, now, length))
        return True

    def closed(self, now: Micros, shape: Shape, length: Micros | None) -> list[int]:
        """Return the nodes on which no task of a shape may start now because of planned asks."""
        return [node_id for node_id in sorted(self.reserved) if not self._room(node_id, shape, now, length)]

    # -- inside --------------------------------------------------------------------------------------------------

    def _earliest(self, now: Micros, shape: Shape, wanted: int, length: Micros | None) -> Micros | None:
        """Return the earliest time from which a number of tasks fits for their whole length."""
        total = 0
        changes: list[tuple[Micros, int]] = []
        for node_id in sorted(self.partition.nodes.rows):
            if not self._whatif.takes(node_id, shape):
                continue
            before = 0
            for when, room in self._windows(node_id, shape, now, length):
                if when <= now:
                    total += room - before
                elif room != before:
                    changes.append((when, room - before))
                before = room
        if total >= wanted:
            return now
        changes.sort()
        for at, (when, change) in enumerate(changes):
            total += change
            if total >= wanted and (at + 1 == len(changes) or changes[at + 1][0] > when):
                return when
        return None

    def _windows(self, node_id: int, shape: Shape, now: Micros, length: Micros | None) -> Iterator[tuple[Micros, int]]:
        """Yield start times in order, with the number of tasks that fit a node from then on for their whole length."""
        pieces, rooms = self._pieces(node_id), self._rooms_of(node_id, shape)
        self.looks += len(pieces)
        if len(pieces) == 1:
            yield now, rooms[0]
            return
        span = FAR if length is None else max(1, length)
        starts = [piece.since for piece in pieces]
        times = sorted({now, *[at for at in starts if at > now], *[at - span + 1 for at in starts if at - span >= now]})
        window: deque[int] = deque()  # positions of pieces, with increasing capacity
        entered = 0
        for when in times:
            while entered < len(pieces) and (starts[entered] < when + span or entered == 0):
                while window and rooms[window[-1]] >= rooms[entered]:
                    window.pop()
                window.append(entered)
                entered += 1
            while len(window) > 1 and starts[window[0] + 1] <= when:
                window.popleft()
            yield when, rooms[window[0]]

    def _room(self, node_id: int, shape: Shape, when: Micros, length: Micros | None) -> int:
        """Return the number of tasks that fit a node from a time on for their whole length."""
        if not self._whatif.takes(node_id, shape):
            return 0
        pieces, rooms = self._pieces(node_id), self._rooms_of(node_id, shape)
        self.looks += len(pieces)
        until = FAR if length is None else when + length
        least = MANY
        for at, piece in enumerate(pieces):
            over = at + 1 < len(pieces) and pieces[at + 1].since <= when
            if not over and (piece.since < until or piece.since <= when):
                least = min(least, rooms[at])
        return least

    def _place(self, when: Micros, needs: Needs, length: Micros | None) -> bool:
        """Reserve capacity for all stages of an ask from a time on; False if they do not fit."""
        takes: list[Taken] = []
        for stage, wanted in needs:
            left = wanted
            for node_id in sorted(self.partition.nodes.rows):
                tasks = min(left, self._room(node_id, stage.shape, when, length))
                if tasks:
                    takes.append(self._take(node_id, stage.shape, tasks, when, length))
                    left -= tasks
                if not left:
                    break
            if left:
                self._undo(takes)
                return False
        self.reserved |= dict.fromkeys(node_id for node_id, *_ in takes)
        return True

    def _take(self, node_id: int, shape: Shape, tasks: int, when: Micros, length: Micros | None) -> Taken:
        until = FAR if length is None else when + length
        self._alter(node_id, shape, tasks, None, when, until)
        return node_id, shape, tasks, when, until

    def _undo(self, takes: list[Taken]) -> None:
        for node_id, shape, tasks, since, until in reversed(takes):
            self._alter(node_id, shape, -tasks, None, since, until)

    def _alter(
        self, node_id: int, shape: Shape, tasks: int, devices: tuple[int, ...] | None, since: Micros, until: Micros
    ) -> None:
        """Add tasks to a node for a span of time. Without `devices`, choose devices in each piece."""
        self._split(node_id, since)
        self._split(node_id, until)
        for piece in self._nodes[node_id]:
            if since <= piece.since < until:
                chosen = devices
                if chosen is None:
                    chosen = _devices(piece, shape, tasks)
                piece.take(shape, tasks, chosen)
        self._rooms.pop(node_id, None)

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
            nodes = self.partition.nodes
            row = nodes.rows[node_id]
            free = {name: column[row] - nodes.used[name][row] for name, column in nodes.capacity.items()}
            pieces = self._nodes[node_id] = [Piece(self._began, free, nodes.devices[row][: nodes.gpus[row]])]
            for end, allocation in self._ends.get(node_id, ()):
                last = pieces[-1]
                if last.since < end:
                    last = Piece(end, dict(last.free), list(last.used))
                    pieces.append(last)
                last.take(allocation.stage.shape, -count(allocation.indices), allocation.devices)
        return pieces

    def _rooms_of(self, node_id: int, shape: Shape) -> list[int]:
        by_shape = self._rooms.setdefault(node_id, {})
        rooms = by_shape.get(shape)
        if rooms is None:
            most = 1 if shape.key.apart else MANY
            pieces = self._pieces(node_id)
            rooms = by_shape[shape] = [room_for(piece.free, piece.used, shape, most)[0] for piece in pieces]
        return rooms


def _devices(piece: Piece, shape: Shape, tasks: int) -> tuple[int, ...]:
    """Return devices for tasks that join a piece or, if `tasks` is negative, leave it."""
    if not shape.devices:
        return ()
    if tasks > 0:
        return room_for(piece.free, piece.used, shape, tasks)[1]
    full = [device for device, used in enumerate(piece.used) if used >= shape.device_milli]
    return tuple(full[: -tasks * shape.devices])
