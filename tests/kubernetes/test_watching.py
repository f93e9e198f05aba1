"""The watch loop and actions on recorded answers: cuts, bookmarks, 404, 409, 410 and 429. No cluster is needed."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from fairlead.client.async_pool import Address, Http, Reply
from fairlead.kubernetes import reflector
from fairlead.kubernetes.actions import Performer, Target
from fairlead.kubernetes.objects import Pod
from fairlead.kubernetes.reflector import Follower
from tests.kubernetes.recorded import Answer, Recorded, listed, pod, refused, watched, with_answers
from tests.live import PROGRAM, SECONDS

END = watched(stays_open=True)


class Seen:
    """What a follower hands on."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        self.told: list[str] = []
        self.notes: list[str] = []

    def put(self, found: Pod) -> None:
        self.pods[found.metadata.uid] = found.metadata.resource_version
        self.told.append(f"+{found.metadata.name}@{found.metadata.resource_version}")

    def drop(self, uid: str) -> None:
        del self.pods[uid]
        self.told.append(f"-{uid[4:]}")


def follow(answers: Sequence[Answer], until: Callable[[Seen], bool], optional: bool = False) -> tuple[Seen, Recorded]:
    """Follow pods on recorded answers until a condition holds and all answers were played."""
    seen = Seen()
    result: list[Recorded] = []

    async def act(recorded: Recorded, http: Http) -> None:
        follower = Follower(
            http,
            "/api/v1/pods",
            msgspec.json.Decoder(Pod).decode,
            seen.put,
            seen.drop,
            note=lambda path, problem: seen.notes.append(problem),
            optional=optional,
        )
        running = asyncio.create_task(follower.run())
        while recorded.left or not until(seen):
            await asyncio.sleep(0.005)
            assert not running.done(), running.exception()
        running.cancel()
        result.append(recorded)

    asyncio.run(with_answers(answers, act))
    return seen, result[0]


def asked(recorded: Recorded) -> list[dict[str, list[str]]]:
    return [parse_qs(urlsplit(request.split(" ")[1]).query) for request, _ in recorded.requests]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "LONGEST_PAUSE", 0.02)


def test_a_list_in_pages_and_then_the_watch() -> None:
    answers = [
        listed(7, pod("a", 5), token="more"),
        listed(7, pod("b", 6)),
        watched(("ADDED", pod("c", 8)), ("MODIFIED", pod("a", 9)), ("DELETED", pod("b", 10)), stays_open=True),
    ]
    seen, recorded = follow(answers, lambda seen: "-b" in seen.told)
    assert seen.told == ["+a@5", "+b@6", "+c@8", "+a@9", "-b"]
    first, second, third = asked(recorded)
    assert "continue" not in first and second["continue"] == ["more"]
    assert third["resourceVersion"] == ["7"] and third["allowWatchBookmarks"] == ["true"]


def test_a_cut_watch_resumes_after_the_last_version() -> None:
    bookmark = {"metadata": {"resourceVersion": "40", "creationTimestamp": None}, "spec": {"containers": None}}
    answers = [
        listed(7, pod("a", 5)),
        watched(("ADDED", pod("b", 20)), cut=True),
        watched(("BOOKMARK", bookmark)),
        watched(("DELETED", pod("a", 41)), stays_open=True),
    ]
    seen, recorded = follow(answers, lambda seen: "-a" in seen.told)
    assert seen.told == ["+a@5", "+b@20", "-a"]
    assert [query.get("resourceVersion") for query in asked(recorded)] == [None, ["7"], ["20"], ["40"]]


@pytest.mark.parametrize("in_watch", [True, False])
def test_a_version_that_is_too_old_makes_a_new_list(in_watch: bool) -> None:
    gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
    answers = [
        listed(7, pod("a", 5), pod("b", 6)),
        watched(("ERROR", gone)) if in_watch else refused(410, "Expired"),
        listed(90, pod("b", 80), pod("c", 81)),
        END,
    ]
    seen, recorded = follow(answers, lambda seen: "-a" in seen.told)
    assert seen.told == ["+a@5", "+b@6", "+b@80", "+c@81", "-a"]
    assert asked(recorded)[-1]["resourceVersion"] == ["90"]


