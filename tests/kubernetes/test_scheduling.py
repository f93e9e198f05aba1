"""End to end, against a real API server: pods are bound whole gangs at a time, by shares, limits and holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.scene import NAMESPACE, Scene, scenes

pytestmark = pytest.mark.kubernetes

TEAMS = {
    "partitions": {
        "default": {
            "rebalance_threshold": 10,
            "rebalance_after": "1s",
            "queues": {"root": {"default": {}, "ml": {"share": 50}, "ci": {"share": 50, "limit": {"cpu": 6}}}},
        }
    }
}
BY_NAMESPACE = {"queues": [{"namespace": "ml", "queue": "root.ml"}, {"namespace": "ci", "queue": "root.ci"}]}


@pytest.mark.brief
def test_a_gang_is_bound_whole_or_not_at_all(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    first, second = scene.gang("first", 6), scene.gang("second", 4)
    scene.start_adapter()
    scene.wait_bound(*first)
    text = scene.wait_reason("second-0", "Unschedulable")
    assert "2 of 4 fit now" in text
    assert not scene.nodes_of("second")
    scene.node("n3")
    assert set(scene.wait_bound(*second).values()) <= {"n1", "n2", "n3"}
    assert not scene.overbooked()


@pytest.mark.brief
def test_a_gang_waits_for_all_its_pods(scene: Scene) -> None:
    scene.node("n1")
    scene.start_adapter()
    groups = '[{"name": "workers", "minMember": 3}]'
    more = {
        "labels": {"applicationId": "app"},
        "annotations": {
            "yunikorn.apache.org/task-group-name": "workers",
            "yunikorn.apache.org/task-groups": groups,
        },
    }
    for name in ("one", "two"):
        scene.pod(name, **more)
    scene.wait(lambda: scene.reason("one")[0] == "GangIncomplete", "the gang is incomplete")
    assert not scene.nodes_of()
    scene.pod("three", **more)
    scene.wait_bound("one", "two", "three")


@pytest.mark.brief
def test_pods_of_other_schedulers_are_left_room(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    for at in range(3):  # as if kube-scheduler had bound them
        scene.pod(f"other-{at}", scheduler="default-scheduler", nodeName="n1")
    scene.start_adapter()
    names = [scene.pod(f"own-{at}") for at in range(6)]
    scene.wait_bound(*names[:5])
    scene.wait(lambda: scene.reason(names[5])[0] == "Unschedulable" or len(scene.nodes_of("own")) > 5, "one pod waits")
    assert Counter(scene.nodes_of("own").values()) == {"n1": 1, "n2": 4}
    scene.delete("other-0")
    scene.wait_bound(*names)
    assert not scene.overbooked()


@pytest.fixture
def teams(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """Two queues with shares, for two namespaces."""
    for scene in scenes(plane, tmp_path, config=TEAMS, rules=BY_NAMESPACE):
        scene.namespace("ml")
        scene.namespace("ci")
        yield scene


def test_namespaces_have_shares_and_lend_them(teams: Scene) -> None:
    teams.node("n1")
    teams.node("n2")
    teams.start_adapter()
    loans = [teams.pod(f"ml-{at}", namespace="ml") for at in range(8)]
    teams.wait_bound(*loans)  # all of the cluster, half of it a loan
    own = [teams.pod(f"ci-{at}", namespace="ci") for at in range(4)]
    teams.wait_bound(*own)
    assert len(teams.nodes_of("ml")) == 4
    assert not teams.overbooked()


@pytest.mark.brief
def test_a_limit_is_no_reason_to_buy_nodes(teams: Scene) -> None:
    teams.node("n1", cpu=16)
    teams.start_adapter()
    names = [teams.pod(f"ci-{at}", namespace="ci") for at in range(7)]
    teams.wait(lambda: len(teams.nodes_of("ci")) == 6, "6 pods are bound")
    waiting = next(name for name in names if name not in teams.nodes_of())
    text = teams.wait_reason(waiting, "OverLimit")
    assert "the limit of queue root.ci is 6 CPUs: 6 in use, 1 more needed" in text
    events = teams.call("GET", "/apis/events.k8s.io/v1/namespaces/ci/events")["items"]
    mine = [event for event in events if event["regarding"]["name"] == waiting]
    assert [(event["reason"], event["note"]) for event in mine] == [("OverLimit", text)]


@pytest.fixture
def starving(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """A partition in which asks starve after a second."""
    queues = {"root": {"default": {}}}
    config = {"partitions": {"default": {"starving_after": "1s", "preempt": "off", "queues": queues}}}
    yield from scenes(plane, tmp_path, config=config)


def test_a_starving_gang_gets_nodes_held(starving: Scene) -> None:
    starving.node("n1")
    starving.node("n2")
    starving.start_adapter()
    small = [starving.pod(f"small-{at}") for at in range(8)]
    starving.wait_bound(*small)
    gang = starving.gang("wide", 2, cpu="4")
    starving.wait(lambda: starving.fairlead.get("/holds").json()["holds"], "nodes are held")
    late = [starving.pod(f"late-{at}") for at in range(4)]
    for name in small:
        starving.delete(name)
    starving.wait_bound(*gang)
    assert not starving.nodes_of("late")
    for name in gang:
        starving.delete(name)
    starving.wait_bound(*late)


@pytest.mark.brief
def test_killed_jobs_lose_their_pods(scene: Scene) -> None:
    scene.node("n1")
    scene.start_adapter()
    running, waiting = scene.pod("running", cpu="4"), scene.pod("waiting", cpu="4")
    scene.wait_bound(running)
    scene.wait(lambda: len(scene.jobs()) == 2, "both jobs are known")
    jobs = {job["name"]: job["id"] for job in scene.jobs()}
    for name in (waiting, running):
        job = next(id for title, id in jobs.items() if title.startswith(name))
        assert scene.fairlead.post(f"/jobs/{job}/kill").is_success
    scene.wait(lambda: not scene.pods(NAMESPACE), "both pods are gone")
    scene.wait_bound(scene.pod("next", cpu="4"))


def test_a_member_that_ended_is_replaced(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    scene.start_adapter()
    gang = scene.gang("app", 4)
    scene.wait_bound(*gang)
    before = scene.nodes_of()
    scene.delete("app-2")
    more = scene.pods(NAMESPACE)["app-1"]["metadata"]
    scene.pod("app-4", labels=more["labels"], annotations=more["annotations"])
    scene.wait_bound("app-4")
    after = scene.nodes_of()
    assert {name: node for name, node in after.items() if name != "app-4"} == {
        name: node for name, node in before.items() if name != "app-2"
    }


def test_a_drained_node_gets_no_pods(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    scene.start_adapter()
    scene.call("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}})  # kubectl cordon
    scene.wait(lambda: scene.fairlead.get("/nodes/n1").json().get("state") == "draining", "n1 drains")
    names = [scene.pod(f"p-{at}") for at in range(6)]
    scene.wait(lambda: len(scene.nodes_of()) == 4, "4 pods are bound")
    assert set(scene.nodes_of().values()) == {"n2"}
    assert scene.fairlead.post("/nodes/n2/drain").is_success  # an operator of Fairlead
    scene.delete(next(iter(scene.nodes_of())))
    scene.call("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": False}})
    left = [name for name in names if name in scene.pods()]
    scene.wait_bound(*left)
    assert Counter(scene.nodes_of().values()) == {"n2": 3, "n1": 2}


def test_a_node_is_lost_and_returns(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    scene.start_adapter()
    gang = scene.gang("app", 8)
    scene.wait_bound(*gang)
    metadata = scene.pods(NAMESPACE)["app-0"]["metadata"]
    lost = [name for name, node in scene.nodes_of().items() if node == "n1"]
    scene.call("DELETE", "/api/v1/nodes/n1")
    for name in lost:  # the garbage collector of pods does this
        scene.delete(name)
    again = [
        scene.pod(f"again-{at}", labels=metadata["labels"], annotations=metadata["annotations"])
        for at in range(len(lost))
    ]
    scene.wait(lambda: scene.reason(again[0])[0] == "Unschedulable", "a replacement waits")
    assert not scene.nodes_of("again")
    scene.node("n1")
    scene.wait_bound(*again)
    assert not scene.overbooked()


def test_a_node_that_is_not_ready_gets_no_pods(scene: Scene) -> None:
    scene.node("n1")
    scene.start_adapter()
    scene.wait_bound(scene.pod("before"))
    scene.set_ready("n1", False)
    scene.wait(lambda: scene.fairlead.get("/nodes/n1").json().get("state") == "disabled", "n1 is disabled")
    waiting = scene.pod("waiting")
    assert "not ready" in scene.wait_reason(waiting, "Unschedulable") or not scene.nodes_of("waiting")
    assert set(scene.nodes_of()) == {"before"}  # what runs there goes on
    scene.set_ready("n1", True)
    scene.wait_bound(waiting)


@pytest.mark.brief
def test_a_pod_that_cannot_run_has_a_reason(scene: Scene) -> None:
    """Each sort of reason, for pods that were there before the adapter and for one that comes later."""
    scene.node("n1")
    wide = scene.gang("wide", 3, cpu="2")
    scene.pod("astray", annotations={"fairlead.dev/queue": "root.none"})
    scene.pod("huge", cpu="64")
    scene.start_adapter()
    assert "take 2 of 3" in scene.wait_reason(wide[0], "Unschedulable")
    assert "root.none" in scene.wait_reason("astray", "Refused")
    assert "CPU" in scene.wait_reason("huge", "Unschedulable")
    scene.pod("late", cpu="64")
    scene.wait_reason("late", "Unschedulable")
    assert not scene.nodes_of()
    config = {"partitions": {"default": {"queues": {"root": {"default": {}, "none": {}}}}}}
    assert scene.fairlead.put("/config", json=config).is_success
    scene.wait_bound("astray")  # it is tried again


def test_preemption_evicts_and_respects_disruption_budgets(scene: Scene) -> None:
    scene.node("n1")
    scene.start_adapter()
    high = {"metadata": {"name": "high"}, "value": 1000}
    scene.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", high)
    low = [scene.pod(f"low-{at}", labels={"app": "low"}) for at in range(4)]
    scene.wait_bound(*low)
    # Budgets count only for running pods.
    scene.wait(lambda: {scene.pods()[name]["status"]["phase"] for name in low} == {"Running"}, "all pods run")
    budget = {"metadata": {"name": "low"}, "spec": {"minAvailable": 4, "selector": {"matchLabels": {"app": "low"}}}}
    path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    scene.call("POST", path, budget)
    status = {"observedGeneration": 1, "currentHealthy": 4, "desiredHealthy": 4, "expectedPods": 4}
    scene.call("PATCH", f"{path}/low/status", {"status": {**status, "disruptionsAllowed": 0}})
    scene.settle(3)  # the adapter looks at budgets from time to time
    urgent = scene.pod("urgent", priorityClassName="high")
    scene.settle(3)
    assert len(scene.nodes_of("low")) == 4 and urgent not in scene.nodes_of()
    assert "action delayed" not in scene.logs()  # no eviction was tried
    scene.call("PATCH", f"{path}/low/status", {"status": {**status, "disruptionsAllowed": 4}})
    scene.wait_bound(urgent)
    assert len(scene.nodes_of("low")) == 3
    scene.call("DELETE", f"{path}/low")


@pytest.mark.brief
def test_fields_that_are_not_honoured_are_named(scene: Scene) -> None:
    scene.node("n1")
    scene.start_adapter()
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    scene.pod("claims", volumes=[volume])
    text = scene.wait_reason("claims", "NotHonoured")
    assert "spec.volumes[0].persistentVolumeClaim" in text
    assert not scene.nodes_of()


def test_host_ports_are_kept_apart(scene: Scene) -> None:
    scene.node("n1")
    scene.node("n2")
    scene.start_adapter()
    ports = [{"containerPort": 80, "hostPort": 8080}]
    names = [scene.pod(f"web-{at}", ports=ports) for at in range(3)]
    scene.wait(lambda: len(scene.nodes_of("web")) == 2, "2 pods are bound")
    assert sorted(scene.nodes_of("web").values()) == ["n1", "n2"]
    waiting = next(name for name in names if name not in scene.nodes_of())
    scene.wait_reason(waiting, "Unschedulable")


def _refuses_bad(scene: Scene) -> bool:
    body = {"metadata": {"name": "probe"}, "target": {"kind": "Node", "name": "bad"}}
    return scene.api.post(f"/api/v1/namespaces/{NAMESPACE}/pods/probe/binding?dryRun=All", json=body).is_error


@pytest.fixture
def hasty(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """A partition that takes back a gang after a second without a replacement; the API server refuses node `bad`."""
    queues = {"root": {"default": {}}}
    config = {"partitions": {"default": {"replace_within": "1s", "queues": queues}}}
    path = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    policy = {
        "metadata": {"name": "no-bad"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "object.target.name != 'bad'", "message": "bad is refused"}],
        },
    }
    for scene in scenes(plane, tmp_path, config=config):
        scene.call("POST", f"{path}/validatingadmissionpolicies", policy)
        binding = {"metadata": {"name": "no-bad"}, "spec": {"policyName": "no-bad", "validationActions": ["Deny"]}}
        scene.call("POST", f"{path}/validatingadmissionpolicybindings", binding)
        scene.node("bad", cpu=2)
        scene.node("probe", cpu=1)
        scene.pod("probe", nodeSelector={"kubernetes.io/hostname": "bad"})

        scene.wait(partial(_refuses_bad, scene), "the policy works")
        scene.clean()
        yield scene
        scene.call("DELETE", f"{path}/validatingadmissionpolicybindings/no-bad")
        scene.call("DELETE", f"{path}/validatingadmissionpolicies/no-bad")


def test_a_gang_with_a_refused_binding_is_completed_elsewhere(hasty: Scene) -> None:
    hasty.node("bad", cpu=2)
    hasty.node("good", cpu=4)
    hasty.start_adapter()
    gang = hasty.gang("app", 4)
    nodes = hasty.wait_bound(*gang)
    assert set(nodes.values()) == {"good"}
    assert "bad is refused" in hasty.logs()


def test_a_gang_with_a_refused_binding_is_taken_back_whole(hasty: Scene) -> None:
    hasty.node("bad", cpu=2)
    hasty.node("good", cpu=2)
    hasty.start_adapter()
    gang = hasty.gang("app", 4)
    hasty.wait(lambda: hasty.nodes_of("app") or len(hasty.pods(NAMESPACE)) < 4, "a part is bound")
    hasty.wait(lambda: not hasty.nodes_of("app"), "no part stays bound")
    left = set(hasty.pods(NAMESPACE))
    assert len(left) == 2 and left < set(gang)
    hasty.settle(2)
    assert not hasty.nodes_of("app")  # two pods of a gang of four do not start
