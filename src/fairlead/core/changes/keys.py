"""Changes of idempotency keys and registered resource managers."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.core.changes.change import Change
from fairlead.core.changes.lines import Line, Names
from fairlead.core.model import KeptKey, Manager
from fairlead.core.state import Partition


class KeyKept(Change[KeptKey | None], frozen=True, tag="key kept"):
    user: str
    key: str
    entry: KeptKey

    def apply(self, partition: Partition) -> KeptKey | None:
        before = partition.keys.get((self.user, self.key))
        partition.keep_key(self.user, self.key, self.entry)
        return before

    def undo(self, partition: Partition, before: KeptKey | None) -> None:
        partition.drop_key(self.user, self.key)
        if before is not None:
            partition.keep_key(self.user, self.key, before)


class KeysForgotten(Change[list[KeptKey]], frozen=True, tag="keys forgotten"):
    keys: tuple[tuple[str, str], ...]

    def apply(self, partition: Partition) -> list[KeptKey]:
        return [partition.drop_key(user, key) for user, key in self.keys]

    def undo(self, partition: Partition, before: list[KeptKey]) -> None:
        for (user, key), entry in zip(self.keys, before, strict=True):
            partition.keep_key(user, key, entry)


class ManagerRegistered(Change[Manager | None], frozen=True, tag="manager registered"):
    """Registers a resource manager, for the first time or again."""

    name: str

    def apply(self, partition: Partition) -> Manager | None:
        before = partition.managers.get(self.name)
        partition.managers[self.name] = Manager(self.name, partition.now)
        return before

    def undo(self, partition: Partition, before: Manager | None) -> None:
        if before is None:
            del partition.managers[self.name]
        else:
            partition.managers[self.name] = before

    def lines(self, names: Names, before: Manager | None) -> Iterator[Line]:
        yield Line("info", "manager registered", {"manager": self.name, "again": before is not None})


class ManagerRemoved(Change[Manager], frozen=True, tag="manager removed"):
    """Removes a resource manager. Its jobs ended and its nodes left before."""

    name: str

    def apply(self, partition: Partition) -> Manager:
        return partition.managers.pop(self.name)

    def undo(self, partition: Partition, before: Manager) -> None:
        partition.managers[self.name] = before

    def lines(self, names: Names, before: Manager) -> Iterator[Line]:
        yield Line("info", "manager removed", {"manager": self.name})
