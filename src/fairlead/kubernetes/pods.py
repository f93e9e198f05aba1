"""Pods: the resources they use, and their requirements on nodes, in the keys of a stage.

A field that the keys of a stage cannot express is returned as `NotHonoured`. Fairlead does not bind such a pod. Layout:
use, needs, conditions on nodes, tolerations, terms about other pods, volumes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.kubernetes import names
from fairlead.kubernetes.objects import (
    PREFERRED,
    REQUIRED,
    Affinity,
    Container,
    Expression,
    LabelSelector,
    NodeAffinity,
    NodeSelector,
    NodeTerm,
    Pod,
    PodAffinity,
    PodSpec,
    PodTerm,
    PreferredNodeTerm,
    Quantities,
    Requirements,
    Toleration,
)
from fairlead.kubernetes.quantities import CPU, MEMORY, PODS, NotAQuantity, add, at_least, documented, requests

NODE_NAME = "metadata.name"
"""A label that every node gets, for affinity by `matchFields`."""
NOWHERE = f"!{NODE_NAME}"
"""A condition that no node meets."""
MAX_TERMS = 100
MAX_WEIGHT = 1_000
MAX_LABELS = 100
PORT = "hostport/"

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,126}")
_VALUE = re.compile(r"[^\s,()=!<>*]{0,256}")
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class NotHonoured(msgspec.Struct, frozen=True, gc=False):
    """A field of a pod that Fairlead leaves to the cluster's own scheduler."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


class Needs(msgspec.Struct, frozen=True, gc=False):
    """The requirements of a pod on a node. Hashable: pods of a group with equal needs are tasks of one stage."""

    resources: tuple[tuple[str, int], ...] = ()
    selectors: tuple[tuple[str, str], ...] = ()
    where: tuple[str, ...] = ()
    prefer: tuple[tuple[str, int], ...] = ()
    tolerations: tuple[str, ...] = ()
    near: str = ""
    apart: bool = False

    def keys(self) -> dict[str, Any]:
        """Return the needs as keys of a stage or an ask."""
        keys = {
            "selectors": dict(self.selectors),
            "where": list(self.where),
            "prefer": dict(self.prefer),
            "tolerations": list(self.tolerations),
            "near": self.near,
            "apart": self.apart,
        }
        return {"resources": documented(dict(self.resources))} | {key: value for key, value in keys.items() if value}

    @property
    def ports(self) -> tuple[str, ...]:
        """The host ports among the resources. Nodes need a capacity of 1 for each."""
        return tuple(name for name, _ in self.resources if name.startswith(PORT))


# -- what pods use -----------------------------------------------------------------------------------------------


def used_by(pod: Pod) -> dict[str, int]:
    """Return what a pod of any scheduler uses of its node, with host ports; nothing if it has ended."""
    if pod.ended:
        return {}
    spec = pod.spec
    granted = {each.name: each.allocated_resources for each in pod.status.container_statuses or ()}
    used = _of_containers(spec, granted)
    if spec.resources is not None:
        # Requests of the whole pod replace the sum of its containers.
        whole = _requested(spec.resources)
        used |= {name: amount for name, amount in whole.items() if name in (CPU, MEMORY) or name.startswith("hugepag")}
    add(used, requests(spec.overhead))
    used[PODS] = 1000
    for port in host_ports(spec):
        used[port] = 1000
    return used


def _of_containers(spec: PodSpec, granted: Mapping[str, Quantities | None]) -> dict[str, int]:
    """Return for each resource the maximum of the containers' sum and of the need while init containers run. A
    container that is being resized uses the larger of what it requests and what it was granted.

    An init container with `restartPolicy: Always` keeps running beside all that start after it.
    """
    total: dict[str, int] = {}
    for container in spec.containers or ():
        wanted = _requested(container.resources)
        if held := granted.get(container.name):
            at_least(wanted, requests(held))
        add(total, wanted)
    beside: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in spec.init_containers or ():
        wanted = _requested(container.resources)
        if container.restart_policy == "Always":
            add(beside, wanted)
            add(total, wanted)
            at_least(starting, beside)
        else:
            add(wanted, beside)
            at_least(starting, wanted)
    at_least(total, starting)
    return total


