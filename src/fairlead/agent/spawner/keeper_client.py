"""Task limits for a spawner that is not root: it asks its keeper, which is root, to put tasks into cgroups.

`keeping.py` documents the requests.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterable
    from typing import Any, NoReturn, Protocol

    from fairlead.agent.spawner.cgroups import Limits

    class AnyLimits(Protocol):
        """The interface of limits, set by the spawner itself (`Limits`) or by its keeper (`AskedLimits`)."""

        note: str
        kind: str
        guards: bool
        """True if tasks can open only the GPUs assigned to them."""

        def at_once(self, memory: int) -> bool: ...
        def take(self, cpu: int, memory: int) -> Any: ...
        def enter(self, cpu: int, memory: int, gpus: str) -> Any: ...
        def leave(self) -> None: ...
        def put(self, room: Any, pids: Iterable[int]) -> None: ...
        def ran_over(self, room: Any) -> bool: ...
        def give(self, room: Any) -> None: ...
        def close(self) -> None: ...


KEEPER_TIMEOUT = 10.0
"""Seconds to wait for an answer of the keeper."""


class AskedRoom:
    """A cgroup made by the keeper, for one task at a time."""

    __slots__ = ("cpu", "gpus", "limit", "memory", "number")

    def __init__(self, number: int, memory: bool) -> None:
        self.number = number
        self.cpu = 0
        self.limit = 0
        self.memory = memory
        """True if the cgroup limits memory."""
        self.gpus = False
        """True if its task has GPUs."""


class AskedLimits:
    """Limits set by the spawner's keeper."""

    def __init__(self, keeper: _socket.socket, limits: Limits, guards: bool) -> None:
        """Connect to the keeper. `limits` are its limits at the fork; `guards` is True if it also guards GPUs."""
        self.guards = guards
        self.note = limits.note
        self.kind = limits.kind
        self._keeper = keeper
        self._has_cgroups = limits.kind != "none"
        self._memory = limits.at_once(1)
        self._free: list[AskedRoom] = []
        self._made = 0
        self._requests = 0
        """The number of the last request."""

    def at_once(self, memory: int) -> bool:
        return self._memory and memory > 0

    def take(self, cpu: int, memory: int) -> AskedRoom | None:
        return self._take(cpu, memory) if self._has_cgroups and (cpu or memory) else None

    def enter(self, cpu: int, memory: int, gpus: str) -> AskedRoom:
        """Enter a cgroup with these GPUs (numbers with commas): processes started before `leave` have only those.

        Raises `OSError` if that fails.
        """
        room = self._take(cpu, memory)
        try:
            self._ask("enter", f"{room.number} {cpu} {memory} {gpus.replace(',', ' ')}")
        except TimeoutError:
            _end("entered a group")
        except OSError:
            self.give(room)
            raise
        room.gpus = True
        return room

    def leave(self) -> None:
        try:
            self._ask("leave")
        except OSError:
            _end("left a group")

    def ran_over(self, room: AskedRoom) -> bool:
        try:
            self._ask("over", str(room.number))
        except OSError:
            return False  # also if the keeper is gone: the answer is unknown then
        return True

    def _ask(self, request: str, arguments: str = "") -> None:
        """Send a request and wait for its answer. Late answers to earlier requests are skipped."""
        self._requests += 1
        self._keeper.settimeout(KEEPER_TIMEOUT)
        try:
            self._keeper.send(f"{request} {self._requests} {arguments}".encode())
            number, answer = "", ""
            while number != str(self._requests):
                data = self._keeper.recv(4096).decode()
                if not data:
                    raise OSError("the keeper is gone")
                number, _, answer = data.partition(" ")
        finally:
            self._keeper.setblocking(False)
        if answer != "ok":
            raise OSError(answer)

    def _take(self, cpu: int, memory: int) -> AskedRoom:
        if self._free:
            room = self._free.pop()
        else:
            self._made += 1
            room = AskedRoom(self._made, self._memory)
        room.cpu, room.limit, room.gpus = cpu, memory, False
        return room

    def put(self, room: AskedRoom, pids: Iterable[int]) -> None:
        numbers = " ".join(map(str, pids))
        try:
            self._keeper.send(f"{room.number} {room.cpu} {room.limit} {int(room.gpus)} {numbers}".encode())
        except OSError:
            room.memory = False  # the keeper is gone: the task runs without a limit

    def give(self, room: AskedRoom) -> None:
        self._free.append(room)

    def close(self) -> None:
        """Do nothing: the keeper removes the cgroups when this process has exited."""


def _end(action: str) -> NoReturn:
    """Exit: the spawner may be in a wrong cgroup, where tasks would get GPUs of other tasks, or none."""
    try:
        os.write(2, f"it is unknown if the spawner has {action}; the spawner exits\n".encode())
    finally:
        os._exit(5)
