"""What tokens with a scope may do: reading only, the jobs of one queue, the jobs that a budget pays.

A scope is enforced here, before the handler of an operation. The core checks, with the other rights, that changes stay
in the queue of a token.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec
from fairlead.identity.tokens import Token, need_left
from fairlead.wire import operations as op
from fairlead.wire.operation import Row

OF_JOBS = frozenset(
    {op.Submit, op.SubmitMany, op.SubmitPipeline, op.Rerun, op.Kill, op.Hold, op.Release, op.Requeue, op.StopTasks}
    | {op.Scale, op.UpdateJob, op.SetPriority, op.CancelAsk}
)
"""The changes that a token for one queue may make."""
WITH_A_BUDGET = frozenset({op.Submit, op.SubmitPipeline, op.Kill, op.Hold, op.Release, op.SetPriority, op.CancelAsk})
"""The changes that a token with a budget may make. Others could use more than the budget was charged for."""
TOKEN = "FAIRLEAD_TOKEN"


def check_scope(caller: Token, row: Row) -> None:
    """Refuse an operation outside the scope of the caller's token."""
    if not row.route.changes:
        return
    if caller.read_only:
        raise Refused("token", "this token is read-only and may change nothing; use another token", "forbidden")
    if caller.budget and row.operation not in WITH_A_BUDGET:
        problem = "a token with a budget may submit jobs and pipelines, and kill, hold, release and prioritise jobs"
        raise Refused("token", f"{problem}; use another token", "forbidden")
    if caller.queue and row.operation not in OF_JOBS:
        problem = f"this token is only for the jobs of {caller.queue}; use another token"
        raise Refused("token", problem, "forbidden")
    if caller.scoped and row.route.status == 101:
        raise Refused("token", "this token opens no tunnels to tasks; use another token", "forbidden")


def without_token(caller: Token, spec: JobSpec) -> JobSpec:
    """Return the job of a caller. Its tasks get no token if that token would have more rights than the caller.

    Tasks get a token with all rights of their user, unless their job sets one.
    """
    if not caller.scoped:
        return spec
    stages = tuple(
        replace(stage, environment=tuple(sorted({**dict(stage.environment), TOKEN: ""}.items())))
        for stage in spec.stages
    )
    return replace(spec, stages=stages)


def costs_of(caller: Token, specs: Iterable[JobSpec]) -> dict[str, int]:
    """Return the most that jobs may use of the resources in the budget of a token. Refuse more than is left."""
    costs: dict[str, int] = dict.fromkeys(dict(caller.budget), 0)
    for spec in specs:
        for at, stage in enumerate(spec.stages):
            for name, amount in stage.resources:
                if name in costs and amount:
                    if stage.time_limit is None:
                        problem = f"missing, and this token has a budget of {name} hours; write the longest run time"
                        raise Refused(f"stages[{at}].time_limit", problem)
                    costs[name] += stage.size * amount * stage.time_limit * stage.tries
    need_left(caller, costs)
    return costs
