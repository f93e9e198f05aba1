"""The ends of jobs are told: webhooks and mail, signed, tried again, and not to the network of the server."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

import fairlead
from fairlead.core.documents import check_target
from fairlead.core.errors import Refused
from fairlead.history.recorder import JobRow
from fairlead.history.store import History
from fairlead.http.middleware import Bounds
from fairlead.server import notices
from fairlead.server.notices import Door, Notices, Undelivered, signature
from tests.http.serving import serving
from tests.live import Up
from tests.until import until

JOB = JobRow("default", 7, "7", "train", "ann", "root.ml", "failed", "task main[0] failed", 1, 2_000_001, {"failed": 1})


class Receiver:
    """A web server that keeps what it gets, and answers with the next of `answers`, or 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "10.1.2.3", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("168.63.129.16", "[fec0::1]", "[::7f00:1]", "[::ffff:0:7f00:1]", "[64:ff9b:1::7f00:1]", "2130706433"),
        *("[::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
    ],
)
def test_webhooks_do_not_reach_the_network_of_the_server(host: str) -> None:
    with pytest.raises(Undelivered, match="is in the network of the server") as refusal:
        Door().deliver(f"http://{host}:9/", JOB, "")
    assert refusal.value.final


def test_webhooks_are_signed_and_follow_no_redirect(receiver: Receiver) -> None:
    door = Door(["127.0.0.0/8"])
    door.deliver(receiver.url, JOB, "s3cret")
    [(headers, body)] = receiver.got
    at = int(headers["Fairlead-Signature"].partition(",")[0].removeprefix("t="))
    assert hmac.compare_digest(headers["Fairlead-Signature"], signature("s3cret", at, body))
    told = json.loads(body)
    assert (told["job"], told["state"], told["tasks"]) == ("7", "failed", {"failed": 1})
    assert told["text"] == "Job 7 (train) of ann failed: task main[0] failed"
    for status, final in ((302, True), (404, True), (500, False)):
        receiver.answers = [status]
        with pytest.raises(Undelivered, match=f"it answered {status}") as refusal:
            door.deliver(receiver.url, JOB, "")
        assert refusal.value.final == final
    assert "Fairlead-Signature" not in receiver.got[-1][0]
    Door(["localhost"]).deliver(receiver.url.replace("127.0.0.1", "localhost"), JOB, "")


@pytest.mark.parametrize(
    "url", ["http://a:99999/", "http://a:b/", "http://[::1", "http://a..b/", f"http://{'a' * 64}/"]
)
def test_a_malformed_address_is_refused_and_would_end_no_other_notices(url: str) -> None:
    with pytest.raises(Refused, match="notify"):
        check_target(url, "notify[0]")
    with pytest.raises(Undelivered, match="malformed") as refusal:
        Door().deliver(url, JOB, "")
    assert refusal.value.final


def test_a_receiver_that_sends_a_byte_now_and_then_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            link, _ = listener.accept()
            with link, suppress(OSError):
                for _ in range(200):
                    link.sendall(b"H")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        with pytest.raises(Undelivered):
            Door(["127.0.0.0/8"]).deliver(f"http://127.0.0.1:{listener.getsockname()[1]}/", JOB, "")
        assert time.monotonic() - began < 8
        thread.join()


def test_receivers_of_one_user_that_do_not_answer_keep_no_other_user_waiting(tmp_path: Path) -> None:
    """Nor do they take the threads of other work of the server."""
    history = History(tmp_path / "history")
    history.put([replace(JOB, number=number, notify=("https://x/",)) for number in range(2_000)], [])
    history.put([replace(JOB, number=2_000, user="bob", notify=("https://x/",))], [])
    history.flush()
    answers = threading.Event()
    told: list[str] = []

    class Slow(Door):
        def deliver(self, target: str, job: JobRow, secret: str) -> None:
            if job.user == "ann":
                answers.wait(60)
            told.append(job.user)

    async def tell() -> None:
        teller = Notices(history, lambda: ["default"], lambda user: "", Slow(), lambda event, fields: None)
        task = asyncio.create_task(teller.run())
        try:
            async with asyncio.timeout(30):
                while "bob" not in told or len(history.untold("default", 3_000)) > 2_000:
                    await asyncio.sleep(0.05)
                assert await asyncio.to_thread(lambda: 1) == 1
        finally:
            answers.set()
            task.cancel()

    asyncio.run(tell())
    assert told[0] == "bob"
    history.close()


