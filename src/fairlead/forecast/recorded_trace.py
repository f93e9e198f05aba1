"""The recorded past as a trace: a document that `fairlead simulate` reads."""

from __future__ import annotations

from typing import Any

from fairlead.core.expressions import format_term
from fairlead.core.model import Micros, StageSpec
from fairlead.core.resources import SECOND
from fairlead.core.state import Partition
from fairlead.forecast.recorded import PastJob
from fairlead.forecast.replica import Follower
from fairlead.views.answers import amounts


def trace_document(follower: Follower, since: Micros, now: Micros) -> dict[str, Any]:
    """Return a trace of the jobs that were submitted since a time and have ended, on the present nodes.

    Jobs that have not ended and jobs that never ran are left out and counted. They are removed from `after` of other
    jobs; jobs with such a change are counted too.
    """
    past, _ = follower.past(now)
    found = past.replayed(since)
    first = found.jobs[0].at if found.jobs else since
    return {
        "trace": {"nodes": node_documents(follower.state), "jobs": [_job(job, first) for job in found.jobs]},
        "since": first / SECOND,
        "not_ended": found.not_ended,
        "never_ran": found.never_ran,
        "after_left_out": found.after_left_out,
    }


def node_documents(partition: Partition) -> list[dict[str, Any]]:
    """Return the nodes that are up or draining and have an agent."""
    nodes = partition.nodes
    return [
        _without_empty(
            {
                "name": nodes.name[row],
                "resources": amounts([(name, column[row]) for name, column in nodes.capacity.items() if column[row]]),
                "labels": dict(nodes.labels[row]),
                "taints": list(nodes.taints[row]),
                "pool": nodes.pool[row],
                "users": list(nodes.users[row]),
            }
        )
        for _, row in sorted(nodes.rows.items())
        if nodes.state[row] in ("up", "draining") and not nodes.manager[row]
    ]


def _job(job: PastJob, first: Micros) -> dict[str, Any]:
    spec = job.spec
    return _without_empty(
        {
            "id": job.id,
            "submit": seconds_text(job.at - first),
            "name": spec.name,
            "user": spec.user,
            "groups": list(spec.groups),
            "queue": spec.queue,
            "priority": spec.priority,
            "after": list(spec.after),
            "gang": "job" if spec.gang == "job" else "",
            "stages": [_stage(stage, ran) for stage, ran in zip(spec.stages, job.run_times(), strict=True)],
        }
    ) | ({} if spec.preemptible else {"preemptible": False})


def _stage(stage: StageSpec, ran: Micros) -> dict[str, Any]:
    return _without_empty(
        {
            "name": stage.name,
            "count": stage.size,
            "min": stage.min,
            "throttle": stage.throttle,
            "selectors": {label: list(values) for label, values in stage.selectors},
            "where": [format_term(term) for term in stage.where],
            "prefer": {format_term(term): weight for term, weight in stage.prefer},
            "tolerations": list(stage.tolerations),
            "pool": stage.pool,
            "near": stage.near,
            "apart": stage.apart,
            "scaling": "partial" if stage.scaling == "partial" else "",
            "estimate": "" if stage.estimate is None else seconds_text(stage.estimate),
            "time_limit": "" if stage.time_limit is None else seconds_text(stage.time_limit),
        }
    ) | {"resources": amounts(stage.resources), "duration": seconds_text(ran)}


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value}


def seconds_text(micros: Micros) -> str:
    """Return a duration in seconds, exactly."""
    whole, rest = divmod(micros, SECOND)
    return f"{whole}.{rest:06}".rstrip("0").rstrip(".") + "s"
