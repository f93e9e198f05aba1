"""What an agent knows of one task."""

from __future__ import annotations

from typing import Any, Literal

from fairlead.agent.launching import SpawnerSpec

Key = tuple[int, str, int, int]
"""The number of the job, the stage, the attempt, the index."""
Meta = tuple[str, int, str, int]
"""The job's id and number, the stage, the attempt."""
Result = tuple[str, int, str, int, int, int]
"""How it ended, exit code or signal, why, microseconds it ran and computed, most bytes of memory."""
Task = tuple[int, str, int]
"""The number of the job, the stage, the index: a task whatever its attempt."""
Frame = tuple[Any, ...]
"""A message for a spawner."""

NOT_STARTED: Result = ("returned", 0, "", 0, 0, 0)


class Entry:
    __slots__ = ("at", "chain", "key", "meta", "own", "result", "spec", "state", "told", "waits")

    def __init__(self, key: Key, meta: Meta, at: int, chain: int) -> None:
        self.key = key
        self.meta = meta
        self.at = at
        """Which spawner has it."""
        self.chain = chain
        self.waits = False
        """Whether it waits for a room of its chain."""
        self.state: Literal["sent", "running", "ended"] = "sent"
        self.told = False
        """Whether its present state was reported."""
        self.result: Result | None = None
        self.spec: SpawnerSpec | None = None
        self.own: dict[str, str] | None = None

    @property
    def task(self) -> Task:
        return self.key[0], self.key[1], self.key[3]
