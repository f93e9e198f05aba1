"""Groups: which pods form one job, how many of them start together, and the queue, user and priority of the job.

`membership` reads only the pod, so a pod can be put into its group at once. `group_of` needs the objects that describe
groups: Jobs, JobSets, PodGroups and PriorityClasses, which `GroupObjects` keeps in short form. Layout: membership, the
objects, groups, and the readers of each manifest's fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from fairlead.kubernetes import names
from fairlead.kubernetes.names import PLUGINS, SCHEDULING, VOLCANO, resource_name, short_name
from fairlead.kubernetes.objects import (
    DeviceClass,
    GangPolicy,
    GroupPolicy,
    Job,
    JobSet,
    Meta,
    Object,
    Pod,
    PodGroup,
    PodSpec,
    PriorityClass,
    VolcanoJob,
)
from fairlead.kubernetes.pods import Needs, NotHonoured, read_needs, soft_fields
from fairlead.kubernetes.rules import Rules

# -- membership --------------------------------------------------------------------------------------------------


class Membership(msgspec.Struct, frozen=True, gc=False):
    """The group of a pod, and the pod's place in it."""

    kind: str
    """Pod, Job, JobSet, or the kind of group."""
    namespace: str
    name: str
    uid: str = ""
    """The uid of the Job or of a single pod. Other groups are identified by name only."""
    part: str = ""
    """The name of the pod's part of the group; empty if parts have no names."""
    index: int | None = None
    """The pod's index in an indexed Job."""
    own: tuple[str, ...] = ()
    """Labels whose values are shared only by pods of the same part."""

    @property
    def key(self) -> str:
        return "/".join([self.kind, self.namespace, self.name, self.uid])

    @property
    def job(self) -> str:
        """The id of the group's job: readable, and the same in every process."""
        return short_name(f"{self.namespace}.{self.name}", distinct=self.key)


def membership(pod: Pod) -> Membership:
    """Return the group of a pod. Explicit groups come before the objects that own the pod."""
    meta, namespace = pod.metadata, pod.metadata.namespace
    own = tuple(key for key in (*names.JOB_NAME, *names.JOB_UID) if meta.label(key))
    for kind, name_of, part in _EXPLICIT:
        if name := name_of(pod):
            return Membership(kind, namespace, name, part=_either(meta, part), own=own)
    owner = meta.controller
    if owner is not None and owner.kind == "Job" and owner.api_version.startswith("batch/"):
        index = _either(meta, names.JOB_INDEX)
        return Membership(
            "Job", namespace, owner.name, owner.uid, index=int(index) if index.isdigit() else None, own=own
        )
    return Membership("Pod", namespace, meta.name, meta.uid)


def application(meta: Meta) -> str:
    """Return the id of a YuniKorn application; empty if there is none."""
    return _first(meta, names.YUNIKORN_APP)


def _first(meta: Meta, keys: Iterable[str]) -> str:
    """Return the value of the first of some labels or annotations that an object has; empty if it has none."""
    return next((value for key in keys if (value := _either(meta, key))), "")


def _either(meta: Meta, key: str) -> str:
    """Return the value of a label or annotation; empty if the object has neither."""
    return meta.label(key) or meta.annotation(key)


_EXPLICIT: tuple[tuple[str, Callable[[Pod], str], str], ...] = (
    ("Group", lambda pod: _either(pod.metadata, names.GROUP), names.PART),
    (SCHEDULING, lambda pod: pod.spec.scheduling_group.pod_group_name if pod.spec.scheduling_group else "", ""),
    (PLUGINS, lambda pod: pod.metadata.label(names.POD_GROUP) or pod.metadata.label(names.POD_GROUP_OLD), names.PART),
    (
        VOLCANO,
        lambda pod: pod.metadata.annotation(names.GROUP_NAME) or pod.metadata.annotation(names.VOLCANO_GROUP),
        names.VOLCANO_PART,
    ),
    ("Koordinator", lambda pod: _first(pod.metadata, names.KOORDINATOR_GANG), names.PART),
    ("Application", lambda pod: application(pod.metadata), names.YUNIKORN_TASK_GROUP),
    ("Kueue", lambda pod: pod.metadata.label(names.KUEUE_GROUP), names.PART),
    ("JobSet", lambda pod: pod.metadata.label(names.JOBSET_NAME), names.JOBSET_PART),
)
"""Kinds of groups that a pod names, in their order: how to read the name, and the key of the pod's part."""

