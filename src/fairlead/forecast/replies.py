"""Answers to questions about the future of a partition."""

from __future__ import annotations

import os

import msgspec
from msgspec.structs import replace

from fairlead.core.commands import Submit
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, unpack_spec
from fairlead.forecast import comparison, eta
from fairlead.forecast.moments import past_map, past_queues
from fairlead.forecast.recorded_trace import trace_document
from fairlead.forecast.replica import Follower
from fairlead.forecast.runtimes import Runtimes
from fairlead.wire import preview

SECONDS = 3.0
"""After this number of seconds no new future begins."""


def answer(follower: Follower, question: preview.AnyQuestion) -> msgspec.Struct:
    match question:
        case preview.EtaQuestion():
            return _etas(follower, question)
        case preview.StoryQuestion():
            return preview.Story(since=follower.began, lines=follower.story(question.job, question.number))
        case preview.TraceQuestion():
            return preview.Document(document=trace_document(follower, question.since, question.now))
        case preview.PastMapQuestion():
            return preview.Document(document=past_map(follower, question))
        case preview.PastQueuesQuestion():
            return preview.Document(document=past_queues(follower, question))
    return preview.Document(document=comparison.compare(follower, question))


def workers() -> int:
    return max(1, min(eta.SAMPLES, os.cpu_count() or 1))


def _etas(follower: Follower, question: preview.EtaQuestion) -> preview.Etas:
    past, runtimes = follower.past(question.now)
    submits = [_submit(packed, at) for at, packed in enumerate(question.submissions)]
    wanted = [*question.jobs, *(submit.id for submit in submits)]
    samples = eta.draw_futures(
        follower.state, question.now, runtimes, past, wanted, SECONDS, workers=workers(), first=submits
    )
    refused = samples[0].refused
    specs = {submit.id: submit.spec for submit in submits}
    specs |= {job: follower.state.jobs[job].spec for job in question.jobs if job in follower.state.jobs}
    new = {job for job, spec in specs.items() if not _has_run(runtimes, spec)}
    etas = {job: replace(eta.sum_up(job, samples), new=job in new) for job in wanted}
    return preview.Etas(
        jobs={job: etas[job] for job in question.jobs},
        submissions=[refused.get(submit.id) or etas[submit.id] for submit in submits],
        now=question.now,
        futures=len(samples),
        unknown_running=max(sample.unknown_running for sample in samples),
        recorded_jobs=len(past.jobs),
        cut=not all(sample.whole for sample in samples),
        ran=bool(runtimes),
    )


def _has_run(runtimes: Runtimes, spec: JobSpec) -> bool:
    return any(runtimes.has_run(spec.user, spec.name, stage.name) for stage in spec.stages)


def _submit(packed: bytes, at: int) -> Submit:
    spec = unpack_spec(packed)
    if spec.manager:
        raise Refused("manager", "its start cannot be foretold; leave it out")
    return Submit(spec=spec, id=f"preview-{at}", user=spec.user, groups=spec.groups, operator=True)
