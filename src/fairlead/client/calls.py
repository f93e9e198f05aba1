"""What both clients share: operations as requests, errors, retries, and reading of streams.

A request that changes something has an idempotency key. If its answer is lost, it is sent again: the server then gives
the same answer and changes nothing more.
"""

from __future__ import annotations

import gzip
import random
import re
import ssl
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import urlencode
from uuid import uuid4

import msgspec

from fairlead.client.endpoint import AUTHORITY, INSECURE, TOKEN, Endpoint, find_endpoint, is_local
from fairlead.wire import addresses
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.addresses import is_exposed
from fairlead.wire.operation import Answer, Operation, row_of


class Paged(Protocol):
    """A page of a list. `next` is the cursor of the next page; empty on the last page."""

    @property
    def next(self) -> str: ...


Page = TypeVar("Page", bound=Paged)
Document = Mapping[str, Any] | msgspec.Struct
Moment = float | datetime
"""Seconds since 1970, or a date and time."""

RETRIED = frozenset((429, 502, 503, 504))
"""Status codes of answers after which a request is sent again."""
TRIES = 8
REQUEST_TIMEOUT = 30.0
"""Seconds to wait for an answer."""
POLL = 30.0
"""Longest time in seconds that one request waits for the end of a job."""
RESULTS = 60.0
"""Seconds to wait for the next result file from a node."""
RESULT_POLL = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
REVISION = "fairlead-revision"
"""Header of an answer: the number of the record that it is as of."""
GZIP = b"\x1f\x8b"
"""The start of a compressed answer: that of `GET /map` is always compressed."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")


class Problem(Exception):
    """Raised if the server refuses a request or cannot be reached. `status` is 0 if there is no answer."""

    def __init__(
        self, detail: str, status: int = 0, code: str = "unreachable", field: str = "", confirm: str = ""
    ) -> None:
        super().__init__(detail, status, code, field, confirm)
        self.confirm = confirm
        """With the code `unconfirmed`: what confirms the change, as `confirm` of its operation."""
        self.detail = detail
        self.status = status
        self.code = code
        self.field = field

    def __str__(self) -> str:
        return f"{self.field}: {self.detail}" if self.field else self.detail


class NeverRuns(UserWarning):
    """Warning: the server accepted a job that can never run as the cluster is now."""


def warn(job: str, warning: str, level: int) -> None:
    """Issue the warning of a submission, if there is one. Python shows it at the caller `level` frames up."""
    if warning:
        warnings.warn(f"job {job}: {warning}", NeverRuns, level + 1)


class Caller:
    """Base of both clients: the servers, the partition, and the revision of the client's last change."""

    def __init__(
        self, url: str = "", token: str = "", authority: str = "", partition: str = "", insecure: bool = False
    ) -> None:
        """Use the server at `url`, or the default one.

        `url` may list several servers of a cluster, separated by commas: requests go to the one that leads. `insecure`
        allows sending the token to another machine without TLS.
        """
        self._endpoint = Endpoint(url, token, authority, insecure) if url else find_endpoint()
        self._servers = addresses.servers(self._endpoint.url) or [self._endpoint.url]
        self.url = ",".join(self._servers)
        self.partition = partition
        self._revision = 0
        """The revision of this client's last change. Other servers must answer reads as of it or later."""

    def _call(self, operation: Operation[Answer]) -> Call[Answer]:
        """Return an operation as a request. A server that does not lead must know this client's last change."""
        call = Call(operation, self.partition)
        if len(self._servers) > 1:
            call.after(self._revision)
        return call

    def _note(self, call: Call[Any], status: int, revision: str) -> None:
        """Note the revision of an answer."""
        if call.method != "GET":
            self._revision = max(self._revision, int(revision))
        elif status in (409, 503):  # an older state may have been restored, without this revision
            self._revision = 0


class Call(Generic[Answer]):
    """An operation as a request: method, path, parameters, content, and the type of its answer."""

    def __init__(self, operation: Operation[Answer], partition: str = "") -> None:
        """Describe a request. `partition` is used if the operation can name a partition and does not."""
        row = row_of(type(operation))
        self.form: Any = row.answer
        self.method = row.route.method
        self.path = row.route.path
        self.parameters: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        for parameter in row.parameters:
            value = getattr(operation, parameter.name)
            if parameter.place == "path":
                self.path = self.path.replace(f"{{{parameter.name}}}", part(value, parameter.name))
            elif value is not None and value != parameter.default:
                place = self.headers if parameter.place == "header" else self.parameters
                place[parameter.sent.lower() if parameter.place == "header" else parameter.sent] = value
            elif parameter.name == "partition" and partition:
                self.parameters["partition"] = partition
        self.content = None
        if row.document is not None:
            self.content = msgspec.json.encode(getattr(operation, row.document.name))
            self.headers["content-type"] = "application/json"
        if self.method != "GET":
            self.headers.setdefault("idempotency-key", uuid4().hex)
        self.seconds: float = row.route.seconds + getattr(operation, "wait", 0.0)
        """Seconds that the answer may take beyond the usual time."""
        self._follows = row.follows

    @property
    def target(self) -> str:
        """The path and the query."""
        if not self.parameters:
            return self.path
        texts = {
            name: str(value).lower() if isinstance(value, bool) else value for name, value in self.parameters.items()
        }
        return f"{self.path}?{urlencode(texts, doseq=True)}"

    def after(self, revision: int) -> None:
        """Require an answer as of this revision or later, if a server that follows the leader may answer."""
        if self._follows and revision:
            self.parameters["min_revision"] = revision

    def read(self, status: int, content: bytes) -> Answer:
        """Decode the answer, or raise the problem that it contains."""
        if status >= 400:
            raise problem_of(status, content)
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        try:
            answer: Answer = msgspec.json.decode(content, type=self.form)
            return answer
        except msgspec.DecodeError as problem:
            raise Problem(
                f"the answer is not what was asked for ({problem}); is this a Fairlead server?", status
            ) from None


