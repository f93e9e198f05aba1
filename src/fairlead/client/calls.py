"""Requests to a server as plain values: method, path, parameters, document, and the type of the answer.

`Client` and `AsyncClient` send them. A call that changes something carries an idempotency key, so that it can be sent
again if its answer is lost: the server then gives the same answer and changes nothing more.
"""

from __future__ import annotations

import random
import re
import ssl
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, Generic, Protocol, TypeVar
from uuid import uuid4

import msgspec

from fairlead.client.endpoint import AUTHORITY, INSECURE, TOKEN, Endpoint
from fairlead.wire import addresses
from fairlead.wire import api as wire
from fairlead.wire.addresses import is_exposed


class Paged(Protocol):
    """A page of a list. `next` is the cursor of the next page; empty on the last page."""

    @property
    def next(self) -> str: ...


Answer = TypeVar("Answer")
Page = TypeVar("Page", bound=Paged)
Document = Mapping[str, Any] | msgspec.Struct
Moment = float | datetime
"""Seconds since 1970, or a date and time."""

RETRIED = frozenset((429, 502, 503, 504))
"""Status codes after which a request is sent again."""
TRIES = 8
REQUEST_TIMEOUT = 30.0
"""Seconds to wait for an answer."""
POLL = 30.0
"""Seconds that one request waits for a job to end."""
RESULTS = 60.0
"""Seconds to wait for result files from nodes, counted from the last arrival."""
RESULT_POLL = 0.2
REPORT = 600.0
"""Seconds that a usage report may take; it may read the whole history."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
REVISION = "fairlead-revision"
"""The header with the revision of an answer."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")


class Problem(Exception):
    """Raised if the server refuses a request or cannot be reached. `status` is 0 if there was no answer."""

    def __init__(self, detail: str, status: int = 0, code: str = "unreachable", field: str = "") -> None:
        super().__init__(detail, status, code, field)
        self.detail = detail
        self.status = status
        self.code = code
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}" if self.field else self.detail


class NeverRuns(UserWarning):
    """Warning: the server accepted a job that can never run as the cluster is now."""


def warn(job: str, warning: str, level: int) -> None:
    """Issue the warning of a submission, if any, for the caller `level` frames up."""
    if warning:
        warnings.warn(f"job {job}: {warning}", NeverRuns, level + 1)


class Call(Generic[Answer]):
    """A request and the type of its answer."""

    def __init__(
        self,
        form: type[Answer],
        method: str,
        path: str,
        document: Document | None = None,
        seconds: float = 0.0,
        **parameters: Any,
    ) -> None:
        """Describe a request. `seconds` is added to its timeout, for requests that the server may answer late."""
        self.form = form
        self.method = method
        self.path = path
        self.seconds = seconds
        self.content = None if document is None else msgspec.json.encode(document)
        self.parameters = {name: value for name, value in parameters.items() if value not in (None, "", [])}
        self.headers = {} if document is None else {"content-type": "application/json"}
        self.follows = False
        """True if a server that follows the partition, and does not lead it, may answer."""
        if method != "GET":
            self.headers["idempotency-key"] = uuid4().hex

    def following(self) -> Call[Answer]:
        """Allow a server that does not lead the partition to answer, and return the call."""
        self.follows = True
        return self

    def after(self, revision: int) -> None:
        """Require an answer as of this revision or later, if a follower may answer."""
        if self.follows and revision:
            self.parameters["min_revision"] = revision

    def read(self, status: int, content: bytes) -> Answer:
        """Decode the answer, or raise the problem that it contains."""
        if status >= 400:
            raise problem_of(status, content)
        try:
            return msgspec.json.decode(content, type=self.form)
        except msgspec.DecodeError as problem:
            raise Problem(
                f"the answer is not what was asked for ({problem}); is this a Fairlead server?", status
            ) from None


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | bool:
    """Return the TLS trust settings of an endpoint, False for plain HTTP.

    Loading certificates takes a while, so plain HTTP loads none.
    """
    exposed = next(filter(is_exposed, addresses.servers(endpoint.url)), None)
    if exposed and endpoint.token and not endpoint.insecure:
        raise Problem(
            f"{exposed} is another machine, and without TLS the token can be read on the way; use https://, "
            f"or set {INSECURE}=1 (in Python insecure=True) if the network is trusted",
            code="insecure",
        )
    if "https://" not in endpoint.url:
        return False
    try:
        return ssl.create_default_context(cafile=endpoint.authority or None)
    except OSError as problem:
        raise Problem(
            f"{endpoint.authority} has no certificates to trust ({problem.strerror or problem}); set {AUTHORITY} to a "
            "PEM file",
            code="authority",
        ) from None


