"""Slow requests of one user do not keep other users waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.http.serving import SECONDS, Serving

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
