"""Objects of the Kubernetes API, with only the fields that Fairlead reads or writes.

Unknown fields are ignored when an object is read. Fields that a server may send as null have `None` in their type: the
object of a BOOKMARK event has no name, and `containers: null`.
Layout: metadata, pods, nodes, Jobs and JobSets, groups, other objects.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class Object(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """Base of all objects: camelCase names on the wire; defaults are left out when written."""


Quantities: TypeAlias = dict[str, str | int | float]
"""Amounts by resource name, as Kubernetes writes them; `quantities.py` reads them."""

Labels: TypeAlias = dict[str, str]

# -- metadata ----------------------------------------------------------------------------------------------------


class OwnerReference(Object):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Meta(Object):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: Labels | None = None
    annotations: Labels | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None

    def label(self, key: str) -> str:
        """Return the value of a label; empty if it is missing."""
        return (self.labels or {}).get(key, "")

    def annotation(self, key: str) -> str:
        """Return the value of an annotation; empty if it is missing."""
        return (self.annotations or {}).get(key, "")

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that controls this object, if any."""
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class Named(Object):
    """Base of objects that have a name of their own."""

    metadata: Meta = msgspec.field(default_factory=Meta)


# -- pods --------------------------------------------------------------------------------------------------------


class Requirements(Object):
    requests: Quantities | None = None
    limits: Quantities | None = None
    claims: list[dict[str, Any]] | None = None


class Port(Object):
    host_port: int = 0
    container_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class Container(Object):
    name: str = ""
    image: str = ""
    resources: Requirements | None = None
    ports: list[Port] | None = None
    restart_policy: str = ""


class Expression(Object):
    """A requirement on a label. Node selectors also have the operators Gt and Lt."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Object):
    match_labels: Labels | None = None
    match_expressions: list[Expression] | None = None


class NodeTerm(Object):
    """Expressions that must all hold. A term without expressions matches no node."""

    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(Object):
    """Terms, of which at least one must hold."""

    node_selector_terms: list[NodeTerm] | None = None


class PreferredNodeTerm(Object):
    weight: int = 0
    preference: NodeTerm = msgspec.field(default_factory=NodeTerm)


REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


class NodeAffinity(Object):
    required: NodeSelector | None = msgspec.field(default=None, name=REQUIRED)
    preferred: list[PreferredNodeTerm] | None = msgspec.field(default=None, name=PREFERRED)


class PodTerm(Object):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPodTerm(Object):
    weight: int = 0
    pod_affinity_term: PodTerm = msgspec.field(default_factory=PodTerm)


class PodAffinity(Object):
    """Affinity to pods, or anti-affinity."""

    required: list[PodTerm] | None = msgspec.field(default=None, name=REQUIRED)
    preferred: list[PreferredPodTerm] | None = msgspec.field(default=None, name=PREFERRED)


class Affinity(Object):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Object):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class SpreadConstraint(Object):
    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: list[str] | None = None


class Gate(Object):
    name: str


class SchedulingGroup(Object):
    """The upstream reference to a PodGroup (`scheduling.k8s.io`)."""

    pod_group_name: str = ""


class PodSpec(Object):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: list[Gate] | None = None
    scheduling_group: SchedulingGroup | None = None
    node_selector: Labels | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    overhead: Quantities | None = None
    resources: Requirements | None = None
    volumes: list[dict[str, msgspec.Raw]] | None = None
    resource_claims: list[dict[str, Any]] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""


class Condition(Object):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Terminated(Object):
    reason: str = ""


class ContainerState(Object):
    terminated: Terminated | None = None


class ContainerStatus(Object):
    name: str = ""
    allocated_resources: Quantities | None = None
    """What the kubelet has granted. It differs from the request while a container is resized in place."""
    state: ContainerState | None = None

    @property
    def out_of_memory(self) -> bool:
        """True if the container was killed because it used more memory than its limit, or than its node had."""
        ended = self.state.terminated if self.state is not None else None
        return ended is not None and ended.reason == "OOMKilled"


class PodStatus(Object):
    phase: str = ""
    reason: str = ""
    """Why the kubelet refused or ended the pod; empty if its containers ended by themselves."""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    nominated_node_name: str = ""


PAST_DEADLINE = "DeadlineExceeded"
"""Reason of a pod that has run for its `activeDeadlineSeconds`. That is its own limit, so it ended by itself."""


class Pod(Named):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def ended(self) -> bool:
        """True if all containers have ended for good; such a pod uses nothing."""
        return self.status.phase in ("Succeeded", "Failed")

    def refused(self, nominated: str) -> str:
        """Return the message of a scheduler that cannot bind this pod. Empty if it frees capacity by preemption, on
        another node than the one that Fairlead has nominated."""
        if self.status.nominated_node_name not in ("", nominated):
            return ""
        found = self._condition("PodScheduled", "False")
        return found.message or found.reason if found is not None and found.reason == "Unschedulable" else ""

    @property
    def disrupted(self) -> str:
        """Why the cluster removes or has ended this pod: its node failed, shut down or is tainted, or the pod was
        evicted, refused by its kubelet, or out of memory. Empty if none of this applies."""
        found = self._condition("DisruptionTarget", "True")
        if found is not None:
            return found.message or found.reason or found.type
        status = self.status
        if status.phase != "Failed":
            return ""
        if status.reason and status.reason != PAST_DEADLINE:
            return status.message or status.reason
        killed = next((each for each in status.container_statuses or () if each.out_of_memory), None)
        return f"container {killed.name} was killed: out of memory" if killed is not None else ""

    def _condition(self, kind: str, status: str) -> Condition | None:
        found = (each for each in self.status.conditions or () if each.type == kind and each.status == status)
        return next(found, None)


# -- nodes -------------------------------------------------------------------------------------------------------


class Taint(Object):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Object):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Object):
    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None


class Node(Named):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


# -- Jobs and JobSets ----------------------------------------------------------------------------------------------


class PodTemplate(Named):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)


class JobSpec(Object):
    suspend: bool | None = None
    template: PodTemplate = msgspec.field(default_factory=PodTemplate)
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = "NonIndexed"


class Job(Named):
    """A Job of `batch/v1`."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)


