"""Events for watchers: the jobs, tasks and nodes that changed state in a cycle."""

from __future__ import annotations

from fairlead.core.changes import JobNews, News, NodeNews, TaskNews
from fairlead.core.cycle import Cycle
from fairlead.core.lifecycle import JOB
from fairlead.core.model import Job
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.wire.api import Event


def events_of(decided: Cycle) -> tuple[Event, ...]:
    """Return the events of a cycle, in the order of its changes."""
    partition = decided.plan.partition
    at = decided.plan.now / SECOND
    events: list[Event] = []
    gone: dict[str, Job] = {}
    """Jobs that were over before this cycle and of which tasks have ended in it."""
    for news in decided.plan.news():
        events.append(_event(partition, at, news))
        if isinstance(news, TaskNews) and news.what == "ended" and news.stage.job.over:
            gone[news.stage.job.id] = news.stage.job
        elif isinstance(news, JobNews):
            gone.pop(news.job.id, None)
    events += [_state_event(job, at, job.state, job.reason) for job in gone.values() if not job.allocations]
    return tuple(events)


def _state_event(job: Job, at: float, state: str, reason: str) -> Event:
    return Event(what="state", at=at, job=job.id, number=job.number, state=state, reason=reason)


def _event(partition: Partition, at: float, news: News) -> Event:
    if isinstance(news, NodeNews):
        return Event(what="node", at=at, node=news.name, state=news.state)
    if isinstance(news, JobNews):
        job = news.job
        if news.what == "state":
            stopping = JOB.terminal(news.state) and job.allocations
            return _state_event(job, at, "stopping" if stopping else news.state, news.reason)
        return Event(what=news.what, at=at, job=job.id, number=job.number, state=news.state, reason=news.reason)
    stage = news.stage
    row = partition.nodes.rows.get(news.node)
    return Event(
        what=news.what,
        at=at,
        job=stage.job.id,
        number=stage.job.number,
        stage=stage.name,
        indices=list(news.indices),
        attempt=news.attempt,
        node="" if row is None else partition.nodes.name[row],  # empty if it was removed in the same cycle
        state=news.outcome,
        reason=news.reason,
    )