def chunks_of(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Split documents into chunks, each for one request."""
    waiting = list(documents)
    for start in range(0, len(waiting), MAX_JOBS):
        yield waiting[start : start + MAX_JOBS]


def poll_seconds(deadline: float | None) -> float:
    """Return the seconds that the next polling request for the end of a job may wait."""
    return POLL if deadline is None else max(0.0, min(POLL, deadline - time.monotonic()))


def problem_of(status: int, content: bytes) -> Problem:
    """Return the problem that an answer contains."""
    try:
        body = msgspec.json.decode(content, type=wire.Problem)
    except msgspec.DecodeError:
        return Problem(f"the server answered {status}; is this a Fairlead server?", status, "unknown")
    detail = body.detail
    if body.status == 401:
        detail = f"{detail.partition('; send ')[0]}; set {TOKEN} (in Python token=…) to a valid token"
    return Problem(detail, body.status, body.code, body.field)


def is_untrusted(problem: Exception) -> bool:
    """True if the connection failed because the certificate of the server is not trusted."""
    return "CERTIFICATE_VERIFY_FAILED" in str(problem)


def unreachable(url: str, problem: Exception) -> Problem:
    if is_untrusted(problem):
        why = re.sub(r"^.*certificate verify failed: |\.? \(_ssl.*$", "", str(problem))
        if "mismatch" in why:
            remedy = "write the server in the URL by a name that its certificate has"
        else:
            remedy = f"set {AUTHORITY} (in Python authority=…) to a file with the certificates to trust"
        return Problem(f"the certificate of {url} is not trusted ({why}); {remedy}", code="untrusted")
    remedy = "is the server up?"
    if url.startswith("http://") and "closed connection" in str(problem):
        remedy = "a server with a certificate needs https:// in its URL"
    return Problem(f"{url} cannot be reached ({problem}); {remedy}")


def may_resume(problem: Problem, failures: int) -> bool:
    """True if a stream that broke off, or could not begin, should be retried."""
    return (problem.code == "unreachable" or problem.status in RETRIED) and failures < TRIES


def pause(attempt: int, retry_after: str | None = None, servers: int = 1) -> float:
    """Return the seconds before the next attempt. They grow with each attempt, and are random to spread clients.

    With several servers, each is tried once before the first pause.
    """
    if attempt % servers != servers - 1:
        return 0.0
    seconds: float = FIRST_PAUSE * (1 << attempt // servers) * random.uniform(0.5, 1.5)
    if retry_after is not None and retry_after.isdigit():
        seconds = max(seconds, float(retry_after))
    return min(seconds, LONGEST_PAUSE)


API = "/api/v1"
MAX_JOBS = 1_000
"""Jobs in one request of `submit_many`."""


def job_document(command: list[str] | None, document: Document | None, fields: dict[str, Any]) -> Document:
    """Return a job document: the given one, or one built from a command and fields of the job and its only stage."""
    if document is not None:
        if command or fields:
            raise TypeError("give a document, or a command with fields, not both")
        return document
    if isinstance(command, str):
        raise TypeError(
            f"the command is text; write {command.split()}, or ['/bin/sh', '-c', {command!r}] to run it with a shell"
        )
    if not command:
        raise TypeError("a job needs a command, or a document that has one")
    stage_keys = set(wire.StageDocument.__struct_fields__) - {"name"}
    for key in fields:
        known = stage_keys.union(wire.JobDocument.__struct_fields__)
        if key not in known:
            raise TypeError(f"a job has no field {key}{_hint(key, known)}")
    stage = {key: value for key, value in fields.items() if key in stage_keys and value is not None}
    job = {key: value for key, value in fields.items() if key not in stage_keys and value is not None}
    return {**job, "stages": [{"command": list(command), **stage}]}


def _hint(wrong: str, known: Iterable[str]) -> str:
    """Return a suggestion for a field that jobs do not have."""
    from difflib import get_close_matches

    if wrong in ("cpu", "cpus", "memory", "gpu", "gpus"):
        return f"; write resources={{{wrong.removesuffix('s')!r}: …}}"
    close = [name for name in sorted(known) if name.startswith(wrong)] or get_close_matches(wrong, sorted(known), n=1)
    return f" (did you mean {close[0]}?)" if close else f"; it has {', '.join(sorted(known))}"


def submit(document: Document, partition: str) -> Call[wire.Submitted]:
    return Call(wire.Submitted, "POST", f"{API}/jobs", document, partition=partition)


def submit_many(documents: list[Document], partition: str) -> Call[wire.Batch]:
    return Call(wire.Batch, "POST", f"{API}/jobs/batch", {"jobs": documents}, seconds=60.0, partition=partition)


def job(name: str, partition: str, wait: float = 0.0) -> Call[wire.Job]:
    path = f"{API}/jobs/{part(name)}"
    return Call(wire.Job, "GET", path, seconds=wait, partition=partition, wait=wait or None).following()


def jobs(partition: str, **filters: Any) -> Call[wire.JobPage]:
    return Call(wire.JobPage, "GET", f"{API}/jobs", partition=partition, **filters).following()


def tasks(name: str, partition: str, **filters: Any) -> Call[wire.TaskPage]:
    return Call(wire.TaskPage, "GET", f"{API}/jobs/{part(name)}/tasks", partition=partition, **filters).following()


def dry_run(document: Document, partition: str, eta: bool = False) -> Call[wire.DryRun]:
    wanted = "true" if eta else None
    return Call(wire.DryRun, "POST", f"{API}/jobs/dry-run", document, partition=partition, eta=wanted)


def explain(name: str, partition: str, remedies: bool = True) -> Call[wire.Explanation]:
    # Send the parameter only to leave remedies out, because older servers do not know it.
    without = None if remedies else "false"
    return Call(wire.Explanation, "GET", f"{API}/jobs/{part(name)}/explain", partition=partition, remedies=without)


def etas(names: list[str], partition: str) -> Call[wire.Etas]:
    document = {"jobs": [part(name, f"jobs[{at}]") for at, name in enumerate(names)]}
    return Call(wire.Etas, "POST", f"{API}/eta", document, seconds=160.0, partition=partition)


def story(name: str, partition: str) -> Call[wire.Story]:
    return Call(wire.Story, "GET", f"{API}/jobs/{part(name)}/story", seconds=160.0, partition=partition)


def trace(partition: str, since: float | None) -> Call[wire.RecordedTrace]:
    return Call(wire.RecordedTrace, "GET", f"{API}/trace", seconds=160.0, partition=partition, since=since)


def in_order(names: Iterable[str], etas: Iterable[wire.Eta]) -> list[wire.Eta]:
    """Return the answers in the order of the requested names. The server answers each name once."""
    names = list(names)
    by_name = dict(zip(dict.fromkeys(names), etas, strict=True))
    return [by_name[name] for name in names]


def what_if(document: Mapping[str, Any], partition: str) -> Call[wire.WhatIf]:
    replay = document.get("replay")
    if isinstance(replay, float) and not isfinite(replay):  # JSON has no such number
        raise Problem(
            f"{replay} is no time to run again; write one such as 7d, or leave it out", 422, "invalid", "replay"
        )
    return Call(wire.WhatIf, "POST", f"{API}/whatif", document, seconds=160.0, partition=partition)


def attempts(name: str, partition: str, **filters: Any) -> Call[wire.Attempts]:
    return Call(wire.Attempts, "GET", f"{API}/jobs/{part(name)}/attempts", partition=partition, **filters)


def change(name: str, action: str, partition: str) -> Call[wire.Done]:
    """Return the call of an action without a document: `kill`, `hold`, `release` or `requeue`."""
    return Call(wire.Done, "POST", f"{API}/jobs/{part(name)}/{action}", partition=partition)


def scale(name: str, count: int, stage: str, partition: str) -> Call[wire.Done]:
    document = {"count": count} | ({"stage": stage} if stage else {})
    return Call(wire.Done, "POST", f"{API}/jobs/{part(name)}/scale", document, partition=partition)


def set_priority(name: str, priority: int, partition: str) -> Call[wire.Done]:
    document = {"priority": priority}
    return Call(wire.Done, "POST", f"{API}/jobs/{part(name)}/priority", document, partition=partition)


def try_priority(name: str, priority: int, partition: str) -> Call[wire.PriorityStops]:
    path = f"{API}/jobs/{part(name)}/priority/dry-run"
    return Call(wire.PriorityStops, "POST", path, {"priority": priority}, partition=partition)


def nodes(partition: str, **filters: Any) -> Call[wire.Nodes]:
    return Call(wire.Nodes, "GET", f"{API}/nodes", partition=partition, **filters).following()


def partitions() -> Call[wire.Partitions]:
    return Call(wire.Partitions, "GET", f"{API}/partitions")


def servers() -> Call[wire.Servers]:
    return Call(wire.Servers, "GET", f"{API}/servers")


def drain_server(server: str, action: str) -> Call[wire.Done]:
    return Call(wire.Done, "POST", f"{API}/servers/{part(server, 'server')}/{action}")


def queues(partition: str) -> Call[wire.Queues]:
    return Call(wire.Queues, "GET", f"{API}/queues", partition=partition).following()


def holds(partition: str) -> Call[wire.Holds]:
    return Call(wire.Holds, "GET", f"{API}/holds", partition=partition).following()


def release_hold(job: str, stage: str, partition: str) -> Call[wire.Done]:
    document = {"job": job} | ({"stage": stage} if stage else {})
    return Call(wire.Done, "POST", f"{API}/holds/release", document, partition=partition)


def managers(partition: str) -> Call[wire.Managers]:
    return Call(wire.Managers, "GET", f"{API}/managers", partition=partition)


def remove_manager(name: str, partition: str) -> Call[wire.Done]:
    return Call(wire.Done, "DELETE", f"{API}/managers/{part(name, 'name')}", partition=partition)


def lanes(partition: str, first: int) -> Call[wire.Lanes]:
    return Call(wire.Lanes, "GET", f"{API}/lanes", partition=partition, first=first)


def watch(name: str, partition: str, after: int | None) -> Call[bytes]:
    return Call(bytes, "GET", f"{API}/watch", partition=partition, job=part(name) if name else "", after=after)


class EventReader:
    """Parses the events of a stream from its parts."""

    def __init__(self, after: int | None) -> None:
        self.after = after
        """The id of the last event; a broken stream resumes after it."""
        self._rest = b""

    def restart(self) -> None:
        """Drop the incomplete event at the end of a broken stream."""
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[wire.Event]:
        """Yield the events that this part completes."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
            if b"data" in fields and b"event" in fields:
                if fields[b"event"] == b"reset":
                    note = msgspec.json.decode(fields[b"data"], type=wire.Done).note
                    yield wire.Event(what="reset", at=time.time(), reason=note)
                else:
                    yield msgspec.json.decode(fields[b"data"], type=wire.Event)
            if b"id" in fields:
                self.after = int(fields[b"id"])


def pools(partition: str) -> Call[wire.Pools]:
    return Call(wire.Pools, "GET", f"{API}/pools", partition=partition)


def pool(name: str, partition: str) -> Call[wire.Pool]:
    return Call(wire.Pool, "GET", f"{API}/pools/{part(name, 'pool')}", partition=partition)


def move_pool(name: str, action: str, partition: str) -> Call[wire.Done]:
    return Call(wire.Done, "POST", f"{API}/pools/{part(name, 'pool')}/{action}", partition=partition)


def scale_pool(name: str, nodes: int, partition: str) -> Call[wire.Done]:
    return Call(wire.Done, "POST", f"{API}/pools/{part(name, 'pool')}/scale", {"nodes": nodes}, partition=partition)


def usage(partition: str) -> Call[wire.Usage]:
    return Call(wire.Usage, "GET", f"{API}/usage", partition=partition)


def usage_report(
    by: Iterable[str], since: Moment | None, until: Moment | None, user: str, partition: str
) -> Call[wire.UsageReport]:
    if isinstance(by, str):
        raise TypeError(f"by is text; write {by.split(',')}")
    filters: dict[str, Any] = {"since": seconds_of(since), "until": seconds_of(until), "user": user}
    return Call(
        wire.UsageReport, "GET", f"{API}/usage/report", None, REPORT, by=",".join(by), partition=partition, **filters
    )


def history(
    partition: str, since: Moment | None = None, until: Moment | None = None, **filters: Any
) -> Call[wire.HistoryPage]:
    filters |= {"since": seconds_of(since), "until": seconds_of(until)}
    return Call(wire.HistoryPage, "GET", f"{API}/history", partition=partition, **filters)


def seconds_of(moment: Moment | None) -> str:
    """Return a moment as seconds since 1970. A moment without a time zone is in local time."""
    if moment is None:
        return ""
    return f"{moment.timestamp() if isinstance(moment, datetime) else moment:f}"


def secrets() -> Call[wire.Secrets]:
    return Call(wire.Secrets, "GET", f"{API}/secrets")


def set_secret(name: str, value: str, expires_in: float | None) -> Call[wire.Done]:
    document = {"value": value} | ({} if expires_in is None else {"expires_in": expires_in})
    return Call(wire.Done, "PUT", f"{API}/secrets/{part(name, 'name')}", document)


def remove_secret(name: str) -> Call[wire.Done]:
    return Call(wire.Done, "DELETE", f"{API}/secrets/{part(name, 'name')}")


def log(name: str, partition: str, **options: Any) -> Call[bytes]:
    return Call(bytes, "GET", f"{API}/jobs/{part(name)}/log", partition=partition, **options)


def results(name: str, partition: str, **filters: Any) -> Call[wire.Results]:
    return Call(wire.Results, "GET", f"{API}/jobs/{part(name)}/results", partition=partition, **filters)


def result_file(name: str, task: wire.TaskResults, file: str, partition: str) -> Call[bytes]:
    options: dict[str, Any] = {"stage": task.stage, "index": task.index, "attempt": task.attempt, "name": file}
    return Call(bytes, "GET", f"{API}/jobs/{part(name)}/results/file", partition=partition, **options)


def result_archive(name: str, partition: str, **filters: Any) -> Call[bytes]:
    return Call(bytes, "GET", f"{API}/jobs/{part(name)}/results/archive", partition=partition, **filters)


Told = Callable[[str, int, int], None]
"""Is called with the progress of a transfer: what is done (`waiting` or `fetching`), how much of it, and the whole."""


class Patience:
    """Limits the wait for result files of a job: it ends `timeout` seconds after the last arrival."""

    def __init__(self, job: str, timeout: float) -> None:
        self._job = job
        self._timeout = timeout
        self._fewest: int | None = None
        self._deadline = 0.0

    def note(self, waiting: int, now: float) -> None:
        """Note the number of tasks whose files are missing. Raise `TimeoutError` when the wait is over."""
        if self._fewest is None or waiting < self._fewest:
            self._fewest, self._deadline = waiting, now + self._timeout
        elif now >= self._deadline:
            raise TimeoutError(
                f"the result files of {waiting} tasks of job {self._job} are still on their way from their nodes"
            )


def part(name: str, field: str = "job") -> str:
    """Return a name as part of a path. Refuse what cannot be a name, before it is sent."""
    if not isinstance(name, str):
        raise Problem(f"{name!r} is not text; write {str(name)!r}", 422, "invalid", field)
    if not NAME.fullmatch(name) or ".." in name:
        raise Problem(
            f"{name[:40]!r} is not a name; a name has letters, digits or . _ @ + - and starts with a letter or digit",
            422,
            "invalid",
            field,
        )
    return name
