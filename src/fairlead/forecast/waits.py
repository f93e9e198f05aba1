"""How long jobs waited for what, replayed from the journal: the bill of one job, and sums over groups of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import msgspec

from fairlead.core.errors import Refused
from fairlead.core.model import Job, Micros
from fairlead.core.resources import DAY, SECOND
from fairlead.core.why.wait_causes import WaitCause
from fairlead.forecast.moments import reaches_back_to, replayed
from fairlead.forecast.replica import Follower
from fairlead.journal.locate import open_journal
from fairlead.views.bills import Bills
from fairlead.wire import api as wire
from fairlead.wire.preview import BillQuestion, WaitsQuestion

WEEK = 7 * DAY
SECONDS = 100.0
"""A replay that takes longer is refused."""
LOOKS = 500
"""In a period, jobs that nothing touches are looked at this often."""
Sums = dict[WaitCause, Micros]


def add_wait(sums: Sums, job: Job, cause: WaitCause, partly: bool, start: Micros, end: Micros) -> None:
    """Add a time in which a job waited and none of its tasks ran; a `Charge` of bills."""
    if not partly:
        sums[cause] = sums.get(cause, 0) + end - start


def bill(follower: Follower, question: BillQuestion) -> Any:
    """Return how long a job waited for what, while none of its tasks ran and while some did."""
    sums: dict[bool, Sums] = {False: {}, True: {}}

    def charge(job: Job, cause: WaitCause, partly: bool, start: Micros, end: Micros) -> None:
        sums[partly][cause] = sums[partly].get(cause, 0) + end - start

    since = _follow(
        follower, question.now, question.submitted, question.ended, Bills(charge), (question.job, question.number)
    )
    return msgspec.to_builtins(
        wire.Bill(
            job=question.job,
            submitted=question.submitted / SECOND,
            since=max(since, question.submitted) / SECOND,
            waited=_total(sums[False]),
            causes=waited_for(sums[False]),
            partly=waited_for(sums[True]),
        )
    )


def waits(follower: Follower, question: WaitsQuestion) -> Any:
    """Return how long jobs waited for what in a period, by group. Times while some tasks of a job ran do not count."""
    groups: dict[tuple[str, ...], Sums] = {}
    with open_journal(follower.journal, read_only=True) as journal:
        since = max(question.since, reaches_back_to(journal, follower.name))
    until = max(since, min(question.until, question.now))

    def charge(job: Job, cause: WaitCause, partly: bool, start: Micros, end: Micros) -> None:
        start, end = max(start, since), min(end, until)
        if partly or end <= start or question.user not in ("", job.user):
            return
        for begin, finish, week in _by_week(start, end) if "week" in question.by else [(start, end, "")]:
            owner = {"user": job.user, "queue": job.queue.path, "week": week}
            sums = groups.setdefault(tuple(owner[name] for name in question.by), {})
            sums[cause] = sums.get(cause, 0) + finish - begin

    _follow(follower, question.now, since, until, Bills(charge, max(1, (until - since) // LOOKS)))
    return msgspec.to_builtins(
        wire.Waits(
            by=list(question.by),
            since=since / SECOND,
            until=until / SECOND,
            rows=[
                wire.Waited(
                    group=dict(zip(question.by, key, strict=True)), waited=_total(sums), causes=waited_for(sums)
                )
                for key, sums in sorted(groups.items())
            ],
        )
    )


def _follow(
    follower: Follower,
    now: Micros,
    first: Micros,
    last: Micros | None,
    bills: Bills,
    job: tuple[str, int] | None = None,
) -> Micros:
    """Show the states of a period to the bills, and return since when the journal has them.

    With `job`, its id and number, only this job is looked at.
    """
    deadline = monotonic() + SECONDS
    with open_journal(follower.journal, read_only=True) as journal:
        since = reaches_back_to(journal, follower.name)
        for state, until in replayed(journal, follower.name, max(first, since)):
            if monotonic() > deadline:
                raise Refused("since", f"replaying takes longer than {SECONDS:g} s; ask for a shorter period")
            if until is None or until > first:
                if job is None:
                    bills.look(state, state.touched.jobs)
                elif (known := state.jobs.get(job[0])) is not None and known.number == job[1]:
                    bills.look(state, (), known)
            if last is not None and until is not None and until > last:
                break
    bills.close(now if last is None else last)
    return since


def _by_week(start: Micros, end: Micros) -> Iterator[tuple[Micros, Micros, str]]:
    """Yield the parts of a period in each week, with the date of its Monday in UTC."""
    while start < end:
        monday = (start + 3 * DAY) // WEEK * WEEK - 3 * DAY  # 1970 began with a Thursday
        finish = min(end, monday + WEEK)
        yield start, finish, f"{datetime.fromtimestamp(monday / SECOND, UTC):%Y-%m-%d}"
        start = finish


def _total(sums: Sums) -> float:
    return sum(sums.values()) / SECOND


def waited_for(sums: Sums) -> list[wire.WaitedFor]:
    """Return the causes, the longest first."""
    return [
        wire.WaitedFor(cause=cause.kind, of=cause.of, text=str(cause), seconds=micros / SECOND)
        for cause, micros in sorted(sums.items(), key=lambda item: (-item[1], item[0].kind, item[0].of))
    ]
