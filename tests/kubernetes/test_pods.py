"""Pods and nodes of Kubernetes as asks and nodes of the core, judged by what the core then does."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.resources import parse_capacity, parse_request
from fairlead.kubernetes.nodes import node_items, node_state
from fairlead.kubernetes.objects import LabelSelector, Pod
from fairlead.kubernetes.pods import NotHonoured, read_needs, selects, soft_fields, used_by
from fairlead.kubernetes.provision_requests import _template
from fairlead.kubernetes.quantities import NotAQuantity, capacities, documented, read_quantity, requests
from fairlead.testing import World
from tests.kubernetes.reading import read_node, read_pod

# -- quantities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", 1),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100n", Fraction(1, 10**7)),
        ("2Ki", 2048),
        ("1.5Gi", 3 * 2**29),
        ("3k", 3000),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("12e6", 12 * 10**6),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("-1", -1),
        (2, 2),
        (0.5, Fraction(1, 2)),
    ],
)
def test_quantity(text: Any, number: Any) -> None:
    assert read_quantity(text) == number


@pytest.mark.parametrize("text", ["", "m", "1x", "1 Gi", "1e", "1e99999", "٣", "1" * 65, "0x10"])
def test_a_text_that_is_no_quantity(text: str) -> None:
    with pytest.raises(NotAQuantity):
        read_quantity(text)


def test_amounts_in_units_of_the_core() -> None:
    asked = {
        "cpu": "100n",
        "memory": "100m",
        "ephemeral-storage": "5Ti",
        "hugepages-2Mi": "4Mi",
        "nvidia.com/gpu": "2",
        "example.com/Big": 1,
        "attachable-volumes-x": 3,
        "none": 0,
    }
    up = requests(asked)
    assert up == {
        "cpu": 1,
        "memory": 1,
        "ephemeral-storage": 5 * 2**20 * 1000,
        "hugepages-2mi": 4000,
        "nvidia.com/gpu": 2000,
        "example.com/big": 1000,
    }
    assert capacities({"cpu": "100n", "memory": "1500m"}) == {"memory": 1}
    assert parse_request(documented(up), "") == up
    assert parse_capacity(documented(capacities({"memory": "1000Ei"})), "") == {"memory": 2**50 - 1}
    assert requests({"memory": "1000Ei"})["memory"] == 2**50


@given(st.integers(0, 2**50), st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]))
def test_documents_read_back(amount: int, name: str) -> None:
    assert parse_request(documented({name: amount}), "") == ({name: amount} if amount else {})


# -- what pods use -----------------------------------------------------------------------------------------------


def container(**rest: Any) -> dict[str, Any]:
    wanted = {key: rest.pop(key) for key in ("cpu", "memory") if key in rest}
    return {"name": "c", "resources": {"requests": wanted}, **rest}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [container(cpu="1"), container(cpu="500m")]}, 1500),
        ({"containers": [container(cpu="1")], "initContainers": [container(cpu="3"), container(cpu="2")]}, 3000),
        ({"containers": [container(cpu="2")], "initContainers": [container(cpu="1", restartPolicy="Always")]}, 3000),
        (  # a sidecar runs beside the init container after it
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(cpu="1", restartPolicy="Always"), container(cpu="5")],
            },
            6000,
        ),
        (  # and not beside the one before it
            {
                "containers": [container(cpu="1")],
                "initContainers": [container(cpu="5"), container(cpu="1", restartPolicy="Always")],
            },
            5000,
        ),
        ({"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "4"}}}, 4000),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}}}]}, 2000),
        ({"containers": [{"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}]}, 1000),
        ({"containers": None}, 0),
    ],
)
def test_cpu_of_a_pod(spec: dict[str, Any], cpu: int) -> None:
    used = used_by(read_pod(spec=spec))
    assert used.pop("pods") == 1000
    assert used.get("cpu", 0) == cpu


def test_a_pod_that_ended_uses_nothing() -> None:
    assert used_by(read_pod(spec={"containers": [container(cpu="1")]}, status={"phase": "Failed"})) == {}


def test_host_ports() -> None:
    ports = [{"hostPort": 80}, {"hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"}, {"containerPort": 9}]
    used = used_by(read_pod(spec={"containers": [container(ports=ports)]}))
    assert {name for name in used if name != "pods"} == {"hostport/tcp-80", "hostport/udp-53"}


# -- placing by the core -----------------------------------------------------------------------------------------


class Site:
    """A world with nodes of Kubernetes, in which pods become single jobs."""

    def __init__(self, *nodes: dict[str, Any], others: dict[str, Pod] | None = None, **settings: Any) -> None:
        self.nodes = [read_node(**node) for node in nodes]
        self.w = World(settings)
        self.rm = self.w.rm("kubernetes")
        self.rm.register()
        self.others = {name: used_by(pod) for name, pod in (others or {}).items()}
        self.count = 0
        self.ports: dict[str, None] = {}

    def place(self, spec: dict[str, Any], **meta: Any) -> str:
        """Place a pod; return its node, or the reason why it waits."""
        pod = read_pod(spec={"containers": [container(cpu="1")], **spec}, metadata=meta)
        needs, problems = read_needs(pod)
        assert not problems, problems
        self.ports |= dict.fromkeys(needs.ports)
        items = [
            item
            for node in self.nodes
            for item in node_items(node, self.others.get(node.metadata.name, {}), self.ports)
        ]
        self.count += 1
        job = f"j{self.count}"
        self.rm.update(nodes=items, jobs=[{"job": job, "stages": [{"name": "s", "count": 1, **needs.keys()}]}])
        self.w.cycle()
        assert not [event for event in self.rm.events() if event.what == "rejected"]
        return next(iter(self.w.placements(job).values()), "") or str(self.w.explain(job)[0])


def node(name: str, cpu: int = 4, **rest: Any) -> dict[str, Any]:
    labels, taints, conditions = rest.pop("labels", {}), rest.pop("taints", []), rest.pop("conditions", [])
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}, **rest.pop("meta", {})},
        "spec": {"taints": taints, **rest},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "3"}, "conditions": conditions},
    }


@pytest.mark.parametrize(("settings", "best"), [({}, "rich"), ({"place": "pack"}, "lean")])
def test_pods_are_placed_by_price(settings: dict[str, Any], best: str) -> None:
    """A pod without GPUs leaves the CPUs that pods with GPUs usually need; `pack` takes the fullest node."""
    nodes = [node("lean", cpu=16), node("rich", cpu=32)]
    for each in nodes:
        each["status"]["allocatable"]["nvidia.com/gpu"] = "4"
    site = Site(*nodes, **settings)
    site.place({"containers": [{"name": "c", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "1"}}}]})
    site.w.finish("j1")
    site.w.advance(1)
    assert site.place({"containers": [container(cpu="8")]}) == best


def affinity(*terms: list[dict[str, Any]], fields: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    found: list[dict[str, Any]] = [{"matchExpressions": term} for term in terms]
    if fields:
        found.append({"matchFields": fields})
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}}
    return {"affinity": {"nodeAffinity": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


NODES = [
    node("a", labels={"zone": "a", "cores": "8"}),
    node("b", labels={"zone": "b", "cores": "16"}),
    node("c", labels={"cores": "x"}),
]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {"zone": "b"}}, "b"),
        (affinity([expression("zone", "In", "b", "z")]), "b"),
        (affinity([expression("zone", "NotIn", "a", "b")]), "c"),
        (affinity([expression("zone", "DoesNotExist")]), "c"),
        (affinity([expression("zone", "Exists"), expression("cores", "Gt", "8")]), "b"),
        (affinity([expression("cores", "Lt", "9")]), "a"),
        (affinity([expression("zone", "In", "z")], [expression("zone", "In", "b")]), "b"),
        (affinity(fields=[expression("metadata.name", "In", "c")]), "c"),
        (affinity(fields=[expression("metadata.name", "NotIn", "a", "b")]), "c"),
        (affinity([]), "no node"),
        (affinity([expression("zone", "In", "not a value")]), "no node"),
        ({**affinity([expression("zone", "Exists")]), "nodeSelector": {"cores": "16"}}, "b"),
        ({"nodeSelector": {"zone": "q"}}, "no node has label zone=q"),
    ],
)
def test_node_affinity(spec: dict[str, Any], expected: str) -> None:
    placed = Site(*NODES).place(spec)
    assert placed == expected if len(expected) == 1 else expected in placed


def test_preferred_node_affinity() -> None:
    def prefer(*weighted: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        terms = [{"weight": weight, "preference": {"matchExpressions": [term]}} for weight, term in weighted]
        return {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}

    for weights, expected in (((1, 2), "b"), ((2, 1), "a")):
        zones = zip(weights, "ab", strict=True)
        spec = prefer(*[(weight, expression("zone", "In", zone)) for weight, zone in zones])
        assert Site(*NODES).place(spec) == expected
    assert Site(*NODES).place(prefer((100, expression("zone", "In", "nowhere")))) in "abc"


def taint(key: str, value: str, effect: str) -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect}


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], "free"),
        ([{"key": "gpu", "value": "a", "effect": "NoSchedule"}], "tainted"),
        ([{"key": "gpu", "operator": "Exists"}], "tainted"),
        ([{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}], "tainted"),
        ([{"operator": "Exists"}], "tainted"),
        ([{"operator": "Exists", "effect": "NoExecute"}], "free"),
        ([{"key": "gpu", "value": "a"}], "tainted"),
        ([{"key": "gpu", "value": "b"}], "free"),
        ([{"key": "gp", "operator": "Exists"}], "free"),
    ],
)
def test_tolerations(tolerations: list[dict[str, Any]], expected: str) -> None:
    nodes = [node("tainted", 1, taints=[taint("gpu", "a", "NoSchedule")]), node("free", 2)]
    assert Site(*nodes).place({"tolerations": tolerations}) == expected


@pytest.mark.parametrize(("effect", "expected"), [("NoExecute", "free"), ("PreferNoSchedule", "free")])
def test_effects(effect: str, expected: str) -> None:
    site = Site(node("tainted", 1, taints=[taint("x", "", effect)]), node("free", 2))
    assert site.place({}) == expected
    site = Site(node("tainted", 1, taints=[taint("x", "", effect)]))
    assert site.place({}) == "tainted" if effect == "PreferNoSchedule" else "taint" in site.place({})


def test_ports_pods_and_other_schedulers() -> None:
    port = {"containers": [container(cpu="100m", ports=[{"hostPort": 80}])]}
    plain = {"containers": [container(cpu="100m")]}
    other = read_pod(spec={"containers": [container(cpu="3500m", ports=[{"hostPort": 443}])]})
    site = Site(node("a"), node("b"), others={"b": other})
    assert sorted([site.place(port), site.place(port)]) == ["a", "b"]
    assert "too little hostport/tcp-80 free" in site.place(port)
    secure = {"containers": [container(cpu="100m", ports=[{"hostPort": 443}])]}
    assert site.place(secure) == "a", "a pod of another scheduler has the port on b"
    placed = [site.place(plain) for _ in range(3)]
    assert placed.count("a") == 1 and placed.count("b") == 1, "a node takes 3 pods, other schedulers' among them"
    assert "too little pods free" in placed[2]


def test_labels_that_the_core_does_not_take() -> None:
    long = "x" * 200 + ".io/y"
    [item] = node_items(read_node(**node("a", labels={long: "1", "ok": "2"})), {})
    assert item["labels"] == {"kubernetes.io/hostname": "a", "ok": "2", "metadata.name": "a"}
    _, problems = read_needs(read_pod(spec={"nodeSelector": {long: "1"}}))
    assert [problem.field for problem in problems] == ["spec.nodeSelector"]
    many = {f"feature.node.kubernetes.io/cpu-{at}": "true" for at in range(500)}
    assert Site(node("a", labels=many)).place({"nodeSelector": {"feature.node.kubernetes.io/cpu-499": "true"}}) == "a"


# -- nodes -------------------------------------------------------------------------------------------------------


def condition(status: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status, "message": message}]


@pytest.mark.parametrize(
    ("document", "state"),
    [
        (node("a"), ("enable", "")),
        (node("a", conditions=condition("True")), ("enable", "")),
        (node("a", conditions=condition("False", "no network")), ("disable", "no network")),
        (node("a", conditions=condition("Unknown")), ("disable", "the node is not ready")),
        (node("a", unschedulable=True), ("drain", "cordoned")),
        (node("a", meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}), ("drain", "the node is being deleted")),
    ],
)
def test_state_of_a_node(document: dict[str, Any], state: tuple[str, str]) -> None:
    assert node_state(read_node(**document)) == state


def test_a_cordoned_node_is_enabled_again_and_a_drained_one_stays() -> None:
    w = World()
    rm = w.rm("kubernetes")
    rm.register()
    plain, cordoned = read_node(**node("a")), read_node(**node("a", unschedulable=True))
    sent: list[dict[str, Any]] = []
    for seen, state in ((plain, "up"), (cordoned, "draining"), (plain, "up"), (plain, "up")):
        sent = node_items(seen, {}, (), sent)
        rm.update(nodes=sent)
        w.cycle()
        assert not [event for event in rm.events() if event.what == "rejected"]
        nodes = w.partition().nodes
        assert nodes.state[nodes.rows[nodes.find("a")]] == state  # type: ignore[index]
    assert sent == node_items(plain, {}, (), sent), "nothing more to send"
    w.drain("a")
    rm.update(nodes=node_items(plain, {"cpu": 1000}, (), sent))
    w.cycle()
    assert nodes.state[nodes.rows[nodes.find("a")]] == "draining"  # type: ignore[index]


def test_the_taint_of_a_cordon_is_left_out() -> None:
    taints = [taint("node.kubernetes.io/unschedulable", "", "NoSchedule"), taint("x", "y", "NoSchedule")]
    [item] = node_items(read_node(**node("a", taints=taints)), {})
    assert item["taints"] == ["x=y:NoSchedule"]


# -- what is not honoured ----------------------------------------------------------------------------------------

OWN = {"batch.kubernetes.io/job-name": "train"}
OTHER = {"app": "train"}


def term(labels: dict[str, str], key: str = "kubernetes.io/hostname", **rest: Any) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}, **rest}


def about(kind: str, *terms: dict[str, Any], soft: bool = False) -> dict[str, Any]:
    if soft:
        weighted = [{"weight": 1, "podAffinityTerm": each} for each in terms]
        return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def spread(labels: dict[str, str], key: str = "kubernetes.io/hostname", when: str = "DoNotSchedule") -> dict[str, Any]:
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": labels}}
    return {"topologySpreadConstraints": [constraint]}


HARD = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "spec.volumes[0].persistentVolumeClaim",
        ),
        ({"volumes": [{"name": "e"}, {"name": "v", "ephemeral": {}}]}, "spec.volumes[1].ephemeral"),
        ({"volumes": [{"name": "v", "csi": {}}]}, "spec.volumes[0].csi"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims"),
        (about("podAffinity", term(OWN)), f"spec.affinity.podAffinity.{HARD}"),
        (about("podAntiAffinity", term(OTHER)), f"spec.affinity.podAntiAffinity.{HARD}[0]"),
        (about("podAntiAffinity", term(OWN, "zone")), f"spec.affinity.podAntiAffinity.{HARD}[0]"),
        (about("podAntiAffinity", term(OWN, namespaces=["x"])), f"spec.affinity.podAntiAffinity.{HARD}[0]"),
        (about("podAntiAffinity", term(OWN, namespaceSelector={})), f"spec.affinity.podAntiAffinity.{HARD}[0]"),
        (spread(OTHER), "spec.topologySpreadConstraints[0]"),
        (spread(OWN, "zone"), "spec.topologySpreadConstraints[0]"),
        ({"tolerations": [{"key": "sla", "operator": "Gt", "value": "5"}]}, "spec.tolerations[0].operator"),
        (
            affinity([expression("x", "Near", "y")]),
            f"spec.affinity.nodeAffinity.{HARD}.nodeSelectorTerms[0].matchExpressions",
        ),
        ({"containers": [container(cpu="much")]}, "spec.containers"),
    ],
)
def test_a_field_that_is_not_honoured(spec: dict[str, Any], field: str) -> None:
    labels = {**OWN, **OTHER}
    pod = msgspec.json.decode(
        msgspec.json.encode({"metadata": {"namespace": "ml", "labels": labels}, "spec": spec}), type=Pod
    )
    _, problems = read_needs(pod, own=tuple(OWN), gang=True)
    assert [problem.field for problem in problems] == [field]
    assert isinstance(problems[0], NotHonoured) and str(problems[0]).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("spec", "near", "apart"),
    [
        (about("podAntiAffinity", term(OWN)), "", True),
        (about("podAntiAffinity", term({**OWN, **OTHER}, namespaces=["ml"])), "", True),
        (about("podAntiAffinity", term(OTHER, matchLabelKeys=["batch.kubernetes.io/job-name"])), "", True),
        (spread(OWN), "", True),
        (about("podAffinity", term(OWN, "rack"), soft=True), "rack", False),
        (about("podAffinity", term(OTHER, "rack"), soft=True), "", False),
        ({"volumes": [{"name": "v", "configMap": {}}, {"name": "e"}, {"name": "s", "secret": {}}]}, "", False),
        ({}, "", False),
    ],
)
def test_near_and_apart(spec: dict[str, Any], near: str, apart: bool) -> None:
    metadata = {"namespace": "ml", "labels": {**OWN, **OTHER}}
    pod = msgspec.json.decode(msgspec.json.encode({"metadata": metadata, "spec": spec}), type=Pod)
    needs, problems = read_needs(pod, own=tuple(OWN), gang=True)
    assert not problems
    assert (needs.near, needs.apart) == (near, apart)


def test_a_spread_of_pods_that_are_no_gang_is_not_honoured() -> None:
    pod = read_pod(metadata={"namespace": "ml", "labels": OWN}, spec=spread(OWN))
    _, problems = read_needs(pod, own=tuple(OWN))
    assert problems


def test_soft_fields_are_listed() -> None:
    spec = {
        **about("podAntiAffinity", term(OTHER), soft=True),
        **spread(OTHER, when="ScheduleAnyway"),
    }
    pod = read_pod(metadata={"namespace": "ml", "labels": OTHER}, spec=spec)
    assert soft_fields(pod) == [
        "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]",
        "spec.topologySpreadConstraints[0]",
    ]
    _, problems = read_needs(pod)
    assert not problems


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [expression("a", "In", "1", "2")]}, True),
        ({"matchExpressions": [expression("a", "NotIn", "1")]}, False),
        ({"matchExpressions": [expression("b", "NotIn", "1")]}, True),
        ({"matchExpressions": [expression("b", "Exists")]}, False),
        ({"matchExpressions": [expression("b", "DoesNotExist")]}, True),
        ({"matchExpressions": [expression("b", "Unknown")]}, False),
    ],
)
def test_label_selectors(selector: dict[str, Any], expected: bool) -> None:
    assert selects(msgspec.convert(selector, LabelSelector), {"a": "1"}) is expected


def test_a_bookmark_is_read() -> None:
    metadata = b'{"resourceVersion":"7","creationTimestamp":null}'
    pod = msgspec.json.decode(b'{"metadata":' + metadata + b',"spec":{"containers":null}}', type=Pod)
    assert pod.metadata.resource_version == "7" and used_by(pod) == {"pods": 1000}


def test_a_pod_template_keeps_the_required_fields_of_spread_constraints() -> None:
    """The API server refuses a template without them, and gives them no defaults."""
    constraint = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    pod = read_pod(spec={"topologySpreadConstraints": [constraint]})
    template = _template("t", pod, {"name": "r", "uid": "u"})["template"]
    assert template["spec"]["topologySpreadConstraints"] == [constraint]
