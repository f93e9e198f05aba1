"""The calls that the adapter makes, as RBAC rules. The ClusterRole in `deploy/kubernetes/` and the code must match
them."""

from __future__ import annotations

import msgspec

WATCH = ("list", "watch")


class Rule(msgspec.Struct, frozen=True):
    """Verbs on a resource. `optional` if the resource may not exist in a cluster."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    optional: bool = False


CLUSTER_RULES: tuple[Rule, ...] = (
    Rule("", "nodes", WATCH, "the nodes and their capacity"),
    Rule("", "pods", ("delete", "get", "list", "watch"), "pods, and those of killed jobs"),
    Rule("", "pods/binding", ("create",), "bind a pod"),
    Rule("", "pods/eviction", ("create",), "preempt a pod, within disruption budgets"),
    Rule("", "pods/status", ("patch",), "the condition PodScheduled and the nominated node"),
    Rule("", "podtemplates", ("create",), "the pods of a gang that nodes are requested for"),
    Rule(
        "autoscaling.x-k8s.io", "provisioningrequests", ("create", "delete", "list"), "nodes for a gang", optional=True
    ),
    Rule("batch", "jobs", WATCH, "the size of a Job"),
    Rule("events.k8s.io", "events", ("create",), "reasons for waiting"),
    Rule("policy", "poddisruptionbudgets", WATCH, "pods that must not be evicted now"),
    Rule("resource.k8s.io", "deviceclasses", WATCH, "resources that are devices", optional=True),
    Rule("scheduling.k8s.io", "priorityclasses", WATCH, "priorities of groups"),
    Rule("scheduling.k8s.io", "podgroups", WATCH, "gangs of Kubernetes", optional=True),
    Rule("scheduling.x-k8s.io", "podgroups", WATCH, "gangs of scheduler-plugins", optional=True),
    Rule("scheduling.volcano.sh", "podgroups", ("list", "patch", "watch"), "gangs of Volcano", optional=True),
    Rule("batch.volcano.sh", "jobs", WATCH, "the scheduler of a Job of Volcano", optional=True),
    Rule("fairlead.dev", "queues", ("create", "delete", "list", "patch"), "copies of the queues"),
    Rule("jobset.x-k8s.io", "jobsets", WATCH, "the parts of a JobSet", optional=True),
)
"""Rules for the whole cluster."""

ADMISSION_RULES: tuple[Rule, ...] = (
    Rule("", "pods", ("patch",), "remove the gate"),
    Rule("batch", "jobs", ("patch",), "start suspended Jobs of Kueue"),
    Rule("jobset.x-k8s.io", "jobsets", ("patch",), "start suspended JobSets of Kueue", optional=True),
)
"""Rules for the namespaces whose pods have the gate."""

LEASE_RULES: tuple[Rule, ...] = (Rule("coordination.k8s.io", "leases", ("create", "get", "update"), "leader election"),)
"""Rules for the namespace of the adapter."""


def resource_of(path: str) -> tuple[str, str]:
    """Return the API group and the resource of a path, as in RBAC; a subresource is `pods/status`."""
    parts = path.partition("?")[0].strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return group, "/".join([rest[0], *rest[2:3]])
