"""A resource manager in a `World`: the updates it sends and the events it receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairlead.core.commands import Accepted, Answer, Command, RegisterManager, RemoveManager, UpdateManager
from fairlead.core.effects import Event

Documents = Iterable[Mapping[str, Any]]


class ManagerHandle:
    """A resource manager. Its updates have lists of documents with these keys:

    - `nodes`: name, resources, action
    - `jobs`: job, queue, user, stages, remove
    - `asks`: job, ask, count, resources, index, withdraw
    - `releases`: job, ask, index, lost, withdraw
    - `recover`, for allocations that exist already: job, ask, node, index, resources
    """

    def __init__(self, name: str, send: Callable[[Command], None]) -> None:
        self.name = name
        self._send = send
        self._events: list[Event] = []

    def register(self) -> None:
        self._send(RegisterManager(name=self.name, operator=True))

    def remove(self) -> None:
        """Remove the manager for good, as an operator would."""
        self._send(RemoveManager(name=self.name, operator=True))

    def update(
        self,
        nodes: Documents = (),
        jobs: Documents = (),
        asks: Documents = (),
        releases: Documents = (),
        recover: Documents = (),
        more: bool = False,
        spare: Iterable[str] | None = None,
    ) -> None:
        """Send an update. With `more`, the manager has not sent its whole state yet, and other updates follow."""
        self._send(
            UpdateManager(
                name=self.name,
                nodes=tuple(map(dict, nodes)),
                jobs=tuple(map(dict, jobs)),
                asks=tuple(map(dict, asks)),
                releases=tuple(map(dict, releases)),
                recover=tuple(map(dict, recover)),
                more=more,
                spare=None if spare is None else tuple(spare),
                operator=True,
            )
        )

    def events(self) -> list[Event]:
        """Return the events since the last call, such as `accepted`, `rejected`, `allocated` and `released`."""
        events, self._events = self._events, []
        return events

    def receive(self, events: Iterable[Event]) -> None:
        """Store events of a cycle."""
        self._events += events

    def answered(self, answer: Answer) -> None:
        """Store the answer to a command as events, one for each item."""
        if not isinstance(answer, Accepted):
            self._events.append(Event("rejected", reason=str(answer)))
            return
        for item in answer.items:
            self._events.append(
                Event("accepted" if item.accepted else "rejected", item=item.what, job=item.name, reason=item.reason)
            )
