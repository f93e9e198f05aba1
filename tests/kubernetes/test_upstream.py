"""End to end, beside the parts of Kubernetes: its scheduler binds gated pods, its controllers make the pods of Jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fairlead.kubernetes.names import GATE, NOMINATED
from fairlead.kubernetes.objects import PREFERRED, REQUIRED
from tests.kubernetes.cluster.control_plane import ADAPTER, ControlPlane, control_plane
from tests.kubernetes.scene import FAIRLEAD, NAMESPACE, Json, Scene, scenes
from tests.kubernetes.test_deploy import FOLDER, rendered
from tests.kubernetes.test_recovery import storm

pytestmark = pytest.mark.kubernetes


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
        scene.namespace("fairlead")
        for document in filter(None, yaml.safe_load_all("---\n".join(rendered(admission={"namespaces": [NAMESPACE]})))):
            group = document["apiVersion"]
            kind = f"{document['kind'].lower()}s"
            if document["kind"] in ("ClusterRole", "ClusterRoleBinding"):
                scene.call("POST", f"/apis/{group}/{kind}", document)
            elif document["kind"] in ("Role", "RoleBinding"):
                namespace = document["metadata"]["namespace"]
                scene.call("POST", f"/apis/{group}/namespaces/{namespace}/{kind}", document)
        scene.user = ADAPTER
        yield scene


def test_gated_pods_are_admitted_and_bound_by_kube_scheduler(whole: Scene) -> None:
    whole.node("n1")
    whole.node("n2")
    gang = whole.gang("app", 6, scheduler="default-scheduler", gates=[GATE])
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    nodes = whole.wait_bound(*gang)
    for name, pod in whole.pods(NAMESPACE).items():
        assert not pod["spec"].get("schedulingGates")
        assert pod["metadata"]["annotations"][NOMINATED] == nodes[name]
        assert "nodeSelector" not in pod["spec"] and "affinity" not in pod["spec"]
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


def told(scene: Scene, name: str) -> list[str]:
    """Return the texts of the events of a pod."""
    events = scene.call("GET", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
    return [event["note"] for event in events if event["regarding"]["name"] == name]


def gated(name: str, pods: int, spec: Json | None = None, **of_job: object) -> Json:
    """Return a Job whose pods have Fairlead's gate, with more keys of their specification."""
    made = job(name, pods, **of_job)
    gate = {"schedulerName": "default-scheduler", "schedulingGates": [{"name": GATE}]}
    made["spec"]["template"]["spec"] |= {**gate, **(spec or {})}
    return made


KUEUE_QUEUE = {"kueue.x-k8s.io/queue-name": "default"}
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


def test_kube_scheduler_decides_where_if_it_knows_more(whole: Scene) -> None:
    """Fairlead knows nothing of the pod on n1. Nothing is evicted, so `backoffLimit` is not used up."""
    whole.node("n1", labels={"first": "yes"})
    whole.node("n2")
    whole.pod("there", labels={"app": "there"}, nodeName="n1")
    term = {"labelSelector": {"matchLabels": {"app": "there"}}, "topologyKey": "kubernetes.io/hostname"}
    prefer = {"weight": 100, "preference": {"matchExpressions": [{"key": "first", "operator": "Exists"}]}}
    apart = {"podAntiAffinity": {REQUIRED: [term]}}
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    affinity = {"affinity": {**apart, "nodeAffinity": {PREFERRED: [prefer]}}}
    whole.call("POST", JOBS, gated("apart", 1, affinity, backoffLimit=0))
    whole.wait(lambda: set(whole.nodes_of("apart").values()) == {"n2"}, "the pod is bound elsewhere", 20)
    whole.wait(lambda: used(whole) == {"n1": 1, "n2": 1}, "it is booked there")
    whole.pod("alone", scheduler="default-scheduler", gates=[GATE], affinity=apart, nodeSelector={"first": "yes"})
    whole.wait(lambda: any("does not bind it" in note for note in told(whole, "alone")), "the other pod is told")
    assert "alone" in whole.pods()
    whole.delete("there")
    whole.wait_bound("alone")
    whole.call("DELETE", f"{JOBS}/apart?propagationPolicy=Background")


