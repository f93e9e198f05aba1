"""The asyncio client. It has the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from msgspec.structs import replace

from fairlead.client import calls, result_writer
from fairlead.client.async_methods import AsyncMethods
from fairlead.client.async_pool import Address, Http, Lost
from fairlead.client.calls import (
    REQUEST_TIMEOUT,
    RETRIED,
    REVISION,
    TRIES,
    Call,
    Document,
    Moment,
    Page,
    Problem,
    is_untrusted,
    pause,
    problem_of,
    unreachable,
)
from fairlead.client.endpoint import Endpoint, find_endpoint
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.addresses import servers
from fairlead.wire.operation import Answer, Operation


class AsyncClient(AsyncMethods):
    """A client like `Client`, for asyncio."""

    def __init__(
        self, url: str = "", token: str = "", authority: str = "", partition: str = "", insecure: bool = False
    ) -> None:
        """Use the server at `url`, or the default one.

        `url` may list several servers of a cluster, separated by commas: requests go to the one that leads. `insecure`
        allows sending the token to another machine without TLS.
        """
        endpoint = Endpoint(url, token, authority, insecure) if url else find_endpoint()
        self.url = ",".join(servers(endpoint.url)) or endpoint.url
        self.partition = partition
        self._revision = 0
        """The revision of this client's last change. Reads from other servers include it."""
        addresses, trust = calls.addresses_of(endpoint), calls.tls_context(endpoint)
        self._servers = [
            Http(Address(each.host, each.port, each.path, trust if each.secure else None, lambda: endpoint.token), 100)
            for each in addresses
        ]
        """The servers; requests go to the first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()

    # -- jobs ----------------------------------------------------------------------------------------------------

    async def submit(self, command: list[str] | None = None, document: Document | None = None, **fields: Any) -> str:
        """Submit a job and return its id.

        Give a command and fields (`array=3, resources={"cpu": 1}, queue=…`), or a whole document with stages. Issues a
        `NeverRuns` warning if the job can never run as the cluster is now.
        """
        answer = await self.send(op.Submit(document=calls.job_document(command, document, fields)))
        calls.warn(answer.job, answer.warning, 2)
        return answer.job

    async def submit_many(self, documents: Iterable[Document]) -> list[wire.BatchItem]:
        """Submit many jobs. Return for each, in order, its id and warning, or the problem."""
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += (await self.send(op.SubmitMany(document=calls.given(jobs=chunk)))).items
        return items

    async def dry_run(
        self, command: list[str] | None = None, document: Document | None = None, eta: bool = False, **fields: Any
    ) -> wire.DryRun:
        """Return what the next cycle would do with a job, without submitting it. Arguments are as for `submit`.

        With `eta`, the predicted start is added if the job would wait; that takes longer.
        """
        job = calls.job_document(command, document, fields)
        return await self.send(op.DryRun(document=job, eta=eta))

    async def tasks(self, job: str, stage: str = "") -> AsyncIterator[wire.Task]:
        """Yield the tasks of a job, or of one of its stages, ordered by index."""
        async for page in self.pages(op.Tasks(job=job, stage=stage, limit=1000)):
            for task in page.tasks:
                yield task

    async def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        """Wait until a job has ended and return it. Raise `TimeoutError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = await self.send(op.Job(job=job, wait=calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

    async def eta(self, *jobs: str) -> list[wire.Eta]:
        """Return the predicted starts of up to 1,000 jobs: a likely time and a 90 % interval each."""
        return calls.in_order(jobs, (await self.send(calls.etas(jobs))).etas)

    async def what_if(self, **changes: Any) -> wire.WhatIf:
        """Return the effect of a supposed change on start times. Only for operators.

        The keys are those of `WhatIfDocument`: `add_nodes`, `remove_nodes`, `shares`, `priorities`, `policy`, `replay`.
        """
        return await self.send(calls.what_if(changes))

    async def attempts(self, job: str) -> wire.Attempts:
        """Return the ended attempts of a job's tasks: where and when they ran, and how they ended.

        `tasks` of an attempt are the indices of its tasks, such as `[3]`; `indices` are the same as ranges, `[3, 4]`.
        """
        return await self.send(op.Attempts(job=job, limit=1000))

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
        """Yield the output of one attempt of a task as it arrives; by default of the last attempt.

        `after=N` selects the first attempt above N; with `follow`, wait for that attempt. If the task has ended and has
        no such attempt, raise a `Problem` with the code `gone`. `began` is called with the attempt's number before its
        output.
        """
        wanted = op.Log(
            job=job,
            stage=stage,
            index=index,
            stream=cast(Any, stream),
            follow=follow,
            offset=offset,
            attempt=attempt,
            after=after,
        )
        async for part in self.stream(wanted, lambda headers: began(int(headers.get("fairlead-attempt", 0)))):
            yield part

    async def results(
        self,
        job: str,
        stage: str = "",
        index: int | None = None,
        attempt: int | None = None,
        timeout: float = calls.RESULTS,
        told: calls.Told = lambda what, done, total: None,
    ) -> list[wire.TaskResults]:
        """Return the result files that were collected when tasks of a job ended; by default of the last attempts.

        Waits for files that have not arrived from the nodes yet. Raises `TimeoutError` if none arrives for `timeout`
        seconds. `told` is called with the progress of that.
        """
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
        """Write the result files of a job below a directory, as `STAGE.INDEX/NAME`, and return their paths.

        Existing files are replaced. Links in the directory are not followed. `told` is called with the progress.
        """
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

    async def partitions(self) -> list[str]:
        """Return the names of the partitions."""
        return [partition.name for partition in (await self.send(op.Partitions())).partitions]

    async def lanes(self, first: int = 10) -> wire.Lanes:
        """Return waiting work by lane (queue and shape), with the first `first` asks of each."""
        return await self.send(op.Lanes(first=first))

    async def watch(
        self, job: str = "", after: int | None = None, began: Callable[[], None] = lambda: None
    ) -> AsyncIterator[wire.Event]:
        """Yield events as they happen, without end: of one job, or of all visible jobs and the nodes.

        `after` is the number of a record: start after it instead of now. A broken stream is resumed. The event `reset`
        means that events were missed: read the state again. `began` is called each time the stream has begun or
        resumed; no event after that is missed.
        """
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

    async def holds(self) -> list[wire.Hold]:
        """Return the holds: nodes kept free for jobs that have waited too long."""
        return (await self.send(op.Holds())).holds

    async def promises(self) -> list[wire.Promise]:
        """Return the promises: nodes on which capacity becomes free for one job only."""
        return (await self.send(op.Holds())).promises

    async def pools(self) -> list[wire.Pool]:
        """Return the pools with their nodes and orders."""
        return (await self.send(op.Pools())).pools

    async def pause_pool(self, pool: str) -> str:
        """Pause a pool: it neither grows nor shrinks by itself."""
        return (await self.send(op.MovePool(pool=pool, action="pause"))).note

    async def resume_pool(self, pool: str) -> str:
        """Resume a paused pool at once."""
        return (await self.send(op.MovePool(pool=pool, action="resume"))).note

    async def usage_report(
        self,
        by: Iterable[str] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        user: str = "",
    ) -> wire.UsageReport:
        """Return resource use, waits and preemptions in a period, by group and in total.

        `by` is `user`, `queue`, `partition` or `job`, or several of them.
        """
        return await self.send(calls.usage_report(by, since, until, user))

    # -- requests ------------------------------------------------------------------------------------------------

    async def send(self, operation: Operation[Answer]) -> Answer:
        """Send an operation and return its answer. Retry if the answer is lost or the server is overloaded."""
        call = Call(operation, self.partition)
        tries = TRIES * len(self._servers)
        for attempt in range(tries):
            last = attempt == tries - 1
            retry_after = None
            if len(self._servers) > 1:
                call.after(self._revision)
            try:
                answer = await self._servers[0].call(
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
                    if call.method != "GET":
                        self._revision = max(self._revision, int(answer.headers.get(REVISION, "0")))
                    elif answer.status in (
                        409,
                        503,
                    ):  # an older state may have been restored, without this revision
                        self._revision = 0
                    return call.read(answer.status, answer.content)
                retry_after = answer.headers.get("retry-after")
            self._turn()
            await asyncio.sleep(pause(attempt, retry_after, len(self._servers)))
        raise AssertionError

    def _turn(self) -> None:
        """Send further requests to the next server, if there are several, because this one does not lead or answer."""
        self._servers.append(self._servers.pop(0))

    async def pages(self, operation: Operation[Page]) -> AsyncIterator[Page]:
        """Yield the pages of a list. Each request carries the cursor of the previous page."""
        page = await self.send(operation)
        yield page
        while page.next:
            operation = replace(operation, cursor=page.next)
            page = await self.send(operation)
            yield page

    async def stream(
        self, operation: Operation[Any], began: Callable[[Mapping[str, str]], None] = lambda headers: None
    ) -> AsyncIterator[bytes]:
        """Yield the parts of a streaming answer. It is not asked for again if the stream breaks off.

        `began` is called with the headers of the answer.
        """
        call = Call(operation, self.partition)
        try:
            async with self._servers[0].stream(call.target, headers=call.headers) as (answer, parts):
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
