"""Task limits for a spawner that is not root: it asks its keeper, which is root, to put tasks into cgroups.

`keeper.py` documents the requests.
"""

from __future__ import annotations

import os

from fairlead.agent.spawner.cgroups import Limits, Room

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterable
    from typing import NoReturn

KEEPER_TIMEOUT = 10.0
"""Seconds to wait for an answer of the keeper."""


class AskedLimits(Limits):
    """Limits set by the spawner's keeper. A room has its number as path."""

    def __init__(self, keeper: _socket.socket, limits: Limits, guards: bool) -> None:
        """Connect to the keeper. `limits` are its limits at the fork; `guards` is True if it also guards GPUs."""
        self.guards = guards
        self.note = limits.note
        self.kind = limits.kind
        self.inside = limits.kind == "v1"
        self._keeper = keeper
        self._memory = limits.at_once(1)
        self._free = []
        self._made = 0
        self._requests = 0
        """The number of the last request."""

    def set(self, room: Room, cpu: int, memory: int) -> None:
        """Note the limits, which the next request for the room passes to the keeper."""
        room.cpu, room.limit, room.gpus = cpu, memory, False

    def enter(self, cpu: int, memory: int, gpus: str) -> Room:
        """Enter a room: processes started before `leave` are there. With GPUs, they have only those.

        `gpus` are numbers with commas.         Raises `OSError` if that fails.
        """
        room = self._take(cpu, memory)
        try:
            self._ask("enter", f"{room.path} {cpu} {memory} {gpus.replace(',', ' ')}")
        except TimeoutError:
            _end("entered a group")
        except OSError:
            self.give(room)
            raise
        room.gpus = bool(gpus)
        return room

    def visit(self, room: Room, gpus: str) -> None:
        try:
            self._ask("enter", f"{room.path} {room.cpu} {room.limit} {gpus.replace(',', ' ')}")
        except TimeoutError:
            _end("entered a group")

    def leave(self) -> None:
        try:
            self._ask("leave")
        except OSError:
            _end("left a group")

    def ran_over(self, room: Room) -> bool:
        try:
            self._ask("over", room.path)
        except OSError:
            return False  # also if the keeper is gone: the answer is unknown then
        return True

    def put(self, room: Room, pids: Iterable[int]) -> None:
        numbers = " ".join(map(str, pids))
        try:
            self._keeper.send(f"{room.path} {room.cpu} {room.limit} {int(room.gpus)} {numbers}".encode())
        except OSError:
            room.memory = False  # the keeper is gone: the task runs without a limit

    def close(self) -> None:
        """Do nothing: the keeper removes the cgroups when this process has exited."""

    def _make(self) -> Room:
        self._made += 1
        return Room(str(self._made), self._memory)

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


def _end(action: str) -> NoReturn:
    """Exit: the spawner may be in a wrong cgroup, where tasks would get GPUs of other tasks, or none."""
    try:
        os.write(2, f"it is unknown if the spawner has {action}; the spawner exits\n".encode())
    finally:
        os._exit(5)
