"""Reports of use and filters of the history, at every door: HTTP, both clients and the command line."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.client import AsyncClient, Client, Problem
from tests.http.serving import Serving, submit


def end(site: Serving, client: Any, state: str = "succeeded", **job: Any) -> str:
    name = submit(client, {"stages": [{"resources": {"cpu": 2, "memory": "1Gi"}}], **job})
    site.report(name, "running")
    time.sleep(0.02)
    site.report(name, state, exit_code=0 if state == "succeeded" else 3)
    return name


def cli(site: Serving, secret: str, *words: str) -> Any:
    return CliRunner().invoke(app, words, env={"FAIRLEAD_URL": site.url, "FAIRLEAD_TOKEN": secret, "COLUMNS": "200"})


def test_rows_of_jobs_are_in_the_order_of_their_numbers(site: Serving) -> None:
    site.node("n1", cpu=16)
    ann = site.as_user("ann")
    jobs = [end(site, ann) for _ in range(11)]
    rows = site.as_owner.get("/api/v1/usage/report", params={"by": "job"}).json()["rows"]
    assert [row["group"]["job"] for row in rows] == jobs == [str(number) for number in range(1, 12)]


def test_use_of_ended_and_running_work(site: Serving) -> None:
    site.node("n1", cpu=16)
    ann, bob = site.as_user("ann"), site.as_user("bob")
    end(site, ann)
    end(site, bob, "failed")
    runs = submit(ann, {"stages": [{"count": 3, "resources": {"cpu": 1}}]})
    submit(ann, {"stages": [{"resources": {"cpu": 99}}]})  # it waits
    site.report(runs, "running")
    time.sleep(0.05)

    def ask(client: Any, **params: Any) -> Any:
        answer = client.get("/api/v1/usage/report", params=params)
        return answer.json() if answer.is_success else (answer.status_code, answer.json()["field"])

    told = ask(site.as_owner, by="user")
    rows = {row["group"]["user"]: row for row in told["rows"]}
    assert {user: (row["jobs"], row["attempts"], row["preempted"]) for user, row in rows.items()} == {
        "ann": (2, 4, 0),
        "bob": (1, 1, 0),
    }
    assert told["total"]["jobs"] == 3 and told["total"]["group"] == {} and told["since"] is None
    assert rows["bob"]["hours"]["cpu"] == pytest.approx(rows["bob"]["hours"]["memory"] * 2 / 2**30)
    assert rows["ann"]["hours"]["cpu"] * 3600 > 2 * 0.02 + 3 * 0.05 and rows["ann"]["wait_95"] >= 0
    later = ask(site.as_owner, by="user")
    assert later["until"] > told["until"]
    grown = later["rows"][0]["hours"]["cpu"] - rows["ann"]["hours"]["cpu"]  # its three tasks still run
    assert grown * 3600 == pytest.approx(3 * (later["until"] - told["until"]), rel=1e-3)
    assert ask(site.as_owner, by="job,queue")["rows"][0]["group"] == {
        "job": "1",
        "queue": "root.default",
    }
    assert ask(site.as_owner, partition="default")["total"]["attempts"] == 5
    assert ask(site.as_owner, user="bob")["total"]["attempts"] == 1
    assert ask(site.as_owner, since=time.time() + 60)["total"]["jobs"] == 0
    # Users see their own use.
    assert [row["group"]["user"] for row in ask(ann, by="user")["rows"]] == ["ann"]
    assert ask(bob)["total"]["attempts"] == 1 and ask(ann, user="ann")["total"]["attempts"] == 4
    assert ask(ann, user="bob") == (403, "user")
    for params, field in (
        ({"by": "users"}, "by"),
        ({"by": "user,user"}, "by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "nan"}, "since"),
        ({"until": -1}, "until"),
        ({"since": 5, "until": 5}, "until"),
    ):
        assert ask(site.as_owner, **params) == (422, field), params
    assert ask(site.as_owner, partition="none") == (404, "partition")


def test_preempted_attempts_count(site: Serving) -> None:
    site.node("n1", cpu=4)
    low = submit(site.as_user("ann"), {"stages": [{"resources": {"cpu": 4}}]})
    site.report(low, "running")
    submit(site.as_owner, {"priority": 5, "stages": [{"resources": {"cpu": 4}}]})
    time.sleep(0.02)
    site.report(low, "stopped")
    report = Client(site.url, site.owner).usage_report(["user"])
    ann = next(row for row in report.rows if row.group == {"user": "ann"})
    assert (ann.preempted, ann.attempts, report.total.preempted) == (1, 1, 1) and ann.hours["cpu"] * 3600 > 4 * 0.02


def test_clients_and_the_command_line_show_a_report(site: Serving) -> None:
    site.node("n1", cpu=16)
    jobs = [end(site, site.as_user(user)) for user in ("ann", "ann", "bob")]
    now = time.time()
    with Client(site.url, site.owner) as client:
        report = client.usage_report(["user", "job"], since=datetime.fromtimestamp(now - 3600, UTC), until=now + 10)
        with pytest.raises(TypeError, match=r"write \['user', 'queue'\]"):
            client.usage_report("user,queue")
        with pytest.raises(Problem, match='"users" is not one of user, queue, partition, job; write one or more'):
            client.usage_report(["users"])

    async def ask() -> Any:
        async with AsyncClient(site.url, site.owner) as client:
            names = [job.id async for job in client.history(name="*", limit=1)]
            return await client.usage_report(["user", "job"], since=now - 3600), names

    other, names = asyncio.run(ask())
    assert other.rows == report.rows and [row.group["job"] for row in report.rows] == jobs and names == jobs[::-1]
    shown = cli(site, site.owner, "usage", "--by", "user, queue", "--since", "7d").stdout.splitlines()
    assert shown[0].split() == ("USER QUEUE JOBS ATTEMPTS PREEMPTED CPU-HOURS GiB-HOURS WAIT MEDIAN 95%".split()) and [
        line.split()[:2] for line in shown[1:]
    ] == [["ann", "root.default"], ["bob", "root.default"], ["total", "3"]]
    rows = list(csv.DictReader(io.StringIO(cli(site, site.owner, "usage", "--csv").stdout)))
    assert [(row["user"], row["jobs"], row["attempts"]) for row in rows] == [("ann", "2", "2"), ("bob", "1", "1")]
    assert float(rows[0]["cpu_hours"]) == pytest.approx(2 * float(rows[0]["memory_gib_hours"]))
    assert json.loads(cli(site, site.owner, "usage", "--json", "--by", "").stdout)["total"]["jobs"] == 3
    for words, problem in (
        (("usage", "--csv", "--json"), "drop --csv or --json"),
        (("usage", "--by", "people"), '"people" is not one of user, queue, partition, job'),
        (("usage", "--since", "soon"), "'soon' is not a time; write 2026-11-30"),
        (("history", "--until", "7x"), "'7x' is not a time"),
        (("history", "--since", "1d", "--until", "2d"), "it is not later than since"),
        (("history", "--label", "x"), '"x" is not a label with its value; write key=value'),
    ):
        failed = cli(site, site.owner, *words)
        assert failed.exit_code and problem in " ".join(failed.output.replace("│", " ").split()), (words, failed.output)


def test_the_history_has_filters(site: Serving) -> None:
    config = {"partitions": {"default": {"queues": {"root": {"a": {}, "b": {"c": {}}}}}}}
    assert site.as_owner.put("/api/v1/config", json=config).is_success
    site.node("n1")
    ann = site.as_user("ann")
    one = end(site, ann, queue="root.a", name="train-1", labels={"team": "x"})
    middle = time.time()
    two = end(site, ann, "failed", queue="root.b.c", name="train-2", labels={"team": "y"})
    with Client(site.url, site.owner) as client:

        def past(**filters: Any) -> list[str]:
            return [job.id for job in client.history(**filters)]

        assert past(queue="root.b") == past(state="failed") == past(name="*-2") == past(label="team=y") == [two]
        assert past(since=middle) == [two] and past(until=middle) == [one] and past(node="n1") == [two, one]
        assert past(node="n2") == past(name="train") == [] == past(until=middle, queue="root.b")
        assert past(since=datetime.fromtimestamp(middle)) == [two]
        assert next(client.history()).labels == {"team": "y"} == client.job(two).labels
        for filters, field in (({"state": "done"}, "state"), ({"label": "team"}, "label"), ({"since": -1}, "since")):
            with pytest.raises(Problem) as refused:
                past(**filters)
            assert refused.value.field == field and "; write" in refused.value.detail
    words = ("history", "--queue", "root.b", "--name", "train-*", "--label", "team=y", "--since", "1h", "--json")
    assert [job["id"] for job in json.loads(cli(site, site.owner, *words).stdout)] == [two]