def test_a_user_sends_a_bounded_number_of_mails(tmp_path: Path) -> None:
    history, told, logged = History(tmp_path / "history"), Counter[str](), Counter[str]()
    history.put([replace(JOB, number=number, notify=("mailto:eve@example.org",)) for number in range(300)], [])
    history.put([replace(JOB, number=300, user="bob", notify=("mailto:bob@example.org",))], [])
    history.flush()

    class Counting(Door):
        def deliver(self, target: str, job: JobRow, secret: str) -> None:
            told[job.user] += 1

    def log(event: str, fields: dict[str, object]) -> None:
        logged[event] += 1

    async def tell() -> None:
        teller = Notices(history, lambda: ["default"], lambda user: "", Counting(), log)
        async with asyncio.timeout(60):
            while history.untold("default", 1):
                await teller.tell()
                await asyncio.sleep(0.01)

    asyncio.run(tell())
    assert told == {"ann": notices.MAILS, "bob": 1}
    assert logged == {"end told": notices.MAILS + 1, "end not told": 300 - notices.MAILS}
    history.close()


def test_mail_goes_to_allowed_domains(tmp_path: Path) -> None:
    with serving(tmp_path, bounds=Bounds(mail_domains=("example.org",))) as site, site.as_user("ann") as ann:
        document = {"stages": [{"name": "main", "command": ["true"]}]}
        allowed = ["mailto:ann@Example.org", "https://example.com/"]
        assert ann.post("/api/v1/jobs", json={**document, "notify": allowed}).status_code == 201
        refused = ann.post("/api/v1/jobs", json={**document, "notify": ["mailto:ann@example.com"]})
        assert refused.status_code == 403
        assert "is not allowed here; use an address of example.org" in refused.json()["detail"]


def test_the_end_of_a_job_is_told_also_after_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    mail = tmp_path / "sendmail"
    mail.write_text(
        f"#!/bin/sh\ncat > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/mail\n"
        f'echo "$@" > {tmp_path}/new\nmv {tmp_path}/new {tmp_path}/arguments\n'
    )
    mail.chmod(0o755)
    options = ("--name", "box", "--resource", "cpu=4", "--notify-allow", "127.0.0.1/32", "--sendmail", str(mail))
    up = Up(tmp_path / "data", *options)
    try:
        up.until("node", "list", said="box")
        up.run("secret", "set", "webhook", text="key")
        up.run("run", "--notify", receiver.url, "--notify-on", "failure", "--", "true")
        receiver.answers = [503] * 3
        targets = ["--notify", receiver.url, "--notify", "mailto:ann@example.org"]
        job = up.run("submit", "--name", "bad", *targets, "--", "sh", "-c", "exit 3").strip()
        assert up.ask("wait", job).returncode == 1
        until(lambda: receiver.got and (tmp_path / "arguments").exists())
        up.interrupt()
        receiver.answers = []
        up.start()
        until(lambda: len(receiver.got) > 1)
        headers, body = receiver.got[-1]
        assert json.loads(body)["job"] == job and headers["Fairlead-Signature"]
        assert (tmp_path / "arguments").read_text() == "-i -- ann@example.org\n"
        assert f"Subject: Job {job} (bad) failed" in (tmp_path / "mail").read_text()
        assert all(json.loads(body)["job"] == job for _, body in receiver.got)
        wrong = up.ask("submit", "--notify", "ftp://x", "--", "true")
        assert wrong.returncode == 1 and "write https://host/path or mailto:ann@example.org" in wrong.stderr
    finally:
        up.close()


def test_the_first_of_several_jobs_and_a_command_here(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        up.until("node", "list", said="box")
        slow, quick = (up.run("submit", "--", "sleep", seconds).strip() for seconds in ("600", "0.2"))
        line = f"echo $FAIRLEAD_JOB $FAIRLEAD_STATE > {tmp_path}/told"
        assert up.run("wait", "--any", slow, quick, "--then", line) == f"{quick}: succeeded\n"
        assert (tmp_path / "told").read_text() == f"{quick} succeeded\n"
        late = up.ask("wait", "--any", slow, "--timeout", "1")
        assert late.returncode == 124 and "none of 1 jobs has ended" in late.stderr
        with fairlead.Client(up.url, up.token) as client:
            client.kill(slow)
    finally:
        up.close()
