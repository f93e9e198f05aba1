"""A provider in memory, for tests: its machines are only names, and appear late, fail or vanish on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fairlead.pools.provider import Machine, ProviderError


class MemoryProvider:
    """Records calls in `asked`, in order. `machines` maps existing machines to how often each was created."""

    def __init__(self) -> None:
        self.machines: dict[str, int] = {}
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.failing: dict[str, ProviderError] = {}
        """Call → the error it raises, until the entry is removed."""
        self.doubtful: set[str] = set()
        """Calls that succeed the next time, but raise an error with unknown outcome."""
        self.slow: dict[str, asyncio.Event] = {}
        """Call → the event that it waits for before it begins."""
        self.lingering: set[str] = set()
        """Machines that stay listed after they were destroyed."""
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
