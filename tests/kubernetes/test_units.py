"""Pods and tasks are paired anew after a start: by node, then in order."""

from __future__ import annotations

from fairlead.kubernetes.groups import Membership
from fairlead.kubernetes.units import Member, Pairing, Unit, pair
from fairlead.wire.api import ManagerAsk, ManagerTasks

UNIT = Unit("key", "job")
GROUP = Membership("Group", "ns", "group")


def member(name: str, bound: str = "") -> Member:
    return Member(name, "ns", name, UNIT, GROUP, False, None, ask="x", bound=bound)


def ask(
    count: int, live: dict[str, list[int]], waiting: list[int], ended: list[int], state: str = "running"
) -> ManagerAsk:
    tasks = [ManagerTasks(node=node, indices=indices, state=state, cause="") for node, indices in live.items()]
    return ManagerAsk(ask="x", count=count, min=1, live=tasks, waiting=waiting, ended=ended)


def names(pairing: Pairing) -> dict[str, object]:
    return {
        "running": [(pod.name, index, node) for pod, index, node, stops in pairing.live if not stops],
        "stopping": [(pod.name, index, node) for pod, index, node, stops in pairing.live if stops],
        "recover": [(pod.name, index) for pod, index in pairing.recover],
        "waiting": [(pod.name, index) for pod, index in pairing.waiting],
        "free": pairing.free,
        "surplus": pairing.surplus,
    }


NOTHING: dict[str, object] = {key: [] for key in "running stopping recover waiting free surplus".split()}


def test_a_half_bound_gang_is_completed_where_it_was_placed() -> None:
    pods = [member("a"), member("b", "n2"), member("c"), member("d", "n1")]
    found = pair(ask(4, {"n1": [0, 2], "n2": [2, 4]}, [], []), pods)
    assert names(found) == {
        **NOTHING,
        "running": [("d", 0, "n1"), ("b", 2, "n2"), ("a", 1, "n1"), ("c", 3, "n2")],
    }


def test_pods_that_the_partition_does_not_know_take_tasks_that_are_not_live() -> None:
    pods = [member("a", "n1"), member("b", "n2"), member("c", "n3"), member("d", "n4")]
    found = pair(ask(3, {"n1": [0, 1]}, [1, 2], [2, 3]), pods)
    assert names(found) == {**NOTHING, "running": [("a", 0, "n1")], "recover": [("b", 1), ("c", 2), ("d", 3)]}


def test_tasks_without_pods_are_given_back() -> None:
    found = pair(ask(5, {"n1": [0, 2]}, [2, 4], [4, 5]), [member("a", "n1"), member("b")])
    assert names(found) == {
        **NOTHING,
        "running": [("a", 0, "n1"), ("b", 1, "n1")],
        "surplus": [2, 3],
    }
    found = pair(ask(2, {"n1": [0, 2]}, [], []), [])
    assert names(found) == {**NOTHING, "free": [0, 1]}


def test_pods_wait_and_stop_as_their_tasks_do() -> None:
    found = pair(ask(2, {"n1": [0, 1]}, [1, 2], [], state="stopping"), [member("a"), member("b", "n1"), member("c")])
    assert names(found) == {**NOTHING, "stopping": [("b", 0, "n1")], "waiting": [("a", 1)]}
