"""Loans of queues, and when they return. Running tasks with an expected end return capacity."""

from __future__ import annotations

from fairlead.core.ahead.expected_ends import end_of
from fairlead.core.model import Allocation, Micros, Queue
from fairlead.core.ranges import count
from fairlead.core.resources import SECOND, add
from fairlead.core.state import Partition
from fairlead.wire import api as wire

STEPS = 4
"""The greatest number of steps in which the return of a loan is shown."""


def loan_answers(partition: Partition, now: Micros) -> list[wire.Loan]:
    """Return the loans of leaf queues, the largest first."""
    rights = partition.entitlements()
    ends: dict[str, list[tuple[Micros, Allocation]]] = {
        path: [] for path, queue in partition.queues.items() if not queue.children and rights.loaned(queue) > 0
    }
    for allocation in partition.allocations.values() if ends else ():
        known = ends.get(allocation.stage.job.queue.path)
        end = None if known is None or allocation.slots else end_of(allocation, now)
        if known is not None and end is not None:
            known.append((end, allocation))
    loans = [_loan(partition, partition.queues[path], known) for path, known in ends.items()]
    return sorted(loans, key=lambda loan: (-loan.percent, loan.queue))


def _loan(partition: Partition, queue: Queue, ends: list[tuple[Micros, Allocation]]) -> wire.Loan:
    rights = partition.entitlements()
    part = 100 / rights.whole
    entitled, used, tasks = rights.of(queue), dict(queue.account.used), queue.account.tasks
    loan = left = rights.loaned(queue)
    falls: list[tuple[Micros, int]] = []
    """Times at which the loan becomes smaller, with the rest of it then."""
    for end, allocation in sorted(ends, key=lambda pair: (pair[0], pair[1].id)):
        ended = count(allocation.indices)
        add(used, dict(allocation.stage.spec.resources), -ended)
        tasks -= ended
        remains = max(0, rights.measure(used, tasks) - entitled)
        if remains < left:
            if falls and falls[-1][0] == end:
                falls.pop()
            falls.append((end, remains))
            left = remains
        if not left:
            break
    returns: list[wire.LoanReturn] = []
    for step in range(1, STEPS + 1):
        wanted = loan - (loan - left) * step // STEPS
        at, remains = next(((at, remains) for at, remains in falls if remains <= wanted), (0, loan))
        if remains < loan and (not returns or at / SECOND > returns[-1].at):
            returns.append(wire.LoanReturn(at=at / SECOND, percent=(loan - remains) * part))
    return wire.Loan(queue=queue.path, percent=loan * part, returns=returns, unknown_percent=left * part)
