"""One connection of an agent to the server: the greeting, then orders in, reports and heartbeats out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from time import monotonic
from typing import Any, NamedTuple, Protocol

from fairlead.agent.result_files import remove_results, staged_results
from fairlead.agent.spawner.pace import Pace
from fairlead.agent.task_logs import read_log, read_outputs
from fairlead.agent.task_table import TaskTable
from fairlead.wire.agent_messages import (
    LOG_PARTS,
    Beat,
    Beaten,
    Challenge,
    Confirmed,
    FromServer,
    Hello,
    LogCancel,
    LogMore,
    LogPart,
    LogRequest,
    NewKey,
    OutputPart,
    OutputRequest,
    Refusal,
    Renew,
    Renewed,
    Reports,
    Staged,
    Taken,
    Welcome,
    Work,
    decode_from_server,
    encode,
)

YOUNG = 0.1
"""Seconds between two checks for started tasks. Of a chained task that ends within two checks only the end is
reported."""
MAX_LOGS = 100
"""Logs that may be read at a time."""
PUSHED_OUT = (
    f"more than {MAX_LOGS} logs are read on this node, and newer readers replaced this one; read it again in a while"
)
MAX_UNANSWERED = 3
"""Unanswered heartbeats after which the connection counts as dead, even without a network error."""
MICRO = 1_000_000


class Refused(Exception):
    """Raised if the server refuses this agent, or this agent refuses the server.

    `final` means that retrying does not help until a person acts. With `may_pass`, an agent that has joined before
    still retries: the network may lead to another machine for a while.
    """

    def __init__(self, problem: str, final: bool, may_pass: bool = False) -> None:
        super().__init__(problem)
        self.final = final
        self.may_pass = may_pass


class KeyRenewed(Exception):
    """Raised when the server has admitted a new key, which the next connection uses."""


class Keys(Protocol):
    """The keys of the agent's node."""

    def new_key(self) -> NewKey:
        """Return a key for later connections."""

    def renewed(self) -> None:
        """Use the new key from now on: the server has admitted it."""


class Channel(Protocol):
    """A connection for whole binary messages. Both methods raise when it has ended."""

    async def send(self, data: bytes) -> None: ...

    async def recv(self) -> bytes: ...


class Reader(NamedTuple):
    """The asyncio task that sends a log to a user."""

    user: str
    task: asyncio.Task[None]


