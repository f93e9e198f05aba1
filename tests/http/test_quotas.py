"""Quotas: bounds on what one user has queued and in progress, so that other users do not wait for it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import httpx

from fairlead.control.partition import REQUEST_USER
from fairlead.http.context import Request
from fairlead.http.middleware import Bounds
from fairlead.http.routes.jobs import submission
from tests.http.serving import JOB, SECONDS, Serving, serving, submit
from tests.until import until


def limited(**settings: Any) -> dict[str, Any]:
    return {"partitions": {"default": {**settings}}}


def status(client: httpx.Client, **more: Any) -> tuple[int, str]:
    answer = client.post("/api/v1/jobs", json={**JOB, **more})
    return answer.status_code, answer.json().get("detail", "")


def test_jobs_that_are_not_over(tmp_path: Path) -> None:
    with serving(tmp_path, limited(max_queued_jobs=3)) as site:
        ann, bob = site.as_user("ann"), site.as_user("bob")
        first = submit(ann)
        submit(ann)
        submit(ann)
        code, said = status(ann)
        assert code == 409
        assert said == (
            "ann has 3 jobs that are not over, and 3 are allowed; wait until some are, "
            "or have an administrator raise max_queued_jobs"
        )
        batch = ann.post("/api/v1/jobs/batch", json={"jobs": [JOB] * 2}).json()["items"]
        assert [item["problem"]["status"] for item in batch] == [409, 409]
        assert status(bob)[0] == 201  # each user has its own quota
        assert status(site.as_owner, user="ann")[0] == 201  # operators have no quota
        assert ann.post(f"/api/v1/jobs/{first}/kill").status_code == 200
        assert status(ann)[0] == 409  # the operator's counts for ann
        site.node("n1")
        submit(site.as_owner)  # when it is answered, the others were sent to the node
        site.report("2", "running")
        site.report("2", "succeeded", exit_code=0)
        assert status(ann)[0] == 201
        assert status(ann)[0] == 409
    # A restart counts what the journal has.
    with serving(tmp_path, limited(max_queued_jobs=3)) as site:
        assert status(site.as_user("ann"))[0] == 409
        assert status(site.as_user("bob"))[0] == 201


def test_a_batch_cannot_pass_the_bound_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, limited(max_queued_jobs=40)) as site:
        items = site.as_user("ann").post("/api/v1/jobs/batch", json={"jobs": [JOB] * 100}).json()["items"]
        assert sum(bool(item["job"]) for item in items) == 40
        assert len(site.as_owner.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"]) == 40


def test_bytes_that_are_not_over(tmp_path: Path) -> None:
    with serving(tmp_path, limited(max_queued_bytes="100Ki")) as site:
        ann = site.as_user("ann")
        large = {"labels": {f"l{at}": "x" * 1_000 for at in range(40)}}
        assert [status(ann, **large)[0] for _ in range(3)] == [201, 201, 409]
        assert "max_queued_bytes" in status(ann, **large)[1]
        assert status(ann)[0] == 201  # a small one still fits
        assert status(site.as_user("bob"), **large)[0] == 201


def test_what_one_job_may_have(site: Serving) -> None:
    ann = site.as_user("ann")
    stage = JOB["stages"][0]
    for more, field in (
        ({"labels": {f"l{at}": "x" for at in range(101)}}, "labels"),
        ({"labels": {"l": "x" * 1_001}}, "labels.l"),
        ({"stages": [{**stage, "selectors": {f"l{at}": "x" for at in range(101)}}]}, "stages[0].selectors"),
        ({"stages": [{**stage, "secrets": {f"S{at}": "x" for at in range(101)}}]}, "stages[0].secrets"),
        (
            {"stages": [{**stage, "selectors": {"l": ["x" * 200 + str(at) for at in range(20_000)]}}]},
            "stages[0].selectors.l",
        ),
        ({"stages": [{**stage, "command": ["x" * 100_000] * 30}]}, "stages"),
        ({"stages": [{**stage, "environment": {f"A{at}": "x" * 100_000 for at in range(30)}}]}, "stages"),
    ):
        answer = ann.post("/api/v1/jobs", json={**JOB, **more})
        assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
        assert "at most" in answer.json()["detail"]


def test_a_page_of_large_jobs_has_a_bounded_size(site: Serving) -> None:
    ann = site.as_user("ann")
    large = {"stages": [{"command": ["x" * 100_000] * 15}]}
    sent = [submit(ann, large) for _ in range(8)]
    found, cursor, pages = [], "", 0
    while True:
        answer = ann.get("/api/v1/jobs", params={"cursor": cursor})
        assert len(answer.content) < 8 * 2**20
        page = answer.json()
        found += [job["id"] for job in page["jobs"]]
        cursor, pages = page["next"], pages + 1
        if not cursor:
            break
    assert found == sent[::-1] and pages > 1


def test_a_page_of_tasks_with_large_parameters_has_a_bounded_size(site: Serving) -> None:
    """One page had 95 MB, and could have had 2 GB."""
    ann = site.as_user("ann")
    sweep = {**{f"p{at}": ["x" * 50_000] for at in range(19)}, "n": [*range(1_000)]}
    job = submit(ann, {"stages": [{"command": ["true"], "parameters": sweep}]})
    found, cursor, pages = [], "", 0
    while len(found) < 20:
        answer = ann.get(f"/api/v1/jobs/{job}/tasks", params={"cursor": cursor, "limit": 1_000})
        assert len(answer.content) < 8 * 2**20
        page = answer.json()
        found += [task["parameters"]["n"] for task in page["tasks"]]
        cursor, pages = page["next"], pages + 1
    assert found == [str(at) for at in range(len(found))] and pages > 1


def test_bodies_under_way_are_bounded_by_user(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(body=2_000, bodies=5_000)) as site:

        def half(secret: str) -> socket.socket:
            """A request of which most has arrived."""
            connection = socket.create_connection(("127.0.0.1", site.port), timeout=SECONDS)
            head = (
                f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Length: 1900\r\n"
            )
            connection.sendall(head.encode() + b"\r\n" + b"x" * 1_800)
            return connection

        ann = site.token("user", "ann")
        waiting = [half(ann) for _ in range(3)]
        refused = []
        deadline = time.monotonic() + SECONDS
        while not refused and time.monotonic() < deadline:
            for each in waiting:
                each.settimeout(0.1)
                try:
                    refused.append(each.recv(1_000))
                except TimeoutError:
                    continue
        assert len(refused) == 1 and b" 429 " in refused[0].partition(b"\r\n")[0]
        assert status(site.as_user("bob"))[0] == 201
        for each in waiting:
            each.close()
        with site.client(ann) as client:
            while status(client)[0] != 201:
                assert time.monotonic() < deadline


def test_the_bytes_that_a_user_sends_in_a_time_are_bounded(tmp_path: Path) -> None:
    """Also if what was written before is forgotten again."""
    with serving(tmp_path, bounds=Bounds(written=1_000, written_burst=5_000)) as site:
        ann, bob = site.as_user("ann"), site.as_user("bob")
        large = {**JOB, "labels": {f"l{at}": "x" * 60 for at in range(20)}}
        taken = 0
        while (answer := ann.post("/api/v1/jobs", json=large)).status_code == 201:
            taken += 1
            assert ann.post(f"/api/v1/jobs/{answer.json()['job']}/kill").status_code == 200
            assert taken < 10
        assert taken >= 2
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        detail = answer.json()["detail"]
        assert detail.startswith("body: ann has sent 5,000 bytes") and "array" in detail
        assert bob.post("/api/v1/jobs", json=large).status_code == 201
        assert ann.get("/api/v1/jobs").status_code == 200
        until(lambda: ann.post("/api/v1/jobs", json=large).status_code == 201)


def test_a_flood_of_one_user_does_not_hold_up_another(site: Serving) -> None:
    """Only a bounded number of the flood's commands run between another user's command and its answer."""
    ann, bob = site.as_user("ann"), site.as_user("bob")
    before = submit(bob)

    async def flood() -> list[str]:
        served = site.control.find("")

        def request(secret: str) -> Request:
            return Request(site.site, {"caller": site.tokens.find(secret)}, asyncio.sleep)

        slots = [served.offer(submission(request(of_ann), JOB, "", {})) for _ in range(2_000)]
        mine = served.offer(submission(request(of_bob), JOB, "", {}))
        reply: Any = await mine
        done = sum(slot.done() for slot in slots)
        for slot in slots:
            await slot
        return [reply.job, str(done)]

    of_ann, of_bob = site.token("user", "ann"), site.token("user", "bob")
    job, done = site.do(flood())
    # Two cycles of 100 commands at most: the one that had begun, and its own.
    assert int(done) <= 200 and int(job) - int(before) <= 201
    assert ann.get("/api/v1/whoami").status_code == 200


def test_many_reads_of_one_user_do_not_hold_up_another(site: Serving) -> None:
    async def story() -> list[str]:
        served = site.control.find("")
        order: list[str] = []

        async def read(user: str) -> None:
            REQUEST_USER.set(user)
            await served.read(lambda partition: order.append(user))

        async with served.thread.lock:
            reads = [asyncio.create_task(read("ann")) for _ in range(50)]
            await asyncio.sleep(0)
            reads.append(asyncio.create_task(read("bob")))
            await asyncio.sleep(0)
        await asyncio.gather(*reads)
        return order

    order = site.do(story())
    assert order.index("bob") <= 1 and len(order) == 51
