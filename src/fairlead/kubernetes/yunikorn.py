"""Converts YuniKorn's `queues.yaml` into a configuration of Fairlead.

Every field is carried over, or named in a warning. An unknown key is an error, as it is for YuniKorn. Layout: the whole
file, partitions, queues, limits and lists, placement rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

import yaml

from fairlead.kubernetes.quantities import NotAQuantity, documented, requests

SETTINGS = frozenset(
    "share guarantee limit max_jobs order scale_first preemptible submit admin users groups max_priority".split()
)
"""Settings of a queue of Fairlead, which cannot be names of queues."""

Document = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@+-]{0,62}")
_RENAMED = re.compile(r"[^A-Za-z0-9_@+-]")


class NotConverted(Exception):
    """Raised if the file is not a `queues.yaml`. The text names the field and the remedy."""


class Warnings:
    """What could not be carried over, in the order of the file."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, field: str, why: str) -> None:
        self.found.append(f"{field}: {why}")


def convert(document: object) -> tuple[Document, list[str]]:
    """Return the configuration and the warnings. The document may be a ConfigMap that holds the file."""
    top = _mapping(document, "the file")
    if top.get("kind") == "ConfigMap":
        return convert(_of_config_map(top))
    _known(top, "", ("partitions", "checksum"))
    warnings = Warnings()
    partitions: Document = {}
    for at, part in enumerate(_list(top.get("partitions"), "partitions")):
        field = f"partitions[{at}]"
        read = _mapping(part, field)
        name = re.sub(r"^\[.*\]", "", _text(read.get("name", "default"), f"{field}.name")).lower() or "default"
        if name in partitions:
            raise NotConverted(f"{field}.name: there are two partitions {name}; remove one")
        partitions[name] = _partition(read, field, warnings)
    if not partitions:
        raise NotConverted("partitions: missing; is this a queues.yaml?")
    return {"partitions": partitions}, warnings.found


def _of_config_map(top: Mapping[str, Any]) -> object:
    data = _mapping(top.get("data"), "data")
    if "queues.yaml" not in data:
        raise NotConverted("data: the ConfigMap has no queues.yaml; name the ConfigMap yunikorn-configs")
    return yaml.safe_load(_text(data["queues.yaml"], "data.queues.yaml"))


# -- partitions --------------------------------------------------------------------------------------------------


def _partition(read: Mapping[str, Any], field: str, warnings: Warnings) -> Document:
    _known(
        read,
        field,
        ("name", "queues", "placementrules", "limits", "preemption", "nodesortpolicy", "usergroupresolver"),
    )
    partition: Document = {"place": _place(read.get("nodesortpolicy"), f"{field}.nodesortpolicy", warnings)}
    preemption = _mapping(read.get("preemption") or {}, f"{field}.preemption")
    _known(preemption, f"{field}.preemption", ("enabled", "quotapreemptionenabled"))
    partition["preempt"] = "off" if preemption.get("enabled") is False else "guarantees"
    if preemption.get("quotapreemptionenabled"):
        warnings.add(f"{field}.preemption.quotapreemptionenabled", "a lowered limit stops no running task")
    if read.get("usergroupresolver"):
        warnings.add(f"{field}.usergroupresolver", "groups come with the tokens of users")
    queues = _list(read.get("queues"), f"{field}.queues")
    roots = [_mapping(queue, f"{field}.queues[{at}]") for at, queue in enumerate(queues)]
    if len(roots) == 1 and str(roots[0].get("name", "")).lower() == "root":
        root = _queue(roots[0], f"{field}.queues[0]", {}, warnings)
    else:  # YuniKorn adds a root queue above
        root = _children(roots, f"{field}.queues", {}, warnings)
    limits = {"limits": read.get("limits")} if read.get("limits") else {}
    _limits(limits, field, root, warnings)
    if not _has_list(root):
        warnings.add(
            f"{field}.queues", "no queue has a submitacl, so YuniKorn refuses all users; here all users may submit"
        )
    rules = _placement(read.get("placementrules"), f"{field}.placementrules", warnings)
    if rules:
        partition["requestors"] = rules
    partition["queues"] = {"root": root}
    return partition


def _place(policy: object, field: str, warnings: Warnings) -> str:
    read = _mapping(policy or {}, field)
    _known(read, field, ("type", "resourceweights"))
    if read.get("resourceweights"):
        warnings.add(f"{field}.resourceweights", "resources have no weights")
    kind = str(read.get("type") or "fair").lower()
    if kind not in ("fair", "binpacking"):
        raise NotConverted(f"{field}.type: {kind!r} is not one of fair, binpacking")
    return "pack" if kind == "binpacking" else "spread"


def _has_list(queue: Mapping[str, Any]) -> bool:
    return "submit" in queue or any(
        _has_list(child) for name, child in queue.items() if name not in SETTINGS and isinstance(child, Mapping)
    )


