"""Handlers for result files of tasks: list them, and return one file or an archive of all files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from tarfile import BLOCKSIZE, GNU_FORMAT, NUL, TarInfo
from urllib.parse import quote

from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.history.outputs import OutputStore
from fairlead.history.recorder import ResultRow
from fairlead.http.context import Request, streamed
from fairlead.http.dispatch import serves
from fairlead.http.responses import Response
from fairlead.http.routes.history import find_job
from fairlead.http.routes.jobs import number_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import BYTES
from fairlead.wire.unserved import Unserved

PART = 1 << 20
"""Bytes to read and send at a time."""
ALL = 2**31
"""More rows than a job has tasks."""


@serves(op.Results)
async def results(request: Request, asked: op.Results) -> wire.Results:
    services = request.services
    number, _ = await find_job(request, asked)
    name = request.leader(asked).name
    waiting = services.expected_results(name, number)  # read before the list, so that no task is missing from both
    skip = number_of(asked.cursor) or 0
    rows = await asyncio.to_thread(
        services.records.results, name, number, asked.stage, asked.index, asked.attempt, skip, asked.limit + 1
    )
    return wire.Results(
        tasks=[_task(row) for row in rows[: asked.limit]],
        waiting=waiting,
        next=str(skip + asked.limit) if len(rows) > asked.limit else "",
    )


@serves(op.ResultFile)
async def result_file(request: Request, asked: op.ResultFile) -> Response:
    services = request.services
    number, user = await find_job(request, asked)
    served = request.leader(asked).name
    rows = await asyncio.to_thread(
        services.records.results, served, number, asked.stage, asked.index, asked.attempt, 0, 2
    )
    if len(rows) > 1:
        raise Refused("stage", f"several stages of job {asked.job} have result files; name one of them")
    if not rows or asked.name not in dict(rows[0].files) or services.outputs is None:
        raise Refused(
            "name", f"task {asked.index} of job {asked.job} has no result file {shown(asked.name)}", "missing"
        )
    file = (served, user, number, rows[0], asked.name)
    try:
        size = await asyncio.to_thread(services.outputs.result_size, *file)
    except OSError:
        raise Unserved("unavailable", "the store of result files does not answer; ask again later", 10) from None
    if size is None:
        raise Refused("name", f"{shown(asked.name)} was removed, because of its age or the size of all files", "gone")
    answer = streamed(request, sent(content(partial(services.outputs.read_result, *file), size)), BYTES)
    answer.headers["content-length"] = str(size)
    answer.headers["content-disposition"] = (
        f"attachment; filename*=UTF-8''{quote(asked.name.rpartition('/')[2], safe='')}"
    )
    return answer


@serves(op.ResultArchive)
async def result_archive(request: Request, asked: op.ResultArchive) -> Response:
    services = request.services
    number, user = await find_job(request, asked)
    served = request.leader(asked).name
    if services.outputs is None:
        raise Unserved("unavailable", "the server has no store of result files", 60)
    rows = await asyncio.to_thread(
        services.records.results, served, number, asked.stage, asked.index, asked.attempt, 0, ALL
    )
    answer = streamed(request, sent(_archive(services.outputs, served, user, number, rows)), BYTES)
    answer.headers["content-disposition"] = f"attachment; filename*=UTF-8''results-{quote(asked.job, safe='')}.tar"
    return answer


async def sent(parts: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the parts of an answer, joined to about `PART` bytes. Another thread reads them."""

    def joined() -> bytes:
        read: list[bytes] = []
        size = 0
        for part in parts:
            read.append(part)
            size += len(part)
            if size >= PART:
                break
        return b"".join(read)

    while data := await asyncio.to_thread(joined):
        yield data


def _archive(outputs: OutputStore, partition: str, user: str, number: int, rows: list[ResultRow]) -> Iterator[bytes]:
    """Yield a tar archive of result files. It ends early if a file is removed while it is read."""
    for row in rows:
        for name, _ in row.files:
            file = (partition, user, number, row, name)
            size = outputs.result_size(*file)
            if size is None:
                continue
            entry = TarInfo(f"{row.stage}.{row.index}.{row.attempt}/{name}")
            entry.size = size
            yield entry.tobuf(GNU_FORMAT, "utf-8", "surrogateescape")
            left = size
            for part in content(partial(outputs.read_result, *file), size):
                left -= len(part)
                yield part
            if left:
                return
            yield NUL * (-size % BLOCKSIZE)
    yield NUL * (2 * BLOCKSIZE)


def content(read: Callable[[int, int], bytes], size: int) -> Iterator[bytes]:
    """Yield the content of a file. It ends early if the file is removed while it is read."""
    offset = 0
    while offset < size and (data := read(offset, min(PART, size - offset))):
        yield data
        offset += len(data)


def _task(row: ResultRow) -> wire.TaskResults:
    return wire.TaskResults(
        stage=row.stage,
        index=row.index,
        attempt=row.attempt,
        files=[wire.ResultFile(name=name, size=size) for name, size in row.files],
        warning=row.warning,
    )
