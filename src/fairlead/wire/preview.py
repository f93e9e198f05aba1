"""Questions to the server's second process, which simulates futures and reads the journal, with its answers.

Times are microseconds since 1970.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Question(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base class of questions. The answer is about the state at the time `now`, after the journal's record `seq` or a
    later one."""

    partition: str
    seq: int
    now: int


class EtaQuestion(Question, frozen=True, kw_only=True, tag="eta"):
    """Ask when jobs start. `submissions` are packed specifications of jobs as if they were submitted now."""

    jobs: tuple[str, ...] = ()
    submissions: tuple[bytes, ...] = ()


class StoryQuestion(Question, frozen=True, kw_only=True, tag="story"):
    """Ask what the journal has about a job."""

    job: str
    number: int


class WhatIfQuestion(Question, frozen=True, kw_only=True, tag="whatif"):
    """Ask for the effect of a supposed change: on the past, of the length `replay`, or if it is 0, on the present
    state."""

    changes: dict[str, Any]
    """The document of the request."""
    replay: int = 0


class TraceQuestion(Question, frozen=True, kw_only=True, tag="trace"):
    """Ask for past jobs as a trace, from a time on."""

    since: int


class PastMapQuestion(Question, frozen=True, kw_only=True, tag="past map"):
    """Ask for the nodes and queues at a past time."""

    at: int


class PastQueuesQuestion(Question, frozen=True, kw_only=True, tag="past queues"):
    """Ask for the shares and uses of queues at several past times."""

    since: int
    until: int
    points: int


class BillQuestion(Question, frozen=True, kw_only=True, tag="bill"):
    """Ask how long a job waited for what. `ended` is None if it has not ended."""

    job: str
    number: int
    submitted: int
    ended: int | None


class WaitsQuestion(Question, frozen=True, kw_only=True, tag="waits"):
    """Ask how long jobs waited for what in a period, by groups: `user`, `queue`, `week`."""

    by: tuple[str, ...]
    since: int
    until: int
    user: str = ""


AnyQuestion = (
    EtaQuestion
    | StoryQuestion
    | WhatIfQuestion
    | TraceQuestion
    | PastMapQuestion
    | PastQueuesQuestion
    | BillQuestion
    | WaitsQuestion
)


class Eta(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted start of a job, from several simulated futures. A time is None if too few futures reached it."""

    likely: int | None
    median: int | None
    earliest: int | None
    latest: int | None
    not_before: int | None = None
    """If the median is unknown: a time before which the job starts in no future. None if the ends of some tasks are
    unknown, or if the job is stuck."""
    stuck: bool = False
    """True if no possible event starts the job."""
    unknown_ahead: int = 0
    """In futures in which the job does not start: the number of tasks without a known end that start before it."""
    new: bool = False
    """True if no task of a job with the same user and name has ended."""
    cut: bool = False
    """True if time ran out in a future before the job started."""


class Etas(msgspec.Struct, frozen=True, kw_only=True):
    jobs: dict[str, Eta]
    submissions: list[Eta | str]
    """For each specification, its predicted start, or why it is refused."""
    now: int
    """The time at which the futures begin."""
    futures: int
    """Number of simulated futures."""
    unknown_running: int
    """Running tasks without a known end."""
    recorded_jobs: int
    """Number of past jobs from which the arrivals in the futures were drawn."""
    ran: bool = True
    """True if the run time of at least one job is on record."""


class StoryLine(msgspec.Struct, frozen=True):
    at: int
    event: str
    fields: dict[str, Any]


class Story(msgspec.Struct, frozen=True, kw_only=True):
    since: int
    """The journal has everything from this time on and nothing before it."""
    lines: list[StoryLine]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is passed on as it is."""

    document: Any


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a question has no answer, and which of its fields was wrong, if any."""

    problem: str
    field: str = ""


class Unanswered(Exception):
    """Raised if the process gave no answer. The next question starts another process."""
