"""Faults that are planted in the core on purpose, to see that the checkers find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core import admission, cycle
from fairlead.core.changes import Placed
from fairlead.core.entitlement import Uses
from fairlead.core.match import share_tree
from fairlead.core.match.user_turns import UserTurn
from fairlead.core.model import Stage
from fairlead.core.nodes import NodeTable
from fairlead.core.outcomes import stop
from fairlead.core.plan import Plan
from fairlead.core.policy.order import ORDERS, Order, Standing, fair
from fairlead.sim.chaos import doorchecker, loanchecker
from fairlead.sim.chaos.checkers import need

Plant = Callable[[pytest.MonkeyPatch], None]


def count_only(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the checkers of starts and loans report only the problem that a planted fault causes."""

    def needed(holds: bool, problem: str) -> None:
        need(holds or text not in problem, problem)

    monkeypatch.setattr(doorchecker, "need", needed)
    monkeypatch.setattr(loanchecker, "need", needed)


def _without_rules(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A phase in which every queue is active and nothing has a limit."""
    phase = getattr(cycle, name)

    def planted(plan: Plan) -> None:
        partition = plan.partition
        queues = list(partition.queues.values())
        accounts = [each for queue in queues for each in (queue.account, *queue.users.values(), *queue.groups.values())]
        states, stopped = [queue.state for queue in queues], partition.derived.stopped_queues
        limits = [(account.limit, account.max_jobs) for account in accounts]
        partition.derived.stopped_queues = set()
        for queue in queues:
            queue.state = "active"
        for account in accounts:
            account.limit = account.max_jobs = None
        try:
            phase(plan)
        finally:
            partition.derived.stopped_queues = stopped
            for queue, state in zip(queues, states, strict=True):
                queue.state = state
            for account, (limit, most) in zip(accounts, limits, strict=True):
                account.limit, account.max_jobs = limit, most

    monkeypatch.setattr(cycle, name, planted)


def start_without_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_rules(monkeypatch, "match")


def chain_without_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_rules(monkeypatch, "chain")


def order_without_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_rules(monkeypatch, "demand")


def start_held_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission lets the tasks of held jobs start."""
    monkeypatch.setattr(admission, "held_back", lambda job: None)


def start_on_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes take work, although their agents have disconnected."""

    def planted(self: NodeTable, row: int) -> bool:
        return self.usable(row) and self.node_id[row] not in self.avoided

    monkeypatch.setattr(NodeTable, "placeable", planted)


def stop_new_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preemption takes what the same cycle has placed."""
    preempt = cycle.preempt

    def planted(plan: Plan) -> None:
        preempt(plan)
        placed = [change for change, _ in plan.done if isinstance(change, Placed) and not change.group]
        for change in placed[:1]:
            allocation = plan.partition.allocations.get(change.first)
            if allocation is not None:
                stop(plan, allocation, allocation.indices, "preempt")

    monkeypatch.setattr(cycle, "preempt", planted)


def replace_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a strict gang that fails or is lost comes back alone."""
    monkeypatch.setattr(Stage, "on_failure", property(lambda stage: "replace"))
    monkeypatch.setattr(Stage, "on_loss", property(lambda stage: "replace"))


def newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a queue, the newest asks go first, whatever their priority."""

    def order(ask: Standing) -> tuple[int, ...]:
        return (ask.kind, -ask.asked)

    monkeypatch.setitem(ORDERS, "priority", Order(order))
    monkeypatch.setitem(ORDERS, "fifo", Order(order))


def turns_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues take turns by their names, whatever they use."""

    def key(use: int, share: int, entitled: int, name: str, counted: int | None = None) -> Any:
        return (0, 0, name)

    monkeypatch.setattr(share_tree, "turn_key", key)


def ignore_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `fair`, the jobs of all users take turns, whatever their users use."""
    monkeypatch.setitem(ORDERS, "fair", Order(fair, by_running=True, longest_first=True))


def ignore_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users take turns by their present use only."""
    monkeypatch.setattr(UserTurn, "__init__", _without_past(UserTurn.__init__))


def _without_past(begin: Callable[..., None]) -> Callable[..., None]:
    def planted(self: UserTurn, account: Any, uses: Uses) -> None:
        begin(self, account, Uses(uses.rights, 0, uses.past_of))

    return planted


def keep_loans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loans are not taken back."""
    monkeypatch.setattr(cycle, "shares", lambda plan: None)


START = "are placed, and may not start"
CHAIN = "in a chain, and may not start"
ORDER = "nodes are ordered for"
DISCONNECTED = "on a node whose agent is disconnected"
STOP = "placed and stopped in one cycle"
LEAF = "is before it in queue"
TREE = "which is below its entitlement"
LOAN = "has been below its entitlement"
