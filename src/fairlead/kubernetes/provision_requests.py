"""Requests nodes for a whole gang that lacks capacity, by a ProvisioningRequest, if the cluster has this API.

A cluster autoscaler that sees single pods may buy nodes for a part of a gang. With a request it buys nodes for all pods
or for none. The request is deleted when the gang has started or needs no more nodes. It owns its PodTemplates, so the
cluster deletes them with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import Any

import msgspec

from fairlead.client.async_pool import Http, Lost
from fairlead.kubernetes.adapter_state import State
from fairlead.kubernetes.names import PREFIX
from fairlead.kubernetes.objects import Named, Pod
from fairlead.kubernetes.units import Unit

GROUP = "autoscaling.x-k8s.io"
CLASS = f"best-effort-atomic-scale-up.{GROUP}"
JOB = PREFIX + "job"
"""Label of a request: the job that it is for."""
LOOKED_EACH = 10.0
"""Seconds between two checks whether the cluster has the API."""
EACH = 2.0

_encode = msgspec.json.Encoder().encode


class _Requests(msgspec.Struct):
    items: list[Named] = []


class Provisioning:
    """The requests of one adapter."""

    def __init__(self, state: State, http: Http, note: Callable[[str, str], None]) -> None:
        self._state = state
        self._http = http
        self._note = note
        self._made: dict[str, tuple[str, str]] = {}
        """Job → namespace and name of its request."""
        self._exists = False
        self._looked_at = -LOOKED_EACH

    async def ask_for(self, unit: Unit) -> bool:
        """Request the nodes of a gang. Return False if the cluster has no such requests, or refuses this one."""
        if unit.job in self._made:
            return True
        if not await self._has_api():
            return False
        pods = {member.ask: member.pod for member in unit.members.values() if member.pod is not None}
        counts = Counter(member.ask for member in unit.members.values() if member.pod is not None)
        first = next(member for member in unit.members.values() if member.pod is not None)
        name = f"fairlead-{unit.job.lower()[:50].strip('-.')}"
        templates = {ask: f"{name}-{at}" for at, ask in enumerate(counts)}
        sets = [{"podTemplateRef": {"name": templates[ask]}, "count": count} for ask, count in counts.items()]
        owner = {"apiVersion": "v1", "kind": "Pod", "name": first.name, "uid": first.uid}
        metadata = {"name": name, "labels": {JOB: unit.job}, "ownerReferences": [owner]}
        spec = {"provisioningClassName": CLASS, "podSets": sets}
        request = {"apiVersion": f"{GROUP}/v1", "kind": "ProvisioningRequest", "metadata": metadata, "spec": spec}
        reply = await self._http.call(
            "POST", f"/apis/autoscaling.x-k8s.io/v1/namespaces/{first.namespace}/provisioningrequests", _encode(request)
        )
        if reply.status >= 300:
            self._note(unit.job, f"{reply.status} {reply.text}")
            return False
        uid = msgspec.json.decode(reply.content, type=Named).metadata.uid
        for ask, template in templates.items():
            body = _template(template, pods[ask], {"name": name, "uid": uid})
            await self._http.call("POST", f"/api/v1/namespaces/{first.namespace}/podtemplates", _encode(body))
        self._made[unit.job] = (first.namespace, name)
        return True

    async def run(self) -> None:
        """Delete requests that are no longer needed, until cancelled."""
        while True:
            await asyncio.sleep(EACH)
            if not self._made or not self._state.adopted:
                continue
            for job in list(self._made):
                unit = self._state.jobs.get(job)
                if unit is None or unit.live() or not unit.missing:
                    try:
                        await self._delete(job)
                    except Lost as lost:
                        self._note(job, str(lost))

    async def _delete(self, job: str) -> None:
        namespace, name = self._made[job]
        reply = await self._http.call(
            "DELETE", f"/apis/autoscaling.x-k8s.io/v1/namespaces/{namespace}/provisioningrequests/{name}"
        )
        if reply.status < 300 or reply.status == 404:
            del self._made[job]

    async def _has_api(self) -> bool:
        """True if the cluster has ProvisioningRequests. Requests of an earlier adapter are taken over."""
        if monotonic() - self._looked_at < LOOKED_EACH:
            return self._exists
        selector = JOB.replace("/", "%2F")
        path = f"/apis/autoscaling.x-k8s.io/v1/provisioningrequests?labelSelector={selector}"
        reply = await self._http.call("GET", path)
        self._looked_at = monotonic()
        self._exists = reply.status == 200
        if self._exists:
            for found in msgspec.json.decode(reply.content, type=_Requests).items:
                meta = found.metadata
                self._made.setdefault(meta.label(JOB) or meta.name, (meta.namespace, meta.name))
        return self._exists


def _template(name: str, pod: Pod, owner: dict[str, str]) -> dict[str, Any]:
    """Return the PodTemplate of pods like this one, with the fields that a scheduler reads."""
    spec = msgspec.json.decode(_encode(pod.spec))  # volumes are kept as JSON
    for key in ("nodeName", "schedulingGates", "volumes", "schedulingGroup", "priority", "preemptionPolicy"):
        spec.pop(key, None)
    reference = {"apiVersion": f"{GROUP}/v1", "kind": "ProvisioningRequest", **owner}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name, "ownerReferences": [reference]},
        "template": {"metadata": {"labels": dict(pod.metadata.labels or {})}, "spec": spec},
    }
