"""What all handlers share: the services, the request with its caller, commands, and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from fairlead.control.control import Control
from fairlead.control.follower import FollowedPartition
from fairlead.control.partition import PartitionService
from fairlead.control.quotas import Quotas
from fairlead.core.commands import Accepted, Command
from fairlead.core.errors import Refused
from fairlead.core.intake.lookup import is_administrator, is_owner
from fairlead.core.model import Job, Queue
from fairlead.engines.engine import Connection
from fairlead.history.outputs import OutputStore
from fairlead.history.promised_starts import PromisedStarts
from fairlead.history.store import History
from fairlead.http.board import Boards
from fairlead.http.middleware import Bounds
from fairlead.http.responses import Receive, Scope, Stream, header
from fairlead.http.user_slots import Threads, Turns
from fairlead.identity.node_keys import Identities
from fairlead.identity.secrets import Secrets
from fairlead.identity.sessions import Sessions
from fairlead.identity.task_tokens import Owner, TaskTokens
from fairlead.identity.tokens import Token, Tokens
from fairlead.views.metrics.metrics import Metrics
from fairlead.wire import api as wire
from fairlead.wire.agent_messages import LogPart, LogRequest, OpenTunnel
from fairlead.wire.operation import BYTES, EVENTS, Followed
from fairlead.wire.preview import AnyQuestion, Document, Etas, Failure, Story
from fairlead.wire.task_token import TaskToken
from fairlead.wire.unserved import Unserved

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

FLUSH_TIMEOUT = 2.0
NOT_STORED = {"cache-control": "no-store"}
TOKEN_ENDED = "the token was revoked or has expired"
FAREWELL = {
    EVENTS: f'event: end\ndata: {{"note":"{TOKEN_ENDED}"}}\n\n'.encode(),
    "text/plain; charset=utf-8": f"\n[fairlead: {TOKEN_ENDED}]\n".encode(),
    BYTES: b"",
}
"""Media type of a stream → its last bytes when its token is revoked or expires."""


class Hub(Protocol):
    """The engine of Fairlead's own agents, with the methods that the API needs."""

    async def serve(self, partition: str, connection: Connection) -> None: ...

    async def dismiss(self, partition: str, epoch: int, connection: Connection) -> None: ...

    def ahead(self) -> dict[str, list[str]]:
        """Return the nodes of each partition that report attempts or epochs which are not in the journal."""

    def connected(self, partition: str) -> dict[str, float]: ...

    def log(self, partition: str, node: str, asked: LogRequest) -> AsyncIterator[LogPart]: ...

    async def open_tunnel(self, partition: str, node: str, request: OpenTunnel) -> Connection: ...

    def claim(self, ticket: str, connection: Connection) -> bool: ...


class InPartition(Protocol):
    """An operation in one partition."""

    partition: str


class Preview(Protocol):
    """The second process, which predicts starts by simulation, and reads the past from the journal."""

    async def ask(self, question: AnyQuestion) -> Etas | Story | Document | Failure: ...


