"""Limits of a spawner that is not root: it asks its keeper, which is, to put tasks into cgroups.

`keeping.py` has the requests.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterable
    from typing import Any, NoReturn, Protocol

    from fairlead.agent.spawner.limits import Limits

    class AnyLimits(Protocol):
        """What a spawner needs of limits, its own or its keeper's."""

        note: str
        kind: str
        guards: bool
        """True if tasks can open only the GPUs that they were given."""

        def at_once(self, memory: int) -> bool: ...
        def take(self, cpu: int, memory: int) -> Any: ...
        def enter(self, cpu: int, memory: int, gpus: str) -> Any: ...
        def leave(self) -> None: ...
        def put(self, room: Any, pids: Iterable[int]) -> None: ...
        def ran_over(self, room: Any) -> bool: ...
        def give(self, room: Any) -> None: ...
        def close(self) -> None: ...


KEEPER_TIMEOUT = 10.0
"""Seconds for an answer of the keeper."""


class AskedRoom:
    """A cgroup that the keeper has for one task at a time."""

    __slots__ = ("cpu", "gpus", "limit", "memory", "number")

    def __init__(self, number: int, memory: bool) -> None:
        self.number = number
        self.cpu = 0
        self.limit = 0
        self.memory = memory
        """True if it limits memory."""
        self.gpus = False
        """True if the task there was given GPUs."""


class AskedLimits:
    def __init__(self, keeper: _socket.socket, limits: Limits, guards: bool) -> None:
        """`limits` are those of the keeper, as they were when this process was made from it. `guards`: of GPUs too."""
        self.guards = guards
        self.note = limits.note
        self.kind = limits.kind
        self._keeper = keeper
        self._some = limits.kind != "none"
        self._memory = limits.at_once(1)
        self._free: list[AskedRoom] = []
        self._made = 0
        self._asked = 0
        """How many questions there were: each has its number."""

    def at_once(self, memory: int) -> bool:
        return self._memory and memory > 0

    def take(self, cpu: int, memory: int) -> AskedRoom | None:
        return self._take(cpu, memory) if self._some and (cpu or memory) else None

    def enter(self, cpu: int, memory: int, gpus: str) -> AskedRoom:
        """Be where what is started next has these GPUs, by their numbers with commas, until `leave`. May raise."""
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
            return False  # or the keeper is gone, and it is not known
        return True

    def _ask(self, what: str, about: str = "") -> None:
        """Ask for one thing and wait for its answer, not for that to an earlier question that came too late."""
        self._asked += 1
        self._keeper.settimeout(KEEPER_TIMEOUT)
        try:
            self._keeper.send(f"{what} {self._asked} {about}".encode())
            number, answer = "", ""
            while number != str(self._asked):
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
        told = " ".join(map(str, pids))
        try:
            self._keeper.send(f"{room.number} {room.cpu} {room.limit} {int(room.gpus)} {told}".encode())
        except OSError:
            room.memory = False  # the keeper is gone: without a limit rather than not at all

    def give(self, room: AskedRoom) -> None:
        self._free.append(room)

    def close(self) -> None:
        """The keeper removes the cgroups when this process has ended."""


def _end(what: str) -> NoReturn:
    """End the spawner, which may stand in a wrong group: what it started there could have GPUs of others, or none."""
    try:
        os.write(2, f"it is not known if the spawner has {what}; it ends\n".encode())
    finally:
        os._exit(5)
