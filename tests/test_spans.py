"""Spans of jobs: a real server with an agent sends them to a collector; and what the observer makes of cycles."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Received
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from prometheus_client import CollectorRegistry

from fairlead.core.commands import Origin, Submit
from fairlead.core.documents import parse_job
from fairlead.testing import World
from fairlead.views import spans
from fairlead.views.spans import Span, Spans, SpanSender
from tests.collector import Collector, fields_of
from tests.live import PROGRAM, Up
from tests.views.test_metrics import rows_of_the_page

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def of_job(found: list[Received], job: str) -> dict[str, Received]:
    return {span.name: span for span in found if fields_of(span)["fairlead.job"] == job}


def test_from_submit_to_running(tmp_path: Path, collector: Collector) -> None:
    up = Up(tmp_path / "data", "--name", "box", "--resource", "cpu=1", "--traces", collector.url)
    try:
        headers = {"authorization": f"Bearer {up.token}", "traceparent": PARENT}
        with httpx.Client(base_url=f"{up.url}/api/v1", headers=headers, timeout=60) as client:
            document = {"id": "first", "stages": [{"name": "main", "command": ["sleep", "600"]}]}
            client.post("/jobs", json=document).raise_for_status()
            jobs = [{**document, "id": "second"}, {**document, "id": "third"}]
            batch = client.post("/jobs/batch", json={"jobs": jobs}, headers={"traceparent": UNSAMPLED})
            assert [item["problem"] for item in batch.json()["items"]] == [None, None]
            own = {"id": "own", "stages": [{"name": "main", "command": ["true"]}]}
            client.post("/jobs", json=own, headers={"traceparent": "nonsense"}).raise_for_status()
            collector.wait(lambda found: "job" in of_job(found, "first"))
            for job in ("second", "third", "first"):
                client.post(f"/jobs/{job}/kill").raise_for_status()
            found = collector.wait(lambda found: "job" in of_job(found, "own"))
            assert client.get(f"{up.url}/metrics").text.count("fairlead_spans_sent_total") >= 1
    finally:
        up.close()
    assert collector.services == {"fairlead"}

    first = of_job(found, "first")
    assert set(first) == {"job", "submit", "waiting", "launch"}
    assert {span.trace_id.hex() for span in first.values()} == {PARENT.split("-")[1]}
    assert first["job"].parent_span_id.hex() == PARENT.split("-")[2]
    children = [span for name, span in first.items() if name != "job"]
    assert {span.parent_span_id for span in children} == {first["job"].span_id}
    assert min(span.start_time_unix_nano for span in children) == first["job"].start_time_unix_nano
    assert first["launch"].end_time_unix_nano == first["job"].end_time_unix_nano
    assert first["waiting"].end_time_unix_nano == first["launch"].start_time_unix_nano
    assert fields_of(first["launch"])["fairlead.nodes"] == ["box"]
    assert fields_of(first["job"])["fairlead.queue"] == "root.default"

    own_spans = of_job(found, "own")
    assert own_spans["job"].trace_id != first["job"].trace_id and not own_spans["job"].parent_span_id
    assert fields_of(own_spans["waiting"])["fairlead.reason"] == "0 of 1 fit now"
    assert not of_job(found, "second"), "its caller records no spans"


def test_an_address_that_is_none(tmp_path: Path) -> None:
    for wrong in ("collector:4318", "ftp://127.0.0.1/", "http://"):
        done = subprocess.run(
            [PROGRAM, "up", "--port", "0", "--data", str(tmp_path / "data"), "--traces", wrong],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done
        assert f"--traces: {wrong} is not an address such as http://127.0.0.1:4318/v1/traces" in done.stderr


# -- the observer ------------------------------------------------------------------------------------------------


class Observed(World):
    """A world with one node of two CPUs, and the spans of its jobs."""

    def __init__(self) -> None:
        self.sent: list[Span] = []
        self.left_out = 0
        super().__init__(observers=[Spans(self.sent.append, self._leave_out)])
        self.node("n1", cpu=2)

    def _leave_out(self) -> None:
        self.left_out += 1


def test_a_job_that_never_runs_has_a_span_with_its_end() -> None:
    world = Observed()
    job = world.submit(stages=[{"name": "w", "resources": {"cpu": 4}}])
    world.cycle()
    world.kill(job)
    world.cycle()
    (span,) = world.sent
    assert (span.name, span.parent) == ("job", 0)
    assert span.problem.startswith("killed")


def test_spans_of_a_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "CHILDREN", 3)
    world = Observed()
    job = world.submit(stages=[{"name": "w", "array": 20, "resources": {"cpu": 1}}])
    world.cycle()
    for index in range(20):
        world.finish(job, "w", index)
        world.cycle()
    names = [span.name for span in world.sent]
    assert sorted(names) == ["job", "launch", "launch", "launch"]
    assert len({span.id for span in world.sent}) == 4


def test_jobs_with_spans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "TRACED", 2)
    world = Observed()
    jobs = [world.submit(stages=[{"name": "w", "resources": {"cpu": 0.5}}]) for _ in range(3)]
    world.cycle()
    assert world.left_out == 1
    assert {span.fields["fairlead.job"] for span in world.sent} == set(jobs[:2])


def test_a_restart_continues_the_trace_of_a_job() -> None:
    world = Observed()
    stages = [{"name": "w", "resources": {"cpu": 2}}]
    first = world.submit(stages=stages)
    world.cycle()
    world.cycle()
    assert [span.name for span in world.sent] == ["waiting", "launch", "job"]
    trace = world.sent[0].trace
    second = world.submit(stages=stages)
    world.cycle()
    world.restart()
    world.sent.clear()
    world.finish(first)
    world.cycle()
    world.cycle()
    assert [(span.name, span.fields["fairlead.job"]) for span in world.sent] == [
        ("waiting", second),
        ("launch", second),
        ("job", second),
    ]
    assert len({span.trace for span in world.sent}) == 1 and world.sent[0].trace != trace


def test_a_repeated_submission_may_have_another_origin() -> None:
    world = Observed()
    spec = parse_job({"user": "ann", "stages": [{"name": "w"}]})
    answers = [
        world.cluster.writers["default"]
        .cycle([Submit(spec=spec, user="ann", key="once", origin=Origin(at, PARENT))], world.now)
        .answers[0]
        for at in (1, 2)
    ]
    assert answers[0] == answers[1]
    assert len(world.partition().jobs) == 1


# -- the sender --------------------------------------------------------------------------------------------------


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def test_spans_beyond_the_queue_and_of_a_dead_collector_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spans, "WAITING", 5)
    monkeypatch.setattr(spans, "PAUSE", 600.0)
    monkeypatch.setattr(spans, "SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    registry = CollectorRegistry()
    sender = SpanSender(f"http://127.0.0.1:{port}/v1/traces", "0", registry)
    for number in range(1, 9):
        sender.send(Span("job", 1, number, 0, False, 0, 1, {}))
    assert value(registry, "fairlead_spans_dropped_total", why="full") == 3
    sender.close()
    assert value(registry, "fairlead_spans_dropped_total", why="failed") == 5
    assert value(registry, "fairlead_spans_sent_total") == 0


def test_the_page_has_its_metrics(collector: Collector) -> None:
    registry = CollectorRegistry()
    SpanSender(collector.url, "0", registry).close()
    defined = [
        [f"{family.name}_total", family.type, "why" if "dropped" in family.name else "", family.documentation]
        for family in registry.collect()
    ]
    assert [row for row in rows_of_the_page() if row[0].startswith("fairlead_spans_")] == defined


def test_problems_are_errors_in_the_collector(collector: Collector) -> None:
    registry = CollectorRegistry()
    sender = SpanSender(collector.url, "0", registry)
    sender.send(Span("launch", 1, 2, 3, False, 0, 1, {"fairlead.job": "7"}, "node n1 refused it"))
    sender.close()
    (span,) = collector.wait(lambda found: len(found) == 1)
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "node n1 refused it")
    assert value(registry, "fairlead_spans_sent_total") == 1
