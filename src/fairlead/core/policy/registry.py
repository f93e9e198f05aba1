"""Registries: the policies of one kind by the names that the configuration uses.

Built-in policies are a table in the file of their kind. `fairlead.policies` adds policies of other packages when a
process starts and never later, so that the meaning of a name never changes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeVar

Policy = TypeVar("Policy")

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class Registry(dict[str, Policy]):
    """Policies by name: built-in ones first, then the others in the order in which they were added.

    `kind` is used in messages. `reserved` names are known but have no entry.
    """

    def __init__(self, kind: str, built_in: Mapping[str, Policy], reserved: Collection[str] = ()) -> None:
        super().__init__(built_in)
        self.kind = kind
        self._reserved = reserved

    def add(self, name: str, policy: Policy) -> None:
        """Add a policy; raise ValueError if the name is invalid or taken."""
        if not NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a name for a policy ({self.kind}); use a-z, 0-9, _ and -, a letter first"
            )
        if name in self or name in self._reserved:
            raise ValueError(f"{self.kind} {name!r} exists already; use another name")
        self[name] = policy

    def missing(self, names: Collection[str]) -> list[str]:
        """Return the names without a policy, each with the kind, such as "order night_first"."""
        return [f"{self.kind} {name}" for name in names if name not in self and name not in self._reserved]
