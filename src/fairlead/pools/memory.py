"""Machines that are only names, for tests: they come late, fail, come twice or go away as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.pools.base import Machine, ProviderError


class MemoryProvider:
    """What it was asked is in `asked`, in order; what there is in `machines`, with how often each was brought."""

    def __init__(self) -> None:
        self.machines: dict[str, int] = {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.failing: dict[str, ProviderError] = {}
        """What is asked → what comes of it instead, until it is removed from here."""
        self.doubtful: set[str] = set()
        """What is asked → it is done, and yet no answer comes, the next time."""
        self.slow: dict[str, asyncio.Event] = {}
        """What is asked → it is not begun before this."""
        self.lingering: set[str] = set()
        """Machines that are listed after they were destroyed."""
        self.hidden: set[str] = set()
        """Machines that are not listed yet."""

    async def create(self, names: Sequence[str]) -> None:
        failure = await self._ask("create", names)
        lost = failure.names or tuple(names) if failure is not None else ()
        for name in names:
            if name not in lost:
                self.machines[name] = self.machines.get(name, 0) + 1
        self._answer("create", failure)

    async def destroy(self, names: Sequence[str]) -> None:
        failure = await self._ask("destroy", names)
        lost = failure.names or tuple(names) if failure is not None else ()
        for name in names:
            if name not in lost and name not in self.lingering:
                self.machines.pop(name, None)
        self._answer("destroy", failure)

    async def list(self) -> Sequence[Machine]:
        failure = await self._ask("list", ())
        if failure is not None:
            raise failure
        return [Machine(name) for name in sorted(self.machines) if name not in self.hidden]

    async def close(self) -> None:
        self.asked.append(("close", ()))

    async def _ask(self, what: str, names: Sequence[str]) -> ProviderError | None:
        self.asked.append((what, tuple(names)))
        if what in self.slow:
            await self.slow[what].wait()
        return self.failing.get(what)

    def _answer(self, what: str, failure: ProviderError | None) -> None:
        if failure is not None:
            raise failure
        if what in self.doubtful:
            self.doubtful.discard(what)
            raise ProviderError("no answer came", unknown=True)
