"""End to end, beside the parts of Kubernetes: its scheduler binds gated pods, its controllers make the pods of Jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairlead.kubernetes.names import GATE, PINNED
from tests.kubernetes.cluster.control_plane import ADAPTER, ControlPlane, control_plane
from tests.kubernetes.scene import FAIRLEAD, NAMESPACE, Json, Scene, scenes

pytestmark = pytest.mark.kubernetes
DEPLOY = Path(__file__).parent.parent.parent / "deploy" / "kubernetes" / "fairlead.yaml"


@pytest.fixture(scope="module")
def whole_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with RBAC on, kube-scheduler and kube-controller-manager."""
    with control_plane(tmp_path_factory.mktemp("whole"), "RBAC") as plane:
        plane.start_scheduler()
        plane.start_controllers()
        yield plane


@pytest.fixture
def whole(whole_plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """A scene in which the adapter has the rights of deploy/kubernetes, and no others."""
    for scene in scenes(whole_plane, tmp_path):
        for document in yaml.safe_load_all(DEPLOY.read_text()):
            group = document["apiVersion"]
            kind = f"{document['kind'].lower()}s"
            if document["kind"] in ("ClusterRole", "ClusterRoleBinding"):
                scene.call("POST", f"/apis/{group}/{kind}", document)
            elif document["kind"] in ("Role", "RoleBinding"):
                scene.call("POST", f"/apis/{group}/namespaces/fairlead/{kind}", document)
            elif document["kind"] == "Namespace":
                scene.call("POST", "/api/v1/namespaces", document)
        scene.user = ADAPTER
        yield scene


def test_gated_pods_are_pinned_and_bound_by_kube_scheduler(whole: Scene) -> None:
    whole.node("n1")
    whole.node("n2")
    gang = whole.gang("app", 6, scheduler="default-scheduler", gates=[GATE])
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    nodes = whole.wait_bound(*gang)
    for name, pod in whole.pods(NAMESPACE).items():
        assert not pod["spec"].get("schedulingGates")
        assert pod["metadata"]["annotations"][PINNED] == nodes[name]
        assert pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] == nodes[name]
    too_many = whole.gang("more", 4, scheduler="default-scheduler", gates=[GATE])
    whole.settle(2)
    assert not whole.nodes_of("more")
    for name in gang:
        whole.delete(name)
    whole.wait_bound(*too_many)


def test_a_pod_waits_for_the_gates_of_others(whole: Scene) -> None:
    whole.node("n1")
    whole.node("n2", labels={"zone": "a"})
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    others = ["other.example/gate"]
    whole.pod("gated", scheduler="default-scheduler", gates=[*others, GATE], nodeSelector={"zone": "a"})
    whole.pod("bound", gates=others)
    whole.wait_bound(whole.pod("plain"))
    whole.settle()
    assert set(whole.nodes_of()) == {"plain"}
    patch = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    for name in ("gated", "bound"):
        whole.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", patch, "application/json-patch+json")
    assert whole.wait_bound("gated", "bound")["gated"] == "n2"
    selector = whole.pods()["gated"]["spec"]["nodeSelector"]
    assert selector == {"zone": "a", "kubernetes.io/hostname": "n2"}


def test_a_pinned_pod_that_kube_scheduler_refuses_is_taken_back(whole: Scene) -> None:
    """Its controller makes another one, which is placed elsewhere. A pod without a controller is told."""
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    whole.node("n1", labels={"first": "yes"})
    whole.node("n2")
    whole.pod("there", labels={"app": "there"}, nodeName="n1")
    term = {"labelSelector": {"matchLabels": {"app": "there"}}, "topologyKey": "kubernetes.io/hostname"}
    prefer = {"weight": 100, "preference": {"matchExpressions": [{"key": "first", "operator": "Exists"}]}}
    soft = "preferredDuringSchedulingIgnoredDuringExecution"
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    made = job("apart", 1)
    made["spec"]["template"]["spec"] |= {
        "schedulerName": "default-scheduler",
        "schedulingGates": [{"name": GATE}],
        "affinity": {**apart, "nodeAffinity": {soft: [prefer]}},
    }
    whole.call("POST", path, made)
    alone = {"affinity": apart, "nodeSelector": {"first": "yes"}}
    whole.pod("alone", scheduler="default-scheduler", gates=[GATE], **alone)
    whole.wait(lambda: set(whole.nodes_of("apart").values()) == {"n2"}, "another pod is bound elsewhere", 300)

    def told() -> list[str]:
        events = whole.call("GET", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
        return [event["note"] for event in events if event["regarding"]["name"] == "alone"]

    whole.wait(lambda: any("does not bind it to n1" in note for note in told()), "the other pod is told")
    assert "alone" in whole.pods()
    whole.call("DELETE", f"{path}/apart?propagationPolicy=Background")


def test_adapters_restart_while_gated_pods_wait(whole: Scene) -> None:
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    running = whole.gang("one", 3, scheduler="default-scheduler", gates=[GATE])
    whole.wait_bound(*running)
    waiting = whole.gang("two", 2, scheduler="default-scheduler", gates=[GATE])
    whole.kill_adapter()
    whole.delete("one-0")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.wait_bound(*waiting)
    assert not whole.overbooked()


def job(name: str, pods: int, **spec: object) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"schedulerName": "fairlead", "restartPolicy": "Never", "containers": [container]}}
    return {
        "metadata": {"name": name},
        "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 100, "template": template, **spec},
    }


