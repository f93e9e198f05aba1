"""Faults that are planted in the core on purpose, to see that the checkers find them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from fairlead.core import admission, cycle
from fairlead.core.changes import EraBegun, PendingEnded, Placed
from fairlead.core.commands import Accepted, BeginEra
from fairlead.core.entitlement import Uses
from fairlead.core.holds import recall
from fairlead.core.intake import HANDLERS
from fairlead.core.match import match, share_tree
from fairlead.core.match.user_turns import UserTurn
from fairlead.core.model import FAR, Hold, Job, Stage
from fairlead.core.node_table import NodeTable
from fairlead.core.outcomes import stop
from fairlead.core.plan import Plan
from fairlead.core.policy.order import ORDERS, Order, Standing, by_fewest_running
from fairlead.core.preempt import preempt, victims
from fairlead.core.preempt.rebalance import Balance
from fairlead.core.preempt.victims import Victim
from fairlead.core.state import Partition
from tests.chaos import rebalance_checker, start_checker
from tests.chaos.checkers import need

Plant = Callable[[pytest.MonkeyPatch], None]


def count_only(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the checkers of starts and loans report only the problem that a planted fault causes."""

    def needed(holds: bool, problem: str) -> None:
        need(holds or text not in problem, problem)

    monkeypatch.setattr(start_checker, "need", needed)
    monkeypatch.setattr(rebalance_checker, "need", needed)


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
    phase = cycle.preempt

    def planted(plan: Plan) -> None:
        phase(plan)
        placed = [change for change, _ in plan.done if isinstance(change, Placed) and not change.group]
        for change in placed[:1]:
            allocation = plan.partition.allocations.get(change.first)
            if allocation is not None:
                stop(plan, allocation, allocation.indices, "preempt")

    monkeypatch.setattr(cycle, "preempt", planted)


def stop_in_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preemption takes what an earlier cycle of the same moment has placed."""
    monkeypatch.setattr(preempt, "protected_until", lambda partition, ask, victim: 0)


def replace_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a strict gang that fails or is lost comes back alone."""
    monkeypatch.setattr(Stage, "on_failure", property(lambda stage: "replace"))
    monkeypatch.setattr(Stage, "on_loss", property(lambda stage: "replace"))


def newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a queue, the newest asks go first, whatever their priority."""

    def order(ask: Standing) -> tuple[int, ...]:
        return (ask.kind, -ask.asked)

    for name in ("priority", "fifo", "jobs"):
        monkeypatch.setitem(ORDERS, name, Order(order))


def turns_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues take turns by their names, whatever they use."""

    def key(use: int, share: int, entitled: int, name: str, counted: int | None = None) -> Any:
        return (0, 0, name)

    monkeypatch.setattr(share_tree, "turn_key", key)


def ignore_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `fair`, the jobs of all users take turns, whatever their users use."""
    monkeypatch.setitem(ORDERS, "fair", Order(by_fewest_running, by_running=True, longest_first=True))


def oldest_jobs_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `jobs`, the oldest ask goes first, whatever runs of its job."""
    monkeypatch.setitem(ORDERS, "jobs", ORDERS["fifo"])


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


def spare_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an array or an elastic stage, only the newest tasks can be stopped alone."""
    units = victims._units

    def planted(job: Job, first: Stage) -> Iterator[Victim]:
        found = list(units(job, first))
        singles = [victim for victim in found if not victim.unit.gang]
        oldest = singles[-1:] if len(singles) == len(found) > 1 else []
        return (victim for victim in found if victim not in oldest)

    monkeypatch.setattr(victims, "_units", planted)


def forget_what_was_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lane wakes when an ask is cancelled, also what was kept back for it."""
    apply = PendingEnded.apply

    def planted(self: PendingEnded, partition: Partition) -> Any:
        openings = partition.derived.openings
        before = apply(self, partition)
        partition.derived.openings = openings
        return before

    monkeypatch.setattr(PendingEnded, "apply", planted)


def never_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    """No nodes are set aside for owners."""
    monkeypatch.setattr(recall, "_find", lambda returns, owner: ())


def renew_loans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes set aside for owners take tasks that end long after the owner could start."""

    def planted(partition: Partition, holds: Iterable[Hold], stops_at: object) -> dict[int, int]:
        return {node_id: FAR for hold in holds for node_id in hold.nodes}

    monkeypatch.setattr(match, "lent_nodes", planted)


def ignore_min_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks on loan are stopped that have just begun."""
    monkeypatch.setattr(Balance, "_has_just_begun", lambda balance, victim: False)


def begin_no_era(monkeypatch: pytest.MonkeyPatch) -> None:
    """After data were set back, no number is skipped."""
    monkeypatch.setitem(HANDLERS, BeginEra, lambda plan, command: Accepted())


def skip_no_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An era skips numbers of jobs, and no attempts of the jobs that are known."""
    apply = EraBegun.apply

    def planted(self: EraBegun, partition: Partition) -> Any:
        before = apply(self, partition)
        for (job, position), (floor, earlier) in before.stages.items():
            stage = partition.jobs[job].stages[position]
            stage.floor, stage.earlier = floor, earlier
        return before

    monkeypatch.setattr(EraBegun, "apply", planted)


START = "are placed, and may not start"
CHAIN = "in a chain, and may not start"
ORDER = "nodes are ordered for"
DISCONNECTED = "on a node whose agent is disconnected"
STOP = "placed and stopped in one cycle"
MOMENT = "stop for another in the moment of their start"
LEAF = "is before it in queue"
TREE = "which is below its entitlement"
LOAN = "has been below its entitlement"
OWNER = "an owner has been kept waiting"
AGAIN = "which is not a new one"
YOUNG = "has run for less than min_runtime"
