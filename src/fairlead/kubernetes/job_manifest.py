"""Turns a Fairlead job into a `batch/v1` Job, for `fairlead submit --engine kubernetes`.

The Job's pods have `schedulerName: fairlead`, so they wait in the same queues as jobs for agents.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.client.async_pool import Http, Lost
from fairlead.kubernetes.kubeconfig import ConfigProblem, find_address
from fairlead.kubernetes.names import ESTIMATE, GANG, QUEUE, SCHEDULER
from fairlead.kubernetes.objects import message_of


class NotSubmitted(Exception):
    """Raised if the API server did not accept the Job. The text says why."""


class PodJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to run as pods."""

    image: str
    command: Sequence[str]
    name: str = ""
    tasks: int = 1
    gang: bool = False
    """True if all tasks start together."""
    requests: Mapping[str, str] = {}
    """Amounts by resource, as Kubernetes names and writes them."""
    env: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    selector: Mapping[str, str] = {}
    queue: str = ""
    estimate: str = ""
    time_limit: int = 0
    """Longest run time of a task in seconds; 0 for none."""
    tries: int = 1


def manifest(job: PodJob) -> dict[str, Any]:
    """Return the Job. Each task has its index in JOB_COMPLETION_INDEX."""
    stem = job.name or (job.command[0].rpartition("/")[2] if job.command else "job")
    stem = re.sub(r"[^a-z0-9-]+", "-", stem.lower()).strip("-")[:40].strip("-") or "job"
    annotations = {GANG: "true" if job.gang else "false"}
    if job.queue:
        annotations[QUEUE] = job.queue
    if job.estimate:
        annotations[ESTIMATE] = job.estimate
    # Extended resources need equal limits; CPU and memory are not capped, so that a pod may use idle capacity.
    limits = {name: amount for name, amount in job.requests.items() if "/" in name}
    container: dict[str, Any] = {
        "name": "main",
        "image": job.image,
        "command": list(job.command),
        "env": [{"name": name, "value": value} for name, value in job.env.items()],
        "resources": {"requests": dict(job.requests), "limits": limits},
    }
    spec: dict[str, Any] = {
        "schedulerName": SCHEDULER,
        "restartPolicy": "Never",
        "containers": [container],
        **({"nodeSelector": dict(job.selector)} if job.selector else {}),
        **({"activeDeadlineSeconds": job.time_limit} if job.time_limit else {}),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"{stem}-", "labels": dict(job.labels), "annotations": annotations},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": job.tasks,
            "completions": job.tasks,
            "backoffLimitPerIndex": job.tries - 1,
            "template": {"metadata": {"labels": dict(job.labels), "annotations": annotations}, "spec": spec},
        },
    }


def create(job: PodJob, namespace: str = "", kubeconfig: str = "") -> str:
    """Create the Job, and return its namespace and name."""
    try:
        address, own = find_address(kubeconfig)
    except ConfigProblem as problem:
        raise NotSubmitted(str(problem)) from None
    where = namespace or own

    async def send() -> str:
        http = Http(address, 1)
        try:
            body = msgspec.json.encode(manifest(job))
            reply = await http.call("POST", f"/apis/batch/v1/namespaces/{where}/jobs", body)
        except Lost as lost:
            raise NotSubmitted(f"the API server did not answer: {lost}") from None
        finally:
            http.close()
        if reply.status >= 300:
            raise NotSubmitted(f"the API server refuses the Job: {message_of(reply.content) or reply.text}")
        name: str = msgspec.json.decode(reply.content)["metadata"]["name"]
        return f"{where}/{name}"

    return asyncio.run(send())
