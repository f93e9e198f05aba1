"""The client against a real server: answers, refusals, retries without double effects, and remote functions."""

from __future__ import annotations

import asyncio
import inspect
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairlead.client import AsyncClient, Client, NeverRuns, Problem
from fairlead.client.calls import Patience
from fairlead.wire import operations as op
from tests.live import SECONDS, Up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    found = Up(tmp_path_factory.mktemp("client") / "data")
    found.until("node", "list", said="box")
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.url, up.token) as found:
        yield found


SMALL = {"cpu": 0.1}


def test_a_job_from_submit_to_log(client: Client) -> None:
    job = client.submit(
        ["sh", "-c", "echo $GREETING"], resources=SMALL, environment={"GREETING": "hello"}, name="greet"
    )
    found = client.wait(job, timeout=SECONDS)
    assert (found.state, found.name, found.over) == ("succeeded", "greet", True)
    assert b"".join(client.log(job)) == b"hello\n"
    assert [task.exit_code for task in client.tasks(job)] == [0]
    (attempt,) = client.attempts(job).attempts
    assert f"tasks={attempt.tasks!r}" in repr(attempt) and "indices" not in repr(attempt)
    assert (attempt.outcome, attempt.node) == ("succeeded", "box")
    assert job in [each.id for each in client.jobs(name="greet")]
    assert job in [each.id for each in client.history()]


def test_result_files_are_waited_for_as_long_as_they_arrive() -> None:
    patience = Patience("1", timeout=60.0)
    for arrived in range(5000):
        patience.note(5000 - arrived, now=50.0 * arrived)
    last = 50.0 * 4999
    patience.note(1, now=last + 59.0)
    with pytest.raises(TimeoutError, match="the result files of 1 tasks of job 1 are still on their way"):
        patience.note(1, now=last + 60.0)


def test_refusals_are_raised(client: Client) -> None:
    with pytest.raises(Problem) as refusal:
        client.submit(document={"stages": []})
    assert (refusal.value.status, refusal.value.field) == (422, "stages")
    with pytest.raises(Problem) as refusal:
        client.job("../../etc/passwd")
    assert refusal.value.status == 422 and "is not a name" in str(refusal.value)
    with pytest.raises(TypeError):
        client.submit(["true"], document={"stages": [{}]})
    with pytest.raises(TypeError):
        client.submit()
    with pytest.warns(NeverRuns):
        waits = client.submit(["true"], resources={"cpu": 99})
    with pytest.raises(TimeoutError):
        client.wait(waits, timeout=0.05)
    assert client.explain(waits).waiting[0].code == "never fits"
    client.kill(waits)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client, name: client.explain(name), "job"),
        (lambda client, name: client.job(name), "job"),
        (lambda client, name: client.kill(name), "job"),
        (lambda client, name: client.eta("1", name), "jobs[1]"),
        (lambda client, name: client.pool(name), "pool"),
        (lambda client, name: client.remove_secret(name), "name"),
        (lambda client, name: client.remove_manager(name), "name"),
    ],
)
def test_names_are_checked_alike(client: Client, call: Callable[[Client, Any], Any], field: str) -> None:
    with pytest.raises(Problem, match="'' is not a name; a name has letters") as refusal:
        call(client, "")
    assert (refusal.value.status, refusal.value.field) == (422, field)
    with pytest.raises(Problem, match="34 is not text; write '34'") as refusal:
        call(client, 34)
    assert (refusal.value.status, refusal.value.field) == (422, field)


def test_a_dry_run_stores_nothing(up: Up, client: Client) -> None:
    before = [job.id for job in client.jobs()]
    assert client.dry_run(["true"], resources=SMALL).starts
    tried = client.dry_run(document={"stages": [{"command": ["true"], "resources": {"cpu": 99}}]}, eta=True)
    assert not tried.starts and "node" in tried.never

    async def the_same() -> bool:
        async with AsyncClient(up.url, up.token) as other:
            return (await other.dry_run(["true"], resources=SMALL)).starts

    assert asyncio.run(the_same())
    assert [job.id for job in client.jobs()] == before
    with pytest.raises(Problem) as refusal:
        client.dry_run(["true"], resources={"cpu": -1})
    assert refusal.value.field == "stages[0].resources.cpu"


def test_many(client: Client) -> None:
    documents = [{"name": f"m{number}", "stages": [{"command": ["true"], "resources": SMALL}]} for number in range(30)]
    items = client.submit_many([*documents, {"stages": 5}])
    assert [item.problem is None for item in items] == [True] * 30 + [False]
    assert all(client.wait(item.job, timeout=SECONDS).state == "succeeded" for item in items[:30])