# -- the objects -------------------------------------------------------------------------------------------------


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What is kept of an object that describes a group. `marks` are its labels and annotations that Fairlead reads."""

    marks: dict[str, str] = {}
    minimum: int = 0
    """Number of pods that start together; 0 if they start one by one, or if the object does not say."""
    pods: int = 0
    """Number of pods that a Job or JobSet runs at once."""
    parts: dict[str, int] = {}
    whole: bool = True
    """False if the parts start one after the other."""
    queue: str = ""
    priority: int | None = None
    priority_class: str = ""
    preempts: bool = True
    problems: tuple[NotHonoured, ...] = ()


VOLCANO_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/podgroups"
Follow = tuple[str, type[Object], Callable[[Any], None], Callable[[str], None]]


class GroupObjects:
    """The objects that describe groups. `touched` is called with the keys of groups whose object changed."""

    def __init__(self, touched: Callable[[Iterable[str]], None] = lambda keys: None) -> None:
        self.touched = touched
        self._facts: dict[tuple[str, str, str], tuple[str, Facts]] = {}
        """Kind, namespace and name → uid and facts of the object that has this name now."""
        self._keys: dict[str, tuple[str, str, str]] = {}
        """Uid → kind, namespace and name."""
        self.suspended: dict[str, tuple[str, str, str, PodSpec]] = {}
        """Suspended Jobs and JobSets of Kueue, by uid: path, namespace, name, and what their pods are like."""
        self.pending: dict[str, tuple[str, str]] = {}
        """Volcano's PodGroups that wait for their scheduler: uid of the Job → namespace and name."""
        self.volcano_jobs: dict[str, str] = {}
        """Volcano's Jobs: uid → name of their scheduler."""
        self._device_classes: dict[str, tuple[str, str]] = {}
        """DeviceClasses that offer a resource: uid → name and resource."""
        self.classes: dict[str, PriorityClass] = {}
        """Priority classes by name."""
        self.asks: dict[str, tuple[str, Needs]] = {}
        """Ask → the part and the needs of its pods. Equal asks of different groups share an entry."""
        self._names: dict[tuple[str, Needs], str] = {}
        self._succeeded: dict[str, tuple[str, tuple[str, str]]] = {}
        """Pods that have succeeded → key of their group, and their part and controller."""
        self._counts: dict[str, Counter[tuple[str, str]]] = {}
        """Key of a group → part and controller → number of pods that have succeeded."""

    def followed(self) -> list[Follow]:
        """Return what to watch: path, type, and the functions to call with each changed object and each removed uid."""

        def follow(path: str, kind: str, of: type[Object], read: Callable[[Any], Facts]) -> Follow:
            def put(found: Any) -> None:
                self.put(kind, found, read(found))
                self._note_start(path, found)

            return path, of, put, self.drop

        return [
            follow("/apis/batch/v1/jobs", "Job", Job, read_job),
            follow("/apis/jobset.x-k8s.io/v1alpha2/jobsets", "JobSet", JobSet, read_job_set),
            follow("/apis/scheduling.k8s.io/v1beta1/podgroups", SCHEDULING, PodGroup, read_upstream),
            follow("/apis/scheduling.x-k8s.io/v1alpha1/podgroups", PLUGINS, PodGroup, read_plugins),
            follow(VOLCANO_GROUPS, VOLCANO, PodGroup, read_volcano),
            ("/apis/scheduling.k8s.io/v1/priorityclasses", PriorityClass, self._put_class, self._drop_class),
            ("/apis/resource.k8s.io/v1/deviceclasses", DeviceClass, self._put_devices, self._drop_devices),
            ("/apis/batch.volcano.sh/v1alpha1/jobs", VolcanoJob, self._put_volcano_job, self._drop_volcano_job),
        ]

    def _note_start(self, path: str, found: Any) -> None:
        """Record an object whose controller makes no pods until its scheduler says so."""
        meta: Meta = found.metadata
        if isinstance(found, Job | JobSet):
            templates = (
                [found.spec.template]
                if isinstance(found, Job)
                else [each.template.spec.template for each in found.spec.replicated_jobs or ()]
            )
            if found.spec.suspend and meta.label(names.KUEUE_QUEUE) and templates:
                self.suspended[meta.uid] = path, meta.namespace, meta.name, templates[0].spec
            else:
                self.suspended.pop(meta.uid, None)
        elif path == VOLCANO_GROUPS and meta.controller is not None:
            if found.status.phase in ("", "Pending"):
                self.pending[meta.controller.uid] = meta.namespace, meta.name
            else:
                self.pending.pop(meta.controller.uid, None)

    def classes_of_devices(self, resources: Iterable[str]) -> dict[str, str]:
        """Return which of some resources are devices of a DeviceClass, with its name."""
        if not self._device_classes:
            return {}
        offered = {resource_name(resource): name for name, resource in self._device_classes.values()}
        return {name: offered[name] for name in resources if name in offered}

    def _put_devices(self, found: DeviceClass) -> None:
        if found.spec.extended_resource_name:
            self._device_classes[found.metadata.uid] = found.metadata.name, found.spec.extended_resource_name

    def _drop_devices(self, uid: str) -> None:
        self._device_classes.pop(uid, None)

    def _put_volcano_job(self, found: VolcanoJob) -> None:
        self.volcano_jobs[found.metadata.uid] = found.spec.scheduler_name

    def _drop_volcano_job(self, uid: str) -> None:
        self.volcano_jobs.pop(uid, None)

    def put(self, kind: str, found: Any, facts: Facts) -> None:
        meta: Meta = found.metadata
        key = (kind, meta.namespace, meta.name)
        _, before = self._facts.get(key, ("", None))
        self._keys[meta.uid] = key
        self._facts[key] = meta.uid, facts
        if before != facts:
            self.touched([_group_key(key, meta.uid)])

    def drop(self, uid: str) -> None:
        self.suspended.pop(uid, None)
        key = self._keys.pop(uid, None)
        if key is not None and self._facts.get(key, ("", None))[0] == uid:
            del self._facts[key]
            self.touched([_group_key(key, uid)])

    def put_succeeded(self, pod: Pod) -> None:
        """Count a pod that has succeeded for the minimum of its gang."""
        belongs, uid = membership(pod), pod.metadata.uid
        if belongs.kind != "Pod" and uid not in self._succeeded:
            entry = self._succeeded[uid] = belongs.key, (belongs.part, _controller(pod))
            self._counts.setdefault(entry[0], Counter())[entry[1]] += 1
            self.touched([belongs.key])

    def drop_succeeded(self, uid: str) -> None:
        """Forget a pod that had succeeded."""
        key, entry = self._succeeded.pop(uid, ("", ("", "")))
        if key:
            self._counts[key][entry] -= 1
            if not self._counts[key].total():
                del self._counts[key]

    def succeeded(self, member: Membership, pods: Sequence[Pod]) -> Counter[str]:
        """Return how many pods of each part of a group have succeeded: of the controllers of these pods, because a
        later run of other controllers may have the name of the group. Jobs and JobSets have pods of one run only."""
        found: Counter[str] = Counter()
        counts = self._counts.get(member.key)
        if counts:
            controllers = {_controller(pod) for pod in pods} - {""}
            for (part, controller), count in counts.items():
                if member.kind in ("Job", "JobSet") or controller in controllers:
                    found[part] += count
        return found

    def find(self, kind: str, namespace: str, name: str) -> Facts | None:
        return self._facts.get((kind, namespace, name), ("", None))[1]

    def ask(self, part: str, needs: Needs) -> str:
        """Return the name of the ask for pods of this part with these needs. It is the same in every process."""
        name = self._names.get((part, needs))
        if name is None:
            digest = blake2b(repr((part, needs)).encode(), digest_size=5).hexdigest()
            name = self._names[part, needs] = f"{short_name(part or 'main')[:40]}-{digest}"
            self.asks[name] = (part, needs)
        return name

    def keep_asks(self, used: Container[str]) -> None:
        """Forget asks that are no longer used, so that memory stays bounded."""
        self.asks = {name: entry for name, entry in self.asks.items() if name in used}
        self._names = {entry: name for name, entry in self.asks.items()}

    def _put_class(self, found: PriorityClass) -> None:
        self.classes[found.metadata.name] = found

    def _drop_class(self, uid: str) -> None:
        self.classes = {name: each for name, each in self.classes.items() if each.metadata.uid != uid}


