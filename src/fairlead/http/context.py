"""Shared by all handlers: the services, the request with its caller, and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fairlead.control.control import Control
from fairlead.control.quotas import Quotas
from fairlead.core.commands import AnyCommand, Command
from fairlead.core.errors import Refused
from fairlead.core.intake.rights import is_owner
from fairlead.core.model import Job, JobSpec, Micros
from fairlead.core.state import Partition
from fairlead.engines.engine import Connection
from fairlead.history.filter import JobFilter
from fairlead.history.recorder import AttemptRow, JobRow, ResultRow
from fairlead.history.usage_report import UsageReport
from fairlead.http.board import Boards
from fairlead.http.middleware import Bounds
from fairlead.http.responses import Receive, Scope, Stream
from fairlead.http.user_slots import Threads, Turns
from fairlead.identity.node_keys import Identities
from fairlead.identity.sessions import Sessions
from fairlead.identity.tokens import Token, Tokens
from fairlead.views.metrics.lane_metrics import LaneFigures
from fairlead.views.metrics.scraped import InboxFigures
from fairlead.wire import api as wire
from fairlead.wire.agent_messages import LogPart, LogRequest
from fairlead.wire.preview import AnyQuestion, Etas, Failure, Story
from fairlead.wire.preview import Document as Passed
from fairlead.wire.unserved import Unserved

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


class Disconnected(Exception):
    """The caller has disconnected before its request had arrived."""


class Request:
    """A request that has passed the gate."""

    def __init__(self, services: Services, scope: Scope, receive: Receive) -> None:
        self.services = services
        self.scope = scope
        self.receive = receive

    @property
    def caller(self) -> Token:
        caller: Token = self.scope["caller"]
        return caller

    def header(self, name: str) -> str:
        """Return a header; empty if it is absent."""
        wanted = name.lower().encode()
        return next((value.decode("latin-1") for header, value in self.scope["headers"] if header == wanted), "")

    async def body(self) -> bytes:
        """Receive the body."""
        parts: list[bytes] = []
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)


def caller_fields(request: Request, key: str = "") -> dict[str, Any]:
    """Return the fields of a command that describe its caller."""
    caller = request.caller
    return {"user": caller.user, "groups": caller.groups, "operator": caller.operator, "key": key}


async def order(request: Request, partition: str, command: AnyCommand, what: str) -> wire.Done:
    """Execute a command about the thing that the path names; answer 404 if it does not exist."""
    control = request.services.control
    try:
        accepted = await control.find(partition).execute(command)
    except Refused as refusal:
        if refusal.code == "unknown" and refusal.field == what:
            raise Refused(refusal.field, refusal.problem, "missing") from None
        raise
    return wire.Done(note=accepted.note)


def may_see(caller: Token, job: Job) -> bool:
    """True if the caller may see a job: its owner, administrators of its queue, operators. They may change it too."""
    return is_owner(Command(user=caller.user, groups=caller.groups, operator=caller.operator), job)


def seen_by(request: Request) -> Callable[[Job], bool]:
    """Return a predicate that is True for jobs that the caller of a request may see."""
    caller = request.caller
    return lambda job: may_see(caller, job)


# -- streams -----------------------------------------------------------------------------------------------------


def streamed(
    services: Services,
    caller: Token,
    lines: AsyncGenerator[bytes],
    kind: str = "text/event-stream",
) -> Stream:
    """Return a streaming response, limited per token. It ends when its token is revoked or expires."""
    check_streams(services, caller)
    return Stream(_while_valid(services, caller, lines, FAREWELL[kind]), kind, NOT_STORED)


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
