"""Slow requests of one user, or many users who ask at once, do not keep others waiting."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest

from fairlead.http.dispatch import Dispatcher
from fairlead.http.responses import Response
from tests.http.serving import SECONDS, Serving, submit

FLOOD = 60
"""Requests of one user at a time, more than the server has threads."""


@pytest.mark.parametrize("path", ["history", "usage/report"])
def test_one_user_takes_not_all_threads(site: Serving, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Eve's requests read a history that answers only when the test is over."""
    over, begun = threading.Event(), threading.Event()
    jobs, usage = site.history.jobs, site.history.usage

    def slow_jobs(partition: str, wanted: Any, *rest: Any) -> Any:
        if wanted.user == "eve":
            begun.set()
            over.wait(SECONDS)
        return jobs(partition, wanted, *rest)

    def slow_usage(report: Any) -> None:
        if report.user == "eve":
            begun.set()
            over.wait(SECONDS)
        usage(report)

    monkeypatch.setattr(site.history, "jobs", slow_jobs)
    monkeypatch.setattr(site.history, "usage", slow_usage)
    eve, ann = site.as_user("eve"), site.as_user("ann")
    with ThreadPoolExecutor(FLOOD) as flood:
        asked = [flood.submit(eve.get, f"/api/v1/{path}") for _ in range(FLOOD)]
        try:
            assert begun.wait(SECONDS)
            assert ann.put("/api/v1/secrets/mine", json={"value": "x"}).status_code == 200
            assert ann.get("/api/v1/history").status_code == 200
            assert ann.get("/api/v1/jobs/none/log").status_code == 404
            assert site.as_owner.post("/api/v1/tokens", json={"role": "user", "user": "bob"}).status_code == 201
            assert not any(each.done() for each in asked)
        finally:
            over.set()
        assert {each.result(SECONDS).status_code for each in asked} == {200}
    assert not site.site.threads._turns._users and not site.site.report_turns._users


ASKING = 20
"""Users who ask at once when their jobs start."""


def test_users_who_ask_at_once_share_a_simulation_and_see_only_their_own_jobs(
    site: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview = site.site.preview
    assert preview is not None
    exchange, asked = preview._exchange, list[int]()

    async def counted(process: Any, payload: bytes) -> bytes:
        asked.append(len(msgspec.msgpack.decode(payload)["jobs"]))
        if len(asked) == 1:
            while asked[0] + sum(len(joined.questions) for joined in preview._rounds.values()) < ASKING:
                await asyncio.sleep(0.01)  # until all others wait
        return await exchange(process, payload)

    monkeypatch.setattr(preview, "_exchange", counted)
    site.node("n")
    full = {"stages": [{"command": ["true"], "resources": {"cpu": 4}, "estimate": "10min"}]}
    site.report(submit(site.as_owner, full), "running")
    users = [site.as_user(f"user{at}") for at in range(ASKING)]
    jobs = [submit(user, full) for user in users]

    def ask(user: httpx.Client, job: str) -> httpx.Response:
        return user.post("/api/v1/eta", json={"jobs": [job]})

    with ThreadPoolExecutor(2 * ASKING) as threads:
        others = [threads.submit(ask, user, job) for user, job in zip(users, jobs[1:], strict=False)]
        own = [threads.submit(ask, user, job) for user, job in zip(users, jobs, strict=True)]
    assert {refused.result().status_code for refused in others} == {404}
    found = [answer.result().json()["etas"] for answer in own]
    assert [[eta["job"] for eta in etas] for etas in found] == [[job] for job in jobs]
    starts = [etas[0]["start"] for etas in found]
    assert None not in starts and len(set(starts)) == ASKING, "jobs that wait for each other start one by one"
    assert len(asked) == 2 and sum(asked) == ASKING, "the first, and one question for all that came meanwhile"


def test_answers_that_a_user_does_not_read_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 pages of jobs that were not read took 650 MiB."""

    async def story() -> None:
        dispatcher = Dispatcher(cast(Any, None), {}, cast(Any, None))
        page = bytes(4 << 20)

        async def answer(request: object) -> Response:
            return Response(page)

        monkeypatch.setattr(dispatcher, "_answer", answer)
        reads = asyncio.Event()
        heads: list[tuple[str, int]] = []

        async def ask(user: str) -> None:
            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    heads.append((user, message["status"]))
                else:
                    await reads.wait()

            await dispatcher({"caller": SimpleNamespace(user=user)}, cast(Any, None), send)

        asked = [asyncio.create_task(ask("ann")) for _ in range(30)] + [asyncio.create_task(ask("bob"))]
        await asyncio.sleep(0)
        assert Counter(heads) == {("ann", 200): 16, ("ann", 429): 14, ("bob", 200): 1}
        reads.set()
        await asyncio.gather(*asked)
        await ask("ann")
        assert heads[-1] == ("ann", 200)

    asyncio.run(story())
