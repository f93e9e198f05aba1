"""One connection of an agent to the server: the greeting, then orders in, reports and heartbeats out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from fairlead.agent.result_files import remove_results
from fairlead.agent.spawner.pace import Pace
from fairlead.agent.task_logs import read_log, read_outputs
from fairlead.wire import agent_messages as wire
from fairlead.wire.agent_messages import decode_from_server, encode

if TYPE_CHECKING:
    from fairlead.agent.coordinator import Joining

YOUNG = 0.1
"""Seconds between two checks for started tasks. If a chained task ends within two checks, only its end is reported."""
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

    If it is `final`, a person has to act before another attempt. With `may_pass`, an agent that has joined before still
    retries, because the network may lead to another machine for a while.
    """

    def __init__(self, problem: str, final: bool, may_pass: bool = False) -> None:
        super().__init__(problem)
        self.final = final
        self.may_pass = may_pass


class KeyRenewed(Exception):
    """Raised when the server has admitted a new key, which the next connection uses."""


class Channel(Protocol):
    """A connection for whole binary messages. Both methods raise when it has ended."""

    async def send(self, data: bytes) -> None: ...

    async def recv(self) -> bytes: ...


class Reader(NamedTuple):
    user: str
    task: asyncio.Task[None]
    """Sends a log to the user."""