def test_pools(up: Up, client: Client) -> None:
    assert client.pools() == []
    pool = {"node": {"cpu": 1}, "max": 3, "provider": {"command": ["false"]}}
    client.set_partition("default", {"pools": {"w": pool}, "pool_pause": "1h"})
    assert client.pause_pool("w") == ""
    assert client.pool("w").paused
    assert client.resume_pool("w") == ""
    assert [(each.name, each.paused) for each in client.pools()] == [("w", False)]
    assert client.scale_pool("w", 1) == "nodes ordered: 1"
    assert set(client.usage().pools) == {"w"}
    with pytest.raises(Problem) as refusal:
        client.scale_pool("w", 9)
    assert (refusal.value.status, refusal.value.field) == (422, "nodes")

    async def the_same() -> None:
        other = AsyncClient(up.url, up.token)
        assert [each.name for each in await other.pools()] == ["w"]
        assert await other.pause_pool("w") == "" and (await other.pool("w")).paused
        assert await other.resume_pool("w") == ""
        assert await other.scale_pool("w", 2) in ("nodes ordered: 1", "nodes ordered: 2")
        assert (await other.usage()).ready
        await other.close()

    asyncio.run(the_same())
    client.set_partition("default", {})


def test_holds(up: Up, client: Client) -> None:
    job = client.submit(["true"], resources=SMALL)
    assert client.holds() == []
    assert client.release_hold(job) == "no nodes are held for it"

    async def the_same() -> None:
        other = AsyncClient(up.url, up.token)
        assert await other.holds() == []
        assert await other.release_hold(job, "main") == "no nodes are held for it"
        await other.close()

    asyncio.run(the_same())


def test_no_server_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", "x") as client, pytest.raises(Problem) as problem:
        client.jobs().__next__()
    assert (problem.value.status, problem.value.code) == (0, "unreachable")


class Cutting:
    """A proxy that cuts the first connections after the request has reached the server."""

    def __init__(self, url: str, cuts: int) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._to = (host, int(port))
        self.cuts = cuts
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                near, _ = self._socket.accept()
            except OSError:
                return
            with near, socket.create_connection(self._to) as far:
                far.sendall(self._request(near))
                answer = far.recv(65536)
                if self.cuts:
                    self.cuts -= 1
                    continue
                near.sendall(answer)
                far.settimeout(0.3)
                try:
                    while more := far.recv(65536):
                        near.sendall(more)
                except TimeoutError:
                    pass

    def _request(self, near: socket.socket) -> bytes:
        found = near.recv(65536)
        while b"\r\n\r\n" not in found or (b"POST" in found and not found.endswith(b"}")):
            found += near.recv(65536)
        return found

    def close(self) -> None:
        self._socket.close()


def test_an_answer_that_is_lost_on_the_way_changes_nothing_twice(up: Up, client: Client) -> None:
    cutting = Cutting(up.url, cuts=3)
    try:
        with Client(cutting.url, up.token) as through:
            job = through.submit(["true"], resources=SMALL, name="once")
        assert cutting.cuts == 0
    finally:
        cutting.close()
    assert [each.id for each in client.jobs(name="once")] == [job]


def test_asyncio(up: Up) -> None:
    async def story() -> None:
        async with AsyncClient(up.url, up.token) as client:
            names = await asyncio.gather(*(client.submit(["echo", str(n)], resources=SMALL) for n in range(5)))
            ended = await asyncio.gather(*(client.wait(name, timeout=SECONDS) for name in names))
            assert [each.state for each in ended] == ["succeeded"] * 5
            assert b"".join([part async for part in client.log(names[3])]) == b"3\n"
            with pytest.raises(Problem):
                await client.job("none")
            assert names[0] in [job.id async for job in client.jobs()]

    asyncio.run(story())


def test_closing_ends_what_is_being_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "token")
        received: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

        def read() -> None:
            try:
                for part in client.log("1", follow=True):
                    received.put(part)
            except Problem as problem:
                received.put(problem)

        threading.Thread(target=read, daemon=True).start()
        link, _ = listener.accept()
        with link:
            link.recv(65536)
            link.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
            assert received.get(timeout=SECONDS) == b"hello"
            client.close()  # and nothing more ever comes
            assert isinstance(received.get(timeout=SECONDS), Problem)


# -- functions ---------------------------------------------------------------------------------------------------


# -- both clients ------------------------------------------------------------------------------------------------


