"""The agent's record of one task attempt, and the types used in its messages."""

from __future__ import annotations

from typing import Any, Literal

from fairlead.agent.launch_data import SpawnerSpec

Key = tuple[int, str, int, int]
"""Job number, stage, attempt, index."""
Meta = tuple[str, int, str, int]
"""Job id, job number, stage, attempt."""
Result = tuple[str, int, str, int, int, int] | tuple[str, int, str, int, int, int, bool]
"""Kind of end, exit code or signal, reason, microseconds of run time and of CPU time, peak memory in bytes; and True if
collecting result files was tried."""
Task = tuple[int, str, int]
"""Job number, stage, index: a task without its attempt."""
Frame = tuple[Any, ...]
"""A message for a spawner."""

NOT_STARTED: Result = ("returned", 0, "", 0, 0, 0)


class Entry:
    """One attempt of a task, from its launch until the server has confirmed its end."""

    __slots__ = ("at", "began", "chain", "key", "meta", "own", "result", "spec", "state", "told", "waits")

    def __init__(self, key: Key, meta: Meta, at: int, chain: int) -> None:
        self.key = key
        self.meta = meta
        self.at = at
        """The number of the spawner that runs the task."""
        self.chain = chain
        self.waits = False
        """True if the task waits for a free slot of its chain."""
        self.began = 0.0
        """When the task started, by the clock of the task table; 0 before."""
        self.state: Literal["sent", "running", "ended"] = "sent"
        self.told = False
        """True if the current state has been reported to the server."""
        self.result: Result | None = None
        self.spec: SpawnerSpec | None = None
        self.own: dict[str, str] | None = None

    @property
    def task(self) -> Task:
        return self.key[0], self.key[1], self.key[3]
