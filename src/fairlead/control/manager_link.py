"""The resource manager interface without HTTP, for an adapter that runs inside the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from fairlead.control.control import Control
from fairlead.control.feed import Missed
from fairlead.control.partition import PartitionService
from fairlead.core.commands import RegisterManager, UpdateManager
from fairlead.core.errors import Refused
from fairlead.views.answers import all_queues
from fairlead.views.manager_answers import waiting_answers
from fairlead.wire import api as wire


class DirectLink:
    """Connects one resource manager to a partition of this server. Raises `lost` if a later try may succeed."""

    def __init__(self, control: Control, name: str, partition: str, lost: type[Exception]) -> None:
        self._control = control
        self._name = name
        self._partition = partition
        self._lost = lost

    async def register(self) -> None:
        served = self._served()
        await self._execute(served, RegisterManager(name=self._name, operator=True))
        served.manager(self._name)

    async def state(self) -> wire.ManagerState:
        return await self._served().state_of_manager(self._name, lambda state: None)

    async def update(self, items: dict[str, Any]) -> list[wire.UpdateItem]:
        lists: dict[str, Any] = {key: tuple(value) for key, value in items.items() if key != "more"}
        command = UpdateManager(name=self._name, operator=True, more=bool(items.get("more")), **lists)
        accepted = await self._execute(self._served(), command)
        return msgspec.convert(accepted.items, list[wire.UpdateItem], from_attributes=True)

    async def waiting(self, jobs: list[str]) -> list[wire.WaitingJob]:
        served = self._served()
        return await served.read(
            lambda state: waiting_answers(state, self._name, jobs, served.writer.reasons, served.now)
        )

    async def queues(self) -> list[wire.Queue]:
        served = self._served()
        return (await served.read(lambda state: all_queues(state, served.now))).queues

    async def events(self, after: int) -> AsyncIterator[list[wire.ManagerEvent]]:
        served = self._served()
        feed = served.manager(self._name)
        try:
            async for batch in feed.follow(after):
                if batch is not None:
                    yield [event for event in batch.news if isinstance(event, wire.ManagerEvent)]
        except Missed:
            return

    def _served(self) -> PartitionService:
        try:
            return self._control.find(self._partition)
        except Exception as problem:
            raise self._lost(str(problem)) from None

    async def _execute(self, served: PartitionService, command: RegisterManager | UpdateManager) -> Any:
        try:
            return await served.execute(command)
        except Exception as problem:
            why = problem.problem if isinstance(problem, Refused) else str(problem) or repr(problem)
            raise self._lost(why) from None