# -- queues ------------------------------------------------------------------------------------------------------

Properties = Mapping[str, str]


def _queue(read: Mapping[str, Any], field: str, above: Properties, warnings: Warnings) -> Document:
    _known(
        read,
        field,
        (
            "name",
            "parent",
            "resources",
            "maxapplications",
            "properties",
            "adminacl",
            "submitacl",
            "childtemplate",
            "queues",
            "limits",
        ),
    )
    queue: Document = {}
    own = {str(key): str(value) for key, value in _mapping(read.get("properties") or {}, f"{field}.properties").items()}
    children = [_mapping(child, f"{field}.queues[{at}]") for at, child in enumerate(read.get("queues") or [])]
    # Properties also apply to the queues below; Fairlead reads the order of leaves.
    properties = {**above, **own}
    _properties(own, properties, f"{field}.properties", queue, bool(children), warnings)
    resources = _mapping(read.get("resources") or {}, f"{field}.resources")
    _known(resources, f"{field}.resources", ("guaranteed", "max"))
    if guaranteed := _amounts(resources.get("guaranteed"), f"{field}.resources.guaranteed"):
        queue["guarantee"] = guaranteed
    if resources.get("max"):
        queue["limit"] = _amounts(resources["max"], f"{field}.resources.max")
    if read.get("maxapplications"):
        queue["max_jobs"] = _count(read["maxapplications"], f"{field}.maxapplications")
    for key, name in (("submitacl", "submit"), ("adminacl", "admin")):
        if listed := _access(read.get(key), f"{field}.{key}"):
            queue[name] = listed
    _limits(read, field, queue, warnings)
    if read.get("childtemplate"):
        warnings.add(f"{field}.childtemplate", "queues are not made on demand; write them into the configuration")
    if read.get("parent") and not children:
        warnings.add(f"{field}.parent", "the queue has no queues below it, so jobs can be submitted to it")
    return {**queue, **_children(children, f"{field}.queues", properties, warnings)}


def _children(queues: list[Mapping[str, Any]], field: str, properties: Properties, warnings: Warnings) -> Document:
    found: Document = {}
    for at, read in enumerate(queues):
        written = _text(read.get("name"), f"{field}[{at}].name")
        name = _RENAMED.sub("-", written)[:63]
        if name in SETTINGS:
            name += "-queue"
        if not _NAME.fullmatch(name):
            name = f"q{name}"[:63]
        if name != written:
            warnings.add(f"{field}[{at}].name", f"{written} is not a name here; the queue is called {name}")
        if name in found:
            raise NotConverted(f"{field}[{at}].name: there are two queues {name}; rename one")
        found[name] = _queue(read, f"{field}[{at}]", properties, warnings)
    return found


def _properties(
    own: Properties, properties: Properties, field: str, queue: Document, parent: bool, warnings: Warnings
) -> None:
    """Carry over the properties of a queue. Inherited ones are reported at the parent."""
    policy = properties.get("application.sort.policy", "fifo").lower()
    by_priority = properties.get("application.sort.priority", "enabled").lower() != "disabled"
    if not parent:
        order = "fair" if policy == "fair" else "priority" if by_priority else "fifo"
        if order != "priority":
            queue["order"] = order
    if policy == "fair" and by_priority and "application.sort.policy" in own:
        warnings.add(f"{field}.application.sort.policy", "the order fair does not look at priorities")
    if policy == "stateaware" and "application.sort.policy" in own:
        warnings.add(f"{field}.application.sort.policy", "stateaware is read as fifo")
    if own.get("preemption.policy", "").lower() == "disabled":
        queue["preemptible"] = False
        warnings.add(
            f"{field}.preemption.policy", "tasks of the queue are not preempted; others are, if it has a guarantee"
        )
    for key, value in own.items():
        if key in ("application.sort.policy", "application.sort.priority"):
            continue
        if key == "preemption.policy" and value.lower() in ("default", "disabled"):
            continue
        if key == "priority.policy" and value.lower() == "default":
            continue
        why = {
            "priority.policy": "priorities count within a queue only",
            "priority.offset": "priorities count within a queue only",
            "preemption.policy": "there are no fences for preemption",
            "preemption.delay": "preemption has no delay",
            "preemption.quota.delay": "a lowered limit stops no running task",
            "application.unschedasks.backoff": "tasks without capacity cost nothing while they wait",
            "application.unschedasks.backoff.delay": "tasks without capacity cost nothing while they wait",
        }.get(key, "there is no such setting")
        warnings.add(f"{field}.{key}", why)


# -- limits and lists --------------------------------------------------------------------------------------------


