"""The blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fairlead.client import calls, fetching
from fairlead.client.calls import (
    RETRIED,
    TRIES,
    Answer,
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
from fairlead.client.http import LOST, Connections
from fairlead.wire import api as wire
from fairlead.wire.addresses import servers


class Client:
    """A client of a server; without arguments, of the server that `fairlead up` runs on this machine.

    Requests that fail on the way are sent again and take effect only once. Refusals are raised as `Problem`. Threads
    may share a client.
    """

    def __init__(
        self, url: str = "", token: str = "", authority: str = "", partition: str = "", insecure: bool = False
    ) -> None:
        """`url` may name several servers of a cluster, separated by commas: requests go to the one that leads.

        `insecure` sends the token to another machine without TLS.
        """
        endpoint = Endpoint(url, token, authority, insecure) if url else find_endpoint()
        self.url = ",".join(servers(endpoint.url)) or endpoint.url
        self.partition = partition
        self._revision = 0
        """The revision of the last change that was answered. Reads from other servers show it too."""
        self._connections = Connections(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, including streams that other threads still read: they would wait forever."""
        self._connections.close()

    # -- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, command: list[str] | None = None, document: Document | None = None, **fields: Any) -> str:
        """Submit a job and return its id.

        The job is a command with fields (`array=3, resources={"cpu": 1}, queue=…`), or a whole document with stages.
        A `NeverRuns` warning is issued if it can never run as the cluster is now.
        """
        answer = self.send(calls.submit(calls.job_document(command, document, fields), self.partition))
        calls.warn(answer.job, answer.warning, 2)
        return answer.job

    def submit_many(self, documents: Iterable[Document]) -> list[wire.BatchItem]:
        """Submit many jobs. Return the job id and warning or the problem of each, in the order of the documents."""
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += self.send(calls.submit_many(chunk, self.partition)).items
        return items

    def dry_run(
        self, command: list[str] | None = None, document: Document | None = None, eta: bool = False, **fields: Any
    ) -> wire.DryRun:
        """Return what the next cycle would do with a job, without submitting it. The job is given as to `submit`.

        With `eta`, the answer to a job that would wait has its start, and takes longer.
        """
        job = calls.job_document(command, document, fields)
        return self.send(calls.dry_run(job, self.partition, eta))

    def job(self, job: str) -> wire.Job:
        """Return a job."""
        return self.send(calls.job(job, self.partition))

    def jobs(self, **filters: Any) -> Iterator[wire.Job]:
        """Yield jobs, newest first. Filters: `state`, `user`, `queue`, `name`, `label`."""
        for page in self._pages(lambda cursor: calls.jobs(self.partition, cursor=cursor, **filters)):
            yield from page.jobs

    def tasks(self, job: str, stage: str = "") -> Iterator[wire.Task]:
        """Yield the tasks of a job, or of one of its stages, by index."""
        for page in self._pages(
            lambda cursor: calls.tasks(job, self.partition, stage=stage, cursor=cursor, limit=1000)
        ):
            yield from page.tasks

    def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        """Wait until a job is over and return it. Raise `TimeoutError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = self.send(calls.job(job, self.partition, calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

    def kill(self, job: str) -> str:
        """Kill a job. Returns a note, such as that it was over already."""
        return self.send(calls.change(job, "kill", self.partition)).note

    def hold(self, job: str) -> str:
        """Hold a job back: none of its waiting tasks start until it is released. Returns a note."""
        return self.send(calls.change(job, "hold", self.partition)).note

    def release(self, job: str) -> str:
        """Release a job that is held back. Returns a note."""
        return self.send(calls.change(job, "release", self.partition)).note

    def requeue(self, job: str) -> str:
        """Stop the running tasks of a job; they wait again at their earlier place. Returns a note."""
        return self.send(calls.change(job, "requeue", self.partition)).note

    def scale(self, job: str, count: int, stage: str = "") -> str:
        """Give a job, or one of its stages, another number of tasks."""
        return self.send(calls.scale(job, count, stage, self.partition)).note

    def set_priority(self, job: str, priority: int) -> str:
        """Change the priority of a job. Owners may lower it, operators may raise it too."""
        return self.send(calls.set_priority(job, priority, self.partition)).note

    def explain(self, job: str, remedies: bool = True) -> wire.Explanation:
        """Return why a job is in its state, and what would be enough to start its waiting tasks.

        Without `remedies` the answer comes sooner.
        """
        return self.send(calls.explain(job, self.partition, remedies))

    def eta(self, *jobs: str) -> list[wire.Eta]:
        """Return when jobs start, up to 1,000 of them: a likely start and an interval of 90 %."""
        return calls.in_order(jobs, self.send(calls.etas(list(jobs), self.partition)).etas)

    def story(self, job: str) -> wire.Story:
        """Return what happened to a job, in order."""
        return self.send(calls.story(job, self.partition))

    def trace(self, since: float | None = None) -> wire.RecordedTrace:
        """Return the jobs of the past as a trace for the simulator. Only operators may call it."""
        return self.send(calls.trace(self.partition, since))

    def what_if(self, **changes: Any) -> wire.WhatIf:
        """Return what a supposed change would bring. Only operators may call it.

        The keys are those of `WhatIfDocument`: `add_nodes`, `remove_nodes`, `shares`, `priorities`, `policy`, `replay`.
        """
        return self.send(calls.what_if(changes, self.partition))

    def attempts(self, job: str) -> wire.Attempts:
        """Return the attempts of a job's tasks: where and when they ran, and how they ended."""
        return self.send(calls.attempts(job, self.partition, limit=1000))

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
        """Yield the output of one attempt of a task as it arrives: of the last attempt by default.

        `after` chooses the first attempt above a number. With `follow` it is waited for; if the task has ended and no
        further attempt follows, a `Problem` with the code `gone` is raised. `began` is called with the number of the
        attempt before its output.
        """
        options = {"stage": stage, "index": index, "stream": stream, "follow": follow, "offset": offset}
        call = calls.log(job, self.partition, **options, attempt=attempt, after=after)
        yield from self.stream(call, lambda headers: began(int(headers.get("fairlead-attempt", 0))))

    def results(
        self,
        job: str,
        stage: str = "",
        index: int | None = None,
        attempt: int | None = None,
        timeout: float = calls.RESULTS,
    ) -> list[wire.TaskResults]:
        """Return the result files that were collected when tasks of a job ended: of their last attempts by default.

        Files that are on their way from nodes are waited for; `TimeoutError` is raised if none arrives for `timeout`
        seconds.
        """
        filters: dict[str, Any] = {"stage": stage, "index": index, "attempt": attempt}
        count = calls.results(job, self.partition, **filters, limit=1)  # while files arrive, a long list is not read
        patience = calls.Patience(job, timeout)
        while waiting := self.send(count).waiting:
            patience.note(waiting, time.monotonic())
            time.sleep(calls.RESULT_POLL)
        filters["limit"] = 1000
        pages = self._pages(lambda cursor: calls.results(job, self.partition, cursor=cursor, **filters))
        return [task for page in pages for task in page.tasks]

    def fetch(
        self,
        job: str,
        directory: str | os.PathLike[str] = ".",
        stage: str = "",
        index: int | None = None,
        attempt: int | None = None,
        timeout: float = calls.RESULTS,
    ) -> list[Path]:
        """Write the result files of a job below a directory, as `STAGE.INDEX/NAME`, and return their paths.

        Existing files are replaced. Links in the directory are not followed.
        """
        place = Path(directory)
        paths: list[Path] = []
        for task in self.results(job, stage, index, attempt, timeout):
            for file in task.files:
                self._fetch(job, place, task, file)
                paths.append(fetching.target(place, task, file))
        return paths

    def _fetch(self, job: str, place: Path, task: wire.TaskResults, file: wire.ResultFile) -> None:
        """Fetch one file. A transfer that breaks off is started again."""
        failures = 0
        while True:
            try:
                with fetching.new_file(place, task, file) as output:
                    for part in self.stream(calls.result_file(job, task, file.name, self.partition)):
                        output.write(part)
                return
            except fetching.Broken:
                problem = fetching.cut_off(file)
            except Problem as refusal:
                problem = refusal
            failures += 1
            if not calls.may_resume(problem, failures):
                raise problem
            time.sleep(pause(failures))

    # -- the cluster ---------------------------------------------------------------------------------------------

    def nodes(self, **filters: Any) -> Iterator[wire.Node]:
        """Yield the nodes. Filters: `state`, `pool`."""
        for page in self._pages(lambda cursor: calls.nodes(self.partition, cursor=cursor, **filters)):
            yield from page.nodes

    def partitions(self) -> list[str]:
        """Return the names of the partitions."""
        return [partition.name for partition in self.send(calls.partitions()).partitions]

    def queues(self) -> list[wire.Queue]:
        """Return all queues, parents before children."""
        return self.send(calls.queues(self.partition)).queues

    def lanes(self, first: int = 10) -> wire.Lanes:
        """Return the waiting work by queue and shape, with the first asks of each lane."""
        return self.send(calls.lanes(self.partition, first))

    def watch(
        self, job: str = "", after: int | None = None, began: Callable[[], None] = lambda: None
    ) -> Iterator[wire.Event]:
        """Yield events of jobs, tasks and nodes as they happen, without end: of one job, or of all that are visible.

        `after` is the number of a record to begin after, instead of now. A broken stream is resumed. The event `reset`
        means that events were missed: read the state again. `began` is called when the stream has begun, and again when
        it was resumed: what happens from then on is not missed.
        """
        reader = calls.EventReader(after)
        failures = 0
        while True:
            reader.restart()
            try:
                for part in self.stream(calls.watch(job, self.partition, reader.after), lambda headers: began()):
                    failures = 0
                    yield from reader.feed(part)
            except Problem as problem:
                if not calls.may_resume(problem, failures):
                    raise
            failures += 1
            time.sleep(pause(failures))

    def managers(self) -> list[wire.Manager]:
        """Return the resource managers. Only for operators."""
        return self.send(calls.managers(self.partition)).managers

    def remove_manager(self, name: str) -> str:
        """Remove a resource manager: its jobs are killed and its nodes leave."""
        return self.send(calls.remove_manager(name, self.partition)).note

    def holds(self) -> list[wire.Hold]:
        """Return the nodes that are held for jobs that have waited too long."""
        return self.send(calls.holds(self.partition)).holds

    def promises(self) -> list[wire.Promise]:
        """Return the nodes with capacity on its way that only one job may use."""
        return self.send(calls.holds(self.partition)).promises

    def release_hold(self, job: str, stage: str = "") -> str:
        """Release the nodes held for a job, or for one of its stages."""
        return self.send(calls.release_hold(job, stage, self.partition)).note

    def pools(self) -> list[wire.Pool]:
        """Return the pools with their nodes and orders."""
        return self.send(calls.pools(self.partition)).pools

    def pool(self, pool: str) -> wire.Pool:
        """Return a pool."""
        return self.send(calls.pool(pool, self.partition))

    def pause_pool(self, pool: str) -> str:
        """Pause a pool: it neither grows nor shrinks by itself."""
        return self.send(calls.move_pool(pool, "pause", self.partition)).note

    def resume_pool(self, pool: str) -> str:
        """Resume a paused pool at once."""
        return self.send(calls.move_pool(pool, "resume", self.partition)).note

    def scale_pool(self, pool: str, nodes: int) -> str:
        """Order nodes, or give back idle ones, until the pool has `nodes` nodes."""
        return self.send(calls.scale_pool(pool, nodes, self.partition)).note

    def usage(self) -> wire.Usage:
        """Return the nodes of each pool: existing, needed for waiting work, and ordered."""
        return self.send(calls.usage(self.partition))

    def usage_report(
        self,
        by: Iterable[str] = (),
        since: Moment | None = None,
        until: Moment | None = None,
        user: str = "",
    ) -> wire.UsageReport:
        """Return the use of resources, waits and preemptions in a span of time, in total and grouped.

        `by` has `user`, `queue`, `partition` or `job`, or several of them.
        """
        return self.send(calls.usage_report(by, since, until, user, self.partition))

    def history(self, **filters: Any) -> Iterator[wire.PastJob]:
        """Yield finished jobs, newest first.

        Filters: `user`, `queue` (with the queues below it), `state`, `name` (a pattern such as `train-*`), `label`
        (`key=value`), `node`, and `since` and `until`, which choose by the end of a job.
        """
        for page in self._pages(lambda cursor: calls.history(self.partition, cursor=cursor, **filters)):
            yield from page.jobs

    def secrets(self) -> list[str]:
        """Return the names of the caller's secrets."""
        return self.send(calls.secrets()).secrets

    def set_secret(self, name: str, value: str, expires_in: float | None = None) -> None:
        """Store a secret that the caller's jobs can use, for `expires_in` seconds or until it is removed."""
        self.send(calls.set_secret(name, value, expires_in))

    def remove_secret(self, name: str) -> None:
        """Remove a secret."""
        self.send(calls.remove_secret(name))

    # -- requests ------------------------------------------------------------------------------------------------

    def send(self, call: Call[Answer]) -> Answer:
        """Send a call, retry it if needed, and return its answer."""
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
                    elif answer.status in (409, 503):  # an older state may have been restored: the revision is gone
                        self._revision = 0
                    return call.read(answer.status, answer.content)
                retry_after = answer.retry_after
            self._connections.turn()
            time.sleep(pause(attempt, retry_after, self._connections.servers))
        raise AssertionError

    def _pages(self, call: Callable[[str], Call[Page]]) -> Iterator[Page]:
        """Yield the pages of a list. Each request carries the cursor of the page before."""
        cursor = ""
        while True:
            page = self.send(call(cursor))
            yield page
            cursor = page.next
            if not cursor:
                return

    def stream(
        self, call: Call[Any], began: Callable[[Mapping[str, str]], None] = lambda headers: None
    ) -> Iterator[bytes]:
        """Yield the parts of a streaming answer. The call is not sent again if the stream breaks off.

        `began` is called with the headers of the answer.
        """
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
