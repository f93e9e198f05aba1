"""Shared by all handlers: the services, the caller, reading of documents, error answers, streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.dto import AbstractDTO
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.spec import Reference, Schema
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream
from litestar.typing import FieldDefinition

from fairlead.api.board import Boards
from fairlead.api.control import Control
from fairlead.api.identities import Identities
from fairlead.api.middleware import Bounds
from fairlead.api.problems import MEDIA_TYPE, Unserved, plain, problem_of
from fairlead.api.quotas import Quotas
from fairlead.api.sessions import Sessions
from fairlead.api.tokens import Token, Tokens
from fairlead.api.turns import Threads, Turns
from fairlead.core.commands import Command
from fairlead.core.errors import Refused
from fairlead.core.intake.access import is_owner
from fairlead.core.model import Job, JobSpec, Micros
from fairlead.core.state import Partition
from fairlead.engines.base import Connection
from fairlead.history.filter import JobFilter
from fairlead.history.recorder import AttemptRow, JobRow, ResultRow
from fairlead.history.usage import UsageReport
from fairlead.views.metrics.lanes import LaneFigures
from fairlead.views.metrics.scraped import InboxFigures
from fairlead.wire import api as wire
from fairlead.wire.agent import LogPart, LogRequest
from fairlead.wire.preview import AnyQuestion, Etas, Failure, Story
from fairlead.wire.preview import Document as Passed

NOT_STORED = {"cache-control": "no-store"}
TOKEN_ENDED = "the token was revoked or has expired"
FAREWELL = {
    "text/event-stream": f'event: end\ndata: {{"note":"{TOKEN_ENDED}"}}\n\n'.encode(),
    "text/plain; charset=utf-8": f"\n[fairlead: {TOKEN_ENDED}]\n".encode(),
    "application/octet-stream": b"",
}
"""Media type of a stream → its last bytes when its token is revoked or expires."""


class Hub(Protocol):
    """The engine of Fairlead's own agents, as the API uses it."""

    async def serve(self, partition: str, connection: Connection) -> None: ...

    async def dismiss(self, partition: str, epoch: int, connection: Connection) -> None: ...

    def ahead(self) -> dict[str, list[str]]:
        """Return for each partition the nodes that report attempts or epochs which the journal never had."""

    def connected(self, partition: str) -> dict[str, float]: ...

    def log(self, partition: str, node: str, asked: LogRequest) -> AsyncIterator[LogPart]: ...


class Records(Protocol):
    """The history of finished jobs and attempts. Its methods block on disk I/O."""

    @property
    def failing(self) -> bool: ...

    def job(self, partition: str, id: str) -> JobRow | None: ...

    def jobs(self, partition: str, wanted: JobFilter, before: int | None, limit: int) -> list[JobRow]: ...

    def usage(self, report: UsageReport) -> None: ...

    def ran(self, partition: str, since: int, until: int, user: str, limit: int) -> list[tuple[AttemptRow, str]]: ...

    def starts(self, partition: str, numbers: list[int]) -> dict[int, int]: ...

    def attempts(self, partition: str, number: int, skip: int, limit: int) -> list[AttemptRow]: ...

    def task_attempts(self, partition: str, number: int, stage: str, index: int) -> list[AttemptRow]: ...

    def used(self, partition: str, number: int) -> dict[str, tuple[int, int, int]]: ...

    def results(
        self, partition: str, number: int, stage: str, index: int | None, attempt: int | None, skip: int, limit: int
    ) -> list[ResultRow]: ...

    def flush(self, seconds: float) -> None: ...


class Outputs(Protocol):
    """Logs and result files that were copied from nodes. Its methods block on a disk or an object store."""

    def size(self, partition: str, asked: LogRequest) -> int | None: ...

    def read(self, partition: str, asked: LogRequest, offset: int, most: int) -> bytes: ...

    def result_size(self, partition: str, user: str, number: int, row: ResultRow, name: str) -> int | None: ...

    def read_result(
        self, partition: str, user: str, number: int, row: ResultRow, name: str, offset: int, most: int
    ) -> bytes: ...


class Measured(Protocol):
    """The metrics of all partitions."""

    def look(self, partition: Partition, inbox: InboxFigures) -> None: ...

    def text(self, now: Micros, with_jobs: bool) -> str: ...

    def lanes(self, partition: str) -> LaneFigures: ...