def used(scene: Scene) -> dict[str, int]:
    """Return the CPUs that are booked on each node."""
    return {node["name"]: node["used"].get("cpu", 0) for node in scene.fairlead.get("/nodes").json()["nodes"]}


def test_gated_pods_are_spread_over_zones(whole: Scene) -> None:
    for at in range(4):
        whole.node(f"n{at}", labels={"zone": "a" if at < 3 else "b"})
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    spread = {
        "maxSkew": 1,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": "wide"}},
    }
    whole.call("POST", JOBS, gated("wide", 4, {"topologySpreadConstraints": [spread]}, completionMode="Indexed"))
    nodes = whole.wait(lambda: len(found := whole.nodes_of("wide")) == 4 and found, "all are bound")
    assert sorted(nodes.values()).count("n3") == 2, nodes
    whole.call("DELETE", f"{JOBS}/wide?propagationPolicy=Background")


def test_a_gated_job_with_a_volume_in_one_zone(whole: Scene) -> None:
    whole.node("n1", labels={"zone": "a", "first": "yes"})
    whole.node("n2", labels={"zone": "b"})
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "hostPath": {"path": "/tmp"},
        "claimRef": {"namespace": NAMESPACE, "name": "data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [zone]}},
    }
    whole.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": "data"}, "spec": volume})
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "data",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    claims = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
    whole.call("POST", claims, {"metadata": {"name": "data"}, "spec": claim})
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    mounted = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
    whole.call("POST", JOBS, gated("zonal", 4, mounted, completionMode="Indexed", backoffLimit=0))
    whole.wait(lambda: list(whole.nodes_of("zonal").values()) == ["n2"] * 4, "all are bound where the volume is", 30)
    whole.call("DELETE", f"{JOBS}/zonal?propagationPolicy=Background")
    whole.call("DELETE", f"{claims}/data")
    whole.call("DELETE", "/api/v1/persistentvolumes/data")


def test_gated_pods_keep_their_bookings_when_the_adapter_restarts(whole: Scene) -> None:
    whole.node("n1")
    whole.node("n2")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", JOBS, gated("gang", 6, completionMode="Indexed"))
    whole.wait(lambda: len(whole.nodes_of("gang")) == 6, "the gang runs")
    whole.kill_adapter()
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    late = [whole.pod(f"late-{at}") for at in range(4)]
    whole.wait(lambda: len(whole.nodes_of("late")) == 2, "two more are bound")
    whole.settle(2)
    assert len(whole.nodes_of("late")) == 2 and not whole.overbooked()
    assert sum(used(whole).values()) == 8
    for name in late:
        whole.delete(name)
    whole.call("DELETE", f"{JOBS}/gang?propagationPolicy=Background")


def test_the_last_pod_of_a_gang_is_tried_again(whole: Scene) -> None:
    """Three of four have succeeded: they count for the gang's size."""
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", JOBS, job("tried", 4, completionMode="Indexed"))
    whole.wait(lambda: len(whole.nodes_of("tried")) == 4, "the gang runs")
    *good, bad = sorted(whole.nodes_of("tried"))
    for name in good:
        whole.end(name)
    whole.wait(lambda: used(whole) == {"n1": 1}, "one is left")
    whole.end(bad, failed=True)
    (again,) = whole.wait(lambda: set(whole.nodes_of("tried")) - {*good, bad}, "its pod is made again and bound", 30)
    whole.call("PATCH", f"{JOBS}/tried", {"spec": {"suspend": True}})
    whole.wait(lambda: again not in whole.pods(), "the pod is gone")
    whole.call("PATCH", f"{JOBS}/tried", {"spec": {"suspend": False}})
    (last,) = whole.wait(lambda: set(whole.nodes_of("tried")) - {*good, bad}, "it starts again", 30)
    whole.end(last)
    whole.wait(lambda: whole.call("GET", f"{JOBS}/tried")["status"].get("succeeded") == 4, "the Job is complete")
    whole.call("DELETE", f"{JOBS}/tried?propagationPolicy=Background")


