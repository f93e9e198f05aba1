"""Questions to the process that looks into the future, and its answers. Times are microseconds since 1970."""

from __future__ import annotations

from typing import Any

import msgspec


class Question(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base class of questions. The answer is about the state after the record `seq` or a later one, seen at `now`."""

    partition: str
    seq: int
    now: int


class EtaQuestion(Question, frozen=True, kw_only=True, tag="eta"):
    """Ask when jobs start. `submissions` are packed specifications of jobs that are not submitted."""

    jobs: tuple[str, ...] = ()
    submissions: tuple[bytes, ...] = ()


class StoryQuestion(Question, frozen=True, kw_only=True, tag="story"):
    """Ask what the journal knows of a job."""

    job: str
    number: int


class WhatIfQuestion(Question, frozen=True, kw_only=True, tag="whatif"):
    """Ask what a change would bring. `replay` is a time span of the past to run again; 0 for the present state."""

    changes: dict[str, Any]
    """The document of the request."""
    replay: int = 0


class TraceQuestion(Question, frozen=True, kw_only=True, tag="trace"):
    """Ask for the past as a trace, from a time on."""

    since: int


class PastMapQuestion(Question, frozen=True, kw_only=True, tag="past map"):
    """Ask for the nodes and queues as they were at a time."""

    at: int


class PastQueuesQuestion(Question, frozen=True, kw_only=True, tag="past queues"):
    """Ask for the shares and uses of queues at a number of times."""

    since: int
    until: int
    points: int


AnyQuestion = EtaQuestion | StoryQuestion | WhatIfQuestion | TraceQuestion | PastMapQuestion | PastQueuesQuestion


class Eta(msgspec.Struct, frozen=True, kw_only=True):
    """When a job starts, by several futures. A time is None if it is later than what the futures reached."""

    likely: int | None
    median: int | None
    earliest: int | None
    latest: int | None
    not_before: int | None = None
    """If the median is not known: the time that the futures reached without a start. None if the ends of some tasks in
    them are not known, and if the job is stuck."""
    stuck: bool = False
    """True if nothing that can happen starts the job."""
    unknown_ahead: int = 0
    """Tasks without a known end that start before the job, in futures in which it does not start."""


class Etas(msgspec.Struct, frozen=True, kw_only=True):
    jobs: dict[str, Eta]
    submissions: list[Eta | str]
    """Of each specification, when it would start, or why it is refused."""
    now: int
    """The time that the futures began."""
    futures: int
    """Futures that were drawn."""
    unknown_running: int
    """Running tasks without a known end."""
    recorded_jobs: int
    """Jobs of the past that arrivals were drawn from."""
    cut: bool
    """True if futures were ended for lack of time."""


class StoryLine(msgspec.Struct, frozen=True):
    at: int
    event: str
    fields: dict[str, Any]


class Story(msgspec.Struct, frozen=True, kw_only=True):
    since: int
    """The journal tells all from this time on; of earlier times it has nothing."""
    lines: list[StoryLine]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is passed on as it is."""

    document: Any


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A question that has no answer, with the field that is wrong, if one is."""

    problem: str
    field: str = ""


class Unanswered(Exception):
    """The process gave no answer. The next question starts another one."""