def _controller(pod: Pod) -> str:
    owner = pod.metadata.controller
    return owner.uid if owner is not None else ""


def _group_key(key: tuple[str, str, str], uid: str) -> str:
    """Return the key of the group that an object describes."""
    kind, namespace, name = key
    return Membership(kind, namespace, name, uid if kind == "Job" else "").key


# -- groups ------------------------------------------------------------------------------------------------------


class Group(msgspec.Struct):
    """Pods that become one job."""

    member: Membership
    objects: GroupObjects
    facts: Facts
    queue: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()
    priority: int = 0
    preempts: bool = True
    preemptible: bool = True
    estimate: str = ""
    on_loss: str = ""
    ignored: tuple[str, ...] = ()
    """Preferences of the pods that are not considered."""
    succeeded: Counter[str] = msgspec.field(default_factory=Counter)
    """Part → number of pods that have succeeded. They count for the minimum."""
    waits_for: str = ""
    """Why the group is not asked for yet; empty if it can be."""

    @property
    def is_gang(self) -> bool:
        """True if all parts of the group start together."""
        return self.facts.minimum > 1 and self.facts.whole

    @property
    def follows_loss(self) -> bool:
        """True if the loss of a pod affects the others. With `replace`, the controller only makes another pod."""
        return self.on_loss not in ("", "replace")

    def needs_of(self, pod: Pod, gated: bool = False) -> Needs | tuple[NotHonoured, ...]:
        """Return what a pod needs, or the fields that are not honoured.

        For a gated pod, fields that cannot be expressed are left out: the cluster's own scheduler binds it and honours
        them.
        """
        topology = pod.metadata.annotation(names.KUEUE_REQUIRED)
        if topology:  # no other scheduler honours it either
            field = f"annotation {names.KUEUE_REQUIRED}"
            return (NotHonoured(field, f"a gang is not kept within one {topology}; podset-preferred-topology is"),)
        needs, problems = read_needs(pod, self.member.own, self.is_gang)
        problems = (*self.facts.problems, *problems)
        by_class = self.objects.classes_of_devices(name for name, _ in needs.resources)
        if by_class and gated:
            needs = msgspec.structs.replace(
                needs, resources=tuple(entry for entry in needs.resources if entry[0] not in by_class)
            )
        for resource, device_class in by_class.items():
            why = f"devices of the DeviceClass {device_class} are allocated by kube-scheduler"
            problems = (*problems, NotHonoured(f"spec.containers.resources {resource}", why))
        return problems if problems and not gated else needs

    def stages(self, counts: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return the stages of asks with these numbers of pods."""
        least = self.minimum(counts)
        common = {"estimate": self.estimate, "on_loss": self.on_loss}
        common = {key: value for key, value in common.items() if value}
        return [
            {"name": ask, "count": count, "min": least[ask], **self.objects.asks[ask][1].keys(), **common}
            for ask, count in counts.items()
        ]

    def minimum(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return how many pods of each ask start together, from the minimum of its part or of the group.

        If the minimum is below the number of pods, the asks that were seen first count for it. Every ask needs at least
        one pod, so a group may need more pods than its object says, never fewer.
        """
        left = {part: count - self.succeeded[part] for part, count in self.facts.parts.items()}
        left = left or {"": self.facts.minimum - self.succeeded.total()}
        least: dict[str, int] = {}
        for ask, count in counts.items():
            part = self.objects.asks[ask][0] if self.facts.parts else ""
            least[ask] = max(1, min(count, left.get(part, 0)))
            left[part] = left.get(part, 0) - least[ask]
        return least

    def job_item(self) -> dict[str, Any]:
        """Return the item that adds the job, without its stages."""
        labels = {"namespace": self.member.namespace, "kind": self.member.kind}
        if self.ignored:
            labels["not-considered"] = ", ".join(self.ignored)[:1_000]
        item: dict[str, Any] = {
            "job": self.member.job,
            "name": short_name(self.member.name),
            "user": short_name(self.user),
            "labels": labels,
        }
        optional: dict[str, Any] = {
            "groups": [short_name(name) for name in self.groups],
            "queue": self.queue,
            "priority": self.priority,
        }
        item |= {key: value for key, value in optional.items() if value}
        return item | {key: False for key in ("preempts", "preemptible") if not getattr(self, key)}


def group_of(member: Membership, pods: Sequence[Pod], objects: GroupObjects, rules: Rules) -> Group:
    """Return the group of pods. Where pods differ in a field, the first pod that has it counts."""
    facts, missing = _facts(member, pods, objects)
    succeeded = objects.succeeded(member, pods)
    metas = [pod.metadata for pod in pods]
    first = pods[0].spec if pods else PodSpec()
    priority_class = objects.classes.get(facts.priority_class or first.priority_class_name)
    marks = [*(meta.annotations or {} for meta in metas[:1]), *(meta.labels or {} for meta in metas[:1]), facts.marks]
    user, groups = _user(metas, rules) or (member.namespace or "kubernetes", ())
    return Group(
        member,
        objects,
        facts,
        queue=rules.queue(member.namespace, _queue_name(metas, facts)),
        user=user,
        groups=groups,
        priority=_priority(facts, first, priority_class),
        preempts=facts.preempts and _preemption_policy(facts, first, priority_class) != "Never",
        preemptible=_is_preemptible(marks),
        estimate=_mark(marks, names.ESTIMATE),
        on_loss=_mark(marks, names.ON_LOSS),
        ignored=tuple(soft_fields(pods[0], member.own)) if pods else (),
        succeeded=succeeded,
        waits_for=missing or _too_few(facts, pods, succeeded),
    )


def _priority(facts: Facts, first: PodSpec, priority_class: PriorityClass | None) -> int:
    """Return the priority of a group: its own, that of its class, that of its first pod, or that of the pod's class."""
    if facts.priority is not None:
        return facts.priority
    if first.priority is not None and not (facts.priority_class and priority_class is not None):
        return first.priority
    return 0 if priority_class is None else priority_class.value


def _preemption_policy(facts: Facts, first: PodSpec, priority_class: PriorityClass | None) -> str:
    # Admission gives every pod a policy, so the policy of the group's class comes first.
    policy = "" if facts.priority_class else first.preemption_policy
    return policy or (priority_class.preemption_policy if priority_class is not None else "")


def _mark(marks: list[dict[str, str]], key: str) -> str:
    return next((found[key] for found in marks if found.get(key)), "")


def _is_preemptible(marks: list[dict[str, str]]) -> bool:
    keys = (names.PREEMPTIBLE, names.VOLCANO_PREEMPTIBLE, names.YUNIKORN_PREEMPTION)
    return not any(found.get(key, "").lower() == "false" for found in marks for key in keys)


def _too_few(facts: Facts, pods: Sequence[Pod], succeeded: Mapping[str, int]) -> str:
    """Return how many pods of a gang exist, as text; empty if that is enough. Pods that have succeeded count."""
    have = Counter(membership(pod).part if facts.parts else "" for pod in pods)
    for part, count in succeeded.items():
        have[part if facts.parts else ""] += count
    for part, count in sorted((facts.parts or {"": facts.minimum}).items()):
        if have[part] < count and (facts.whole or part in have):
            of = f" of {part}" if part else ""
            return f"{have[part]} of {count} pods{of} exist"
    return ""


def _facts(member: Membership, pods: Sequence[Pod], objects: GroupObjects) -> tuple[Facts, str]:
    """Return what is known of a group, and why it cannot be asked for yet."""
    metas = [pod.metadata for pod in pods]
    if member.kind == "Pod":
        return Facts(), ""
    if member.kind == "Group":
        return Facts(minimum=_number(_annotation(metas, names.MINIMUM))), ""
    if member.kind == "Kueue":
        return Facts(minimum=_number(_annotation(metas, names.KUEUE_TOTAL))), ""
    if member.kind == "Koordinator":
        return Facts(minimum=_number(_annotation(metas, *names.KOORDINATOR_MINIMUM))), ""
    if member.kind == "Application":
        return _application(metas)
    found = objects.find(member.kind, member.namespace, member.name)
    if found is None:
        if member.kind == VOLCANO and (minimum := _number(_annotation(metas, names.VOLCANO_MINIMUM))):
            return Facts(minimum=minimum), ""
        kind = "PodGroup" if "." in member.kind else member.kind
        return Facts(), f"{kind} {member.namespace}/{member.name} does not exist"
    if member.kind in ("Job", "JobSet"):
        found = _overridden(found, metas)
    return found, ""


def _overridden(facts: Facts, metas: Sequence[Meta]) -> Facts:
    """Return the facts of a Job or JobSet with the size that annotations of Fairlead set, on it or on its pods."""
    minimum = facts.marks.get(names.MINIMUM) or _annotation(metas, names.MINIMUM)
    gang = facts.marks.get(names.GANG) or _annotation(metas, names.GANG)
    if minimum:
        return msgspec.structs.replace(facts, minimum=_number(minimum), parts={}, whole=True)
    if gang.lower() == "false":
        return msgspec.structs.replace(facts, minimum=0, parts={})
    if gang.lower() == "true" and not facts.minimum:
        return msgspec.structs.replace(facts, minimum=facts.pods)
    return facts


def _queue_name(metas: Sequence[Meta], facts: Facts) -> str:
    """Return the queue that the manifest names, on the pod, its owner or its group; empty if none does."""
    named: list[str] = []
    for meta in metas[:1]:
        named += (_either(meta, key) for key in _QUEUES)
        named.append(meta.label(names.YUNIKORN_QUEUE_LABEL) if application(meta) else "")
    named += (facts.marks.get(key, "") for key in _QUEUES)
    return next(filter(None, named), facts.queue)


def _user(metas: Sequence[Meta], rules: Rules) -> tuple[str, tuple[str, ...]] | None:
    """Return the user and the groups that a pod names, if the rules allow that."""
    if rules.users != "declared" or not metas:
        return None
    meta = metas[0]
    if user := _either(meta, names.USER):
        return user, tuple(name for name in meta.annotation(names.GROUPS).split(",") if name)
    try:
        info = msgspec.json.decode(meta.annotation(names.YUNIKORN_USER_INFO) or "{}", type=_UserInfo)
    except msgspec.DecodeError:
        info = _UserInfo()
    if info.user:
        return info.user, info.groups
    return (meta.label(names.YUNIKORN_USER), ()) if meta.label(names.YUNIKORN_USER) else None


class _UserInfo(msgspec.Struct):
    user: str = ""
    groups: tuple[str, ...] = ()


# -- the fields of each manifest ---------------------------------------------------------------------------------

_QUEUES = (
    names.QUEUE,
    names.YUNIKORN_QUEUE,
    names.VOLCANO_QUEUE,
    names.KUEUE_QUEUE,
    names.KOORDINATOR_QUEUE,
    names.KAI_QUEUE,
)
_READ = (*_QUEUES, names.MINIMUM, names.GANG, names.PREEMPTIBLE, names.ESTIMATE, names.ON_LOSS)


def _marks(meta: Meta) -> dict[str, str]:
    return {key: value for key in _READ if (value := _either(meta, key))}


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 9 else 0


def _annotation(metas: Sequence[Meta], *keys: str) -> str:
    return next((found for meta in metas if (found := _first(meta, keys))), "")


def _at_once(parallelism: int | None, completions: int | None) -> int:
    """Return the number of pods that a Job runs at once."""
    most = 1 if parallelism is None else parallelism
    return most if completions is None else min(most, completions)


def read_job(job: Job) -> Facts:
    """Return the facts of a Job. As for kube-scheduler, it is a gang if it is indexed and runs all indices at once."""
    spec = job.spec
    pods = _at_once(spec.parallelism, spec.completions)
    gang = spec.completion_mode == "Indexed" and pods > 1 and spec.parallelism == spec.completions
    least = min(_number(job.metadata.annotation(names.KUEUE_MINIMUM)), pods)
    return Facts(_marks(job.metadata), minimum=least or (pods if gang else 0), pods=pods)


def read_job_set(job_set: JobSet) -> Facts:
    """Return the facts of a JobSet. All its Jobs are one gang, unless they start in order; then each Job is one."""
    parts = {
        each.name: each.replicas * _at_once(each.template.spec.parallelism, each.template.spec.completions)
        for each in job_set.spec.replicated_jobs or ()
    }
    in_order = (job_set.spec.startup_policy or {}).get("startupPolicyOrder") == "InOrder"
    replicated = job_set.spec.replicated_jobs or ()
    whole = not in_order and not any(each.depends_on for each in replicated)
    marked = (job_set.metadata, *(each.template.metadata for each in replicated))
    if any(meta.annotation(names.EXCLUSIVE) for meta in marked):
        # Its controller makes the other pods of a Job only when the first one runs, so they cannot be one gang.
        return Facts(_marks(job_set.metadata), whole=False)
    total = sum(parts.values())
    parts = {name: count for name, count in parts.items() if count}
    return Facts(_marks(job_set.metadata), minimum=total, pods=total, parts=parts, whole=whole)


def read_upstream(group: PodGroup) -> Facts:
    """Return the facts of a PodGroup of `scheduling.k8s.io`."""
    spec = group.spec
    named = {
        "schedulingConstraints": (spec.scheduling_constraints or {}).get("topology"),
        "resourceClaims": spec.resource_claims,
        "parentCompositePodGroupName": spec.parent_composite_pod_group_name,
    }
    problems = tuple(NotHonoured(f"PodGroup spec.{key}", _UPSTREAM[key]) for key, value in named.items() if value)
    gang = (spec.scheduling_policy or GroupPolicy()).gang or GangPolicy()
    return Facts(
        _marks(group.metadata),
        minimum=gang.min_count,
        priority=spec.priority,
        priority_class=spec.priority_class_name,
        preempts=spec.preemption_policy != "Never",
        problems=problems,
    )


_UPSTREAM = {
    "schedulingConstraints": "a gang is not kept within one topology domain",
    "resourceClaims": "devices of claims are allocated by kube-scheduler",
    "parentCompositePodGroupName": "groups of groups are not read",
}
"""Fields of a PodGroup that are not honoured, and why."""


def read_plugins(group: PodGroup) -> Facts:
    """Return the facts of a PodGroup of `scheduling.x-k8s.io`."""
    return Facts(_marks(group.metadata), minimum=group.spec.min_member or 0)


def read_volcano(group: PodGroup) -> Facts:
    """Return the facts of a PodGroup of `scheduling.volcano.sh`. `minTaskMember` counts if its sum is `minMember`."""
    spec = group.spec
    minimum = spec.min_member or 0
    parts = {name: count for name, count in (spec.min_task_member or {}).items() if count > 0}
    problems: tuple[NotHonoured, ...] = ()
    if (spec.network_topology or {}).get("mode") == "hard":
        problems = (NotHonoured("PodGroup spec.networkTopology", "a gang is not kept within one HyperNode"),)
    return Facts(
        _marks(group.metadata),
        minimum=minimum,
        parts=parts if sum(parts.values()) == minimum else {},
        queue=spec.queue,
        priority_class=spec.priority_class_name,
        problems=problems,
    )


class TaskGroup(msgspec.Struct, rename="camel"):
    """A task group of YuniKorn, in the annotation of a pod."""

    name: str
    min_member: int


_task_groups = msgspec.json.Decoder(list[TaskGroup]).decode


def _application(metas: Sequence[Meta]) -> tuple[Facts, str]:
    """Return what the pods of an application say. Its gang is complete when the pods of all task groups exist."""
    text = _annotation(metas, names.YUNIKORN_TASK_GROUPS)
    if not text:
        return Facts(), ""
    try:
        groups = _task_groups(text)
    except msgspec.DecodeError as problem:
        return Facts(), f"annotation {names.YUNIKORN_TASK_GROUPS} cannot be read: {problem}"
    parts = {group.name: group.min_member for group in groups if group.min_member > 0}
    return Facts(minimum=sum(parts.values()), parts=parts), ""