def test_a_waiting_gang_becomes_smaller(whole: Scene) -> None:
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.call("POST", JOBS, job("large", 6, completionMode="Indexed"))
    whole.wait(lambda: len(whole.jobs()) == 1, "it waits")
    whole.settle(1)
    assert not whole.nodes_of("large")
    whole.call("PATCH", f"{JOBS}/large", {"spec": {"parallelism": 3, "completions": 3}})
    whole.wait(lambda: len(whole.nodes_of("large")) == 3, "the smaller gang runs", 30)
    whole.call("DELETE", f"{JOBS}/large?propagationPolicy=Background")


def test_kills_leave_no_half_gang_of_gated_pods(whole: Scene) -> None:
    storm(whole, kills=5, seed=1, scheduler="default-scheduler", gates=[GATE])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_200_kills_leave_no_half_gang_of_gated_pods(whole: Scene) -> None:
    storm(whole, kills=200, seed=2, scheduler="default-scheduler", gates=[GATE])


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


def test_any_pod_of_a_namespace_is_scheduled_by_fairlead(whole: Scene) -> None:
    """The policy sends a pod the way that its fields need. Nothing is added to its manifest."""
    whole.node("n1")
    whole.node("n2")
    whole.namespace("auto")
    policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic"
    chart = rendered("auto", admission={"namespaces": ["auto"], "policy": True})
    for document in filter(None, yaml.safe_load_all("---\n".join(chart))):
        if document["kind"] == "MutatingAdmissionPolicy":
            whole.call("POST", f"{policies}ies", document)
        elif document["kind"] == "MutatingAdmissionPolicyBinding":
            whole.call("POST", f"{policies}ybindings", document)
        elif document["kind"] == "RoleBinding" and document["metadata"]["namespace"] == "auto":
            document["roleRef"]["name"] = "fairlead-admission"
            document["subjects"][0]["name"] = "fairlead"
            whole.call("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/auto/rolebindings", document)
    probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}

    def works() -> bool:
        answer = whole.call("POST", "/api/v1/namespaces/auto/pods?dryRun=All", probe)
        return bool(answer["spec"]["schedulerName"] == "fairlead")

    whole.wait(works, "the policy works", 20)
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    selector = {"matchLabels": {"app": "lone"}}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    apart = {"podAntiAffinity": {REQUIRED: [term]}}
    whole.pod("plain", namespace="auto", scheduler="default-scheduler")
    whole.pod("lone", namespace="auto", scheduler="default-scheduler", labels={"app": "lone"}, affinity=apart)
    whole.pod("ours", namespace="auto", affinity=apart)  # it names Fairlead, and has a field for kube-scheduler
    whole.wait_bound("plain", "lone", "ours")
    assert len(whole.jobs()) == 3
    schedulers = {name: pod["spec"]["schedulerName"] for name, pod in whole.pods("auto").items()}
    assert schedulers == {"plain": "fairlead", "lone": "default-scheduler", "ours": "default-scheduler"}
    for name in ("plain", "lone", "ours"):
        whole.delete(name, "auto")
    suspended = job("suspended", 2, suspend=True)
    suspended["metadata"]["labels"] = KUEUE_QUEUE
    whole.call("POST", "/apis/batch/v1/namespaces/auto/jobs", suspended)
    whole.wait(lambda: len(whole.nodes_of("suspended")) == 2, "the Job runs", 20)
    whole.call("DELETE", "/apis/batch/v1/namespaces/auto/jobs/suspended?propagationPolicy=Background")
    for name in ("auto", "auto-suspended"):
        whole.call("DELETE", f"{policies}ies/{name}")
        whole.call("DELETE", f"{policies}ybindings/{name}")


