"""Makes the methods of `AsyncClient` from those methods of `Client` that send one operation or read one list."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from fairlead.client.calls import Page
from fairlead.client.shortcuts import Shortcuts
from fairlead.wire.operation import Answer, Operation

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])


class AsyncSender(ABC):
    """Sends operations, for the methods that `awaited` and `iterated` make."""

    @abstractmethod
    async def send(self, operation: Operation[Answer]) -> Answer:
        """Send an operation and return its answer."""

    @abstractmethod
    def pages(self, operation: Operation[Page]) -> AsyncIterator[Page]:
        """Yield the pages of a list."""


class _Sent(Exception):
    """Ends a method at the operation that it sends, and has this operation."""

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation


class _Replay(Shortcuts):
    """A client without a server, to run a method twice: first to learn its operation, then with the answer to it."""

    def __init__(self, answer: Any = None) -> None:
        self._answer = answer

    def send(self, operation: Operation[Any]) -> Any:
        if self._answer is None:
            raise _Sent(operation)
        return self._answer

    def pages(self, operation: Operation[Any]) -> Iterator[Any]:
        return iter([self.send(operation)])


def awaited(
    method: Callable[Concatenate[Shortcuts, Arguments], Result],
) -> Callable[Concatenate[AsyncSender, Arguments], Coroutine[Any, Any, Result]]:
    """Return the coroutine function that does what a method of `Client` does with one operation."""

    @wraps(method)
    async def sending(self: AsyncSender, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return method(_Replay(), *args, **kwargs)
        except _Sent as sent:
            answer = await self.send(sent.operation)
        return method(_Replay(answer), *args, **kwargs)

    return sending


def iterated(
    method: Callable[Concatenate[Shortcuts, Arguments], Iterator[Item]],
) -> Callable[Concatenate[AsyncSender, Arguments], AsyncIterator[Item]]:
    """Return the asynchronous generator that yields what a method of `Client` yields from the pages of one list."""

    @wraps(method)
    async def reading(self: AsyncSender, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> AsyncIterator[Item]:
        try:
            next(method(_Replay(), *args, **kwargs))
        except _Sent as sent:
            async for page in self.pages(sent.operation):
                for item in method(_Replay(page), *args, **kwargs):
                    yield item

    return reading


def described_as(method: Callable[..., Any]) -> Callable[[Function], Function]:
    """Give a method the description of its counterpart in `Client`."""

    def describe(function: Function) -> Function:
        function.__doc__ = method.__doc__
        return function

    return describe
