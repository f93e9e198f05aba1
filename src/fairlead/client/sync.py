"""The blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self
from uuid import uuid4

from msgspec.structs import replace

from fairlead.client import calls
from fairlead.client.calls import (
    RETRIED,
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
from fairlead.client.http_pool import LOST, Connections
from fairlead.client.shortcuts import Shortcuts
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import Answer, Operation

if TYPE_CHECKING:  # programs that start often, such as `squeue`, do not need it
    from subprocess import CompletedProcess

    from fairlead.client.snapshots import Storing


class Client(Caller, Shortcuts):
    """A blocking client. Without arguments it uses FAIRLEAD_URL, or the server that `fairlead up` runs on this machine.

    A request whose answer is lost is sent again, and takes effect only once. A refusal is raised as `Problem`. Threads
    may share a client.
    """

    def __init__(
        self, url: str = "", token: str = "", authority: str = "", partition: str = "", insecure: bool = False
    ) -> None:
        super().__init__(url, token, authority, partition, insecure)
        self._connections = Connections(self._endpoint)

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
        """Submit many jobs. Return an item for each, in order: its id and warning, or the problem."""
        items: list[wire.BatchItem] = []
        for chunk in calls.chunks_of(documents):
            items += self.send(op.SubmitMany(document=calls.given(jobs=chunk))).items
        return items

    def wait(self, job: str, timeout: float | None = None) -> wire.Job:
        """Wait until a job has ended and return it. Raise `TimeoutError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            view = self.send(op.Job(job=job, wait=calls.poll_seconds(deadline)))
            if view.over:
                return view
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"job {job} is still {view.state}")

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
        """Yield the output of one attempt of a task, by default of the last one.

        With `follow`, the output continues until the attempt ends. `after=N` selects the first attempt above N, and
        with `follow` waits for it. If the task has ended without such an attempt, raise a `Problem` with the code
        `gone`. `began` is called with the number of the attempt before its output.
        """
        wanted = calls.log(job, stage, index, stream, follow, offset, attempt, after)
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
        """Return the result files that were collected when tasks of a job ended, by default of their last attempts.

        Wait for files that are still on their way from the nodes. Raise `TimeoutError` if none arrives for `timeout`
        seconds. `told` is called with the progress.
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
        from fairlead.client import result_writer

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
        from fairlead.client import result_writer

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

    def watch(
        self, job: str = "", after: int | None = None, began: Callable[[], None] = lambda: None
    ) -> Iterator[wire.Event]:
        """Yield events as they happen, without end: of one job, or of all visible jobs and the nodes.

        `after` is the number of a record in the journal: start after it instead of now. A broken stream is opened
        again. The event `reset` means that events were missed, so that the state must be read again. `began` is called
        each time the stream has been opened; all events after that call are yielded.
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

    def attach(
        self, job: str, command: list[str], stage: str = "", index: int = 0, input: bytes = b""
    ) -> CompletedProcess[bytes]:
        """Run a command beside a running task, with its user, environment and limits. Return its output and exit code.

        Raise `Problem` if the task does not run, or the command cannot be started.
        """
        from fairlead.client.tunnel import capture

        wanted = op.OpenTunnel(job=job, tunnel=uuid4().hex, kind="command", stage=stage, index=index, command=command)
        return capture(self, wanted, input)

    @contextmanager
    def forward(self, job: str, port: int, stage: str = "", index: int = 0, local: int = 0) -> Iterator[int]:
        """Bring a port of a running task to this machine, in a thread. Yield the local port, by default a free one.

        Raise `Problem` at the end if the connection to the task was lost for too long.
        """
        from fairlead.client.tunnel import forwarding

        wanted = op.OpenTunnel(job=job, tunnel=uuid4().hex, kind="ports", stage=stage, index=index)
        with forwarding(self, wanted, port, local) as number:
            yield number

    def store(self, content: bytes | IO[bytes]) -> str:
        """Store content for jobs, if the server does not have it. Return its SHA-256."""
        from fairlead.client.snapshots import storing

        return self._store(storing(content))

    def store_snapshot(self, directory: str | Path) -> str:
        """Store the files of a directory, without those that git ignores. Return the `snapshot` for stages of jobs."""
        from fairlead.client.snapshots import snapshot_storing

        return self._store(snapshot_storing(directory))

    def _store(self, steps: Storing) -> str:
        try:
            asked = next(steps)
            while True:
                asked = steps.send(self.send(asked))
        except StopIteration as done:
            return str(done.value)

    # -- requests ------------------------------------------------------------------------------------------------

    def send(self, operation: Operation[Answer]) -> Answer:
        """Send an operation and return its answer. Retry if the answer is lost or the server is overloaded."""
        call = self._call(operation)
        servers = len(self._servers)
        for attempt in range(TRIES * servers):
            last = attempt == TRIES * servers - 1
            retry_after = None
            try:
                answer = self._connections.request(call)
            except LOST as problem:
                if last or is_untrusted(problem):
                    raise unreachable(self.url, problem) from None
            else:
                if answer.status not in RETRIED or last:
                    self._note(call, answer.status, answer.revision)
                    return call.read(answer.status, answer.content)
                retry_after = answer.retry_after
            self._connections.turn()
            time.sleep(pause(attempt, retry_after, servers))
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
        """Yield the parts of a streaming answer. A broken stream raises `Problem` and is not opened again.

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