def test_a_page_that_is_too_old_begins_the_list_again() -> None:
    answers = [listed(7, pod("a", 5), token="more"), refused(410, "Expired"), listed(9, pod("b", 8)), END]
    seen, _ = follow(answers, lambda seen: "+b@8" in seen.told)
    assert set(seen.pods) <= {"uid-a", "uid-b"} and "uid-b" in seen.pods


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_asked_again(status: int) -> None:
    answers = [
        refused(status, "busy", "Retry-After: 0"),
        listed(7),
        refused(status, "busy"),
        watched(("ADDED", pod("a", 8)), stays_open=True),
    ]
    seen, recorded = follow(answers, lambda seen: bool(seen.told))
    assert seen.told == ["+a@8"] and len(recorded.requests) == 4
    assert any("busy" in note for note in seen.notes)


def test_an_unknown_error_in_a_watch_reads_the_list_again() -> None:
    answers = [
        listed(7, pod("a", 5)),
        watched(("ERROR", {"kind": "Status", "code": 500, "message": "etcd leader changed"})),
        listed(9, pod("a", 5)),
        END,
    ]
    seen, _ = follow(answers, lambda seen: len(seen.told) == 2)
    assert seen.told == ["+a@5", "+a@5"]


def test_a_pod_with_the_same_name_is_another_pod() -> None:
    again = pod("a", 9)
    again["metadata"]["uid"] = "uid-a2"
    seen, _ = follow([listed(7, pod("a", 5)), refused(410), listed(9, again), END], lambda seen: "-a" in seen.told)
    assert list(seen.pods) == ["uid-a2"]


def test_a_kind_that_the_server_does_not_know_has_no_objects() -> None:
    seen, _ = follow([refused(404)], lambda seen: True, optional=True)
    assert seen.told == []


# -- actions ---------------------------------------------------------------------------------------------------------


def perform(answers: Sequence[Answer], *targets: Target) -> tuple[list[str], Recorded]:
    """Carry out actions on recorded answers, one at a time; return how they ended."""
    ends: list[str] = []
    result: list[Recorded] = []

    async def act(recorded: Recorded, http: Http) -> None:
        performer = Performer(
            http,
            lambda target: ends.append(f"done {target.verb} {target.name}"),
            lambda target, problem: ends.append(f"refused {target.verb} {target.name}: {problem}"),
            at_once=1,
        )
        for target in targets:
            performer.add(target)
        running = asyncio.create_task(performer.run())
        while recorded.left or len(ends) < len(targets):
            await asyncio.sleep(0.005)
            assert not running.done(), running.exception()
        running.cancel()
        result.append(recorded)

    asyncio.run(with_answers(answers, act))
    return ends, result[0]


def bind(name: str) -> Target:
    return Target("bind", "ns", name, f"uid-{name}", None, "n1")


def test_connections_are_opened_ahead() -> None:
    async def act(recorded: Recorded, http: Http) -> None:
        await http.open(3)
        await asyncio.gather(*(http.call("GET", "/") for _ in range(3)))
        await http.open(3)
        assert recorded.connections == 3
        unreachable = Http(Address("127.0.0.1", 1), 4)
        await unreachable.open(3)  # the calls say what is wrong

    asyncio.run(with_answers([listed(1)] * 3, act))