@dataclass
class Services:
    """All services behind the API."""

    control: Control
    hub: Hub
    records: History
    """The history of finished jobs and attempts. Its methods block on disk I/O."""
    tokens: Tokens
    identities: Identities
    secrets: Secrets
    metrics: Metrics
    bounds: Bounds
    quotas: Quotas
    promised: PromisedStarts
    """The ledger of the starts that were foretold. Its method `figures` blocks on disk I/O."""
    version: str
    fault: Callable[[Exception], None] = lambda error: None
    """Called with internal errors."""
    log: Callable[[str, dict[str, Any]], None] = lambda event, fields: None
    """Called with events for the server's log."""
    outputs: OutputStore | None = None
    """Logs and result files that were copied from nodes. Its methods block on a disk or an object store."""
    expected_results: Callable[[str, int], int] = lambda partition, number: 0
    """Returns the number of tasks of a job whose result files have not arrived yet."""
    preview: Preview | None = None

    def __post_init__(self) -> None:
        self.tokens.of_tasks = TaskTokens(self._owner_of, self.secrets.gang_seed)
        self.sessions = Sessions(self.tokens, lambda: self.secrets.gang_seed)
        self.boards = Boards()
        self.threads = Threads()
        self.preview_turns, self.report_turns = Turns(1), Turns(1)
        self.reporting = asyncio.Lock()
        """Held while a usage report is made: one at a time, because it may read the whole history."""
        self.streams: dict[str, set[asyncio.Event]] = {}
        """Token → one event per open stream of it; setting the event ends the stream."""
        self.polls: dict[str, set[asyncio.Event]] = {}
        """The same for requests that wait for something."""

    def _owner_of(self, token: TaskToken) -> Owner | None:
        """Return the owner of the job of a task's token; None if the job is over or not known."""
        job = self.control.find(token.partition).partition.jobs.get(token.job)
        if job is None or job.number != token.number or job.over:
            return None
        return job.user, job.spec.groups

    async def flush(self) -> None:
        """Wait until attempts that have just ended are in the history, at most `FLUSH_TIMEOUT` seconds."""
        await self.threads.run(self.records.flush, FLUSH_TIMEOUT)

    async def recorded(
        self, query: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Call a method of `records` in a thread, after attempts that have just ended are there."""
        await self.flush()
        return await self.threads.run(query, *args, **kwargs)

    def end_streams(self, token: str) -> None:
        """End the open streams of a revoked token."""
        for over in (*self.streams.get(token, ()), *self.polls.get(token, ())):
            over.set()


class Disconnected(Exception):
    """Raised if the caller disconnects before its whole request has arrived."""


class Request:
    """A request that has passed the gate (`middleware.py`)."""

    def __init__(self, services: Services, scope: Scope, receive: Receive) -> None:
        self.services = services
        self.scope = scope
        self.receive = receive

    @property
    def caller(self) -> Token:
        caller: Token = self.scope["caller"]
        return caller

    @cached_property
    def _as_command(self) -> Command:
        return Command(**caller_fields(self))

    def sees(self, job: Job) -> bool:
        """True if the caller may see and change a job: its owner, administrators of its queue, and operators."""
        return is_owner(self._as_command, job)

    def sees_use(self, queue: Queue, user: str) -> bool:
        """True if the caller may see what a user uses of a queue: the user, its administrators, and operators."""
        return user == self._as_command.user or is_administrator(self._as_command, queue)

    def leader(self, asked: InPartition) -> PartitionService:
        """Return the partition of an operation. Raise `Unserved` if another server leads it."""
        return self.services.control.find(asked.partition)

    async def reader(self, asked: Followed[Any]) -> PartitionService | FollowedPartition:
        """Return the partition of an operation, which may be a copy, when it has reached the wanted revision."""
        return await self.services.control.reader(asked.partition, asked.min_revision)

    def header(self, name: str) -> str:
        """Return a header; empty if it is absent."""
        return header(self.scope, name.lower().encode()).decode("latin-1")

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
    return {
        "user": caller.user,
        "groups": caller.groups,
        "operator": caller.operator,
        "within": caller.queue,
        "key": key,
    }


async def execute(request: Request, asked: InPartition, command: Command, what: str) -> Accepted:
    """Execute a command for the caller. Answer 404 if the thing named by the command's field `what` does not exist."""
    command = msgspec.structs.replace(command, **caller_fields(request, getattr(asked, "key", "")))
    try:
        return await request.leader(asked).execute(command)
    except Refused as refusal:
        if refusal.code == "unknown" and refusal.field == what:
            raise Refused(refusal.field, refusal.problem, "missing") from None
        raise


async def change(request: Request, asked: InPartition, command: Command, what: str) -> wire.Done:
    """Execute a command as `execute` does, and return the answer to the request."""
    return wire.Done(note=(await execute(request, asked, command, what)).note)


# -- streams -----------------------------------------------------------------------------------------------------


def streamed(request: Request, lines: AsyncGenerator[bytes], kind: str = EVENTS) -> Stream:
    """Return a stream as an answer. It ends when the token is revoked or expires. Each token has a limit."""
    check_streams(request)
    return Stream(_while_valid(request, lines, FAREWELL[kind]), kind, NOT_STORED)


def check_streams(request: Request) -> None:
    """Raise `Unserved` if too many streams are open with the caller's token."""
    services = request.services
    if len(services.streams.get(request.caller.id, ())) >= services.bounds.streams:
        raise Unserved("too many", f"{services.bounds.streams} streams are open with this token; close some", 10)


@contextmanager
def counted_stream(request: Request) -> Iterator[asyncio.Event]:
    """Count a stream while it is open. Yield an event that is set when the token is revoked or expires."""
    with token_end(request, request.services.streams) as over:
        yield over


@contextmanager
def token_end(request: Request, events: dict[str, set[asyncio.Event]]) -> Iterator[asyncio.Event]:
    """Yield an event that is set when the token is revoked or expires. It is in `events` meanwhile."""
    services, caller = request.services, request.caller
    over = asyncio.Event()
    events.setdefault(caller.id, set()).add(over)
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
        events[caller.id].discard(over)
        if not events[caller.id]:
            del events[caller.id]


async def _while_valid(request: Request, lines: AsyncGenerator[bytes], farewell: bytes) -> AsyncGenerator[bytes]:
    line: asyncio.Task[bytes] | None = None
    try:
        with counted_stream(request) as over:
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
