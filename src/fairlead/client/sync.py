"""The blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
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
        answer = self.send(calls.submit(calls.job_document(command, document, fields), self.partition))
        calls.warn(answer.job, answer.warning, 2)
        return answer.job

    def submit_many(self, documents: Iterable[Document]) -> list[wire.BatchItem]:
        """Submit many jobs. Return for each, in order, its id and warning, or the problem."""
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += self.send(calls.submit_many(chunk, self.partition)).items
        return items

    def dry_run(
        self, command: list[str] | None = None, document: Document | None = None, eta: bool = False, **fields: Any
    ) -> wire.DryRun:
        """Return what the next cycle would do with a job, without submitting it. Arguments are as for `submit`.

        With `eta`, the predicted start is added if the job would wait; that takes longer.
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
        """Yield the tasks of a job, or of one of its stages, ordered by index."""
        for page in self._pages(
            lambda cursor: calls.tasks(job, self.partition, stage=stage, cursor=cursor, limit=1000)
        ):
            yield from page.tasks

    def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        """Wait until a job has ended and return it. Raise `TimeoutError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = self.send(calls.job(job, self.partition, calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

    def kill(self, job: str) -> str:
        """Kill a job. Return the server's note, such as that the job had ended already."""
        return self.send(calls.change(job, "kill", self.partition)).note

    def hold(self, job: str) -> str:
        """Hold a job: none of its waiting tasks start until it is released. Return the server's note."""
        return self.send(calls.change(job, "hold", self.partition)).note

    def release(self, job: str) -> str:
        """Release a held job. Return the server's note."""
        return self.send(calls.change(job, "release", self.partition)).note

    def requeue(self, job: str) -> str:
        """Stop the running tasks of a job; they wait again at their earlier place. Return the server's note."""
        return self.send(calls.change(job, "requeue", self.partition)).note

    def scale(self, job: str, count: int, stage: str = "") -> str:
        """Change the number of tasks of a stage; `stage` may be empty if the job has only one."""
        return self.send(calls.scale(job, count, stage, self.partition)).note

    def set_priority(self, job: str, priority: int) -> str:
        """Change the priority of a job. Return the server's note.

        Owners may lower it, or raise it up to their `max_priority` in its queue; operators may raise it further.
        """
        return self.send(calls.set_priority(job, priority, self.partition)).note

    def try_priority(self, job: str, priority: int) -> wire.PriorityStops:
        """Return the running tasks that would stop at once for a job with another priority. Nothing is changed."""
        return self.send(calls.try_priority(job, priority, self.partition))

    def explain(self, job: str, remedies: bool = True) -> wire.Explanation:
        """Return why a job is in its state, and what would be enough to start its waiting tasks.

        `remedies=False` leaves out what would be enough, and is faster.
        """
        return self.send(calls.explain(job, self.partition, remedies))

    def eta(self, *jobs: str) -> list[wire.Eta]:
        """Return the predicted starts of up to 1,000 jobs: a likely time and a 90 % interval each."""
        return calls.in_order(jobs, self.send(calls.etas(list(jobs), self.partition)).etas)

    def story(self, job: str) -> wire.Story:
        """Return what happened to a job, earliest first."""
        return self.send(calls.story(job, self.partition))

    def trace(self, since: float | None = None) -> wire.RecordedTrace:
        """Return past jobs, submitted since a time, as a trace for the simulator. Only for operators."""
        return self.send(calls.trace(self.partition, since))

    def what_if(self, **changes: Any) -> wire.WhatIf:
        """Return the effect of a supposed change on start times. Only for operators.

        The keys are those of `WhatIfDocument`: `add_nodes`, `remove_nodes`, `shares`, `priorities`, `policy`, `replay`.
        """
        return self.send(calls.what_if(changes, self.partition))

    def attempts(self, job: str) -> wire.Attempts:
        """Return the ended attempts of a job's tasks: where and when they ran, and how they ended."""
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
        """Yield the output of one attempt of a task as it arrives; by default of the last attempt.

        `after=N` selects the first attempt above N; with `follow`, wait for that attempt. If the task has ended and has
        no such attempt, raise a `Problem` with the code `gone`. `began` is called with the attempt's number before its
        output.
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
        told: calls.Told = lambda what, done, total: None,
    ) -> list[wire.TaskResults]:
        """Return the result files that were collected when tasks of a job ended; by default of the last attempts.

        Waits for files that have not arrived from the nodes yet. Raises `TimeoutError` if none arrives for `timeout`
        seconds. `told` is called with the progress of that.
        """
        filters: dict[str, Any] = {"stage": stage, "index": index, "attempt": attempt}
        count = calls.results(job, self.partition, **filters, limit=1)  # poll with a short list while files arrive
        patience = calls.Patience(job, timeout)
        most = 0
        while waiting := self.send(count).waiting:
            patience.note(waiting, time.monotonic())
            most = max(most, waiting)
            told("waiting", most - waiting, most)
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
        told: calls.Told = lambda what, done, total: None,
    ) -> list[Path]:
        """Write the result files of a job below a directory, as `STAGE.INDEX/NAME`, and return their paths.

        Existing files are replaced. Links in the directory are not followed. `told` is called with the progress.
        """
        place = Path(directory)
        tasks = self.results(job, stage, index, attempt, timeout, told)
        files = fetching.Wanted(place, tasks)
        total = len(files)
        if total > 1:  # all in one answer; what does not come with it is fetched file by file
            archive = calls.result_archive(job, self.partition, stage=stage, index=index, attempt=attempt)
            with suppress(Problem):
                for _ in files.unpack(self.stream(archive)):
                    told("fetching", total - len(files), total)
        for task, file in list(files):
            self._fetch(job, place, task, file)
            files.remove(task, file)
            told("fetching", total - len(files), total)
        return [fetching.target(place, task, file) for task in tasks for file in task.files]

    def _fetch(self, job: str, place: Path, task: wire.TaskResults, file: wire.ResultFile) -> None:
        """Fetch one file, and start again if the transfer breaks off."""
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
        """Return waiting work by lane (queue and shape), with the first `first` asks of each."""
        return self.send(calls.lanes(self.partition, first))

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
        """Remove a resource manager: its jobs are killed and its nodes leave. Only for operators."""
        return self.send(calls.remove_manager(name, self.partition)).note

    def holds(self) -> list[wire.Hold]:
        """Return the holds: nodes kept free for jobs that have waited too long."""
        return self.send(calls.holds(self.partition)).holds

    def promises(self) -> list[wire.Promise]:
        """Return the promises: nodes on which capacity becomes free for one job only."""
        return self.send(calls.holds(self.partition)).promises

    def release_hold(self, job: str, stage: str = "") -> str:
        """Release the nodes held for a job, or for one of its stages. Only for operators."""
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
        """Return the numbers of nodes of each pool: available, needed by waiting work, idle and ordered."""
        return self.send(calls.usage(self.partition))

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
        return self.send(calls.usage_report(by, since, until, user, self.partition))

    def history(self, **filters: Any) -> Iterator[wire.PastJob]:
        """Yield finished jobs, newest first.

        Filters: `user`, `queue` (with the queues below it), `state`, `name` (a pattern such as `train-*`), `label`
        (`key=value`), `node`, and `since` and `until`, which select by the end of a job.
        """
        for page in self._pages(lambda cursor: calls.history(self.partition, cursor=cursor, **filters)):
            yield from page.jobs

    def secrets(self) -> list[str]:
        """Return the names of the caller's secrets."""
        return self.send(calls.secrets()).secrets

    def set_secret(self, name: str, value: str, expires_in: float | None = None) -> None:
        """Store a secret for the caller's jobs, for `expires_in` seconds or until it is removed."""
        self.send(calls.set_secret(name, value, expires_in))

    def remove_secret(self, name: str) -> None:
        """Remove a secret."""
        self.send(calls.remove_secret(name))

    # -- requests ------------------------------------------------------------------------------------------------

    def send(self, call: Call[Answer]) -> Answer:
        """Send a call and return its answer. Retry if the answer is lost or the server is overloaded."""
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

    def _pages(self, call: Callable[[str], Call[Page]]) -> Iterator[Page]:
        """Yield the pages of a list. Each request carries the cursor of the previous page."""
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
        """Yield the parts of a streaming answer. The call is not retried if the stream breaks off.

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
