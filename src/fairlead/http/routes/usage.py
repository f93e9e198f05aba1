"""Handler for the usage report: resources that users, queues, partitions or jobs used in a period."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import FAR
from fairlead.core.resources import HOUR, MEMORY, MILLI, SECOND, shown
from fairlead.history.usage_report import GROUPS, Group, UsageReport, Use, running
from fairlead.http.context import Request
from fairlead.http.dispatch import serves
from fairlead.http.routes.forecast import ask
from fairlead.http.routes.history import span_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire import preview


@serves(op.UsageReport)
async def usage_report(request: Request, asked: op.UsageReport) -> wire.UsageReport:
    services = request.services
    groups = cast(tuple[Group, ...], _groups(asked.by, GROUPS))
    first, last = span_of(asked.since, asked.until)
    user = _user(request, asked.user)
    control = services.control
    served = [await control.reader(name) for name in ((asked.partition,) if asked.partition else control.names())]
    report = UsageReport(groups, first or 0, FAR if last is None else last, user, asked.partition, asked.used)
    async with services.report_turns.take(), services.reporting:
        taken = [await service.read(lambda state: running(state, control.now)) for service in served]
        await services.flush()

        def add_up() -> list[wire.Used]:
            for part in taken:
                report.add_running(part)
            services.records.usage(report)
            rows = sorted(report.rows.items(), key=lambda row: [_counted(name) for name in row[0]])
            return [_used(dict(zip(groups, key, strict=True)), use) for key, use in rows]

        rows = await services.threads.run(add_up)
    counted_until = max((part.now for part in taken), default=control.now)
    return wire.UsageReport(
        by=list(groups),
        since=None if first is None else first / SECOND,
        until=min(report.until, counted_until) / SECOND,
        rows=rows if groups else [],
        total=_used({}, report.total),
        wasteful=[
            wire.Wasteful(job=owner.job, partition=owner.partition, user=owner.user, cpu_hours=unused / HOUR, text=text)
            for unused, owner, text in report.wasteful
        ],
    )


def _counted(name: str) -> tuple[int, str]:
    """Return a sort key that orders job ids as numbers, so that 2 comes before 10."""
    return (int(name) if name.isdecimal() and name.isascii() else 0, name)


def _groups(by: str, known: Sequence[str]) -> tuple[str, ...]:
    names = by.split(",") if by else []
    for name in names:
        if name not in known:
            raise Refused("by", f"{shown(name)} is not one of {', '.join(known)}; write one or more, with commas")
        if names.count(name) > 1:
            raise Refused("by", f"{name} is named twice; drop one")
    return tuple(names)


def _user(request: Request, user: str) -> str:
    """Return the user to report on; empty for all."""
    if request.caller.operator:
        return user
    if user not in ("", request.caller.user):
        problem = "the use of other users is shown to operators; leave it out to see your own"
        raise Refused("user", problem, "forbidden")
    return request.caller.user


@serves(op.Waits)
async def waits(request: Request, asked: op.Waits) -> wire.Waits:
    served, user = request.leader(asked), _user(request, asked.user)
    first, last = span_of(asked.since, asked.until)
    fields = {"by": _groups(asked.by, ("user", "queue", "week")), "since": first or 0, "user": user}
    fields["until"] = FAR if last is None else last
    reply = await ask(request.services, served, preview.WaitsQuestion, preview.Document, **fields)
    return msgspec.convert(reply.document, wire.Waits)


def _used(group: dict[str, str], use: Use) -> wire.Used:
    mean = use.mean_wait()
    median, most = use.waits_of(50, 95)
    return wire.Used(
        group=group,
        jobs=use.jobs,
        attempts=use.attempts,
        preempted=use.preempted,
        hours={
            name: amount / (HOUR * (1 if name == MEMORY else MILLI)) for name, amount in sorted(use.amounts.items())
        },
        wait_mean=None if mean is None else mean / SECOND,
        wait_median=None if median is None else median / SECOND,
        wait_95=None if most is None else most / SECOND,
        cpu_hours_used=use.cpu_used / HOUR,
        cpu_hours_had=use.cpu_had / HOUR,
    )
