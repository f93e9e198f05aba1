"""The functions that carry out commands. Each registers itself with `handles`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fairlead.core.commands import Answer, Command
from fairlead.core.plan import Plan

Asked = TypeVar("Asked", bound=Command)
Given = TypeVar("Given", bound=Answer)

HANDLERS: dict[type[Any], Callable[[Plan, Any], Answer]] = {}
"""Command → the function that carries it out, or raises `Refused`."""


def handles(command: type[Asked]) -> Callable[[Callable[[Plan, Asked], Given]], Callable[[Plan, Asked], Given]]:
    """Register a function that carries out a command."""

    def register(handler: Callable[[Plan, Asked], Given]) -> Callable[[Plan, Asked], Given]:
        HANDLERS[command] = handler
        return handler

    return register
