"""Handlers for pipelines, for updates of waiting jobs, and for jobs that run again."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.control.partition import PartitionService, accepted_in
from fairlead.core.commands import Submit, SubmitPipeline, UpdateJob
from fairlead.core.documents import check_amounts, parse_changes
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec
from fairlead.core.reader import Reader
from fairlead.core.reruns import again
from fairlead.core.state import Partition
from fairlead.http.context import Request, caller_fields
from fairlead.http.dispatch import serves
from fairlead.http.routes.jobs import (
    SpecCache,
    change_job,
    charged,
    check_visible,
    missing,
    past_job,
    past_of,
    submission,
    submitted,
    why_never,
)
from fairlead.http.scopes import without_token
from fairlead.wire import api as wire
from fairlead.wire import operations as op


def _check_visible(served: PartitionService, command: SubmitPipeline) -> None:
    """Refuse references to jobs that the caller may not see."""
    own = {spec.name for spec in command.specs}
    for at, spec in enumerate(command.specs):
        try:
            check_visible(served, command, spec.after, own)
        except Refused as refusal:
            raise Refused(f"jobs[{at}].{refusal.field}", refusal.problem, refusal.code) from None


@serves(op.SubmitPipeline)
async def submit_pipeline(request: Request, asked: op.SubmitPipeline) -> wire.Pipeline:
    read = Reader(asked.document, "", "a pipeline")
    name = read.name("name", "pipeline")
    documents = read.get("jobs")
    read.close()
    if not isinstance(documents, list) or not 0 < len(documents) <= wire.MAX_PIPELINE:
        raise Refused("jobs", f"a pipeline has a list of 1 to {wire.MAX_PIPELINE} jobs; write one")
    served, services = request.leader(asked), request.services
    past = await past_of(request, served, documents)
    cache: SpecCache = {}
    jobs = [submission(request, each, "", cache, f"jobs[{at}]") for at, each in enumerate(documents)]
    for at, job in enumerate(jobs):
        if job.id:
            raise Refused(f"jobs[{at}].id", "the scheduler gives the ids of a pipeline's jobs; leave it out")
    specs = tuple(job.spec for job in jobs)
    command = SubmitPipeline(name=name, specs=specs, past=past, **caller_fields(request, asked.key))
    for spec in specs:
        services.secrets.check(spec, command.user)
    size = None
    if not command.operator:
        _check_visible(served, command)
        size = services.quotas.check(served.name, served.partition.settings, *specs)
    async with charged(request, *specs):
        slot = served.offer(command)
        if size is not None:
            services.quotas.offered(served.name, command.user, size, slot, len(specs))
        accepted = await accepted_in(slot)
    ids = {item.reason: item.name for item in accepted.items}
    warnings = await why_never(served, list(ids.values()))
    named = {name: warnings[job] for name, job in ids.items() if job in warnings}
    return wire.Pipeline(pipeline=accepted.job, partition=served.name, jobs=ids, warnings=named)


@serves(op.UpdateJob)
async def update_job(request: Request, asked: op.UpdateJob) -> wire.Done:
    served = request.leader(asked)
    changes = parse_changes(asked.document)
    check_amounts(changes.get("resources", ()), "resources")
    command = UpdateJob(job=asked.job, past=await past_of(request, served, [asked.document]), **changes)
    if not request.caller.operator:
        caller = UpdateJob(job=asked.job, **caller_fields(request))
        check_visible(served, caller, command.after or ())
    return await change_job(request, asked, command)


@serves(op.Rerun)
async def rerun(request: Request, asked: op.Rerun) -> wire.Submitted:
    read = Reader(asked.document, "", "a rerun")
    failed = read.flag("failed", False)
    environment = read.pairs("environment", names=False)
    name, queue = read.name("name", ""), read.text("queue", "", most=1_000)
    read.close()
    served = request.leader(asked)

    def look(state: Partition) -> JobSpec:
        job = state.jobs.get(asked.job)
        if job is None or not request.sees(job):
            raise missing(asked.job)
        return again(job, failed, environment)

    try:
        spec = await served.read(look)
    except Refused as refusal:
        if refusal.code == "missing" and await past_job(request, served.name, asked.job) is not None:
            problem = (
                f"job {asked.job} ended too long ago: its command is no longer known; submit it, or raise keep_ended"
            )
            raise Refused("job", problem, "conflict") from None
        raise
    spec = replace(without_token(request.caller, spec), name=name or spec.name, queue=queue or spec.queue)
    return await submitted(request, served, Submit(spec=spec, **caller_fields(request, asked.key)))
