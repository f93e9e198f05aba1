"""Manifests that people already have: which pods become one job, how many start together, and where they are queued.

Every file of `manifests/` is a row here and in docs/kubernetes.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.kubernetes.groups import GroupObjects, group_of, membership, read_job, read_job_set
from fairlead.kubernetes.names import EXCLUSIVE, KUEUE_MINIMUM, short_name
from fairlead.kubernetes.objects import DeviceClass, Job, JobSet
from fairlead.kubernetes.rules import Rules, RulesProblem, parse_rules
from fairlead.testing import World
from tests.kubernetes.reading import MANIFESTS, Cluster, load, read_pod

PAGE = Path(__file__).parents[2] / "docs/kubernetes.md"


class Row(msgspec.Struct, frozen=True):
    stages: str
    """Each stage as part:count/min."""
    queue: str = ""
    gang: bool = False
    rest: dict[str, Any] = {}
    jobs: int = 1


ROWS: dict[str, Row] = {
    "pod": Row("main:1/1"),
    "job": Row("main:4/1"),
    "indexed-job": Row("main:4/4"),
    "annotated-job": Row("main:3/3", "root.ml.train", rest={"preemptible": False}),
    "suspended-job": Row("", jobs=0),
    "jobset": Row("leader:1/1 worker:4/4", gang=True),
    "jobset-in-order": Row("first:2/2"),
    "scheduling-group": Row("main:3/2", rest={"priority": 100, "preempts": False}),
    "pod-group-label": Row("main:3/3"),
    "volcano-group-name": Row("main:3/2", "root.train", rest={"priority": 1000}),
    "volcano-job": Row("ps:1/1 worker:3/2", "root.default", gang=True, rest={"preemptible": False}),
    "volcano-annotations": Row("main:2/2", "root.train"),
    "yunikorn-task-groups": Row("driver:1/1 executor:3/2", "root.spark", gang=True),
    "yunikorn-labels": Row("main:2/1", "root.batch"),
    "kueue-job": Row("main:2/1", "root.user-queue"),
    "kueue-pods": Row("main:2/2", "root.user-queue"),
    "fairlead-group": Row("ps:1/1 worker:2/2", "root.ml", gang=True),
}


@pytest.mark.parametrize("name", ROWS)
def test_manifest(name: str) -> None:
    row = ROWS[name]
    items = load(name).items()
    assert len(items) == row.jobs
    for item, waits_for in items:
        assert not waits_for
        stages = " ".join(
            f"{stage['name'].rpartition('-')[0]}:{stage['count']}/{stage['min']}" for stage in item["stages"]
        )
        assert stages == row.stages
        assert item.get("queue", "") == row.queue
        assert (item.get("gang") == "job") == row.gang
        assert {key: item.get(key) for key in row.rest} == row.rest
        assert item["user"] == "ml" and item["labels"]["namespace"] == "ml"


@pytest.mark.parametrize("name", ROWS)
def test_the_core_places_it(name: str) -> None:
    """The items are accepted as they are, and start as a whole when there is room."""
    row = ROWS[name]
    queue = row.queue or "root.default"
    tree: dict[str, Any] = {"root": {}}
    at = tree["root"]
    for part in queue.split(".")[1:]:
        at = at.setdefault(part, {})
    w = World({"queues": tree})
    rm = w.rm("kubernetes")
    rm.register()
    items = [item for item, _ in load(name).items()]
    least = sum(stage["min"] for item in items for stage in item["stages"])
    capacity = {"pods": 110, "memory": "8Gi"}
    rm.update(nodes=[{"name": "n0", "resources": {"cpu": max(0, least - 1), **capacity}}], jobs=items)
    w.cycle()
    gang = row.gang or any(stage["min"] > 1 for item in items for stage in item["stages"])
    for item in items:
        assert bool(w.placements(item["job"])) is not gang or least <= 1
    rm.update(nodes=[{"name": "n1", "resources": {"cpu": 20, **capacity}}])
    w.cycle()
    for item in items:
        assert len(w.placements(item["job"])) == sum(stage["count"] for stage in item["stages"])


def test_every_manifest_has_a_row() -> None:
    files = sorted(path.stem for path in MANIFESTS.glob("*.yaml"))
    assert files == sorted(ROWS)
    listed = re.findall(r"^\| `([a-z-]+)\.yaml` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == files


def test_a_gang_waits_for_its_pods_and_its_object() -> None:
    cluster = load("scheduling-group")
    pods = cluster.pods
    assert group_of(membership(pods[0]), pods[:1], cluster.objects, Rules()).waits_for == "1 of 2 pods exist"
    alone = group_of(membership(pods[0]), pods, GroupObjects(), Rules())
    assert alone.waits_for == "PodGroup ml/up does not exist"
    driver = load("yunikorn-task-groups")
    waiting = group_of(membership(driver.pods[0]), driver.pods[:2], driver.objects, Rules())
    assert waiting.waits_for == "1 of 2 pods of executor exist"
    step = load("jobset-in-order")
    assert group_of(membership(step.pods[0]), step.pods[:1], step.objects, Rules()).waits_for


def test_parts_that_start_later_are_not_waited_for() -> None:
    cluster = load("jobset-in-order")
    document = {
        "kind": "JobSet",
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "metadata": {"name": "o", "namespace": "ml"},
    }
    one = {"spec": {"parallelism": 1, "template": {"spec": {"containers": []}}}}
    jobs = [{"name": "a", "template": one}, {"name": "b", "template": one, "dependsOn": [{"name": "a"}]}]
    cluster.add({**document, "spec": {"replicatedJobs": jobs}})
    first = [pod for pod in cluster.pods if pod.metadata.name.startswith("o-a")]
    assert not group_of(membership(first[0]), first, cluster.objects, Rules()).waits_for


def test_changes_of_objects_touch_their_groups() -> None:
    touched: list[str] = []
    cluster = load("indexed-job")
    cluster.objects.touched = touched.extend
    key = membership(cluster.pods[0]).key
    kind, put, drop = cluster.follows["/apis/batch/v1/jobs"]
    meta = {"name": "train", "namespace": "ml", "uid": "uid-Job-train"}
    smaller = {"metadata": meta, "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}}
    put(msgspec.convert(smaller, kind))
    put(msgspec.convert(smaller, kind))
    assert touched == [key]
    drop("uid-Job-train")
    assert touched == [key, key]
    assert group_of(membership(cluster.pods[0]), cluster.pods, cluster.objects, Rules()).waits_for
    # Another Job of the same name is not dropped with the first.
    again = {"metadata": {**meta, "uid": "other"}, "spec": {"parallelism": 2}}
    put(msgspec.convert(smaller, kind))
    put(msgspec.convert(again, kind))
    drop("uid-Job-train")
    assert cluster.objects.find("Job", "ml", "train") is not None


def test_a_task_groups_annotation_that_is_wrong_is_named() -> None:
    pod = read_pod(
        metadata={
            "name": "p",
            "namespace": "ml",
            "labels": {"applicationId": "a"},
            "annotations": {"yunikorn.apache.org/task-groups": "[{]"},
        }
    )
    group = group_of(membership(pod), [pod], GroupObjects(), Rules())
    assert group.waits_for.startswith("annotation yunikorn.apache.org/task-groups cannot be read")


def test_fields_of_groups_that_are_not_honoured() -> None:
    cluster = Cluster()
    for path, spec, field in (
        (
            "scheduling.k8s.io/v1beta1",
            {"schedulingConstraints": {"topology": [{"key": "rack"}]}},
            "schedulingConstraints",
        ),
        ("scheduling.k8s.io/v1beta1", {"parentCompositePodGroupName": "x"}, "parentCompositePodGroupName"),
        ("scheduling.k8s.io/v1beta1", {"resourceClaims": [{"name": "c"}]}, "resourceClaims"),
        ("scheduling.volcano.sh/v1beta1", {"networkTopology": {"mode": "hard"}}, "networkTopology"),
    ):
        meta = {"name": "g", "namespace": "ml"}
        cluster.add({"apiVersion": path, "kind": "PodGroup", "metadata": meta, "spec": spec})
        facts = cluster.objects.find(path.partition("/")[0], "ml", "g")
        assert facts is not None and [field in problem.field for problem in facts.problems] == [True]


def test_priority_comes_from_the_class_if_admission_did_not_set_it() -> None:
    cluster = load("volcano-group-name")
    pod = read_pod(metadata={"name": "p", "namespace": "ml"}, spec={"priorityClassName": "high"})
    assert group_of(membership(pod), [pod], cluster.objects, Rules()).priority == 1000
    pod = read_pod(metadata={"name": "p", "namespace": "ml"}, spec={"priority": 7, "preemptionPolicy": "Never"})
    group = group_of(membership(pod), [pod], cluster.objects, Rules())
    assert (group.priority, group.preempts) == (7, False)
    # Admission has filled in what the pods of a group do not say themselves.
    cluster = load("scheduling-group")
    for pod in cluster.pods:
        pod.spec.priority, pod.spec.preemption_policy = 0, "PreemptLowerPriority"
    group = group_of(membership(pod), cluster.pods, cluster.objects, Rules())
    assert (group.priority, group.preempts) == (100, False)


def test_preferences_that_are_not_considered_are_labels_of_the_job() -> None:
    constraint = {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    pod = read_pod(metadata={"name": "p", "namespace": "ml"}, spec={"topologySpreadConstraints": [constraint]})
    item = group_of(membership(pod), [pod], GroupObjects(), Rules()).job_item()
    assert item["labels"]["not-considered"] == "spec.topologySpreadConstraints[0]"


def test_minimum_of_several_asks() -> None:
    """The pods that were seen first are needed, and every ask needs one."""
    cluster = Cluster()
    for at, cpu in enumerate("12233"):
        cluster.add(
            {
                "kind": "Pod",
                "metadata": {
                    "name": f"p{at}",
                    "namespace": "ml",
                    "labels": {"fairlead.dev/group": "g"},
                    "annotations": {"fairlead.dev/min": "2"},
                },
                "spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]},
            }
        )
    [(item, _)] = cluster.items()
    assert [(stage["count"], stage["min"]) for stage in item["stages"]] == [(1, 1), (2, 1), (2, 1)]


def test_users() -> None:
    cluster = load("fairlead-group")
    declared = Rules(users="declared")
    assert [item["user"] for item, _ in cluster.items(declared)] == ["ann"]
    for meta, user, groups in (
        ({"labels": {"yunikorn.apache.org/username": "bob"}}, "bob", ()),
        ({"annotations": {"yunikorn.apache.org/user.info": '{"user":"eve","groups":["a","b"]}'}}, "eve", ("a", "b")),
        ({"annotations": {"fairlead.dev/user": "ann", "fairlead.dev/groups": "x,y"}}, "ann", ("x", "y")),
        ({"annotations": {"yunikorn.apache.org/user.info": "{"}}, "ml", ()),
        ({}, "ml", ()),
    ):
        pod = read_pod(metadata={"name": "p", "namespace": "ml", **meta})
        group = group_of(membership(pod), [pod], cluster.objects, declared)
        assert (group.user, group.groups) == (user, groups)
        assert group_of(membership(pod), [pod], cluster.objects, Rules()).user == "ml"


RULES = {
    "queues": [
        {"namespace": "ml-*", "name": "gpu", "queue": "root.ml.gpu"},
        {"namespace": "ml-*", "queue": "root.ml"},
        {"namespace": "team-*", "name": "*", "queue": "root.teams.{namespace}.{name}"},
        {"namespace": "team-*", "queue": "root.teams.{namespace}"},
    ]
}


@pytest.mark.parametrize(
    ("namespace", "name", "queue"),
    [
        ("ml-a", "gpu", "root.ml.gpu"),
        ("ml-a", "other", "root.ml"),
        ("ml-a", "", "root.ml"),
        ("team-x", "q", "root.teams.team-x.q"),
        ("team-x", "", "root.teams.team-x"),
        ("else", "", ""),
        ("else", "ci", "root.ci"),
        ("else", "root.ci.x", "root.ci.x"),
    ],
)
def test_queues_by_rules(namespace: str, name: str, queue: str) -> None:
    assert parse_rules(RULES).queue(namespace, name) == queue


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "the rules: it is not a mapping; write key: value pairs"),
        ({"queue": []}, "the rules: there is no key 'queue' (did you mean queues?); it has queues, users"),
        ({"users": "me"}, "users: 'me' is not one of namespace, declared; write one of them"),
        ({"queues": {}}, None),
        (
            {"queues": "x"},
            "queues: it is not a list; write one row for each rule, such as - {namespace: ml, queue: root.ml}",
        ),
        ({"queues": [{"namespace": "a"}]}, "queues[0].queue: missing; name the queue of these pods"),
        ({"queues": [{"queue": 3}]}, "queues[0].queue: it is not text; write it in quotes"),
        (
            {"queues": [{"queue": "root.{user}"}]},
            "queues[0].queue: 'root.{user}': only {namespace} and {name} can be filled in; write one of them",
        ),
        (
            {"queues": [{"queue": "root.{name}"}]},
            'queues[0].queue: {name} is empty for pods that name no queue; add name: "*" to the row',
        ),
    ],
)
def test_rules_that_are_wrong(document: Any, problem: str | None) -> None:
    if problem is None:
        assert parse_rules(document) == Rules() == parse_rules(None)
        return
    with pytest.raises(RulesProblem) as raised:
        parse_rules(document)
    assert str(raised.value) == problem


def test_asks_that_are_not_used_are_forgotten() -> None:
    cluster = load("volcano-job")
    [(item, _)] = cluster.items()
    first, second = [stage["name"] for stage in item["stages"]]
    cluster.objects.keep_asks({second})
    assert list(cluster.objects.asks) == [second]
    assert cluster.items()[0][0] == item
    assert sorted(cluster.objects.asks) == sorted([first, second])


def test_names() -> None:
    assert short_name("train") == "train"
    long = "n" * 100 + ".example"
    assert len(short_name(long)) <= 63 and short_name(long) != short_name(long + "x")
    pod = read_pod(metadata={"name": "a.b", "namespace": "ml", "uid": "1"})
    again = read_pod(metadata={"name": "a.b", "namespace": "ml", "uid": "2"})
    assert membership(pod).job != membership(again).job
    assert re.fullmatch(r"ml-a-b-[0-9a-f]{8}", membership(pod).job)


def test_a_priority_class_outlives_other_objects_with_its_name() -> None:
    cluster = Cluster(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 7},
        {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "high"}, "spec": {}},
    )
    cluster.objects.drop("uid-PodGroup-high")
    assert cluster.objects.classes["high"].value == 7
    *_, forget = cluster.follows["/apis/scheduling.k8s.io/v1/priorityclasses"]
    forget("uid-PriorityClass-high")
    assert not cluster.objects.classes


# -- further dialects ------------------------------------------------------------------------------------------------


def grouped(pods: int, objects: GroupObjects | None = None, **metadata: Any) -> tuple[Any, Any]:
    """Return the group of some equal pods, and the first of them."""
    found = [
        read_pod(
            metadata={"name": f"p{at}", "namespace": "ns", "uid": f"uid-{at}", **metadata},
            spec={"containers": [{"resources": {"requests": {"cpu": "1", "example.com/fast": "1"}}}]},
        )
        for at in range(pods)
    ]
    return group_of(membership(found[0]), found, objects or GroupObjects(), Rules()), found[0]


@pytest.mark.parametrize("prefix", ["gang.scheduling.koordinator.sh", "pod-group.scheduling.sigs.k8s.io"])
def test_gangs_and_queues_of_koordinator(prefix: str) -> None:
    marks = {f"{prefix}/name": "g", f"{prefix}/min-available": "3", "quota.scheduling.koordinator.sh/name": "ml"}
    group, _ = grouped(2, annotations=marks)
    assert group.waits_for == "2 of 3 pods exist" and group.queue == "root.ml"
    assert not grouped(3, labels=marks)[0].waits_for


def test_a_required_topology_of_kueue_is_refused_in_both_ways() -> None:
    key = "kueue.x-k8s.io/podset-{}-topology"
    group, pod = grouped(1, annotations={key.format("required"): "rack"})
    for gated in (False, True):
        (problem,) = group.needs_of(pod, gated)
        assert "one rack" in str(problem)
    group, pod = grouped(1, annotations={key.format("preferred"): "rack"})
    assert group.needs_of(pod).near == "rack"


def test_resources_of_a_device_class_are_left_to_kube_scheduler() -> None:
    objects = GroupObjects()
    offered = {"metadata": {"name": "fast", "uid": "c"}, "spec": {"extendedResourceName": "example.com/fast"}}
    objects.followed()[-2][2](msgspec.convert(offered, DeviceClass))
    group, pod = grouped(1, objects)
    assert dict(group.needs_of(pod, gated=True).resources) == {"cpu": 1000, "pods": 1000}
    (problem,) = group.needs_of(pod)
    assert "DeviceClass fast" in str(problem)


def test_a_job_set_that_is_placed_exclusively_is_no_gang() -> None:
    marked = {
        "metadata": {"annotations": {EXCLUSIVE: "rack"}},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 3}]},
    }
    assert read_job_set(msgspec.convert(marked, JobSet)).minimum == 0


def test_the_least_parallelism_of_kueue_is_the_size_of_the_gang() -> None:
    marked = {"metadata": {"annotations": {KUEUE_MINIMUM: "3"}}, "spec": {"parallelism": 10, "completions": 10}}
    assert read_job(msgspec.convert(marked, Job)).minimum == 3
