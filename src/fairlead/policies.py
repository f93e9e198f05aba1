"""Policies of other packages: placements, orders, admission checks, scores of nodes to hold, ranks of tasks to stop.

A module adds policies with the decorators in this file. A package declares its module, or a function that adds the
policies, as an entry point of the group `fairlead.policies`; see docs/policies.md. Every process that schedules or
reads configurations calls `load` when it starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fairlead.core.admission import CHECKS, Admission, Check
from fairlead.core.asks import Needs
from fairlead.core.model import Ask
from fairlead.core.policy.fit import HOLD_SCORES, HoldScore
from fairlead.core.policy.fragmentation import Task
from fairlead.core.policy.order import ORDERS, Order, Standing
from fairlead.core.policy.placement import PLACEMENTS, Devices, Fleet, Key, Node, Placement, Score, tightest
from fairlead.core.policy.victim_sets import VICTIMS, Rank, Unit, newest
from fairlead.core.why.reasons import Reason

__all__ = [
    "Admission",
    "Ask",
    "Devices",
    "Fleet",
    "Key",
    "Needs",
    "Node",
    "PolicyError",
    "Reason",
    "Standing",
    "Task",
    "Unit",
    "check",
    "hold_score",
    "load",
    "order",
    "placement",
    "tightest",
    "victims",
]

GROUP = "fairlead.policies"

OrderKey = Callable[[Standing], Key]
Refuses = Callable[[Admission, Ask, Needs], Reason | None]


class PolicyError(Exception):
    """The policies of a package cannot be loaded; the message names the package and the entry point."""


def placement(
    name: str, *, devices: Devices = tightest, drawn: bool = False, weighs: bool = False
) -> Callable[[Score], Score]:
    """Add a placement: the decorated function scores a node for a task, and the node with the lowest score is taken.

    `devices` chooses the GPUs. With `drawn`, a random one of the best nodes is taken instead of the first. With
    `weighs`, `Fleet.workload` has the typical tasks.
    """

    def add(score: Score) -> Score:
        PLACEMENTS.add(name, Placement(score, devices, drawn, weighs))
        return score

    return add


def order(
    name: str, *, by_running: bool = False, by_min: bool = False, longest_first: bool = False, by_user: bool = False
) -> Callable[[OrderKey], OrderKey]:
    """Add an order of queues: the decorated function returns the sort key of an ask, and the lowest key is first.

    Its argument is the `Standing` of the ask. Its `running` is 0 without `by_running`, and its `below_min` is False
    without `by_min`. With `longest_first`, a job asks first for the stages that are expected to run longest. With
    `by_user`, the users of the queue take turns by use, and the key orders the asks of one user.
    """

    def add(key: OrderKey) -> OrderKey:
        ORDERS.add(name, Order(key, by_running, by_min, longest_first, by_user))
        return key

    return add


def check(name: str, *, counts_use: bool = True) -> Callable[[Refuses], Refuses]:
    """Add an admission check: the decorated function returns a reason if tasks of an ask may not start, or None.

    It applies to partitions that name it in their setting `checks`. With `counts_use=False`, its answer must not depend
    on running tasks; many single tasks can then start in one batch.
    """

    def add(refuses: Refuses) -> Refuses:
        CHECKS.add(name, Check(refuses, counts_use=counts_use))
        return refuses

    return add


def hold_score(name: str) -> Callable[[HoldScore], HoldScore]:
    """Add a score of nodes to hold: the decorated function returns the key of a node.

    Its arguments are the amounts that a task asks for, and those that the node has free. The nodes with the lowest keys
    are held; of equal ones, those that are expected to be free soonest.
    """

    def add(score: HoldScore) -> HoldScore:
        HOLD_SCORES.add(name, score)
        return score

    return add


def victims(name: str) -> Callable[[Rank], Rank]:
    """Add a rank of tasks to stop: the decorated function returns the key of a unit, and the lowest stops first.

    The key decides between sets with equal priority, number of tasks and number of broken gangs. The age of the units
    decides between equal keys.
    """

    def add(rank: Rank) -> Rank:
        VICTIMS.add(name, lambda unit: (*rank(unit), *newest(unit)))
        return rank

    return add


def load() -> None:
    """Load the policies of all installed packages, in the order of their entry points. Later calls do nothing."""
    left = _not_loaded()
    while left:
        _load(left[0])
        left.pop(0)


@cache
def _not_loaded() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))


def _load(entry: EntryPoint) -> None:
    try:
        loaded = entry.load()
        if callable(loaded):
            loaded()
    except Exception as problem:
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
        raise PolicyError(
            f"entry point {entry.name} = {entry.value} of {package} ({GROUP}) failed to load: "
            f"{type(problem).__name__}: {problem}; correct it or uninstall the package"
        ) from problem