class HeldHttp(Http):
    """A client whose calls are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__(Address("127.0.0.1", 1))
        self.held: dict[str, asyncio.Future[Reply]] = {}

    async def call(self, method: str, path: str, *arguments: Any, **more: Any) -> Reply:
        name = path.split("/")[-2]
        self.held[name] = asyncio.get_running_loop().create_future()
        return await self.held[name]

    async def answer(self, *names: str) -> list[str]:
        """Answer calls, and return those that wait for an answer then."""
        for name in names:
            self.held.pop(name).set_result(Reply(201, b"{}"))
        for _ in range(10):
            await asyncio.sleep(0)
        return list(self.held)


def test_the_bindings_of_a_gang_begin_together() -> None:
    async def act() -> None:
        http = HeldHttp()
        performer = Performer(http, lambda target: None, lambda target, problem: None, at_once=4)
        for name in ("a0", "a1", "a2", "b0", "b1", "b2", "c", "d0", "d1", "d2", "d3", "d4", "e"):
            target = bind(name)
            target.gang = name[0] if name[1:] else ""
            performer.add(target)
        running = asyncio.create_task(performer.run())
        assert await http.answer() == ["a0", "a1", "a2"]  # one more may begin, but not three
        assert await http.answer("a1") == ["a0", "a2"]
        assert await http.answer("a0") == ["a2", "b0", "b1", "b2"]
        assert await http.answer("b0") == ["a2", "b1", "b2", "c"]
        assert await http.answer("a2", "b1", "b2") == ["c"]  # the next gang has more than may be under way
        assert await http.answer("c") == ["d0", "d1", "d2", "d3"]
        assert await http.answer("d0") == ["d1", "d2", "d3", "d4"]
        assert await http.answer("d1") == ["d2", "d3", "d4", "e"]
        assert performer.waiting() == 0
        running.cancel()

    asyncio.run(act())


def test_few_gangs_are_under_way_at_once() -> None:
    """With more calls under way the API server is no faster, and the bindings of a gang lie further apart."""

    async def act() -> None:
        http = HeldHttp()
        performer = Performer(http, lambda target: None, lambda target, problem: None)
        for gang in "abc":
            for number in range(8):
                target = bind(f"{gang}{number}")
                target.gang = gang
                performer.add(target)
        running = asyncio.create_task(performer.run())
        assert {name[0] for name in await http.answer()} == {"a", "b"}
        assert {name[0] for name in await http.answer(*(f"a{number}" for number in range(8)))} == {"b", "c"}
        running.cancel()

    asyncio.run(act())


def test_a_binding_names_node_and_uid() -> None:
    ends, recorded = perform([Answer(201, [{}])], bind("a"))
    assert ends == ["done bind a"]
    ((request, body),) = recorded.requests
    assert request == "POST /api/v1/namespaces/ns/pods/a/binding"
    sent = msgspec.json.decode(body)
    assert (sent["target"]["name"], sent["metadata"]["uid"]) == ("n1", "uid-a")


def test_a_binding_is_repeated_after_429_and_after_a_cut() -> None:
    cut = Answer(201, [], cut=True)
    ends, recorded = perform(
        [
            refused(429, "slow down", "Retry-After: 0"),
            cut,
            refused(409, "already bound"),
            Answer(200, [pod("a", 9, nodeName="n1")]),
        ],
        bind("a"),
    )
    assert ends == ["done bind a"]
    assert [request.split(" ")[0] for request, _ in recorded.requests] == ["POST", "POST", "POST", "GET"]


def test_a_binding_that_is_refused_is_told() -> None:
    ends, _ = perform([refused(422, "the node is gone"), Answer(201, [{}])], bind("a"), bind("b"))
    assert ends == ["refused bind a: the node is gone", "done bind b"]


def test_a_conflict_over_an_unbound_pod_is_a_refusal() -> None:
    ends, _ = perform([refused(409, "it has gates"), Answer(200, [pod("a", 9)])], bind("a"))
    assert ends == ["refused bind a: it has gates"]


def test_a_pod_that_is_gone_needs_no_binding() -> None:
    ends, _ = perform([refused(404, "not found")], bind("a"))
    assert ends == ["done bind a"]


def test_an_eviction_waits_for_its_budget() -> None:
    evict = Target("evict", "ns", "a", "uid-a", None)
    ends, recorded = perform(
        [refused(429, "disruption budget"), refused(429, "disruption budget"), Answer(201, [{}])], evict
    )
    assert ends == ["done evict a"]
    assert {request for request, _ in recorded.requests} == {"POST /api/v1/namespaces/ns/pods/a/eviction"}


@pytest.mark.parametrize(
    ("listen", "said"), [("127.0.0.1:{}", "the port is used by another program"), ("127.0.0.1:x", "invalid literal")]
)
def test_an_address_that_cannot_be_listened_on_is_one_line(tmp_path: Path, listen: str, said: str) -> None:
    (tmp_path / "kubeconfig").write_text(
        "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
        'clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]\n'
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = listen.format(taken.getsockname()[1])
        done = subprocess.run(
            [PROGRAM, "kubernetes", "--kubeconfig", tmp_path / "kubeconfig", "--lease", "none", "--listen", listen],
            env={**os.environ, "FAIRLEAD_URL": "http://127.0.0.1:9", "FAIRLEAD_TOKEN": "t"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"fairlead: error: --listen {listen}: {said}"), done.stderr
    assert "Traceback" not in done.stderr
