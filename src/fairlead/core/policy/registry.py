"""Registries: the policies of one kind by their names, which the configuration uses.

The built-in ones are a table in the file of their kind. Those of other packages are added when a process starts, by
`fairlead.policies`, and never later: the same names stand for the same functions as long as the process lives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

Policy = TypeVar("Policy")

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class Registry(dict[str, Policy]):
    """Policies by name: the built-in ones first, the others in the order in which they were added."""

    def __init__(self, kind: str, built_in: Mapping[str, Policy], reserved: Collection[str] = ()) -> None:
        """`kind` names the kind in messages. `reserved` names are taken, and have no entry."""
        super().__init__(built_in)
        self.kind = kind
        self._reserved = reserved

    def add(self, name: str, policy: Policy) -> None:
        """Add a policy under a name that is free; raises ValueError if it is not."""
        if not NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name for a policy ({self.kind}); use a-z, 0-9, _ and -, a letter first")
        if name in self or name in self._reserved:
            raise ValueError(f"{self.kind} {name!r} exists already; use another name")
        self[name] = policy

    def missing(self, names: Collection[str]) -> list[str]:
        """Return those of the names that stand for no policy, each with the kind: "order night_first"."""
        return [f"{self.kind} {name}" for name in names if name not in self and name not in self._reserved]