def _requested(resources: Requirements | None) -> dict[str, int]:
    """Return requests; a resource with only a limit requests the limit."""
    if resources is None:
        return {}
    if not resources.limits:
        return requests(resources.requests)
    return requests({**resources.limits, **(resources.requests or {})})


def host_ports(spec: PodSpec) -> list[str]:
    """Return the host ports of a pod as resources. Addresses are ignored: a port is taken on all of them."""
    containers: Sequence[Container] = [*(spec.containers or ()), *(spec.init_containers or ())]
    ports = {
        f"{PORT}{(port.protocol or 'TCP').lower()}-{port.host_port}"
        for container in containers
        for port in container.ports or ()
        if port.host_port
    }
    return sorted(ports)


# -- what pods need ----------------------------------------------------------------------------------------------


def read_needs(pod: Pod, own: Collection[str] = (), gang: bool = False) -> tuple[Needs, tuple[NotHonoured, ...]]:
    """Return what a pod needs as far as it can be expressed, and the fields that are not honoured.

    Only pods of the same part have the values of the labels `own`. Terms about other pods are honoured if they select
    by these labels.
    """
    spec = pod.spec
    problems: list[NotHonoured] = []
    try:
        resources = tuple(sorted(used_by(pod).items()))
    except NotAQuantity as problem:
        problems.append(NotHonoured("spec.containers", str(problem)))
        resources = ()
    selectors = tuple(sorted((spec.node_selector or {}).items()))
    node = (spec.affinity or Affinity()).node_affinity or NodeAffinity()
    where: tuple[str, ...] = ()
    terms = _without_own(pod, node.required)
    if terms is not None:
        where = _where(terms, f"spec.affinity.nodeAffinity.{REQUIRED}", problems)
    prefer = _prefer(node.preferred or [], problems)
    for key in [key for key, _ in selectors if not _LABEL.fullmatch(key)][:1]:
        problems.append(NotHonoured("spec.nodeSelector", f"the key {key[:40]}… is longer than 127 characters"))
        selectors = ()
    near, apart = _near(pod, own, problems), _apart(pod, own, gang, problems)
    problems += _of_volumes(spec)
    if spec.resource_claims:
        problems.append(NotHonoured("spec.resourceClaims", "devices of claims are allocated by kube-scheduler"))
    needs = Needs(resources, selectors, where, prefer, _tolerations(spec.tolerations or [], problems), near, apart)
    return needs, tuple(problems)


def soft_fields(pod: Pod, own: Collection[str] = ()) -> list[str]:
    """Return preferences of a pod that are not considered. The pod is bound nevertheless."""
    found: list[str] = []
    affinity = pod.spec.affinity or Affinity()
    for name, terms in (("podAffinity", affinity.pod_affinity), ("podAntiAffinity", affinity.pod_anti_affinity)):
        for at, term in enumerate(terms.preferred or () if terms is not None else ()):
            if name == "podAntiAffinity" or not _means_own(term.pod_affinity_term, pod, own):
                found.append(f"spec.affinity.{name}.{PREFERRED}[{at}]")
    for at, constraint in enumerate(pod.spec.topology_spread_constraints or ()):
        if constraint.when_unsatisfiable == "ScheduleAnyway":
            found.append(f"spec.topologySpreadConstraints[{at}]")
    return found


# -- conditions on nodes -----------------------------------------------------------------------------------------


def _without_own(pod: Pod, required: NodeSelector | None) -> list[NodeTerm] | None:
    """Return the terms of a pod's required node affinity without the condition that Fairlead added to them.

    It was added when the gate of the pod was removed. With it, the pod would differ from the other pods of its group.
    None if no other condition is left."""
    kept_off = pod.metadata.annotation(names.KEPT_OFF)
    if required is None:
        return None
    terms = required.node_selector_terms or []
    if not kept_off:
        return terms
    own = Expression(names.HOSTNAME, "NotIn", kept_off.split(","))
    left = [
        NodeTerm([each for each in term.match_expressions or () if each != own], term.match_fields) for term in terms
    ]
    return None if left == [NodeTerm([])] else left