class Session:
    def __init__(
        self,
        channel: Channel,
        table: TaskTable,
        logs: Callable[[str], str],
        users: Callable[[], list[str]],
        lease: Callable[[float, float, float, str], None],
        deliver: Callable[[], None],
        check_epoch: Callable[[int], None],
        keys: Keys,
        steady: Callable[[], float] = monotonic,
    ) -> None:
        """Take the callbacks. `logs` returns the folder with the logs of a user, `users` the users that may have logs.

        `lease` is called with the times at which tasks are asked and forced to end, the length of a lease, and the
        server's lock if the server is on this machine. `deliver` sends the table's outbox to spawners. `check_epoch`
        raises `Refused` for an outdated epoch.
        """
        self._channel = channel
        self._table = table
        self._logs = logs
        self._users = users
        self._lease = lease
        self._deliver = deliver
        self._check_epoch = check_epoch
        self._keys = keys
        self._steady = steady
        self._news = asyncio.Event()
        self._stirred = asyncio.Event()
        self._beats: dict[int, float] = {}
        self._leased_until = float("inf")
        self._welcome = Welcome(0, MICRO, 0, 0)
        self._readers: dict[int, Reader] = {}
        self._credits: dict[int, asyncio.Semaphore] = {}

    def poke(self) -> None:
        """Check the task table for new reports."""
        self._news.set()
        self._stirred.set()

    async def run(self, hello: Hello, joined: Callable[[], None]) -> None:
        """Run until the connection ends, which raises. `joined` is called when the server has accepted the agent."""
        greeted = self._steady()
        await self._channel.send(encode(hello))
        first = decode_from_server(await self._channel.recv())
        if isinstance(first, Refusal):
            raise Refused(first.problem, first.final)
        if not isinstance(first, Welcome):
            raise Refused("the server did not greet; is it a Fairlead server of another version?", False)
        self._check_epoch(first.epoch)
        self._welcome = first
        self._table.grace = first.grace / MICRO
        self._renew(greeted)
        joined()
        parts = (self._listen(), self._report(), self._report_long_runs(), self._beat())
        work = [asyncio.create_task(part) for part in parts]
        try:
            await self._tell_staged()
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
        finally:
            work += [reader.task for reader in self._readers.values()]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    # -- in ------------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            message = decode_from_server(await self._channel.recv())
            if isinstance(message, Renew):
                await self._channel.send(encode(self._keys.new_key()))
            else:
                if isinstance(message, LogRequest) and len(self._readers) >= MAX_LOGS:
                    await self._push_out_reader()
                self._handle(message)

    def _handle(self, message: FromServer) -> None:
        match message:
            case Work():
                self._take_work(message)
            case Confirmed():
                self._table.confirmed(message.number)
            case Beaten():
                self._renew(self._beats.pop(message.number, None))
            case LogRequest():
                self._start_reader(message, self._send_log(message))
            case OutputRequest():
                self._start_reader(message, self._send_outputs(message))
            case Taken():
                remove_results(self._logs(message.user), message.tasks)
            case LogCancel():
                reader = self._readers.pop(message.request, None)
                if reader is not None:
                    reader.task.cancel()
            case LogMore():
                if message.request in self._credits:
                    self._credits[message.request].release()
            case Refusal():
                raise Refused(message.problem, message.final)
            case Renewed():
                self._keys.renewed()
                raise KeyRenewed
            case Welcome() | Challenge():
                raise Refused("the server greeted twice", False)
        self._deliver()
        if self._table.reporting.has_news:
            self._news.set()

    def _take_work(self, message: Work) -> None:
        if message.launches and self._steady() >= self._leased_until:
            # The server may have declared this node lost and started these tasks elsewhere.
            raise ConnectionError("the lease was over when the order was read")
        self._check_epoch(message.epoch)
        for number in message.confirmed:
            self._table.confirmed(number)
        self._table.handle(message)

    def _renew(self, sent: float | None) -> None:
        """Renew the lease from the time the heartbeat was sent.

        The server received it later, so the lease ends later on the server.
        """
        lease = self._welcome.lease / MICRO
        if sent is None:
            return
        if not lease:
            self._lease(float("inf"), float("inf"), 0.0, "")
        else:
            self._leased_until = sent + lease
            grace = min(self._welcome.grace / MICRO, lease / 4)
            self._lease(sent + lease - grace, sent + lease, lease, self._welcome.lock)

    # -- out -----------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        pace = Pace()
        while True:
            await self._news.wait()
            while self._table.reporting.has_news:
                await asyncio.sleep(pace.wait(self._steady(), self._table.at_work, self._table.queued > 0))
                number, reports = self._table.reporting.batch()
                if reports:
                    pace.sent(self._steady())
                    await self._channel.send(encode(Reports(number, reports)))
                else:
                    self._table.confirmed(number)
            self._news.clear()

    async def _report_long_runs(self) -> None:
        """Report started tasks that do not end soon."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._table.reporting.has_young:
                await asyncio.sleep(YOUNG)
                self._table.reporting.report_long_runs()
                if self._table.reporting.has_news:
                    self._news.set()

    async def _beat(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self._welcome.heartbeat / MICRO)
            if len(self._beats) >= MAX_UNANSWERED:
                raise ConnectionError(f"the server answered none of {len(self._beats)} heartbeats")
            self._table.send_confirmed_ends()
            self._deliver()
            number += 1
            self._beats[number] = self._steady()
            await self._channel.send(encode(Beat(number, self._table.started("running", "ended"))))

    async def _tell_staged(self) -> None:
        """Send the server the tasks whose result files it has not taken yet, for example before a restart."""
        for user in self._users():
            staged = staged_results(self._logs(user))
            if staged:
                await self._channel.send(encode(Staged(tuple(staged))))

    # -- logs ----------------------------------------------------------------------------------------------------

    async def _push_out_reader(self) -> None:
        """Stop the oldest log reader of the user with the most readers, and send that reader the reason."""
        [(user, _)] = Counter(reader.user for reader in self._readers.values()).most_common(1)
        oldest = next(request for request, reader in self._readers.items() if reader.user == user)
        self._readers.pop(oldest).task.cancel()
        await self._channel.send(encode(LogPart(oldest, 0, b"", True, PUSHED_OUT)))

    def _start_reader(self, message: LogRequest | OutputRequest, work: Coroutine[Any, Any, None]) -> None:
        self._readers[message.request] = Reader(message.user, asyncio.create_task(work))

    async def _send_log(self, log_request: LogRequest) -> None:
        def is_over() -> bool:
            return self._table.is_over(log_request.number, log_request.stage, log_request.attempt, log_request.index)

        await self._send_parts(log_request.request, read_log(self._logs(log_request.user), log_request, is_over))

    async def _send_outputs(self, asked: OutputRequest) -> None:
        await self._send_parts(asked.request, read_outputs(self._logs(asked.user), asked))

    async def _send_parts(self, request: int, parts: AsyncIterator[LogPart | OutputPart]) -> None:
        credit = self._credits[request] = asyncio.Semaphore(LOG_PARTS)
        try:
            async for part in parts:
                await credit.acquire()
                await self._channel.send(encode(part))
        finally:
            self._readers.pop(request, None)
            self._credits.pop(request, None)
