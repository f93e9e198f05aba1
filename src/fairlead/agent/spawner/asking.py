"""Limits of a spawner that is not root: it asks its keeper, which is, to put tasks into cgroups.

A request is one packet: `ROOM MILLI-CPUS BYTES PID…`. There is no answer.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterable
    from typing import Any, Protocol

    from fairlead.agent.spawner.limits import Limits

    class AnyLimits(Protocol):
        """What a spawner needs of limits, its own or its keeper's."""

        note: str
        kind: str

        def at_once(self, memory: int) -> bool: ...
        def take(self, cpu: int, memory: int) -> Any: ...
        def put(self, room: Any, pids: Iterable[int]) -> None: ...
        def give(self, room: Any) -> None: ...
        def close(self) -> None: ...


class AskedRoom:
    """A cgroup that the keeper has for one task at a time."""

    __slots__ = ("cpu", "limit", "memory", "number")

    def __init__(self, number: int, memory: bool) -> None:
        self.number = number
        self.cpu = 0
        self.limit = 0
        self.memory = memory
        """True if it limits memory."""


class AskedLimits:
    def __init__(self, keeper: _socket.socket, limits: Limits) -> None:
        """`limits` are those of the keeper, as they were when this process was made from it."""
        self.note = limits.note
        self.kind = limits.kind
        self._keeper = keeper
        self._some = limits.kind != "none"
        self._memory = limits.at_once(1)
        self._free: list[AskedRoom] = []
        self._made = 0

    def at_once(self, memory: int) -> bool:
        return self._memory and memory > 0

    def take(self, cpu: int, memory: int) -> AskedRoom | None:
        if not self._some or not (cpu or memory):
            return None
        if self._free:
            room = self._free.pop()
        else:
            self._made += 1
            room = AskedRoom(self._made, self._memory)
        room.cpu, room.limit = cpu, memory
        return room

    def put(self, room: AskedRoom, pids: Iterable[int]) -> None:
        told = " ".join(map(str, pids))
        try:
            self._keeper.send(f"{room.number} {room.cpu} {room.limit} {told}".encode())
        except OSError:
            room.memory = False  # the keeper is gone: without a limit rather than not at all

    def give(self, room: AskedRoom) -> None:
        self._free.append(room)

    def close(self) -> None:
        """The keeper removes the cgroups when this process has ended."""