def _where(terms: Sequence[NodeTerm], field: str, problems: list[NotHonoured]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    if len(terms) > MAX_TERMS:
        problems.append(NotHonoured(field, f"it has {len(terms)} terms, at most {MAX_TERMS} are read"))
        return ()
    for at, term in enumerate(terms):
        text = _term(term, f"{field}.nodeSelectorTerms[{at}]", problems)
        if text:
            found[text] = None
    return tuple(sorted(found)) or (NOWHERE,)


def _prefer(terms: Sequence[PreferredNodeTerm], problems: list[NotHonoured]) -> tuple[tuple[str, int], ...]:
    weights: dict[str, int] = {}
    for at, preferred in enumerate(terms[:MAX_TERMS]):
        field = f"spec.affinity.nodeAffinity.{PREFERRED}[{at}]"
        text = _term(preferred.preference, field, problems)
        if text and preferred.weight > 0:
            weights[text] = min(weights.get(text, 0) + preferred.weight, MAX_WEIGHT)
    return tuple(sorted(weights.items()))


def _term(term: NodeTerm, field: str, problems: list[NotHonoured]) -> str:
    """Return a term as a condition; empty if no node can meet it."""
    parts: list[str] = []
    fields = [("matchExpressions", each) for each in term.match_expressions or ()]
    fields += [("matchFields", each) for each in term.match_fields or ()]
    for kind, expression in fields:
        if kind == "matchFields" and expression.key != NODE_NAME:
            problems.append(NotHonoured(f"{field}.{kind}", f"there is no field {expression.key}"))
            return ""
        text = _expression(expression)
        if text is None:
            problem = f"{expression.operator} on {expression.key[:40]} cannot be expressed"
            problems.append(NotHonoured(f"{field}.{kind}", problem))
            return ""
        if not text:
            return ""
        if text not in parts:
            parts.append(text)
    if len(parts) > MAX_LABELS:
        problems.append(NotHonoured(field, f"it has {len(parts)} expressions, at most {MAX_LABELS} are read"))
        return ""
    return ", ".join(sorted(parts))


def _expression(expression: Expression) -> str | None:
    """Return an expression as text: empty if it can never hold, None if it cannot be expressed."""
    key, values = expression.key, expression.values or []
    if not _LABEL.fullmatch(key):
        return None
    match expression.operator:
        case "In" | "NotIn":
            # A value that cannot be written is not a valid label value either.
            possible = sorted({value for value in values if _VALUE.fullmatch(value)})
            if expression.operator == "In":
                return f"{key} in ({','.join(possible)})" if possible else ""
            return f"{key} notin ({','.join(possible)})" if possible else None
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{key}"
        case "Gt" | "Lt":
            if len(values) != 1 or not _NUMBER.fullmatch(values[0]):
                return None
            return f"{key} {'>' if expression.operator == 'Gt' else '<'} {int(values[0])}"
    return None


# -- tolerations -------------------------------------------------------------------------------------------------


def taint_text(key: str, value: str, effect: str) -> str:
    """Return a node's taint as the core writes it."""
    return f"{key}={value}:{effect}"


def _tolerations(tolerations: Sequence[Toleration], problems: list[NotHonoured]) -> tuple[str, ...]:
    """Return tolerations as the taints that they tolerate, with a star for any value or effect."""
    found: dict[str, None] = {}
    for at, toleration in enumerate(tolerations):
        effect, operator = toleration.effect, toleration.operator or "Equal"
        if operator == "Exists":
            start = f"{toleration.key}=" if toleration.key else ""
            found[f"{start}*:{effect}" if effect else f"{start}*"] = None
        elif operator == "Equal":
            found[taint_text(toleration.key, toleration.value, effect or "*")] = None
        else:
            problems.append(NotHonoured(f"spec.tolerations[{at}].operator", f"{operator} compares values of taints"))
    if len(found) > MAX_LABELS:
        problems.append(NotHonoured("spec.tolerations", f"it has {len(found)}, at most {MAX_LABELS} are read"))
    return tuple(sorted(found))[:MAX_LABELS]


# -- terms about other pods --------------------------------------------------------------------------------------


def _near(pod: Pod, own: Collection[str], problems: list[NotHonoured]) -> str:
    """Return the topology key of the preferred affinity to pods of the same stage with the highest weight."""
    affinity = (pod.spec.affinity or Affinity()).pod_affinity or PodAffinity()
    if affinity.required:
        problems.append(
            NotHonoured(
                f"spec.affinity.podAffinity.{REQUIRED}", "required affinity to other pods is left to kube-scheduler"
            )
        )
    terms = [
        each for each in affinity.preferred or () if each.weight > 0 and _means_own(each.pod_affinity_term, pod, own)
    ]
    preferred = pod.metadata.annotation(names.KUEUE_PREFERRED)
    if _LABEL.fullmatch(preferred):
        return preferred
    terms = [each for each in terms if _LABEL.fullmatch(each.pod_affinity_term.topology_key)]
    return max(terms, key=lambda term: term.weight).pod_affinity_term.topology_key if terms else ""


def _apart(pod: Pod, own: Collection[str], gang: bool, problems: list[NotHonoured]) -> bool:
    """True if the pods of the same stage have to run on different nodes."""
    apart = False
    affinity = (pod.spec.affinity or Affinity()).pod_anti_affinity or PodAffinity()
    for at, term in enumerate(affinity.required or ()):
        if term.topology_key == names.HOSTNAME and _means_own(term, pod, own):
            apart = True
        else:
            field = f"spec.affinity.podAntiAffinity.{REQUIRED}[{at}]"
            why = f"only pods of the same Job are kept apart, and only by {names.HOSTNAME}"
            problems.append(NotHonoured(field, why))
    for at, spread in enumerate(pod.spec.topology_spread_constraints or ()):
        if spread.when_unsatisfiable != "DoNotSchedule":
            continue
        term = PodTerm(spread.topology_key, spread.label_selector, match_label_keys=spread.match_label_keys)
        if gang and spread.topology_key == names.HOSTNAME and _means_own(term, pod, own):
            apart = True
        else:
            why = f"only gangs are spread, each over nodes by {names.HOSTNAME}"
            problems.append(NotHonoured(f"spec.topologySpreadConstraints[{at}]", why))
    return apart


def _means_own(term: PodTerm, pod: Pod, own: Collection[str]) -> bool:
    """True if a term selects the pods of the same stage and no others."""
    others = term.namespace_selector is not None or term.mismatch_label_keys
    namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
    if others or list(term.namespaces or [namespace]) != [namespace]:
        return False
    selector = term.label_selector or LabelSelector()
    named = [*(selector.match_labels or ()), *(term.match_label_keys or ())]
    for each in selector.match_expressions or ():
        if each.operator == "In" and len(each.values or ()) == 1:
            named.append(each.key)
    return selects(selector, labels) and not set(own).isdisjoint(labels.keys() & named)


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """True if a label selector holds for these labels. An empty selector holds for all."""
    for key, value in (selector.match_labels or {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.match_expressions or ():
        has, values = labels.get(expression.key), expression.values or []
        holds = {
            "In": has in values,
            "NotIn": has not in values,
            "Exists": has is not None,
            "DoesNotExist": has is None,
        }.get(expression.operator, False)
        if not holds:
            return False
    return True


# -- volumes -----------------------------------------------------------------------------------------------------

HARMLESS = frozenset(
    "configMap secret emptyDir downwardAPI projected hostPath nfs image gitRepo cephfs glusterfs".split()
)
"""Volumes that are the same on every node."""


def _of_volumes(spec: PodSpec) -> Iterator[NotHonoured]:
    for at, volume in enumerate(spec.volumes or ()):
        kind = next((key for key in volume if key != "name"), "emptyDir")
        if kind not in HARMLESS:
            why = {
                "persistentVolumeClaim": "where the volume is or will be is left to kube-scheduler",
                "ephemeral": "the volume is made where kube-scheduler decides",
            }.get(kind, "where the volume can be attached is left to kube-scheduler")
            yield NotHonoured(f"spec.volumes[{at}].{kind}", why)
