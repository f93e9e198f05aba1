"""Converts YuniKorn's `queues.yaml` into a configuration of Fairlead.

Every field is carried over, or named in a warning. An unknown key is an error, as it is for YuniKorn. Layout: reading,
partitions, queues, limits and lists, placement rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import yaml

from fairlead.kubernetes.quantities import NotAQuantity, documented, requests

SETTINGS = frozenset(
    "share guarantee limit max_jobs order scale_first preemptible submit admin users groups max_priority "
    "max_grace".split()
)
"""Settings of a queue of Fairlead, which cannot be names of queues."""

Document = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@+-]{0,62}")
_RENAMED = re.compile(r"[^A-Za-z0-9_@+-]")


class NotConverted(Exception):
    """Raised if the file is not a `queues.yaml`. The text names the field and the remedy."""


class Warnings:
    """Fields that could not be carried over, in the order of the file."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, field: str, why: str) -> None:
        self.found.append(f"{field}: {why}")


class Section:
    """A mapping in the file, which may have only these keys. `field` is its place in the file."""

    def __init__(self, value: object, field: str, keys: str) -> None:
        if not isinstance(value, Mapping):
            raise NotConverted(f"{field or 'the file'}: it is not a mapping; write key: value pairs")
        self._values = value
        self.field = field
        for key in value:
            if keys and key not in keys.split():
                at = self.at(str(key))
                raise NotConverted(f"{at[:200]}: YuniKorn has no such key; it has {', '.join(keys.split())}")

    def at(self, key: str) -> str:
        return f"{self.field}.{key}" if self.field else key

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def items(self) -> list[tuple[str, Any]]:
        return [(str(key), value) for key, value in self._values.items()]

    def lower(self, key: str, default: str = "") -> str:
        return str(self.get(key) or default).lower()

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise NotConverted(f"{self.at(key)}: it is not text; write it in quotes")
        return value

    def count(self, key: str) -> int:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise NotConverted(f"{self.at(key)}: it is not a number of applications; write a whole number")
        return value

    def list(self, key: str) -> list[Any]:
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise NotConverted(f"{self.at(key)}: it is not a list; write one entry a line, each with a dash")
        return value or []

    def section(self, key: str, keys: str = "") -> Section:
        return Section(self.get(key) or {}, self.at(key), keys)

    def sections(self, key: str, keys: str) -> Sections:
        return [Section(each, f"{self.at(key)}[{at}]", keys) for at, each in enumerate(self.list(key))]


Sections = list[Section]


def convert(document: object) -> tuple[Document, list[str]]:
    """Return the configuration and the warnings. The document may be a ConfigMap that holds the file."""
    if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
        data = Section(document, "", "").section("data")
        if data.get("queues.yaml") is None:
            raise NotConverted("data: the ConfigMap has no queues.yaml; name the ConfigMap yunikorn-configs")
        return convert(yaml.safe_load(data.text("queues.yaml")))
    warnings = Warnings()
    partitions: Document = {}
    for read in Section(document, "", "partitions checksum").sections("partitions", PARTITION):
        name = re.sub(r"^\[.*\]", "", read.text("name") if read.get("name") is not None else "").lower() or "default"
        if name in partitions:
            raise NotConverted(f"{read.at('name')}: there are two partitions {name}; remove one")
        partitions[name] = _partition(read, warnings)
    if not partitions:
        raise NotConverted("partitions: missing; is this a queues.yaml?")
    return {"partitions": partitions}, warnings.found


# -- partitions --------------------------------------------------------------------------------------------------

PARTITION = "name queues placementrules limits preemption nodesortpolicy usergroupresolver"
QUEUE = "name parent resources maxapplications properties adminacl submitacl childtemplate queues limits"


def _partition(read: Section, warnings: Warnings) -> Document:
    partition: Document = {"place": _place(read.section("nodesortpolicy", "type resourceweights"), warnings)}
    preemption = read.section("preemption", "enabled quotapreemptionenabled")
    partition["preempt"] = "off" if preemption.get("enabled") is False else "guarantees"
    if preemption.get("quotapreemptionenabled"):
        warnings.add(preemption.at("quotapreemptionenabled"), "a lowered limit stops no running task")
    if read.get("usergroupresolver"):
        warnings.add(read.at("usergroupresolver"), "groups come with the tokens of users")
    roots = read.sections("queues", QUEUE)
    if len(roots) == 1 and roots[0].lower("name") == "root":
        root = _queue(roots[0], {}, warnings)
    else:  # YuniKorn adds a root queue above
        root = _children(roots, {}, warnings)
    _limits(read, root, warnings)
    if not _has_list(root):
        warnings.add(
            read.at("queues"), "no queue has a submitacl, so YuniKorn refuses all users; here all users may submit"
        )
    if rules := _placement(read, warnings):
        partition["requestors"] = rules
    partition["queues"] = {"root": root}
    return partition