def methods_of(kind: type) -> dict[str, inspect.Signature]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method) for name, method in methods if not name.startswith("_")}


def shown(signature: inspect.Signature) -> list[tuple[str, str, str]]:
    """Return the parameters with their types and defaults; two lambdas are never equal."""
    return [
        (str(entry).partition(" = ")[0], str(entry.kind), "" if callable(entry.default) else repr(entry.default))
        for entry in signature.parameters.values()
    ]


def test_the_asynchronous_client_has_every_method() -> None:
    plain, of_asyncio = methods_of(Client), methods_of(AsyncClient)
    assert list(plain) == list(of_asyncio)
    for name, signature in plain.items():
        assert shown(signature) == shown(of_asyncio[name]), name
        result = str(of_asyncio[name].return_annotation).replace("AsyncIterator", "Iterator")
        assert str(signature.return_annotation) == result, name
        for kind in (Client, AsyncClient):
            assert (getattr(kind, name).__doc__ or "").strip(), f"{kind.__name__}.{name} has no description"


def test_watch(up: Up, client: Client) -> None:
    jobs: list[str] = []
    seen: list[str] = []
    for event in client.watch(began=lambda: jobs.append(client.submit(["true"], resources=SMALL))):
        if event.job == jobs[0]:
            seen.append(event.what)
            if event.what == "state":
                break
    assert [what for what in seen if what != "running"] == ["submitted", "placed", "ended", "state"]

    async def story() -> str:
        async with AsyncClient(up.url, up.token) as waiting:
            job = await waiting.submit(["sleep", "600"], resources=SMALL)
            loop, kills = asyncio.get_running_loop(), []
            async for event in waiting.watch(job, began=lambda: kills.append(loop.create_task(waiting.kill(job)))):
                if event.what == "state" and event.state == "killed":
                    return event.reason
        return ""

    assert asyncio.run(story()).startswith("killed by ")


def test_lists_of_the_asynchronous_client(up: Up) -> None:
    async def story() -> None:
        async with AsyncClient(up.url, up.token) as waiting:
            job = await waiting.submit(["true"], resources=SMALL)
            await waiting.wait(job, timeout=SECONDS)
            assert [node.name async for node in waiting.nodes()] == ["box"]
            assert [task.state async for task in waiting.tasks(job)] == ["succeeded"]
            assert job in [past.id async for past in waiting.history()]
            assert await waiting.partitions() == ["default"] and await waiting.managers() == []
            assert (await waiting.lanes()).ready and await waiting.promises() == []
            assert [attempt.node for attempt in (await waiting.attempts(job)).attempts] == ["box"]

    asyncio.run(story())


def test_a_compressed_answer_is_read(up: Up, client: Client) -> None:
    assert client.send(op.Map()).names == ["box"]

    async def ask() -> list[str]:
        async with AsyncClient(up.url, up.token) as waiting:
            return (await waiting.send(op.Map())).names

    assert asyncio.run(ask()) == ["box"]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_cannot_be_a_server_or_a_token_is_refused(kind: type[Client | AsyncClient]) -> None:
    with pytest.raises(Problem, match="ftp://one is not the address of a server; write http://HOST:PORT or https"):
        kind("ftp://one", "fl_x")
    with pytest.raises(Problem, match="is not the address of a server"):
        kind("http://one:port", "fl_x")
    with pytest.raises(Problem, match="the token has characters that no token has"):
        kind("https://one", "fl_x\r\nhost: two")


def test_the_server_that_leads_is_found_among_several(up: Up) -> None:
    urls = f"http://127.0.0.1:1, {up.url}/,http://127.0.0.1:2"
    with Client(urls, up.token) as client:
        assert client.partitions()
        assert client.url == f"http://127.0.0.1:1,{up.url},http://127.0.0.1:2"
        job = client.submit(["echo", "hello"], resources=SMALL)
        assert client.wait(job, timeout=SECONDS).state == "succeeded"
        assert b"".join(client.log(job)) == b"hello\n"

    async def ask() -> str:
        async with AsyncClient(urls, up.token) as client:
            return (await client.job(job)).state

    assert asyncio.run(ask()) == "succeeded"


def test_a_list_of_servers_is_checked_as_a_whole() -> None:
    with pytest.raises(Problem, match="http://elsewhere is another machine") as problem:
        Client("https://one,http://elsewhere", "fl_x")
    assert problem.value.code == "insecure"
    with pytest.raises(Problem, match="ftp://two is not the address of a server"):
        Client("http://127.0.0.1:1,ftp://two", "fl_x")