class ServerAddress(NamedTuple):
    secure: bool
    host: str
    port: int
    path: str


def addresses_of(endpoint: Endpoint) -> list[ServerAddress]:
    """Return the addresses of the servers. Raise a `Problem` if a URL or the token cannot be used."""
    if not endpoint.token.isascii() or not endpoint.token.isprintable():
        raise Problem("the token has characters that no token has; copy it again", code="token")
    try:
        return [ServerAddress(*addresses.parse_url(url)) for url in addresses.servers(endpoint.url) or [endpoint.url]]
    except ValueError as problem:
        raise Problem(str(problem), code="address") from None


def given(**keys: Any) -> Any:
    """Return a document with the keys that are not None."""
    return {key: value for key, value in keys.items() if value is not None}


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """Return the TLS trust settings of an endpoint; None for plain HTTP, to avoid the loading of certificates."""
    exposed = next(filter(is_exposed, addresses.servers(endpoint.url)), None)
    if exposed and endpoint.token and not endpoint.insecure:
        raise Problem(
            f"{exposed} is another machine, and without TLS the token can be read on the network; use https://, "
            f"or set {INSECURE}=1 (in Python insecure=True) if the network is trusted",
            code="insecure",
        )
    if "https://" not in endpoint.url:
        return None
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
    """Return how many seconds the next request may wait for the end of a job."""
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
    return Problem(detail, body.status, body.code, body.field, body.confirm)


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
    if url.startswith("http://") and re.search("closed (the )?connection", str(problem)):
        remedy = "a server with a certificate needs https:// in its URL"
    elif is_local(url):
        remedy = "is the server up? `fairlead up` starts one on this machine"
    return Problem(f"{url} cannot be reached ({problem}); {remedy}")


def may_resume(problem: Problem, failures: int) -> bool:
    """True if a stream that broke off, or could not begin, should be retried."""
    return (problem.code == "unreachable" or problem.status in RETRIED) and failures < TRIES


def pause(attempt: int, retry_after: str | None = None, servers: int = 1) -> float:
    """Return the seconds before the next attempt. They grow with each attempt, and are random to spread requests.

    With several servers, each is tried once before the first pause.
    """
    if attempt % servers != servers - 1:
        return 0.0
    seconds: float = FIRST_PAUSE * (1 << attempt // servers) * random.uniform(0.5, 1.5)
    if retry_after is not None and retry_after.isdigit():
        seconds = max(seconds, float(retry_after))
    return min(seconds, LONGEST_PAUSE)


MAX_JOBS = 1_000
"""Jobs in one request of `submit_many`."""


def job_document(command: list[str] | None, document: Document | None, fields: dict[str, Any]) -> Any:
    """Return a job document: `document`, or one made of a command and fields of the job and its only stage."""
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
    """Return a hint about a wrong name of a field, such as ` (did you mean queue?)`."""
    from difflib import get_close_matches

    if wrong in ("cpu", "cpus", "memory", "gpu", "gpus"):
        return f"; write resources={{{wrong.removesuffix('s')!r}: …}}"
    close = [name for name in sorted(known) if name.startswith(wrong)] or get_close_matches(wrong, sorted(known), n=1)
    return f" (did you mean {close[0]}?)" if close else f"; it has {', '.join(sorted(known))}"


def watch(job: str, after: int | None) -> op.Watch:
    return op.Watch(job=part(job) if job else "", after=after)


def log(
    job: str, stage: str, index: int, stream: str, follow: bool, offset: int, attempt: int | None, after: int | None
) -> op.Log:
    chosen: Any = stream
    return op.Log(
        job=job, stage=stage, index=index, stream=chosen, follow=follow, offset=offset, attempt=attempt, after=after
    )


def result_file(job: str, task: wire.TaskResults, name: str) -> op.ResultFile:
    return op.ResultFile(job=job, stage=task.stage, index=task.index, attempt=task.attempt, name=name)


class EventReader:
    """Parses the events in a stream that arrives in parts."""

    def __init__(self, after: int | None) -> None:
        self.after = after
        """The id of the last event. A broken stream is opened again after it."""
        self._rest = b""

    def restart(self) -> None:
        """Forget the incomplete event at the end of a broken stream."""
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[wire.Event]:
        """Yield the events that are complete with this part."""
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


def listed(values: str | Iterable[str]) -> list[str]:
    """Return a text, or several texts, as a list."""
    return [values] if isinstance(values, str) else list(values or ())


def seconds_of(moment: Moment | None) -> str:
    """Return a moment as seconds since 1970. A moment without a time zone is in local time."""
    if moment is None:
        return ""
    return f"{moment.timestamp() if isinstance(moment, datetime) else moment:f}"


Told = Callable[[str, int, int], None]
"""Called with the progress of result files: `waiting` or `fetching`, the number done, and the total number."""


class Patience:
    """Limits the wait for result files of a job to `timeout` seconds after the last arrival."""

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
    """Return a name to use in a path. Raise `Problem` if it cannot be a name."""
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
