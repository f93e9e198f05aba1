"""End to end, against a real API server: pods that end, are ended by their kubelet, or are deleted from outside."""

from __future__ import annotations

import pytest

from tests.kubernetes.scene import NAMESPACE, Json, Scene, condition

pytestmark = pytest.mark.kubernetes

ON_LOSS = "fairlead.dev/on-loss"


def terminated(reason: str, code: int) -> Json:
    state = {"terminated": {"reason": reason, "exitCode": code}}
    return {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}


EVICTED: Json = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "The node was low on resource: memory.",
    "conditions": [{**condition("DisruptionTarget", "True"), "reason": "TerminationByKubelet"}],
}
SHUT_DOWN: Json = {"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated: node shutdown."}
OUT_OF_MEMORY: Json = {"phase": "Failed", "containerStatuses": [terminated("OOMKilled", 137)]}
FAILED: Json = {"phase": "Failed", "containerStatuses": [terminated("Error", 1)]}
SUCCEEDED: Json = {"phase": "Succeeded", "containerStatuses": [terminated("Completed", 0)]}


def running_gang(scene: Scene, on_loss: str) -> list[str]:
    """A gang of three that fills a node, and runs."""
    scene.node("n1", cpu=3)
    scene.start_adapter()
    gang = scene.gang("app", 3, annotations={ON_LOSS: on_loss})
    scene.wait_bound(*gang)
    scene.wait(lambda: {pod["status"]["phase"] for pod in scene.pods().values()} == {"Running"}, "all pods run")
    # The adapter knows that they are bound when it has booked them.
    scene.wait(lambda: scene.fairlead.get("/nodes/n1").json()["used"].get("cpu") == 3, "all pods are booked")
    return gang


def end(scene: Scene, name: str, status: Json) -> None:
    """End a pod as its kubelet does."""
    scene.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status", {"status": status})


@pytest.mark.brief
@pytest.mark.parametrize("status", [EVICTED, SHUT_DOWN, OUT_OF_MEMORY], ids=["evicted", "shut down", "out of memory"])
def test_a_pod_that_its_kubelet_ended_is_lost(scene: Scene, status: Json) -> None:
    running_gang(scene, "restart")
    end(scene, "app-1", status)
    scene.wait(lambda: set(scene.pods(NAMESPACE)) == {"app-1"}, "the other pods are evicted")
    scene.wait(lambda: not scene.fairlead.get("/nodes/n1").json()["used"].get("cpu"), "nothing is booked")


def test_the_job_of_a_pod_that_its_kubelet_ended_can_fail(scene: Scene) -> None:
    running_gang(scene, "fail")
    end(scene, "app-1", EVICTED)
    scene.wait(lambda: set(scene.pods(NAMESPACE)) == {"app-1"}, "the other pods are deleted")
    scene.wait(lambda: [job["state"] for job in scene.jobs()] == ["failed"], "the job has failed")


def test_a_pod_that_its_kubelet_ended_can_be_replaced(scene: Scene) -> None:
    running_gang(scene, "replace")
    end(scene, "app-1", EVICTED)
    other = scene.pod("app-3", **{key: scene.pods()["app-0"]["metadata"][key] for key in ("labels", "annotations")})
    assert scene.wait_bound(other) == {other: "n1"}  # in the room of the one that ended
    assert {"app-0", "app-2"} < set(scene.nodes_of()) and not scene.overbooked()


@pytest.mark.brief
@pytest.mark.parametrize("status", [SUCCEEDED, FAILED, None], ids=["succeeded", "failed", "deleted"])
def test_a_pod_that_ends_by_itself_or_is_deleted_is_no_loss(scene: Scene, status: Json | None) -> None:
    running_gang(scene, "fail")
    if status is None:
        scene.delete("app-1")
    else:
        end(scene, "app-1", status)
    assert scene.wait_bound(scene.pod("next")) == {"next": "n1"}  # in the room of the one that ended
    assert {"app-0", "app-2", "next"} <= set(scene.nodes_of()) and not scene.overbooked()
    assert {job["state"] for job in scene.jobs()} == {"running"}


def test_a_loss_is_told_when_the_server_is_back(scene: Scene) -> None:
    running_gang(scene, "restart")
    scene.kill_server()
    end(scene, "app-1", EVICTED)
    log = scene.folder / "adapter-one.log"
    scene.wait(lambda: "link lost" in log.read_text(), "the adapter has lost the server")
    scene.start_server()
    scene.wait(lambda: set(scene.pods(NAMESPACE)) == {"app-1"}, "the other pods are evicted")