class SecretKeeper(Protocol):
    """The store of secrets."""

    @property
    def gang_seed(self) -> bytes: ...

    def names(self, user: str) -> list[str]: ...

    def set(self, user: str, name: str, text: str, expires_in: float | None = None) -> None: ...

    def remove(self, user: str, name: str) -> None: ...

    def check(self, spec: JobSpec, caller: str) -> None: ...


class Preview(Protocol):
    """The second process: it predicts starts by simulation and reads the journal."""

    async def ask(self, question: AnyQuestion) -> Etas | Story | Passed | Failure: ...


class Services:
    """All services behind the API."""

    def __init__(
        self,
        control: Control,
        hub: Hub,
        records: Records,
        tokens: Tokens,
        identities: Identities,
        secrets: SecretKeeper,
        metrics: Measured,
        bounds: Bounds,
        quotas: Quotas,
        version: str,
        fault: Callable[[Exception], None] = lambda error: None,
        log: Callable[[str, dict[str, Any]], None] = lambda event, fields: None,
        outputs: Outputs | None = None,
        expected_results: Callable[[str, int], int] = lambda partition, number: 0,
        preview: Preview | None = None,
    ) -> None:
        """Take the services. `fault` is called with internal errors, `log` with events for the server's log.

        `expected_results` returns the number of tasks of a job whose result files have not arrived yet.
        """
        self.outputs = outputs
        self.preview = preview
        self.preview_turns = Turns(1)
        self.expected_results = expected_results
        self.control = control
        self.hub = hub
        self.records = records
        self.tokens = tokens
        self.identities = identities
        self.secrets = secrets
        self.sessions = Sessions(tokens, lambda: secrets.gang_seed)
        self.boards = Boards()
        self.metrics = metrics
        self.bounds = bounds
        self.quotas = quotas
        self.version = version
        self.fault = fault
        self.log = log
        self.threads = Threads()
        self.report_turns = Turns(1)
        self.reporting = asyncio.Lock()
        """Held while a usage report is made: one at a time, because it may read the whole history."""
        self.streams: dict[str, set[asyncio.Event]] = {}
        """Token → one event per open stream of it; setting the event ends the stream."""

    def end_streams(self, token: str) -> None:
        """End the streams of a token that was revoked."""
        for over in self.streams.get(token, ()):
            over.set()


def services_of(request: Request[Any, Any, Any]) -> Services:
    services: Services = request.app.state.services
    return services


def caller_of(request: Request[Any, Any, Any]) -> Token:
    caller: Token = request.scope["caller"]  # type: ignore[typeddict-item]
    return caller


def caller_fields(request: Request[Any, Any, Any], key: str | None = None) -> dict[str, Any]:
    """Return the fields of a command that describe its caller."""
    caller = caller_of(request)
    return {"user": caller.user, "groups": caller.groups, "operator": caller.operator, "key": key or ""}


def may_see(caller: Token, job: Job) -> bool:
    """True if the caller may see a job: its owner, administrators of its queue, operators. They may change it too."""
    return is_owner(Command(user=caller.user, groups=caller.groups, operator=caller.operator), job)


def seen_by(request: Request[Any, Any, Any]) -> Callable[[Job], bool]:
    """Return a predicate that is True for jobs that the caller of a request may see."""
    caller = caller_of(request)
    return lambda job: may_see(caller, job)


def need(*roles: str) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]:
    """Return a guard that admits callers with one of these roles. It is async, because sync guards run in a thread."""

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        caller: Token = connection.scope["caller"]  # type: ignore[typeddict-item]
        if caller.role not in roles:
            raise Refused("token", f"a token of role {caller.role} may not do this; {roles[0]} may", "forbidden")

    return guard


USERS = need("user", "operator", "admin")
OPERATORS = need("operator", "admin")
ADMINS = need("admin")

PartitionName = Annotated[
    str,
    QueryParameter(
        name="partition",
        required=False,
        description="The partition. By default the only one, or the one called default.",
        max_length=63,
    ),
]
Key = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        required=False,
        max_length=190,
        description="A repeated request with the same key gets the same answer and changes nothing more.",
    ),
]
MinRevision = Annotated[
    int,
    QueryParameter(
        name="min_revision",
        ge=0,
        required=False,
        description="Answer as of this revision or later: the `Fairlead-Revision` of an earlier answer.",
    ),
]
Limit = Annotated[int, QueryParameter(name="limit", ge=1, le=1_000, required=False)]


# -- documents ---------------------------------------------------------------------------------------------------


