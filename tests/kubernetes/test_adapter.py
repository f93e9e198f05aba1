"""The adapter between a cluster and a real core: pods are given as documents, and its actions are looked at."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.kubernetes import updates
from fairlead.kubernetes.actions import Target
from fairlead.kubernetes.adapter import Adapter
from fairlead.kubernetes.names import GATE, ON_LOSS, PINNED
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
    pinned: str = "",
    scheduler: str = "",
    owner: bool = False,
    status: Json | None = None,
    port: int = 0,
    **annotations: str,
) -> Any:
    """A pod of a group of two named by its name up to a dash, or alone if it has none."""
    group, _, number = name.partition("-")
    if number:
        annotations |= {"fairlead.dev/group": group, "fairlead.dev/min": "2"}
    if pinned:
        annotations[PINNED] = pinned
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
            "schedulerName": scheduler or ("default-scheduler" if gated or pinned else "fairlead"),
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


# -- pinned pods -----------------------------------------------------------------------------------------------------


def test_a_pinned_pod_that_is_refused_is_taken_back_and_placed_elsewhere(play: Play) -> None:
    play.adapter.put_pod(pod("a", gated=True, owner=True))
    play.connect()
    assert play.carry_out() == [("pin", "a", "n1")]
    play.adapter.put_pod(pod("a", pinned="n1", owner=True, status=REFUSED))
    play.adapter.retry()
    assert not play.calls  # its scheduler may still find room
    play.adapter.put_node(node("n2"))
    play.settle()
    play.later()
    play.adapter.retry()
    assert play.carry_out() == [("evict", "a", "")]
    assert "0/2 nodes are available" in members(play)["a"].lost
    play.adapter.put_pod(pod("b", gated=True, owner=True))
    play.adapter.drop_pod("uid-a")
    play.settle()
    assert play.carry_out() == [("pin", "b", "n2")]
    play.adapter.put_pod(pod("other", cpu=4))
    play.settle()
    assert play.carry_out() == [("bind", "other", "n1")]  # it is refused for the one controller only


def test_a_refused_node_is_tried_again_after_a_while(play: Play) -> None:
    play.adapter.put_pod(pod("a", gated=True, owner=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", pinned="n1", owner=True, status=REFUSED))
    play.later()
    play.carry_out()
    play.adapter.drop_pod("uid-a")
    play.adapter.put_pod(pod("b", gated=True, owner=True))
    play.settle()
    assert not play.calls and not members(play)["b"].live
    play.later(3600.0)
    assert play.carry_out() == [("pin", "b", "n1")]


def test_the_task_of_a_gang_whose_pod_was_taken_back_is_placed_elsewhere(play: Play) -> None:
    for name in ("g-0", "g-1"):
        play.adapter.put_pod(pod(name, gated=True, owner=True))
    play.connect()
    assert sorted(play.carry_out()) == [("pin", "g-0", "n1"), ("pin", "g-1", "n1")]
    play.adapter.put_pod(pod("g-0", pinned="n1", owner=True, on="n1"))
    play.adapter.put_pod(pod("g-1", pinned="n1", owner=True, status=REFUSED))
    play.adapter.put_node(node("n2"))
    play.settle()
    play.later()
    assert play.carry_out() == [("evict", "g-1", "")]
    play.adapter.drop_pod("uid-g-1")
    play.settle()
    play.adapter.put_pod(pod("g-2", gated=True, owner=True))
    play.settle()
    assert play.carry_out() == [("pin", "g-2", "n2")]


def test_a_refused_pod_without_a_controller_stays_and_is_told(play: Play) -> None:
    play.adapter.put_pod(pod("a", gated=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", pinned="n1", status=REFUSED))
    play.later()
    assert not play.calls
    assert members(play)["a"].lost == "default-scheduler does not bind it to n1: 0/2 nodes are available"
    play.adapter.put_pod(pod("a", pinned="n1", on="n1"))
    assert not members(play)["a"].lost and not play.adapter.pinned


def test_a_pinned_pod_whose_scheduler_makes_room_is_left(play: Play) -> None:
    play.adapter.put_pod(pod("a", gated=True, owner=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", pinned="n1", owner=True, status={**REFUSED, "nominatedNodeName": "n1"}))
    play.later()
    assert not play.calls


def test_a_pinned_pod_whose_node_is_gone_is_taken_back(play: Play) -> None:
    play.adapter.put_pod(pod("a", gated=True, owner=True))
    play.connect()
    play.carry_out()
    play.adapter.put_pod(pod("a", pinned="n1", owner=True))
    play.adapter.drop_node("uid-n1")
    play.settle()
    play.later()
    assert play.carry_out() == [("evict", "a", "")]


def test_pinned_pods_are_paired_with_the_tasks_on_their_nodes_after_a_start(play: Play) -> None:
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
        play.adapter.put_pod(pod(name, cpu=3, pinned=where[name]))
    play.connect()
    assert not play.calls
    assert {name: member.placed for name, member in members(play).items()} == where


def test_a_pod_that_names_a_node_by_itself_books_nothing(play: Play) -> None:
    """The annotation can be written by users: such a pod is booked when it is bound, and asks for nothing."""
    play.adapter.put_pod(pod("a", pinned="n1", scheduler="default-scheduler"))
    play.connect()
    assert not play.calls and not play.problems
    assert not play.world.partition().jobs
    play.adapter.put_pod(pod("a", pinned="n1", scheduler="default-scheduler", on="n1"))
    play.settle()
    assert [list(play.world.placements(job).values()) for job in play.world.partition().jobs] == [["n1"]]


def test_a_pinned_pod_that_has_to_stop_is_evicted(play: Play) -> None:
    """It would be bound later otherwise, where its room is given to another pod."""
    play.adapter.put_pod(pod("a", gated=True))
    play.connect()
    play.carry_out()
    (job,) = play.world.partition().jobs
    play.world.kill(job)
    play.world.cycle()
    play.take()
    assert [target.verb for target in play.calls] == ["delete"]


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
    assert members(play)["a"].unit.why[0] == "Refused"
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
    monkeypatch.setattr(updates, "MOST_ASKS", 3)
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
