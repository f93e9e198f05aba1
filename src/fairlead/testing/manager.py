"""A resource manager in a World: what it sends, and what it hears back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairlead.core.commands import Accepted, Answer, AnyCommand, RegisterManager, UpdateManager
from fairlead.core.effects import Event

Documents = Iterable[Mapping[str, Any]]


class ManagerHandle:
    """Items are documents: nodes `{name, resources, action}`, jobs `{job, queue, user, remove}`,
    asks `{job, ask, count, resources, withdraw}`, releases `{job, ask, index}`,
    recover `{job, ask, node, index, resources}`.
    """

    def __init__(self, name: str, send: Callable[[AnyCommand], None]) -> None:
        self.name = name
        self._send = send
        self._events: list[Event] = []

    def register(self) -> None:
        self._send(RegisterManager(name=self.name, operator=True))

    def update(
        self,
        nodes: Documents = (),
        jobs: Documents = (),
        asks: Documents = (),
        releases: Documents = (),
        recover: Documents = (),
    ) -> None:
        self._send(
            UpdateManager(
                name=self.name,
                nodes=tuple(dict(each) for each in nodes),
                jobs=tuple(dict(each) for each in jobs),
                asks=tuple(dict(each) for each in asks),
                releases=tuple(dict(each) for each in releases),
                recover=tuple(dict(each) for each in recover),
                operator=True,
            )
        )

    def events(self) -> list[Event]:
        """What was heard since the last call: accepted, rejected, allocated, release, released, node."""
        events, self._events = self._events, []
        return events

    def hear(self, events: Iterable[Event]) -> None:
        self._events += events

    def answered(self, answer: Answer) -> None:
        if not isinstance(answer, Accepted):
            self._events.append(Event("rejected", reason=str(answer)))
            return
        for item in answer.items:
            self._events.append(
                Event("accepted" if item.accepted else "rejected", item=item.what, job=item.name, reason=item.reason)
            )