class Session:
    def __init__(self, agent: Joining, channel: Channel) -> None:
        self._agent = agent
        self._channel = channel
        self._table = agent.table
        self._steady = agent.steady
        self._logs_of = agent.outside.logs_of
        self._lists = agent.outside.lists
        self._news = asyncio.Event()
        self._stirred = asyncio.Event()
        self._beats: dict[int, float] = {}
        """Unanswered heartbeats, and when each was sent."""
        self._leased_until = float("inf")
        self._welcome = wire.Welcome(0, MICRO, 0, 0)
        self._readers: dict[int, Reader] = {}
        self._credits: dict[int, asyncio.Semaphore] = {}
        """Request for a log → the parts that may be sent before the server asks for more."""

    def poke(self) -> None:
        """Check the task table for new reports."""
        self._news.set()
        self._stirred.set()

    async def run(self, hello: wire.Hello) -> None:
        """Greet the server and run until the connection ends, which raises."""
        greeted = self._steady()
        await self._channel.send(encode(hello))
        first = decode_from_server(await self._channel.recv())
        if isinstance(first, wire.Refusal):
            raise Refused(first.problem, first.final)
        if not isinstance(first, wire.Welcome):
            raise Refused("the server did not greet; is it a Fairlead server of another version?", False)
        self._agent.epoch.check(first.epoch)
        self._welcome = first
        self._table.grace = first.grace / MICRO
        self._renew(greeted)
        self._agent.on_joined(self, hello)
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
            data = await self._channel.recv()
            try:
                message = decode_from_server(data)
            except msgspec.ValidationError as problem:
                self._agent.say_unknown(str(problem))  # a newer server may send others
                continue
            if isinstance(message, wire.Renew):
                await self._channel.send(encode(self._agent.identity.new_key()))
            else:
                if isinstance(message, wire.LogRequest) and len(self._readers) >= MAX_LOGS:
                    await self._push_out_reader()
                self._handle(message)
                if self._table.chosen:
                    chosen, self._table.chosen = tuple(self._table.chosen), []
                    await self._channel.send(encode(wire.Meetings(chosen)))

    def _handle(self, message: wire.FromServer) -> None:
        match message:
            case wire.Work():
                self._take_work(message)
            case wire.Confirmed():
                self._table.confirmed(message.number)
            case wire.Beaten():
                if message.lease >= 0 and message.lease != self._welcome.lease:
                    self._welcome = msgspec.structs.replace(self._welcome, lease=message.lease)
                self._renew(self._beats.pop(message.number, None))
            case wire.LogRequest(number=number, stage=stage, attempt=attempt, index=index):
                is_over = partial(self._table.is_over, number, stage, attempt, index)
                self._start_reader(message, read_log(self._logs_of(message.user), message, is_over))
            case wire.OutputRequest():
                lists = partial(self._lists.find, self._agent.outside.owner_of(message.user), message.tasks)
                self._start_reader(message, read_outputs(self._logs_of(message.user), message, lists))
            case wire.Taken(tasks=tasks, user=user):
                work = partial(
                    remove_results, self._logs_of(user), self._lists, tasks, self._agent.outside.owner_of(user)
                )
                asyncio.get_running_loop().run_in_executor(None, work)  # a folder of a user may be slow
            case wire.OpenTunnel():
                self._agent.outside.open_tunnel(message)
            case wire.LogCancel():
                reader = self._readers.pop(message.request, None)
                if reader is not None:
                    reader.task.cancel()
            case wire.LogMore():
                if message.request in self._credits:
                    self._credits[message.request].release()
            case wire.Refusal():
                raise Refused(message.problem, message.final)
            case wire.Renewed():
                self._agent.identity.renewed()
                raise KeyRenewed
            case wire.Welcome() | wire.Challenge():
                raise Refused("the server greeted twice", False)
        self._agent.deliver()
        if self._table.reporting.has_news:
            self._news.set()

    def _take_work(self, message: wire.Work) -> None:
        if message.launches and self._steady() >= self._leased_until:
            # The server may have declared this node lost and started these tasks elsewhere.
            raise ConnectionError("the lease was over when the order was read")
        self._agent.epoch.check(message.epoch)
        for number in message.confirmed:
            self._table.confirmed(number)
        self._table.handle(message)

    def _renew(self, sent: float | None) -> None:
        """Renew the lease, counted from when the answered message was sent: the server's lease ends later."""
        if sent is None:
            return
        lease = self._welcome.lease / MICRO
        if not lease:
            self._agent.lease(float("inf"), float("inf"), 0.0, "")
        else:
            self._leased_until = sent + lease
            grace = min(self._welcome.grace / MICRO, lease / 4)
            self._agent.lease(sent + lease - grace, sent + lease, lease, self._welcome.lock)

    # -- out -----------------------------------------------------------------------------------------------------

    async def _report(self) -> None:
        pace = Pace(self._agent.cores)
        while True:
            await self._news.wait()
            while self._table.reporting.has_news:
                await asyncio.sleep(pace.wait(self._steady(), self._table.at_work, self._table.queued > 0))
                number, reports = self._table.reporting.batch()
                if reports:
                    pace.sent(self._steady())
                    await self._channel.send(encode(wire.Reports(number, reports)))
                else:
                    self._table.confirmed(number)
            self._news.clear()

    async def _report_long_runs(self) -> None:
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
            self._agent.deliver()
            number += 1
            self._beats[number] = self._steady()
            known = self._table.started("running", "ended")
            await self._channel.send(encode(wire.Beat(number, known, self._welcome.lease)))

    async def _tell_staged(self) -> None:
        """Send the server the tasks whose result files it has not stored yet."""
        if staged := await self._agent.outside.waiting_results():
            await self._channel.send(encode(wire.Staged(tuple(staged))))

    # -- logs ----------------------------------------------------------------------------------------------------

    async def _push_out_reader(self) -> None:
        [(user, _)] = Counter(reader.user for reader in self._readers.values()).most_common(1)
        oldest = next(request for request, reader in self._readers.items() if reader.user == user)
        self._readers.pop(oldest).task.cancel()
        await self._channel.send(encode(wire.LogPart(oldest, 0, b"", True, PUSHED_OUT)))

    def _start_reader(
        self, message: wire.LogRequest | wire.OutputRequest, parts: AsyncIterator[wire.LogPart | wire.OutputPart]
    ) -> None:
        task = asyncio.create_task(self._send_parts(message.request, parts))
        self._readers[message.request] = Reader(message.user, task)

    async def _send_parts(self, request: int, parts: AsyncIterator[wire.LogPart | wire.OutputPart]) -> None:
        credit = self._credits[request] = asyncio.Semaphore(wire.LOG_PARTS)
        try:
            async for part in parts:
                await credit.acquire()
                await self._channel.send(encode(part))
        finally:
            self._readers.pop(request, None)
            self._credits.pop(request, None)
