"""The blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from msgspec.structs import replace

from fairlead.client import calls, result_writer
from fairlead.client.calls import (
    RETRIED,
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
from fairlead.client.http_pool import LOST, Connections
from fairlead.client.methods import Methods
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.addresses import servers
from fairlead.wire.operation import Answer, Operation


class Client(Methods):
    """A blocking client. Without arguments it uses FAIRLEAD_URL, or the server that `fairlead up` runs on this machine.

    Requests that fail on the way are sent again and take effect only once. Refusals are raised as `Problem`. Threads
    may share a client.
    """

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
        self._connections = Connections(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, including streams that other threads read; those would wait forever otherwise."""
        self._connections.close()

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, command: list[str] | None = None, document: Document | None = None, **fields: Any) -> str:
        """Submit a job and return its id.

        Give a command and fields (`array=3, resources={"cpu": 1}, queue=…`), or a whole document with stages. Issues a
        `NeverRuns` warning if the job can never run as the cluster is now.
        """
        answer = self.send(op.Submit(document=calls.job_document(command, document, fields)))
        calls.warn(answer.job, answer.warning, 2)
        return answer.job

    def submit_many(self, documents: Iterable[Document]) -> list[wire.BatchItem]:
        """Submit many jobs. Return for each, in order, its id and warning, or the problem."""
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += self.send(op.SubmitMany(document=calls.given(jobs=chunk))).items
        return items

    def dry_run(
        self, command: list[str] | None = None, document: Document | None = None, eta: bool = False, **fields: Any
    ) -> wire.DryRun:
        """Return what the next cycle would do with a job, without submitting it. Arguments are as for `submit`.

        With `eta`, the predicted start is added if the job would wait; that takes longer.
        """
        job = calls.job_document(command, document, fields)
        return self.send(op.DryRun(document=job, eta=eta))

    def tasks(self, job: str, stage: str = "") -> Iterator[wire.Task]:
        """Yield the tasks of a job, or of one of its stages, ordered by index."""
        for page in self.pages(op.Tasks(job=job, stage=stage, limit=1000)):
            yield from page.tasks

    def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        """Wait until a job has ended and return it. Raise `TimeoutError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = self.send(op.Job(job=job, wait=calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

    def eta(self, *jobs: str) -> list[wire.Eta]:
        """Return the predicted starts of up to 1,000 jobs: a likely time and a 90 % interval each."""
        return calls.in_order(jobs, self.send(calls.etas(jobs)).etas)

    def what_if(self, **changes: Any) -> wire.WhatIf:
        """Return the effect of a supposed change on start times. Only for operators.

        The keys are those of `WhatIfDocument`: `add_nodes`, `remove_nodes`, `shares`, `priorities`, `policy`, `replay`.
        """
        return self.send(calls.what_if(changes))

    def attempts(self, job: str) -> wire.Attempts:
        """Return the ended attempts of a job's tasks: where and when they ran, and how they ended.

        `tasks` of an attempt are the indices of its tasks, such as `[3]`; `indices` are the same as ranges, `[3, 4]`.
        """
        return self.send(op.Attempts(job=job, limit=1000))

    def log(
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
    ) -> Iterator[bytes]:
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
        yield from self.stream(wanted, lambda headers: began(int(headers.get("fairlead-attempt", 0))))

    def results(
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
        while waiting := self.send(count).waiting:
            patience.note(waiting, time.monotonic())
            most = max(most, waiting)
            told("waiting", most - waiting, most)
            time.sleep(calls.RESULT_POLL)
        return [task for page in self.pages(wanted) for task in page.tasks]

    def fetch(
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
        tasks = self.results(job, stage, index, attempt, timeout, told)
        files = result_writer.Wanted(place, tasks)
        total = len(files)
        if total > 1:  # all in one answer; what does not come with it is fetched file by file
            archive = op.ResultArchive(job=job, stage=stage, index=index, attempt=attempt)
            with suppress(Problem):
                for _ in files.unpack(self.stream(archive)):
                    told("fetching", total - len(files), total)
        for task, file in list(files):
            self._fetch(job, place, task, file)
            files.remove(task, file)
            told("fetching", total - len(files), total)
        return [result_writer.target(place, task, file) for task in tasks for file in task.files]

    def _fetch(self, job: str, place: Path, task: wire.TaskResults, file: wire.ResultFile) -> None:
        """Fetch one file, and start again if the transfer breaks off."""
        failures = 0
        while True:
            try:
                with result_writer.new_file(place, task, file) as output:
                    for part in self.stream(calls.result_file(job, task, file.name)):
                        output.write(part)
                return
            except result_writer.Broken:
                problem = result_writer.cut_off(file)
            except Problem as refusal:
                problem = refusal
            failures += 1
            if not calls.may_resume(problem, failures):
                raise problem
            time.sleep(pause(failures))

    # -- the cluster ---------------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        """Return the names of the partitions."""
        return [partition.name for partition in self.send(op.Partitions()).partitions]

    def lanes(self, first: int = 10) -> wire.Lanes:
        """Return waiting work by lane (queue and shape), with the first `first` asks of each."""
        return self.send(op.Lanes(first=first))

    def watch(
        self, job: str = "", after: int | None = None, began: Callable[[], None] = lambda: None
    ) -> Iterator[wire.Event]:
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
                for part in self.stream(calls.watch(job, reader.after), lambda headers: began()):
                    failures = 0
                    yield from reader.feed(part)
            except Problem as problem:
                if not calls.may_resume(problem, failures):
                    raise
            failures += 1
            time.sleep(pause(failures))

    def holds(self) -> list[wire.Hold]:
        """Return the holds: nodes kept free for jobs that have waited too long."""
        return self.send(op.Holds()).holds

    def promises(self) -> list[wire.Promise]:
        """Return the promises: nodes on which capacity becomes free for one job only."""
        return self.send(op.Holds()).promises

    def pools(self) -> list[wire.Pool]:
        """Return the pools with their nodes and orders."""
        return self.send(op.Pools()).pools

    def pause_pool(self, pool: str) -> str:
        """Pause a pool: it neither grows nor shrinks by itself."""
        return self.send(op.MovePool(pool=pool, action="pause")).note

    def resume_pool(self, pool: str) -> str:
        """Resume a paused pool at once."""
        return self.send(op.MovePool(pool=pool, action="resume")).note

    def usage_report(
        self,
        by: Iterable[str] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        user: str = "",
    ) -> wire.UsageReport:
        """Return resource use, waits and preemptions in a period, by group and in total.

        `by` is `user`, `queue`, `partition` or `job`, or several of them.
        """
        return self.send(calls.usage_report(by, since, until, user))

    # -- requests ------------------------------------------------------------------------------------------------

    def send(self, operation: Operation[Answer]) -> Answer:
        """Send an operation and return its answer. Retry if the answer is lost or the server is overloaded."""
        call = Call(operation, self.partition)
        tries = TRIES * self._connections.servers
        for attempt in range(tries):
            last = attempt == tries - 1
            retry_after = None
            if self._connections.servers > 1:
                call.after(self._revision)
            try:
                answer = self._connections.request(call)
            except LOST as problem:
                if last or is_untrusted(problem):
                    raise unreachable(self.url, problem) from None
            else:
                if answer.status not in RETRIED or last:
                    if call.method != "GET":
                        self._revision = max(self._revision, int(answer.revision))
                    elif answer.status in (409, 503):  # an older state may have been restored, without this revision
                        self._revision = 0
                    return call.read(answer.status, answer.content)
                retry_after = answer.retry_after
            self._connections.turn()
            time.sleep(pause(attempt, retry_after, self._connections.servers))
        raise AssertionError

    def pages(self, operation: Operation[Page]) -> Iterator[Page]:
        """Yield the pages of a list. Each request carries the cursor of the previous page."""
        page = self.send(operation)
        yield page
        while page.next:
            operation = replace(operation, cursor=page.next)
            page = self.send(operation)
            yield page

    def stream(
        self, operation: Operation[Any], began: Callable[[Mapping[str, str]], None] = lambda headers: None
    ) -> Iterator[bytes]:
        """Yield the parts of a streaming answer. It is not asked for again if the stream breaks off.

        `began` is called with the headers of the answer.
        """
        call = Call(operation, self.partition)
        try:
            with self._connections.stream(call) as answer:
                if answer.status >= 400:
                    if answer.status in RETRIED:
                        self._connections.turn()
                    raise problem_of(answer.status, answer.read())
                began(answer.headers)  # type: ignore[arg-type]  # an email.message.Message, which has `get` too
                while part := answer.read1():
                    yield part
        except LOST as problem:
            self._connections.turn()
            raise unreachable(self.url, problem) from None