def test_a_suspended_job_of_kueue_is_started(whole: Scene) -> None:
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    made = job("suspended", 3, completionMode="Indexed", suspend=True)
    made["metadata"]["labels"] = KUEUE_QUEUE
    other = job("other", 1, suspend=True)
    other["metadata"]["labels"] = KUEUE_QUEUE
    other["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    whole.call("POST", JOBS, other)
    whole.call("POST", JOBS, made)
    whole.wait(lambda: len(whole.nodes_of("suspended")) == 3, "the gang runs", 30)
    assert not whole.nodes_of("other")
    for name in ("suspended", "other"):
        whole.call("DELETE", f"{JOBS}/{name}?propagationPolicy=Background")


def test_queues_are_objects_of_the_cluster(whole: Scene) -> None:
    whole.call("POST", DEFINITIONS, yaml.safe_load((FOLDER / "chart/crds/queues.yaml").read_text()))
    path = "/apis/fairlead.dev/v1/queues"
    whole.wait(lambda: whole.call("GET", path) is not None, "the definition works")
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    whole.wait_bound(whole.pod("a", cpu="2"))

    def use(queue: str) -> str:
        found = whole.call("GET", f"{path}/{queue}")
        return "" if found is None else str(found["status"]["use"])

    whole.wait(lambda: use("root") == "50%" and use("root.default") == "50%", "the queues are shown", 20)
    whole.call("DELETE", f"{DEFINITIONS}/queues.fairlead.dev")


def test_a_standby_takes_over_within_seconds(whole: Scene) -> None:
    whole.node("n1")
    whole.start_adapter("one", lease="fairlead/fairlead-kubernetes")
    whole.wait_bound(whole.pod("first"))
    whole.start_adapter("two", lease="fairlead/fairlead-kubernetes")
    whole.settle(3)
    whole.kill_adapter("one")
    whole.wait_bound(whole.pod("second"), seconds=8)


def test_a_pod_without_a_budget_is_evicted_first(whole: Scene) -> None:
    whole.node("n1")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    guarded = [whole.pod(f"db-{at}", labels={"app": "db"}) for at in range(2)]
    whole.wait_bound(*guarded, whole.pod("free", cpu="2"))
    budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "db"}}}
    whole.call("POST", budgets, {"metadata": {"name": "db"}, "spec": spec})
    whole.wait(lambda: whole.call("GET", f"{budgets}/db")["status"].get("currentHealthy") == 2, "the budget is counted")
    whole.settle(3)
    whole.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    whole.wait_bound(whole.pod("urgent", cpu="2", priorityClassName="high"), seconds=20)
    assert set(guarded) <= set(whole.nodes_of()) and "free" not in whole.pods()
    whole.call("DELETE", f"{budgets}/db")


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


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def definition(group: str, version: str, kind: str) -> Json:
    """Return the definition of a kind whose objects may have any fields."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    singular = kind.lower()
    return {
        "metadata": {
            "name": f"{singular}s.{group}",
            # Some groups belong to Kubernetes, and the API server asks where their definitions were agreed on.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": f"{singular}s", "singular": singular},
            "scope": "Namespaced",
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def test_a_job_of_volcano_may_make_its_pods(whole: Scene) -> None:
    """Its controller waits until the PodGroup is queued, which only a scheduler does."""
    groups = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{NAMESPACE}/podgroups"
    jobs = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{NAMESPACE}/jobs"
    whole.call("POST", DEFINITIONS, definition("scheduling.volcano.sh", "v1beta1", "PodGroup"))
    whole.call("POST", DEFINITIONS, definition("batch.volcano.sh", "v1alpha1", "Job"))
    whole.wait(lambda: None not in (whole.call("GET", groups), whole.call("GET", jobs)), "the kinds exist")
    whole.start_adapter(lease="fairlead/fairlead-kubernetes")
    for name in ("fairlead", "volcano"):
        made = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}}
        owner = whole.call("POST", jobs, {**made, "spec": {"schedulerName": name}})["metadata"]["uid"]
        reference = {"apiVersion": made["apiVersion"], "kind": "Job", "name": name, "uid": owner, "controller": True}
        group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": {"minMember": 2}}
        metadata = {"name": name, "ownerReferences": [reference]}
        whole.call("POST", groups, {**group, "metadata": metadata, "status": {"phase": "Pending"}})

    def phase(name: str) -> str:
        return str(whole.call("GET", f"{groups}/{name}")["status"]["phase"])

    whole.wait(lambda: phase("fairlead") == "Inqueue", "the group is queued", 20)
    assert phase("volcano") == "Pending"
    for name in ("podgroups.scheduling.volcano.sh", "jobs.batch.volcano.sh"):
        whole.call("DELETE", f"{DEFINITIONS}/{name}")


def test_nodes_are_requested_for_a_whole_gang(whole: Scene) -> None:
    whole.call("POST", DEFINITIONS, definition("autoscaling.x-k8s.io", "v1", "ProvisioningRequest"))
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
    whole.call("DELETE", f"{DEFINITIONS}/provisioningrequests.autoscaling.x-k8s.io")
