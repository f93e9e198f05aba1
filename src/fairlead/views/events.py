"""A cycle's changes → events for watchers: jobs, tasks and nodes that changed state."""

from __future__ import annotations

from fairlead.core.changes import JobNews, News, NodeNews
from fairlead.core.cycle import Cycle
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.wire.api import Event


def events_of(decided: Cycle) -> tuple[Event, ...]:
    """Return the events of a cycle, in the order of its changes."""
    partition = decided.plan.partition
    at = decided.plan.now / SECOND
    return tuple([_event(partition, at, news) for news in decided.plan.news()])


def _event(partition: Partition, at: float, news: News) -> Event:
    if isinstance(news, NodeNews):
        return Event(what="node", at=at, node=news.name, state=news.state)
    if isinstance(news, JobNews):
        job = news.job
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
