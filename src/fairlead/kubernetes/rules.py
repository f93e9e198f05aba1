"""Rules: which queue and user the pods of a namespace belong to. A small document, read once.

    queues:
      - {namespace: "ml-*", name: gpu, queue: root.ml.gpu}   # pods there that name the queue `gpu`
      - {namespace: "ml-*", queue: root.ml}                  # other pods there
      - {namespace: "team-*", queue: "root.teams.{namespace}"}
    users: declared

The first row that matches decides. In `queue`, `{namespace}` and `{name}` stand for the namespace and the queue that
the pod names. If no row matches, a pod goes to the queue that it names. If it names none, the partition's `requestors`
choose the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from string import Formatter
from typing import Literal, cast

import msgspec

Users = Literal["namespace", "declared"]


class RulesProblem(Exception):
    """Raised if the document is wrong. The text names the field and the remedy."""


class Row(msgspec.Struct, frozen=True):
    """A row: patterns with `*` and `?` for the namespace and for the queue that a pod names."""

    queue: str
    namespace: str = "*"
    name: str = ""
    """If empty, the row matches all pods, whether they name a queue or not."""

    def matches(self, namespace: str, name: str) -> bool:
        if not fnmatchcase(namespace, self.namespace):
            return False
        return not self.name or (bool(name) and fnmatchcase(name, self.name))


class Rules(msgspec.Struct, frozen=True):
    queues: tuple[Row, ...] = ()
    users: Users = "namespace"
    """`namespace`: the user of a pod is its namespace. `declared`: the user that the pod names, if any. Then all who
    may create pods can name any user."""

    def queue(self, namespace: str, name: str) -> str:
        """Return the queue of a pod that names the queue `name` or none; empty to let the requestors choose."""
        for row in self.queues:
            if row.matches(namespace, name):
                return row.queue.replace("{namespace}", namespace.replace(".", "-")).replace("{name}", name)
        if not name:
            return ""
        return name if name == "root" or name.startswith("root.") else f"root.{name}"


def parse_rules(doc: object) -> Rules:
    """Read the document; an empty one has no rules."""
    document = _mapping(doc if doc is not None else {}, "the rules", ("queues", "users"))
    users = document.get("users", "namespace")
    if users not in ("namespace", "declared"):
        raise RulesProblem(f"users: {users!r} is not one of namespace, declared; write one of them")
    rows = document.get("queues") or []
    if not isinstance(rows, list):
        raise RulesProblem(
            "queues: it is not a list; write one row for each rule, such as - {namespace: ml, queue: root.ml}"
        )
    return Rules(tuple(_row(row, f"queues[{at}]") for at, row in enumerate(rows)), users)


def _row(doc: object, field: str) -> Row:
    row = _mapping(doc, field, ("queue", "namespace", "name"))
    for key, value in row.items():
        if not isinstance(value, str) or not value:
            raise RulesProblem(f"{field}.{key}: it is not text; write it in quotes")
    queue = row.get("queue")
    if not isinstance(queue, str):
        raise RulesProblem(f"{field}.queue: missing; name the queue of these pods")
    try:
        named = {name for _, name, _, _ in Formatter().parse(queue) if name is not None}
    except ValueError:
        named = {"{"}
    if not named <= {"namespace", "name"}:
        raise RulesProblem(
            f"{field}.queue: {queue!r}: only {{namespace}} and {{name}} can be filled in; write one of them"
        )
    if "name" in named and "name" not in row:
        raise RulesProblem(f'{field}.queue: {{name}} is empty for pods that name no queue; add name: "*" to the row')
    return Row(queue, str(row.get("namespace", "*")), str(row.get("name", "")))


def _mapping(doc: object, field: str, keys: tuple[str, ...]) -> Mapping[str, object]:
    if not isinstance(doc, Mapping):
        raise RulesProblem(f"{field}: it is not a mapping; write key: value pairs")
    for key in doc:
        if key not in keys:
            close = get_close_matches(str(key), keys, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise RulesProblem(f"{field}: there is no key {str(key)[:40]!r}{hint}; it has {', '.join(keys)}")
    return cast(Mapping[str, object], doc)
