"""Intake of pipelines: several jobs that depend on each other and are submitted at once, all or none."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.core.commands import Accepted, Item, Submit, SubmitPipeline
from fairlead.core.errors import Refused
from fairlead.core.intake.command_table import handles
from fairlead.core.intake.jobs import submit as submit_job
from fairlead.core.model import After, JobSpec, after_of
from fairlead.core.plan import Plan

LABEL = "pipeline"
"""The label that all jobs of a pipeline have. Its value is the name of the pipeline and the number of its first job."""


@handles(SubmitPipeline)
def submit(plan: Plan, command: SubmitPipeline) -> Accepted:
    first = plan.partition.counters.job
    pipeline = f"{command.name}-{first}"
    at_of: dict[str, int] = {}
    for at, spec in enumerate(command.specs):
        if at_of.setdefault(spec.name, at) != at:
            problem = f'"{spec.name}" is also the name of job {at_of[spec.name]} of the file; give each its own'
            raise Refused(f"jobs[{at}].name", problem)
    order = _in_order(command.specs, at_of)
    ids = {command.specs[at].name: str(first + number) for number, at in enumerate(order)}
    for at in order:
        spec = command.specs[at]
        if LABEL in dict(spec.labels):
            raise Refused(f"jobs[{at}].labels.{LABEL}", "the jobs of a pipeline get this label; use another one")
        after = tuple(str(After(ids.get(name, name), when)) for name, when in after_of(spec.after))
        labels = tuple(sorted((*spec.labels, (LABEL, pipeline))))
        job = Submit(
            spec=replace(spec, after=after, labels=labels),
            past=command.past,
            user=command.user,
            groups=command.groups,
            operator=command.operator,
            within=command.within,
        )
        try:
            submit_job(plan, job)
        except Refused as refusal:
            raise Refused(f"jobs[{at}].{refusal.field}", refusal.problem, refusal.code) from None
    items = tuple(Item("job", ids[spec.name], True, spec.name) for spec in command.specs)
    return Accepted(job=pipeline, items=items)


def _in_order(specs: tuple[JobSpec, ...], at_of: dict[str, int]) -> list[int]:
    """Return the positions of the jobs so that each comes after the jobs that it depends on."""
    before = [{at_of[name] for name, _ in after_of(spec.after) if name in at_of} for spec in specs]
    order: list[int] = []
    waiting = dict.fromkeys(range(len(specs)))
    while waiting:
        ready = [at for at in waiting if not before[at] & waiting.keys()]
        if not ready:
            circle = ", ".join(specs[at].name for at in waiting)
            raise Refused(
                f"jobs[{next(iter(waiting))}].after", f"jobs wait for each other: {circle}; remove one `after`"
            )
        for at in ready:
            del waiting[at]
        order += ready
    return order
