"""Handlers for result files of tasks: the list, and one file at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from tarfile import BLOCKSIZE, GNU_FORMAT, NUL, TarInfo
from typing import Annotated, Any
from urllib.parse import quote

from litestar import Request, get
from litestar.params import QueryParameter
from litestar.response import Stream

from fairlead.api.context import USERS, Limit, Outputs, PartitionName, caller_of, services_of, streamed
from fairlead.api.history import find_job
from fairlead.api.jobs import JobId, number_of
from fairlead.api.logs import MAX_INDEX
from fairlead.api.problems import Unserved
from fairlead.core.errors import Refused
from fairlead.core.resources import shown
from fairlead.history.recorder import ResultRow
from fairlead.wire import api as wire

HttpRequest = Request[Any, Any, Any]
PART = 1 << 20
"""Bytes to read from a file at a time."""
KIND = "application/octet-stream"
ALL = 2**31
"""More tasks than a job has."""

Stage = Annotated[str, QueryParameter(required=False, max_length=63)]
Index = Annotated[int | None, QueryParameter(required=False, ge=0, le=MAX_INDEX)]
Attempt = Annotated[
    int | None,
    QueryParameter(required=False, ge=1, le=2**53, description="By default the last attempt that has result files."),
]


@get("/jobs/{job_id:str}/results", operation_id="results", guards=[USERS], summary="The result files of a job")
async def results(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    stage: Stage = "",
    index: Index = None,
    attempt: Attempt = None,
    cursor: Annotated[str, QueryParameter(required=False, max_length=20)] = "",
    limit: Limit = 100,
) -> wire.Results:
    """List the result files that were collected when tasks ended, by task. The files of `waiting` tasks have not
    arrived from the nodes yet. A listed file may have been removed since, by its age or the total size limit."""
    services = services_of(request)
    number, _ = await find_job(request, job_id, partition)
    name = services.control.find(partition).name
    waiting = services.expected_results(name, number)  # read before the list, so that no task is missing from both
    skip = number_of(cursor) or 0
    rows = await asyncio.to_thread(services.records.results, name, number, stage, index, attempt, skip, limit + 1)
    return wire.Results(
        tasks=[_task(row) for row in rows[:limit]],
        waiting=waiting,
        next=str(skip + limit) if len(rows) > limit else "",
    )


@get(
    "/jobs/{job_id:str}/results/file",
    operation_id="resultFile",
    guards=[USERS],
    media_type=KIND,
    summary="One result file",
)
async def result_file(
    request: HttpRequest,
    job_id: JobId,
    name: Annotated[str, QueryParameter(max_length=1_000, description="The name, as it is listed.")],
    partition: PartitionName = "",
    stage: Stage = "",
    index: Annotated[int, QueryParameter(required=False, ge=0, le=MAX_INDEX)] = 0,
    attempt: Attempt = None,
) -> Stream:
    """Return one result file. The stage may be left out if only one stage has result files."""
    services = services_of(request)
    number, user = await find_job(request, job_id, partition)
    served = services.control.find(partition).name
    rows = await asyncio.to_thread(services.records.results, served, number, stage, index, attempt, 0, 2)
    if len(rows) > 1:
        raise Refused("stage", f"several stages of job {job_id} have result files; name one of them")
    if not rows or name not in dict(rows[0].files) or services.outputs is None:
        raise Refused("name", f"task {index} of job {job_id} has no result file {shown(name)}", "missing")
    outputs = services.outputs
    try:
        size = await asyncio.to_thread(outputs.result_size, served, user, number, rows[0], name)
    except OSError:
        raise Unserved("unavailable", "the store of result files does not answer; ask again later", 10) from None
    if size is None:
        raise Refused("name", f"{shown(name)} was removed, because of its age or the size of all files", "gone")
    answer = streamed(services, caller_of(request), _data(outputs, served, user, number, rows[0], name, size), KIND)
    answer.headers["content-length"] = str(size)
    answer.headers["content-disposition"] = f"attachment; filename*=UTF-8''{quote(name.rpartition('/')[2], safe='')}"
    answer.headers["x-content-type-options"] = "nosniff"
    return answer


@get(
    "/jobs/{job_id:str}/results/archive",
    operation_id="resultArchive",
    guards=[USERS],
    media_type=KIND,
    summary="All result files of a job",
)
async def result_archive(
    request: HttpRequest,
    job_id: JobId,
    partition: PartitionName = "",
    stage: Stage = "",
    index: Index = None,
    attempt: Attempt = None,
) -> Stream:
    """Return the result files of a job as a tar archive, named `STAGE.INDEX.ATTEMPT/NAME`. Files that were removed are
    left out. An archive that ends early is not complete: it has no end mark."""
    services = services_of(request)
    number, user = await find_job(request, job_id, partition)
    served = services.control.find(partition).name
    if services.outputs is None:
        raise Unserved("unavailable", "the server has no store of result files", 60)
    rows = await asyncio.to_thread(services.records.results, served, number, stage, index, attempt, 0, ALL)
    parts = _archive(services.outputs, served, user, number, rows)
    answer = streamed(services, caller_of(request), _parts(parts), KIND)
    answer.headers["content-disposition"] = f"attachment; filename*=UTF-8''results-{quote(job_id, safe='')}.tar"
    answer.headers["x-content-type-options"] = "nosniff"
    return answer


async def _parts(parts: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the parts of an archive, put together to about `PART` bytes. Another thread reads the files."""

    def together() -> bytes:
        read: list[bytes] = []
        size = 0
        for part in parts:
            read.append(part)
            size += len(part)
            if size >= PART:
                break
        return b"".join(read)

    while data := await asyncio.to_thread(together):
        yield data


def _archive(outputs: Outputs, partition: str, user: str, number: int, rows: list[ResultRow]) -> Iterator[bytes]:
    """Yield a tar archive of result files in parts. It ends early if a file is removed while it is read."""
    for row in rows:
        for name, _ in row.files:
            size = outputs.result_size(partition, user, number, row, name)
            if size is None:
                continue
            entry = TarInfo(f"{row.stage}.{row.index}.{row.attempt}/{name}")
            entry.size = size
            yield entry.tobuf(GNU_FORMAT, "utf-8", "surrogateescape")
            offset = 0
            while offset < size:
                data = outputs.read_result(partition, user, number, row, name, offset, min(PART, size - offset))
                if not data:
                    return
                yield data
                offset += len(data)
            yield NUL * (-size % BLOCKSIZE)
    yield NUL * (2 * BLOCKSIZE)


async def _data(
    outputs: Outputs, partition: str, user: str, number: int, row: ResultRow, name: str, size: int
) -> AsyncGenerator[bytes]:
    """Yield a file. If it is removed meanwhile, the answer ends before its announced length."""
    offset = 0
    while offset < size:
        most = min(PART, size - offset)
        data = await asyncio.to_thread(outputs.read_result, partition, user, number, row, name, offset, most)
        if not data:
            return
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


HANDLERS = [results, result_file, result_archive]
