"""The asyncio client. It has the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType
from typing import IO, Any, Self

from msgspec.structs import replace

from fairlead.client import calls, result_writer
from fairlead.client.adapters import described_as
from fairlead.client.async_methods import AsyncMethods
from fairlead.client.async_pool import Address, Http, Lost
from fairlead.client.calls import (
    REQUEST_TIMEOUT,
    RETRIED,
    REVISION,
    TRIES,
    Call,
    Caller,
    Document,
    Page,
    Problem,
    is_untrusted,
    pause,
    problem_of,
    unreachable,
)
from fairlead.client.sync import Client
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import Answer, Operation


class AsyncClient(Caller, AsyncMethods):
    """A client like `Client`, for asyncio. Its methods are coroutines, and lists are asynchronous iterators."""

    def __init__(
        self, url: str = "", token: str = "", authority: str = "", partition: str = "", insecure: bool = False
    ) -> None:
        super().__init__(url, token, authority, partition, insecure)
        self._given = (url, token, authority, partition, insecure)
        hosts, trust = calls.addresses_of(self._endpoint), calls.tls_context(self._endpoint)
        self._hosts = [
            Http(Address(each.host, each.port, each.path, trust if each.secure else None, self._token), 100)
            for each in hosts
        ]
        """The connections to each server; requests go to the first."""

    def _token(self) -> str:
        return self._endpoint.token

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for server in self._hosts:
            server.close()

    # -- jobs ----------------------------------------------------------------------------------------------------

    @described_as(Client.submit)
    async def submit(self, command: list[str] | None = None, document: Document | None = None, **fields: Any) -> str:
        answer = await self.send(op.Submit(document=calls.job_document(command, document, fields)))
        calls.warn(answer.job, answer.warning, 2)
        return answer.job

    @described_as(Client.submit_many)
    async def submit_many(self, documents: Iterable[Document]) -> list[wire.BatchItem]:
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += (await self.send(op.SubmitMany(document=calls.given(jobs=chunk)))).items
        return items

    @described_as(Client.wait)
    async def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = await self.send(op.Job(job=job, wait=calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

    @described_as(Client.log)
    async def log(
        self,
        job: str,
        stage: str = "",
        index: int = 0,
        stream: str = "out",
        follow: bool = False,
        offset: int = 0,
        attempt: int | None = None,
        after: int | None = None,
        began: Callable[[int], None] = lambda attempt: None,
    ) -> AsyncIterator[bytes]:
        wanted = calls.log(job, stage, index, stream, follow, offset, attempt, after)
        async for part in self.stream(wanted, lambda headers: began(int(headers.get("fairlead-attempt", 0)))):
            yield part

    @described_as(Client.results)
    async def results(
        self,
        job: str,
        stage: str = "",
        index: int | None = None,
        attempt: int | None = None,
        timeout: float = calls.RESULTS,
        told: calls.Told = lambda what, done, total: None,
    ) -> list[wire.TaskResults]:
        wanted = op.Results(job=job, stage=stage, index=index, attempt=attempt, limit=1000)
        count = replace(wanted, limit=1)  # poll with a short list while files arrive
        patience = calls.Patience(job, timeout)
        most = 0
        while waiting := (await self.send(count)).waiting:
            patience.note(waiting, time.monotonic())
            most = max(most, waiting)
            told("waiting", most - waiting, most)
            await asyncio.sleep(calls.RESULT_POLL)
        return [task async for page in self.pages(wanted) for task in page.tasks]

    @described_as(Client.fetch)
    async def fetch(
        self,
        job: str,
        directory: str | os.PathLike[str] = ".",
        stage: str = "",
        index: int | None = None,
        attempt: int | None = None,
        timeout: float = calls.RESULTS,
        told: calls.Told = lambda what, done, total: None,
    ) -> list[Path]:
        place = Path(directory)
        tasks = await self.results(job, stage, index, attempt, timeout, told)
        paths: list[Path] = []
        total = sum(len(task.files) for task in tasks)
        for task in tasks:
            for file in task.files:
                await self._fetch(job, place, task, file)
                paths.append(result_writer.target(place, task, file))
                told("fetching", len(paths), total)
        return paths

    async def _fetch(self, job: str, place: Path, task: wire.TaskResults, file: wire.ResultFile) -> None:
        """Fetch one file, and start again if the transfer breaks off."""
        failures = 0
        while True:
            try:
                with result_writer.new_file(place, task, file) as output:
                    async for part in self.stream(calls.result_file(job, task, file.name)):
                        output.write(part)
                return
            except result_writer.Broken:
                problem = result_writer.cut_off(file)
            except Problem as refusal:
                problem = refusal
            failures += 1
            if not calls.may_resume(problem, failures):
                raise problem
            await asyncio.sleep(pause(failures))

    # -- the cluster ---------------------------------------------------------------------------------------------

    @described_as(Client.watch)
    async def watch(
        self, job: str = "", after: int | None = None, began: Callable[[], None] = lambda: None
    ) -> AsyncIterator[wire.Event]:
        reader = calls.EventReader(after)
        failures = 0
        while True:
            reader.restart()
            try:
                async for part in self.stream(calls.watch(job, reader.after), lambda headers: began()):
                    failures = 0
                    for event in reader.feed(part):
                        yield event
            except Problem as problem:
                if not calls.may_resume(problem, failures):
                    raise
            failures += 1
            await asyncio.sleep(pause(failures))

    # Tunnels are read in a thread, by a client of their own.

    @described_as(Client.attach)
    async def attach(
        self, job: str, command: list[str], stage: str = "", index: int = 0, input: bytes = b""
    ) -> CompletedProcess[bytes]:
        with Client(*self._given) as client:
            return await asyncio.to_thread(client.attach, job, command, stage, index, input)

    @described_as(Client.forward)
    @asynccontextmanager
    async def forward(self, job: str, port: int, stage: str = "", index: int = 0, local: int = 0) -> AsyncIterator[int]:
        with Client(*self._given) as client:
            tunnel = client.forward(job, port, stage, index, local)
            number = await asyncio.to_thread(tunnel.__enter__)
            try:
                yield number
            finally:
                await asyncio.to_thread(tunnel.__exit__, None, None, None)

    @described_as(Client.store)
    async def store(self, content: bytes | IO[bytes]) -> str:
        with Client(*self._given) as client:
            return await asyncio.to_thread(client.store, content)

    @described_as(Client.store_snapshot)
    async def store_snapshot(self, directory: str | Path) -> str:
        with Client(*self._given) as client:
            return await asyncio.to_thread(client.store_snapshot, directory)

    # -- requests ------------------------------------------------------------------------------------------------

    @described_as(Client.send)
    async def send(self, operation: Operation[Answer]) -> Answer:
        call = self._call(operation)
        servers = len(self._servers)
        for attempt in range(TRIES * servers):
            last = attempt == TRIES * servers - 1
            retry_after = None
            try:
                answer = await self._hosts[0].call(
                    call.method,
                    call.target,
                    call.content or b"",
                    timeout=REQUEST_TIMEOUT + call.seconds,
                    headers=call.headers,
                )
            except Lost as problem:
                if last or is_untrusted(problem):
                    raise unreachable(self.url, problem) from None
            else:
                if answer.status not in RETRIED or last:
                    self._note(call, answer.status, answer.headers.get(REVISION, "0"))
                    return call.read(answer.status, answer.content)
                retry_after = answer.headers.get("retry-after")
            self._turn()
            await asyncio.sleep(pause(attempt, retry_after, servers))
        raise AssertionError

    def _turn(self) -> None:
        """Send further requests to the next server, if there are several: this one does not lead or does not answer."""
        self._hosts.append(self._hosts.pop(0))

    @described_as(Client.pages)
    async def pages(self, operation: Operation[Page]) -> AsyncIterator[Page]:
        page = await self.send(operation)
        yield page
        while page.next:
            operation = replace(operation, cursor=page.next)
            page = await self.send(operation)
            yield page

    @described_as(Client.stream)
    async def stream(
        self, operation: Operation[Any], began: Callable[[Mapping[str, str]], None] = lambda headers: None
    ) -> AsyncIterator[bytes]:
        call = Call(operation, self.partition)
        try:
            async with self._hosts[0].stream(call.target, headers=call.headers) as (answer, parts):
                if answer.status != 200:
                    if answer.status in RETRIED:
                        self._turn()
                    raise problem_of(answer.status, answer.content)
                began(answer.headers)
                async for part in parts:
                    yield part
        except Lost as problem:
            self._turn()
            raise unreachable(self.url, problem) from None
