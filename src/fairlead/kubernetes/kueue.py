"""Converts queues of Kueue into a configuration of Fairlead, and its LocalQueues into rules for pods.

A cohort becomes an inner queue, limited to the quotas of its members and its own. A ClusterQueue becomes a queue in
it: its nominal quotas are guaranteed, and its borrowing limit bounds what it may use beyond them. Quotas of the flavors
of a resource are added up. Every field that is not carried over is named in a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.kubernetes.quantities import NotAQuantity, add, documented, requests
from fairlead.kubernetes.yunikorn import SETTINGS, Document, NotConverted, Section, Warnings

KINDS = ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass")
LEFT_OUT = {
    "flavorFungibility": "flavors are one sum; jobs choose nodes by their labels",
    "admissionChecks": "nodes are bought by pools or ProvisioningRequests",
    "admissionChecksStrategy": "nodes are bought by pools or ProvisioningRequests",
    "stopPolicy": "stop the queue with fairlead queue stop",
    "namespaceSelector": "LocalQueues decide which namespaces use the queue, by the rules",
    "admissionScope": "write order: fair into the queue",
    "concurrentAdmissionPolicy": "pods of a job wait for nodes, not for a flavor",
}
SPEC = "resourceGroups cohort cohortName queueingStrategy preemption fairSharing parent parentName".split()
_NAME = re.compile(r"[^A-Za-z0-9_@+-]")

Amounts = dict[str, int]


class _Quotas:
    """The quotas of a ClusterQueue or cohort, summed over flavors."""

    def __init__(self, read: Section, warnings: Warnings) -> None:
        self.nominal: Amounts = {}
        self.most: Amounts = {}
        """Nominal quotas and borrowing limits, of resources that have a borrowing limit in each flavor."""
        unbounded: set[str] = set()
        for group in read.sections("resourceGroups", "coveredResources flavors"):
            for flavor in group.sections("flavors", "name resources"):
                for resource in flavor.sections("resources", "name nominalQuota borrowingLimit lendingLimit"):
                    name = resource.text("name")
                    nominal = _amount(resource, "nominalQuota", name)
                    add(self.nominal, nominal)
                    add(self.most, nominal)
                    if resource.get("borrowingLimit") is None:
                        unbounded |= nominal.keys()
                    else:
                        add(self.most, _amount(resource, "borrowingLimit", name))
                    if resource.get("lendingLimit") is not None:
                        warnings.add(resource.at("lendingLimit"), "all idle quota is lent, and taken back on demand")
        self.most = {name: amount for name, amount in self.most.items() if name not in unbounded}


def _amount(read: Section, key: str, name: str) -> Amounts:
    try:
        return requests({name: read.get(key) or 0})
    except NotAQuantity as problem:
        raise NotConverted(f"{read.at(key)}: {problem}") from None


def convert(documents: Iterable[object]) -> tuple[Document, Document, list[str]]:
    """Return the configuration, the rules for pods, and the warnings."""
    warnings = Warnings()
    found: dict[str, dict[str, Section]] = {kind: {} for kind in KINDS}
    rows: list[Document] = []
    for at, document in enumerate(documents):
        if not isinstance(document, Mapping):
            continue
        kind, group = str(document.get("kind")), str(document.get("apiVersion")).partition("/")[0]
        if group != "kueue.x-k8s.io" or kind not in KINDS:
            warnings.add(f"document {at + 1}", f"a {kind} is no queue of Kueue, and is left out")
            continue
        whole = Section(document, "", "")
        metadata = whole.section("metadata")
        name = metadata.text("name")
        read = Section(document.get("spec") or {}, f"{kind} {name}", "")
        if kind == "LocalQueue":
            rows.append({"namespace": metadata.get("namespace") or "default", "name": name, "queue": read})
        found[kind][name] = read
    if not found["ClusterQueue"]:
        raise NotConverted("there is no ClusterQueue in the file; write all objects of Kueue into one file")
    tree = _Tree(found, warnings)
    for name in found["ResourceFlavor"]:
        warnings.add(f"ResourceFlavor {name}", "flavors are one sum; jobs choose nodes by their labels")
    for name in found["WorkloadPriorityClass"]:
        warnings.add(f"WorkloadPriorityClass {name}", "pods get their priority from a PriorityClass")
    for row in rows:
        read = row["queue"]
        wanted = read.text("clusterQueue")
        if wanted not in tree.paths:
            raise NotConverted(f"{read.at('clusterQueue')}: there is no ClusterQueue {wanted} in the file")
        row["queue"] = tree.paths[wanted]
    partition = {"preempt": "guarantees", "queues": {"root": tree.root}}
    return {"partitions": {"default": partition}}, {"queues": rows}, warnings.found


class _Tree:
    """The tree of queues."""

    def __init__(self, found: dict[str, dict[str, Section]], warnings: Warnings) -> None:
        self.root: Document = {}
        self.paths: dict[str, str] = {}
        """ClusterQueue → path of its queue."""
        self._cohorts = found["Cohort"]
        self._warnings = warnings
        self._quotas = {name: _Quotas(read, warnings) for name, read in self._cohorts.items()}
        inside: dict[str, list[str]] = {}
        """Cohort → its ClusterQueues and, with a slash before them, cohorts."""
        for name, read in found["ClusterQueue"].items():
            inside.setdefault(_either(read, "cohortName", "cohort"), []).append(name)
        for cohort in [*self._cohorts, *(name for name in inside if name and name not in self._cohorts)]:
            own = self._cohorts.get(cohort)
            parent = _either(own, "parentName", "parent") if own is not None else ""
            inside.setdefault(parent, []).append("/" + cohort)
        self._inside = inside
        self._queues = found["ClusterQueue"]
        self._add(self.root, "root", "", ())

    def _add(self, queue: Document, path: str, cohort: str, line: tuple[str, ...]) -> tuple[Amounts, Amounts]:
        """Add what a cohort has to its queue. Return the sums of nominal quotas, and of guarantees."""
        nominal, guaranteed = Amounts(), Amounts()
        for name in self._inside.get(cohort, ()):
            plain = name.removeprefix("/")
            own = _NAME.sub("-", plain)
            own = f"{own}-queue" if own in SETTINGS or own in queue else own
            child = queue[own] = Document()
            if not name.startswith("/"):
                quotas = self._quotas_of(child, plain, bool(cohort))
                self.paths[plain] = f"{path}.{own}"
                add(guaranteed, quotas)
                add(nominal, quotas)
                continue
            if plain in line:
                raise NotConverted(f"Cohort {plain}: it is its own parent; correct parentName")
            inner, promised = self._add(child, f"{path}.{own}", plain, (*line, plain))
            if plain in self._quotas:
                add(inner, self._quotas[plain].nominal)
            child["limit"] = documented(inner)
            if promised:
                child["guarantee"] = documented(promised)
            add(nominal, inner)
            add(guaranteed, promised)
        return nominal, guaranteed

    def _quotas_of(self, queue: Document, name: str, borrows: bool) -> Amounts:
        read = self._queues[name]
        quotas = _Quotas(read, self._warnings)
        for key, why in LEFT_OUT.items():
            if read.get(key):
                self._warnings.add(read.at(key), why)
        for key, _ in read.items():
            if key not in SPEC and key not in LEFT_OUT:
                raise NotConverted(f"{read.at(key)[:200]}: Kueue has no such key")
        preemption = read.section("preemption")
        for key in ("withinClusterQueue", "borrowWithinCohort"):
            if preemption.get(key):
                self._warnings.add(preemption.at(key), "`preempt` of the partition decides what is stopped")
        if read.get("fairSharing"):
            self._warnings.add(read.at("fairSharing"), "write a share into the queue")
        if read.get("queueingStrategy") == "StrictFIFO":
            queue["order"] = "priority"
        most = quotas.most if borrows else quotas.nominal
        if most:
            queue["limit"] = documented(most)
        if not quotas.nominal:
            return {}
        queue["guarantee"] = documented(quotas.nominal)
        return quotas.nominal


def _either(read: Section, *keys: str) -> str:
    return next((str(value) for key in keys if (value := read.get(key))), "")


def rules_text(rules: Document) -> str:
    """Return rules as the text of a file for `--rules`."""
    rows: list[dict[str, Any]] = rules["queues"]
    lines = [f"  - {{namespace: {row['namespace']}, name: {row['name']}, queue: {row['queue']}}}" for row in rows]
    return "\n".join(["queues:", *lines]) + "\n" if rows else "queues: []\n"
