"""The adapter between a cluster and a real core: pods are given as documents, and its actions are looked at."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fairlead.kubernetes import manager_updates
from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.adapter import Adapter
from fairlead.kubernetes.in_flight import admit_patch
from fairlead.kubernetes.names import GATE, KEPT_OFF, NOMINATED, ON_LOSS
from fairlead.kubernetes.objects import REQUIRED, Affinity, DisruptionBudget
from fairlead.kubernetes.pods import read_needs
from fairlead.kubernetes.units import Member
from fairlead.testing import World
from fairlead.views.manager_answers import manager_state
from fairlead.wire.api import ManagerEvent, UpdateItem
from tests.kubernetes.reading import read_node, read_pod

Json = dict[str, Any]


class Play:
    """A partition and an adapter. Calls to the API server are noted, and answered by the test."""

    def __init__(self) -> None:
        self.world = World()
        self.rm = self.world.rm("kubernetes")
        self.rm.register()
        self.world.cycle()
        self.restart()

    def restart(self) -> None:
        """Start another adapter. It knows nothing yet."""
        self.calls: list[Target] = []
        self.problems: list[str] = []
        self.adapter = Adapter(self.calls.append)

    def connect(self) -> None:
        self.rm.events()
        self.adapter.adopt(manager_state(self.world.partition(), "kubernetes", 0))
        self.settle()

    def settle(self) -> None:
        """Send updates and take events until nothing is left to do."""
        while (items := self.adapter.update()) is not None:
            self.rm.update(**items)
            self.world.cycle()
            self.take(items)

    def take(self, items: Json | None = None) -> None:
        """Take the events and answers of the partition."""
        events = self.rm.events()
        answers = [
            UpdateItem(what=event.item, name=event.job, accepted=event.what == "accepted", reason=event.reason)
            for event in events
            if event.what in ("accepted", "rejected")
        ]
        self.problems += self.adapter.answered(items or {}, answers)
        self.adapter.take_events(
            ManagerEvent(
                what=event.what,
                job=event.job,
                ask=event.ask,
                indices=list(event.indices),
                attempt=event.attempt,
                node=event.node,
                devices=[],
                reason=event.reason,
            )
            for event in events
            if event.what not in ("accepted", "rejected")
        )

    def carry_out(self) -> list[tuple[str, str, str]]:
        """Confirm the calls so far. Return verb, pod and node of each."""
        done, self.calls[:] = list(self.calls), []
        for target in done:
            target.confirmed = True
            self.adapter.done(target)
        self.settle()
        return [(target.verb, target.name, target.node) for target in done if not target.cancelled]

    def later(self, seconds: float = 60.0) -> None:
        """Look again after some time."""
        now = self.adapter.clock() + seconds
        self.adapter.clock = lambda: now
        self.adapter.retry()
        self.settle()


def node(name: str, cpu: int = 4, **spec: Any) -> Any:
    status = {"allocatable": {"cpu": cpu, "pods": 110}, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": name}
    return read_node(metadata={"name": name, "uid": f"uid-{name}", "labels": labels}, spec=spec, status=status)


def pod(
    name: str,
    cpu: int = 1,
    on: str = "",
    gated: bool = False,
    nominated: str = "",
    scheduler: str = "",
    owner: bool = False,
    status: Json | None = None,
    port: int = 0,
    **annotations: str,
) -> Any:
    """A pod of a group of two named by its name up to a dash, or alone if it has none."""
    group, _, number = name.partition("-")
    if number:
        annotations = {"fairlead.dev/group": group, "fairlead.dev/min": "2"} | annotations
    if nominated:
        annotations[NOMINATED] = nominated
    owners = [{"kind": "ReplicaSet", "name": "set", "uid": "set", "controller": True}] if owner else None
    ports = [{"hostPort": port, "containerPort": port}] if port else None
    return read_pod(
        metadata={
            "name": name,
            "namespace": "ns",
            "uid": f"uid-{name}",
            "annotations": annotations,
            "ownerReferences": owners,
        },
        spec={
            "schedulerName": scheduler or ("default-scheduler" if gated or nominated else "fairlead"),
            "nodeName": on,
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}, "ports": ports}],
            "schedulingGates": [{"name": GATE}] if gated else None,
        },
        status=status or {},
    )


REFUSED: Json = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
    ]
}


@pytest.fixture
def play() -> Play:
    found = Play()
    found.adapter.put_node(node("n1"))
    return found


def members(play: Play) -> dict[str, Member]:
    return {member.name: member for member in play.adapter.members.values()}


# -- nominated pods ------------------------------------------------------------------------------------------------


def cpus(play: Play) -> dict[str, int]:
    """Return the CPUs that the partition has booked on each node."""
    nodes = play.world.partition().nodes
    return {nodes.name[row]: nodes.used["cpu"][row] // 1000 for row in nodes.rows.values()}


def test_room_is_reserved_for_a_refused_pod_until_it_is_bound(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=3, gated=True, owner=True))
    play.connect()
    assert play.carry_out() == [("admit", "a", "n1")]
    play.adapter.put_pod(pod("a", cpu=3, nominated="n1", owner=True, status=REFUSED))
    play.adapter.put_pod(pod("other", cpu=2))
    play.later()
    assert not play.calls  # nothing is evicted, and the room is not given away
    assert members(play)["a"].refused == "default-scheduler does not bind it: 0/2 nodes are available"
    play.adapter.put_pod(pod("a", cpu=3, nominated="n1", owner=True, on="n1"))
    play.settle()
    assert not members(play)["a"].refused and not play.adapter.nominated and cpus(play) == {"n1": 3}


def test_the_room_of_a_pod_that_is_refused_for_long_is_given_to_others(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=3, gated=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", cpu=3, nominated="n1", status=REFUSED))
    play.adapter.put_pod(pod("other", cpu=2))
    play.later(400)
    assert play.carry_out() == [("bind", "other", "n1")]
    play.adapter.put_node(node("n2"))
    play.adapter.put_pod(pod("a", cpu=3, nominated="n1", on="n2"))  # its scheduler found a place in the end
    play.settle()
    assert cpus(play) == {"n1": 2, "n2": 3}


def test_the_room_of_a_gang_is_reserved_until_all_of_it_is_bound(play: Play) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=2, gated=True, owner=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("g-0", cpu=2, nominated="n1", owner=True, on="n1"))
    play.adapter.put_pod(pod("g-1", cpu=2, nominated="n1", owner=True, status=REFUSED))
    play.adapter.put_pod(pod("other", cpu=1))
    play.later(4000)
    assert not play.calls and cpus(play) == {"n1": 4}


def test_a_nominated_pod_that_is_bound_elsewhere_is_booked_there(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=3, gated=True))
    play.connect()
    play.carry_out()
    play.adapter.put_node(node("n2"))
    play.settle()
    play.adapter.put_pod(pod("a", cpu=3, nominated="n1", on="n2"))
    play.settle()
    assert cpus(play) == {"n1": 0, "n2": 3} and not play.problems


def test_a_pod_on_a_node_that_was_filled_meanwhile_is_evicted(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=3, gated=True))
    play.connect()
    play.carry_out()
    play.adapter.put_node(node("n2"))
    play.adapter.put_pod(pod("b", cpu=3))
    play.settle()
    assert play.carry_out() == [("bind", "b", "n2")]
    play.adapter.put_pod(pod("b", cpu=3, on="n2"))
    play.adapter.put_pod(pod("a", cpu=3, nominated="n1", on="n2"))  # bound before its scheduler saw b there
    play.settle()
    play.adapter.retry()
    assert play.carry_out() == [("evict", "a", "")]
    assert "cpu of node n2" in members(play)["a"].lost


def test_nodes_that_only_fairlead_has_drained_are_kept_from_other_schedulers(play: Play) -> None:
    for name in ("n2", "n3", "n4"):
        play.adapter.put_node(node(name, **({"unschedulable": True} if name == "n4" else {})))
    play.connect()
    play.world.drain("n2")
    play.world.cycle()
    play.take()
    assert play.adapter.kept_off() == ["n2"]


HAS_A: Json = {"key": "a", "operator": "Exists"}
NOT_N2: Json = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n2"]}


def affine(found: Any, *conditions: Json) -> Any:
    """Give a pod a required affinity to nodes that meet these conditions; none if there are none."""
    required = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(conditions)}]}}
    found.spec.affinity = msgspec.convert({"nodeAffinity": required}, Affinity) if conditions else None
    return found


def test_a_node_is_kept_off_by_a_condition_on_each_term() -> None:
    def step(found: Any) -> Json:
        (changed,) = (step for step in json.loads(admit_patch(found, GATE, "n1", ["n2"])) if "affinity" in step["path"])
        return dict(changed)

    terms = {"nodeSelectorTerms": [{"matchExpressions": [NOT_N2]}]}
    plain = step(affine(pod("plain", gated=True)))
    assert plain == {"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": {REQUIRED: terms}}}
    path = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms/0/matchExpressions/-"
    assert step(affine(pod("choosy", gated=True), HAS_A)) == {"op": "add", "path": path, "value": NOT_N2}


@pytest.mark.parametrize("wanted", [(), (HAS_A,)])
def test_what_was_added_to_a_gated_pod_makes_no_difference(wanted: tuple[Json, ...]) -> None:
    """Its ask is the same after a restart."""
    before = affine(pod("a", gated=True), *wanted)
    after = affine(pod("a", nominated="n1", **{KEPT_OFF: "n2"}), *wanted, NOT_N2)
    assert read_needs(before) == read_needs(after)


def test_a_nominated_pod_whose_node_is_gone_gets_room_elsewhere(play: Play) -> None:
    play.adapter.put_pod(pod("a", gated=True, owner=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", nominated="n1", owner=True))
    play.adapter.drop_node("uid-n1")
    play.adapter.put_node(node("n2"))
    play.settle()
    assert play.carry_out() == [("admit", "a", "n2")] and cpus(play) == {"n2": 1}


def test_nominated_pods_are_paired_with_the_tasks_on_their_nodes_after_a_start(play: Play) -> None:
    play.adapter.put_node(node("n2"))
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=3, gated=True))
    play.connect()
    where = {name: target for _, name, target in play.carry_out()}
    assert sorted(where.values()) == ["n1", "n2"]
    play.restart()
    for name in ("n1", "n2"):
        play.adapter.put_node(node(name))
    for name in ("g-1", "g-0"):
        play.adapter.put_pod(pod(name, cpu=3, nominated=where[name]))
    play.connect()
    assert not play.calls
    assert {name: member.placed for name, member in members(play).items()} == where


def test_a_pod_that_names_a_node_by_itself_books_nothing(play: Play) -> None:
    """The annotation can be written by users: such a pod is booked when it is bound, and asks for nothing."""
    play.adapter.put_pod(pod("a", nominated="n1", scheduler="default-scheduler"))
    play.connect()
    assert not play.calls and not play.problems
    assert not play.world.partition().jobs
    play.adapter.put_pod(pod("a", nominated="n1", scheduler="default-scheduler", on="n1"))
    play.settle()
    assert [list(play.world.placements(job).values()) for job in play.world.partition().jobs] == [["n1"]]


def test_a_nominated_pod_that_has_to_stop_is_evicted(play: Play) -> None:
    """It would be bound later otherwise, where its room is given to another pod."""
    play.adapter.put_pod(pod("a", gated=True))
    play.connect()
    play.carry_out()
    (job,) = play.world.partition().jobs
    play.world.kill(job)
    play.world.cycle()
    play.take()
    assert [target.verb for target in play.calls] == ["delete"]


def test_gated_pods_keep_their_bookings_after_a_start(play: Play) -> None:
    """They are bound by now, and have the annotation that Fairlead added."""
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=2, gated=True))
    play.connect()
    play.carry_out()
    play.restart()
    play.adapter.put_node(node("n1"))
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=2, nominated="n1", on="n1"))
    play.adapter.put_pod(pod("late", cpu=1))
    play.connect()
    assert not play.calls and cpus(play) == {"n1": 4} and not play.problems


def test_pods_of_an_ask_that_the_partition_does_not_know_are_booked_with_their_resources(play: Play) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=1))
    play.connect()
    play.carry_out()
    play.restart()
    play.adapter.put_node(node("n1"))
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=2, on="n1"))  # resized while no adapter ran
    play.adapter.put_pod(pod("late", cpu=1))
    play.connect()
    assert not play.calls and cpus(play) == {"n1": 4} and not play.problems


# -- nodes that come back, and pods that change ------------------------------------------------------------------------


def test_pods_on_a_node_that_is_made_again_are_booked_there(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=4))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", cpu=4, on="n1"))
    play.adapter.put_pod(pod("b", cpu=4))
    play.settle()
    play.adapter.drop_node("uid-n1")
    again = node("n1")
    again.metadata.uid = "uid-again"
    play.adapter.put_node(again)
    play.settle()
    assert not play.calls
    play.later(20)
    assert not play.calls and cpus(play) == {"n1": 4}
    play.adapter.drop_pod("uid-a")
    play.settle()
    assert play.carry_out() == [("bind", "b", "n1")]


def test_a_node_that_is_listed_again_under_its_name_stays(play: Play) -> None:
    play.connect()
    again = node("n1")
    again.metadata.uid = "uid-again"
    play.adapter.put_node(again)
    play.settle()
    play.adapter.drop_node("uid-n1")
    play.adapter.put_pod(pod("a"))
    play.settle()
    assert play.carry_out() == [("bind", "a", "n1")]


def test_a_pod_that_is_resized_in_place_uses_what_it_has_now(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=1))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", cpu=1, on="n1"))
    play.adapter.put_pod(pod("a", cpu=3, on="n1"))
    play.adapter.put_pod(pod("b", cpu=2))
    play.settle()
    assert not play.calls
    granted = {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": 3}}]}
    play.adapter.put_pod(pod("a", cpu=2, on="n1", status=granted))  # it still has what it gives back
    play.settle()
    assert not play.calls
    play.adapter.put_pod(pod("a", cpu=2, on="n1"))
    play.settle()
    assert play.carry_out() == [("bind", "b", "n1")]
    play.adapter.drop_pod("uid-a")
    play.adapter.put_pod(pod("c", cpu=2))
    play.settle()
    assert play.carry_out() == [("bind", "c", "n1")]


def test_a_waiting_gang_that_becomes_smaller_starts(play: Play) -> None:
    names = [f"g-{at}" for at in range(5)]
    for name in names:
        play.adapter.put_pod(pod(name, **{"fairlead.dev/min": "5"}))
    play.connect()
    assert not play.calls
    for name in names:
        play.adapter.put_pod(pod(name, **{"fairlead.dev/min": "4"}))
    play.adapter.touch_units([play.adapter.members["uid-g-0"].unit.key])
    play.settle()
    play.later(5)
    assert len(play.carry_out()) == 4


def test_pods_that_have_succeeded_count_for_the_minimum(play: Play) -> None:
    play.adapter.objects.put_succeeded(pod("g-0", owner=True))
    other = pod("g-9", owner=True)
    other.metadata.owner_references[0].uid = "an earlier run"
    play.adapter.objects.put_succeeded(other)
    play.adapter.put_pod(pod("g-1", owner=True))
    play.connect()
    assert play.carry_out() == [("bind", "g-1", "n1")]
    play.adapter.objects.drop_succeeded("uid-g-0")
    play.adapter.drop_pod("uid-g-1")
    play.settle()
    play.adapter.put_pod(pod("g-2", owner=True))
    play.settle()
    assert not play.calls and members(play)["g-2"].unit.why[1] == "1 of 2 pods exist"


# -- after a start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["other pod", "smaller node", "cordon", "none"])
def test_a_pod_that_was_placed_and_not_bound_is_bound_only_if_there_is_still_room(play: Play, change: str) -> None:
    play.adapter.put_pod(pod("a", cpu=3))
    play.connect()
    assert [target.verb for target in play.calls] == ["bind"]  # and the adapter crashes before the call
    play.restart()
    play.adapter.put_node(
        node("n1", cpu=2 if change == "smaller node" else 4, **({"unschedulable": True} if change == "cordon" else {}))
    )
    if change == "other pod":
        play.adapter.put_pod(pod("other", cpu=2, on="n1", scheduler="default-scheduler"))
    play.adapter.put_pod(pod("a", cpu=3))
    play.connect()
    if change == "none":
        assert play.carry_out() == [("bind", "a", "n1")]
        return
    assert not play.calls and not members(play)["a"].live
    play.adapter.put_node(node("n2"))
    play.settle()
    assert play.carry_out() == [("bind", "a", "n2")]


def test_pods_of_ours_count_when_room_is_looked_at_again(play: Play) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, cpu=2))
    play.connect()
    assert [target.name for target in play.calls] == ["g-0", "g-1"]
    play.restart()
    play.adapter.put_node(node("n1"))
    play.adapter.put_pod(pod("late", cpu=1, on="n1"))  # bound, and not in the journal
    play.adapter.put_pod(pod("g-0", cpu=2, on="n1"))
    play.adapter.put_pod(pod("g-1", cpu=2))
    play.connect()
    assert not play.calls and not members(play)["g-1"].live


@pytest.mark.parametrize("on", ["", "n1"])
def test_a_job_that_was_refused_is_sent_again(play: Play, on: str) -> None:
    """Also if its pods run already, so that they are booked as soon as that is possible."""
    play.adapter.put_pod(pod("a", on=on, **{"fairlead.dev/queue": "root.late"}))
    play.connect()
    assert members(play)["a"].unit.why == ("Refused", 'queue: there is no queue "root.late"')
    play.world.queue("root.late")
    play.world.cycle()
    play.later()
    assert [list(play.world.placements(job).values()) for job in play.world.partition().jobs] == [["n1"]]


# -- pods that run and are not booked --------------------------------------------------------------------------------

LATE = {"fairlead.dev/queue": "root.late"}


def test_running_pods_of_a_job_that_is_refused_keep_their_room(play: Play) -> None:
    play.adapter.put_pod(pod("new", cpu=2))  # listed first
    play.adapter.put_pod(pod("old", cpu=3, on="n1", **LATE))
    play.connect()
    assert not play.calls and members(play)["old"].unit.why[0] == "Refused"
    play.later()  # it is refused again
    assert not play.calls
    play.adapter.put_pod(pod("small", cpu=1))
    play.settle()
    assert play.carry_out() == [("bind", "small", "n1")]
    play.world.queue("root.late")
    play.world.cycle()
    play.later()
    assert not play.calls and "uid-old" not in play.adapter.others
    play.adapter.drop_pod("uid-old")
    play.settle()
    assert play.carry_out() == [("bind", "new", "n1")]


def test_running_pods_of_a_refused_job_may_use_all_of_a_resource(play: Play) -> None:
    """Otherwise no node would offer the resource, and the job could never be accepted."""
    status = {"allocatable": {"cpu": 4, "pods": 110, "example.com/fpga": 2}}
    play.adapter.put_node(read_node(metadata={"name": "n1", "uid": "uid-n1"}, status=status))
    old = pod("old", on="n1", **LATE)
    old.spec.containers[0].resources.requests["example.com/fpga"] = "2"
    play.adapter.put_pod(old)
    play.connect()
    assert all("root.late" in problem or "recover" in problem for problem in play.problems), play.problems
    assert play.adapter.nodes["uid-n1"].sent[0]["resources"]["example.com/fpga"] == "1m"
    play.world.queue("root.late")
    play.world.cycle()
    play.later()
    assert [list(play.world.placements(job).values()) for job in play.world.partition().jobs] == [["n1"]]
    play.adapter.drop_pod("uid-old")
    new = pod("new")
    new.spec.containers[0].resources.requests["example.com/fpga"] = "2"
    play.adapter.put_pod(new)
    play.settle()
    assert play.carry_out() == [("bind", "new", "n1")]


def test_running_pods_count_before_tasks_that_wait_in_the_journal_are_placed(play: Play) -> None:
    play.adapter.put_pod(pod("full", cpu=4, on="n1"))
    play.adapter.put_pod(pod("waits", cpu=4))
    play.connect()
    assert not play.calls
    play.restart()
    play.adapter.put_node(node("n1"))
    play.adapter.put_pod(pod("waits", cpu=4))
    play.adapter.put_pod(pod("other", cpu=4, on="n1"))  # bound while no adapter ran; `full` has ended
    play.rm.events()
    play.adapter.adopt(manager_state(play.world.partition(), "kubernetes", 0))
    items = play.adapter.update()
    assert items is not None and items["nodes"][0]["resources"] == {"pods": 109}
    assert [item["name"] for item in items["jobs"] if "name" in item] == ["other"]
    play.rm.update(**items)
    play.world.cycle()
    play.take(items)
    play.settle()
    assert not play.calls and members(play)["other"].placed == "n1"


def test_a_running_pod_with_a_field_that_is_not_honoured_keeps_its_room(play: Play) -> None:
    astray = pod("astray", cpu=3, on="n1")
    astray.spec.volumes = [{"persistentVolumeClaim": msgspec.Raw(b"{}")}]
    play.adapter.put_pod(astray)
    play.adapter.put_pod(pod("new", cpu=2))
    play.connect()
    assert not play.calls
    play.adapter.drop_pod("uid-astray")
    play.settle()
    assert play.carry_out() == [("bind", "new", "n1")]


def test_a_running_pod_on_a_node_that_is_not_there_yet_is_booked_later(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=2, on="n2"))
    play.connect()
    assert any("n2" in problem for problem in play.problems)
    play.adapter.put_node(node("n2"))
    play.adapter.put_pod(pod("new", cpu=3))
    play.adapter.drop_node("uid-n1")
    play.settle()
    assert not play.calls  # its room on n2 is taken
    play.later()
    assert members(play)["a"].placed == "n2" and "uid-a" not in play.adapter.others


def test_the_start_ends_with_an_update_without_more(play: Play) -> None:
    """The partition becomes ready with it, so it comes after the answers about pods that run."""
    play.adapter.put_pod(pod("old", cpu=3, on="n1", **LATE))
    play.rm.events()
    play.adapter.adopt(manager_state(play.world.partition(), "kubernetes", 0))
    sent = []
    while (items := play.adapter.update()) is not None:
        sent.append(items)
        play.rm.update(**items)
        play.world.cycle()
        play.take(items)
    assert [bool(items.get("more")) for items in sent] == [*[True] * (len(sent) - 1), False]
    assert sent[-1]["nodes"][0]["resources"]["cpu"] == 1 and "jobs" not in sent[-1]


# -- disruption budgets ----------------------------------------------------------------------------------------------


def budget(allowed: int) -> DisruptionBudget:
    return msgspec.convert(
        {
            "metadata": {"name": "b", "namespace": "ns", "uid": "uid-b"},
            "spec": {"selector": {"matchLabels": {"app": "db"}}},
            "status": {"disruptionsAllowed": allowed},
        },
        DisruptionBudget,
    )


def put_urgent(play: Play) -> None:
    """Add a pod that others have to stop for."""
    play.world.advance(1)
    urgent = pod("urgent", cpu=2)
    urgent.spec.priority = 100
    play.adapter.put_pod(urgent)
    play.settle()
    play.world.advance(1)
    play.take()


def preempting(play: Play, allowed: int) -> list[str]:
    """Fill a node with two pods of a budget and one without, and return what is evicted for an urgent pod of 2 CPUs."""
    play.adapter.budgets.put(budget(allowed))
    play.connect()
    for name in ("free", "db1", "db2"):
        found = pod(name, cpu=2 if name == "free" else 1)
        found.metadata.labels = {"app": "db"} if name != "free" else {}
        play.adapter.put_pod(found)
        play.settle()
        play.carry_out()
        bound = pod(name, cpu=2 if name == "free" else 1, on="n1")
        play.adapter.put_pod(bound)
    play.adapter.retry()
    play.settle()
    put_urgent(play)
    return sorted(target.name for target in play.calls)


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_budget_keeps_pods_from_being_stopped(play: Play, allowed: int) -> None:
    assert preempting(play, allowed) == ["free"]


def test_a_pod_whose_eviction_is_refused_for_long_is_booked_again(play: Play) -> None:
    play.adapter.put_pod(pod("a", cpu=4))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", cpu=4, on="n1"))
    put_urgent(play)
    (target,) = play.calls
    play.calls.clear()
    play.adapter.drop_pod("uid-urgent")
    play.settle()
    play.adapter.refused(target, "the disruption budget needs it")
    play.settle()
    assert not play.calls and cpus(play) == {"n1": 4} and not members(play)["a"].stopping


# -- losses ----------------------------------------------------------------------------------------------------------

DISRUPTED: Json = {"conditions": [{"type": "DisruptionTarget", "status": "True", "message": "the node failed"}]}


@pytest.mark.parametrize(("on_loss", "stopped"), [("replace", []), ("restart", ["evict"]), ("fail", ["delete"])])
def test_a_manifest_says_what_follows_a_loss(play: Play, on_loss: str, stopped: list[str]) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, **{ON_LOSS: on_loss}))
    play.connect()
    assert len(play.carry_out()) == 2
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, on="n1", **{ON_LOSS: on_loss}))
    play.adapter.put_pod(pod("g-0", on="n1", status=DISRUPTED, **{ON_LOSS: on_loss}))
    play.adapter.drop_pod("uid-g-0")
    play.settle()
    assert [(target.verb, target.name) for target in play.calls] == [(verb, "g-1") for verb in stopped]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "low on memory"),
        ({"phase": "Failed", "reason": "NodeShutdown"}, "NodeShutdown"),
        ({"phase": "Failed", **DISRUPTED}, "the node failed"),
        (
            {"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "OOMKilled"}}}]},
            "container c was killed: out of memory",
        ),
        ({"phase": "Failed", "containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "Error"}}}]}, ""),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, ""),
        ({"phase": "Running", "reason": "Evicted"}, ""),
    ],
)
def test_a_failed_pod_is_lost_if_its_kubelet_ended_it(play: Play, status: Json, why: str) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, **{ON_LOSS: "restart"}))
    play.connect()
    play.carry_out()
    ended = pod("g-0", on="n1", status=status, **{ON_LOSS: "restart"})
    assert ended.disrupted == why
    play.adapter.put_pod(ended)
    play.settle()
    assert [(target.verb, target.name) for target in play.calls] == ([("evict", "g-1")] if why else [])
    assert ("g-0" in members(play)) == (status["phase"] == "Running")


def test_a_loss_that_the_partition_has_not_heard_of_is_told_again(play: Play) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, **{ON_LOSS: "restart"}))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("g-0", on="n1", status={"phase": "Failed", "reason": "Evicted"}, **{ON_LOSS: "restart"}))
    assert play.adapter.update() is not None  # and the link breaks before it arrives
    play.connect()
    assert [(target.verb, target.name) for target in play.calls] == [("evict", "g-1")]


def test_a_pod_that_ends_by_itself_is_no_loss(play: Play) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, **{ON_LOSS: "fail"}))
    play.connect()
    play.carry_out()
    play.adapter.drop_pod("uid-g-0")
    play.settle()
    assert not play.calls


def test_a_loss_that_is_not_known_is_refused_and_told(play: Play) -> None:
    play.adapter.put_pod(pod("a", **{ON_LOSS: "retry"}))
    play.connect()
    reason, text = members(play)["a"].unit.why
    assert reason == "Refused" and "on_loss" in text and "restart" in text


# -- memory ----------------------------------------------------------------------------------------------------------


def test_asks_and_ports_of_pods_that_are_gone_are_forgotten(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_updates, "MOST_ASKS", 3)
    play.adapter.most_asks = 3
    play.connect()
    for at in range(8):
        play.adapter.put_pod(pod(f"p{at}", cpu=1, port=8000 + at))
        play.settle()
        if at:
            play.adapter.drop_pod(f"uid-p{at - 1}")
            play.settle()
        play.adapter.retry()
        play.settle()
        assert len(play.adapter.objects.asks) <= 3 and len(play.adapter.ports) <= 3
    (target,) = [target for target in play.calls if target.name == "p7"]
    assert target.node == "n1" and not play.problems