def _place(read: Section, warnings: Warnings) -> str:
    if read.get("resourceweights"):
        warnings.add(read.at("resourceweights"), "resources have no weights")
    kind = read.lower("type", "fair")
    if kind not in ("fair", "binpacking"):
        raise NotConverted(f"{read.at('type')}: {kind!r} is not one of fair, binpacking")
    return "pack" if kind == "binpacking" else "spread"


def _has_list(queue: Mapping[str, Any]) -> bool:
    """True if the queue or a queue below it names users who may submit."""
    return "submit" in queue or any(
        _has_list(child) for name, child in queue.items() if name not in SETTINGS and isinstance(child, Mapping)
    )


# -- queues ------------------------------------------------------------------------------------------------------

Properties = Mapping[str, str]


def _queue(read: Section, above: Properties, warnings: Warnings) -> Document:
    """Return a queue with the queues below it. `above` are the properties of the queues above, which apply here too."""
    queue: Document = {}
    properties = read.section("properties")
    own = {key: str(value) for key, value in properties.items()}
    children = read.sections("queues", QUEUE)
    inherited = {**above, **own}
    _order(own, inherited, properties, queue, bool(children), warnings)
    _other_properties(own, properties, queue, warnings)
    resources = read.section("resources", "guaranteed max")
    if guaranteed := _amounts(resources, "guaranteed"):
        queue["guarantee"] = guaranteed
    if resources.get("max"):
        queue["limit"] = _amounts(resources, "max")
    if read.get("maxapplications"):
        queue["max_jobs"] = read.count("maxapplications")
    for key, name in (("submitacl", "submit"), ("adminacl", "admin")):
        if listed := _access(read, key):
            queue[name] = listed
    _limits(read, queue, warnings)
    if read.get("childtemplate"):
        warnings.add(read.at("childtemplate"), "queues are not made on demand; write them into the configuration")
    if read.get("parent") and not children:
        warnings.add(read.at("parent"), "the queue has no queues below it, so jobs can be submitted to it")
    return {**queue, **_children(children, inherited, warnings)}


def _children(queues: Sections, properties: Properties, warnings: Warnings) -> Document:
    found: Document = {}
    for read in queues:
        written = read.text("name")
        name = _RENAMED.sub("-", written)[:63]
        if name in SETTINGS:
            name += "-queue"
        if not _NAME.fullmatch(name):
            name = f"q{name}"[:63]
        if name != written:
            warnings.add(read.at("name"), f"{written} is not a name here; the queue is called {name}")
        if name in found:
            raise NotConverted(f"{read.at('name')}: there are two queues {name}; rename one")
        found[name] = _queue(read, properties, warnings)
    return found


SORT = "application.sort.policy"


def _order(
    own: Properties, inherited: Properties, read: Section, queue: Document, parent: bool, warnings: Warnings
) -> None:
    """Set the order of a leaf queue. A policy is reported where it is written, not at the queues that inherit it."""
    policy = inherited.get(SORT, "fifo").lower()
    by_priority = inherited.get("application.sort.priority", "enabled").lower() != "disabled"
    order = "fair" if policy == "fair" else "priority" if by_priority else "fifo"
    if not parent and order != "priority":
        queue["order"] = order
    if SORT in own and policy == "fair" and by_priority:
        warnings.add(read.at(SORT), "the order fair compares priorities of one user only")
    if SORT in own and policy == "stateaware":
        warnings.add(read.at(SORT), "stateaware is read as fifo")


_SUPPORTED = {(SORT, ""), ("application.sort.priority", ""), ("preemption.policy", "default")}
_SUPPORTED |= {("preemption.policy", "disabled"), ("priority.policy", "default")}
"""Properties that are carried over, with the value if only that one is."""
_NOT_SUPPORTED = {
    "priority.policy": "priorities count within a queue only",
    "priority.offset": "priorities count within a queue only",
    "preemption.policy": "there are no fences for preemption",
    "preemption.delay": "preemption has no delay",
    "preemption.quota.delay": "a lowered limit stops no running task",
    "application.unschedasks.backoff": "tasks without capacity cost nothing while they wait",
    "application.unschedasks.backoff.delay": "tasks without capacity cost nothing while they wait",
}


