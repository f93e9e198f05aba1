"""Names: the labels, annotations and gate of Fairlead and of other schedulers, and names that the core accepts.

Kubernetes allows longer names than the core, and other characters in resource names. A name that the core does not
accept is replaced by a readable prefix and a digest, which is the same in every process.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b

# -- ours --------------------------------------------------------------------------------------------------------

PREFIX = "fairlead.dev/"
SCHEDULER = "fairlead"
"""`schedulerName` of pods that Fairlead binds."""
GATE = PREFIX + "admission"
"""The scheduling gate of pods that Fairlead lets start and the cluster's own scheduler binds."""
QUEUE = PREFIX + "queue"
GROUP = PREFIX + "group"
"""Label or annotation: pods of a namespace with the same value are one job."""
PART = PREFIX + "part"
"""Label or annotation: the name of the pod's part of its group, which becomes a stage."""
MINIMUM = PREFIX + "min"
"""Annotation: the number of pods that start together."""
GANG = PREFIX + "gang"
"""Annotation: "true" if all pods of a Job, JobSet or group start together, "false" if they start one by one."""
USER = PREFIX + "user"
GROUPS = PREFIX + "groups"
PREEMPTIBLE = PREFIX + "preemptible"
ESTIMATE = PREFIX + "estimate"
ON_LOSS = PREFIX + "on-loss"
"""Annotation: what happens when a pod is lost: `replace`, `restart` or `fail`."""
NOMINATED = PREFIX + "nominated"
"""Annotation that Fairlead writes when it removes its gate: the node on which the pod's room is reserved."""
KEPT_OFF = PREFIX + "kept-off"
"""Annotation beside it: the nodes, by hostname, that Fairlead does not allow."""

# -- of Kubernetes and of other schedulers -----------------------------------------------------------------------

HOSTNAME = "kubernetes.io/hostname"
JOB_NAME = ("batch.kubernetes.io/job-name", "job-name")
JOB_UID = ("batch.kubernetes.io/controller-uid", "controller-uid")
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"
POD_GROUP = "scheduling.x-k8s.io/pod-group"
POD_GROUP_OLD = "pod-group.scheduling.sigs.k8s.io"
GROUP_NAME = "scheduling.k8s.io/group-name"
VOLCANO_GROUP = "scheduling.volcano.sh/group-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO_MINIMUM = "scheduling.volcano.sh/group-min-member"
VOLCANO_PART = "volcano.sh/task-spec"
VOLCANO_PREEMPTIBLE = "volcano.sh/preemptable"
YUNIKORN_APP = ("yunikorn.apache.org/app-id", "applicationId")
YUNIKORN_QUEUE = "yunikorn.apache.org/queue"
YUNIKORN_QUEUE_LABEL = "queue"
YUNIKORN_TASK_GROUPS = "yunikorn.apache.org/task-groups"
YUNIKORN_TASK_GROUP = "yunikorn.apache.org/task-group-name"
YUNIKORN_USER = "yunikorn.apache.org/username"
YUNIKORN_USER_INFO = "yunikorn.apache.org/user.info"
YUNIKORN_PREEMPTION = "yunikorn.apache.org/allow-preemption"
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
KUEUE_MINIMUM = "kueue.x-k8s.io/job-min-parallelism"
KUEUE_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
KOORDINATOR_GANG = ("gang.scheduling.koordinator.sh/name", "pod-group.scheduling.sigs.k8s.io/name")
KOORDINATOR_MINIMUM = (
    "gang.scheduling.koordinator.sh/min-available",
    "pod-group.scheduling.sigs.k8s.io/min-available",
)
KOORDINATOR_QUEUE = "quota.scheduling.koordinator.sh/name"
KAI_QUEUE = "kai.scheduler/queue"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
KUEUE_TOTAL = "kueue.x-k8s.io/pod-group-total-count"

SCHEDULING = "scheduling.k8s.io"
PLUGINS = "scheduling.x-k8s.io"
VOLCANO = "scheduling.volcano.sh"

# -- names that the core accepts ---------------------------------------------------------------------------------

MAX_NAME = 63
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")
_RESOURCE = re.compile(r"[a-z][a-z0-9._/-]{0,62}")
_DIGEST = 8


def short_name(text: str, distinct: str = "") -> str:
    """Return a name for the core: the text if it is valid, else its start and its digest.

    `distinct` is always added as a digest, to tell objects with the same name apart.
    """
    if not distinct and len(text) <= MAX_NAME and _NAME.fullmatch(text) and ".." not in text:
        return text
    start = re.sub(r"[^A-Za-z0-9@+-]+", "-", text).strip("-")[: MAX_NAME - _DIGEST - 1] or "x"
    if start[0] in "@+":
        start = "x" + start[1:]
    return f"{start}-{blake2b((distinct or text).encode(), digest_size=_DIGEST // 2).hexdigest()}"


@lru_cache(maxsize=100_000)
def node_name(name: str) -> str:
    """Return the name of a node in the core."""
    return short_name(name)


@lru_cache(maxsize=10_000)
def resource_name(name: str) -> str:
    """Return the name of a resource in the core: unchanged if valid, so `nvidia.com/gpu` keeps its name."""
    lower = name.lower()
    if _RESOURCE.fullmatch(lower):
        return lower
    return f"resource-{blake2b(name.encode(), digest_size=_DIGEST).hexdigest()}"
