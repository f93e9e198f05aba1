"""The client for asyncio. It has the methods of `Client` as coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Any, Self

import httpx

from fairlead.client import calls
from fairlead.client.calls import (
    REQUEST_TIMEOUT,
    RETRIED,
    TRIES,
    Answer,
    Call,
    Document,
    Moment,
    is_untrusted,
    pause,
    problem_of,
    unreachable,
)
from fairlead.client.endpoint import Endpoint, find_endpoint
from fairlead.wire import api as wire


class AsyncClient:
    """A client of a server, like `Client`, for asyncio."""

    def __init__(
        self, url: str = "", token: str = "", authority: str = "", partition: str = "", insecure: bool = False
    ) -> None:
        """`insecure` sends the token to another machine without TLS."""
        endpoint = Endpoint(url.rstrip("/"), token, authority, insecure) if url else find_endpoint()
        self.url = endpoint.url
        self.partition = partition
        self._http = httpx.AsyncClient(
            base_url=endpoint.url,
            headers={"authorization": f"Bearer {endpoint.token}"} if endpoint.token else {},
            verify=calls.tls_context(endpoint),
            timeout=REQUEST_TIMEOUT,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(self, command: list[str] | None = None, document: Document | None = None, **fields: Any) -> str:
        answer = await self.send(calls.submit(calls.job_document(command, document, fields), self.partition))
        calls.warn(answer.job, answer.warning, 2)
        return answer.job

    async def submit_many(self, documents: Iterable[Document]) -> list[wire.BatchItem]:
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += (await self.send(calls.submit_many(chunk, self.partition))).items
        return items

    async def job(self, job: str) -> wire.Job:
        return await self.send(calls.job(job, self.partition))

    async def jobs(self, **filters: Any) -> AsyncIterator[wire.Job]:
        cursor = ""
        while True:
            page = await self.send(calls.jobs(self.partition, cursor=cursor, **filters))
            for job in page.jobs:
                yield job
            cursor = page.next
            if not cursor:
                return

    async def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = await self.send(calls.job(job, self.partition, calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

    async def kill(self, job: str) -> str:
        return (await self.send(calls.kill(job, self.partition))).note

    async def scale(self, job: str, count: int, stage: str = "") -> str:
        return (await self.send(calls.scale(job, count, stage, self.partition))).note

    async def set_priority(self, job: str, priority: int) -> str:
        return (await self.send(calls.set_priority(job, priority, self.partition))).note

    async def explain(self, job: str) -> wire.Explanation:
        return await self.send(calls.explain(job, self.partition))

    async def holds(self) -> list[wire.Hold]:
        return (await self.send(calls.holds(self.partition))).holds

    async def release_hold(self, job: str, stage: str = "") -> str:
        return (await self.send(calls.release_hold(job, stage, self.partition))).note

    async def pools(self) -> list[wire.Pool]:
        return (await self.send(calls.pools(self.partition))).pools

    async def pool(self, pool: str) -> wire.Pool:
        return await self.send(calls.pool(pool, self.partition))

    async def pause_pool(self, pool: str) -> str:
        return (await self.send(calls.move_pool(pool, "pause", self.partition))).note

    async def resume_pool(self, pool: str) -> str:
        return (await self.send(calls.move_pool(pool, "resume", self.partition))).note

    async def scale_pool(self, pool: str, nodes: int) -> str:
        return (await self.send(calls.scale_pool(pool, nodes, self.partition))).note

    async def usage(self) -> wire.Usage:
        return await self.send(calls.usage(self.partition))

    async def usage_report(
        self,
        by: Iterable[str] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        user: str = "",
    ) -> wire.UsageReport:
        return await self.send(calls.usage_report(by, since, until, user, self.partition))

    async def history(self, **filters: Any) -> AsyncIterator[wire.PastJob]:
        cursor = ""
        while True:
            page = await self.send(calls.history(self.partition, cursor=cursor, **filters))
            for job in page.jobs:
                yield job
            cursor = page.next
            if not cursor:
                return

    async def secrets(self) -> list[str]:
        return (await self.send(calls.secrets())).secrets

    async def set_secret(self, name: str, value: str, expires_in: float | None = None) -> None:
        await self.send(calls.set_secret(name, value, expires_in))

    async def remove_secret(self, name: str) -> None:
        await self.send(calls.remove_secret(name))

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
    ) -> AsyncIterator[bytes]:
        options = {"stage": stage, "index": index, "stream": stream, "follow": follow, "offset": offset}
        call = calls.log(job, self.partition, **options, attempt=attempt, after=after)
        async for part in self.stream(call):
            yield part

    async def send(self, call: Call[Answer]) -> Answer:
        """Send a call, retry it if needed, and return its answer."""
        for attempt in range(TRIES):
            last = attempt == TRIES - 1
            retry_after = None
            try:
                answer = await self._http.request(
                    **_arguments(call), content=call.content, timeout=REQUEST_TIMEOUT + call.seconds
                )
            except httpx.TransportError as problem:
                if last or isinstance(problem, httpx.UnsupportedProtocol) or is_untrusted(problem):
                    raise unreachable(self.url, problem) from None
            else:
                if answer.status_code not in RETRIED or last:
                    return call.read(answer.status_code, answer.content)
                retry_after = answer.headers.get("retry-after")
            await asyncio.sleep(pause(attempt, retry_after))
        raise AssertionError

    async def stream(self, call: Call[Any]) -> AsyncIterator[bytes]:
        """Yield the parts of a streaming answer. The call is not sent again if the stream breaks off."""
        try:
            async with self._http.stream(
                **_arguments(call), timeout=httpx.Timeout(REQUEST_TIMEOUT, read=None)
            ) as answer:
                if answer.status_code >= 400:
                    raise problem_of(answer.status_code, await answer.aread())
                async for part in answer.aiter_raw():
                    yield part
        except httpx.TransportError as problem:
            raise unreachable(self.url, problem) from None


def _arguments(call: Call[Any]) -> dict[str, Any]:
    """Return a call as arguments of the HTTP library."""
    return {"method": call.method, "url": call.path, "params": call.parameters, "headers": call.headers}