class ReplicatedJob(Object):
    name: str = ""
    replicas: int = 1
    template: Job = msgspec.field(default_factory=Job)
    depends_on: list[dict[str, Any]] | None = None


class JobSetSpec(Object):
    suspend: bool | None = None
    replicated_jobs: list[ReplicatedJob] | None = None
    startup_policy: dict[str, Any] | None = None


class JobSet(Named):
    """A JobSet of `jobset.x-k8s.io`."""

    spec: JobSetSpec = msgspec.field(default_factory=JobSetSpec)


# -- groups ------------------------------------------------------------------------------------------------------


class GangPolicy(Object):
    min_count: int = 0


class GroupPolicy(Object):
    """The policy of an upstream PodGroup. Without `gang`, its pods start one by one."""

    gang: GangPolicy | None = None


class PodGroupSpec(Object):
    """The fields of the PodGroups of all three API groups."""

    # scheduling.k8s.io
    scheduling_policy: GroupPolicy | None = None
    scheduling_constraints: dict[str, Any] | None = None
    parent_composite_pod_group_name: str | None = None
    resource_claims: list[dict[str, Any]] | None = None
    priority: int | None = None
    preemption_policy: str = ""
    # scheduling.k8s.io and scheduling.volcano.sh
    priority_class_name: str = ""
    # scheduling.x-k8s.io and scheduling.volcano.sh
    min_member: int | None = None
    # scheduling.volcano.sh
    queue: str = ""
    min_task_member: dict[str, int] | None = None
    network_topology: dict[str, Any] | None = None


class PodGroupStatus(Object):
    phase: str = ""


class PodGroup(Named):
    """A PodGroup of `scheduling.k8s.io`, `scheduling.x-k8s.io` or `scheduling.volcano.sh`."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
    status: PodGroupStatus = msgspec.field(default_factory=PodGroupStatus)


class VolcanoJobSpec(Object):
    scheduler_name: str = ""


class VolcanoJob(Named):
    """A Job of `batch.volcano.sh`."""

    spec: VolcanoJobSpec = msgspec.field(default_factory=VolcanoJobSpec)


class DeviceClassSpec(Object):
    extended_resource_name: str | None = None


class DeviceClass(Named):
    """A DeviceClass of `resource.k8s.io`."""

    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)


# -- other objects -----------------------------------------------------------------------------------------------


class PriorityClass(Named):
    value: int = 0
    preemption_policy: str = "PreemptLowerPriority"


class BudgetSpec(Object):
    selector: LabelSelector | None = None


class BudgetStatus(Object):
    disruptions_allowed: int = 0


class DisruptionBudget(Named):
    """A PodDisruptionBudget of `policy/v1`."""

    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


class LeaseSpec(Object):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Named):
    """A Lease of `coordination.k8s.io/v1`, for leader election."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class Status(Object):
    """The answer to a refused call, and the object of an ERROR event."""

    code: int = 0
    message: str = ""


def message_of(content: bytes) -> str:
    """Return the message of a refusal; empty if it has none."""
    try:
        return msgspec.json.decode(content, type=Status).message
    except msgspec.DecodeError:
        return ""