def test_an_indexed_job_is_a_gang(whole: Scene) -> None:
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", path, job("gang", 6, completionMode="Indexed"))
    whole.wait(lambda: len(whole.pods(NAMESPACE)) == 6, "the controller made 6 pods")
    first = next(iter(whole.pods(NAMESPACE)))
    assert "4 of 6" in whole.wait_reason(first, "Unschedulable")
    assert not whole.nodes_of()
    whole.node("n2")
    whole.wait(lambda: len(whole.nodes_of("gang")) == 6, "all 6 are bound")
    # A pod that is deleted is made again, and joins the gang.
    gone = next(iter(whole.nodes_of("gang")))
    whole.delete(gone)
    whole.wait(lambda: len(whole.nodes_of("gang")) == 6 and gone not in whole.pods(), "another pod took its place")
    whole.call("DELETE", f"{path}/gang?propagationPolicy=Background")
    whole.wait(lambda: not whole.pods(NAMESPACE), "all pods are gone")


def test_a_job_is_scaled(whole: Scene) -> None:
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", path, {**job("many", 2), "spec": {**job("many", 2)["spec"], "completions": 20}})
    whole.wait(lambda: len(whole.nodes_of("many")) == 2, "2 pods are bound")
    whole.call("PATCH", f"{path}/many", {"spec": {"parallelism": 6}})
    whole.wait(lambda: len(whole.pods(NAMESPACE)) == 6, "6 pods exist")
    whole.wait(lambda: len(whole.nodes_of("many")) == 4, "as many as there is room for are bound")
    whole.call("PATCH", f"{path}/many", {"spec": {"parallelism": 1}})
    whole.wait(lambda: len(whole.pods(NAMESPACE)) == 1, "1 pod is left")
    whole.call("DELETE", f"{path}/many?propagationPolicy=Background")
    whole.wait(lambda: not whole.pods(NAMESPACE), "all pods are gone")
    whole.wait_bound(*whole.gang("next", 4))


def test_a_preempted_gang_comes_back(whole: Scene) -> None:
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    whole.call("POST", path, job("gang", 4, completionMode="Indexed"))
    whole.wait(lambda: len(whole.nodes_of("gang")) == 4, "the gang runs")
    before = set(whole.nodes_of("gang"))
    urgent = whole.pod("urgent", priorityClassName="high")
    whole.wait_bound(urgent)
    # The whole gang was evicted: part of it is of no use. Its new pods wait until there is room for all.
    whole.wait(lambda: not set(whole.pods(NAMESPACE)) & before, "all old pods are gone")
    whole.wait(lambda: len(whole.pods(NAMESPACE)) == 5, "the controller made new pods")
    whole.settle(1)
    assert set(whole.nodes_of()) == {urgent}
    whole.delete(urgent)
    whole.wait(lambda: len(whole.nodes_of("gang")) == 4, "the gang runs again")
    whole.call("DELETE", f"{path}/gang?propagationPolicy=Background")
    whole.wait(lambda: not whole.pods(NAMESPACE), "all pods are gone")


def test_the_pods_of_a_killed_job_come_back_as_another_one(whole: Scene) -> None:
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", path, job("gang", 3, completionMode="Indexed"))
    whole.wait(lambda: len(whole.nodes_of("gang")) == 3, "the gang runs")
    before = set(whole.nodes_of("gang"))
    (known,) = whole.jobs()
    assert whole.fairlead.post(f"/jobs/{known['id']}/kill").is_success
    whole.wait(lambda: not set(whole.pods(NAMESPACE)) & before, "its pods are gone")
    whole.wait(lambda: len(whole.nodes_of("gang")) == 3, "the Job made new pods, and they run")
    whole.call("DELETE", f"{path}/gang?propagationPolicy=Background")
    whole.wait(lambda: not whole.pods(NAMESPACE), "all pods are gone")


def test_a_job_is_submitted_as_pods(whole: Scene) -> None:
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    command = [FAIRLEAD, "submit", "--engine", "kubernetes", "--kubeconfig", str(whole.plane.kubeconfig())]
    command += ["--namespace", NAMESPACE, "--image", "none", "--gang", "3", "--cpu", "1", "sleep", "60"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    namespace, _, name = done.stdout.strip().partition("/")
    assert namespace == NAMESPACE and name.startswith("sleep-")
    whole.wait(lambda: len(whole.nodes_of(name)) == 3, "its pods are bound")
    whole.call("DELETE", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{name}?propagationPolicy=Background")
    whole.wait(lambda: not whole.pods(NAMESPACE), "all pods are gone")


REQUESTS: Json = {
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        # The group belongs to Kubernetes, and the API server asks where its definition was agreed on.
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "names": {"kind": "ProvisioningRequest", "plural": "provisioningrequests", "singular": "provisioningrequest"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_nodes_are_requested_for_a_whole_gang(whole: Scene) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    whole.call("POST", definitions, REQUESTS)
    path = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{NAMESPACE}/provisioningrequests"
    whole.wait(lambda: whole.call("GET", path) is not None, "the API exists")
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    gang = whole.gang("app", 6)
    (request,) = whole.wait(lambda: whole.call("GET", path)["items"], "nodes are requested")
    assert [(each["count"]) for each in request["spec"]["podSets"]] == [6]
    whole.wait_reason("app-5", "ProvisioningRequested")
    template = request["spec"]["podSets"][0]["podTemplateRef"]["name"]
    made = whole.call("GET", f"/api/v1/namespaces/{NAMESPACE}/podtemplates/{template}")
    assert made["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"
    whole.node("n2")  # the autoscaler
    whole.wait_bound(*gang)
    whole.wait(lambda: not whole.call("GET", path)["items"], "the request is deleted")
    whole.call("DELETE", f"{definitions}/provisioningrequests.autoscaling.x-k8s.io")