def _limits(read: Mapping[str, Any], field: str, queue: Document, warnings: Warnings) -> None:
    for at, each in enumerate(_list(read.get("limits"), f"{field}.limits")):
        inner = f"{field}.limits[{at}]"
        limit = _mapping(each, inner)
        _known(limit, inner, ("limit", "users", "groups", "maxresources", "maxapplications"))
        entry: Document = {}
        if limit.get("maxresources"):
            entry["limit"] = _amounts(limit["maxresources"], f"{inner}.maxresources")
        if limit.get("maxapplications"):
            entry["max_jobs"] = _count(limit["maxapplications"], f"{inner}.maxapplications")
        for kind in ("users", "groups"):
            for name in _list(limit.get(kind), f"{inner}.{kind}"):
                entries = queue.setdefault(kind, {})
                if str(name) in entries:
                    warnings.add(f"{inner}.{kind}", f"{name} has a limit in this queue already; the first one counts")
                else:
                    entries[str(name)] = deepcopy(entry)


def _access(text: object, field: str) -> list[str]:
    """Return a list of users and @groups: `users groups`, each separated by commas; `*` for all."""
    if text is None:
        return []
    users, _, groups = _text(text, field).partition(" ")
    if "*" in (users.strip(), groups.strip()):
        return ["*"]
    found = [user.strip() for user in users.split(",") if user.strip()]
    return found + [f"@{group.strip()}" for group in groups.split(",") if group.strip()]


def _amounts(resources: object, field: str) -> dict[str, int | str]:
    amounts: dict[str, int | str] = {}
    for name, value in _mapping(resources or {}, field).items():
        own = "cpu" if name == "vcore" else str(name)
        try:
            # A limit of 0 allows nothing, so it is kept.
            amounts |= documented(requests({own: value})) or {own: 0}
        except NotAQuantity as problem:
            raise NotConverted(f"{field}.{name}: {problem}") from None
    return amounts


# -- placement rules ---------------------------------------------------------------------------------------------


def _placement(rules: object, field: str, warnings: Warnings) -> list[Document]:
    """Return requestors for rules that name a queue. `provided` needs none: a job goes to the queue that it names."""
    found: list[Document] = []
    chosen = [_mapping(each, f"{field}[{at}]") for at, each in enumerate(_list(rules, field))]
    if chosen and not any(str(rule.get("name", "")).lower() == "provided" for rule in chosen):
        warnings.add(field, "there is no rule provided, so YuniKorn ignores the queue that a job names; here it counts")
    for at, rule in enumerate(chosen):
        inner = f"{field}[{at}]"
        _known(rule, inner, ("name", "create", "filter", "parent", "value"))
        name = str(rule.get("name", "")).lower()
        users = _users_of(rule.get("filter"), f"{inner}.filter", warnings)
        if rule.get("create"):
            warnings.add(f"{inner}.create", "queues are not made on demand; write them into the configuration")
        if name == "provided":
            continue
        if name == "fixed" and users is not None and not rule.get("parent"):
            value = _text(rule.get("value"), f"{inner}.value")
            queue = value if value.startswith("root") else f"root.{value}"
            found.append({"match": users, "queue": queue})
        elif name == "tag" and rule.get("value") == "namespace":
            warnings.add(
                inner,
                "for queues by namespace, write - {namespace: '*', queue: 'root.{namespace}'} into the rules of "
                "`fairlead kubernetes`, and a queue for each namespace into the configuration",
            )
        else:
            warnings.add(inner, f"there is no placement by {name or 'nothing'}; use requestors, which match users")
    return found


def _users_of(filter_: object, field: str, warnings: Warnings) -> str | None:
    """Return the pattern of the users that a filter allows; None if it cannot be expressed."""
    read = _mapping(filter_ or {}, field)
    _known(read, field, ("type", "users", "groups"))
    users = [str(user) for user in _list(read.get("users"), f"{field}.users")]
    if not users and not read.get("groups"):
        return ""
    if read.get("groups") or str(read.get("type", "allow")).lower() == "deny":
        warnings.add(field, "requestors match names of users only, and do not exclude any")
        return None
    return f"^({'|'.join(re.escape(user) for user in users)})$" if len(users) > 1 else f"^{users[0]}$"


# -- reading -----------------------------------------------------------------------------------------------------


def _mapping(value: object, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotConverted(f"{field}: it is not a mapping; write key: value pairs")
    return cast(Mapping[str, Any], value)


def _list(value: object, field: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise NotConverted(f"{field}: it is not a list; write one entry a line, each with a dash")
    return value


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise NotConverted(f"{field}: it is not text; write it in quotes")
    return value


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise NotConverted(f"{field}: it is not a number of applications; write a whole number")
    return value


def _known(read: Mapping[str, Any], field: str, keys: tuple[str, ...]) -> None:
    for key in read:
        if key not in keys:
            at = f"{field}.{key}" if field else str(key)
            raise NotConverted(f"{at[:200]}: YuniKorn has no such key; it has {', '.join(keys)}")