def _other_properties(own: Properties, read: Section, queue: Document, warnings: Warnings) -> None:
    if own.get("preemption.policy", "").lower() == "disabled":
        queue["preemptible"] = False
        warnings.add(
            read.at("preemption.policy"), "tasks of the queue are not preempted; others are, if it has a guarantee"
        )
    for key, value in own.items():
        if not {(key, ""), (key, value.lower())} & _SUPPORTED:
            warnings.add(read.at(key), _NOT_SUPPORTED.get(key, "there is no such setting"))


# -- limits and lists --------------------------------------------------------------------------------------------


def _limits(read: Section, queue: Document, warnings: Warnings) -> None:
    for limit in read.sections("limits", "limit users groups maxresources maxapplications"):
        entry: Document = {}
        if limit.get("maxresources"):
            entry["limit"] = _amounts(limit, "maxresources")
        if limit.get("maxapplications"):
            entry["max_jobs"] = limit.count("maxapplications")
        for kind in ("users", "groups"):
            for name in map(str, limit.list(kind)):
                entries = queue.setdefault(kind, {})
                if name in entries:
                    warnings.add(limit.at(kind), f"{name} has a limit in this queue already; the first one counts")
                else:
                    entries[name] = deepcopy(entry)


def _access(read: Section, key: str) -> list[str]:
    """Return a list of users and @groups: `users groups`, each separated by commas; `*` for all."""
    if read.get(key) is None:
        return []
    users, _, groups = read.text(key).partition(" ")
    if "*" in (users.strip(), groups.strip()):
        return ["*"]
    found = [user.strip() for user in users.split(",") if user.strip()]
    return found + [f"@{group.strip()}" for group in groups.split(",") if group.strip()]


def _amounts(read: Section, key: str) -> dict[str, int | str]:
    amounts: dict[str, int | str] = {}
    resources = read.section(key)
    for name, value in resources.items():
        own = "cpu" if name == "vcore" else name
        try:
            # A limit of 0 allows nothing, so it is kept.
            amounts |= documented(requests({own: value})) or {own: 0}
        except NotAQuantity as problem:
            raise NotConverted(f"{resources.at(name)}: {problem}") from None
    return amounts


# -- placement rules ---------------------------------------------------------------------------------------------


def _placement(read: Section, warnings: Warnings) -> list[Document]:
    """Return requestors for rules that name a queue. `provided` needs none: a job goes to the queue that it names."""
    found: list[Document] = []
    rules = read.sections("placementrules", "name create filter parent value")
    if rules and not any(rule.lower("name") == "provided" for rule in rules):
        warnings.add(
            read.at("placementrules"),
            "there is no rule provided, so YuniKorn ignores the queue that a job names; here it counts",
        )
    for rule in rules:
        name = rule.lower("name")
        users = _users_of(rule.section("filter", "type users groups"), warnings)
        if rule.get("create"):
            warnings.add(rule.at("create"), "queues are not made on demand; write them into the configuration")
        if name == "provided":
            continue
        if name == "fixed" and users is not None and not rule.get("parent"):
            value = rule.text("value")
            found.append({"match": users, "queue": value if value.startswith("root") else f"root.{value}"})
        elif name == "tag" and rule.get("value") == "namespace":
            warnings.add(
                rule.field,
                "for queues by namespace, write - {namespace: '*', queue: 'root.{namespace}'} into the rules of "
                "`fairlead kubernetes`, and a queue for each namespace into the configuration",
            )
        else:
            warnings.add(rule.field, f"there is no placement by {name or 'nothing'}; use requestors, which match users")
    return found


def _users_of(read: Section, warnings: Warnings) -> str | None:
    """Return the pattern of the users that a filter allows; None if it cannot be expressed."""
    users = [str(user) for user in read.list("users")]
    if not users and not read.get("groups"):
        return ""
    if read.get("groups") or read.lower("type", "allow") == "deny":
        warnings.add(read.field, "requestors match names of users only, and do not exclude any")
        return None
    return f"^({'|'.join(re.escape(user) for user in users)})$" if len(users) > 1 else f"^{users[0]}$"