class Shaped(NamedTuple):
    """Marks the document of a request with its type, for OpenAPI. The handler checks the document itself."""

    form: type[msgspec.Struct]


class Document(AbstractDTO[Any]):
    """The body of a request as plain values. The core's readers check it; their errors name field and remedy."""

    def decode_bytes(self, value: bytes) -> Any:
        if not value:
            raise Refused("body", "missing; send a JSON document", "malformed")
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise Refused("body", f"it is not JSON: {str(problem)[:200]}; correct it", "malformed") from None

    @classmethod
    def create_for_field_definition(cls, field_definition: FieldDefinition, *args: Any, **kwargs: Any) -> None:
        pass

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: Any
    ) -> Reference | Schema:
        (shaped,) = (mark for mark in field_definition.metadata if isinstance(mark, Shaped))
        schema: Reference | Schema = schema_creator.for_field_definition(FieldDefinition.from_annotation(shaped.form))
        return schema


# -- errors ------------------------------------------------------------------------------------------------------


def refused(request: Request[Any, Any, Any], error: Refused | Unserved) -> Response[wire.Problem]:
    """Answer a refusal with a problem document."""
    problem = problem_of(error)
    headers = {}
    if isinstance(error, Unserved) and error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return Response(problem, media_type=MEDIA_TYPE, status_code=problem.status, headers=headers)


def http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[wire.Problem]:
    """Answer an error of the framework, such as an unknown path or method or a parameter out of bounds."""
    detail, field = error.detail, ""
    extra = error.extra if isinstance(error.extra, list) else []
    if extra:
        first: dict[str, Any] = extra[0]
        field, detail = str(first.get("key", "")), str(first.get("message", detail))
        if field == "data":
            field, detail = "body", "missing; send a JSON document"
    codes = {404: "missing", 405: "method", 400: "invalid", 401: "unauthenticated", 403: "forbidden"}
    problem = plain(error.status_code, detail, codes.get(error.status_code, "invalid"))
    problem = msgspec.structs.replace(problem, field=field)
    return Response(problem, media_type=MEDIA_TYPE, status_code=problem.status, headers=error.headers)


# -- streams -----------------------------------------------------------------------------------------------------


def streamed(
    services: Services,
    caller: Token,
    lines: AsyncGenerator[bytes],
    kind: str = "text/event-stream",
) -> Stream:
    """Return a streaming response, limited per token. It ends when its token is revoked or expires."""
    check_streams(services, caller)
    return Stream(_while_valid(services, caller, lines, FAREWELL[kind]), media_type=kind, headers=NOT_STORED)


def check_streams(services: Services, caller: Token) -> None:
    """Refuse another stream if the caller's token has too many open."""
    if len(services.streams.get(caller.id, ())) >= services.bounds.streams:
        raise Unserved("too many", f"{services.bounds.streams} streams are open with this token; close some", 10)


@contextmanager
def counted_stream(services: Services, caller: Token) -> Iterator[asyncio.Event]:
    """Count a stream while it is open. The event is set when its token is revoked or expires."""
    over = asyncio.Event()
    services.streams.setdefault(caller.id, set()).add(over)
    expiry = None
    if caller.expires is not None:
        expiry = asyncio.get_running_loop().call_later(max(0.0, caller.expires - services.tokens.now()), over.set)
    if not services.tokens.is_known(caller):
        over.set()  # the token was revoked meanwhile
    try:
        yield over
    finally:
        if expiry is not None:
            expiry.cancel()
        services.streams[caller.id].discard(over)
        if not services.streams[caller.id]:
            del services.streams[caller.id]


async def _while_valid(
    services: Services, caller: Token, lines: AsyncGenerator[bytes], farewell: bytes
) -> AsyncGenerator[bytes]:
    line: asyncio.Task[bytes] | None = None
    try:
        with counted_stream(services, caller) as over:
            ended = asyncio.create_task(over.wait())
            try:
                while not over.is_set():
                    line = asyncio.ensure_future(anext(lines))
                    await asyncio.wait((line, ended), return_when=asyncio.FIRST_COMPLETED)
                    if over.is_set():
                        break
                    try:
                        text = line.result()
                    except StopAsyncIteration:
                        return
                    yield text
                yield farewell
            finally:
                ended.cancel()
    finally:
        # Clean up before the first await: if the client has disconnected, each await is cancelled.
        if line is not None and not line.done():
            line.cancel()  # this ends `lines` too
        else:
            await lines.aclose()
